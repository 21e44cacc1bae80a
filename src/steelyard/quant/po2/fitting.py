"""Learn grids from samples: any number of grids, some of them fixed, mirrored, with a zero or with pinned ends.

That the grids of the paper's MPO2 come from Lloyd's algorithm and that PO2(NF4) starts from the groups that NF4 codes
badly is second hand; the rest is a reconstruction.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from steelyard.errors import InputError, did_you_mean
from steelyard.quant.po2.families import (
    BYTE_SCALES,
    LEVELS,
    MAX_GRIDS,
    MAX_GRIDS_BYTE,
    NF4_GRID,
    GridFamily,
    check_group_size,
)
from steelyard.quant.po2.lloyd import MIN_GROUPS, Groups, Mask, Plan, Rule, Scaler, Vector, assign, lloyd, mirrored
from steelyard.quant.po2.scales import ScaleLayout, layout, round_scales, tensor_scale
from steelyard.rng import generator

Samples = ArrayLike | Tensor | Sequence[ArrayLike | Tensor]

INITS = ("nf4-mirror", "nf4-uniform", "tight-uniform", "uniform", "residual")
# Restarts after the named one. On symmetric tails the mirrored start wins, on skewed values (ReLU, GELU) "residual".
_OTHERS = ("nf4-mirror", "residual", "tight-uniform", "nf4-uniform")
_NF4 = np.array(NF4_GRID)
_UNIFORM = np.linspace(-1.0, 1.0, LEVELS)
_TIGHT = np.concatenate([[-1.0], np.linspace(-0.5, 0.5, LEVELS - 2), [1.0]])
_WARPS = (1.0, 0.7, 1.4, 0.5, 2.0, 0.6, 1.2, 0.85)  # |v| ** p: tells later grids from the first ones
_JITTER = 0.02  # standard deviation of the noise on a restart's grids, in units of the group's maximum
_NEGLIGIBLE = 1e-12  # a group this small against its sample's RMS counts as all zero
_LARGEST = 3e38  # float32 holds it
_HEAVIER = 1.25  # ratio of peak shares that is worth a warning; Student t5 over Gaussian is 1.39, t3 1.9


class HeavyTailWarning(UserWarning):
    """Values have heavier tails than the samples that the grids were learned on."""


@dataclass(frozen=True)
class GridFit:
    """Learned grids.

    Attributes:
        grids: Every grid, fixed ones first, ascending, in units of the scale.
        history: Relative squared error ||x - x_hat||^2 / ||x||^2 after every assignment; never rises.
        family: The grids as a family for :func:`steelyard.quant.quantize`; not registered.
        peak_share: Share of the samples' energy that sits in the groups' largest elements: grows with the tails.
    """

    grids: tuple[tuple[float, ...], ...]
    history: tuple[float, ...]
    family: GridFamily
    peak_share: float

    def tail_ratio(self, samples: Samples) -> float:
        """Return the peak share of ``samples`` over that of the fit, and warn where it is far above 1.

        Grids learned on light tails are no universal grids: a Gaussian single grid loses to NVFP4 on Student t3, and
        the Gaussian pair is a third worse there than a pair learned on t3. Pinning the ends alone does not mend it.

        Args:
            samples: As in :func:`fit_grids`.

        Raises:
            InputError: Samples that cannot be used.
        """
        ratio = _peak_share(_pool(samples, None, self.family.default_group)) / self.peak_share
        if ratio > _HEAVIER:
            warnings.warn(
                f"The tails are heavier than those the grids were learned on (groups' largest elements hold "
                f"{ratio:.2f} times the share of energy): learn grids on values like these.",
                HeavyTailWarning,
                stacklevel=2,
            )
        return ratio


def fit_grids(
    samples: Samples,
    n_grids: int = 2,
    init: str = "nf4-mirror",
    fixed: Sequence[GridFamily | Sequence[float]] = (),
    rule: Rule = "absmax",
    pin_ends: bool = False,
    explicit_zero: bool = False,
    mirror: bool = False,
    weights: Samples | None = None,
    n_restarts: int = 3,
    group_size: int = 16,
    tol: float = 1e-4,
    iters: int = 100,
    seed: int = 0,
    scale: str | None = None,
    name: str = "learned",
) -> GridFit:
    """Learn grids of 16 values so that the best of them per group has the least squared error.

    The cost is linear in values, grids and restarts; the defaults take about 2 s for 20,000 groups of 16 on one thread.
    Part of a model's weights is enough: beyond that many groups the grids hardly move.

    Args:
        samples: Weights or activations: one tensor or array, or a list of them. Groups are cut along the last axis;
            every sample is divided by its RMS, so that all count by their number of values. All-zero groups are left
            out, as they are coded exactly.
        n_grids: Grids in all, ``fixed`` ones included, 1 to 8.
        init: Where the first restart begins: "nf4-mirror" (0.97 NF4 and its mirror image), "nf4-uniform",
            "tight-uniform", "uniform" or "residual" (each next grid is learned on the half of the groups that the
            grids so far code worst).
        fixed: Grids that stay as they are: families or ascending sequences of at most 16 values.
        rule: "absmax": the scale is the group's largest magnitude. "fit": the tightest scale that covers both ends.
        pin_ends: Keep the outer values at -1 and +1: a group's largest element is then as exact as its scale.
        explicit_zero: Keep the value nearest to 0 at 0.
        mirror: Two grids that are each other's mirror image, stored as one with a signed scale.
        weights: Importance of the elements, for example E[a^2] of the activations: broadcast to a sample's shape, one
            for each sample of a list.
        n_restarts: Runs of which the best is kept: ``init``, then the other starts, then perturbed copies.
        group_size: Elements that share a scale.
        tol: Relative decrease below which a run ends.
        iters: Largest number of centroid steps of a run.
        seed: Of the perturbations; needed only where ``n_restarts`` goes beyond the named starts.
        scale: Format of the scales; None: "e4m3" up to two grids, "e3m3" up to four, else "fp16".
        name: Name of the family.

    Returns:
        The best run.

    Raises:
        InputError: An argument that cannot be used, or fewer than 10 groups a grid.
    """
    _check_options(init, rule, {"pin_ends": pin_ends, "explicit_zero": explicit_zero, "mirror": mirror})
    check_group_size("group_size", group_size)
    _check_whole(n_restarts=n_restarts, iters=iters)
    if not (isinstance(tol, int | float) and 0 <= tol < 1):
        raise InputError(f"tol must lie in [0, 1); got {tol!r}")
    frozen = _fixed_grids(fixed)
    _check_counts(n_grids, len(frozen), mirror)
    form = _layout(scale, n_grids)
    pool = _pool(samples, weights, group_size)
    _check_enough(pool, n_grids)
    best: tuple[list[Vector], list[float]] | None = None
    starts = _starts(init, n_grids, frozen, pool, seed)
    for start in itertools.islice(starts, n_restarts):
        grids, pins = _pinned(start, len(frozen), pin_ends, explicit_zero, mirror)
        plan = Plan(rule, _rounding(form, rule, grids), pins, mirror, tol, iters)
        run = lloyd(pool, grids, plan)
        if best is None or run[1][-1] < best[1][-1]:
            best = run
    assert best is not None
    family = _family(best[0], name, rule, group_size, form.name, mirror)
    return GridFit(family.search_grids, tuple(best[1]), family, _peak_share(pool))


def fit_grid_pair(samples: Samples, **options: Any) -> GridFit:
    """Learn two grids: :func:`fit_grids` with ``n_grids=2``."""
    return fit_grids(samples, n_grids=2, **options)


def _family(grids: list[Vector], name: str, rule: Rule, group_size: int, scale: str, mirror: bool) -> GridFamily:
    stored = grids[:1] if mirror else grids
    values = tuple(tuple(grid.tolist()) for grid in stored)
    return GridFamily(name, values, rule, group_size, scale, signed_scale=mirror)


def _rounding(form: ScaleLayout, rule: Rule, grids: Sequence[Vector]) -> Callable[[Vector, Groups], Vector]:
    """Return how scales are stored; the tensor's scale comes from the first grids and never moves with them."""
    start = _family(list(grids), "start", rule, 1, form.name, mirror=False)

    def rounded(ideal: Vector, groups: Groups) -> Vector:
        tensor = _tensor_scales(start, form, groups)
        ratios = torch.from_numpy(np.clip(ideal / tensor, 0.0, _LARGEST).astype(np.float32))
        return np.asarray(round_scales(start, form, ratios)[1].double().numpy() * tensor, dtype=np.float64)

    return rounded


def _tensor_scales(start: GridFamily, form: ScaleLayout, groups: Groups) -> Vector:
    """Return each group's tensor scale (n,), in the units of the divided samples.

    It is asked for at the mantissa of the sample's largest value: an E8M0 scale sees the mantissa, none the exponent.
    """
    if form.absolute:
        return np.asarray(1.0 / groups.rms)
    mantissa = np.frexp(np.frexp(groups.amax)[0] * np.frexp(groups.rms)[0])[0]
    different, which = np.unique(mantissa, return_inverse=True)
    scales = [tensor_scale(start, form, -m, m, start.cap, start.candidates) for m in different.tolist()]
    return np.asarray((np.array(scales) / different)[which] * groups.amax)


def _starts(init: str, n_grids: int, frozen: list[Vector], pool: Groups, seed: int) -> Iterator[list[Vector]]:
    """Yield the grids that the restarts begin with: the named one, the other starts, then perturbed copies."""
    first = _start(init, n_grids, frozen, pool)
    yield first
    for other in _OTHERS:
        if other != init:
            yield _start(other, n_grids, frozen, pool)
    for number in itertools.count():
        rng = generator("fit_grids", f"restart-{number}", seed)
        noisy = [np.sort(np.clip(grid + rng.normal(0.0, _JITTER, grid.size), -1.0, 1.0)) for grid in first]
        yield [*frozen, *noisy[len(frozen) :]]


def _start(init: str, n_grids: int, frozen: list[Vector], pool: Groups) -> list[Vector]:
    if init == "residual":
        return _residual(n_grids, frozen, pool)
    bases = {
        "nf4-mirror": (0.97 * _NF4, mirrored(0.97 * _NF4)),
        "nf4-uniform": (_NF4, _UNIFORM),
        "tight-uniform": (_TIGHT, _UNIFORM),
        "uniform": (_UNIFORM,),
    }[init]
    grids = []
    for number in range(n_grids):
        lap, place = divmod(number, len(bases))
        grids.append(np.sign(bases[place]) * np.abs(bases[place]) ** _WARPS[lap])
    return [*frozen, *grids[len(frozen) :]]


def _residual(n_grids: int, frozen: list[Vector], pool: Groups) -> list[Vector]:
    """Add grids one by one, each learned on the half of the groups that the grids so far code worst."""
    grids = list(frozen)
    ideal = _plan_alone(0)
    while len(grids) < n_grids:
        worst = pool
        if grids:
            errors = assign(Scaler(pool, ideal), grids).errors
            worst = pool.take(errors >= np.median(errors))
        grids += lloyd(worst, [0.97 * _NF4], _plan_alone(20))[0]
    return grids


def _plan_alone(iters: int) -> Plan:
    """One free grid on unrounded scales, good enough to begin with."""
    return Plan("absmax", lambda ideal, _: ideal, (np.zeros(LEVELS, bool),), mirror=False, tol=1e-3, iters=iters)


def _pinned(
    start: list[Vector], n_fixed: int, pin_ends: bool, explicit_zero: bool, mirror: bool
) -> tuple[list[Vector], tuple[Mask, ...]]:
    """Choose, once, which values stay, and put them where they stay."""
    grids, pins = list(start[:n_fixed]), [np.ones(grid.size, bool) for grid in start[:n_fixed]]
    for grid in start[n_fixed:]:
        value, pin = grid.copy(), np.zeros(grid.size, bool)
        if explicit_zero:
            nearest = int(np.abs(value).argmin())
            value[nearest], pin[nearest] = 0.0, True
        if pin_ends:
            value[[0, -1]], pin[[0, -1]] = (-1.0, 1.0), True
        grids.append(value)
        pins.append(pin)
    if mirror:
        grids, pins = [grids[0], mirrored(grids[0])], [pins[0], pins[0][::-1]]
    return grids, tuple(pins)


def _pool(samples: Samples, weights: Samples | None, group_size: int) -> Groups:
    """Cut samples into groups, every sample divided by its RMS, without the groups that are all zero."""
    parts = _listed(samples)
    shares = [None] * len(parts) if weights is None else _listed(weights)
    if len(shares) != len(parts):
        raise InputError(f"weights must come one for each of the {len(parts)} samples; got {len(shares)}.")
    cut = [_cut(i, part, share, group_size) for i, (part, share) in enumerate(zip(parts, shares, strict=True))]
    values = np.concatenate([groups.values for groups in cut])
    if not len(values):
        raise InputError(
            "samples hold no value that counts (all are zero or have weight 0); there is nothing to learn."
        )
    mass = np.concatenate([np.ones_like(g.values) if g.weights is None else g.weights for g in cut])
    weighted = any(groups.weights is not None for groups in cut)
    amax, rms = (np.concatenate([getattr(g, name) for g in cut]) for name in ("amax", "rms"))
    return Groups(values, mass if weighted else None, amax, rms)


def _cut(number: int, part: ArrayLike | Tensor, share: ArrayLike | Tensor | None, group_size: int) -> Groups:
    values = _array(f"samples[{number}]", part)
    peak = float(np.abs(values).max())
    rms = math.sqrt(float(((values / peak) ** 2).mean())) if peak else 1.0
    values = values / (peak or 1.0) / rms  # in two steps: squares of huge values overflow
    weights = None if share is None else _spread(number, share, values.shape)
    missing = -values.shape[-1] % group_size
    if missing:  # quantize pads with zeros too; here they must not count
        weights = np.ones_like(values) if weights is None else weights
        pad = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
        values, weights = np.pad(values, pad), np.pad(weights, pad)
    values = values.reshape(-1, group_size)
    weights = None if weights is None else weights.reshape(-1, group_size)
    counts = np.abs(values if weights is None else values * (weights > 0)).max(axis=1) > _NEGLIGIBLE
    size = np.ones(len(values))
    return Groups(values, weights, size / rms, size * (peak or 1.0) * rms).take(counts)


def _spread(number: int, share: ArrayLike | Tensor, shape: tuple[int, ...]) -> Vector:
    weights = _array(f"weights[{number}]", share)
    if (weights < 0).any():
        raise InputError(f"weights[{number}] must not be negative.")
    try:
        return np.array(np.broadcast_to(weights, shape))
    except ValueError:
        raise InputError(
            f"weights[{number}] of shape {weights.shape} cannot be broadcast to samples[{number}] of shape {shape}."
        ) from None


def _listed(samples: Samples) -> list[ArrayLike | Tensor]:
    """Return a list of samples; a list of plain numbers is one sample."""
    if not isinstance(samples, list | tuple):
        return [samples]  # type: ignore[list-item]
    if not samples:
        raise InputError("samples is an empty list; pass at least one tensor or array.")
    return [samples] if all(isinstance(value, int | float) for value in samples) else list(samples)


def _array(name: str, value: ArrayLike | Tensor) -> Vector:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} must be a tensor or an array: {error}.") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must hold real numbers; its dtype is {array.dtype}.")
    if array.ndim == 0 or array.size == 0:
        raise InputError(f"{name} must have at least one axis and one value; its shape is {array.shape}.")
    wide: Vector = np.ascontiguousarray(array, dtype=np.float64)  # sums must not depend on the layout
    if not np.isfinite(wide).all():
        raise InputError(f"{name} holds NaN or infinite values; remove them first.")
    return wide


def _peak_share(pool: Groups) -> float:
    return float((np.abs(pool.values).max(axis=1) ** 2).sum() / (pool.values**2).sum())


def _fixed_grids(fixed: Sequence[GridFamily | Sequence[float]]) -> list[Vector]:
    grids: list[Vector] = []
    if not isinstance(fixed, list | tuple):
        raise InputError(
            f"fixed must be a list or tuple of families or grids, such as (NF4,); got {type(fixed).__name__}."
        )
    for number, entry in enumerate(fixed):
        member = entry if isinstance(entry, GridFamily) else _one_grid(number, entry)
        grids += [np.array(grid) / member.unit for grid in member.search_grids]
    return grids


def _one_grid(number: int, entry: Sequence[float]) -> GridFamily:
    try:
        grid = tuple(float(value) for value in entry)
    except (TypeError, ValueError):
        raise InputError(f"fixed[{number}] must be a GridFamily or a sequence of numbers; got {entry!r}.") from None
    return GridFamily(f"fixed[{number}]", (grid,))


def _check_enough(pool: Groups, n_grids: int) -> None:
    count, size = pool.values.shape
    if count < MIN_GROUPS * n_grids:
        raise InputError(
            f"samples hold {count} groups of {size} that are not all zero, {n_grids} grids need at least "
            f"{MIN_GROUPS * n_grids}; pass more samples."
        )
    if np.ptp(np.abs(pool.values)) < _NEGLIGIBLE:
        raise InputError("samples hold one value only, up to its sign; there is nothing to learn.")


def _check_options(init: str, rule: str, switches: dict[str, bool]) -> None:
    for name, value, allowed in (("init", init, INITS), ("rule", rule, get_args(Rule))):
        if value not in allowed:
            hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise InputError(f"{name} must be one of {list(allowed)}; got {value!r}.{hint}")
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise InputError(f"{name} must be True or False; got {switch!r}.")


def _check_whole(**numbers: int) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be an integer of at least 1; got {value!r}.")


def _check_counts(n_grids: int, n_fixed: int, mirror: bool) -> None:
    if isinstance(n_grids, bool) or not isinstance(n_grids, int) or not 1 <= n_grids <= MAX_GRIDS:
        raise InputError(f"n_grids must be an integer from 1 to {MAX_GRIDS}; got {n_grids!r}.")
    if n_fixed >= n_grids:
        raise InputError(f"fixed holds {n_fixed} grids, so n_grids={n_grids} leaves none to learn; raise n_grids.")
    if mirror and (n_grids != 2 or n_fixed):
        raise InputError("mirror=True learns a grid and its mirror image: it needs n_grids=2 and no fixed grids.")


def _layout(scale: str | None, n_grids: int) -> ScaleLayout:
    wanted = scale or ("e4m3" if n_grids <= 2 else "e3m3" if n_grids <= MAX_GRIDS_BYTE else "fp16")
    if wanted in BYTE_SCALES and n_grids > MAX_GRIDS_BYTE:
        raise InputError(f"scale={wanted!r} holds at most {MAX_GRIDS_BYTE} grids; use 'fp16' or 'fp32' for {n_grids}.")
    return layout(wanted, n_grids)
