"""SFP4's matrix product: an ordinary FP4 product of unshifted codes plus a thin correction for the shifts.

That shifted grids run on FP4 hardware as a normal product plus a correction is the paper's (second hand); the identity
is a reconstruction, with W = s_w (q_w + c_w) and A = s_a (q_a + c_a) per group:
A W^T = (s_a q_a)(s_w q_w)^T + (s_a sum q_a)(s_w c_w)^T + (s_a c_a)(s_w (sum q_w + g c_w))^T.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2 import core
from steelyard.quant.po2.families import E2M1
from steelyard.quant.po2.tensor import QuantizedTensor


class ShiftedParts(NamedTuple):
    """A quantised matrix taken apart, float32; the padding of the last group is filled with zeros in ``codes``.

    Attributes:
        codes: E2M1 values q, (rows, groups, g).
        scales: s of every group, tensor scale included, (rows, groups).
        shifts: c of every group, (rows, groups), in E2M1 units.
        counts: Elements of every group that are no padding, (groups,).
    """

    codes: Tensor
    scales: Tensor
    shifts: Tensor
    counts: Tensor


def shifted_parts(q: QuantizedTensor) -> ShiftedParts:
    """Split a quantised matrix into E2M1 codes, scales and shifts.

    Args:
        q: A matrix of a family whose grids are E2M1 or E2M1 plus a constant, quantised along its last axis.

    Raises:
        InputError: Another family, or groups along another axis.
    """
    if not isinstance(q, QuantizedTensor):
        raise InputError(f"sfp4_matmul takes matrices quantised by quantize; got {type(q).__name__}")
    if len(q.shape) != 2 or q.axis != 1:
        raise InputError(f"sfp4_matmul takes matrices quantised along axis 1; got {q.shape} along axis {q.axis}")
    levels = torch.tensor(E2M1, dtype=torch.float32, device=q.codes.device)
    offsets = []
    for grid in q.family.decode_grids:
        if len(grid) != len(E2M1) or any(abs(v - e - grid[8]) > 1e-6 for v, e in zip(grid, E2M1, strict=True)):
            raise InputError(
                f"sfp4_matmul needs grids that are E2M1 plus a constant (sfp4, sfp4_pair, nvfp4); "
                f"those of {q.family.name!r} are not"
            )
        offsets.append(grid[8])
    rows, columns = q.shape
    size, groups = q.group_size, q.groups
    codes = levels[core.unpack_codes(q.codes, groups * size).int()]
    codes[:, columns:] = 0.0
    counts = torch.full((groups,), float(size), dtype=torch.float32, device=codes.device)
    counts[-1] = columns - (groups - 1) * size
    shifts = torch.tensor(offsets, dtype=torch.float32, device=codes.device)[q.selectors().int()]
    return ShiftedParts(codes.reshape(rows, groups, size), q.group_scales(), shifts, counts)


def sfp4_matmul(a: QuantizedTensor | Tensor, w: QuantizedTensor) -> Tensor:
    """Return A W^T by the identity above; it equals the product of the dequantised matrices.

    The contractions of the correction run over groups: 2 / g of the inner dimension for W4A4, 1 / g for weight-only.
    Here the FP4 product is emulated in float32; sums are those of the quantised codes.

    Args:
        a: Activations, quantised (rows, columns), or floating (..., columns) for weight-only.
        w: The weight, quantised (outputs, columns).

    Returns:
        float32 (rows, outputs), or (..., outputs) in the dtype of floating activations.

    Raises:
        InputError: Families whose grids are no shifted E2M1, or shapes or groups that do not fit.
    """
    weight = shifted_parts(w)
    columns = w.shape[1]
    shift = weight.scales * weight.shifts
    if isinstance(a, Tensor):
        if a.is_nested or not a.is_floating_point() or a.ndim == 0 or a.shape[-1] != columns:
            kind = "a nested tensor" if a.is_nested else f"{a.dtype} of shape {tuple(a.shape)}"
            raise InputError(f"a must be floating with {columns} columns; got {kind}")
        x = a.reshape(-1, columns).to(torch.promote_types(a.dtype, torch.float32))
        groups = torch.nn.functional.pad(x, (0, -columns % w.group_size)).reshape(len(x), -1, w.group_size)
        y = x @ _unshifted(weight, columns).to(x.dtype).T + groups.sum(2) @ shift.to(x.dtype).T
        return y.to(a.dtype).reshape(*a.shape[:-1], w.shape[0])
    activation = shifted_parts(a)
    if a.shape[-1] != columns or a.group_size != w.group_size:
        raise InputError(
            f"a and w must have the same columns and group size; got {a.shape[-1]} and {columns} columns, groups of "
            f"{a.group_size} and {w.group_size}"
        )
    product = _unshifted(activation, columns) @ _unshifted(weight, columns).T
    sums = activation.scales * activation.codes.sum(2)
    partner = weight.scales * (weight.codes.sum(2) + weight.counts * weight.shifts)
    inner = torch.cat((sums, activation.scales * activation.shifts), 1)
    return product + inner @ torch.cat((shift, partner), 1).T


def _unshifted(parts: ShiftedParts, columns: int) -> Tensor:
    return (parts.codes * parts.scales[:, :, None]).flatten(1)[:, :columns]
