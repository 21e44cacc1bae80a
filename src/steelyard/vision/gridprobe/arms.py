"""The contestants: rules for choosing frames, all read off the same probes and answered by the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, carried, carried_arms
from steelyard.models.vision.world import KINDS

CARRIER, CHANCE = "gridprobe", "chance"
RUN = (CARRIER, CHANCE)
"""Arms with cells of their own; the cell of `CARRIER` runs all others."""


def _arm(name: str, label: str, role: Any, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config, derived=name not in RUN)


ARMS = (
    _arm(CARRIER, "GridProbe, budget by shape", "method"),
    _arm("fixed8", "GridProbe's 8 best frames", "ablation"),
    _arm("sum_map", "Rows plus columns", "ablation", combine="sum"),
    _arm("alpha1", "Shape shortens less (alpha 1)", "ablation", alpha=1.0),
    _arm("alpha10", "Shape shortens more (alpha 10)", "ablation", alpha=10.0),
    _arm("participation", "Budget by participation ratio", "ablation", rule="participation"),
    _arm("mean", "Budget: cells above the mean", "ablation", rule="mean"),
    _arm("otsu", "Budget: cells above Otsu's threshold", "ablation", rule="otsu"),
    _arm("fine_probes", "Probes at full resolution", "ablation", rho=1.0),
    _arm("ensemble", "The probes' own answer, no second pass", "ablation"),
    _arm("monolithic", "All frames at full resolution", "baseline"),
    _arm("monolithic_low", "All frames at the probes' resolution", "baseline"),
    _arm("uniform", "As many frames, evenly apart", "baseline"),
    _arm("random_frames", "As many frames, drawn at random", "baseline"),
    _arm("uniform8", "8 frames, evenly apart", "baseline"),
    _arm("detector", "As many, by a supervised detector", "baseline"),
    _arm("similarity", "As many, by similarity to the words", "baseline"),
    _arm("similarity8", "8 frames, by similarity to the words", "baseline"),
    _arm("aks", "As many, AKS on the same similarity", "baseline"),
    _arm("bolt", "As many, BOLT on the same similarity", "baseline"),
    _arm("mdp3", "As many, MDP3 on the same embeddings", "baseline"),
    _arm("blind", "Floor: no frame that shows anything", "floor"),
    _arm(CHANCE, "Floor: one option in four", "floor"),
    _arm("evidence", "The frames that carry the evidence, known", "ceiling"),
)
DERIVED = tuple(arm.name for arm in ARMS if arm.derived)

METRICS = (
    Metric(name="accuracy", label="Right answers", better="higher", worst=0.0, chance=0.25),
    *(Metric(name=f"accuracy_{kind}", label=f"Right answers, {kind}", better="higher", worst=0.0, chance=0.25)
      for kind in KINDS),
    Metric(name="frames", label="Frames of the answering pass", better="lower"),
    *(Metric(name=f"frames_{kind}", label=f"Frames of the answering pass, {kind}", better="lower") for kind in KINDS),
    Metric(name="mflops", label="Operations a question, probes included", better="lower", unit="million"),
    Metric(name="tokens", label="Tokens a question, probes included", better="lower"),
    Metric(name="hit_rate", label="Evidence frames selected, specific", better="higher", worst=0.0),
    Metric(name="tracking", label="Rank correlation of budget and errors on all frames", better="higher"),
    Metric(name="easy", label="Right answers on all frames, budget up to its median", better="higher"),
    Metric(name="hard", label="Right answers on all frames, budget above its median", better="higher"),
    Metric(name="count_specific", label="Log ratio of budgets, count over specific", better="higher"),
    Metric(name="order_specific", label="Log ratio of budgets, order over specific", better="higher"),
    Metric(name="saving", label="Operations of all frames over GridProbe's", better="higher"),
    Metric(name="fine_saving", label="The same had the probes full resolution", better="higher"),
    Metric(name="uncovered", label="Questions whose budget is below the bright cells", better="lower"),
)  # fmt: skip


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of `CARRIER`."""
    return carried(CARRIER, arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of `CARRIER` ran, of one task and seed."""
    return carried_arms(CARRIER, arms)
