"""Rankings: fusing them, cutting them, scoring them, and telling two of them apart with an interval."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from steelyard.errors import InputError
from steelyard.rng import generator

Item = TypeVar("Item", bound=Hashable)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RESAMPLED_AT_ONCE = 2_000_000


class Interval(NamedTuple):
    """An estimate and the two ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


def rrf(rankings: Iterable[Sequence[Item]], k: float = 60) -> dict[Item, float]:
    """Return the reciprocal rank fusion of some rankings: sum over them of 1 / (k + rank), ranks from 1.

    Args:
        rankings: Lists of ids, best first; an id that a ranking lacks gets nothing from it.
        k: Damping of the first ranks, above -1 (60 in the literature).

    Returns:
        Score of every id that any ranking names, in order of first mention.

    Raises:
        InputError: ``k`` is not above -1, or a ranking names an id twice.
    """
    if not k > -1:
        raise InputError(f"k of reciprocal rank fusion must be above -1, not {k!r}.")
    ranks: dict[Item, list[float]] = {}
    for number, ranking in enumerate(rankings):
        if len(set(ranking)) != len(ranking):
            raise InputError(f"ranking {number} names an id twice; give every id once.")
        for rank, item in enumerate(ranking, start=1):
            ranks.setdefault(item, []).append(1.0 / (k + rank))
    # Sorted, so that the order of the rankings cannot change a last digit and with it a tie.
    return {item: float(sum(sorted(parts))) for item, parts in ranks.items()}


def top_k(
    scores: Floats, k: int, order: Ints | None = None, *, allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the positions of the ``k`` highest scores, best first; all of them where ``k`` exceeds their number.

    Args:
        scores: Shape (N,), no NaN.
        k: How many, at least 1.
        order: A permutation (N,) that breaks ties: the lower entry comes first. None = the lower position first.
        allowed: Mask (N,): only these positions are ranked.

    Raises:
        InputError: ``k`` is below 1, or ``order`` or ``allowed`` has another shape than ``scores``.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}.")
    for name, given in (("order", order), ("allowed", allowed)):
        if given is not None and given.shape != scores.shape:
            raise InputError(f"{name} has shape {given.shape}; give one entry per score, {scores.shape}.")
    positive = scores > 0 if allowed is None else (scores > 0) & allowed
    pool = np.flatnonzero(positive)
    if len(pool) < k:  # otherwise no score of 0 or less can be among the k best
        pool = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
    ties = pool if order is None else order[pool]
    values = scores[pool]
    if k < len(pool):
        last = np.partition(values, len(pool) - k)[len(pool) - k]
        above, equal = np.flatnonzero(values > last), np.flatnonzero(values == last)
        wanted = k - len(above)
        if wanted < len(equal):
            equal = equal[np.argpartition(ties[equal], wanted - 1)[:wanted]]
        kept = np.concatenate((above, equal))
        pool, ties, values = pool[kept], ties[kept], values[kept]
    return pool[np.lexsort((ties, -values))]


def recall_at_k(gold: Collection[Item], ranked: Sequence[Item], k: int) -> float:
    """Return |gold ∩ first k| / min(|gold|, k), so that 1 can always be reached.

    Raises:
        InputError: ``gold`` is empty or ``k`` is below 1.
    """
    wanted = set(gold)
    if not wanted:
        raise InputError("gold is empty: recall is undefined without evidence.")
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}.")
    return len(wanted & set(ranked[:k])) / min(len(wanted), k)


def chance_recall(gold: int, candidates: int, k: int) -> float:
    """Return what :func:`recall_at_k` is on average for a random order: min(k, M) / M · G / min(G, k).

    Args:
        gold: G, how many of the candidates are gold, at least 1.
        candidates: M, at least G.
        k: Length of the cut, at least 1.

    Raises:
        InputError: A number is out of range.
    """
    if not (1 <= gold <= candidates and k >= 1):
        raise InputError(f"give 1 <= gold <= candidates and k >= 1, not {gold}, {candidates} and {k}.")
    return min(k, candidates) / candidates * gold / min(gold, k)


def binomial_interval(correct: int, n: int) -> Interval:
    """Return the share of correct ones with its exact 95 % interval (Clopper and Pearson 1934).

    Raises:
        InputError: Not 0 <= correct <= n with n >= 1.
    """
    if not (n >= 1 and 0 <= correct <= n):
        raise InputError(f"correct and n must satisfy 0 <= correct <= n and n >= 1, not {correct} and {n}.")
    low = float(betaincinv(correct, n - correct + 1, 0.025)) if correct else 0.0
    high = float(betaincinv(correct + 1, n - correct, 0.975)) if correct < n else 1.0
    return Interval(correct / n, low, high)


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, n: int = 10_000, seed: int = 0, clusters: Sequence[Hashable] | None = None
) -> Interval:
    """Return mean(a) - mean(b) of paired outcomes with its 95 % percentile interval.

    The order of the pairs does not matter: they are sorted before they are drawn.

    Args:
        a: Outcomes of the first system, shape (Q,).
        b: Outcomes of the second one on the same questions, shape (Q,).
        n: Resamples, at least 1.
        seed: Seed of the resampling.
        clusters: Group of each pair, length Q: whole groups are then drawn, since their members are not independent.

    Raises:
        InputError: The shapes differ, there is no pair, a value is not finite, or ``n`` is below 1.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise InputError(f"a and b must be equally long and not empty, not of shapes {first.shape} and {second.shape}.")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("a or b holds a value that is not finite.")
    if n < 1:
        raise InputError(f"n must be at least 1, not {n}.")
    sums, sizes = _by_cluster(first - second, clusters)
    stream = generator("agents", "paired-bootstrap", seed)
    draws: list[Floats] = []
    step = max(1, _RESAMPLED_AT_ONCE // len(sums))
    for start in range(0, n, step):
        picked = stream.integers(0, len(sums), size=(min(step, n - start), len(sums)))
        draws.append(sums[picked].sum(axis=1) / sizes[picked].sum(axis=1))
    low, high = np.quantile(np.concatenate(draws), [0.025, 0.975])
    return Interval(float(sums.sum() / sizes.sum()), float(low), float(high))


def _by_cluster(differences: Floats, clusters: Sequence[Hashable] | None) -> tuple[Floats, Floats]:
    """Return sum and size of every cluster (of every pair without clusters), sorted."""
    if clusters is None:
        return np.sort(differences), np.ones(len(differences))
    if len(clusters) != len(differences):
        raise InputError(f"clusters has {len(clusters)} entries; give one per pair, {len(differences)}.")
    groups: dict[Hashable, list[float]] = {}
    for cluster, difference in zip(clusters, differences.tolist(), strict=True):
        groups.setdefault(cluster, []).append(difference)
    rows = sorted((float(sum(sorted(members))), float(len(members))) for members in groups.values())
    sums, sizes = np.array(rows, dtype=np.float64).T
    return sums, sizes
