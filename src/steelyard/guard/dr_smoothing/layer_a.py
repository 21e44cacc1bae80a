"""Formulas against simulation: the real disruptions on victims that break after k changed characters, and the vote.

A cell of the comparison is a count of successes in some draws; its deviation is the exact two-sided binomial tail of
that count under the formula, told in standard deviations of a normal variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.stats import binom, norm

from steelyard.contracts import Arrays, CellInput, Measured
from steelyard.guard.dr_smoothing.core import disrupt_patch, disrupt_swap, vote_threshold
from steelyard.guard.dr_smoothing.theory import (
    break_probability,
    defense_success_probability,
    dr_copy_probability,
    hoeffding_bound,
    success_probability_bounds,
)

_ALPHABET = "abcdefghij"  # few symbols, so that a draw often gives the old one back
_LENGTH, _SUFFIX = 60, 15
_STRENGTHS = (0.05, 0.1, 0.2)
_BREAKS = (1, 2, 3)
_COPIES = (3, 5, 9, 10)
_RATES = (0.05, 0.2, 0.4, 0.6)
_IMPERFECT = ((1.0, 0.0, 0.0), (0.9, 0.2, 0.1), (1.0, 1.0, 0.0))  # kappa, rho, e; the last rectifier restores attacks
_BEYOND = 4.0
_LARGEST = 38.0  # where the tail underflows


class Comparison(NamedTuple):
    """A formula's probability and a count of successes in ``draws`` draws."""

    probability: float
    successes: int
    draws: int

    @property
    def deviation(self) -> float:
        """Return how far the count lies from its expectation, in standard deviations of a normal variable."""
        low = binom.cdf(self.successes, self.draws, self.probability)
        high = binom.sf(self.successes - 1, self.draws, self.probability)
        tail = min(1.0, 2 * min(low, high))
        return min(_LARGEST, float(norm.isf(tail / 2))) if tail > 0 else _LARGEST


def load() -> Arrays:
    """Return the victim's text: a prompt and, at its end, the suffix that must survive."""
    text = (_ALPHABET * (_LENGTH // len(_ALPHABET) + 1))[:_LENGTH]
    return {"text": np.array(text), "suffix": np.array(_SUFFIX)}


def run(cell: CellInput) -> Measured:
    """Compare what an arm says with simulation.

    ``slack`` is the success probability of the vote, as simulated, that the arm's bound does not certify; for the exact
    formulas ``worst_z`` and ``outside`` are measured over all cells of the comparison.
    """
    draws = int(cell.params["draws"])
    votes = list(_votes(cell, draws))
    bound = _BOUNDS[str(cell.config["bound"])]
    slack = [one.successes / one.draws - bound(p, n) for p, n, one in votes]
    metrics = {"slack": float(np.mean(slack))}
    compared = [one for _, _, one in votes]
    if cell.config["bound"] == "exact":
        compared += [*_breaks(cell, draws), *_rectified(cell, draws)]
        deviations = [one.deviation for one in compared]
        metrics["worst_z"] = max(deviations)
        metrics["outside"] = float(sum(one > _BEYOND for one in deviations))
    return Measured(metrics, steps=draws * len(compared))


_BOUNDS: dict[str, Callable[[float, int], float]] = {
    "exact": lambda p, n: float(np.asarray(defense_success_probability(p, n))),
    "chernoff": lambda p, n: float(np.asarray(success_probability_bounds(p, n)[0])),
    "hoeffding": lambda p, n: float(np.asarray(hoeffding_bound(1 - p, n))),
}


def _votes(cell: CellInput, draws: int) -> Iterator[tuple[float, int, Comparison]]:
    """Yield (per-copy probability, copies, comparison of the vote's success probability)."""
    for n, p in itertools.product(_COPIES, _RATES):
        jailbroken = (cell.rng(f"votes/{n}/{p}").random((draws, n)) < p).sum(1)
        successes = int((jailbroken <= vote_threshold(n)).sum())
        yield p, n, Comparison(float(np.asarray(defense_success_probability(p, n))), successes, draws)


def _breaks(cell: CellInput, draws: int) -> Iterator[Comparison]:
    """Yield comparisons of the probability that a disruption changes at least k characters of the suffix."""
    for kind, q in itertools.product(("swap", "patch"), _STRENGTHS):
        changed = _changed(cell, kind, q, draws)
        for k in _BREAKS:
            yield Comparison(_alpha(kind, q, k), int((changed >= k).sum()), draws)


def _rectified(cell: CellInput, draws: int) -> Iterator[Comparison]:
    """Yield comparisons of the per-copy probability of (k, epsilon)-unstable victims behind imperfect rectifiers."""
    for (q, k), (kappa, rho, e) in itertools.product(((0.1, 2), (0.2, 3)), _IMPERFECT):
        broken = _changed(cell, "swap", q, draws) >= k
        survives, restored, complies = cell.rng(f"rectifier/{q}/{k}/{kappa}").random((3, draws))
        works = np.where(broken, (restored < rho) | (complies < e), survives < kappa)
        probability = float(np.asarray(dr_copy_probability(_alpha("swap", q, k), kappa, rho, e)))
        yield Comparison(probability, int(works.sum()), draws)


def _alpha(kind: str, q: float, k: int) -> float:
    shape = "swap" if kind == "swap" else "patch"
    found = break_probability(_LENGTH, _SUFFIX, k, q, len(_ALPHABET), shape)  # type: ignore[arg-type]
    return float(np.asarray(found))


def _changed(cell: CellInput, kind: str, q: float, draws: int) -> np.ndarray:
    """Return how many characters of the suffix each of ``draws`` disruptions changed, int64 (draws,)."""
    disrupt = disrupt_swap(q, _ALPHABET) if kind == "swap" else disrupt_patch(q, _ALPHABET)
    text, noise = str(cell.data["text"]), cell.rng(f"{kind}/{q}")
    tail = text[-_SUFFIX:]
    return np.array([
        sum(new != old for new, old in zip(disrupt(text, noise)[-_SUFFIX:], tail, strict=True)) for _ in range(draws)
    ])  # fmt: skip
