"""The user's own rollouts: how steady each rule of credit is on them, and how well it agrees with other rollouts.

For each seed the rollouts of every task are divided at random. Credit computed on one half is compared with
Monte-Carlo advantages from the other: the mean discounted return after an action from a state, less the state's mean,
where that half took the action there. Nothing is shared between the halves.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from pydantic import Field
from scipy.stats import spearmanr

from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.errors import InputError
from steelyard.policy.advantages import rewards_to_go
from steelyard.policy.anchors import alias_report
from steelyard.policy.g2po.arms import USER, estimator
from steelyard.policy.groups import Floats, Ints, factorise, group_moments
from steelyard.policy.steps import StepBatch
from steelyard.policy.trajectories import AnchorField, anchored_episodes, given_episodes

TASK = "user"
_LEAST = 4


class Options(Frozen):
    """What the bench takes beside the rollouts."""

    anchor: AnchorField = Field(default="anchor", description="what steps are grouped by: anchor, observation, history")
    gamma: float = Field(default=0.95, gt=0, le=1, description="discount a step")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of rollouts of the user's own.

    Args:
        data: Path of a JSON Lines file of steps or episodes, or a list of episodes.
        options: Fields of `Options`.

    Raises:
        InputError: The file cannot be used, or no task has four rollouts.
    """
    chosen = Options(**options)
    episodes, source = given_episodes(data)
    arrays = rollout_arrays(episodes, chosen.anchor)
    tasks, rollouts = len(np.unique(arrays["task"])), len(np.unique(arrays["traj"]))
    return Task(TASK, f"Your rollouts: {tasks} tasks, {rollouts} rollouts", lambda: arrays, source)


def rollout_arrays(episodes: list[Any], anchor: AnchorField) -> dict[str, Any]:
    """Return the steps as plain arrays: numbers for task, rollout, state and action.

    Raises:
        InputError: A step lacks what is needed, or no task has four rollouts.
    """
    batch = StepBatch.from_episodes(anchored_episodes(episodes, anchor))
    steps = [step for episode in episodes for step in episode]
    if any(step.get("action") is None for step in steps):
        raise InputError("data: every step needs its 'action', so that credit can be compared between rollouts")
    task = factorise(batch.task)[0]
    count = np.bincount(batch.layout.traj_task)
    if count.max() < _LEAST:
        raise InputError(
            f"data: a task needs at least {_LEAST} rollouts to be divided in two; the largest has {int(count.max())}"
        )
    known = [step.get("admissible") for step in steps]
    sets = factorise([None if actions is None else frozenset(map(str, actions)) for actions in known])[0]
    return {
        "task": task,
        "traj": np.asarray(batch.traj),
        "t": batch.t,
        "reward": batch.reward,
        "state": factorise(batch.anchor)[0],
        "action": factorise([str(step["action"]) for step in steps])[0],
        "valid": np.ones(len(batch), bool) if batch.valid is None else batch.valid,
        "success": np.zeros(0, bool) if batch.success is None else batch.success,
        "admissible": np.where([actions is None for actions in known], -1, sets),
    }


def run(cell: CellInput) -> Measured:
    """Measure one arm on the seed's division of the rollouts.

    Raises:
        InputError: An arm that is not measured on rollouts.
    """
    if cell.arm not in [arm.name for arm in USER]:
        raise InputError(f"arm '{cell.arm}' is not measured on task '{cell.task}'")
    options = Options(**cell.options)
    data = cell.data
    anchor = data["state"]
    halves = _halves(data["task"], data["traj"], cell.rng("halves"))
    config = {**cell.config, "gamma": options.gamma}
    credit = estimator(cell.arm, config, cell.rng("random"))
    parts = [_Half(data, anchor, rows, credit, options.gamma) for rows in halves]
    agreements = [_agreement(ours, theirs) for ours, theirs in (parts, parts[::-1])]
    report = alias_report(
        StepBatch(data["task"], data["traj"], data["t"], data["reward"], anchor),
        [None if number < 0 else (int(number),) for number in data["admissible"]],
    )
    metrics = {
        "agreement": float(np.mean(agreements)),
        "spread": _spread(*parts),
        "singletons": report.singleton_fraction,
    }
    if report.aliased_share is not None and (data["admissible"] >= 0).any():
        metrics["aliased"] = report.aliased_share
    return Measured(metrics, steps=len(data["t"]), notes={"warning": "; ".join(report.warnings)[:300]})


class _Half:
    """One half of the rollouts: its credit and its Monte-Carlo advantages, by (task, state, action)."""

    def __init__(self, data: Any, anchor: Ints, rows: Ints, credit: Any, gamma: float) -> None:
        batch = StepBatch(
            data["task"][rows], data["traj"][rows], data["t"][rows], data["reward"][rows], anchor[rows],
            valid=data["valid"][rows], success=data["success"][rows] if len(data["success"]) else None,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.credit: Floats = np.asarray(credit(batch), np.float64)
        state = data["state"][rows]
        self.state: Ints = data["task"][rows] * (int(data["state"].max()) + 1) + state
        self.pair: Ints = self.state * (int(data["action"].max()) + 1) + data["action"][rows]
        self.returned: Floats = rewards_to_go(batch, gamma)[batch.layout.place]


def _agreement(ours: _Half, theirs: _Half) -> float:
    """Return the rank correlation of one half's credit with the other's Monte-Carlo advantages, by state and action."""
    pairs, place = np.unique(ours.pair, return_inverse=True)
    credit = np.bincount(place, ours.credit) / np.bincount(place)
    known, where = np.unique(theirs.pair, return_inverse=True)
    states, which = np.unique(theirs.state, return_inverse=True)
    gain = np.bincount(where, theirs.returned) / np.bincount(where)
    mean = group_moments(theirs.returned, which, len(states)).mean
    first = np.zeros(len(known), np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    truth = gain - mean[which[first]]
    _, mine, other = np.intersect1d(pairs, known, return_indices=True)
    if len(mine) < 3 or np.ptp(credit[mine]) == 0 or np.ptp(truth[other]) == 0:
        return 0.0
    return float(spearmanr(credit[mine], truth[other])[0])


def _spread(one: _Half, two: _Half) -> float:
    """Return the variance of a state and action's mean credit between the halves, of the credit's own variance."""
    means = []
    for half in (one, two):
        pairs, place = np.unique(half.pair, return_inverse=True)
        means.append((pairs, np.bincount(place, half.credit) / np.bincount(place)))
    _, first, second = np.intersect1d(means[0][0], means[1][0], return_indices=True)
    whole = float(np.concatenate([one.credit, two.credit]).var())
    if not len(first) or whole == 0:
        return 0.0
    return float(((means[0][1][first] - means[1][1][second]) ** 2).mean() / 2 / whole)


def _halves(task: Ints, traj: Ints, draws: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the rows of two halves of every task's rollouts, drawn at random; tasks of one rollout are left out."""
    first: list[int] = []
    second: list[int] = []
    for number in np.unique(task).tolist():
        own = draws.permutation(np.unique(traj[task == number]))
        if len(own) >= 2:
            first += own[: len(own) // 2].tolist()
            second += own[len(own) // 2 :].tolist()
    return np.flatnonzero(np.isin(traj, first)), np.flatnonzero(np.isin(traj, second))
