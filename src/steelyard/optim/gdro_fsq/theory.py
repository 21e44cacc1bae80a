"""How large the error can be after t rounds, and how many rounds an error needs (reconstruction, re-derived)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import InputError
from steelyard.optim.gdro_fsq.player import check_count, check_positive


def gdro_error_bound(
    m: int, r: int | ArrayLike, t: int | None = None, *, D: float, G: float, delta: float = 0.05
) -> float:
    """Bound the error max_i R_i(average) - min_w max_i R_i(w), with probability at least 1 - delta.

    It holds for losses in [0, 1], mode ``"ix"``, gradient ``"rb"`` or ``"single"``, uniform round weights and
    c_q = c_w = 1, and for nothing else. With L = ln(4/delta) and V = sum_j m/r_j it is

        (1/t) {D G sqrt(t) (4.5 + 4 sqrt(2L)) + 4 sqrt(V ln m) + L sqrt(V/ln m) + sqrt(2VL) + L/2}.

    Args:
        m: Number of groups; with m = 1 only the first term remains.
        r: Groups queried per round: one integer (then ``t`` is needed), or the sequence r_1..r_t.
        t: Number of rounds, when ``r`` is one integer.
        D: Radius of the feasible ball around the start.
        G: Largest gradient norm of the loss after division by its range.
        delta: Probability with which the bound may fail.

    Returns:
        The bound, in units of the loss divided by its range; above 1 it says nothing.

    Raises:
        InputError: An argument is out of its range, or ``t`` is missing or contradicts the length of ``r``.

    Source: reconstruction; the order O(sqrt(sum_j (m/r_j) log m)/t) is the paper's.
    """
    m = check_count(m, "m", 1)
    rounds, V = _rounds_and_load(m, r, t)
    return _bound(m, rounds, V, _checked_constants(D, G), _checked_delta(delta))


def rounds_for_eps(eps: float, m: int, r: int, *, D: float, G: float, delta: float = 0.05) -> int:
    """Return the smallest number of rounds t with ``gdro_error_bound(m, r, t, ...) <= eps``.

    Args:
        eps: Wished-for error, in units of the loss divided by its range, above 0.
        m: Number of groups.
        r: Groups queried in every round, 1..m.
        D: Radius of the feasible ball around the start.
        G: Largest gradient norm of the loss after division by its range.
        delta: Probability with which the bound may fail.

    Raises:
        InputError: An argument is out of its range.

    Source: reconstruction (inverts the bound, which falls with t for a fixed r).
    """
    eps = check_positive(eps, "eps")
    m = check_count(m, "m", 1)
    r = check_count(r, "r", 1, m)
    scale, level = _checked_constants(D, G), _checked_delta(delta)
    high = 1
    while _bound(m, high, high * m / r, scale, level) > eps:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if _bound(m, middle, middle * m / r, scale, level) > eps:
            low = middle
        else:
            high = middle
    return high


def _bound(m: int, rounds: int, V: float, scale: float, L: float) -> float:
    total = scale * math.sqrt(rounds) * (4.5 + 4 * math.sqrt(2 * L))
    if m > 1:
        log_m = math.log(m)
        total += 4 * math.sqrt(V * log_m) + L * math.sqrt(V / log_m) + math.sqrt(2 * V * L) + L / 2
    return total / rounds


def _rounds_and_load(m: int, r: int | ArrayLike, t: int | None) -> tuple[int, float]:
    if np.ndim(r) == 0:
        if t is None:
            raise InputError("t is needed when r is one number: give the number of rounds.")
        rounds = check_count(t, "t", 1)
        return rounds, rounds * m / check_count(r, "r", 1, m)
    counts = [check_count(one, f"r[{j}]", 1, m) for j, one in enumerate(_as_sequence(r))]
    if not counts:
        raise InputError("r is an empty sequence: give at least one round.")
    if t is not None and t != len(counts):
        raise InputError(f"t = {t} contradicts the {len(counts)} rounds in r: leave t out when r is a sequence.")
    return len(counts), float(sum(m / one for one in counts))


def _as_sequence(r: int | ArrayLike) -> Sequence[object]:
    values: Sequence[object] = np.asarray(r).tolist()
    return values


def _checked_constants(D: float, G: float) -> float:
    return check_positive(D, "D") * check_positive(G, "G")


def _checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1, got {delta}.")
    return math.log(4 / delta)
