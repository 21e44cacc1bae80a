"""Guards for ``torch.nn``: a drop-in loss, a hook on the logits, and centering of the classifier."""

from __future__ import annotations

import inspect
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steelyard.errors import InputError
from steelyard.optim.nfi.core import Reduction, exact_cross_entropy

# The seam: what ExactCrossEntropyLoss inherits from and overrides.
assert list(inspect.signature(nn.CrossEntropyLoss.forward).parameters) == ["self", "input", "target"]
assert {"weight", "ignore_index", "reduction", "label_smoothing"} <= set(
    inspect.signature(nn.CrossEntropyLoss.__init__).parameters
)


class ExactCrossEntropyLoss(nn.CrossEntropyLoss):
    """``nn.CrossEntropyLoss`` for class indices whose gradient never loses the true-class term.

    Takes the same arguments, and ``validate`` (see :func:`exact_cross_entropy`; switch it off under
    ``torch.amp.GradScaler``). Soft targets are refused.

    Raises:
        InputError: In the call, for what :func:`exact_cross_entropy` refuses.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        validate: bool = True,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.validate = validate

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits (N, K, ...) and class indices (N, ...)."""
        return exact_cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=cast(Reduction, self.reduction),
            label_smoothing=self.label_smoothing,
            validate=self.validate,
        )


def zero_sum_hook(logits: Tensor, dim: int | None = None) -> RemovableHandle:
    """Make the gradient of ``logits`` sum to zero over the classes: g <- g - mean_k g (paper, section 4.1).

    It keeps the classifier's mean row from drifting, but cannot bring back what was lost: in a collapsed row the true
    class gets -eps/K where -eps is right, so learning stops at loss 0. Linear, so it works on scaled gradients.

    Args:
        logits: A tensor that takes part in the graph, before the loss.
        dim: Class dimension; by default that of ``F.cross_entropy`` (the last of (K,) and (N, K), else 1).

    Returns:
        The hook's handle.

    Raises:
        InputError: ``logits`` needs no gradient.
    """
    if not logits.requires_grad:
        raise InputError(
            "logits need no gradient, so there is nothing to hook; call zero_sum_hook in the forward pass."
        )
    axis = dim if dim is not None else min(1, logits.ndim - 1)
    handle: RemovableHandle = logits.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: gradient - gradient.mean(axis, keepdim=True)
    )
    return handle


@torch.no_grad()
def center_head_(linear: nn.Module, model: nn.Module | None = None, allow_tied: bool = False) -> None:
    """Subtract the mean over the classes from a classifier's weight and bias, in place (paper, section 4.3).

    The logits of a sample all move by the same amount, so probabilities stay as they are. After every step:
    ``optimizer.register_step_post_hook(lambda *_: center_head_(model.head))``. It is the remedy that the paper found
    to work for language models too.

    Args:
        linear: Module with ``weight`` (K, d) and perhaps ``bias`` (K,).
        model: The whole model; given, a weight that an embedding of it shares is refused.
        allow_tied: Centre a shared weight all the same (it moves the input embeddings).

    Raises:
        InputError: No weight matrix, or a shared one that was not asked for.
    """
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(f"linear must have a weight of shape (K, d); {type(linear).__name__} has none.")
    tied = isinstance(linear, nn.Embedding) or (model is not None and _shared_with_embedding(weight, model))
    if tied and not allow_tied:
        raise InputError(
            "linear shares its weight with an input embedding, which centering would move too; "
            "pass allow_tied=True if that is meant."
        )
    weight.sub_(_mean_over_classes(weight))
    bias = getattr(linear, "bias", None)
    if isinstance(bias, Tensor):
        bias.sub_(_mean_over_classes(bias))


def _mean_over_classes(values: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    return values.mean(0, dtype=wide).to(values.dtype)


def _shared_with_embedding(weight: Tensor, model: nn.Module) -> bool:
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return any(module.weight is weight for module in embeddings)
