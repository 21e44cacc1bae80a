"""Halting distributions, resource costs, stopping, multiply-add counts and occlusion of the lattice network.

The paper's abstract gives the idea (differentiable costs for breadth, depth and time, optimised with the task); a
second-hand digest gives their kind (rank-weighted decay, layer-index weights, expected time). Every exact formula here
is a reconstruction unless its docstring says otherwise.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence, Sized
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError

PositionWeight = Literal["linear", "uniform"] | Callable[[Tensor, int], Tensor]
StopRule = Literal["threshold", "sample"]
TaskLoss = Literal["steps", "mixture"]
Steps = TypeVar("Steps", Tensor, npt.NDArray[np.int64], int, float)
_NORM_EPS = 1e-12  # inside the square root: the gradient of a zero norm is 0, not NaN
_KERNEL = 9  # 3x3
MASS_SLACK = 1e-6  # a halting mass this close to the threshold has reached it, whatever the rounding


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number (numpy's are)."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------------------- halting in time


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of softmax(logits) over the last dimension: (..., K) -> (...)."""
    log_p = functional.log_softmax(logits, dim=-1)
    plogp: Tensor = log_p.exp() * log_p
    return -plogp.sum(-1)


def bounded(z: Tensor, bound: float | None) -> Tensor:
    """Return bound * tanh(z / bound), which keeps a gradient where a hazard would saturate; None leaves z as it is."""
    return z if bound is None else bound * torch.tanh(z / bound)


def halting_logits(
    bias: Tensor, kappa: Tensor, logits: Tensor, state_term: Tensor | None = None, bound: float | None = 6.0
) -> Tensor:
    """Return the logits of the hazards, clip(b_t + kappa * (1 - H(y_t)) [+ state term]).

    The entropy is detached: otherwise the network would lower its entropy in order to stop early.

    Args:
        bias: b_t, shape (T - 1,); the last step takes what is left and has no hazard.
        kappa: Scalar weight of the confidence.
        logits: Readouts y_t of the steps before the last, shape (B, T - 1, K).
        state_term: A further summand of shape (B, T - 1), e.g. a linear function of pooled states, or None.
        bound: Of the soft clip; None for no clip.

    Returns:
        Tensor of shape (B, T - 1).
    """
    z = bias + kappa * (1 - entropy(logits.detach()))
    return bounded(z if state_term is None else z + state_term, bound)


def adaptive_log_p(hazard_logits: Tensor) -> Tensor:
    """Return log p_t with p_t = lam_t * prod_{s<t} (1 - lam_s) and p_T the rest, lam = sigmoid(hazard_logits).

    p_t depends on the hazards of steps 1..t only (causal), and the p_t sum to 1.

    Args:
        hazard_logits: Shape (..., T - 1); T - 1 = 0 gives the one step that is certain.

    Returns:
        Tensor of shape (..., T).
    """
    stay = functional.pad(functional.logsigmoid(-hazard_logits).cumsum(-1), (1, 0))
    stop = functional.pad(functional.logsigmoid(hazard_logits), (0, 1))
    return stay + stop


def fixed_log_p(theta: Tensor, batch: int) -> Tensor:
    """Return log softmax(theta), the same for every input: (T,) -> (batch, T)."""
    return functional.log_softmax(theta, dim=-1).expand(batch, -1)


def mixture_log_probs(step_logits: Tensor, log_p: Tensor) -> Tensor:
    """Return log sum_t p_t softmax(y_t): (B, T, K) and (B, T) -> (B, K)."""
    return torch.logsumexp(functional.log_softmax(step_logits, dim=-1) + log_p.unsqueeze(-1), dim=1)


def expected_steps(p: Tensor) -> Tensor:
    """Return E[t] = sum_t t * p_t with steps numbered from 1: (..., T) -> (...)."""
    steps = torch.arange(1, p.shape[-1] + 1, dtype=p.dtype, device=p.device)
    return (p * steps).sum(-1)


# ------------------------------------------------------------------------------------------------------- costs


def time_cost(p: Tensor) -> Tensor:
    """Return the expected number of steps, averaged over the inputs (second hand: the digest's time cost).

    Args:
        p: Halting distributions of shape (T,) or (B, T), not negative, each summing to 1.

    Returns:
        A scalar.

    Raises:
        InputError: p is no distribution over steps.
    """
    if not isinstance(p, Tensor) or not p.is_floating_point() or p.ndim == 0 or p.numel() == 0:
        told = f"{p.dtype} {tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__
        raise InputError(f"p must be a floating tensor (..., T) that is not empty, not {told}.")
    slack = max(1e-3, 4 * torch.finfo(p.dtype).eps)  # half precision rounds each p
    if not bool(((p.detach().double().sum(-1) - 1).abs() <= slack).all()) or bool(
        (p.detach() < 0).any()
    ):  # `not`: NaN fails too
        raise InputError(
            "p must hold halting probabilities that are not negative and sum to 1 over the last dimension."
        )
    return expected_steps(p).mean()


def geometric_divergence(p: Tensor, rate: float) -> Tensor:
    """Return KL(p || geometric of ``rate``, cut off after T steps and normalised), PonderNet's price of time.

    Args:
        p: Halting distributions of shape (..., T).
        rate: Probability of stopping at a step, in (0, 1).

    Returns:
        A scalar, averaged over the inputs.
    """
    if not is_number(rate) or not 0 < rate < 1:
        raise InputError(f"rate must be between 0 and 1, not {rate!r}.")
    steps = torch.arange(p.shape[-1], dtype=p.dtype, device=p.device)
    log_prior = torch.log_softmax(steps * math.log1p(-rate), dim=-1)
    divergence: Tensor = torch.special.xlogy(p, p) - p * log_prior
    return divergence.sum(-1).mean()


def breadth_cost(weights: Sequence[Tensor], q: int = 1, weight: PositionWeight = "linear") -> Tensor:
    """Return B = sum_l sum_r (r / C_l) * n_{l,(r)}^q, n_(1) >= n_(2) >= ... the sorted norms of the channels.

    Rank-dependent weight decay (kind: second hand). The r-th largest channel costs in proportion to r, so the optimum
    uses finitely many. Permuting channels changes nothing. Channels of equal norm share their mean rank, which keeps
    the gradient equivariant too.

    Args:
        weights: One tensor (C_l, ...) per layer: the incoming weights of each channel in its row.
        q: 1 (group lasso) or 2 (weight decay).
        weight: Price of rank r among C: "linear" r / C, "uniform" 1, or a function of (ranks, C).

    Returns:
        A scalar.
    """
    return breadth_of_norms(_powers(weights, q), weight)


def depth_cost(weights: Sequence[Tensor], q: int = 1, weight: PositionWeight = "linear") -> Tensor:
    """Return D = sum_l (l / L) * sum_c n_{l,c}^q: deeper layers cost more (kind: second hand).

    Args:
        weights: One tensor (C_l, ...) per layer, from the input upwards.
        q: 1 (group lasso) or 2 (weight decay).
        weight: Price of layer l among L: "linear" l / L, "uniform" 1, or a function of (layer numbers, L).

    Returns:
        A scalar.
    """
    return depth_of_norms(_powers(weights, q), weight)


def breadth_of_norms(powers: Sequence[Tensor], weight: PositionWeight = "linear") -> Tensor:
    """Return the breadth cost of n^q already computed, one tensor (C_l,) per layer."""
    terms = [(position_weights(_ranks(power), power.shape[0], weight) * power).sum() for power in powers]
    return torch.stack(terms).sum()


def depth_of_norms(powers: Sequence[Tensor], weight: PositionWeight = "linear") -> Tensor:
    """Return the depth cost of n^q already computed, one tensor (C_l,) per layer."""
    sums = torch.stack([power.sum() for power in powers])
    layers = torch.arange(1, len(powers) + 1, dtype=sums.dtype, device=sums.device)
    return (position_weights(layers, len(powers), weight) * sums).sum()


def position_weights(positions: Tensor, count: int, weight: PositionWeight) -> Tensor:
    """Return the price of each position (a rank or a layer number, from 1) among ``count``."""
    if callable(weight):
        prices = weight(positions, count)
        if not isinstance(prices, Tensor) or prices.shape != positions.shape:
            raise InputError(f"weight must return one price per position, a tensor of shape {tuple(positions.shape)}.")
        return prices
    if weight == "linear":
        return positions / count
    if weight == "uniform":
        return torch.ones_like(positions)
    raise InputError(f"weight must be 'linear', 'uniform' or a function, not {weight!r}.")


def _ranks(values: Tensor) -> Tensor:
    """Rank 1 for the largest; equal values share their mean rank."""
    values = values.detach()
    ordered = torch.sort(values, stable=True).values
    below = torch.searchsorted(ordered, values)
    upto = torch.searchsorted(ordered, values, right=True)
    return values.shape[0] - (below + upto - 1).to(values.dtype) / 2


def _powers(weights: Sequence[Tensor], q: int) -> list[Tensor]:
    if not isinstance(weights, Sized) or len(weights) == 0:
        raise InputError("weights must be a list of at least one layer's tensor.")
    return norm_powers([_squares(weight, index) for index, weight in enumerate(weights)], q)


def norm_powers(squares: Sequence[Tensor], q: int) -> list[Tensor]:
    """Return n^q from n^2 per channel; q = 1 takes the root with 1e-12 inside."""
    if q not in (1, 2):
        raise InputError(f"q must be 1 (group lasso) or 2 (weight decay), not {q!r}.")
    return [(square + _NORM_EPS).sqrt() for square in squares] if q == 1 else list(squares)


def _squares(weight: Tensor, index: int) -> Tensor:
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim < 2 or weight.numel() == 0:
        raise InputError(
            f"weights[{index}] must be a floating tensor (channels, ...) with at least two dimensions and one element."
        )
    return weight.flatten(1).square().sum(1)


# --------------------------------------------------------------------------------------------------------- task


def task_loss(
    step_logits: Tensor, log_p: Tensor, target: Tensor, kind: TaskLoss = "steps", deep_supervision: float = 0.1
) -> Tensor:
    """Return E sum_t p_t CE(y_t), or the cross-entropy of the mixture, plus deep supervision.

    Deep supervision, delta * mean_t CE(y_t), trains the readouts of steps that p hardly uses.

    Args:
        step_logits: y_t, shape (B, T, K).
        log_p: log p_t, shape (B, T).
        target: Class indices of shape (B,).
        kind: "steps" or "mixture".
        deep_supervision: delta >= 0.

    Returns:
        A scalar, averaged over the batch.
    """
    log_probs = functional.log_softmax(step_logits, dim=-1)
    index = target.view(-1, 1, 1).expand(-1, log_probs.shape[1], 1)
    true = log_probs.gather(-1, index).squeeze(-1)
    if kind == "steps":
        loss = -(log_p.exp() * true).sum(1).mean()
    elif kind == "mixture":
        loss = -torch.logsumexp(log_p + true, dim=1).mean()
    else:
        raise InputError(f"the task loss must be 'steps' or 'mixture', not {kind!r}.")
    return loss - deep_supervision * true.mean() if deep_supervision else loss


# ----------------------------------------------------------------------------------------------------- stopping


def check_rule(rule: str, threshold: float) -> None:
    """Refuse an unknown rule or a halting mass outside (0, 1]."""
    if rule not in ("threshold", "sample"):
        raise InputError(f"rule must be 'threshold' or 'sample', not {rule!r}.")
    if not is_number(threshold) or not 0 < threshold <= 1:
        raise InputError(f"threshold must be a halting mass above 0 and at most 1, not {threshold!r}.")


def stopping_steps(
    p: Tensor, rule: StopRule = "threshold", threshold: float = 0.5, draws: Tensor | None = None
) -> Tensor:
    """Return at which step each input stops, from 1 to T.

    "threshold" stops when the halting mass so far reaches ``threshold`` (.5: the median step). "sample" draws the step
    from p, so its mean is E[t].

    Args:
        p: Halting distributions of shape (B, T).
        rule: "threshold" or "sample".
        threshold: In (0, 1].
        draws: For "sample", uniform numbers in [0, 1) of shape (B,).

    Returns:
        Integer tensor of shape (B,).
    """
    check_rule(rule, threshold)
    mass = p.cumsum(-1)
    if rule == "threshold":
        going = mass[:, :-1] < threshold - MASS_SLACK
    else:
        if draws is None or draws.shape != p.shape[:1]:
            raise InputError(f"draws must hold one uniform number per input ({p.shape[0]}) for rule='sample'.")
        going = mass[:, :-1] <= draws.unsqueeze(1)
    return first_stop(going)


def first_stop(going: Tensor) -> Tensor:
    """Return the first step that an input does not go on after, else the last: bool (B, T - 1) -> integer (B,)."""
    return going.to(torch.int64).cumprod(1).sum(1) + 1


def stopped_logits(step_logits: Tensor, log_p: Tensor, steps: Tensor, rule: StopRule = "threshold") -> Tensor:
    """Return the answer of a stopped run as log-probabilities, (B, K).

    "threshold" answers with the mixture of the steps so far, renormalised; "sample" with the readout of the step.

    Args:
        step_logits: y_t, shape (B, T, K).
        log_p: log p_t, shape (B, T).
        steps: Where each input stops, shape (B,), from 1.
        rule: "threshold" or "sample".
    """
    if rule == "sample":
        index = (steps - 1).view(-1, 1, 1).expand(-1, 1, step_logits.shape[-1])
        return functional.log_softmax(step_logits.gather(1, index).squeeze(1), dim=-1)
    later = torch.arange(1, log_p.shape[1] + 1, device=log_p.device) > steps.unsqueeze(1)
    so_far = log_p.masked_fill(later, -torch.inf)
    return mixture_log_probs(step_logits, functional.log_softmax(so_far, dim=-1))


# -------------------------------------------------------------------------------------------- multiply-adds


def layer_sizes(height: int, width: int, strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return each layer's (height, width): a stride s divides the size of the layer below, rounded up."""
    sizes = []
    for stride in strides:
        height, width = -(-height // stride), -(-width // stride)
        sizes.append((height, width))
    return sizes


def macs_per_step(
    active: Sequence[int], sizes: Sequence[tuple[int, int]], in_channels: int, readout: int
) -> tuple[int, int, int]:
    """Return the multiply-adds of one image: (image term, recurrent step, readout of one step).

    A recurrent step is 9 H_l W_l a_l (a_{l-1} + a_l + a_{l+1}) summed over the layers, a = active channels, the term
    of a missing neighbour dropped; the image term of layer 1 is constant in time and counted once. Structural zeros
    that a fused kernel multiplies are not counted.

    Args:
        active: Active channels of each layer.
        sizes: (height, width) of each layer.
        in_channels: Channels of the image.
        readout: Multiply-adds of one step's readout (and halting), e.g. classes * pooled numbers.
    """
    recurrent = 0
    for index, (channels, (height, width)) in enumerate(zip(active, sizes, strict=True)):
        neighbours = sum(active[max(0, index - 1) : index + 2])
        recurrent += _KERNEL * height * width * channels * neighbours
    image = _KERNEL * sizes[0][0] * sizes[0][1] * active[0] * in_channels
    return image, recurrent, readout


def total_macs(per_step: tuple[int, int, int], steps: Steps) -> Steps:
    """Return the multiply-adds of runs of ``steps`` steps (integers, or expected numbers: the count is linear).

    ``steps`` is a tensor, an array or a number, and the answer is of its kind.

    At step 1 all states are still zero, so only the image term and the readout are executed.
    """
    image, recurrent, readout = per_step
    return image + (steps - 1) * recurrent + steps * readout


# -------------------------------------------------------------------------------------------------- occlusion


def occlude(
    x: Tensor,
    size: int | Sequence[int] | Tensor,
    fill: float = 0.5,
    per_sample: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return a copy of the images with a square of ``fill`` at a random position.

    Args:
        x: Images of shape (B, C, H, W); not changed.
        size: Side of the square in pixels, one for all or one per image; 0 covers nothing.
        fill: Value of the square; mid-grey by default, as the background's own value would hardly occlude.
        per_sample: A position per image; False puts the square of all images at one position (then one ``size``).
        generator: Source of the positions; None takes a fresh one with seed 0.

    Raises:
        InputError: A shape, a negative size or a size larger than the image.
    """
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.ndim != 4 or not x.is_floating_point():
        told = tuple(x.shape) if isinstance(x, Tensor) and x.layout == torch.strided else f"a {type(x).__name__}"
        raise InputError(f"x must be a dense floating tensor (batch, channels, height, width), not {told}.")
    batch, _, height, width = x.shape
    try:
        sizes = torch.as_tensor(size)
    except (TypeError, ValueError, RuntimeError):
        sizes = torch.tensor(torch.nan)  # refused like any number that is not whole
    if (
        sizes.is_complex()
        or sizes.is_floating_point()
        or sizes.dtype == torch.bool
        or sizes.shape not in ((), (batch,))
    ):
        raise InputError(f"size must be a whole number of pixels, one for all or one per image ({batch}).")
    if sizes.numel() and (int(sizes.min()) < 0 or int(sizes.max()) > min(height, width)):
        seen = int(sizes.min()) if int(sizes.min()) < 0 else int(sizes.max())
        raise InputError(f"size must be between 0 and the image's {min(height, width)} pixels, not {seen}.")
    if not per_sample and sizes.ndim:
        raise InputError("size must be one number when per_sample=False.")
    if not is_number(fill) or not math.isfinite(fill):
        raise InputError(f"fill must be a finite value, not {fill!r}.")
    generator = generator_or_default(generator)
    corners = torch.rand((batch if per_sample else 1, 2), generator=generator, device=generator.device)
    corners, sizes = corners.to(x.device), sizes.to(x.device)
    rows = _span(corners[:, 0], sizes, height)
    columns = _span(corners[:, 1], sizes, width)
    covered = rows.unsqueeze(2) & columns.unsqueeze(1)
    return x.masked_fill(covered.unsqueeze(1), fill)


def generator_or_default(generator: torch.Generator | None) -> torch.Generator:
    """Return the generator, a fresh one with seed 0 for None."""
    if generator is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator must be a torch.Generator or None, not {generator!r}.")
    return generator


def _span(uniform: Tensor, sizes: Tensor, length: int) -> Tensor:
    """Which of ``length`` pixels a side covers, all positions being equally likely: (B, length)."""
    start = torch.minimum((uniform * (length - sizes + 1)).long(), length - sizes).unsqueeze(1)
    pixels = torch.arange(length, device=uniform.device)
    return (pixels >= start) & (pixels < start + sizes.reshape(-1, 1))
