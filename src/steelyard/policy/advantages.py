"""Advantages without a critic: GRPO, Dr. GRPO, RLOO and GiGPO, on flat steps.

All statistics are taken within the rollouts of one task, never across tasks.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.groups import EPS, Floats, Norm, standardise
from steelyard.policy.steps import StepBatch

EpisodeStats = Literal["trajectory", "step"]
GAMMA = 0.95


def grpo(batch: StepBatch, *, eps: float = EPS) -> Any:
    """Return GRPO's advantage: a rollout's return in standard deviations from its task's mean, at each of its steps.

    Args:
        batch: The steps.
        eps: Added to the standard deviation (TRL adds 1e-4).

    Returns:
        Shape (S,), in the order of the steps; 0 for a task with one rollout, which is warned of.
    """
    check_number("eps", eps, low=0.0, above=True)
    check_batch(batch)
    return batch.per_row(episode_advantage(batch, eps=eps))


def dr_grpo(batch: StepBatch) -> Any:
    """Return Dr. GRPO's advantage, a rollout's return less its task's mean; shape (S,)."""
    check_batch(batch)
    return batch.per_row(episode_advantage(batch, norm="mean"))


def rloo(batch: StepBatch) -> Any:
    """Return RLOO's advantage, a rollout's return less the mean of its task's others; shape (S,)."""
    check_batch(batch)
    layout = batch.layout
    count = np.bincount(layout.traj_task, minlength=layout.tasks)
    scale = count / np.maximum(count - 1, 1)
    return batch.per_row(episode_advantage(batch, norm="mean") * scale[layout.task])


def gigpo(
    batch: StepBatch,
    *,
    gamma: float = GAMMA,
    w: float = 1.0,
    norm: Norm = "std",
    episode_stats: EpisodeStats = "trajectory",
) -> Any:
    """Return GiGPO's advantage (arXiv 2505.10978): GRPO's plus ``w`` times that among steps from the same state.

    The second part compares discounted rewards to go of all steps of a task that have the same anchor.

    Args:
        batch: The steps, with anchors.
        gamma: Discount a step, in (0, 1].
        w: Weight of the second part, at least 0.
        norm: ``"std"`` divides by standard deviations, ``"mean"`` only subtracts means.
        episode_stats: Whether each rollout counts once in the first part's statistics, or each of its steps.

    Returns:
        Shape (S,); the second part is 0 where a state was met once.
    """
    check_number("gamma", gamma, low=0.0, high=1.0, above=True)
    check_number("w", w, low=0.0)
    check_batch(batch)
    total = episode_advantage(batch, norm=norm, episode_stats=episode_stats)
    if w:
        nodes, count = batch.nodes
        total = total + w * standardise(rewards_to_go(batch, gamma), nodes, count, norm=norm)
    return batch.per_row(total)


def episode_advantage(
    batch: StepBatch,
    *,
    norm: Norm = "std",
    episode_stats: EpisodeStats = "trajectory",
    eps: float = EPS,
    penalty: Floats | None = None,
    min_std: float = 0.0,
) -> Floats:
    """Return each rollout's return against its task's, on *sorted* rows, shape (S,).

    Args:
        batch: The steps.
        norm: As in :func:`gigpo`.
        episode_stats: As in :func:`gigpo`.
        eps: Added to standard deviations.
        penalty: Taken off the return at single steps, (S,) on sorted rows; with ``episode_stats="step"`` only.
        min_std: Least standard deviation.

    Raises:
        InputError: An unknown ``norm`` or ``episode_stats``.
    """
    check_choice("norm", norm, ("std", "mean"))
    check_choice("episode_stats", episode_stats, ("trajectory", "step"))
    layout = batch.layout
    alone = int((np.bincount(layout.traj_task, minlength=layout.tasks) == 1).sum())
    if alone:
        warnings.warn(
            f"{alone} of {layout.tasks} tasks have one rollout only: nothing to compare it with, so its advantage is 0",
            stacklevel=3,
        )
    if episode_stats == "trajectory":
        values = standardise(batch.returns, layout.traj_task, layout.tasks, norm=norm, eps=eps, min_std=min_std)
        return values[layout.traj]
    values = batch.returns[layout.traj]
    if penalty is not None:
        values = values - penalty
    result = standardise(values, layout.task, layout.tasks, norm=norm, eps=eps, min_std=min_std)
    if alone:
        result[(np.bincount(layout.traj_task, minlength=layout.tasks) == 1)[layout.task]] = 0.0
    return result


def rewards_to_go(batch: StepBatch, gamma: float) -> Floats:
    """Return the discounted sum of the rewards from each sorted row to the end of its trajectory, shape (S,)."""
    return accumulated(batch, batch.reward[batch.layout.order], gamma)


def accumulated(batch: StepBatch, values: Floats, factor: float) -> Floats:
    """Return ``a_t = values_t + factor * a_{t+1}`` along every trajectory, on sorted rows, shape (S,).

    All trajectories go backwards together, so that the loop is as long as the longest of them.
    """
    layout = batch.layout
    result = values.copy()
    if factor == 0:
        return result
    longest_first = np.argsort(-layout.lengths, kind="stable")
    ends, lengths = layout.ends[longest_first], layout.lengths[longest_first]
    for back in range(1, int(lengths[0]) if len(lengths) else 0):
        rows = ends[: np.searchsorted(-lengths, -back, side="left")] - back
        result[rows] += factor * result[rows + 1]
    return result


def check_batch(batch: object) -> None:
    """Refuse what is no `StepBatch`."""
    if not isinstance(batch, StepBatch):
        raise InputError(f"batch must be a StepBatch (StepBatch.from_episodes makes one), got {type(batch).__name__}")


def check_number(name: str, value: float, *, low: float = -np.inf, high: float = np.inf, above: bool = False) -> None:
    """Refuse a number outside [low, high], or (low, high] with ``above``."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))
    if not number or not low <= value <= high or (above and value == low):
        least = "" if low == -np.inf else f" {'above' if above else 'of at least'} {low:g}"
        most = "" if high == np.inf else f"{' and' if least else ' of'} at most {high:g}"
        raise InputError(f"{name} must be a finite number{least}{most}, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of ``choices``."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
