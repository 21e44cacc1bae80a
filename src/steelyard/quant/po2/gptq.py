"""GPTQ with grids that are chosen group by group: the errors of quantised columns are made up for by later ones.

Frantar et al. 2022; that group, grid and scale are chosen when the group's first column is reached, with the diagonal
of the Hessian as importance, is a reconstruction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.tensor import QuantizedTensor, from_codes

_HEADROOM = 2.0  # error feedback makes later columns grow; a factor on t costs nothing while scales are floats


def gptq(
    weight: Tensor,
    hessian: Tensor,
    family: str | GridFamily = "mpo2",
    group_size: int | None = None,
    scale: str | None = None,
    search: str = "none",
    damping: float = 0.01,
) -> QuantizedTensor:
    """Quantise a matrix so that its outputs, not its entries, come out close.

    Args:
        weight: Floating (rows, columns).
        hessian: X^T X of the inputs X (n, columns), or a multiple of it.
        family: Name or family of grids.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window".
        damping: Share of the mean diagonal added to it, >= 0; large values end in plain rounding, 0 needs a Hessian
            that is positive definite by itself.

    Returns:
        The packed matrix, groups along the columns, in their own order.

    Raises:
        InputError: Shapes that do not fit, values that are not finite, or a Hessian that is not positive definite
            after damping.
    """
    options = core.plan(find_family(family), group_size, scale, search)
    _check(weight, hessian, damping)
    columns, size = weight.shape[1], options.group_size
    padding = -columns % size
    left = torch.nn.functional.pad(weight.detach().double(), (0, padding))
    damped = _damped(torch.nn.functional.pad(hessian.double(), (0, padding, 0, padding)), columns, damping)
    factor = _inverse_factor(damped)
    counted = (torch.arange(columns + padding, device=damped.device) < columns).double()
    importance = damped.diagonal() / damped.diagonal().amax() * counted  # padding counts nothing
    weights = core.balanced(importance.reshape(-1, size), counted.reshape(-1, size))
    low, high = (float(value) * _HEADROOM for value in torch.aminmax(weight.detach().float()))
    t_scale = scales.tensor_scale(options.family, options.form, low, high, options.cap, options.factors)
    parts = []
    for start in range(0, columns + padding, size):
        stop = start + size
        part = weights[start // size].expand(len(left), -1)
        chosen = core.encode(options, left[:, start:stop].float(), t_scale, part)
        values = _code_values(options, chosen, t_scale)
        codes, errors = _round_group(left[:, start:stop], factor[start:stop, start:stop], values)
        left[:, stop:] -= errors @ factor[start:stop, stop:]
        parts.append((codes, chosen.scale_codes, chosen.selectors))
    stacked = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    codes, scale_codes, selectors = stacked
    return from_codes(options, codes, scale_codes, selectors, t_scale, tuple(weight.shape), 1)


def _check(weight: Tensor, hessian: Tensor, damping: float) -> None:
    if weight.ndim != 2 or not weight.is_floating_point() or not weight.numel():
        raise InputError(f"weight must be a floating matrix with entries; got {weight.dtype}, {tuple(weight.shape)}")
    columns = weight.shape[1]
    if tuple(hessian.shape) != (columns, columns):
        raise InputError(f"hessian must have shape {(columns, columns)}; got {tuple(hessian.shape)}")
    if not bool(weight.isfinite().all()) or not bool(hessian.isfinite().all()):
        raise InputError("weight and hessian must be finite")
    if not (math.isfinite(damping) and damping >= 0):
        raise InputError(f"damping must be finite and at least 0; got {damping}")


def _damped(hessian: Tensor, columns: int, damping: float) -> Tensor:
    """Return H with a share of the mean of its first ``columns`` diagonal entries added to the diagonal.

    Columns of padding, which stand alone, get the mean itself where nothing is added.
    """
    mean = float(hessian.diagonal()[:columns].mean()) or 1.0
    added = torch.full((len(hessian),), damping * mean, dtype=hessian.dtype, device=hessian.device)
    added[columns:] = damping * mean or mean
    return hessian + torch.diag(added)


def _inverse_factor(hessian: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse."""
    lower, failed = torch.linalg.cholesky_ex(hessian)
    if int(failed):
        raise InputError("hessian is not positive definite after damping; give X^T X, or raise damping")
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return factor


def _code_values(options: core.Plan, chosen: core.Encoded, t_scale: float) -> Tensor:
    """Return the values that each row's codes stand for in a group, float64 (rows, 16)."""
    held = chosen.scale_codes
    group_scale = scales.code_values(options.form, held) if options.form.width == 8 else held.float()
    grids = core.tables(options.family).decode.to(held.device)
    return (grids[chosen.selectors.long()] * (group_scale * t_scale)[:, None]).double()


def _round_group(group: Tensor, factor: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Round a group's columns one after the other onto ``values``, in place; all rows at once.

    Returns:
        Codes, uint8 (rows, g), and errors over the factor's diagonal, (rows, g), for later groups to make up for.
    """
    codes = torch.empty(group.shape, dtype=torch.uint8, device=group.device)
    errors = torch.empty_like(group)
    for column in range(group.shape[1]):
        current = group[:, column]
        code = (current[:, None] - values).abs().argmin(1)
        codes[:, column] = code.to(torch.uint8)
        error = (current - values.gather(1, code[:, None])[:, 0]) / factor[column, column]
        errors[:, column] = error
        group[:, column + 1 :] -= error[:, None] * factor[column, column + 1 :]
    return codes, errors
