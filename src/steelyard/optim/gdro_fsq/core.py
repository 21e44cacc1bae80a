"""The solver: both players on a convex group problem, for any stream of sample sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from steelyard.errors import InputError
from steelyard.optim.gdro_fsq.player import (
    Floats,
    Gradient,
    Ints,
    Mode,
    PLAPlayer,
    Proposal,
    Query,
    RoundWeight,
    Schedule,
    check_count,
    check_gradient,
    check_positive,
    gradient_weights,
    schedule,
)
from steelyard.optim.gdro_fsq.theory import gdro_error_bound, rounds_for_eps

__all__ = ["FSQResult", "GroupSampler", "PLAPlayer", "fsq_minimize", "gdro_error_bound", "rounds_for_eps"]

Array: TypeAlias = Any  # a numpy array or a torch tensor; only operators that both have are used
LossGrad: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]


class GroupSampler(Protocol):
    """All groups behind one call: ``draw`` returns one batch with a fresh sample of each of the ``groups``."""

    @property
    def m(self) -> int:
        """Number of groups."""
        ...

    def draw(self, groups: Ints, rng: np.random.Generator) -> Any:
        """Return the batch that ``loss_grad`` takes."""
        ...


@dataclass(frozen=True)
class FSQResult:
    """What ``fsq_minimize`` found; arrays have the shape and type of ``w0``.

    Attributes:
        average: Weighted mean of the iterates before their updates (what the bound speaks of).
        last: The iterate after the last round.
        q_average: Mean mixed strategy of the q-player, shape [m].
        rounds: Rounds played.
        samples: Samples drawn, sum of r_t.
        clipped: Losses above the range that were clipped; anything but 0 means that the range is too small.
        trace: ``round``, ``samples`` and, with ``evaluate``, ``value`` of the average at the traced rounds.
    """

    average: Array
    last: Array
    q_average: Floats
    rounds: int
    samples: int
    clipped: int
    trace: dict[str, list[float]] = field(default_factory=dict)


def fsq_minimize(
    loss_grad: LossGrad,
    samplers: Sequence[Callable[[np.random.Generator], Any]] | GroupSampler,
    w0: Array,
    radius: float,
    G: float,
    r_schedule: Schedule,
    *,
    rng: np.random.Generator,
    rounds: int | None = None,
    loss_range: float = 1.0,
    c_w: float = 1.0,
    c_q: float = 1.0,
    mode: Mode = "ix",
    query: Query = "anchor",
    gradient: Gradient = "rb",
    round_weight: RoundWeight = "uniform",
    evaluate: Callable[[Array], float] | None = None,
    trace_rounds: Iterable[int] = (),
) -> FSQResult:
    """Minimise the largest of m group risks over the ball of ``radius`` around ``w0``.

    Args:
        loss_grad: (w, sample) -> (loss, gradient) of one sample; with a ``GroupSampler``, (w, batch) -> (losses [r],
            gradients [r, ...] or a function that maps weights [r] to the weighted sum of the gradients).
        samplers: One callable per group, rng -> sample, or a ``GroupSampler``.
        w0: Start and centre of the ball, a floating-point numpy array or torch tensor.
        radius: Radius D of the ball.
        G: Largest gradient norm of the loss after division by ``loss_range``.
        r_schedule: Groups queried per round: an integer, an iterable, or a callable of the round t = 1, 2, ...
        rng: Source of every random draw.
        rounds: Rounds to play; needed unless ``r_schedule`` is an iterable that ends.
        loss_range: Range B of the loss; losses are divided by it, clipped to [0, 1] and the clips counted.
        c_w: Factor of the w-player's step c_w D / (G sqrt(t)).
        c_q: Factor of the q-player's learning rate.
        mode: ``"ix"`` or ``"auto"``, see ``PLAPlayer``.
        query: ``"anchor"`` or ``"uniform"``, see ``PLAPlayer``.
        gradient: ``"rb"``, ``"single"`` or ``"iw"``, see ``gradient_weights``.
        round_weight: ``"uniform"`` (paper) or ``"samples"``, which weights round t with r_t/m.
        evaluate: Called with the average at the traced rounds.
        trace_rounds: Rounds at which the trace is taken.

    Returns:
        An ``FSQResult``.

    Raises:
        InputError: An argument is out of its range, or a loss is negative or NaN (the message names group and round).

    Source: paper (the game, follow-the-regularised-leader for w); rates and estimators are a reconstruction.
    """
    _refuse_observed(mode)
    m = len(samplers) if isinstance(samplers, Sequence) else samplers.m
    player = PLAPlayer(m, mode, c_q, query=query, round_weight=round_weight)
    gradient = check_gradient(gradient, mode, query)
    step = check_positive(c_w, "c_w") * check_positive(radius, "radius") / check_positive(G, "G")
    walk = _Walk(w0, step / check_positive(loss_range, "loss_range"), radius)  # its gradients are not divided by B
    losses_of = _Losses(loss_grad, samplers, loss_range)
    limit = _limit(rounds, r_schedule)
    trace = _Trace(set(trace_rounds), evaluate)
    q_sum, weight, samples, t = np.zeros(m), 0.0, 0, 0
    for r in schedule(r_schedule):
        t += 1
        player.propose(r, rng)
        proposal = player.open_proposals[0]
        w = walk.position(proposal.omega)
        losses, gradients = losses_of(w, proposal, rng, t)
        player.settle(losses)
        weight += proposal.omega
        walk.move(w, _weighted_sum(gradient_weights(proposal, gradient), gradients), proposal.omega, weight)
        q_sum += proposal.q if proposal.omega == 1.0 else proposal.omega * proposal.q
        samples += len(proposal.indices)
        trace.take(t, samples, walk.average)
        if t == limit:
            break
    if t == 0:
        raise InputError("r_schedule is empty: give at least one round.")
    losses_of.warn()
    return FSQResult(
        walk.average, walk.position(proposal.omega), q_sum / weight, t, samples, losses_of.clipped, trace.values
    )


def _refuse_observed(mode: str) -> None:
    if mode == "observed":
        raise InputError(
            "mode='observed' is for batches from elsewhere: fsq_minimize chooses its own, use 'ix' or 'auto'."
        )


class _Walk:
    """The w-player: lazy follow-the-regularised-leader with the squared norm, and the running average."""

    def __init__(self, w0: Array, step: float, radius: float) -> None:
        kind = str(getattr(w0, "dtype", ""))
        if "float" not in kind:
            raise InputError(
                f"w0 must be a floating-point numpy array or torch tensor, got {kind or type(w0).__name__}."
            )
        self._w0, self._step, self._radius = w0, step, radius
        self._theta = w0 * 0
        self._squares = 0.0
        self.average = w0 * 1

    def position(self, omega: float) -> Array:
        """Return the iterate of a round with weight ``omega``: its own weight already counts in the step."""
        shift = self._theta * (-self._step / math.sqrt(self._squares + omega * omega))
        norm = math.sqrt(float(np.vdot(shift, shift) if isinstance(shift, np.ndarray) else (shift * shift).sum()))
        return self._w0 + (shift * (self._radius / norm) if norm > self._radius else shift)

    def move(self, w: Array, gradient: Array, omega: float, weight: float) -> None:
        """Add the round's gradient, and its iterate ``w`` (from before this update) to the average."""
        self._theta += gradient if omega == 1.0 else gradient * omega
        self._squares += omega * omega
        self.average += (w - self.average) * (omega / weight)


class _Losses:
    """Draws samples, evaluates them, and brings the losses into [0, 1], counting the clips."""

    def __init__(self, loss_grad: LossGrad, samplers: Any, loss_range: float) -> None:
        self._loss_grad, self._samplers, self._loss_range = loss_grad, samplers, loss_range
        self._one_by_one = isinstance(samplers, Sequence)
        self.clipped = 0

    def __call__(self, w: Array, proposal: Proposal, rng: np.random.Generator, t: int) -> tuple[Floats, Any]:
        groups = proposal.indices
        if self._one_by_one:
            pairs = [self._loss_grad(w, self._samplers[i](rng)) for i in groups.tolist()]
            losses, gradients = [float(loss) for loss, _ in pairs], [gradient for _, gradient in pairs]
        else:
            losses, gradients = self._loss_grad(w, self._samplers.draw(groups, rng))
        return self._scaled(losses, groups, t), gradients

    def _scaled(self, losses: Any, groups: Ints, t: int) -> Floats:
        values = np.asarray(losses, dtype=np.float64) / self._loss_range
        if values.shape != groups.shape:
            raise InputError(f"loss_grad returned losses of shape {values.shape} for {len(groups)} samples.")
        highest = np.maximum.reduce(values)
        if not (np.minimum.reduce(values) >= 0 and highest < math.inf):  # false for NaN too
            bad = int(np.flatnonzero(~((values >= 0) & (values < math.inf)))[0])
            raise InputError(
                f"loss_grad returned {values[bad]} for group {groups[bad]} in round {t}: losses must be finite, >= 0."
            )
        if highest > 1:
            self.clipped += int((values > 1).sum())
            values = np.minimum(values, 1.0)
        return values

    def warn(self) -> None:
        """Say how many losses were clipped, if any."""
        if self.clipped:
            warnings.warn(
                f"losses above loss_range = {self._loss_range:g} were clipped, {self.clipped} in all: raise it.",
                stacklevel=3,
            )


class _Trace:
    def __init__(self, rounds: set[int], evaluate: Callable[[Array], float] | None) -> None:
        self._rounds, self._evaluate = rounds, evaluate
        self.values: dict[str, list[float]] = {"round": [], "samples": []}
        if evaluate is not None:
            self.values["value"] = []

    def take(self, t: int, samples: int, average: Array) -> None:
        if t in self._rounds:
            self.values["round"].append(t)
            self.values["samples"].append(samples)
            if self._evaluate is not None:
                self.values["value"].append(float(self._evaluate(average * 1)))


def _limit(rounds: int | None, r_schedule: Schedule) -> int:
    if rounds is not None:
        return check_count(rounds, "rounds", 1)
    if callable(r_schedule) or not isinstance(r_schedule, Iterable):
        raise InputError("rounds is needed: this r_schedule never ends.")
    return -1


def _weighted_sum(weights: Floats, gradients: Any) -> Array:
    if callable(gradients):
        return gradients(weights)
    if isinstance(gradients, list):
        total = gradients[0] * float(weights[0])
        for factor, gradient in zip(weights[1:].tolist(), gradients[1:], strict=True):
            total = total + gradient * factor
        return total
    if isinstance(gradients, np.ndarray):
        return np.tensordot(weights.astype(gradients.dtype), gradients, axes=1)
    factors = gradients.new_tensor(weights)  # torch, without importing it
    return (factors.reshape(-1, *[1] * (gradients.ndim - 1)) * gradients).sum(0)
