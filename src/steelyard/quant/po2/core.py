"""Encode groups on the best of several grids and scales: the torch path, which every other path must equal bit by bit.

Problem and selector are the paper's (abstract); rounding, order of sums and ties are a reconstruction, fixed here:
float32 throughout, u = x * ((1 / t) / s), code = number of midpoints below u, error = s^2 * sum w (u - v)^2 where every
sixteen elements are folded in halves and then added up, least error first, ties to the lowest grid, then factor. Other
criteria of a family have s |u - v| in the place of the squares, and the largest in the place of the sum.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2 import scales
from steelyard.quant.po2.families import LEVELS, Grid, GridFamily, check_group_size
from steelyard.quant.po2.scales import ScaleLayout

LANES = 16
SWEEP = (0.72, 0.76, 0.80, 0.84, 0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.14, 1.2, 1.3, 1.4, 1.5)
FOUR_OR_SIX = (1.0, 1.5)
FOUR_OR_SIX_CAP = 256.0
WINDOW = 4
WINDOW_HEADROOM = 1.5  # four codes above a scale are at most half of it more
SEARCHES = ("none", "4o6", "sweep", "window")


class Tables(NamedTuple):
    """A family's grids as float32 arrays, short grids filled up.

    Attributes:
        search: (m, 16) ascending values that the encoder compares with; filled with the last value.
        midpoints: (m, 15) thresholds; u above one takes the next code. Filled with inf.
        decode: (m, 16) value of each stored code, by selector.
    """

    search: Tensor
    midpoints: Tensor
    decode: Tensor


@dataclass(frozen=True)
class Plan:
    """Everything about an encoding but the data.

    Attributes:
        family: The grids.
        form: Layout of the scales.
        group_size: Elements that share a scale.
        factors: Factors on the scale that are tried; with a window only the room that the tensor's scale leaves.
        cap: E4M3 value of the tensor's largest scale.
        window: Neighbouring scale codes tried on either side instead of factors; 0 for none.
    """

    family: GridFamily
    form: ScaleLayout
    group_size: int
    factors: tuple[float, ...]
    cap: float
    window: int = 0

    @property
    def n_trials(self) -> int:
        """Scales that a group tries on each grid."""
        return 2 * self.window + 1 if self.window else len(self.factors)


class Encoded(NamedTuple):
    """Groups encoded.

    Attributes:
        codes: uint8 (n, g), as stored (index into ``decode_grids``).
        scale_codes: (n,), selector bits not yet in it.
        selectors: uint8 (n,).
    """

    codes: Tensor
    scale_codes: Tensor
    selectors: Tensor


class Found(NamedTuple):
    """What a search chose.

    Attributes:
        codes: uint8 (n, g), indices into ``search_grids``.
        grids: uint8 (n,).
        columns: int64 (n,), the column of ``Trials``.
    """

    codes: Tensor
    grids: Tensor
    columns: Tensor


class Trials(NamedTuple):
    """The scales that each group may take: a column a trial, or under "fit" a column a (grid, trial).

    Attributes:
        codes: (n, columns) scale codes.
        values: float32 (n, columns), relative to the tensor scale.
        factors: float32 (n, columns), what x is multiplied with.
        weights: float32 (n, columns), the scales, in a unit in which their squares neither over- nor underflow.
        shared: Whether all grids share the columns.
        raised: Groups so small that every scale tried had to be raised to the format's smallest.
    """

    codes: Tensor
    values: Tensor
    factors: Tensor
    weights: Tensor
    shared: bool
    raised: int


def plan(family: GridFamily, group_size: int | None, scale: str | None, search: str) -> Plan:
    """Resolve the options of a quantisation.

    Raises:
        InputError: An unknown search or scale, a group size below 1, too many grids for the scale format.
    """
    if search not in SEARCHES:
        raise InputError(f"search must be one of {list(SEARCHES)}; got {search!r}")
    size = family.default_group if group_size is None else group_size
    check_group_size("group_size", size)
    form = scales.resolve(family, scale)
    if search == "sweep":
        return Plan(family, form, size, SWEEP, family.cap)
    if search == "4o6":
        return Plan(family, form, size, FOUR_OR_SIX, min(family.cap, FOUR_OR_SIX_CAP))
    if search == "window":
        if form.width != 8:
            raise InputError(
                f"search='window' needs a scale of one byte, whose codes have neighbours; got {form.name!r}"
            )
        return Plan(family, form, size, (WINDOW_HEADROOM,), family.cap, WINDOW)
    return Plan(family, form, size, family.candidates, family.cap)


@functools.lru_cache(maxsize=256)
def tables(family: GridFamily) -> Tables:
    """Return the family's float32 tables (shared: do not write into them)."""
    # Made by numpy, which does not know torch's default dtype and device: some loaders change these for a while.
    search, decode = (
        np.array([_filled(grid) for grid in grids], dtype=np.float32)
        for grids in (family.search_grids, family.decode_grids)
    )
    middle = [_midpoints(row[: len(grid)], family.ties) for row, grid in zip(search, family.search_grids, strict=True)]
    return Tables(*(torch.from_numpy(part) for part in (search, np.stack(middle), decode)))


def _filled(grid: Grid) -> list[float]:
    return [*grid, *([grid[-1]] * (LEVELS - len(grid)))]


def _midpoints(values: NDArray[np.float32], ties: str) -> NDArray[np.float32]:
    """Return 15 float32 thresholds t_k: u > t_k exactly where code k + 1 is the nearer, or wins the tie."""
    exact = (values[1:].astype(np.float64) + values[:-1]) / 2
    middle = exact.astype(np.float32)
    down = np.float32(-np.inf)
    middle = np.where(middle > exact, np.nextafter(middle, down), middle)  # the largest float not above the midpoint
    if ties == "even":
        n = len(values)
        sizes = np.array([code - n // 2 if code >= n // 2 else (n - 1) // 2 - code for code in range(1, n)])
        middle = np.where((sizes % 2 == 0) & (middle == exact), np.nextafter(middle, down), middle)
    filled = np.full(LEVELS - 1, np.inf, dtype=np.float32)
    filled[: len(middle)] = middle
    return filled


def trials(options: Plan, low: Tensor, high: Tensor, scale: float) -> Trials:
    """Return the rounded scales that groups with these extremes may take.

    Args:
        options: The plan.
        low: min(x, 0) of each group, float32 (n,).
        high: max(x, 0) of each group, float32 (n,).
        scale: The tensor's scale t.
    """
    base = scales.group_scales(options.family, options.form, low, high).abs()  # -0.0 would set the sign bit
    unit = torch.full((), scale, dtype=torch.float32, device=base.device)  # on a GPU x / number is x * (1 / number)
    if options.window:
        ratios = base / unit
        codes, values = scales.neighbours(
            options.form, scales.round_scales(options.family, options.form, ratios)[0], options.window
        )
    else:
        factors = torch.tensor(options.factors, dtype=torch.float32, device=base.device)
        ratios = (base[:, :, None] * factors).flatten(1) / unit
        codes, values = scales.round_scales(options.family, options.form, ratios)
    raised = scales.count_raised(options.form, ratios)
    weights = values
    if options.form.name in ("e8m0", "fp16", "fp32"):  # other formats have no values so far from 1
        weights = values / values.amax(1, keepdim=True).clamp(min=2.0**-126)
    return Trials(codes, values, scales.reciprocals(values, scale), weights, base.shape[1] == 1, raised)


def encode(options: Plan, groups: Tensor, scale: float, importance: Tensor | None = None) -> Encoded:
    """Encode groups with plain torch operations, on any device.

    Args:
        options: The plan.
        groups: float32 (n, g), finite.
        scale: The tensor's scale t.
        importance: float32 (k, g) weights >= 0 of the squared errors, k a divisor of n: the k rows serve the groups in
            turn, as the groups of one row after another do. None for ones.
    """
    tried = trials(options, *extrema(groups), scale)
    return finish(options, search(options, groups, tried, importance), tried)


def balanced(importance: Tensor, counted: Tensor) -> Tensor:
    """Return weights of which only the ratios within a group are left, float32 (k, g), on their device.

    A group's largest weight is brought into [1, 2) by a power of two, which leaves the others' digits as they are, so
    that weighted sums neither over- nor underflow. Where all weights are zero the unweighted error decides.

    Args:
        importance: float64 (k, g), finite and >= 0.
        counted: float64 (k, g), 1 for elements and 0 for padding, whose weight is 0.
    """
    most = importance.amax(1, keepdim=True)
    power = most / (2 * torch.frexp(most).mantissa)
    return torch.where(most > 0, importance / power, counted).float()


def extrema(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return min(x, 0) and max(x, 0) of every group, float32 (n,)."""
    return groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)


def search(options: Plan, groups: Tensor, tried: Trials, importance: Tensor | None) -> Found:
    """Return for every group the (grid, factor) of least error and the codes under it."""
    grids = tables(options.family)
    middles, values = grids.midpoints.to(groups.device), grids.search.to(groups.device)
    pairs = pair_columns(options, tried)
    best: list[Tensor] = []
    for grid, column in pairs:
        u = groups * tried.factors[:, column, None]
        codes = torch.bucketize(u, middles[grid], out_int32=True)
        found = Found(
            codes.to(torch.uint8),
            torch.full_like(codes[:, 0], grid, dtype=torch.uint8),
            torch.full_like(codes[:, 0], column, dtype=torch.int64),
        )
        if len(pairs) == 1:
            return found
        scale = tried.weights[:, column]
        costs = _folded_costs(u - values[grid][codes], importance, options.family.criterion)
        error = costs * (scale.square() if options.family.criterion == "mse" else scale)
        if not best:
            best = [*found, error]
            continue
        better = error < best[3]
        best = [
            torch.where(better[:, None] if new.ndim == 2 else better, new, old)
            for new, old in zip((*found, error), best, strict=True)
        ]
    return Found(*best[:3])


def pair_columns(options: Plan, tried: Trials) -> list[tuple[int, int]]:
    """Return (grid, column of ``tried``) of every pair in the order in which ties are decided."""
    n = options.n_trials
    return [
        (grid, trial if tried.shared else grid * n + trial)
        for grid in range(options.family.n_grids)
        for trial in range(n)
    ]


def _folded_costs(difference: Tensor, importance: Tensor | None, criterion: str) -> Tensor:
    """Return the (weighted) sum of squares, or what else the criterion says, in the one order that both paths share."""
    costs = difference * difference if criterion == "mse" else difference.abs()
    if importance is not None:
        costs = costs * importance.repeat(len(costs) // len(importance), 1)
    n, size = costs.shape
    if size % LANES:
        costs = torch.nn.functional.pad(costs, (0, -size % LANES))
    join = torch.maximum if criterion == "max" else torch.add
    lanes = costs.reshape(n, -1, LANES)
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = join(lanes[:, :, :half], lanes[:, :, half:])
    total = lanes[:, 0, 0]
    for chunk in range(1, lanes.shape[1]):
        total = join(total, lanes[:, chunk, 0])
    return total


def chosen(of_columns: Tensor, columns: Tensor) -> Tensor:
    """Return the entry of each row's column, (n,)."""
    return of_columns[:, 0] if of_columns.shape[1] == 1 else of_columns.gather(1, columns[:, None])[:, 0]


def finish(options: Plan, found: Found, tried: Trials) -> Encoded:
    """Turn winning columns into scale codes, and codes into their stored form."""
    codes = found.codes
    if options.family.signed_scale:  # the mirror image of value k is value (levels - 1 - k) with the sign turned
        last = len(options.family.grids[0]) - 1
        codes = torch.where(found.grids[:, None] == 1, last - codes, codes)
    return Encoded(codes, chosen(tried.codes, found.columns), found.grids)


def decode(family: GridFamily, codes: Tensor, values: Tensor, selectors: Tensor) -> Tensor:
    """Return grid value * scale, float32 (n, g).

    Args:
        family: Gives the grids.
        codes: uint8 (n, g), as stored.
        values: float32 (n,) group scales with the tensor scale in them.
        selectors: uint8 (n,).
    """
    flat = tables(family).decode.to(codes.device).flatten()
    index = codes.int() + (selectors.int() * LEVELS)[:, None]
    return flat[index] * values[:, None]


def pack_codes(codes: Tensor) -> Tensor:
    """Pack 4-bit codes (rows, n) two a byte, the even element in the low nibble; an odd row ends with a zero nibble."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_codes(packed: Tensor, n: int) -> Tensor:
    """Return the ``n`` 4-bit codes of each row of packed bytes."""
    return torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)[:, :n]
