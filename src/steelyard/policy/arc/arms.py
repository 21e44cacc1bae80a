"""The contestants: how outcome and process signals become the advantages of a turn's five decisions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steelyard.contracts import Arm, Metric, Trace
from steelyard.policy.advantages import accumulated, grpo
from steelyard.policy.arc.core import arc_advantage, coupled_returns, coupled_steps, mixed
from steelyard.policy.arc.heads import HEADS
from steelyard.policy.groups import Floats, standardise
from steelyard.policy.steps import StepBatch

Advantages = Floats | Mapping[str, Floats]
REWARD = 10.0
_WEIGHTS = {"progress": 0.5, "prediction": 0.5}


def _arm(name: str, label: str, role: Any, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config)


ARMS = (
    _arm("arc", "ARC: apart, to the commitments", "method", alpha=0.1),
    _arm("arc_step", "ARC on every decision of the turn", "ablation", alpha=0.1),
    _arm("arc_comp", "ARC by part of the statement, reward to go", "ablation", alpha=0.1),
    _arm("outcome", "GRPO, same form", "baseline"),
    _arm("coupled", "One sum of outcome and process reward", "baseline", alpha=0.1),
    _arm("coupled_routed", "Summed, to the commitments alone", "baseline", alpha=0.1),
    _arm("freeform", "Free statements with a penalty for wrong ones", "baseline", alpha=0.1),
    _arm("bc", "Imitation only: where all start", "floor"),
    _arm("random", "Floor: random commands", "floor"),
    _arm("true_state", "GRPO, told the true state", "ceiling"),
    _arm("expert", "Ceiling: the games' walkthroughs", "ceiling"),
)
LEARNERS = ("arc", "arc_step", "arc_comp", "outcome", "coupled", "coupled_routed", "freeform", "true_state")
FIXED = ("bc", "random", "expert")
OFFLINE = ("arc", "coupled", "outcome")
USER = tuple(arm for arm in ARMS if arm.name in OFFLINE)
"""Arms on a user's rollouts, where nothing learns."""

METRICS = (
    Metric(name="success", label="Held-out games won", better="higher", worst=0.0),
    Metric(name="auc", label="Mean success of training rollouts", better="higher", worst=0.0),
    Metric(name="inconsistency", label="Evaluation turns that contradict an observation", better="lower", worst=1.0),
    Metric(name="failed_inconsistent", label="Failed evaluation episodes with such a turn", better="lower"),
    Metric(name="persistence", label="Inconsistent after an inconsistent turn", better="lower"),
    Metric(name="persistence_onset", label="Inconsistent after the first inconsistency", better="lower"),
    Metric(name="statements", label="Right progress statements in evaluation", better="higher"),
    Metric(name="predictions", label="Right predictions in evaluation", better="higher"),
    Metric(name="unsaid", label="Parts of statements left unsaid in evaluation", better="lower"),
    Metric(name="own_weight", label="Rank correlation of a signal with its part of the credit", better="higher"),
    Metric(name="train_steps", label="Commands given in training", better="lower"),
)
TRACES = (
    Trace(name="learning", label="Success of training rollouts", x_label="iteration", y_label="share won"),
    Trace(name="statements", label="Right progress statements in training", x_label="iteration", y_label="share right"),
)


def estimator(arm: str, config: Mapping[str, Any]) -> Callable[[StepBatch], Advantages]:
    """Return from a batch to the advantages of the decisions of a turn."""
    alpha = float(config.get("alpha", 0.1))
    made: dict[str, Callable[[StepBatch], Advantages]] = {
        "outcome": grpo,
        "true_state": grpo,
        "arc": lambda batch: _routed(batch, alpha, "segment"),
        "arc_step": lambda batch: _routed(batch, alpha, "step"),
        "arc_comp": lambda batch: by_parts(batch, alpha),
        "coupled": lambda batch: coupled_returns(batch, mixed(batch.process, _WEIGHTS), alpha, REWARD),
        "coupled_routed": lambda batch: {
            "action": grpo(batch),
            **{name: coupled_steps(batch, batch.process[name], alpha, REWARD) for name in _WEIGHTS},
        },
        "freeform": lambda batch: {**_routed(batch, alpha, "segment"), "prediction": grpo(batch)},
    }
    return made[arm]


def _routed(batch: StepBatch, alpha: float, route: Any) -> dict[str, Floats]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the route, which is an arm's, and of groups that all fail
        found = arc_advantage(batch, alpha=alpha, route=route)
    return {name: found.for_segment(name) for name in ("progress", "action", "prediction")}


def by_parts(batch: StepBatch, alpha: float, gamma: float = 0.8) -> dict[str, Floats]:
    """Return advantages in which each part of a statement has its own signal, centred, with reward to go."""
    outcome, layout = grpo(batch), batch.layout

    def part(name: str) -> Floats:
        values = batch.process[name][layout.order]
        centred = np.nan_to_num(standardise(values, layout.task, layout.tasks, norm="mean"))
        total = standardise(accumulated(batch, centred, gamma), layout.task, layout.tasks)
        return np.asarray(outcome + alpha * total[layout.place])

    return {
        "action": outcome,
        "prediction": part("prediction"),
        **{name: part(f"progress.{name}") for name in HEADS},
    }


def penalised(batch: StepBatch) -> StepBatch:
    """Return the batch with statements scored as free reasoning is: -1 for a wrong one, else 0, silence too."""
    scores = np.array([math.nan])
    parts = [batch.process[name] for name in batch.process if name.startswith("progress.")]
    scores = -np.nanmax([np.where(np.isnan(part), 0.0, 1.0 - part) for part in parts], axis=0) if parts else scores
    return StepBatch(
        batch.task, batch.traj, batch.t, batch.reward, batch.anchor, batch.valid,
        {**batch.process, "progress": scores}, batch.success, batch.truncated,
    )  # fmt: skip
