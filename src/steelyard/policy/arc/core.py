"""ARC's advantages: the outcome and what an agent committed itself to, each normalised by itself.

The paper's abstract names the idea; every formula here is a reconstruction.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.advantages import accumulated, check_batch, check_choice, check_number, episode_advantage
from steelyard.policy.groups import EPS, Floats, standardise
from steelyard.policy.steps import LARGEST, StepBatch

WEIGHTS: Mapping[str, float] = {"progress": 0.5, "prediction": 0.5}
ALPHA = 0.1
SEGMENTS = {"progress": "progress", "predict": "prediction", "prediction": "prediction"}
"""Segment of a turn -> the signal that judges it; every other segment is judged by the outcome alone."""
Route = Literal["segment", "step"]


@dataclass(frozen=True)
class ArcAdvantage:
    """Advantages by what they are for; arrays or tensors of shape (S,) in the order of the steps.

    Attributes:
        outcome: GRPO's, from the outcome alone.
        signals: Signal -> outcome plus that signal's own part.
        step: Outcome plus the weighted mean of all signals, for every token of a step.
        route: Which of them segments get.
    """

    outcome: Any
    signals: Mapping[str, Any]
    step: Any
    route: Route

    @property
    def progress(self) -> Any:
        """What the tokens of the progress statement get when advantages are routed."""
        return self.signals["progress"]

    @property
    def prediction(self) -> Any:
        """What the tokens of the prediction get when advantages are routed."""
        return self.signals["prediction"]

    def for_segment(self, name: str) -> Any:
        """Return the advantage of a segment: "progress", "think", "action", "predict" or a signal's name.

        Raises:
            InputError: Another name.
        """
        known = ("progress", "think", "action", "predict", *self.signals)
        if name not in known:
            raise InputError(f"name: there is no segment {name!r}; there are {', '.join(dict.fromkeys(known))}")
        if self.route == "step":
            return self.step
        return self.signals.get(SEGMENTS.get(name, name), self.outcome)


def arc_advantage(
    batch: StepBatch,
    *,
    weights: Mapping[str, float] = WEIGHTS,
    alpha: float | Mapping[str, float] = ALPHA,
    route: Route = "segment",
    returns: Literal["immediate", "to_go"] = "immediate",
    gamma: float = 0.8,
    group: Literal["task", "anchor"] = "task",
    whiten: bool = False,
) -> ArcAdvantage:
    """Return the advantages of outcome and commitments (reconstruction).

    ``A = A_out + alpha * A_proc``, where ``A_out`` compares the returns of a task's rollouts and ``A_proc`` one signal
    over all steps of the task. With ``alpha=0`` everything is GRPO's advantage, bit for bit.

    Args:
        batch: The steps; ``batch.process`` holds the signals, NaN where a step is not scored.
        weights: Signal -> share in the mean that ``route="step"`` uses. A step's mean is over what it is scored on.
        alpha: Weight of the process part, at least 0; or one for each signal.
        route: ``"segment"``: the process part reaches only the tokens of the commitment that it judges. ``"step"``: it
            reaches every token (likely the paper's form), which teaches an agent to seek states where statements are
            easy; this is warned of.
        returns: Whether a signal counts at its own step, or with what follows, discounted by ``gamma``.
        gamma: For ``returns="to_go"``, in [0, 1].
        group: Whether signals are compared over the steps of the task, or of the same state.
        whiten: Bring each result to mean 0 and standard deviation 1 over the batch (as GDPO does).

    Raises:
        InputError: A signal is missing, or an argument is out of its range.
    """
    check_batch(batch)
    for name, value, choices in (
        ("route", route, ("segment", "step")),
        ("returns", returns, ("immediate", "to_go")),
        ("group", group, ("task", "anchor")),
    ):
        check_choice(name, value, choices)
    check_number("gamma", gamma, low=0.0, high=1.0)
    strength = _strengths(alpha, weights)
    _check_weights(weights, batch)
    layout = batch.layout
    groups = (layout.task, layout.tasks) if group == "task" else batch.nodes
    outcome = episode_advantage(batch)
    scored = {name: batch.process[name][layout.order] for name in weights}

    def part(values: Floats) -> Floats:
        if returns == "to_go":
            values = np.where(np.isnan(values), np.nan, accumulated(batch, np.nan_to_num(values), gamma))
        return standardise(values, *groups)

    def added(amount: float, values: Floats) -> Any:
        total = outcome + amount * part(values) if amount else outcome
        return batch.per_row(_white(total) if whiten else total)

    top = max(strength.values())
    if top:
        _warn(route, strength, outcome)
    return ArcAdvantage(
        outcome=batch.per_row(_white(outcome) if whiten else outcome),
        signals={name: added(strength[name], values) for name, values in scored.items()},
        step=added(top, mixed(scored, {name: weights[name] * strength[name] / (top or 1.0) for name in weights})),
        route=route,
    )


def mixed(signals: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """Return the weighted mean of each step's signals over those that it is scored on; NaN where there is none."""
    rows = [np.asarray(signals[name], np.float64) for name in weights]
    known = [~np.isnan(values) for values in rows]
    total = sum(
        weights[name] * np.where(ok, values, 0.0) for name, ok, values in zip(weights, known, rows, strict=True)
    )
    weight = sum(weights[name] * ok for name, ok in zip(weights, known, strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.greater(weight, 0), np.divide(total, weight), np.nan)


def coupled_returns(batch: StepBatch, signal: Floats, alpha: float, scale: float) -> Any:
    """Return GRPO's advantage of ``R / scale + alpha * mean signal`` of each rollout: one normalisation for both.

    The rival that decoupling is compared with; shape (S,), signals of shape (S,) in the order of the steps.
    """
    layout = batch.layout
    values = signal[layout.order]
    known = ~np.isnan(values)
    count = len(layout.starts)
    sums = np.bincount(layout.traj, np.where(known, values, 0.0), count)
    means = sums / np.maximum(np.bincount(layout.traj, known, count), 1)
    total = batch.returns / scale + alpha * means
    return batch.per_row(standardise(total, layout.traj_task, layout.tasks)[layout.traj])


def coupled_steps(batch: StepBatch, signal: Floats, alpha: float, scale: float) -> Any:
    """Return ``R / scale + alpha * signal`` of each step, normalised once over the task's steps; shape (S,).

    A step that is not scored gets the advantage of its outcome within the same statistics.
    """
    layout = batch.layout
    values = signal[layout.order]
    total = batch.returns[layout.traj] / scale + alpha * np.where(np.isnan(values), 0.0, values)
    return batch.per_row(standardise(total, layout.task, layout.tasks))


def _white(values: Floats) -> Floats:
    spread = float(values.std()) if len(values) else 0.0
    return np.zeros_like(values) if spread == 0 else (values - values.mean()) / (spread + EPS)


def _strengths(alpha: float | Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise InputError(f"weights must be a mapping from signals to numbers, got {type(weights).__name__}")
    given = dict(alpha) if isinstance(alpha, Mapping) else dict.fromkeys(weights, alpha)
    if set(given) != set(weights):
        raise InputError(f"alpha must name the signals {sorted(weights)}, got {sorted(given)}")
    for value in given.values():
        check_number("alpha", value, low=0.0, high=LARGEST)
    return {name: float(value) for name, value in given.items()}


def _check_weights(weights: Mapping[str, float], batch: StepBatch) -> None:
    if not weights:
        raise InputError("weights must name at least one signal")
    for name, value in weights.items():
        check_number(f"weights['{name}']", value, low=0.0, high=LARGEST)
        if name not in batch.process:
            raise InputError(
                f"process: the steps have no signal '{name}'; they have {', '.join(sorted(batch.process)) or 'none'}"
            )
        large = np.abs(batch.process[name]) > LARGEST  # false for NaN
        if large.any():
            raise InputError(f"process['{name}']: row {int(np.flatnonzero(large)[0])} is larger than {LARGEST:g}")


def _warn(route: Route, strength: Mapping[str, float], outcome: Floats) -> None:
    if route == "step":
        warnings.warn(
            "route='step': the process advantage reaches action tokens, which teaches an agent to seek states where "
            "its statements are trivially true; route='segment' keeps it to the commitments",
            stacklevel=3,
        )
    if max(strength.values()) >= 1:
        warnings.warn("alpha is 1 or more: the process signal weighs as much as the outcome", stacklevel=3)
    if len(outcome) and not outcome.any():
        warnings.warn("all returns of each task are equal: only the process signal drives learning", stacklevel=3)
