"""The numba path: same codes as ``core`` bit for bit, an order of magnitude faster on a CPU.

Every element is compared with all fifteen thresholds of a grid, sixteen elements at a time in vector registers. That
outruns a look-up table with one compare per element (measured for 2048 x 2048 and one grid: 1.8 ms against 6 to 8 ms)
and is exact for any grid, however close its values. The vectors are written down as LLVM IR because LLVM's own
vectoriser finds them in some surroundings and not in others; they run on any processor. One instruction is AVX-512's:
the table look-up of ``_unpack``, which has a plain loop beside it.

Float operations are not re-ordered or fused, so that sums equal the torch path's.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.quant.po2 import core
from steelyard.quant.po2.core import Found, Plan, Trials
from steelyard.quant.po2.families import GridFamily

numba: Any = importlib.import_module("numba")
_extending: Any = importlib.import_module("numba.extending")
_cgutils: Any = importlib.import_module("numba.core.cgutils")
_ir: Any = importlib.import_module("llvmlite.ir")
_registry: Any = importlib.import_module("numba.core.registry")

_ZERO = np.float32(0)
_FLOAT, _BYTE, _INT = _ir.FloatType(), _ir.IntType(8), _ir.IntType(32)
_FLOATS, _BYTES, _INTS = (_ir.VectorType(kind, core.LANES) for kind in (_FLOAT, _BYTE, _INT))


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use and keep the machine code on disk; where no folder can be written, only in memory."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to cache in
        return numba.njit(**options)(function)


@functools.cache
def has_permute() -> bool:
    """Whether numba compiles for a processor with AVX-512.

    Its own list of features is asked, not the processor: numba may be told to leave AVX or more out
    (``NUMBA_ENABLE_AVX``, ``NUMBA_CPU_NAME``, ``NUMBA_CPU_FEATURES``), and LLVM ends the process where an instruction
    is not among them.
    """
    features: str = _registry.cpu_target.target_context.codegen().magic_tuple()[2]
    return "+avx512f" in features.split(",")


# Vectors of sixteen. Each function takes the builder ``b`` and pointers or values of LLVM.


def _integers(values: Sequence[int]) -> Any:
    return _ir.Constant(_ir.VectorType(_INT, len(values)), list(values))


def _load(b: Any, pointer: Any, kind: Any, align: int) -> Any:
    return b.load(b.bitcast(pointer, kind.as_pointer()), align=align)


def _spread_scalar(b: Any, scalar: Any) -> Any:
    nothing = _ir.Constant(_FLOATS, _ir.Undefined)
    first = b.insert_element(nothing, scalar, _ir.Constant(_INT, 0))
    return b.shuffle_vector(first, nothing, _integers([0] * core.LANES))


def _entry(b: Any, array: Any, k: int) -> Any:
    return _spread_scalar(b, b.load(b.gep(array, [_ir.Constant(_INT, k)])))


def _above(b: Any, u: Any, midpoints: Any) -> list[Any]:
    """Return fifteen masks: u > threshold."""
    return [b.fcmp_ordered(">", u, _entry(b, midpoints, k)) for k in range(core.LANES - 1)]


def _folded(b: Any, lanes: Any) -> Any:
    """Return the sum of sixteen lanes, folded in halves."""
    n = core.LANES
    while n > 1:
        n //= 2
        nothing = _ir.Constant(lanes.type, _ir.Undefined)
        halves = [b.shuffle_vector(lanes, nothing, _integers(range(first, first + n))) for first in (0, n)]
        lanes = b.fadd(*halves)
    return b.extract_element(lanes, _ir.Constant(_INT, 0))


def _data(context: Any, b: Any, kinds: Any, args: Any, *places: int) -> list[Any]:
    """Return pointers to the first elements of arrays that must be contiguous."""
    if any(kinds[place].layout != "C" for place in places):
        raise TypeError("vectors are loaded from contiguous arrays only")
    return [context.make_array(kinds[place])(context, b, args[place]).data for place in places]


def _square_sum_ir(context: Any, b: Any, signature: Any, args: Any) -> Any:
    kinds = signature.args
    x, midpoints, values = _data(context, b, kinds, args, 0, 2, 3)
    u = b.fmul(_load(b, x, _FLOATS, 4), _spread_scalar(b, args[1]))
    nearest = _entry(b, values, 0)
    for k, above in enumerate(_above(b, u, midpoints)):
        nearest = b.select(above, _entry(b, values, k + 1), nearest)
    difference = b.fsub(u, nearest)
    square = b.fmul(difference, difference)
    if len(args) == 5:
        (importance,) = _data(context, b, kinds, args, 4)
        square = b.fmul(square, _load(b, importance, _FLOATS, 4))
    return _folded(b, square)


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _square_sum(typing: Any, x: Any, factor: Any, midpoints: Any, values: Any) -> Any:
    """Sum of (u - nearest value)^2 over sixteen elements, u = x * factor."""
    return numba.float32(x, factor, midpoints, values), _square_sum_ir


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _weighted_square_sum(typing: Any, x: Any, factor: Any, midpoints: Any, values: Any, importance: Any) -> Any:
    """The same sum with a weight on every square."""
    return numba.float32(x, factor, midpoints, values, importance), _square_sum_ir


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _write_codes(typing: Any, x: Any, factor: Any, midpoints: Any, codes: Any) -> Any:
    """Write the codes of sixteen elements: how many thresholds lie below x * factor."""

    def build(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, thresholds, target = _data(context, b, signature.args, args, 0, 2, 3)
        u = b.fmul(_load(b, source, _FLOATS, 4), _spread_scalar(b, args[1]))
        count = _integers([0] * core.LANES)
        for above in _above(b, u, thresholds):
            count = b.sub(count, b.sext(above, _INTS))
        b.store(b.trunc(count, _BYTES), b.bitcast(target, _BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return numba.void(x, factor, midpoints, codes), build


def _write_values_ir(context: Any, b: Any, signature: Any, args: Any) -> Any:
    source, values, target = _data(context, b, signature.args, args, 0, 1, 2)
    half = _ir.VectorType(_BYTE, core.LANES // 2)
    pairs = _load(b, source, half, 1)
    doubled = b.shuffle_vector(pairs, _ir.Constant(half, _ir.Undefined), _integers([j // 2 for j in range(16)]))
    codes = b.and_(b.lshr(b.zext(doubled, _INTS), _integers([0, 4] * 8)), _integers([15] * 16))
    kind = _ir.FunctionType(_FLOATS, [_FLOATS, _INTS])
    permute = _cgutils.get_or_insert_function(b.module, kind, "llvm.x86.avx512.permvar.sf.512")
    found = b.call(permute, [_load(b, values, _FLOATS, 4), codes])
    if len(args) == 4:
        found = b.fmul(found, _spread_scalar(b, args[3]))
    b.store(found, b.bitcast(target, _FLOATS.as_pointer()), align=4)
    return context.get_dummy_value()


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _write_values(typing: Any, packed: Any, table: Any, out: Any) -> Any:
    """Write the sixteen values of eight packed bytes by AVX-512's permutation of a table of sixteen."""
    return numba.void(packed, table, out), _write_values_ir


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _write_scaled(typing: Any, packed: Any, table: Any, out: Any, scale: Any) -> Any:
    """Write the same values times a scale."""
    return numba.void(packed, table, out, scale), _write_values_ir


@compiled
def _extrema(chunks: Any, low: Any, high: Any) -> None:
    for i in range(chunks.shape[0]):
        least, most = _ZERO, _ZERO
        for j in range(16):
            least = min(least, chunks[i, j])
            most = max(most, chunks[i, j])
        low[i], high[i] = least, most


@compiled
def _errors(chunks: Any, factors: Any, midpoints: Any, values: Any, errors: Any) -> None:
    """Write the sum of squares of every sixteen elements.

    Args:
        chunks: float32 (n, 16).
        factors: float32 (n,), what x is multiplied with.
        midpoints: float32 (15,).
        values: float32 (16,).
        errors: float32 (n,), written.
    """
    for i in range(chunks.shape[0]):
        errors[i] = _square_sum(chunks[i], factors[i], midpoints, values)


@compiled
def _weighted_errors(chunks: Any, factors: Any, midpoints: Any, values: Any, importance: Any, errors: Any) -> None:
    """Write the weighted sums of squares; importance is float32 (k, 16) and serves the chunks in turn."""
    for i in range(chunks.shape[0]):
        weights = importance[i % importance.shape[0]]
        errors[i] = _weighted_square_sum(chunks[i], factors[i], midpoints, values, weights)


@compiled
def _keep_better(errors: Any, weights: Any, grid: Any, column: Any, best: Any, grids: Any, columns: Any) -> None:
    """Let a (grid, column) take the groups in which its error is strictly below the least so far."""
    for i in range(errors.shape[0]):
        error = errors[i] * (weights[i] * weights[i])
        if error < best[i]:
            best[i], grids[i], columns[i] = error, grid, column


@compiled
def _encode(chunks: Any, factors: Any, midpoints: Any, grids: Any, codes: Any) -> None:
    """Write the codes of every chunk under its grid."""
    for i in range(chunks.shape[0]):
        _write_codes(chunks[i], factors[i], midpoints[grids[i]], codes[i])


@compiled
def _pack(codes: Any, packed: Any) -> None:
    for k in range(packed.size):
        packed[k] = codes[2 * k] | (codes[2 * k + 1] << np.uint8(4))


@compiled
def _unpack_permuted(packed: Any, rows: Any, per: Any, table: Any, out: Any) -> None:
    """Write table[row of the group, nibble] in chunks of eight bytes, ``per`` chunks a group."""
    for i in range(rows.shape[0]):
        row = table[rows[i]]
        for c in range(i * per, (i + 1) * per):
            _write_values(packed[c], row, out[c])


@compiled
def _unpack_permuted_scaled(packed: Any, rows: Any, per: Any, table: Any, scales: Any, out: Any) -> None:
    """Write table[row of the group, nibble] * scale in the same way."""
    for i in range(rows.shape[0]):
        row, scale = table[rows[i]], scales[i]
        for c in range(i * per, (i + 1) * per):
            _write_scaled(packed[c], row, out[c], scale)


@compiled
def _unpack(packed: Any, rows: Any, table: Any, out: Any) -> None:
    """Write table[row of the group, nibble] for two nibbles a byte; a row of ``packed`` is a group."""
    low, four = np.uint8(15), np.uint8(4)
    for i in range(packed.shape[0]):
        row, source, target = table[rows[i]], packed[i], out[i]
        for j in range(packed.shape[1]):
            target[2 * j] = row[source[j] & low]
            target[2 * j + 1] = row[source[j] >> four]


def extrema(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return min(x, 0) and max(x, 0) of every group, float32 (n,); see ``core.extrema``."""
    chunks = _chunks(groups)
    extremes = np.empty((2, len(chunks)), np.float32)
    _extrema(chunks.numpy(), *extremes)
    low, high = torch.from_numpy(extremes)
    if len(chunks) == len(groups):
        return low, high
    return low.reshape(len(groups), -1).amin(1), high.reshape(len(groups), -1).amax(1)


def _chunks(groups: Tensor) -> Tensor:
    """Return groups (n, g) as rows of sixteen, zero-padded where g is no multiple of it."""
    padding = -groups.shape[1] % core.LANES
    if padding:
        groups = torch.nn.functional.pad(groups, (0, padding))
    return groups.reshape(-1, core.LANES).contiguous()  # a strided view of one row may come out of reshape


def search(options: Plan, groups: Tensor, tried: Trials, importance: Tensor | None) -> Found:
    """Return what ``core.search`` returns."""
    if options.family.criterion != "mse":
        return core.search(options, groups, tried, importance)
    chunks = _chunks(groups)
    grids, columns = np.zeros(len(groups), np.uint8), np.zeros(len(groups), np.int64)
    if len(core.pair_columns(options, tried)) > 1:
        if importance is None and chunks.numel() > groups.numel():  # padding counts nothing
            importance = torch.ones_like(groups[:1])
        weights = None if importance is None else _chunks(importance).numpy()
        _choose(options, chunks.numpy(), tried, weights, grids, columns)
    factors = core.chosen(tried.factors, torch.from_numpy(columns)).numpy()
    per, codes = len(chunks) // len(groups), torch.empty_like(chunks, dtype=torch.uint8)
    midpoints, _ = _arrays(options.family)
    _encode(chunks.numpy(), _spread(factors, per), midpoints, _spread(grids, per), codes.numpy())
    kept = codes.reshape(len(groups), -1)[:, : groups.shape[1]]
    return Found(kept, torch.from_numpy(grids), torch.from_numpy(columns))


def _spread(of_groups: Any, per: int) -> Any:
    """Return a value per chunk from a value per group."""
    return np.repeat(of_groups, per) if per > 1 else np.ascontiguousarray(of_groups)


def _choose(options: Plan, chunks: Any, tried: Trials, importance: Any, grids: Any, columns: Any) -> None:
    """Write the grid and column of least error of every group."""
    midpoints, values = _arrays(options.family)
    factors, weights = (part.T.contiguous().numpy() for part in (tried.factors, tried.weights))
    per = len(chunks) // len(grids)
    parts, best = np.empty(len(chunks), np.float32), np.full(len(grids), np.inf, np.float32)
    for grid, column in core.pair_columns(options, tried):
        spread = _spread(factors[column], per)
        if importance is None:
            _errors(chunks, spread, midpoints[grid], values[grid], parts)
        else:
            _weighted_errors(chunks, spread, midpoints[grid], values[grid], importance, parts)
        errors = parts.reshape(-1, per)
        total = errors[:, 0]
        for chunk in range(1, per):
            total = total + errors[:, chunk]
        _keep_better(np.ascontiguousarray(total), weights[column], grid, column, best, grids, columns)


def pack_codes(codes: Tensor) -> Tensor:
    """Pack 4-bit codes (rows, n), n even, two a byte; see ``core.pack_codes``."""
    packed = torch.empty((codes.shape[0], codes.shape[1] // 2), dtype=torch.uint8, device=codes.device)
    _pack(codes.contiguous().flatten().numpy(), packed.flatten().numpy())
    return packed


def unpack(packed: Tensor, rows: Tensor, table: Tensor, scales: Tensor | None, group_size: int) -> Tensor:
    """Return table[row of the group, code], times the group's scale where given, of packed groups of even size.

    Args:
        packed: uint8 (n, groups * g / 2).
        rows: uint8 (n, groups), the row of the table: a selector, or a scale byte with its selector inside.
        table: float32 (k, 16).
        scales: float32 (n, groups) or None.
        group_size: g.

    Returns:
        float32 (n, groups * g).
    """
    out = torch.empty((len(packed), 2 * packed.shape[1]), dtype=torch.float32, device=packed.device)
    which = rows.flatten().numpy()
    if group_size % core.LANES == 0 and has_permute():
        per, chunks = group_size // core.LANES, packed.reshape(-1, core.LANES // 2).numpy()
        target = out.reshape(-1, core.LANES).numpy()
        if scales is None:
            _unpack_permuted(chunks, which, per, table.numpy(), target)
        else:
            _unpack_permuted_scaled(chunks, which, per, table.numpy(), scales.flatten().numpy(), target)
        return out
    groups = packed.reshape(-1, group_size // 2).numpy()
    _unpack(groups, which, table.numpy(), out.reshape(-1, group_size).numpy())
    return out if scales is None else (out.reshape(-1, group_size) * scales.reshape(-1, 1)).reshape(out.shape)


@functools.lru_cache(maxsize=256)
def _arrays(family: GridFamily) -> tuple[Any, Any]:
    grids = core.tables(family)
    return grids.midpoints.numpy(), grids.search.numpy()
