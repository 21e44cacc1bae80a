"""Drop-in torch optimizers that pick their momentum at every step.

With one candidate the step is torch's own function, so the result is torch's, bit for bit. With several, the buffers
and the parameter update follow torch's order of operations, so a run that always picks the same candidate is the run
of torch's optimizer with that value.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import core
from steelyard.optim.greedy_momentum.autocorrelation import GradAutocorrelation
from steelyard.optim.greedy_momentum.core import Floats, Rule
from steelyard.optim.greedy_momentum.greedy import (
    Greedy,
    Group,
    Part,
    Piece,
    Sums,
    Tally,
    blocks,
    check_at_least_zero,
    column,
    cut,
    cut_each,
    directions,
    exact,
    gradient,
    in_sample,
    inner_products,
    rounds_like_numbers,
    scale_,
    stored,
    weighs,
)

__all__ = ["GradAutocorrelation", "GreedyAdamW", "GreedySGD"]


def check_seam(function: Callable[..., object], needs: set[str]) -> None:
    """Raise ImportError unless ``function``, which torch's own optimizers step with, takes the arguments ``needs``."""
    if not needs <= set(inspect.signature(function).parameters):
        raise ImportError(f"torch {torch.__version__} has another {function.__name__}() than these optimizers rest on.")


# Through importlib, since torch.optim hides its modules sgd and adam behind other names.
_sgd = importlib.import_module("torch.optim.sgd").sgd
_adam = importlib.import_module("torch.optim.adam").adam
check_seam(
    _sgd, {"params", "d_p_list", "momentum_buffer_list", "foreach", "weight_decay", "momentum", "lr", "maximize"}
)
check_seam(_adam, {"params", "grads", "exp_avgs", "exp_avg_sqs", "state_steps", "foreach", "decoupled_weight_decay"})


class GreedySGD(Greedy):
    """SGD that carries one momentum buffer per candidate and steps with the best aligned one.

    The alignment of candidate m is J_m = <g, buf_m> sqrt(1 - m^2) (README of the paper's repository). Drop-in for
    ``torch.optim.SGD`` without ``nesterov`` and ``dampening``; one candidate is torch's SGD bit for bit. Schedulers
    work as with torch: ``group["momentum"]`` shows the value last chosen (the mean over tensors for "per_param"); a
    value that a scheduler writes there is used with one candidate and ignored with several (warned once).

    Memory: one buffer per candidate (none for candidate 0, unless score="next"). With gradient scaling, step after
    unscaling, as ``torch.amp.GradScaler`` does. Under data-parallel training the gradients are equal on all ranks and
    nothing needs doing; where parameters are sharded, pass ``reduce``. A scalar tensor ``lr`` is read on the host.

    Args:
        params: Parameters, or dicts of groups; a group may set ``lr``, ``weight_decay``, ``maximize``, ``foreach`` and,
            under selection="per_param", ``momentum``.
        lr: Learning rate.
        momentum: Candidates in [0, 1), sorted and unique; one number is a single candidate.
        selection: "global" (one candidate for all tensors, from the sum of their J) or "per_param".
        j_ema: Smoothing of J over steps, in [0, 1). Default 0.
        score: "in_sample" (default) or "next": <g_t, buf_{t-1}>, unbiased for the expected drop; smooth it.
        normalization: "accumulator" (default) or "literal": sqrt(1 - m^2), the same for SGD; "none".
        hysteresis: Steps in a row for which the raw J must favour a candidate before a switch; 0 switches at once.
        preset: "paper" (README) or "robust" (score "next", normalization "none", j_ema 0.9; an addition of this
            library); knobs that are given as well win.
        weight_decay: L2 penalty, inside the buffers as in torch; J takes the gradient without it as its left factor.
        maximize: Ascend instead.
        foreach: True handles a group's tensors at once, False one by one; None: at once on accelerators and in
            cache-sized blocks on the CPU.
        reduce: Called with float64 CPU tensors of partial sums that it must sum over ranks in place.

    Raises:
        InputError: An argument is outside its range.
    """

    _key = "momentum"
    _averaged = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float | Sequence[float] = (0.5, 0.9, 0.99),
        *,
        selection: core.Selection | None = None,
        j_ema: float | None = None,
        score: core.Score | None = None,
        normalization: core.Normalization | None = None,
        hysteresis: int | None = None,
        preset: core.Preset | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        reduce: Callable[[Tensor], object] | None = None,
    ) -> None:
        candidates = core.check_candidates(momentum, "momentum")
        rule = core.make_rule(
            preset,
            selection=selection,
            j_ema=j_ema,
            score=score,
            normalization=normalization,
            hysteresis=hysteresis,
        )
        check_at_least_zero(lr=lr, weight_decay=weight_decay)
        self._reduce = reduce
        defaults = {
            "lr": lr,
            "momentum": candidates[0],
            "candidates": candidates,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "rule": rule._asdict(),
        }
        super().__init__(params, defaults)

    def _plain_step(self, group: Group, params: list[Tensor]) -> None:
        momentum = group["momentum"]
        buffers = [self.state[p].get("momentum_buffer") for p in params] if momentum != 0 else []
        _sgd(
            params,
            [gradient(p) for p in params],
            buffers,
            foreach=group["foreach"],
            weight_decay=group["weight_decay"],
            momentum=momentum,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=group["maximize"],
        )
        for p, buffer in zip(params, buffers, strict=False):
            self.state[p]["momentum_buffer"] = buffer

    def _advance(self, group: Group, params: list[Tensor], rule: Rule) -> tuple[Sums, list[Tensor]]:
        values = stored(group["candidates"], rule)
        stacks = [self._stack(p, len(values)) for p in params]
        tally = Tally()
        for block in blocks(group, params):
            grads = [cut(gradient(p), span) for _, p, span in block]
            raw, entering = directions(group, [cut(p, span) for _, p, span in block], grads)
            buffers = [cut_each(stacks[row], span) for row, _, span in block]
            if rule.score == "next":
                for (row, _, _), stack, g in zip(block, buffers, raw, strict=True):
                    tally.add(row, inner_products(stack, g))
            _accumulate(buffers, values, entering)
            if rule.score == "in_sample":
                for (row, _, _), stack, g, d in zip(block, buffers, raw, entering, strict=True):
                    tally.add(row, in_sample(stack, g, d, group))
        sizes = np.array([float(p.numel()) for p in params])
        return Sums(tally.on_host(len(params), len(group["candidates"])), sizes.copy(), sizes), []

    def _stack(self, p: Tensor, size: int) -> Tensor:
        state = self.state[p]
        if "momentum_buffers" not in state:
            state["momentum_buffers"] = p.new_zeros((size, *p.shape))
        stack: Tensor = state["momentum_buffers"]
        return stack

    def _apply(self, part: Part, choice: list[int], rule: Rule) -> None:
        updates = self._chosen(part, choice, rule, "momentum_buffers")
        torch._foreach_add_(part.params, updates, alpha=-float(part.group["lr"]))


def _accumulate(stacks: list[Tensor], values: tuple[float, ...], entering: list[Tensor]) -> None:
    """Set buffer <- m buffer + entering for every candidate m, with torch's rounding."""
    if rounds_like_numbers(stacks):
        torch._foreach_mul_(stacks, [column(values, stack.dtype, stack.dim()) for stack in stacks])
        torch._foreach_add_(stacks, entering)
        return
    for m, buffers in zip(values, zip(*(stack.unbind(0) for stack in stacks), strict=True), strict=True):
        scale_(list(buffers), m)
        torch._foreach_add_(buffers, entering)


class GreedyAdamW(Greedy):
    """AdamW (or Adam) that carries one first moment per candidate beta1 and steps with the best aligned one.

    The alignment of candidate b is J_b = <g, update_b> sqrt((1 - b^2) / W) with torch's update and W the mean of
    1 / (sqrt(v) + eps) (README of the paper's repository; the factor on a running average and the details of update
    and W are reconstructions, each with a knob). Drop-in for ``torch.optim.AdamW`` and, with
    ``decoupled_weight_decay=False``, ``torch.optim.Adam``, without ``amsgrad``; one candidate is torch's optimizer bit
    for bit. ``group["betas"]`` is (value last chosen, beta2). All else is as for :class:`GreedySGD`.

    Args:
        params: Parameters, or dicts of groups; a group may set ``lr``, ``beta2``, ``eps``, ``weight_decay``,
            ``decoupled_weight_decay``, ``maximize``, ``foreach`` and, under selection="per_param", ``beta1``.
        lr: Learning rate.
        beta1: Candidates in [0, 1), sorted and unique; one number is a single candidate.
        beta2: Decay of the second moment, in [0, 1).
        eps: Added to the root of the second moment.
        weight_decay: Decoupled by default; J takes the gradient without a coupled penalty as its left factor.
        decoupled_weight_decay: False adds the penalty to the gradient, as Adam does.
        selection: As for GreedySGD.
        j_ema: As for GreedySGD.
        score: As for GreedySGD; "next" scores the bias-corrected previous moment over the current denominator.
        normalization: "accumulator" (default): sqrt((1 + b) / (1 - b)), which undoes the gain 1 - b of a running
            average; "literal": sqrt(1 - b^2), the README as it stands; "none".
        hysteresis: As for GreedySGD.
        preset: "paper" (normalization "literal") or "robust".
        w_exponent: Exponent of W under the root; 0 leaves W out.
        w_scope: "tensor": W per tensor; "all": one W over all tensors.
        bias_corrected_score: False scores m / (sqrt(v) + eps) from the uncorrected moments.
        maximize: Ascend instead.
        foreach: As for GreedySGD.
        reduce: As for GreedySGD.

    Raises:
        InputError: An argument is outside its range.
    """

    _key = "beta1"
    _averaged = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        beta1: float | Sequence[float] = (0.5, 0.9, 0.99),
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        decoupled_weight_decay: bool = True,
        *,
        selection: core.Selection | None = None,
        j_ema: float | None = None,
        score: core.Score | None = None,
        normalization: core.Normalization | None = None,
        hysteresis: int | None = None,
        preset: core.Preset | None = None,
        w_exponent: float | None = None,
        w_scope: core.WScope | None = None,
        bias_corrected_score: bool | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        reduce: Callable[[Tensor], object] | None = None,
    ) -> None:
        candidates = core.check_candidates(beta1, "beta1")
        rule = core.make_rule(
            preset,
            selection=selection,
            j_ema=j_ema,
            score=score,
            normalization=normalization,
            hysteresis=hysteresis,
            w_exponent=w_exponent,
            w_scope=w_scope,
            bias_corrected_score=bias_corrected_score,
        )
        check_at_least_zero(lr=lr, eps=eps, weight_decay=weight_decay)
        self._reduce = reduce
        defaults = {
            "lr": lr,
            "betas": (candidates[0], _check_beta2(beta2)),
            "candidates": candidates,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "rule": rule._asdict(),
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters; under selection="per_param" it may bring candidates of its own."""
        group = dict(param_group)
        if "beta2" in group:
            group["betas"] = (0.0, _check_beta2(group.pop("beta2")))
        super().add_param_group(group)

    def _plain_step(self, group: Group, params: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p].update(step=_zero_step(), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        states = [self.state[p] for p in params]
        beta1, beta2 = group["betas"]
        _adam(
            params,
            [gradient(p) for p in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=group["foreach"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _advance(self, group: Group, params: list[Tensor], rule: Rule) -> tuple[Sums, list[Tensor]]:
        values = stored(group["candidates"], rule)
        steps = np.array([self._begin(p, len(values)) for p in params])
        if group["decoupled_weight_decay"] and group["weight_decay"] != 0:
            scale_(params, 1 - float(group["lr"]) * group["weight_decay"])
        dots, w_sums = Tally(), Tally()
        denominators: list[Tensor] = []
        for block in blocks(group, params):
            denominators += self._advance_block(dots, w_sums, group, block, steps, values, rule)
        count = len(group["candidates"])
        sizes = np.array([float(p.numel()) for p in params])
        w = w_sums.on_host(len(params), 1)[:, 0].copy() if weighs(rule) else sizes.copy()
        corrected = dots.on_host(len(params), count) * _first_corrections(group["candidates"], steps, rule)
        return Sums(corrected, w, sizes), denominators if rule.bias_corrected_score else []

    def _advance_block(
        self,
        dots: Tally,
        w_sums: Tally,
        group: Group,
        block: list[Piece],
        steps: Floats,
        values: tuple[float, ...],
        rule: Rule,
    ) -> list[Tensor]:
        """Update the moments of a block and tally its sums; return the denominators of the score."""
        grads = [cut(gradient(p), span) for _, p, span in block]
        raw, entering = directions(group, [cut(p, span) for _, p, span in block], grads)
        stacks = [cut_each(self.state[p]["exp_avgs"], span) for _, p, span in block]
        squares = [cut(self.state[p]["exp_avg_sq"], span) for _, p, span in block]
        beta2 = group["betas"][1]
        scale_(squares, beta2)
        torch._foreach_addcmul_(squares, entering, entering, 1 - beta2)
        denominators = _denominators(squares, group, steps[[row for row, _, _ in block]] * rule.bias_corrected_score)
        inverses = torch._foreach_reciprocal(denominators)
        if weighs(rule):
            for (row, _, _), inverse in zip(block, inverses, strict=True):
                w_sums.add(row, exact(inverse).sum().view(1))
        torch._foreach_mul_(inverses, raw)  # now the left factors of the inner products
        if rule.score == "next":
            for (row, _, _), stack, left in zip(block, stacks, inverses, strict=True):
                dots.add(row, inner_products(stack, left))
        _average(stacks, values, entering)
        if rule.score == "in_sample":
            for (row, _, _), stack, left, d in zip(block, stacks, inverses, entering, strict=True):
                dots.add(row, in_sample(stack, left, d, group))
        return denominators

    def _begin(self, p: Tensor, size: int) -> float:
        """Count the step of ``p``, making its state first if there is none; return the count."""
        state = self.state[p]
        if not state:
            moments = p.new_zeros((size, *p.shape))
            state.update(step=_zero_step(), exp_avgs=moments, exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        return float(state["step"])

    def _apply(self, part: Part, choice: list[int], rule: Rule) -> None:
        group, params = part.group, part.params
        steps = np.array([float(self.state[p]["step"]) for p in params])
        lr = float(group["lr"])
        rates = [-lr / (1 - group["candidates"][index] ** step) for index, step in zip(choice, steps, strict=True)]
        moments = self._chosen(part, choice, rule, "exp_avgs")
        kept = iter(part.denominators)
        for block in blocks(group, params):
            denominators = list(islice(kept, len(block)))
            if not denominators:  # the score used others
                squares = [cut(self.state[p]["exp_avg_sq"], span) for _, p, span in block]
                denominators = _denominators(squares, group, steps[[row for row, _, _ in block]])
            torch._foreach_addcdiv_(
                [cut(p, span) for _, p, span in block],
                [cut(moments[row], span) for row, _, span in block],
                denominators,
                [rates[row] for row, _, _ in block],
            )


def _average(stacks: list[Tensor], values: tuple[float, ...], entering: list[Tensor]) -> None:
    """Set moment <- b moment + (1 - b) entering for every candidate b, with torch's rounding."""
    weights = tuple(1 - value for value in values)
    if rounds_like_numbers(stacks):
        torch._foreach_lerp_(stacks, entering, [column(weights, stack.dtype, stack.dim()) for stack in stacks])
        return
    for weight, moments in zip(weights, zip(*(stack.unbind(0) for stack in stacks), strict=True), strict=True):
        torch._foreach_lerp_(moments, entering, weight)


def _first_corrections(candidates: tuple[float, ...], steps: Floats, rule: Rule) -> Floats:
    """Return 1 / (1 - b^t), [P, K]; "next" counts the step before, which at the first step makes the score 0."""
    if not rule.bias_corrected_score:
        return np.ones((len(steps), len(candidates)))
    power = np.asarray(candidates) ** (steps[:, None] - (rule.score == "next"))
    return np.divide(1.0, 1 - power, out=np.zeros_like(power), where=power < 1)


def _denominators(squares: list[Tensor], group: Group, steps: Floats) -> list[Tensor]:
    """Return sqrt(v / (1 - beta2^t)) + eps in torch's order of operations; t = 0 leaves v uncorrected."""
    beta2 = group["betas"][1]
    roots = list(torch._foreach_sqrt(squares))
    torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 if step else 1.0 for step in steps.tolist()])
    torch._foreach_add_(roots, group["eps"])
    return roots


def _zero_step() -> Tensor:
    # Counted on the host and in the dtype that torch's Adam uses, so that its function accepts it.
    return torch.zeros((), dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32)


def _check_beta2(beta2: float) -> float:
    if not 0 <= beta2 < 1:
        raise InputError(f"beta2 must be in [0, 1), got {beta2!r}.")
    return float(beta2)
