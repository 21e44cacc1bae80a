"""Binary cross-entropy of hard targets whose gradient never loses a term."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim.nfi.core import Reduction, accumulate_dtype, check_reduction, loss_dtype, refuse_nan


def exact_bce_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
    pos_weight: Tensor | None = None,
    validate: bool = True,
) -> Tensor:
    """Binary cross-entropy of hard targets: -logsigmoid(x s) with s = 2 target - 1, gradient -s sigmoid(-x s).

    Args:
        x: Logits of any shape; float16 and bfloat16 are computed in float32.
        target: 0 or 1 (any dtype), of the same shape.
        weight: Factor per element, broadcast to the shape of ``x``, or None.
        reduction: "none", "mean" (over all elements) or "sum".
        pos_weight: Factor of the elements whose target is 1, broadcast, or None.
        validate: Look at values (hard targets, NaN); see :func:`exact_cross_entropy`.

    Returns:
        The loss in the dtype of ``x`` (float32 for half precision under autocast).

    Raises:
        InputError: Shapes that differ, targets other than 0 and 1, NaN logits, an unknown reduction.
    """
    if not x.is_floating_point():
        raise InputError(f"x must be a floating tensor, not {x.dtype}.")
    if x.shape != target.shape:
        raise InputError(f"target has shape {tuple(target.shape)}, but x has {tuple(x.shape)}; they must be equal.")
    check_reduction(reduction)
    positive = target > 0.5
    wide = x.to(accumulate_dtype(x))
    loss = -functional.logsigmoid(torch.where(positive, wide, -wide))
    if validate and not torch.compiler.is_compiling():
        if not bool(((target == 0) | (target == 1)).all()):
            raise InputError(
                "target must hold 0 and 1 only; soft targets are not supported, "
                "use F.binary_cross_entropy_with_logits for them."
            )
        refuse_nan(loss)
    if pos_weight is not None:
        loss = torch.where(positive, loss * pos_weight, loss)
    if weight is not None:
        loss = loss * weight
    total = loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
    return total.to(loss_dtype(x))
