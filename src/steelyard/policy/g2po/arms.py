"""The contestants: rules of credit, what they group steps by, and what is measured on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard.contracts import Arm, Metric, Trace
from steelyard.policy import advantages
from steelyard.policy.g2po.core import g2po_advantage
from steelyard.policy.groups import Floats
from steelyard.policy.steps import StepBatch

Estimator = Callable[[StepBatch], Floats]


def _arm(name: str, label: str, role: Any, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config)


ARMS = (
    _arm("g2po", "G2PO, simulator's state", "method", anchor="state"),
    _arm("g2po_ec", "G2PO without the node term", "ablation", anchor="state", parts=["ep", "ec"]),
    _arm("g2po_nc", "G2PO without the edge term", "ablation", anchor="state", parts=["ep", "nc"]),
    _arm("g2po_history", "G2PO, observation and one turn before it", "ablation", anchor="history"),
    _arm("g2po_obs", "G2PO, raw observation (the authors' code)", "ablation", anchor="obs"),
    _arm("g2po_lam", "G2PO, raw observation, rises along the rollout (lam .9)", "ablation", anchor="obs",
         parts=["ep", "ec"], lam=0.9),
    _arm("grpo", "GRPO", "baseline", anchor="state"),
    _arm("dr_grpo", "Dr. GRPO", "baseline", anchor="state"),
    _arm("rloo", "RLOO", "baseline", anchor="state"),
    _arm("gigpo", "GiGPO, simulator's state", "baseline", anchor="state"),
    _arm("gigpo_obs", "GiGPO, raw observation", "baseline", anchor="obs"),
    _arm("bc", "Imitation only: where all start", "floor"),
    _arm("random", "Floor: random commands, random credit", "floor", anchor="state"),
    _arm("expert", "Ceiling: the games' walkthroughs, exact credit", "ceiling", anchor="state"),
)  # fmt: skip
USER = (
    _arm("g2po", "G2PO, your anchor", "method"),
    _arm("g2po_ec", "G2PO without the node term", "ablation", parts=["ep", "ec"]),
    _arm("g2po_nc", "G2PO without the edge term", "ablation", parts=["ep", "nc"]),
    _arm("g2po_lam", "G2PO, rises along the rollout (lam .9)", "ablation", parts=["ep", "ec"], lam=0.9),
    _arm("grpo", "GRPO", "baseline"),
    _arm("dr_grpo", "Dr. GRPO", "baseline"),
    _arm("rloo", "RLOO", "baseline"),
    _arm("gigpo", "GiGPO, your anchor", "baseline"),
    _arm("random", "Floor: random credit", "floor"),
)  # fmt: skip
"""Arms on a user's rollouts: rules of credit, all with the anchor that the user names."""
CREDIT = ("g2po", "g2po_ec", "g2po_nc", "g2po_history", "g2po_obs", "g2po_lam", "grpo", "dr_grpo", "rloo", "gigpo",
          "gigpo_obs", "random", "expert")  # fmt: skip
LEARNERS = CREDIT[:-2]
WITHOUT_A_TERM = ("g2po_ec", "g2po_nc")
"""Arms that leave out a term and change nothing else: they take the whole method's settings."""
TUNED = tuple(arm for arm in LEARNERS if arm not in WITHOUT_A_TERM)
FIXED = ("bc", "random", "expert")
"""Arms that learn nothing."""

METRICS = (
    Metric(name="success", label="Held-out games won", better="higher", worst=0.0),
    Metric(name="auc", label="Mean success of training rollouts", better="higher", worst=0.0),
    Metric(name="credit", label="Rank correlation with the exact advantage", better="higher", worst=0.0, chance=0.0),
    Metric(name="agreement", label="Rank correlation with advantages of other rollouts", better="higher", worst=0.0,
           chance=0.0),
    Metric(name="spread", label="Variance of an action's credit between halves of the rollouts", better="lower"),
    Metric(name="aliased", label="Steps at anchors with different admissible actions", better="lower"),
    Metric(name="singletons", label="Steps at a state of their own", better="lower"),
    Metric(name="overhead", label="Share of training time spent on advantages", better="lower"),
    Metric(name="train_steps", label="Commands given in training", better="lower"),
)  # fmt: skip
TRACES = (Trace(name="learning", label="Success of training rollouts", x_label="iteration", y_label="share won"),)


def estimator(arm: str, config: dict[str, Any], draws: np.random.Generator) -> Estimator:
    """Return the rule of credit of an arm; ``draws`` serves the random floor."""
    if arm == "random":
        return lambda batch: draws.normal(size=len(batch))
    plain = {"grpo": advantages.grpo, "dr_grpo": advantages.dr_grpo, "rloo": advantages.rloo}
    if arm in plain:
        return plain[arm]
    chosen = {name: config[name] for name in ("gamma", "w", "norm", "episode_stats") if name in config}
    if arm.startswith("gigpo"):
        return lambda batch: advantages.gigpo(batch, **chosen)
    more = {name: config[name] for name in ("parts", "lam", "min_std", "weighting") if name in config}
    return lambda batch: g2po_advantage(batch, **chosen, **more)
