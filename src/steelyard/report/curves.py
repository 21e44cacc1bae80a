"""Curves of several seeds as one mean with a band, and few points that keep the shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.bench.results import Row
from steelyard.contracts import Trace

Vector = NDArray[np.float64]


class Curve(NamedTuple):
    """The mean over seeds with its 95 % interval, each of shape (points,); NaN where no seed has a number."""

    x: Vector
    mean: Vector
    low: Vector
    high: Vector
    seeds: int


def mean_curve(rows: Sequence[Row], trace: Trace, points: int) -> Curve | None:
    """Return the mean of the rows' curves called ``trace.name`` in at most ``points`` points, or None without one.

    A value that is no number leaves the mean at that place. On a logarithmic axis the mean is the geometric one, so
    that the band stays above zero.
    """
    curves = [_arrays(row.traces[trace.name]) for row in rows if trace.name in row.traces]
    curves = [(x, y) for x, y in curves if x.size]
    if not curves:
        return None
    grid = _common_grid([x for x, _ in curves])
    values = np.stack([_on_grid(grid, x, y) for x, y in curves])
    if trace.log_y:
        values = np.log(np.where(values > 0, values, np.nan))
    mean, low, high = _mean_band(values)
    keep = keep_shape(np.log(np.maximum(grid, 1e-300)) if trace.log_x else grid, mean, points)
    band = [np.exp(part[keep]) if trace.log_y else part[keep] for part in (mean, low, high)]
    return Curve(grid[keep], band[0], band[1], band[2], len(curves))


def _arrays(curve: tuple[Sequence[float | None], Sequence[float | None]]) -> tuple[Vector, Vector]:
    x, y = (np.array([np.nan if v is None else v for v in part], dtype=np.float64) for part in curve)
    length = min(x.size, y.size)
    x, y = x[:length], y[:length]
    known = np.isfinite(x)
    order = np.argsort(x[known], kind="stable")
    return x[known][order], np.where(np.isfinite(y), y, np.nan)[known][order]


def _common_grid(xs: Sequence[Vector]) -> Vector:
    longest = max(xs, key=lambda x: x.size)
    return np.unique(longest)


def _on_grid(grid: Vector, x: Vector, y: Vector) -> Vector:
    """Return ``y`` at ``grid``: as it is where the places agree, else between neighbours, NaN outside."""
    if x.size == grid.size and np.array_equal(x, grid):
        return y
    return np.interp(grid, x, y, left=np.nan, right=np.nan)


def _mean_band(values: Vector) -> tuple[Vector, Vector, Vector]:
    """Return mean and 95 % t-interval over axis 0 of shape (seeds, points), leaving NaN out."""
    from scipy.special import stdtrit

    known = np.isfinite(values)
    count = known.sum(axis=0)
    filled = np.where(known, values, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, filled.sum(axis=0) / count, np.nan)
        squares = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0)
        freedom = np.maximum(count - 1, 1)
        half = stdtrit(freedom, 0.975) * np.sqrt(squares / freedom / np.maximum(count, 1))
    half = np.where(count > 1, half, 0.0)
    return mean, mean - half, mean + half


def keep_shape(x: Vector, y: Vector, points: int) -> NDArray[np.intp]:
    """Return the indices of at most ``points`` points that keep the shape, spikes included; ``x`` must rise.

    Largest-triangle-three-buckets (Steinarsson 2013): of each bucket, the point that spans the largest triangle with
    the point kept before and the mean of the bucket after.
    """
    if x.size <= points or points < 3:
        return np.arange(x.size)
    level = np.where(np.isfinite(y), y, np.nanmin(y) if np.isfinite(y).any() else 0.0)
    edges = np.searchsorted(x[:-1], np.linspace(x[1], x[-1], points - 1))  # equal widths on the axis as drawn
    edges = np.unique([1, *edges[1:-1], x.size - 1])  # without the empty ones
    kept = [0]
    for start, end, after in zip(edges[:-1], edges[1:], [*edges[2:], x.size], strict=True):
        bucket, later = np.arange(start, end), slice(end, after)
        next_x, next_y = x[later].mean(), level[later].mean()
        last = kept[-1]
        area = np.abs(
            (x[last] - next_x) * (level[bucket] - level[last]) - (x[last] - x[bucket]) * (next_y - level[last])
        )
        kept.append(int(bucket[np.argmax(area)]))
    return np.array([*kept, x.size - 1])
