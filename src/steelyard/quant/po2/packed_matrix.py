"""Packed matrices in the order that products read them in, and how they are decoded piece by piece (reconstruction).

A few input rows go through per-byte partial-sum tables: for every byte of codes (two inputs) and grid all 256 sums are
made once, and every weight row then costs one look-up and one addition a byte. Anything else is decoded block by block,
by numba on a CPU and by torch elsewhere.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.tensor import QuantizedTensor, compiled_path

WORD = 16  # codes that the kernels read at once, as eight bytes
_TABLE_ROWS = 3  # input rows up to which the tables are cheaper than decoding (4096 x 4096: 2.5 ms a row against 11 ms)
_FEW_ROWS = 128  # weight rows below which filling the tables costs more than it spares
_CACHED = 2**18  # floats of a decoded block that stay in a core's second-level cache
_VECTORISED = 2**22  # floats of a block decoded by torch, whose calls cost more

Block = tuple[slice, slice, Tensor]


class PackedMatrix(Protocol):
    """A packed W (rows, cols) that can decode itself piece by piece."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of W."""

    @property
    def device(self) -> torch.device:
        """Device that holds W."""

    def blocks(self, dtype: torch.dtype) -> Iterator[Block]:
        """Yield (rows, columns, their weights) so that every weight comes once; a block is valid until the next."""

    def fused(self, x: Tensor) -> Tensor | None:
        """Return x W^T (n, rows) without decoding blocks, or None where there is no such way."""


@dataclass(frozen=True)
class GroupMajor:
    """Codes in compute order: word after word (16 columns), each holding all rows; the only copy that is kept.

    Bytes: rows * cols / 2 of codes and rows * groups of scales, as in the canonical order. The tables beside them are
    of constant size.

    Attributes:
        codes: uint8 (words, rows, 8).
        scales: uint8 (groups, rows), selector inside.
        scale_of: float32 (256,), the value of a scale byte, tensor scale included.
        selector_of: uint8 (256,), the grid of a scale byte.
        grids: float32 (m, 16).
        shape: Rows and true columns; the padding up to whole groups is left out.
    """

    codes: Tensor
    scales: Tensor
    scale_of: Tensor
    selector_of: Tensor
    grids: Tensor
    shape: tuple[int, int]

    @property
    def device(self) -> torch.device:
        """Device that holds W."""
        return self.codes.device

    @functools.cached_property
    def pairs(self) -> Tensor:
        """The two values of a byte of codes by grid, float32 (m * 256, 2)."""
        byte = torch.arange(256, device=self.grids.device)
        return torch.stack((self.grids[:, byte & 15], self.grids[:, byte >> 4]), -1).reshape(-1, 2)

    @functools.cached_property
    def kernels(self) -> tuple[Any, ...] | None:
        """The arguments that all kernels share (words, scales, tables), or None where torch has to do the work."""
        if _kernels() is None or self.codes.device.type != "cpu":
            return None
        words = self.codes.numpy().view("uint64")[..., 0]
        return words, self.scales.numpy(), self.scale_of.numpy(), self.selector_of.numpy()

    def blocks(self, dtype: torch.dtype) -> Iterator[Block]:
        """Yield blocks of columns, all rows; the weights are float32 or ``dtype`` where that is wider."""
        words, rows, _ = self.codes.shape
        compiled = self.kernels is not None
        step = min(words, max(1, (_CACHED if compiled else _VECTORISED) // (rows * WORD)))
        buffer = _floats(rows, step) if compiled else None
        for first in range(0, words, step):
            last = min(words, first + step)
            if buffer is None:
                weights = self._decode(first, last, dtype)
            else:
                part = buffer if last - first == step else _floats(rows, last - first)
                pairs = self.pairs.numpy().view("uint64")[:, 0]
                _kernels().decode(*cast(tuple[Any, ...], self.kernels), pairs, first, part.numpy())
                weights = part.reshape(rows, -1).to(dtype)
            columns = slice(first * WORD, min(last * WORD, self.shape[1]))
            yield slice(0, rows), columns, weights[:, : columns.stop - columns.start]

    def _decode(self, first: int, last: int, dtype: torch.dtype) -> Tensor:
        per_group = self.codes.shape[0] // self.scales.shape[0]
        groups = torch.arange(first, last, device=self.codes.device) // per_group
        byte = self.scales[groups].int()
        index = self.codes[first:last].int() + 256 * self.selector_of[byte].int()[..., None]
        values = self.pairs[index] * self.scale_of[byte][..., None, None]
        return values.permute(1, 0, 2, 3).reshape(self.codes.shape[1], -1).to(dtype)

    def fused(self, x: Tensor) -> Tensor | None:
        """Return x W^T (n, rows) through the partial-sum tables for up to three rows, on a CPU with numba."""
        rows, columns = self.shape
        if len(x) > _TABLE_ROWS or rows < _FEW_ROWS or x.dtype == torch.float64 or self.kernels is None:
            return None
        padded = nn.functional.pad(x.float(), (0, self.codes.shape[0] * WORD - columns)).contiguous()
        y = padded.new_zeros(len(x), rows)
        for inputs, sums in zip(padded.numpy(), y.numpy(), strict=True):
            _kernels().row_product(*self.kernels, self.grids.numpy(), inputs, sums)
        return y


@dataclass(frozen=True)
class RowMajor:
    """A quantised matrix in its canonical order, for groups and scales that the group-major order does not fit."""

    weight: QuantizedTensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of W."""
        return matrix_shape(self.weight)

    @property
    def device(self) -> torch.device:
        """Device that holds W."""
        return self.weight.codes.device

    def blocks(self, dtype: torch.dtype) -> Iterator[Block]:
        """Yield blocks of rows, all columns; scales of all groups are decoded at once (1/g of the floats of W)."""
        rows, columns = self.shape
        weight = self.weight
        group_scales, base = weight.group_scales(), weight.selectors().int() * 16
        values = weight.grids.flatten()
        step = max(1, _VECTORISED // max(1, columns))
        for first in range(0, rows, step):
            part = slice(first, min(rows, first + step))
            codes = weight.codes[part].int()
            nibbles = torch.stack((codes & 15, codes >> 4), -1).reshape(len(codes), -1)[:, :columns]
            group = torch.arange(columns, device=codes.device) // weight.group_size
            decoded = values[nibbles + base[part][:, group]] * group_scales[part][:, group]
            yield part, slice(0, columns), decoded.to(dtype)

    def fused(self, x: Tensor) -> Tensor | None:
        """Return None: there are no tables for this order."""


def matrix_shape(weight: QuantizedTensor) -> tuple[int, int]:
    """Return rows and columns of the matrix that ``weight`` is packed as: its axis last, the rest flattened."""
    columns = weight.shape[weight.axis]
    rows = weight.codes.shape[0]
    return rows, columns


def pack(weight: QuantizedTensor) -> PackedMatrix:
    """Return ``weight`` ready for products, group-major where its groups and scales allow it.

    That is: groups of a multiple of 16 and a scale byte that holds the whole selector. The caller keeps one of the two
    only; :func:`unpack` is the way back.
    """
    if weight.group_size % WORD or weight.scales.dtype != torch.uint8 or weight.side is not None:
        return RowMajor(weight)
    rows = weight.codes.shape[0]
    codes = weight.codes.reshape(rows, -1, WORD // 2).transpose(0, 1).contiguous()
    return group_major(
        codes,
        weight.scales.T.contiguous(),
        weight.family,
        weight.scale_format,
        weight.tensor_scale,
        matrix_shape(weight),
    )


def group_major(
    codes: Tensor, held: Tensor, family: GridFamily, scale_format: str, tensor_scale: float, shape: tuple[int, int]
) -> GroupMajor:
    """Return the compute order around codes (words, rows, 8) and scale bytes (groups, rows), which are not copied."""
    form = scales.resolve(family, scale_format)
    used = torch.unique(held)
    values, selectors = scales.unpack_scales(form, used, None)
    scale_of = torch.zeros(256, dtype=torch.float32, device=codes.device)
    selector_of = torch.zeros(256, dtype=torch.uint8, device=codes.device)
    scale_of[used.int()] = values * tensor_scale
    selector_of[used.int()] = selectors
    grids = core.tables(family).decode.to(codes.device)
    return GroupMajor(codes, held, scale_of, selector_of, grids, shape)


def dense(weight: PackedMatrix, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the whole W (rows, cols), for what no product of blocks can do (a convolution)."""
    whole = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    for rows, columns, weights in weight.blocks(torch.promote_types(dtype, torch.float32)):
        whole[rows, columns] = weights
    return whole


def _floats(rows: int, words: int) -> Tensor:
    return torch.empty(rows, words, WORD, dtype=torch.float32, device="cpu")


def _kernels() -> Any:
    """Return the numba kernels, or None without numba or where words are not read low byte first."""
    return compiled_path("matmul_kernels") if sys.byteorder == "little" else None
