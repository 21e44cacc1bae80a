"""Lloyd's algorithm for several grids at once: every group picks its best grid, every grid's values move to centroids.

The objective is the squared error in the samples' units, so a value's centroid weighs an element by its scale squared
(second hand that it is Lloyd; the weights, the pins and the acceptance rule of "fit" are a reconstruction). Scales
never depend on values that move, so the objective never rises. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.int8]
Rule = Literal["absmax", "fit"]

MIN_GROUPS = 10  # a grid that fewer groups choose stays as it is
_BINS = 1024  # of the look-up table that finds codes
_SLACK = 1e-12  # relative rise that the rounding of float64 sums may show
_FLOOR = 1e-20  # relative error below which nothing but rounding is left


@dataclass(frozen=True)
class Groups:
    """Groups of samples, scaled so that every sample has RMS 1."""

    values: Vector  # (n, g)
    weights: Vector | None  # (n, g) importance of every element; None: all 1
    amax: Vector  # (n,) largest magnitude of the group's sample after the division: most scales are relative to it
    rms: Vector  # (n,) what the sample was divided by: plain E8M0 scales are absolute

    def energy(self) -> float:
        """Return the weighted sum of squares, what the objective is relative to."""
        squares = self.values**2
        return float(squares.sum() if self.weights is None else (squares * self.weights).sum())

    def take(self, rows: Mask) -> Groups:
        """Return the groups that ``rows`` (n,) marks."""
        weights = None if self.weights is None else self.weights[rows]
        return Groups(self.values[rows], weights, self.amax[rows], self.rms[rows])


@dataclass(frozen=True)
class Plan:
    """What holds for a whole run: how scales come about and which values may move."""

    rule: Rule
    round_scales: Callable[[Vector, Groups], Vector]  # ideal scales (n,) -> stored ones
    pins: tuple[Mask, ...]  # a mask of pinned values for every grid; all pinned: a fixed grid
    mirror: bool
    tol: float
    iters: int


@dataclass(frozen=True)
class Scaled:
    """Groups in units of their scale."""

    u: Vector  # (n, g)
    mass: Vector  # (n, g) weight times scale squared
    bins: NDArray[np.int16]  # (n, g) bin of u
    low: float
    per_unit: float  # bins per unit of u

    def bin_of(self, u: Vector) -> NDArray[np.int16]:
        """Return bins; monotone in u, float rounding included, which is all that finding codes relies on."""
        return np.clip((u - self.low) * self.per_unit, 0, _BINS - 1).astype(np.int16)


@dataclass
class Scaler:
    """Scales the groups once for all grids that agree on the scale."""

    groups: Groups
    plan: Plan
    known: dict[tuple[float, float] | None, Scaled] = field(default_factory=dict)

    def scaled(self, grid: Vector) -> Scaled:
        """Return the groups in units of the scale that ``grid`` has under the rule."""
        key = None if self.plan.rule == "absmax" else (float(grid[0]), float(grid[-1]))
        if key not in self.known:
            if len(self.known) > 8:  # ends that moved on
                self.known.clear()
            self.known[key] = self._scale(key)
        return self.known[key]

    def _scale(self, ends: tuple[float, float] | None) -> Scaled:
        x = self.groups.values
        low, high = ends or (-1.0, 1.0)
        ideal = np.maximum(x.max(axis=1) / high, x.min(axis=1) / low)
        scale = self.plan.round_scales(ideal, self.groups)[:, None]
        u = x / scale
        mass = scale**2 * (np.ones_like(x) if self.groups.weights is None else self.groups.weights)
        least = float(u.min())
        bare = Scaled(u, mass, np.empty(0, np.int16), least, _BINS / max(float(u.max()) - least, 1e-30))
        return Scaled(u, mass, bare.bin_of(u), bare.low, bare.per_unit)


@dataclass(frozen=True)
class Assignment:
    """Who chose what, and what it costs."""

    errors: Vector  # (n,) weighted squared error of every group under its grid
    choice: NDArray[np.intp]  # (n,) index of the grid
    codes: tuple[Codes, ...]  # for every grid, (n, g)

    @property
    def objective(self) -> float:
        """The sum of the errors."""
        return float(self.errors.sum())


def codes_of(scaled: Scaled, grid: Vector) -> Codes:
    """Return the index of the nearest value of ``grid`` for every element; a tie goes to the lower value.

    A table over bins gives the number of midpoints in lower bins; only those in the element's own bin are compared.
    """
    middles = (grid[1:] + grid[:-1]) / 2
    bins = scaled.bin_of(middles)
    below = np.searchsorted(bins, np.arange(_BINS), side="left").astype(np.int8)
    codes = below.take(scaled.bins)
    padded = np.append(middles, np.inf)
    for _ in range(int(np.bincount(bins).max())):
        codes += scaled.u > padded.take(codes)
    return codes


def assign(scaler: Scaler, grids: Sequence[Vector]) -> Assignment:
    """Let every group choose its grid; ties go to the first."""
    codes, errors = [], []
    for grid in grids:
        scaled = scaler.scaled(grid)
        code = codes_of(scaled, grid)
        miss = grid.take(code)
        miss -= scaled.u
        miss *= miss
        errors.append(np.einsum("ng,ng->n", scaled.mass, miss))
        codes.append(code)
    table = np.stack(errors)
    return Assignment(table.min(axis=0), table.argmin(axis=0), tuple(codes))


def moved(scaler: Scaler, grids: Sequence[Vector], chosen: Assignment, pins: Sequence[Mask]) -> list[Vector]:
    """Return the grids with every free value at the centroid of the elements that have its code."""
    sums = [_sums(scaler.scaled(grid), chosen, i, len(grid)) for i, grid in enumerate(grids)]
    owners = [int((chosen.choice == i).sum()) for i in range(len(grids))]
    if scaler.plan.mirror:  # what the mirrored grid codes, the first one codes with the sign turned
        (mass, moment), (other_mass, other_moment) = sums
        sums = [(mass + other_mass[::-1], moment - other_moment[::-1])]
        owners = [sum(owners)]
    new = []
    for (mass, moment), owned, grid, pin in zip(sums, owners, grids, pins, strict=False):
        free = ~pin & (mass > 0)  # the value of an empty cell stays
        value = np.where(free, np.divide(moment, mass, out=np.zeros_like(mass), where=mass > 0), grid)
        new.append(np.sort(value) if owned >= MIN_GROUPS else grid)
    return [*new, mirrored(new[0])] if scaler.plan.mirror else new


def _sums(scaled: Scaled, chosen: Assignment, i: int, size: int) -> tuple[Vector, Vector]:
    rows = chosen.choice == i
    code, mass = chosen.codes[i][rows].ravel(), scaled.mass[rows].ravel()
    moment = mass * scaled.u[rows].ravel()
    sums = (np.bincount(code, weights=part, minlength=size).astype(np.float64) for part in (mass, moment))
    return next(sums), next(sums)


def mirrored(grid: Vector) -> Vector:
    """Return the grid of the negated values, ascending."""
    return np.asarray(0.0 - grid[::-1])  # no -0.0


def lloyd(groups: Groups, grids: Sequence[Vector], plan: Plan) -> tuple[list[Vector], list[float]]:
    """Improve ``grids`` until the objective falls by less than ``tol`` of itself, at most ``iters`` times.

    Returns:
        The grids and the history of the squared error relative to the energy, one entry an assignment.
    """
    scaler, energy, current = Scaler(groups, plan), groups.energy(), list(grids)
    chosen = assign(scaler, current)
    history = [chosen.objective / energy]
    for _ in range(plan.iters):
        current, chosen = _step(scaler, current, chosen)
        history.append(chosen.objective / energy)
        assert history[-1] <= history[-2] * (1 + _SLACK) + _FLOOR, (
            f"the objective rose from {history[-2]} to {history[-1]}"
        )
        if history[-2] - history[-1] <= plan.tol * history[-2]:
            break
    return current, history


def _step(scaler: Scaler, grids: list[Vector], chosen: Assignment) -> tuple[list[Vector], Assignment]:
    """One centroid step and the assignment after it.

    Under "fit" the ends of a grid set the scale, and moving them may raise the error. So they are held, which cannot
    raise it, unless moving them is better.
    """
    plan = scaler.plan
    if plan.rule == "absmax":
        new = moved(scaler, grids, chosen, plan.pins)
        return new, assign(scaler, new)
    ends = [np.isin(np.arange(pin.size), (0, pin.size - 1)) for pin in plan.pins]
    held = moved(scaler, grids, chosen, [pin | end for pin, end in zip(plan.pins, ends, strict=True)])
    free = moved(scaler, grids, chosen, plan.pins)
    free = [_outer_one(grid, pin) for grid, pin in zip(free, plan.pins, strict=True)]
    outcomes = [(new, assign(scaler, new)) for new in (held, free)]
    return min(outcomes, key=lambda outcome: outcome[1].objective)


def _outer_one(grid: Vector, pin: Mask) -> Vector:
    """Return the grid with its outermost value at 1, which changes nothing under "fit" but the scale's unit."""
    return grid if pin[0] or pin[-1] else grid / max(-grid[0], grid[-1])
