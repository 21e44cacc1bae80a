"""The contestants and what is measured on them.

One cell answers a subset of questions and computes every score on the same answers, since answering is what costs;
the arm ``discrepancy`` is that cell, and :func:`derive` takes the other arms' figures out of it. An arm's cost is what
its own steps took, beyond giving the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, carried, carried_arms


def _arm(name: str, label: str, role: Any, derived: bool = True) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived)


RUN = (
    _arm("discrepancy", "Embedding discrepancy D (its cell answers, and runs all scorers)", "method", derived=False),
    _arm("chance", "Any score that looks at nothing", "floor", derived=False),
    _arm("labels", "The labels themselves", "ceiling", derived=False),
    _arm("planted", "D on copied against planted answers of equal length", "method", derived=False),
)
VARIANTS = (
    _arm("two_passes", "D, both passes computed anew", "ablation"),
    _arm("d_token", "D, token by token", "ablation"),
    _arm("d_token_half", "D, token by token, half depth", "ablation"),
    _arm("d_last_token", "D, last token", "ablation"),
    _arm("d_l2", "D, Euclidean", "ablation"),
    _arm("d_rel_l2", "D, relative Euclidean", "ablation"),
    _arm("d_quarter", "D, a quarter of the depth", "ablation"),
    _arm("d_half", "D, half depth", "ablation"),
    _arm("d_top", "D, last layer", "ablation"),
    _arm("d_band", "D, mean over layers .5 to .9", "ablation"),
    _arm("d_no_first", "D without the answer's first token", "ablation"),
    _arm("d_centred", "D, states minus their mean over all answers", "ablation"),
    _arm("d_length_adjusted", "D, length taken out", "ablation"),
    _arm("black_box", "D by a sentence encoder (MiniLM)", "ablation"),
)
SINGLE = (
    _arm("nll", "Mean token NLL (perplexity)", "baseline"),
    _arm("summed_nll", "Summed NLL", "baseline"),
    _arm("max_nll", "Largest token NLL", "baseline"),
    _arm("entropy", "Mean token entropy", "baseline"),
    _arm("energy", "Energy", "baseline"),
    _arm("pmi", "PMI of answer and question", "baseline"),
    _arm("p_true", "P(True)", "baseline"),
    _arm("hide", "HIDE (HSIC of prompt and answer)", "baseline"),
    _arm("sgi", "SGI (angles to question and context)", "baseline"),
)
MULTI = (
    _arm("ln_entropy", "Length-normalised entropy, K samples", "baseline"),
    _arm("lexical", "Lexical similarity, K samples", "baseline"),
    _arm("selfcheck", "SelfCheckGPT (MiniLM), K samples", "baseline"),
    _arm("semantic_entropy", "Semantic entropy (MiniLM clusters), K samples", "baseline"),
    _arm("eigenscore", "EigenScore, K samples", "baseline"),
)
CONTROLS = (
    _arm("length", "Control: number of tokens", "floor"),
    _arm("text_similarity", "Control: text similarity to what was asked", "floor"),
)
REFERENCES = (
    _arm("probe", "Oracle: probe on states, trained with labels (cross-validated)", "ceiling"),
    _arm("best_layer", "Oracle: D at the layer that is best with labels", "ceiling"),
    _arm("best_multi", "Oracle: best of the K-sample methods on each subset", "ceiling"),
    _arm("cheapest_multi", "Cheapest of the K-sample methods", "baseline"),
)
ARMS = (*RUN, *VARIANTS, *SINGLE, *MULTI, *CONTROLS, *REFERENCES)
MULTI_NAMES = tuple(arm.name for arm in MULTI)
LIVE_ARMS, PLANTED_ARMS = ("discrepancy", "chance", "labels"), ("planted", "chance", "labels")

_GOLD, _ROUGE = "gold text in the answer", "ROUGE-L above .5"
METRICS = (
    Metric(name="auroc", label=f"AUROC ({_GOLD})", better="higher", worst=0.5, chance=0.5),
    Metric(name="auroc_rouge", label=f"AUROC ({_ROUGE})", better="higher", worst=0.5, chance=0.5),
    Metric(name="auroc_stratified", label="AUROC among answers of like length", better="higher", worst=0.5, chance=0.5),
    Metric(name="auroc_given", label="AUROC on made-up pairs (mind the controls)", better="higher", worst=0.5,
           chance=0.5),
    Metric(name="auroc_given_stratified", label="The same among answers of like length", better="higher", worst=0.5,
           chance=0.5),
    Metric(name="cpu", label="Processor time beyond the answer", better="lower", unit="ms / answer"),
    Metric(name="tokens", label="Tokens run beyond the answer", better="lower", unit="per answer"),
    Metric(name="cpu_k10", label="Processor time, scaled to ten samples", better="lower", unit="ms / answer"),
    Metric(name="tokens_k10", label="Tokens run, scaled to ten samples", better="lower", unit="per answer"),
    Metric(name="answer_cpu", label="Processor time of the answer itself", better="lower", unit="ms / answer"),
    Metric(name="answer_tokens", label="Length of an answer", better="lower", unit="tokens"),
    Metric(name="wrong", label=f"Share of wrong answers ({_GOLD})", better="lower"),
    Metric(name="wrong_rouge", label=f"Share of wrong answers ({_ROUGE})", better="lower"),
    Metric(name="answers", label="Answers judged", better="higher"),
    Metric(name="unanswered", label="Questions without an answer", better="lower"),
)  # fmt: skip


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``discrepancy``."""
    return carried("discrepancy", arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``discrepancy`` scored, of one task and seed."""
    found = carried_arms("discrepancy", arms)
    several = [found[name] for name in MULTI_NAMES if name in found]
    if several:
        areas = ("auroc", "auroc_rouge", "auroc_stratified")
        costs = ("cpu", "tokens", "cpu_k10", "tokens_k10")
        found["best_multi"] = {name: max(one[name] for one in several) for name in areas if name in several[0]}
        found["cheapest_multi"] = {name: min(one[name] for one in several) for name in costs}
    return found
