"""Products with a packed weight, y = x W^T and its transpose, without ever holding W as floats (reconstruction).

A few input rows go through tables of partial sums; more rows go block by block: some columns of W are decoded and
multiplied by ``addmm``. On a CUDA device with Triton a kernel decodes in registers instead. Differentiable in x, to any
order.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2.packed_matrix import GroupMajor, PackedMatrix


def matmul(x: Tensor, weight: PackedMatrix) -> Tensor:
    """Return x W^T for a packed W; half precision is multiplied in float32 and rounded once.

    The numba kernels run on one thread; only the ``addmm`` of blocks uses ``torch.get_num_threads()``.

    Args:
        x: (..., cols), floating.
        weight: The packed (rows, cols), on the device of ``x``.

    Returns:
        (..., rows) in the dtype of ``x``.

    Raises:
        InputError: ``x`` is not floating or has another number of columns.
    """
    rows, columns = weight.shape
    if not x.is_floating_point():
        raise InputError(f"x must be floating, to be multiplied with a packed weight; got {x.dtype}")
    if x.ndim == 0 or x.shape[-1] != columns:
        raise InputError(f"x must have {columns} values in its last dimension; got shape {tuple(x.shape)}")
    y: Tensor = _Product.apply(x.reshape(-1, columns), weight, False)  # type: ignore[no-untyped-call]
    return y.reshape(*x.shape[:-1], rows)


class _Product(torch.autograd.Function):
    """x W^T, or x W where ``transposed``; each is the other's derivative."""

    @staticmethod
    def forward(x: Tensor, weight: PackedMatrix, transposed: bool) -> Tensor:
        product = None if transposed else _fused(x, weight)
        if product is None:
            product = _by_blocks(x.to(torch.promote_types(x.dtype, torch.float32)), weight, transposed)
        return product.to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.weight, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        product = _Product.apply(gradients[0], ctx.weight, not ctx.transposed)  # type: ignore[no-untyped-call]
        return product, None, None


def _fused(x: Tensor, weight: PackedMatrix) -> Tensor | None:
    """Return x W^T (n, rows) without decoding blocks, or None where there is no such way."""
    triton = _triton(weight.device)
    if triton is not None and isinstance(weight, GroupMajor):
        return cast(Tensor | None, triton.product(x, weight))
    return weight.fused(x)


def _by_blocks(x: Tensor, weight: PackedMatrix, transposed: bool) -> Tensor:
    y = x.new_zeros(len(x), weight.shape[1 if transposed else 0])
    for rows, columns, weights in weight.blocks(x.dtype):
        if transposed:
            y[:, columns].addmm_(x[:, rows], weights)
        else:
            y[:, rows].addmm_(x[:, columns], weights.T)
    return y


@functools.cache
def _triton(device: torch.device) -> Any:
    """Return the Triton path, or None off CUDA devices and without Triton."""
    if device.type != "cuda":
        return None
    try:
        from steelyard.quant.po2 import triton_kernels
    except ImportError:
        return None
    return triton_kernels
