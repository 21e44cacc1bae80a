"""Block scales: their formats, the selector bits inside them, the tensor's FP32 scale and its headroom."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2.families import SCALE_FORMATS, GridFamily, check_grid_count

_E4M3_TOP = 448.0
SMALLEST = 2.0**-100  # of a tensor's scale: 1 / t and (1 / t) / s stay finite in float32
_LARGEST_FACTOR = 3e38


class _Float(NamedTuple):
    """An unsigned float format: exponent bits, mantissa bits, exponent bias, codes at the top that are no numbers."""

    exponent: int
    mantissa: int
    bias: int
    reserved: int = 0


# E3M3 and E3M4 have bias 0, as the range of a scale is relative: only the tensor's scale sees it.
_FLOATS = {
    "e4m3": _Float(4, 3, 7, 1), "e4m3_side": _Float(4, 3, 7, 1), "e3m3": _Float(3, 3, 0), "e4m2": _Float(4, 2, 7),
    "e3m4": _Float(3, 4, 0),
}  # fmt: skip
_CAST_UNIT = {"e4m3": 1.0, "e4m3_side": 1.0, "e3m3": 2.0**7}


@dataclass(frozen=True)
class ScaleLayout:
    """How one group's scale and selector are stored.

    Attributes:
        name: The scale format.
        n_grids: Grids that the selector tells apart.
        width: Bits of the scale's storage: 8, 16 or 32.
        value_bits: Low bits of a byte that hold the scale's code; the rest holds selector bits. 0 for fp16 and fp32.
        inside: Selector bits inside the scale (the low bits of the selector).
        side: Selector bits beside it.
        values: Value of every code, ascending, the first 0; empty for fp16 and fp32.
        top: Largest value.
    """

    name: str
    n_grids: int
    width: int
    value_bits: int
    inside: int
    side: int
    values: tuple[float, ...]
    top: float

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the scales as stored."""
        return {8: torch.uint8, 16: torch.float16, 32: torch.float32}[self.width]

    @property
    def absolute(self) -> bool:
        """Whether the tensor scale is always 1: plain E8M0, whose byte is the OCP one."""
        return self.name == "e8m0" and self.value_bits == 8


def layout(scale_format: str, n_grids: int) -> ScaleLayout:
    """Return how ``scale_format`` stores a scale and a selector among ``n_grids`` grids.

    E4M3 lends its unused sign bit to one selector bit; more go to the side, and as "e4m3_side" all of them. E3M3 and
    E4M2 leave two bits of the byte to the selector. E8M0 gives its top bits after an offset of the tensor's exponent.
    fp16 and fp32 lend their sign.

    Raises:
        InputError: Unknown format.
    """
    if scale_format not in SCALE_FORMATS:
        raise InputError(f"scale must be one of {list(SCALE_FORMATS)}; got {scale_format!r}")
    return _layout(scale_format, n_grids)


@functools.lru_cache(maxsize=64)
def _layout(scale_format: str, n_grids: int) -> ScaleLayout:
    bits = (n_grids - 1).bit_length()
    if scale_format in ("fp16", "fp32"):
        inside, width = min(bits, 1), int(scale_format[2:])
        top = float(torch.finfo(torch.float16 if width == 16 else torch.float32).max)
        return ScaleLayout(scale_format, n_grids, width, 0, inside, bits - inside, (), top)
    if scale_format == "e8m0":
        value_bits = 8 - bits
        values = _e8m0_values(value_bits)
    else:
        form = _FLOATS[scale_format]
        value_bits = form.exponent + form.mantissa
        values = _float_values(form)
    inside = 0 if scale_format == "e4m3_side" else min(bits, 8 - value_bits)
    return ScaleLayout(scale_format, n_grids, 8, value_bits, inside, bits - inside, values, values[-1])


def _float_values(form: _Float) -> tuple[float, ...]:
    codes = range(2 ** (form.exponent + form.mantissa) - form.reserved)
    values = []
    for code in codes:
        exponent, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
        whole = (1 << form.mantissa) + fraction if exponent else fraction
        values.append(math.ldexp(whole, max(exponent, 1) - form.bias - form.mantissa))
    return tuple(values)


def _e8m0_values(bits: int) -> tuple[float, ...]:
    """Return 0 and powers of two: the OCP ones in eight bits (code 0 is given to 0), else those that end at 1."""
    top = 2**bits - 1
    last = 254 if bits == 8 else top  # 255 is the NaN of E8M0
    offset = 127 if bits == 8 else top
    return (0.0, *(math.ldexp(1.0, code - offset) for code in range(1, last + 1)))


def tensor_scale(
    family: GridFamily, form: ScaleLayout, low: float, high: float, cap: float, factors: tuple[float, ...]
) -> float:
    """Return the FP32 scale t of a tensor: no group saturates at any grid or factor.

    The largest scale of a group with factor 1 is mapped to ``cap`` (times top / 448), or lower where a larger factor
    needs the room: t = s_max * max(1 / cap, max(factors) / top). For NVFP4 that is amax / (6 * 448).

    Args:
        family: Gives rule, grids and unit.
        form: Layout of the group scales.
        low: Smallest value of the tensor, or 0.
        high: Largest value of the tensor, or 0.
        cap: E4M3 value of the largest scale.
        factors: Factors on a scale that will be tried.
    """
    if form.absolute:
        return 1.0
    low, high = min(low, 0.0), max(high, 0.0)
    if family.rule == "fit":
        largest = max(max(high / grid[-1], low / grid[0]) for grid in family.search_grids)
        over = 1.0
    else:
        largest, over = max(high, -low), family.unit
    if form.name in ("e8m0", "fp32"):
        # A power of two: it only moves the exponents, so that no scale is rounded twice.
        bound = largest * max(factors) / over
        scale = math.ldexp(1.0, math.frexp(bound)[1]) if bound else 1.0
    else:
        room = min(form.top * cap / _E4M3_TOP, form.top / max(factors))
        scale = largest / (over * room)
    return float(np.float32(max(scale, SMALLEST)))


def group_scales(family: GridFamily, form: ScaleLayout, low: Tensor, high: Tensor) -> Tensor:
    """Return the unrounded scales s0 of groups, (n, 1) under "absmax" and (n, grids) under "fit".

    Under the OCP floor rule it is max|x| itself: that rule subtracts exponents, and x / 6 * 6 may not be x.

    Args:
        family: Gives rule, grids and unit.
        form: Layout of the group scales.
        low: min(x, 0) of every group, (n,), float32.
        high: max(x, 0) of every group, (n,), float32.
    """
    if family.rule == "fit":
        grids = family.search_grids
        tops = torch.tensor([grid[-1] for grid in grids], dtype=torch.float32, device=low.device)
        ends = torch.tensor([grid[0] for grid in grids], dtype=torch.float32, device=low.device)
        return torch.maximum(high[:, None] / tops, low[:, None] / ends)
    absmax = torch.maximum(high, -low)[:, None]
    return absmax if family.unit == 1 or _floors(family, form) else absmax / torch.full_like(absmax[:1], family.unit)


def _floors(family: GridFamily, form: ScaleLayout) -> bool:
    return family.rule == "ocp" and form.name == "e8m0"


def round_scales(family: GridFamily, form: ScaleLayout, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Round scales relative to the tensor's to the format: (codes, values), both of the shape of ``ratios``.

    A positive scale never becomes 0 (it is raised to the smallest subnormal) and never overflows (it is lowered to the
    largest value), so that no group is wiped out or turns to NaN; 0 stays 0.

    Returns:
        Codes as uint8 and their values as float32; for fp16 and fp32 the codes are the values in that dtype.
    """
    if form.name == "fp32":
        return ratios, ratios
    if form.name == "fp16":
        kept = ratios.clamp(max=form.top).to(torch.float16)
        tiny = torch.tensor(2.0**-24, dtype=torch.float16, device=ratios.device)
        kept = torch.where((ratios > 0) & (kept == 0), tiny, kept)
        return kept, kept.float()
    if form.name in _CAST_UNIT:  # E3M3 is the lower half of E4M3's codes in another unit
        held = (ratios.clamp(max=form.top) / _CAST_UNIT[form.name]).to(torch.float8_e4m3fn).view(torch.uint8)
    elif form.name == "e8m0":
        held = _round_e8m0(family, form, ratios)
    else:
        held = torch.bucketize(ratios, _even_midpoints(form).to(ratios.device), out_int32=True).to(torch.uint8)
    codes = torch.maximum(held, (ratios > 0).to(torch.uint8))
    return codes, code_values(form, codes)


def neighbours(form: ScaleLayout, codes: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return the byte codes from ``window`` below to ``window`` above each, and their values, (n, k * (2 window + 1)).

    They stop at the smallest positive and the largest value; the code 0 has no neighbours.
    """
    offsets = torch.arange(-window, window + 1, device=codes.device)
    near = (codes[:, :, None].int() + offsets).clamp(1, len(form.values) - 1)
    kept = (near * (codes[:, :, None] > 0)).flatten(1).to(torch.uint8)
    return kept, code_values(form, kept)


def count_raised(form: ScaleLayout, ratios: Tensor) -> int:
    """Return how many rows of scales would all have been rounded to 0, so that ``round_scales`` raises them."""
    if form.name == "fp32":
        return 0
    below = ratios < (2.0**-24 if form.name == "fp16" else form.values[1]) / 2
    return int((below & (ratios > 0)).all(1).sum()) if bool(below.any()) else 0


def code_values(form: ScaleLayout, codes: Tensor) -> Tensor:
    """Return the float32 values of scale codes (selector bits removed)."""
    if form.name in _FLOATS:  # moved into a float32's place, then multiplied by the difference of the biases: exact
        kind = _FLOATS[form.name]
        return (codes.int() << (23 - kind.mantissa)).view(torch.float32) * 2.0 ** (127 - kind.bias)
    return torch.tensor(form.values, dtype=torch.float32, device=codes.device)[codes.int()]


def _even_midpoints(form: ScaleLayout) -> Tensor:
    """Return thresholds between neighbouring codes: x above one takes the next code; ties go to the even code."""
    values = np.array(form.values)
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)  # exact: one bit more than the mantissa
    below = np.nextafter(middle, np.float32(-np.inf))
    return torch.from_numpy(np.where(np.arange(1, len(values)) % 2 == 0, below, middle))


def _round_e8m0(family: GridFamily, form: ScaleLayout, ratios: Tensor) -> Tensor:
    """Return power-of-two codes: the OCP floor rule where the family asks for it, else the next power above."""
    mantissa, exponent = torch.frexp(ratios)
    if _floors(family, form):
        power = exponent - 1 - (math.frexp(family.unit)[1] - 1)
    else:
        power = exponent - (mantissa == 0.5).int()
    offset = 127 if form.absolute else 2**form.value_bits - 1
    return (power + offset).clamp(1, len(form.values) - 1).to(torch.uint8) * (ratios > 0)


def reciprocals(values: Tensor, scale: float) -> Tensor:
    """Return what x is multiplied with, (1 / t) / s in float32 as torchao and the hardware do.

    Where s is 0 it is only some large number: all x there are 0.
    """
    inverse = (1.0 / torch.tensor(scale, dtype=torch.float32, device=values.device)) / values
    return inverse.clamp_(max=_LARGEST_FACTOR)


def pack_scales(form: ScaleLayout, codes: Tensor, selectors: Tensor) -> tuple[Tensor, Tensor | None]:
    """Put selectors into the scales' free bits, and what does not fit into a packed side tensor.

    Args:
        form: The layout.
        codes: Scale codes, (rows, groups).
        selectors: uint8, (rows, groups).

    Returns:
        Scales as stored and the side bits (uint8, little-endian bits, row by row) or None.
    """
    inner = selectors & ((1 << form.inside) - 1)
    if form.width == 8:
        stored = codes | (inner << form.value_bits) if form.inside else codes
    else:
        stored = torch.copysign(codes, 1 - 2 * inner.to(codes.dtype))
    if not form.side:
        return stored, None
    outer = (selectors >> form.inside).flatten().cpu().numpy()
    bits = (outer[:, None] >> np.arange(form.side, dtype=np.uint8)) & 1
    return stored, torch.from_numpy(np.packbits(bits.reshape(-1), bitorder="little")).to(selectors.device)


def unpack_scales(form: ScaleLayout, stored: Tensor, side: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the scales' values (float32, tensor scale not included) and the selectors (uint8)."""
    if form.width == 8:
        mask = (1 << form.value_bits) - 1
        inner = stored >> form.value_bits if form.inside else torch.zeros_like(stored)
        values = code_values(form, stored & mask if mask < 255 else stored)
    else:
        inner, values = torch.signbit(stored).to(torch.uint8), stored.abs().float()
    if side is None:
        return values, inner
    bits = np.unpackbits(side.cpu().numpy(), count=stored.numel() * form.side, bitorder="little")
    outer = (bits.reshape(-1, form.side) << np.arange(form.side, dtype=np.uint8)).sum(1).astype(np.uint8)
    return values, inner | (torch.from_numpy(outer).to(stored.device).reshape(stored.shape) << form.inside)


def side_bytes(form: ScaleLayout, groups: int) -> int:
    """Return the bytes of side bits that ``groups`` groups need."""
    return -(-groups * form.side // 8)


def resolve(family: GridFamily, scale_format: str | None) -> ScaleLayout:
    """Return the layout of a family's scales, in its own format or another.

    Raises:
        InputError: Unknown format, or more grids than a byte can tell apart.
    """
    form = layout(family.scale_format if scale_format is None else scale_format, family.n_grids)
    check_grid_count(family, form.name)
    return form
