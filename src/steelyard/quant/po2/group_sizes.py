"""What the choice of a grid is worth by group size, on Gaussian groups: the law in g, and the price of a bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from steelyard.contracts import CellInput, Measured
from steelyard.quant.po2.cells import config_of
from steelyard.quant.po2.fitting import fit_grids
from steelyard.quant.po2.theory import breakeven_gain, clark_min

GROUP_SIZES = (8, 16, 32, 64, 128, 256)
_NOTHING = 1e-6  # a gain of 0 or less, which has no logarithm

Floats = npt.NDArray[np.float64]


def run_group_sizes(cell: CellInput) -> Measured:
    """Learn one grid and two for every group size, and see on fresh groups what the choice is worth.

    Scales are exact (FP32), so that nothing but the group size changes. A gain is the share of the learned single
    grid's error that the learned pair saves.
    """
    gains: list[float] = []
    clark: list[float] = []
    prices = [float(breakeven_gain(size)) for size in GROUP_SIZES]
    for size in GROUP_SIZES:
        gain, predicted = _gain(cell, size)
        gains.append(gain)
        clark.append(predicted)
    sizes = np.array(GROUP_SIZES, dtype=np.float64)
    safe = np.maximum(gains, _NOTHING)
    law = safe * np.sqrt(sizes)
    ranks = np.argsort(np.argsort(gains))
    return Measured(
        metrics={
            "gain_rank": float(np.corrcoef(ranks, np.arange(len(gains)))[0, 1]),
            "gain_slope": float(np.polyfit(np.log(sizes), np.log(safe), 1)[0]),
            "gain_spread": float(law.max() / law.min()),
            "gain_over_price": min(gain / price for gain, price in zip(gains, prices, strict=True)),
            "clark_error": max(clark[1:]),  # at g = 8 group errors are too skewed for a normal law
        },
        steps=2 * len(gains),
        traces={"gain_by_group": (sizes.tolist(), gains), "price_by_group": (sizes.tolist(), prices)},
    )


def _gain(cell: CellInput, size: int) -> tuple[float, float]:
    """Return the gain at a group size, and how far the normal approximation is from the error with a choice."""
    config = config_of(cell)
    groups = max(int(cell.params["elements"]) // size, int(cell.params["least_groups"]))
    train, test = (cell.rng(f"{name}/{size}").standard_normal((groups, size)) for name in ("train", "test"))
    one, two = (
        fit_grids(
            train, number, scale="fp32", group_size=size, init=config.init, n_restarts=config.n_restarts,
            tol=config.tol, seed=cell.seed,
        ).grids
        for number in (1, 2)
    )  # fmt: skip
    single, first, second = (group_errors(test, grid) for grid in (*one, *two))
    chosen = float(np.minimum(first, second).mean())
    predicted = float(clark_min(float(first.mean()), float(second.mean()), float((first - second).std())))
    return 1.0 - chosen / float(single.mean()), abs(predicted / chosen - 1.0)


def group_errors(values: Floats, grid: Sequence[float]) -> Floats:
    """Return every group's mean squared error on ``grid`` when the scale is the group's largest magnitude, (n,)."""
    levels = np.array(grid)
    scale = np.abs(values).max(axis=1, keepdims=True)
    u = values / scale
    nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, u)]
    squared: Floats = ((u - nearest) * scale) ** 2
    return np.asarray(squared.mean(axis=1))
