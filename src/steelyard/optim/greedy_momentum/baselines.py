"""What greedy momentum is weighed against; the fixed sweep is torch's own SGD and AdamW.

Every optimizer takes the same ``lr`` as torch's SGD, so that a comparison varies the momentum alone; all refuse nothing
that torch's SGD accepts but sparse gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.errors import InputError
from steelyard.optim.greedy_momentum.core import Floats, Memory, Rule
from steelyard.optim.greedy_momentum.greedy import check_at_least_zero
from steelyard.optim.greedy_momentum.torch_optim import GreedyAdamW, GreedySGD


class _Random:
    """Draws the candidate instead of scoring it: the floor, at the same cost in buffers."""

    _generator: np.random.Generator

    def _select(self, memory: Memory, scores: Floats, rule: Rule) -> Memory:
        choice = self._generator.integers(scores.shape[1], size=len(scores))
        return memory._replace(alignment=scores, choice=choice)


class RandomSGD(_Random, GreedySGD):
    """SGD with a uniformly random candidate at every step."""

    def __init__(self, params: Any, lr: float, generator: np.random.Generator, **knobs: Any) -> None:
        self._generator = generator
        super().__init__(params, lr, **knobs)


class RandomAdamW(_Random, GreedyAdamW):
    """AdamW with a uniformly random candidate at every step."""

    def __init__(self, params: Any, lr: float, generator: np.random.Generator, **knobs: Any) -> None:
        self._generator = generator
        super().__init__(params, lr, **knobs)


def one_cycle(step: int, total: int, low: float = 0.85, high: float = 0.95, rise: float = 0.3) -> float:
    """Return the momentum that torch's OneCycleLR writes at ``step`` of ``total``: high, low at ``rise``, high again.

    Raises:
        InputError: ``step`` is not in 0..total.
    """
    _check_step(step, total)
    turn, end = rise * total - 1, total - 1
    if step <= turn:
        return low + (high - low) / 2 * (1 + math.cos(math.pi * step / turn))
    return high + (low - high) / 2 * (1 + math.cos(math.pi * min((step - turn) / (end - turn), 1.0)))


def demon(step: int, total: int, initial: float = 0.9) -> float:
    """Return the momentum of Demon (Chen et al. 2019) at ``step`` of ``total``: it decays from ``initial`` to 0.

    Raises:
        InputError: ``step`` is not in 0..total, or ``initial`` not in [0, 1).
    """
    _check_step(step, total)
    if not 0 <= initial < 1:
        raise InputError(f"initial must be in [0, 1), got {initial!r}.")
    left = 1 - step / total
    return initial * left / ((1 - initial) + initial * left)


def _check_step(step: int, total: int) -> None:
    if not 0 <= step <= total or total <= 0:
        raise InputError(f"step must be in 0..total with total above 0, got {step} of {total}.")


class ScheduledSGD(torch.optim.SGD):
    """torch's SGD whose momentum follows ``schedule(step, total)``, such as :func:`demon` or :func:`one_cycle`.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        schedule: Momentum at a step of a total.
        total: Number of steps.
    """

    def __init__(self, params: Any, lr: float, schedule: Callable[[int, int], float], total: int) -> None:
        super().__init__(params, lr, momentum=schedule(0, total))
        self._schedule, self._total, self._taken = schedule, total, 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the scheduled momentum."""
        for group in self.param_groups:
            group["momentum"] = self._schedule(self._taken, self._total)
        super().step(closure)
        self._taken += 1


class _Momentum(Optimizer):
    """SGD with a heavy ball whose momentum, rate or update a subclass adapts; one group state for all tensors."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, **defaults: Any) -> None:
        check_at_least_zero(lr=lr)
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be in [0, 1), got {momentum!r}.")
        super().__init__(params, {"lr": lr, "momentum": momentum, **defaults})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; a closure is not accepted (InputError)."""
        if closure is not None:
            raise InputError(f"closure is not accepted by {type(self).__name__}; call backward() before step().")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params, [p.grad for p in params])

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Take one heavy ball step."""
        buffers = self._buffers(params, "momentum_buffer")
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, grads)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])

    def _buffers(self, params: list[Tensor], name: str) -> list[Tensor]:
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p)
        return [self.state[p][name] for p in params]


class YellowFin(_Momentum):
    """Momentum from the range of curvatures (Zhang & Mitliagkas 2017), at the given rate.

    Curvature is the squared gradient norm; its extremes over a window of steps, the variance of the gradient and the
    distance to the optimum, each a debiased running average, give
    sqrt(mu) = max(root of the cubic of the noisy quadratic, (sqrt(h_max/h_min) - 1) / (sqrt(h_max/h_min) + 1)).
    The method's own learning rate is left out, since arms are compared at equal rates.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        beta: Decay of the running averages.
        window: Steps over which the curvature's extremes are taken.
    """

    def __init__(self, params: Any, lr: float, beta: float = 0.999, window: int = 20) -> None:
        super().__init__(params, lr, momentum=0.0, beta=beta, window=window)
        for group in self.param_groups:
            group["averages"] = {}
            group["curvatures"] = []

    def _average(self, group: dict[str, Any], name: str, value: float) -> float:
        """Return the debiased running average of ``value``."""
        beta = group["beta"]
        total, weight = group["averages"].get(name, (0.0, 0.0))
        total, weight = beta * total + (1 - beta) * value, beta * weight + (1 - beta)
        group["averages"][name] = (total, weight)
        return float(total / weight)

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        means = self._buffers(params, "mean_gradient")
        torch._foreach_lerp_(means, grads, 1 - group["beta"])
        square = float(torch.stack(torch._foreach_norm(grads)).square().sum())
        if math.isfinite(square) and square > 0:
            group["momentum"] = self._momentum(group, means, square)
        super()._update(group, params, grads)

    def _momentum(self, group: dict[str, Any], means: list[Tensor], square: float) -> float:
        group["curvatures"] = [*group["curvatures"], square][-group["window"] :]
        high = math.exp(self._average(group, "h_max", math.log(max(group["curvatures"]))))
        low = math.exp(self._average(group, "h_min", math.log(min(group["curvatures"]))))
        second = self._average(group, "square", square)
        weight = group["averages"]["square"][1]
        mean = float(torch.stack(torch._foreach_norm(means)).square().sum()) / weight**2
        variance = max(second - mean, 1e-12)
        norm = self._average(group, "norm", math.sqrt(square))
        curvature = self._average(group, "curvature", square)
        distance = self._average(group, "distance", norm / curvature)
        ratio = math.sqrt(high / low)
        root = max(_cubic_root(distance**2 * low**2 / (2 * variance)), (ratio - 1) / (ratio + 1))
        return self._average(group, "momentum", min(root**2, 0.999))


def _cubic_root(p: float) -> float:
    """Return the root x in (0, 1) of p x = (1 - x)^3."""
    w = (math.sqrt(p * p + 4 / 27 * p**3) + p) / 2
    u = -(w ** (1 / 3))
    return 1 + u - p / (3 * u) if u else 1.0


class HypergradientSGD(_Momentum):
    """Heavy ball whose rate moves by hyper_lr <g_t, g_{t-1}> (Baydin et al. 2018), at least 0.

    A scheduler may still write ``lr``: the hypergradient's part is added to it.

    Args:
        params: Parameters or groups.
        lr: Learning rate at the start.
        hyper_lr: Rate of the rate.
        momentum: Fixed momentum.
    """

    def __init__(self, params: Any, lr: float, hyper_lr: float = 1e-4, momentum: float = 0.9) -> None:
        super().__init__(params, lr, momentum, hyper_lr=hyper_lr)
        for group in self.param_groups:
            group["lr_shift"] = 0.0

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        previous = self._buffers(params, "previous")
        products = [torch.dot(g.reshape(-1), old.reshape(-1)) for g, old in zip(grads, previous, strict=True)]
        group["lr_shift"] += group["hyper_lr"] * float(torch.stack(products).sum())
        torch._foreach_copy_(previous, grads)
        shifted = {**group, "lr": max(group["lr"] + group["lr_shift"], 0.0)}
        super()._update(shifted, params, grads)


class CautiousSGD(_Momentum):
    """Heavy ball that leaves out coordinates where update and gradient disagree (Liang et al. 2024).

    The update u is masked where u g <= 0 and rescaled by numel / nnz.
    """

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        buffers = self._buffers(params, "momentum_buffer")
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, grads)
        for p, g, u in zip(params, grads, buffers, strict=True):
            mask = (u * g > 0).to(u.dtype)
            p.addcmul_(u, mask * (mask.numel() / mask.sum().clamp(min=1)), value=-group["lr"])


class SGDF(_Momentum):
    """SGD on the Wiener-filtered gradient m + K^gamma (g - m), K = s / (s + (g - m)^2) (Yang et al. 2023).

    m and s are bias-corrected running averages of the gradient and of its squared deviation from m.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        betas: Decays of m and s.
        gamma: Exponent on the gain.
        eps: Added to the gain's denominator.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), gamma: float = 0.5, eps: float = 1e-8
    ) -> None:
        super().__init__(params, lr, betas[0], beta2=betas[1], gamma=gamma, eps=eps)
        for group in self.param_groups:
            group["steps"] = 0

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        group["steps"] += 1
        first, second, t = group["momentum"], group["beta2"], group["steps"]
        moments, spreads = self._buffers(params, "mean"), self._buffers(params, "spread")
        torch._foreach_lerp_(moments, grads, 1 - first)
        for p, g, m, s in zip(params, grads, moments, spreads, strict=True):
            deviation = g - m
            s.mul_(second).addcmul_(deviation, deviation, value=1 - second)
            mean = m / (1 - first**t)
            innovation = g - mean
            # s overstates the variance of the mean by the filter's gain, which the authors' code takes out
            spread = s * (1 - first) * (1 - first ** (2 * t)) / ((1 + first) * (1 - second**t))
            gain = spread / (spread + innovation.square() + group["eps"])
            p.sub_(mean + gain ** group["gamma"] * innovation, alpha=group["lr"])


class AdaptiveMemorySGD(_Momentum):
    """Momentum from a model of two planes, the gradient's and the memory's (after Topollai & Choromanska 2025).

    Reconstruction: the loss is modelled by the larger of two planes with slopes g (gradient) and d (memory) that meet
    at the current point; the proximal step on it moves along the shortest vector between them, beta d + (1 - beta) g
    with beta = <g, g - d> / |g - d|^2 clipped to [0, cap], and that vector is the new memory.

    Args:
        params: Parameters or groups.
        lr: Learning rate, on the averaged direction.
        cap: Largest momentum.
    """

    def __init__(self, params: Any, lr: float, cap: float = 0.99) -> None:
        super().__init__(params, lr, momentum=0.0, cap=cap)

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        memory = self._buffers(params, "memory")
        gaps = torch._foreach_sub(grads, memory)
        along = float(torch.stack([(g * gap).sum() for g, gap in zip(grads, gaps, strict=True)]).sum())
        square = float(torch.stack(torch._foreach_norm(gaps)).square().sum())
        beta = min(max(along / square, 0.0), group["cap"]) if square > 0 and math.isfinite(along / square) else 0.0
        if not any(bool(m.any()) for m in memory):  # no memory yet: its plane is flat and would stop the descent
            beta = 0.0
        group["momentum"] = beta
        torch._foreach_lerp_(memory, grads, 1 - beta)
        torch._foreach_add_(params, memory, alpha=-group["lr"])


RIVALS: Mapping[str, Callable[[Any, float, int], Optimizer]] = {
    "one_cycle": lambda params, lr, steps: ScheduledSGD(params, lr, one_cycle, steps),
    "demon": lambda params, lr, steps: ScheduledSGD(params, lr, demon, steps),
    "yellowfin": lambda params, lr, steps: YellowFin(params, lr),
    "hypergradient": lambda params, lr, steps: HypergradientSGD(params, lr),
    "cautious": lambda params, lr, steps: CautiousSGD(params, lr),
    "sgdf": lambda params, lr, steps: SGDF(params, lr),
    "adaptive_memory": lambda params, lr, steps: AdaptiveMemorySGD(params, lr),
}
