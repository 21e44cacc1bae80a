"""Scores, selection rule and theory of the greedy alignment principle for momentum.

An optimizer is a causal filter Q on the gradients, u_t = sum_n Q[n] g_{t-n}; its expected drop rate of the loss is
E<g_t, u_t> = <Q, R> with the gradient autocorrelation R (paper, abstract; equations: reconstruction). For momentum
Q[n] = m^n I, so the objective is J(m) = sum_n m^n rho[n], divided by the filter's norm 1/sqrt(1 - m^2) where filters
of equal size are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError

Score = Literal["in_sample", "next"]
Normalization = Literal["accumulator", "literal", "none"]
Selection = Literal["global", "per_param"]
Preset = Literal["paper", "robust"]
WScope = Literal["tensor", "all"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rule(NamedTuple):
    """How a candidate is chosen. Field by field a knob of the optimizers; the defaults are the paper's rule for SGD.

    Attributes:
        selection: One index for all tensors ("global") or one per tensor ("per_param").
        j_ema: Smoothing of J over steps, in [0, 1): J <- j_ema J_prev + (1 - j_ema) J.
        score: "in_sample" scores the buffer that holds the fresh gradient, "next" the one before it.
        normalization: Factor on J, see :func:`norm_factors`.
        hysteresis: Steps in a row for which the raw J must have favoured a candidate before a switch to it; 0 is off.
        w_exponent: Exponent of the Adam preconditioner's mean W under the root (reconstruction: 1).
        w_scope: W as a mean over each tensor, or one mean over all of them.
        bias_corrected_score: Score Adam's update as torch applies it, or from the uncorrected moments.
    """

    selection: Selection = "global"
    j_ema: float = 0.0
    score: Score = "in_sample"
    normalization: Normalization = "accumulator"
    hysteresis: int = 0
    w_exponent: float = 1.0
    w_scope: WScope = "tensor"
    bias_corrected_score: bool = True


PRESETS: dict[Preset, dict[str, object]] = {
    "paper": {"score": "in_sample", "normalization": "literal", "j_ema": 0.0},
    "robust": {"score": "next", "normalization": "none", "j_ema": 0.9},
}


@dataclass(frozen=True)
class Choice:
    """The candidate used in a step: its index and its value."""

    index: int
    value: float


class Memory(NamedTuple):
    """What the selection rule remembers, one row per independent choice; R rows, K candidates.

    Attributes:
        alignment: Smoothed J of the last step, [R, K].
        choice: Index in use, [R].
        leader: Index that the raw J favoured last, [R]; -1 before the first step.
        streak: Steps in a row for which it did, [R].
    """

    alignment: Floats
    choice: Ints
    leader: Ints
    streak: Ints

    def rows(self, index: Sequence[int]) -> Memory:
        """Return the memory of some rows."""
        at = list(index)
        return Memory(self.alignment[at], self.choice[at], self.leader[at], self.streak[at])

    def with_rows(self, index: Sequence[int], rows: Memory) -> Memory:
        """Return a copy in which ``rows`` stand at ``index``."""
        copy = Memory(self.alignment.copy(), self.choice.copy(), self.leader.copy(), self.streak.copy())
        at = list(index)
        copy.alignment[at], copy.choice[at], copy.leader[at], copy.streak[at] = rows
        return copy


def check_candidates(candidates: float | Sequence[float], name: str = "candidates") -> tuple[float, ...]:
    """Return ``candidates`` as a tuple of floats (one number is a set of one).

    Raises:
        InputError: Unless there is at least one value and all are in [0, 1), sorted and unique.
    """
    try:
        values = np.atleast_1d(np.asarray(candidates, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in [0, 1), got {candidates!r}.") from None
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"{name} must hold at least one value in [0, 1), got {candidates!r}.")
    if not np.all((values >= 0) & (values < 1)):
        raise InputError(f"{name} must be in [0, 1), got {candidates!r}.")
    if np.any(np.diff(values) <= 0):
        raise InputError(f"{name} must be sorted upwards without duplicates, got {candidates!r}.")
    return tuple(float(value) for value in values)


def make_rule(preset: Preset | None = None, **knobs: object) -> Rule:
    """Return the rule of ``preset`` (None: the defaults) with every knob that is not None laid over it.

    Raises:
        InputError: Unknown preset, or a knob outside its range.
    """
    if preset is not None and preset not in PRESETS:
        raise InputError(f"preset must be None, 'paper' or 'robust', got {preset!r}.")
    fields = dict(PRESETS[preset]) if preset else {}
    fields.update({name: value for name, value in knobs.items() if value is not None})
    rule = Rule(**fields)  # type: ignore[arg-type]
    choices = (
        ("selection", rule.selection, get_args(Selection)),
        ("score", rule.score, get_args(Score)),
        ("normalization", rule.normalization, get_args(Normalization)),
        ("w_scope", rule.w_scope, get_args(WScope)),
    )
    for name, value, known in choices:
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
    if not 0 <= rule.j_ema < 1:
        raise InputError(f"j_ema must be in [0, 1), got {rule.j_ema!r}.")
    if isinstance(rule.hysteresis, bool) or not isinstance(rule.hysteresis, int) or rule.hysteresis < 0:
        raise InputError(f"hysteresis must be a whole number of steps, 0 or more, got {rule.hysteresis!r}.")
    if not (math.isfinite(rule.w_exponent) and rule.w_exponent >= 0):
        raise InputError(f"w_exponent must be finite and at least 0, got {rule.w_exponent!r}.")
    return rule


@lru_cache(maxsize=64)
def norm_factors(candidates: tuple[float, ...], normalization: Normalization, averaged: bool) -> Floats:
    """Return the factor on J for each candidate, [K], without the preconditioner's part.

    Args:
        candidates: Values in [0, 1).
        normalization: "none" is 1. "literal" is sqrt(1 - m^2) on whatever buffer there is (README). "accumulator" is
            sqrt(1 - m^2) on the un-normalised accumulator, which for a running average (gain 1 - m) makes
            sqrt((1 + m) / (1 - m)) (reconstruction).
        averaged: True where the buffer is a running average (Adam), False for SGD's accumulator.
    """
    m = np.asarray(candidates, dtype=np.float64)
    if normalization == "none":
        factors = np.ones_like(m)
    elif normalization == "accumulator" and averaged:
        factors = np.sqrt((1 + m) / (1 - m))
    else:
        factors = np.sqrt((1 - m) * (1 + m))
    factors.flags.writeable = False  # it is cached
    return factors


def scale_scores(dots: Floats, w_sums: Floats, sizes: Floats, factors: Floats, w_exponent: float) -> Floats:
    """Return J for each tensor and candidate, [P, K], from inner products [P, K].

    J = <g, update> factor / W^(w_exponent / 2) with W = w_sums / sizes, the mean of 1 / (sqrt(v) + eps) (section 2.1 of
    the reconstruction); SGD has no preconditioner and W = 1.

    Args:
        dots: Inner product of the gradient with each candidate's update, [P, K].
        w_sums: Sum of 1 / (sqrt(v) + eps) over the tensor, [P]; its size for SGD.
        sizes: Number of elements of each tensor, [P]; an empty one has J = 0.
        factors: From :func:`norm_factors`, [K].
        w_exponent: Exponent of W under the root.
    """
    w = w_sums / np.maximum(sizes, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = dots * factors * w[:, None] ** (-w_exponent / 2)
    return np.where(sizes[:, None] > 0, scaled, 0.0)


def new_memory(rows: int, candidates: int) -> Memory:
    """Return the memory before the first step: the smallest candidate in use, J = 0."""
    zeros = np.zeros(rows, dtype=np.int64)
    return Memory(np.zeros((rows, candidates)), zeros, zeros - 1, zeros)


def select(memory: Memory, scores: Floats, j_ema: float = 0.0, hysteresis: int = 0) -> tuple[Memory, bool]:
    """Return the memory after a step with raw scores [R, K], and whether every score was finite.

    The candidate with the largest smoothed J is chosen, the smaller one on a tie, also if all J are negative. A row
    with a score that is not finite keeps its choice and its J. With ``hysteresis`` h > 0 a switch also needs the raw J
    to have favoured the new candidate in the last h steps.
    """
    finite = np.isfinite(scores.sum(axis=1))
    raw = np.where(finite[:, None], scores, 0.0)
    smoothed = j_ema * memory.alignment + (1 - j_ema) * raw if j_ema else raw
    alignment = np.where(finite[:, None], smoothed, memory.alignment)
    best = alignment.argmax(axis=1)
    favourite = raw.argmax(axis=1)
    streak = np.where(finite, np.where(favourite == memory.leader, memory.streak + 1, 1), memory.streak)
    leader = np.where(finite, favourite, memory.leader)
    moves = finite if hysteresis == 0 else finite & (leader == best) & (streak >= hysteresis)
    choice = np.where(moves, best, memory.choice)
    return Memory(alignment, choice, leader, streak), bool(finite.all())


def alignment_curve(
    rho: ArrayLike,
    candidates: ArrayLike,
    normalization: Literal["accumulator", "truncated", "none"] = "accumulator",
) -> Floats:
    """Return J(m) = c(m) sum_n m^n rho[n] for each candidate m (section 3 of the reconstruction).

    Args:
        rho: Autocorrelation rho[n] = E<g_t, g_{t-n}> for n = 0, 1, ..., [L]; lags beyond are taken as zero.
        candidates: Momentum values in [0, 1), [K], in any order.
        normalization: c(m) = sqrt(1 - m^2) for "accumulator" (the norm of the endless filter), the norm over the L
            given lags for "truncated", 1 for "none".

    Returns:
        J, float64 [K].

    Raises:
        InputError: ``rho`` is empty, not one-dimensional or not finite; a candidate is outside [0, 1); unknown
            normalization.
    """
    lags = np.asarray(rho, dtype=np.float64)
    if lags.ndim != 1 or lags.size == 0 or not np.isfinite(lags).all():
        raise InputError("rho must be a one-dimensional array of finite numbers with at least lag 0.")
    m = np.atleast_1d(np.asarray(candidates, dtype=np.float64))
    if m.ndim != 1 or m.size == 0 or not np.all((m >= 0) & (m < 1)):
        raise InputError("candidates must be a one-dimensional array of values in [0, 1).")
    if normalization not in ("accumulator", "truncated", "none"):
        raise InputError(f"normalization must be 'accumulator', 'truncated' or 'none', got {normalization!r}.")
    powers: Floats = m[:, None] ** np.arange(lags.size)
    raw: Floats = powers @ lags
    if normalization == "none":
        return raw
    if normalization == "truncated":
        return np.asarray(raw / np.linalg.norm(powers, axis=1))
    return raw * np.sqrt((1 - m) * (1 + m))


def optimal_momentum_ar1(a: float) -> float:
    """Return argmax J(m) over m in [0, 1) for rho[n] = a^n: the matched filter m = a exactly, or 0 for negative a.

    Raises:
        InputError: Unless -1 < a < 1.
    """
    if not -1 < a < 1:
        raise InputError(f"a must be in (-1, 1), got {a!r}.")
    return max(float(a), 0.0)


def signal_noise_alignment(m: ArrayLike, S: float, N: float, a: float) -> Floats:
    """Return J(m) = sqrt(1 - m^2) (N + S / (1 - a m)) for rho[0] = S + N, rho[n] = S a^n."""
    m = np.asarray(m, dtype=np.float64)
    return np.asarray(np.sqrt((1 - m) * (1 + m)) * (N + S / (1 - a * m)))


def optimal_momentum_signal_noise(S: float, N: float, a: float) -> float:
    """Return the global maximiser over m in [0, 1) of J for a signal rho[n] = S a^n plus white noise of power N.

    Stationary points solve a S (1 - m^2) = m (1 - a m) (N (1 - a m) + S), a cubic in m. Strong noise gives two maxima,
    so all its roots in [0, 1) are compared.

    Args:
        S: Power of the signal, at least 0.
        N: Power of the noise, at least 0; S + N must be positive.
        a: Correlation of the signal from step to step, in [0, 1).

    Raises:
        InputError: An argument is outside its range.
    """
    for name, value in (("S", S), ("N", N)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be finite and at least 0, got {value!r}.")
    if S + N == 0:
        raise InputError("S + N must be positive: there is neither signal nor noise.")
    if not 0 <= a < 1:
        raise InputError(f"a must be in [0, 1), got {a!r}.")
    if N == 0:
        return float(a)
    s, n = S / (S + N), N / (S + N)
    roots = np.roots([n * a * a, -2 * a * n, 1.0, -a * s])
    real = roots.real[np.abs(roots.imag) < 1e-6]
    points = np.concatenate([[0.0], real[(real >= 0) & (real < 1)]])
    for _ in range(3):  # Newton: np.roots loses digits where two roots are close
        slope = 3 * n * a * a * points**2 - 4 * a * n * points + 1
        value = ((n * a * a * points - 2 * a * n) * points + 1) * points - a * s
        step = np.divide(value, slope, out=np.zeros_like(value), where=np.abs(slope) > 1e-9)
        points = np.clip(points - step, 0.0, np.nextafter(1.0, 0.0))
    return float(points[np.argmax(signal_noise_alignment(points, s, n, a))])


def autocorrelation(gradients: ArrayLike, lags: int) -> Floats:
    """Return rho[n] = mean over t of <g_t, g_{t-n}> for n = 0..lags, [lags + 1], from gradients [T, d].

    Raises:
        InputError: ``gradients`` is not a finite matrix, or has no more than ``lags`` rows.
    """
    g = np.asarray(gradients, dtype=np.float64)
    if g.ndim != 2 or not np.isfinite(g).all():
        raise InputError("gradients must be a matrix [steps, parameters] of finite numbers.")
    if not 0 <= lags < len(g):
        raise InputError(f"lags must be at least 0 and below the {len(g)} recorded steps, got {lags}.")
    return np.array([np.mean(np.einsum("td,td->t", g[n:], g[: len(g) - n])) for n in range(lags + 1)])
