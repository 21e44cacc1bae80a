"""What the guards are compared with: other losses, and a projection of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim.nfi.core import exact_cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]


def float64_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``F.cross_entropy`` computed in float64 on logits (N, K) of any dtype (the paper's oracle)."""
    return functional.cross_entropy(logits.double(), target)


def stablemax_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return cross-entropy with s(x) = x + 1 for x >= 0, else 1 / (1 - x), in the place of exp (Prieto et al. 2025).

    In float64 inside, as the authors' code has it. Another objective: it does not share softmax's minimiser.

    Args:
        logits: Shape (N, K).
        target: Class indices, shape (N,).
    """
    x = logits.double()
    mass = torch.where(x >= 0, x + 1, 1 / (1 - x.clamp_max(0)))
    share = mass.gather(1, target.unsqueeze(1)).squeeze(1) / mass.sum(1)
    return -share.log().mean()


@torch.no_grad()
def orthogonalize_gradients_(parameters: Iterable[Tensor]) -> None:
    """Remove from every gradient its part along the weights, per tensor: g -= (w.g / w.w) w (Prieto et al. 2025).

    The authors' perpGrad, known as OrthoGrad, which also keeps the gradient's norm; that is what is done here.

    Args:
        parameters: Tensors whose ``grad`` is changed in place; those without one are skipped.
    """
    for w in parameters:
        g = w.grad
        if g is None:
            continue
        norm = g.norm()
        g.sub_(w * ((w * g).sum() / ((w * w).sum() + 1e-30)))
        g.mul_(norm / (g.norm() + 1e-30))


LOSSES: dict[str, Loss] = {
    "exact": lambda logits, target: exact_cross_entropy(logits, target, validate=False),
    "f32": functional.cross_entropy,
    "f64": float64_cross_entropy,
    "stablemax": stablemax_cross_entropy,
}


def loss_function(name: str, label_smoothing: float = 0.0) -> Loss:
    """Return the loss called ``name`` ("exact", "f32", "f64", "stablemax").

    Args:
        name: Which loss.
        label_smoothing: For "f32" only; the others have no smoothed form here.

    Raises:
        InputError: An unknown name, or smoothing of a loss that has none.
    """
    if name not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}.")
    if label_smoothing == 0:
        return LOSSES[name]
    if name != "f32":
        raise InputError(f"label_smoothing needs the loss 'f32', not {name!r}.")
    return lambda logits, target: functional.cross_entropy(logits, target, label_smoothing=label_smoothing)
