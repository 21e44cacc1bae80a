"""Quantise tensors group by group onto the best of several 4-bit grids, and hold the packed result."""

from __future__ import annotations

import functools
import importlib
import json
import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.core import Encoded, Plan
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.scales import ScaleLayout

FORMAT_VERSION = "1"
_BLOCK = 1 << 19  # elements encoded at a time: bounds the memory beside the input
_LARGEST = torch.finfo(torch.float32).max / 4  # a rounded scale may lift the largest value by some percent
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A tensor in 4-bit codes with a scale and a selector per group.

    ``axis`` is moved last, everything else is flattened to rows, and rows are zero-padded to whole groups.

    Attributes:
        codes: uint8 (rows, ceil(groups * group_size / 2)): two codes a byte, the even element in the low nibble.
        scales: uint8 (rows, groups) with selector bits inside; float16 or float32 for "fp16" and "fp32".
        tensor_scale: The FP32 scale t of the tensor.
        family: The grids.
        group_size: Elements that share a scale.
        scale_format: Format of ``scales``.
        shape: Shape of the original.
        axis: Axis along which groups run, 0 <= axis < len(shape).
        side: Packed selector bits that do not fit into ``scales``, uint8 (bytes,), or None.
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: float
    family: GridFamily
    group_size: int
    scale_format: str
    shape: tuple[int, ...]
    axis: int
    side: Tensor | None = None

    def __repr__(self) -> str:
        form = f"{self.family.name}, group_size={self.group_size}, scale={self.scale_format}"
        return f"QuantizedTensor(shape={self.shape}, {form}, bits_per_weight={self.bits_per_weight:g})"

    @property
    def layout(self) -> ScaleLayout:
        """How scale and selector are stored."""
        return scales.resolve(self.family, self.scale_format)

    @property
    def groups(self) -> int:
        """Groups a row."""
        return -(-self.shape[self.axis] // self.group_size)

    @property
    def grids(self) -> Tensor:
        """Grid values by selector and code, float32 (m, 16); short grids are filled with their last value."""
        return core.tables(self.family).decode.to(self.codes.device, copy=True)

    def group_scales(self) -> Tensor:
        """Return the scale of every group with the tensor scale in it, float32 (rows, groups)."""
        return scales.unpack_scales(self.layout, self.scales, self.side)[0] * self.tensor_scale

    def selectors(self) -> Tensor:
        """Return the grid that every group chose, uint8 (rows, groups)."""
        return scales.unpack_scales(self.layout, self.scales, self.side)[1]

    def unpacked_codes(self) -> Tensor:
        """Return the codes one a byte, uint8 (rows, groups * group_size)."""
        return core.unpack_codes(self.codes, self.groups * self.group_size)

    def selector_histogram(self) -> Tensor:
        """Return how many groups chose each grid, int64 (m,)."""
        return torch.bincount(self.selectors().flatten().long(), minlength=self.family.n_grids)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values in the original shape."""
        return dequantize(self, dtype)

    @property
    def exact_bits_per_weight(self) -> Fraction:
        """Nominal bits a weight, 4 + (scale bits + side bits) / g; tensor scale, padding and grids are not in it."""
        return 4 + Fraction(self.layout.width + self.layout.side, self.group_size)

    @property
    def bits_per_weight(self) -> float:
        """``exact_bits_per_weight`` as a float: what formats are compared by."""
        return float(self.exact_bits_per_weight)

    @property
    def stored_bytes(self) -> int:
        """Bytes held: codes, scales, side bits and the FP32 tensor scale."""
        held = [self.codes, self.scales] + ([] if self.side is None else [self.side])
        return sum(part.numel() * part.element_size() for part in held) + 4

    @property
    def stored_bits_per_weight(self) -> float:
        """Bits really stored over the number of elements of the original."""
        return 8 * self.stored_bytes / math.prod(self.shape)

    def mse(self, t: Tensor) -> float:
        """Return the mean squared difference to ``t``, in float64.

        Raises:
            InputError: ``t`` has another shape.
        """
        if tuple(t.shape) != self.shape:
            raise InputError(f"t must have the shape {self.shape} of what was quantised; got {tuple(t.shape)}")
        return float((t.detach().double() - self.dequantize(torch.float32).double()).square().mean())

    def relative_mse(self, t: Tensor) -> float:
        """Return ||t - q||^2 / ||t||^2 (0 where both are 0)."""
        power = float(t.detach().double().square().mean())
        error = self.mse(t)
        return error / power if power else (0.0 if error == 0 else math.inf)

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the parts as named tensors and the rest as text, for safetensors."""
        tensors = {
            "codes": self.codes,
            "scales": self.scales,
            "tensor_scale": torch.tensor([self.tensor_scale], dtype=torch.float32, device=self.codes.device),
        }
        if self.side is not None:
            tensors["side"] = self.side
        text = {
            "version": FORMAT_VERSION,
            "family": self.family.to_json(),
            "group_size": str(self.group_size),
            "scale_format": self.scale_format,
            "shape": json.dumps(list(self.shape)),
            "axis": str(self.axis),
        }
        return tensors, text

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], metadata: dict[str, str]) -> QuantizedTensor:
        """Put the parts of ``to_tensors`` together again; they may come from a hostile file.

        Raises:
            InputError: A part is missing, has another version, shape or dtype than it must, or an impossible value.
        """
        family, size, scale_format, shape, axis = _read_metadata(metadata)
        form = core.plan(family, size, scale_format, "none").form
        scale = _part(tensors, "tensor_scale", torch.float32, (1,))
        value = float(scale[0])
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"tensor_scale of a quantised tensor must be positive and finite; got {value}")
        groups = -(-shape[axis] // size)
        rows = math.prod(shape) // shape[axis]
        stored = _part(tensors, "scales", form.dtype, (rows, groups))
        if not form.side and "side" in tensors:
            raise InputError(f"The part 'side' has no place in a quantised tensor of {family.name!r}, {scale_format}")
        side = _part(tensors, "side", torch.uint8, (scales.side_bytes(form, rows * groups),)) if form.side else None
        codes = _part(tensors, "codes", torch.uint8, (rows, (groups * size + 1) // 2))
        whole = cls(codes, stored, value, family, size, scale_format, shape, axis, side)
        _check_values(whole)
        return whole


def _read_metadata(metadata: dict[str, str]) -> tuple[GridFamily, int, str, tuple[int, ...], int]:
    if not all(isinstance(text, str) for text in metadata.values()):
        raise InputError("The metadata of a quantised tensor must be text throughout, as to_tensors() writes it")
    if metadata.get("version") != FORMAT_VERSION:
        raise InputError(
            f"A quantised tensor of format {metadata.get('version')!r}; this reads format {FORMAT_VERSION}"
        )
    try:
        family = GridFamily.from_json(metadata["family"])
        size, axis = int(metadata["group_size"]), int(metadata["axis"])
        shape = tuple(json.loads(metadata["shape"]))
        scale_format = metadata["scale_format"]
    except InputError:
        raise
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"The metadata of a quantised tensor cannot be read: {error!r}") from None
    whole = all(isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in shape)
    if not shape or not whole or not 0 <= axis < len(shape) or math.prod(shape) >= 2**62:
        raise InputError(f"The metadata of a quantised tensor names no usable shape and axis: {shape}, {axis}")
    return family, size, scale_format, shape, axis


def _part(tensors: dict[str, Tensor], name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    part = tensors.get(name)
    if not isinstance(part, Tensor):
        raise InputError(f"The part {name!r} of a quantised tensor is missing")
    if part.dtype != dtype or tuple(part.shape) != shape:
        raise InputError(
            f"The part {name!r} of a quantised tensor must be {dtype} of shape {shape}; "
            f"got {part.dtype} of shape {tuple(part.shape)}"
        )
    if part.is_meta:
        raise InputError(f"The part {name!r} of a quantised tensor lies on the meta device and holds no values")
    return part.contiguous()


def _check_values(q: QuantizedTensor) -> None:
    """Refuse scale bytes and selectors that stand for nothing."""
    form = q.layout
    if form.width == 8:
        value_codes = q.scales & ((1 << form.value_bits) - 1) if form.value_bits < 8 else q.scales
        unused = q.scales >> (form.value_bits + form.inside) if form.value_bits + form.inside < 8 else q.scales[:0]
        if int(value_codes.max()) >= len(form.values) or bool(unused.any()):
            raise InputError("The part 'scales' of a quantised tensor holds a byte that is no scale")
    elif not bool(q.scales.isfinite().all()):
        raise InputError("The part 'scales' of a quantised tensor holds NaN or infinity")
    if int(q.selectors().max()) >= q.family.n_grids:
        raise InputError(f"A selector of a quantised tensor names a grid that {q.family.name!r} does not have")


def entropy(histogram: Tensor) -> float:
    """Return the entropy of counts in bits: 0 where one grid takes every group."""
    share = histogram.double() / histogram.sum()
    return float(-(share * share.clamp(min=1e-300).log2()).sum()) + 0.0


def quantize(
    t: Tensor,
    family: str | GridFamily = "mpo2",
    group_size: int | None = None,
    scale: str | None = None,
    search: str = "none",
    axis: int = -1,
    importance: Tensor | None = None,
    like: QuantizedTensor | None = None,
) -> QuantizedTensor:
    """Quantise to 4-bit codes; every group takes the grid and the scale factor of least squared error.

    Args:
        t: Floating tensor with at least one dimension; detached. Computed in float32.
        family: Name or family of grids.
        group_size: Elements that share a scale; None takes the family's (16, MXFP4 32).
        scale: "e4m3", "e3m3", "e4m2", "e3m4", "e8m0", "fp16" or "fp32"; None takes the family's. "e4m3_side" keeps
            the selector out of the bytes, which kernels for plain E4M3 then can read.
        search: "none" (the family's own factors), "4o6" (factors 1 and 1.5), "sweep" (15 factors .72 ... 1.5) or
            "window" (the nine nearest codes of a byte scale).
        axis: Axis along which groups run: the contraction axis of a weight.
        importance: Weights >= 0 of the squared errors along ``axis``, shape (t.shape[axis],), or None.
        like: Take the FP32 tensor scale of this one instead of a fresh one. Values that came out of ``like`` are then
            given back exactly if scales are e4m3 or e3m3, no search is made and no group scale is subnormal (E4M3:
            below 2^-15 of the largest, E3M3: below 1 / 120); with other scales they may move once more.

    Raises:
        InputError: NaN or infinity in ``t``, an empty or 0-d tensor, an unknown name or an option out of range.
    """
    options = core.plan(find_family(family), group_size, scale, search)
    _check_tensor(t, axis)
    if like is not None and not isinstance(like, QuantizedTensor):
        raise InputError(f"like must be a QuantizedTensor or None; got {type(like).__name__}")
    if like is not None and like.scale_format != options.form.name:
        raise InputError(f"like holds {like.scale_format!r} scales, but scale is {options.form.name!r}; use the same")
    return _quantize(t, options, axis % t.ndim, importance, None if like is None else like.tensor_scale)


def _quantize(
    t: Tensor, options: Plan, axis: int, importance: Tensor | None, tensor_scale: float | None
) -> QuantizedTensor:
    rows = t.detach().movedim(axis, -1).reshape(-1, t.shape[axis])
    t_scale = _tensor_scale(options, rows, tensor_scale)
    weights = _importance(importance, rows.shape[1], options.group_size, rows.device)
    parts, raised = [], 0
    for block in _blocks(rows):
        part, small = _encode(options, block, t_scale, weights)
        raised += small
        parts.append((_pack(part.codes.reshape(len(block), -1)), part.scale_codes, part.selectors))
    _warn_of_raised(raised, options.form.name)
    packed, scale_codes, selectors = (torch.cat(part) for part in zip(*parts, strict=True))
    return _assemble(options, packed, scale_codes, selectors, t_scale, tuple(t.shape), axis)


def from_codes(
    options: Plan, codes: Tensor, scale_codes: Tensor, selectors: Tensor, t_scale: float, shape: tuple[int, ...],
    axis: int = -1,
) -> QuantizedTensor:  # fmt: skip
    """Pack codes that were chosen elsewhere (GPTQ chooses them column by column).

    Args:
        options: The plan they were made with (``core.plan``).
        codes: uint8, rows * groups * group_size of them in row order, any shape; the padding's included.
        scale_codes: One a group (``core.Encoded``).
        selectors: uint8, one a group.
        t_scale: Tensor scale.
        shape: Shape of the original.
        axis: Axis along which groups run.
    """
    packed = _pack(codes.reshape(math.prod(shape) // shape[axis], -1))
    return _assemble(options, packed, scale_codes, selectors, t_scale, shape, axis % len(shape))


def _assemble(
    options: Plan, packed: Tensor, scale_codes: Tensor, selectors: Tensor, t_scale: float, shape: tuple[int, ...],
    axis: int,
) -> QuantizedTensor:  # fmt: skip
    rows = len(packed)
    stored, side = scales.pack_scales(options.form, scale_codes.reshape(rows, -1), selectors.reshape(rows, -1))
    return QuantizedTensor(
        packed, stored, t_scale, options.family, options.group_size, options.form.name, shape, axis, side
    )


def dequantize(q: QuantizedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return grid value * group scale in the original shape, computed in float32.

    Raises:
        InputError: ``q`` is no QuantizedTensor, or ``dtype`` no floating dtype.
    """
    if not isinstance(q, QuantizedTensor):
        raise InputError(f"dequantize takes a QuantizedTensor, as quantize returns it; got {type(q).__name__}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype must be a floating torch.dtype; got {dtype!r}")
    form, fast = q.layout, _fast(q.codes.device)
    if fast is not None and form.width == 8 and not form.side and q.group_size % 2 == 0:
        padded = fast.unpack(q.codes.contiguous(), q.scales.contiguous(), _byte_table(q), None, q.group_size)
        return _restore(padded[:, : q.shape[q.axis]], q.shape, q.axis).to(dtype)
    values, selectors = scales.unpack_scales(form, q.scales, q.side)
    values = values * q.tensor_scale
    if fast is not None and q.group_size % 2 == 0:
        table = core.tables(q.family).decode
        padded = fast.unpack(q.codes.contiguous(), selectors.contiguous(), table, values, q.group_size)
    else:
        codes = q.unpacked_codes().reshape(-1, q.group_size)
        flat = core.decode(q.family, codes, values.flatten(), selectors.flatten())
        padded = flat.reshape(len(q.codes), -1)
    return _restore(padded[:, : q.shape[q.axis]], q.shape, q.axis).to(dtype)


def _byte_table(q: QuantizedTensor) -> Tensor:
    """Return the value of every (scale byte, code), float32 (256, 16)."""
    levels, values = _byte_parts(q.family, q.layout)
    return levels * (values * q.tensor_scale)[:, None]


@functools.lru_cache(maxsize=256)
def _byte_parts(family: GridFamily, form: ScaleLayout) -> tuple[Tensor, Tensor]:
    """Return the grid (256, 16) and the scale (256,) that each byte stands for; bytes that are no scale get 0."""
    every, mask = torch.arange(256, dtype=torch.uint8, device="cpu"), (1 << form.value_bits) - 1
    real = (every & mask if mask < 255 else every).int() < len(form.values)
    values, selectors = scales.unpack_scales(form, torch.where(real, every, 0), None)
    return core.tables(family).decode[selectors.clamp(max=family.n_grids - 1).int()], values


def fake_quantize(
    t: Tensor,
    family: str | GridFamily = "mpo2",
    group_size: int | None = None,
    scale: str | None = None,
    search: str = "none",
    tensor_scale: float | None = None,
    axis: int = -1,
    importance: Tensor | None = None,
) -> Tensor:
    """Quantise and dequantise at once, in the dtype of ``t`` and without gradient: ``quantize(t).dequantize()``.

    Args:
        t: As in ``quantize``.
        family: As in ``quantize``.
        group_size: As in ``quantize``.
        scale: As in ``quantize``.
        search: As in ``quantize``.
        tensor_scale: FP32 scale of the tensor, e.g. from a running amax; None computes it from ``t``.
        axis: As in ``quantize``.
        importance: As in ``quantize``.

    Raises:
        InputError: As in ``quantize``; a tensor scale that is not positive.
    """
    options = core.plan(find_family(family), group_size, scale, search)
    _check_tensor(t, axis)
    return _quantize(t, options, axis % t.ndim, importance, tensor_scale).dequantize(t.dtype)


def _is_dense(t: Any) -> bool:
    """Say whether ``t`` is a tensor that holds its values, one after the other."""
    return isinstance(t, Tensor) and t.layout == torch.strided and not t.is_nested and not t.is_meta


def _check_tensor(t: Any, axis: Any) -> None:
    if isinstance(t, Tensor) and t.is_meta:
        raise InputError("t lies on the meta device and holds no values; load it first")
    if not _is_dense(t) or t.dtype not in _DTYPES:
        nested = isinstance(t, Tensor) and t.is_nested
        kind = f"{t.dtype}, {'nested' if nested else t.layout}" if isinstance(t, Tensor) else type(t).__name__
        raise InputError(f"t must be a dense tensor of one of {[str(dtype) for dtype in _DTYPES]}; got {kind}")
    if t.ndim == 0 or t.numel() == 0:
        raise InputError(f"t must have at least one dimension and one element; got shape {tuple(t.shape)}")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -t.ndim <= axis < t.ndim:
        raise InputError(f"axis must be an integer in [{-t.ndim}, {t.ndim}); got {axis!r}")


def _tensor_scale(options: Plan, rows: Tensor, given: float | None) -> float:
    """Return t, fresh or given, after a look at the extremes: NaN, infinity and overflow show there."""
    low, high = (float(value) for value in torch.aminmax(rows))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError("t must be finite, but it holds NaN or infinity; mask or clip it first")
    if max(high, -low) > _LARGEST:
        raise InputError(f"t holds values beyond {_LARGEST:.1e}, the range of float32 with room to round; rescale it")
    if given is None:
        return scales.tensor_scale(options.family, options.form, low, high, options.cap, options.factors)
    if not isinstance(given, int | float) or not (math.isfinite(given) and given >= scales.SMALLEST):
        raise InputError(f"tensor_scale must be finite and at least 2^-100; got {given!r}")
    return float(np.float32(given))


def _importance(importance: Tensor | None, cols: int, size: int, device: torch.device) -> Tensor | None:
    """Return weights for whole groups, float32 (groups, g): padding counts nothing; None where all count the same."""
    padding = -cols % size
    if importance is None and not padding:
        return None
    ones = torch.ones(cols, dtype=torch.float64, device="cpu")
    weights = ones if importance is None else _checked_importance(importance, cols)
    weights, counted = (torch.nn.functional.pad(part, (0, padding)).reshape(-1, size) for part in (weights, ones))
    return core.balanced(weights, counted).to(device)


def _checked_importance(importance: Any, cols: int) -> Tensor:
    if not _is_dense(importance) or tuple(importance.shape) != (cols,) or importance.is_complex():
        raise InputError(f"importance must be a tensor of shape ({cols},), one weight per element along axis")
    weights: Tensor = importance.detach().to("cpu", torch.float64)
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()):
        raise InputError("importance must be finite and >= 0")
    return weights


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut rows into blocks of about ``_BLOCK`` elements, whole rows each."""
    return torch.split(rows, max(1, _BLOCK // rows.shape[1]))


@functools.cache
def compiled_path(name: str) -> ModuleType | None:
    """Return the module ``name`` of kernels, or None where numba is not installed or told not to compile."""
    try:
        numba: Any = importlib.import_module("numba")
        return None if numba.config.DISABLE_JIT else importlib.import_module(f"steelyard.quant.po2.{name}")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None


def _kernels() -> ModuleType | None:
    return compiled_path("kernels")


def _fast(device: torch.device) -> ModuleType | None:
    return _kernels() if device.type == "cpu" else None


def _pack(codes: Tensor) -> Tensor:
    fast = _fast(codes.device)
    return core.pack_codes(codes) if fast is None or codes.shape[1] % 2 else fast.pack_codes(codes)


def _encode(options: Plan, block: Tensor, t_scale: float, weights: Tensor | None) -> tuple[Encoded, int]:
    """Encode some rows; return also how many groups had to be given a larger scale than theirs."""
    engine = _fast(block.device) or core
    padding = -block.shape[1] % options.group_size
    whole = torch.nn.functional.pad(block.float(), (0, padding)) if padding else block.float()
    groups = whole.reshape(-1, options.group_size)
    low, high = engine.extrema(groups)
    tried = core.trials(options, low, high, t_scale)
    return core.finish(options, engine.search(options, groups, tried, weights), tried), tried.raised


def _warn_of_raised(raised: int, name: str) -> None:
    if raised:
        warnings.warn(
            f"{raised} groups are so small beside the tensor's largest value that their scale was raised to the "
            f"smallest of {name}: an outlier sets the tensor's scale; clip it or take scale='fp32'",
            RuntimeWarning,
            stacklevel=4,
        )


def _restore(rows: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Undo the flattening: rows (rows, cols) to the original shape."""
    moved = [length for place, length in enumerate(shape) if place != axis]
    return rows.reshape(*moved, shape[axis]).movedim(-1, axis).contiguous()
