"""Cross-entropy whose gradient never loses the true-class term: ``p_true - 1`` is never formed."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError

Reduction = Literal["none", "mean", "sum"]
_HALF = (torch.bfloat16, torch.float16)
_HALF_PIECES = 8  # a half-precision gradient is rounded piece by piece, so no second float32 copy is ever whole
_LOG2_E = 1 / math.log(2)
_BLOCK = 128  # classes added in float32 before float64 takes over


def exact_cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    validate: bool = True,
) -> Tensor:
    """Cross-entropy of class indices, with every class's gradient right to rounding at any confidence.

    With ``d = logsumexp(wrong logits) - true logit`` the loss is softplus(d), a wrong class's gradient its share of
    sigmoid(d), and the true class's minus their sum. No difference of nearly equal numbers is taken, so the gradient
    sums to zero over the classes to one rounding of its true-class entry. This guard is an addition of this library;
    the defect it removes is the paper's section 3.1 (softmax collapse).

    Args:
        logits: Floating tensor of shape (K,), (N, K) or (N, K, d1, ...), K >= 2, as ``F.cross_entropy`` takes it.
            float16 and bfloat16 are computed in float32. -inf is allowed where a class is impossible.
        target: Integer class indices of shape (), (N,) or (N, d1, ...).
        weight: Class weights of shape (K,), or None.
        ignore_index: Target value whose rows count nothing.
        reduction: "none", "mean" (weighted, over the rows that count) or "sum".
        label_smoothing: Above 0 the standard cross-entropy is used: its target is never 1, so nothing collapses.
        validate: Look at values (targets in range, NaN rows). Switch off for ``torch.amp.GradScaler``, which must see
            the NaN of an overflowed step to skip it; under torch.compile no value is looked at.

    Returns:
        The loss in the dtype of ``logits`` (float32 for half precision under autocast); a scalar, or one value a row.

    Raises:
        InputError: A shape, dtype, option or value that cannot be used; soft targets; NaN or +inf logits.
    """
    dim = _check_shapes(logits, target, weight, reduction, label_smoothing)
    look = validate and not torch.compiler.is_compiling()
    target = target.long()
    if look:
        _check_targets(target, logits.shape[dim], ignore_index)
    if label_smoothing > 0:
        loss = functional.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
        if look and bool(loss.isnan().any()):
            refuse_nan(logits.sum(dim).masked_fill(target == ignore_index, 0.0))
        return loss
    ignored = target == ignore_index
    safe = target.masked_fill(ignored, 0)
    rows = _ExactRows.apply(logits, safe, dim)[0].masked_fill(ignored, 0.0)  # type: ignore[no-untyped-call]
    if look:
        refuse_nan(rows)
    return _reduce(rows, safe, ignored, weight, reduction).to(loss_dtype(logits))


class _ExactRows(torch.autograd.Function):
    """Per-row loss; needs two buffers of the logits' size at a time, where the reference needs three."""

    @staticmethod
    def forward(logits: Tensor, target: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        index = target.unsqueeze(dim)
        share = logits.to(accumulate_dtype(logits), copy=True).scatter_(dim, index, -torch.inf)
        top = share.amax(dim, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)  # every wrong class impossible: no mass, not -inf - -inf
        # exp2, as torch's exp is three times slower on a CPU; the product's rounding shows in negligible shares only.
        share.sub_(top).mul_(_LOG2_E).exp2_()
        mass = _wide_sum(share, dim)
        # The few numbers of a row are computed in float64: rounding d is what would cost accuracy at small losses.
        true = logits.gather(dim, index).to(mass.dtype)
        d = (top.to(mass.dtype) - true) + mass.log()
        d = d.masked_fill(true == torch.inf, torch.nan)  # as the reference does: an overflow must not look like fit
        rows = d.clamp_min(0) + torch.log1p(torch.exp(-d.abs()))
        scale = torch.sigmoid(d) / mass.masked_fill(mass == 0, 1.0)
        share.scatter_(dim, index, -mass.to(share.dtype))  # now times `scale` it is the gradient
        return rows.squeeze(dim).to(share.dtype), share, scale.to(share.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor, Tensor]) -> None:
        logits, target, ctx.dim = inputs
        _, share, scale = output
        ctx.set_materialize_grads(False)  # else autograd would fill a gradient of zeros for `share`
        ctx.mark_non_differentiable(share, scale)
        ctx.save_for_backward(logits, target, share, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        if grads[0] is None:
            return None, None, None
        logits, target, share, scale = ctx.saved_tensors
        per_row = grads[0].unsqueeze(ctx.dim)
        if torch.is_grad_enabled():  # somebody differentiates this gradient again
            return _differentiable_gradient(logits, target.unsqueeze(ctx.dim), ctx.dim) * per_row, None, None
        scale = scale * per_row
        if logits.dtype == share.dtype or logits.ndim == 1:
            return (share * scale).to(logits.dtype), None, None
        return _rounded_product(share, scale, logits), None, None


def _rounded_product(share: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    product = torch.empty_like(like)
    for out, piece, factor in zip(*(t.chunk(_HALF_PIECES) for t in (product, share, scale)), strict=True):
        out.copy_(piece * factor)
    return product


def _differentiable_gradient(logits: Tensor, index: Tensor, dim: int) -> Tensor:
    """The same gradient from ordinary differentiable operations, for derivatives of any higher order."""
    wide = logits.to(accumulate_dtype(logits))
    hot = torch.zeros_like(wide).scatter(dim, index, 1.0)
    wrong = wide.masked_fill(hot > 0, -torch.inf)
    alone = wrong.amax(dim, keepdim=True) == -torch.inf
    wrong = wrong.masked_fill(alone, 0.0)
    d = torch.logsumexp(wrong, dim, keepdim=True) - wide.gather(dim, index)
    d = d.masked_fill(alone, -torch.inf)
    return ((torch.softmax(wrong, dim) - hot) * torch.sigmoid(d)).to(logits.dtype)


def _wide_sum(values: Tensor, dim: int) -> Tensor:
    """Sum over ``dim`` (kept) into float64; a large float32 tensor is not copied to float64 for it.

    Blocks of classes are added in float32 first: their few roundings mostly cancel in the sum over the blocks.
    """
    wide = _wide_dtype(values)
    size = values.shape[dim]
    blocks = size // _BLOCK
    if values.dtype == wide or blocks < 2:
        return values.sum(dim, keepdim=True, dtype=wide)
    whole = blocks * _BLOCK
    head = torch.unflatten(values.narrow(dim, 0, whole), dim, (blocks, _BLOCK)).sum(dim + 1)
    total = head.sum(dim, keepdim=True, dtype=wide)
    return total + values.narrow(dim, whole, size - whole).sum(dim, keepdim=True).to(wide)


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # Apple GPUs have no float64


def _reduce(rows: Tensor, target: Tensor, ignored: Tensor, weight: Tensor | None, reduction: Reduction) -> Tensor:
    if weight is None:
        factors = (~ignored).to(rows.dtype)
    else:
        factors = weight.detach().to(rows)[target].masked_fill(ignored, 0.0)
        rows = rows * factors
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / factors.sum()


def accumulate_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype to compute in: float32 for half precision, else the tensor's own."""
    return torch.float32 if tensor.dtype in _HALF else tensor.dtype


def loss_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of a loss of ``tensor``: its own, but float32 for half precision under autocast."""
    autocast = torch.is_autocast_enabled(tensor.device.type)
    return accumulate_dtype(tensor) if autocast else tensor.dtype


def check_reduction(reduction: str) -> None:
    """Refuse an unknown reduction."""
    if reduction not in ("none", "mean", "sum"):
        raise InputError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}.")


def _check_shapes(logits: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> int:
    """Return the class dimension after checking all that can be checked without looking at values."""
    if not logits.is_floating_point() or logits.ndim == 0:
        raise InputError(f"logits must be a floating tensor (N, K, ...), not {logits.dtype} {tuple(logits.shape)}.")
    dim = 0 if logits.ndim == 1 else 1
    classes = logits.shape[dim]
    if target.is_floating_point():
        raise InputError(
            "target must hold integer class indices; soft targets (probabilities) are not supported, "
            "use F.cross_entropy for them."
        )
    if target.dtype == torch.bool or target.is_complex():
        raise InputError(f"target must hold integer class indices, not {target.dtype}.")
    if classes < 2:
        raise InputError(f"logits have K = {classes} classes along dimension {dim}; at least 2 are needed.")
    expected = logits.shape[:dim] + logits.shape[dim + 1 :]
    if target.shape != expected:
        raise InputError(f"target has shape {tuple(target.shape)}, but the logits ask for {tuple(expected)}.")
    if weight is not None and weight.shape != (classes,):
        raise InputError(f"weight has shape {tuple(weight.shape)}, but there are K = {classes} classes.")
    if not 0.0 <= smoothing <= 1.0:
        raise InputError(f"label_smoothing must be between 0 and 1, not {smoothing}.")
    check_reduction(reduction)
    return dim


def _check_targets(target: Tensor, classes: int, ignore_index: int) -> None:
    outside = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bool(outside.any()):
        value = int(target[outside].reshape(-1)[0])
        raise InputError(f"target holds class {value}, but the logits have classes 0..{classes - 1}.")


def refuse_nan(rows: Tensor) -> None:
    """Refuse logits whose per-row losses hold NaN: O(batch), where looking at the logits would be O(batch x K)."""
    bad = rows.isnan()
    if bool(bad.any()):
        first = int(bad.reshape(-1).nonzero()[0])
        raise InputError(
            f"logits give NaN in {int(bad.sum())} of {bad.numel()} rows (first: row {first}): they hold NaN or +inf; "
            "find the layer that overflowed, or pass validate=False under a gradient scaler."
        )
