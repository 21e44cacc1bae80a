"""Triton kernel of the packed product y = x W^T, for a W that lies on a CUDA device (reconstruction).

A program computes a tile of y: it reads the codes of its rows of W sixteen bytes (32 columns) at a time, decodes them
in registers and adds their products in float32; W never exists as floats in memory. Only the group-major order has
this path, and only the product itself: the gradient of x is computed by torch, block by block.

What was verified: the results, in Triton's interpreter (``TRITON_INTERPRET=1``) on a CPU, against the torch path; and
that Triton compiles the kernel to machine code for NVIDIA 8.0 and 9.0 and AMD gfx942. What was not: the kernel never
ran on a GPU, so neither its results there nor its speed are known, and the tile sizes are untuned. Therefore the first
use of every variant (input dtype, tile) on a device multiplies a small matrix first and compares it with the torch
path. Where that fails, a single RuntimeWarning says so and torch multiplies on that device from then on.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from steelyard.quant.po2.packed_matrix import GroupMajor, dense

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FEW, MANY = 16, 32  # rows of x in a tile; a dot needs 16 at least, and more of them share the work of decoding
ROWS = 32  # rows of W in a tile
BYTES = tl.constexpr(16)  # bytes of codes of a row that are decoded at a time: two words
_TOLERANCE = 1e-5  # of the largest result, for sums in float32 and in another order

_refused: set[torch.device] = set()


def _product_kernel(  # type: ignore[no-untyped-def]  # pragma: no cover
    x, codes, scales, scale_of, selector_of, grids, y, batch, rows, columns, words, words_per_group,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute y (batch, rows) = x (batch, columns) W^T; all arguments but the numbers are pointers.

    Even and odd columns, the low and the high nibbles, are summed by two dots, so that no nibble has to move.
    """
    tiles = (rows + ROWS - 1) // ROWS
    r = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    n = (tl.program_id(0) // tiles).to(tl.int64) * TILE + tl.arange(0, TILE)
    sums = tl.full((TILE, ROWS), 0.0, tl.float32)
    for first in range(0, words * 8, BYTES):
        at = first + tl.arange(0, BYTES)
        word = at // 8
        here = (r < rows)[None, :] & (word < words)[:, None]
        code = tl.load(codes + (word.to(tl.int64)[:, None] * rows + r[None, :]) * 8 + (at % 8)[:, None], here, 0)
        group = (word // words_per_group).to(tl.int64)
        byte = tl.load(scales + group[:, None] * rows + r[None, :], here, 0).to(tl.int32)
        scale = tl.load(scale_of + byte)
        grid = grids + tl.load(selector_of + byte).to(tl.int32) * 16
        inputs = x + n[:, None] * columns + 2 * at[None, :]
        real = (n < batch)[:, None]
        even = tl.load(inputs, real & (2 * at < columns)[None, :], 0.0).to(tl.float32)
        odd = tl.load(inputs + 1, real & (2 * at + 1 < columns)[None, :], 0.0).to(tl.float32)
        sums = tl.dot(even, tl.load(grid + (code & 15).to(tl.int32)) * scale, sums, input_precision="ieee")
        sums = tl.dot(odd, tl.load(grid + (code >> 4).to(tl.int32)) * scale, sums, input_precision="ieee")
    out = (n < batch)[:, None] & (r < rows)[None, :]
    tl.store(y + n[:, None] * rows + r[None, :], sums, out)


# The sizes do not specialise the code, so that the variant that was checked is the one that is used.
SIZES = ("batch", "rows", "columns", "words", "words_per_group")
product_kernel: Any = triton.jit(_product_kernel, do_not_specialize=SIZES)


def product(x: Tensor, weight: GroupMajor) -> Tensor | None:
    """Return x W^T (n, rows) in float32, or None where torch has to compute it.

    That is: other dtypes than ``DTYPES``, no rows of x, x on another device, and a device on which the kernel could
    not be compiled or gave other results than torch, of which the first occurrence is told by a RuntimeWarning.

    Args:
        x: (n, columns).
        weight: The packed (rows, columns).
    """
    device = weight.device
    if device in _refused or x.dtype not in DTYPES or x.device != device or not len(x):
        return None
    tile = FEW if len(x) <= FEW else MANY
    try:
        _check(device, x.dtype, tile)
        return _launch(x, weight, tile)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton's compiler and the driver raise what they like
        _refused.add(device)
        message = f"Packed products on {device} are left to torch, for the Triton kernel cannot be used there: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None


def _launch(x: Tensor, weight: GroupMajor, tile: int) -> Tensor:
    rows, columns = weight.shape
    words = len(weight.codes)
    y = torch.empty(len(x), rows, dtype=torch.float32, device=x.device)
    grid = (-(-rows // ROWS) * -(-len(x) // tile),)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # Triton launches on the current one
        product_kernel[grid](
            x.contiguous(), weight.codes, weight.scales, weight.scale_of, weight.selector_of, weight.grids, y,
            len(x), rows, columns, words, words // len(weight.scales), TILE=tile, ROWS=ROWS,
        )  # fmt: skip
    return y


@functools.cache
def _check(device: torch.device, dtype: torch.dtype, tile: int) -> None:
    """Compare a small product with torch's, once for every variant of the kernel.

    Raises:
        ArithmeticError: They differ.
    """
    weight, x = _example(device, tile + 1 if tile == MANY else 3)
    x = x.to(dtype)
    expected = x.double() @ dense(weight, torch.float64).T
    error = float((_launch(x, weight, tile).double() - expected).abs().max() / expected.abs().max())
    if not error <= _TOLERANCE:  # NaN is no agreement
        raise ArithmeticError(f"a {dtype} product is off by {error:.1e} of its largest value")


def _example(device: torch.device, n: int) -> tuple[GroupMajor, Tensor]:
    """Return a W (45, 90) in three groups of 32 on two grids, and x (n, 90)."""
    stream = torch.Generator("cpu").manual_seed(0)
    codes = torch.randint(256, (6, 45, 8), generator=stream, dtype=torch.uint8, device="cpu")
    held = torch.randint(256, (3, 45), generator=stream, dtype=torch.uint8, device="cpu")
    scale_of = torch.rand(256, generator=stream, dtype=torch.float32, device="cpu")
    selector_of = torch.arange(256, dtype=torch.uint8, device="cpu") % 2
    grids = torch.randn(2, 16, generator=stream, dtype=torch.float32, device="cpu")
    x = torch.randn(n, 90, generator=stream, dtype=torch.float32, device="cpu")
    codes, held, scale_of, selector_of, grids, x = (
        part.to(device) for part in (codes, held, scale_of, selector_of, grids, x)
    )
    return GroupMajor(codes, held, scale_of, selector_of, grids, (45, 90)), x
