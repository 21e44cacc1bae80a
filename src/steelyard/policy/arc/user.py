"""The user's own rollouts with scored commitments: what each rule of credit makes of them, and how consistent they are.

Every seed takes a random half of each task's rollouts. How far a signal keeps its own weight is the rank correlation
between the signal, less its task's mean, and what the rule adds to the outcome's credit for its segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field
from scipy.stats import spearmanr

from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.errors import InputError
from steelyard.policy.advantages import grpo
from steelyard.policy.arc.arms import OFFLINE
from steelyard.policy.arc.core import arc_advantage, coupled_steps
from steelyard.policy.arc.report import inconsistency_report
from steelyard.policy.groups import Floats, factorise, group_moments
from steelyard.policy.steps import StepBatch
from steelyard.policy.trajectories import given_episodes

TASK = "user"
SIGNALS = ("progress", "prediction")


class Options(Frozen):
    """What the bench takes beside the rollouts."""

    alpha: float = Field(default=0.1, gt=0, allow_inf_nan=False, description="weight of the process part")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of rollouts whose steps have ``process`` with "progress" and "prediction".

    Args:
        data: Path of a JSON Lines file, or a list of episodes.
        options: Fields of `Options`.

    Raises:
        InputError: The file cannot be used, or no step is scored.
    """
    Options(**options)
    episodes, source = given_episodes(data)
    arrays = rollout_arrays(episodes)
    label = f"Your rollouts: {len(np.unique(arrays['task']))} tasks, {len(np.unique(arrays['traj']))} rollouts"
    return Task(TASK, label, lambda: arrays, source)


def rollout_arrays(episodes: list[Any]) -> dict[str, Any]:
    """Return the steps as plain arrays.

    Raises:
        InputError: What is given is no list of episodes, a signal is missing everywhere, or no task has two rollouts.
    """
    if not all(
        isinstance(episode, Sequence) and all(isinstance(one, Mapping) for one in episode) for episode in episodes
    ):
        raise InputError("data must be a file's path or a list of episodes, each a list of steps, which are mappings")
    batch = StepBatch.from_episodes([[{**step, "anchor": 0} for step in episode] for episode in episodes])
    for name in SIGNALS:
        if name not in batch.process or np.isnan(batch.process[name]).all():
            raise InputError(f"data: no step has a number for 'process' → '{name}'; CommitmentWrapper writes them")
    if np.bincount(batch.layout.traj_task).max() < 2:
        raise InputError("data: no task has two rollouts, so that there is nothing to compare")
    return {
        "task": factorise(batch.task)[0],
        "traj": np.asarray(batch.traj),
        "t": batch.t,
        "reward": batch.reward,
        "success": np.zeros(len(batch), bool) if batch.success is None else batch.success,
        **{name: batch.process[name] for name in SIGNALS},
    }


def run(cell: CellInput) -> Measured:
    """Measure one arm on the seed's half of the rollouts.

    Raises:
        InputError: An arm that learns and is not measured offline.
    """
    if cell.arm not in OFFLINE:
        raise InputError(f"arm '{cell.arm}' is not measured on task '{cell.task}'")
    alpha, data = Options(**cell.options).alpha, cell.data
    rows = _half(data["task"], data["traj"], cell.rng("half"))
    batch = StepBatch(
        data["task"][rows], data["traj"][rows], data["t"][rows], data["reward"][rows],
        process={name: data[name][rows] for name in SIGNALS}, success=data["success"][rows],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = [_own_weight(cell.arm, batch, name, alpha) for name in SIGNALS]
    report = inconsistency_report(_episodes(batch))
    rates = {"inconsistency": report.inconsistency_rate, "persistence_onset": report.persistence_after_onset}
    known = {name: value for name, value in rates.items() if np.isfinite(value)}
    return Measured({"own_weight": float(np.mean(weights)), **known}, steps=len(batch))


def _own_weight(arm: str, batch: StepBatch, name: str, alpha: float) -> float:
    outcome = np.asarray(grpo(batch))
    signal = batch.process[name]
    scale = max(float(np.abs(batch.returns).max()), 1e-12)
    credit: dict[str, Floats] = {
        "outcome": outcome,
        "coupled": np.asarray(coupled_steps(batch, signal, alpha, scale)),
        "arc": np.asarray(arc_advantage(batch, alpha=alpha).signals[name]),
    }
    added = credit[arm] - outcome
    task, tasks = factorise(batch.task)
    apart = signal - group_moments(signal, task, tasks).mean[task]
    known = ~np.isnan(apart)
    if known.sum() < 3 or np.ptp(added[known]) == 0 or np.ptp(apart[known]) == 0:
        return 0.0
    return float(spearmanr(added[known], apart[known])[0])


def _half(task: Any, traj: Any, draws: np.random.Generator) -> Any:
    """Return the rows of a random half of every task's rollouts, at least two of those that have as many."""
    chosen: list[int] = []
    pairs = np.unique(np.stack([task, traj], axis=1), axis=0)  # sorted by task, then rollout
    for rollouts in np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1):
        own = draws.permutation(rollouts)
        chosen += own[: max(len(own) // 2, min(len(own), 2))].tolist()
    return np.flatnonzero(np.isin(traj, chosen))


def _episodes(batch: StepBatch) -> list[Any]:
    layout = batch.layout
    rows = np.split(layout.order, layout.starts[1:])
    progress, success = batch.process["progress"], batch.success
    return [
        [{"process": {"progress": float(progress[row])}, "success": bool(success[row])} for row in own.tolist()]
        for own in rows
    ]
