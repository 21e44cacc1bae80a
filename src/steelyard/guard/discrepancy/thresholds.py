"""Where to cut a score into grounded and hallucinated: without labels (quantile, mixture, Otsu) or with (Youden)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array, as_float

Method = Literal["quantile", "gmm", "otsu", "youden"]
METHODS = ("quantile", "gmm", "otsu", "youden")


def find_threshold(scores: Any, method: Method = "quantile", *, labels: Any = None, quantile: float = 0.9) -> float:
    """Return a threshold on ``scores`` (n,), above which an answer counts as hallucinated.

    Args:
        scores: Higher = more likely hallucinated; finite, at least 2.
        method: "quantile" of the pool, "gmm" (where a mixture of two normals gives both equal odds), "otsu" (the cut
            that leaves the least variance within the two sides), "youden" (the cut of the highest sensitivity +
            specificity - 1).
        labels: 1 = hallucinated, shape (n,), both kinds present; for "youden" only.
        quantile: For "quantile", in (0, 1).

    Raises:
        InputError: An argument that cannot be used; scores that are all equal where a cut has to lie between them.
    """
    s = as_float(scores)
    if s.ndim != 1 or len(s) < 2 or not np.isfinite(s).all():
        raise InputError("scores must be a list of at least 2 finite numbers")
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if (labels is not None) != (method == "youden"):
        raise InputError('labels go with method="youden", and it needs them')
    if method == "quantile":
        if not 0 < quantile < 1:
            raise InputError(f"quantile must lie in (0, 1), got {quantile}")
        return float(np.quantile(s, quantile))
    if np.ptp(s) == 0:
        raise InputError("scores are all equal: there is nothing to cut")
    if method == "youden":
        return youden(s, labels)
    return otsu(s) if method == "otsu" else gmm(s)


def otsu(scores: Any) -> float:
    """Return the midpoint of the gap whose two sides have the largest variance between them (exact, no histogram)."""
    s = np.sort(as_float(scores))
    n = len(s)
    below = np.arange(1, n)
    left = np.cumsum(s)[:-1]
    gap = left / below - (s.sum() - left) / (n - below)
    between = np.where(np.diff(s) > 0, below * (n - below) * gap * gap, -1.0)
    return _between(s, int(np.argmax(between)))


def youden(scores: Any, labels: Any) -> float:
    """Return the midpoint of the gap with the highest Youden index for labels 1 = hallucinated, 0 = not."""
    s, y = as_float(scores), as_float(labels)
    if y.shape != s.shape or not np.isin(y, (0, 1)).all() or y.min() == y.max():
        raise InputError("labels must be one 0 or 1 per score, and hold both")
    order = np.argsort(s, kind="stable")
    s, y = s[order], y[order]
    index = np.cumsum((1 - y) / (1 - y).sum() - y / y.sum())[:-1]  # specificity + sensitivity - 1 of a cut after each
    index = np.where(np.diff(s) > 0, index, -np.inf)
    return _between(s, int(np.argmax(index)))


def _between(s: Array, cut: int) -> float:
    middle = float(s[cut] / 2 + s[cut + 1] / 2)
    return middle if s[cut] < middle < s[cut + 1] else float(s[cut])  # neighbours in floating point: above the lower


def gmm(scores: Any, iterations: int = 500) -> float:
    """Return the point between two fitted normals where both are equally likely, by expectation-maximisation.

    Started from Otsu's cut, so that it is deterministic. Variances are kept above 1e-6 of the pool's.
    """
    s = as_float(scores)
    cut = otsu(s)
    share = np.stack([s <= cut, s > cut]).astype(np.float64)
    floor = 1e-6 * s.var()
    for _ in range(iterations):
        weight, mean, variance = _moments(s, share, floor)
        odds = np.log(weight)[:, None] - 0.5 * (
            np.log(variance)[:, None] + (s - mean[:, None]) ** 2 / variance[:, None]
        )
        new = np.exp(odds - np.logaddexp.reduce(odds, axis=0))
        moved = float(np.abs(new - share).max())
        share = new
        if moved < 1e-10:
            break
    return _equal_odds(*_moments(s, share, floor))


def _moments(s: Array, share: Array, floor: float) -> tuple[Array, Array, Array]:
    total = np.maximum(share.sum(1), 1e-12)
    mean = share @ s / total
    variance = np.maximum((share * (s - mean[:, None]) ** 2).sum(1) / total, floor)
    return total / len(s), mean, variance


def _equal_odds(weight: Array, mean: Array, variance: Array) -> float:
    """Return the crossing of the weighted densities between the means, else the midpoint of the means."""
    low, high = np.argsort(mean)
    a = 0.5 * (1 / variance[high] - 1 / variance[low])
    b = mean[low] / variance[low] - mean[high] / variance[high]
    c = 0.5 * (mean[high] ** 2 / variance[high] - mean[low] ** 2 / variance[low])
    c += np.log(weight[low] / weight[high]) + 0.5 * np.log(variance[high] / variance[low])
    roots: NDArray[Any] = np.roots([a, b, c])
    inside = [float(r.real) for r in roots if abs(r.imag) < 1e-9 and mean[low] <= r.real <= mean[high]]
    return inside[0] if inside else float(mean.mean())
