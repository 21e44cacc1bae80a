"""Axes with few, plainly written ticks, and places for labels that do not cover each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.report.summary import number

_RATIO_STEPS = (  # in the order of how gladly they are read
    *(1, 10, 0.1, 100, 0.01, 1000, 0.001, 2, 0.5, 5, 0.2, 1.5, 0.7, 3, 0.3, 1.2, 0.8, 1.1, 0.9, 1.3, 1.4, 1.7),
    *(1.05, 0.95, 1.02, 0.98, 1.01, 0.99, 1e6, 1e-6, 1e9, 1e-9),
)


def span(values: Sequence[float], pad: float) -> tuple[float, float]:
    """Return the range of ``values`` with ``pad`` of its width on either side, never empty."""
    low, high = min(values), max(values)
    width = (high - low) or abs(high) or 1.0
    return low - pad * width, high + pad * width


def set_ticks(axis: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Put exactly these ticks on ``axis``."""
    axis.set_ticks(list(places), labels=list(names))
    axis.set_ticks([], minor=True)


def linear_axis(ax: Any, which: str, low: float, high: float, threshold: float | None = None) -> None:
    """Set limits and at most six ticks; with ``threshold``, logarithmic on both sides of a linear middle."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    if threshold is not None:
        (ax.set_xscale if which == "x" else ax.set_yscale)("symlog", linthresh=threshold)
    (ax.set_xlim if which == "x" else ax.set_ylim)(low, high)
    places = _round_places(low, high) if threshold is None else _symlog_places(low, high, threshold)
    set_ticks(axis, places, [plain(place) for place in places])


def log_axis(ax: Any, which: str, values: Sequence[float], spread: float, pad: float = 0.08) -> None:
    """Set an axis for ``values``: logarithmic when all are above 0 and they spread over more than ``spread`` times."""
    positive = [value for value in values if value > 0]
    low, high = min(values), max(values)
    if not math.isfinite(spread) or not positive or low <= 0 or high / low <= spread:
        linear_axis(ax, which, *span(values, pad))
        return
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    start, end = (math.exp(v) for v in span([math.log(low), math.log(high)], pad))
    (ax.set_xlim if which == "x" else ax.set_ylim)(start, end)
    places = _log_places(start, end)
    set_ticks(ax.xaxis if which == "x" else ax.yaxis, places, [plain(place) for place in places])


def plain(value: float) -> str:
    """Return a tick's label without trailing zeros."""
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}".replace("-", "−")
    text = number(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return places and labels of round ratios on a log-ratio axis from ``low`` to ``high``."""
    chosen: list[float] = []
    for step in _RATIO_STEPS:
        place = math.log(step)
        room = min((abs(place - math.log(other)) for other in chosen), default=math.inf)
        if low <= place <= high and room >= 0.13 * (high - low):
            chosen.append(step)
    chosen.sort()
    return [math.log(step) for step in chosen], [plain(step) for step in chosen]


def symlog_threshold(rows: Sequence[Sequence[float]]) -> float | None:
    """Return where an axis should turn linear when the rows' sizes differ more than 30 times; else None."""
    sizes = sorted(max(map(abs, row)) for row in rows if row and max(map(abs, row)) > 0)
    if not sizes or sizes[-1] / sizes[0] < 30:
        return None
    return float(10.0 ** math.floor(math.log10(sizes[0])))


def free_places(points: NDArray[np.float64], distance: float = 10.0) -> list[tuple[float, float]]:
    """Return for each point, shape (n, 2) in pixels, the offset at which a label is farthest from everything else."""
    angles = np.arange(8) * np.pi / 4
    ring = distance * np.column_stack([np.cos(angles), np.sin(angles)])
    taken = list(points)
    chosen = []
    for index, point in enumerate(points):
        others = np.array([other for number_, other in enumerate(taken) if number_ != index] or [[1e9, 1e9]])
        room = [np.hypot(*(others - (point + step)).T).min() for step in ring]
        best = int(np.argmax(np.minimum(room, 24.0)))  # beyond 24 px all places are as good: take the first, right
        taken.append(point + ring[best])
        chosen.append((float(ring[best][0]), float(ring[best][1])))
    return chosen


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending ``heights`` (0 to 1, the axis) moved at least ``gap`` apart, no further up than the axis's end.

    Where more stand there than fit, the gap shrinks.
    """
    gap = min(gap, 1.0 / max(1, len(heights) - 1))
    levels: list[float] = []
    for height in heights:
        levels.append(max(height, levels[-1] + gap) if levels else height)
    ceiling = max(1.0, *heights) if heights else 1.0
    for index in range(len(levels) - 1, -1, -1):
        levels[index] = min(levels[index], ceiling)
        ceiling = levels[index] - gap
    return levels


def _round_places(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` multiples of 1, 2 or 5 times a power of ten inside the range."""
    width = high - low
    if not width > 0:  # a curve of a single point
        return [low]
    step = 10.0 ** math.floor(math.log10(width / most))
    for factor in (1, 2, 5, 10):
        if width / (step * factor) <= most:
            step *= factor
            break
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _log_places(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        places = [f * 10.0**k for k in decades for f in factors if low <= f * 10.0**k <= high]
        if len(places) <= 6:
            break
    stride = -(-len(places) // 6) if places else 1
    return places[::stride] if len(places) > 1 else _round_places(low, high)


def _symlog_places(low: float, high: float, threshold: float) -> list[float]:
    first = round(math.log10(threshold))
    last = math.ceil(math.log10(max(abs(low), abs(high), threshold)))
    stride = max(1, -(-(last - first + 1) // 3))
    sizes = [10.0**k for k in range(first, last + 1, stride)]
    return [place for place in [*(-size for size in reversed(sizes)), 0.0, *sizes] if low <= place <= high]
