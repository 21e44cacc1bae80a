"""What the greedy optimizers share: groups, scoring of candidates, selection and its memory.

The inner products of all tensors come to the host in one transfer per device and step; everything after that is numpy
on [tensors, candidates].
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from steelyard.errors import InputError, NoEffectWarning
from steelyard.optim.greedy_momentum import core
from steelyard.optim.greedy_momentum.core import Choice, Floats, Memory, Rule

CACHE_BLOCK = 1 << 18  # elements that a CPU core updates and scores while they are in its cache
Group = dict[str, Any]
Piece = tuple[int, Tensor, slice | None]  # row of the group's tensors that have a gradient, the tensor, its span


class Sums(NamedTuple):
    """What scoring needs of P tensors, on the host."""

    dots: Floats  # <gradient, update> for each candidate, [P, K]
    w: Floats  # sum of 1 / (sqrt(v) + eps), [P]; the size for SGD
    sizes: Floats  # [P]


class Part(NamedTuple):
    """The tensors of one group that have a gradient."""

    group: Group
    positions: list[int]  # in group["params"]
    params: list[Tensor]
    sums: Sums
    denominators: list[Tensor]  # Adam's, piece by piece in the order of blocks(), for the update


class Tally:
    """Collects vectors of sums on their devices; one transfer per device brings them to the host."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._vectors: list[Tensor] = []

    def add(self, row: int, vector: Tensor) -> None:
        """Add ``vector`` to the sums of ``row``."""
        self._rows.append(row)
        self._vectors.append(vector)

    def on_host(self, rows: int, columns: int) -> Floats:
        """Return the sums by row, float64 [rows, columns]."""
        kinds = {(vector.device, vector.dtype) for vector in self._vectors}
        if len(kinds) == 1 and len(self._rows) == rows:  # nothing was cut in pieces: row after row
            return torch.stack(self._vectors).to("cpu", torch.float64).numpy()
        table = np.zeros((rows, columns))
        for kind in kinds:
            mine = [i for i, vector in enumerate(self._vectors) if (vector.device, vector.dtype) == kind]
            values = torch.stack([self._vectors[i] for i in mine]).to("cpu", torch.float64)
            np.add.at(table, [self._rows[i] for i in mine], values.numpy())
        return table


def exact(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32 at least: sums in half precision would lose the ranking."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def inner_products(stack: Tensor, vector: Tensor) -> Tensor:
    """Return <row, vector> for each row of ``stack`` [K, ...], [K]."""
    return torch.mv(exact(stack.reshape(len(stack), -1)), exact(vector.reshape(-1)))


def blocks(group: Group, params: list[Tensor]) -> Iterator[list[Piece]]:
    """Yield what is updated and scored at one go.

    That is everything on accelerators (foreach kernels), each tensor with ``foreach=False``, and a cache-sized lot of
    small tensors or piece of a large one on the CPU, which has no foreach kernels.
    """
    if on_accelerator(params):
        whole: list[Piece] = [(row, p, None) for row, p in enumerate(params)]
        yield from [whole] if group["foreach"] is not False else ([piece] for piece in whole)
        return
    block: list[Piece] = []
    filled = 0
    for row, p in enumerate(params):
        size = p.numel()
        if size > CACHE_BLOCK and p.is_contiguous() and gradient(p).is_contiguous():
            for at in range(0, size, CACHE_BLOCK):
                yield [(row, p, slice(at, at + CACHE_BLOCK))]
            continue
        if block and filled + size > CACHE_BLOCK:
            yield block
            block, filled = [], 0
        block.append((row, p, None))
        filled += size
    if block:
        yield block


def on_accelerator(params: list[Tensor]) -> bool:
    """Return whether the tensors are all on devices that have foreach kernels."""
    return all(p.device.type != "cpu" for p in params)


def rounds_like_numbers(stacks: list[Tensor]) -> bool:
    """Return whether to treat all candidates in one call, with their values in a tensor.

    On the CPU and in float32 or float64 the result is the one that torch has for a number; accelerators are faster
    candidate by candidate, and half precision would round the values.
    """
    return not on_accelerator(stacks) and all(stack.dtype in (torch.float32, torch.float64) for stack in stacks)


@lru_cache(maxsize=64)
def column(values: tuple[float, ...], dtype: torch.dtype, dimensions: int) -> Tensor:
    """Return ``values`` as a tensor [K, 1, ...] that multiplies a stack of ``dimensions``."""
    return torch.tensor(values, dtype=dtype).view(-1, *[1] * (dimensions - 1))


def scale_(tensors: list[Tensor], factor: float) -> None:
    """Multiply by a number in place; on the CPU ``_foreach_mul_`` would round it to the tensors' dtype first."""
    if on_accelerator(tensors):
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def cut(tensor: Tensor, span: slice | None) -> Tensor:
    """Return the span of the flat ``tensor``."""
    return tensor if span is None else tensor.view(-1)[span]


def cut_each(stack: Tensor, span: slice | None) -> Tensor:
    """Return the span of every row of ``stack`` [K, ...]."""
    return stack if span is None else stack.view(len(stack), -1)[:, span]


def gradient(p: Tensor) -> Tensor:
    """Return the gradient of ``p``, which must have one."""
    assert p.grad is not None
    return p.grad


def directions(group: Group, params: list[Tensor], grads: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (raw gradients to descend, what enters the buffers: with the coupled decay), in torch's order."""
    raw = list(torch._foreach_neg(grads)) if group["maximize"] else grads
    if group["weight_decay"] == 0 or group.get("decoupled_weight_decay", False):
        return raw, raw
    return raw, list(torch._foreach_add(raw, params, alpha=group["weight_decay"]))


def in_sample(stack: Tensor, left: Tensor, entering: Tensor, group: Group) -> Tensor:
    """Return <left, buffer> for each candidate, [K]; the buffer of candidate 0 is what enters, and is not stored."""
    products = inner_products(stack, left)
    if group["candidates"][0] != 0:
        return products
    return torch.cat([inner_products(entering.unsqueeze(0), left), products])


def weighs(rule: Rule) -> bool:
    """Return whether the preconditioner's mean W enters the score."""
    return rule.normalization != "none" and rule.w_exponent != 0


def check_at_least_zero(**values: float | Tensor) -> None:
    """Raise InputError for the first value that is negative, not a number, or not one number."""
    for name, value in values.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise InputError(f"{name} must be one number, got a tensor of {value.numel()} elements.")
        if not float(value) >= 0:
            raise InputError(f"{name} must be at least 0, got {float(value)}.")


def stored(candidates: Sequence[float], rule: Rule) -> tuple[float, ...]:
    """Return the candidates that need a buffer: 0 needs none, unless the previous gradient is scored."""
    return tuple(m for m in candidates if m != 0 or rule.score == "next")


def recall(group: Group) -> Memory:
    """Return the selection's memory from ``group``."""
    return Memory(*(group["memory"][name].numpy() for name in Memory._fields))


def remember(group: Group, memory: Memory) -> None:
    """Put ``memory`` into ``group``."""
    # Tensors, since these travel through state_dict and torch.load(weights_only=True).
    group["memory"] = {name: torch.from_numpy(np.array(field)) for name, field in memory._asdict().items()}


def shown(group: Group) -> float:
    """Return the number that stands in the group where schedulers look for the momentum."""
    return float(group["momentum"] if "momentum" in group else group["betas"][0])


def held(group: Group) -> float:
    """Return the chosen value, averaged over the group's tensors under "per_param"."""
    choice = group["memory"]["choice"].tolist()
    if len(choice) == 1:
        return float(group["candidates"][choice[0]])
    return float(np.mean([group["candidates"][index] for index in choice]))


def show(group: Group) -> None:
    """Write the chosen value to where schedulers and loggers look for it."""
    if "momentum" in group:
        group["momentum"] = held(group)
    else:
        group["betas"] = (held(group), *group["betas"][1:])


class Greedy(Optimizer, ABC):
    """What the two optimizers share: groups, selection, memory. Subclasses update buffers and parameters."""

    _key: ClassVar[str]  # name of the candidates' argument
    _averaged: ClassVar[bool]  # buffers are running averages (Adam), not accumulators (SGD)
    _warned = False
    _reduce: Callable[[Tensor], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles keep: torch's own forgets ``reduce``, and ranks would drift apart unseen."""
        return {**super().__getstate__(), "_reduce": self._reduce}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state that this class returned; InputError for one of torch's own optimizers."""
        if any("rule" not in group or "memory" not in group for group in state_dict["param_groups"]):
            raise InputError(
                f"state_dict was not made by {type(self).__name__}: it holds no candidates; start with a fresh state."
            )
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; under selection="per_param" it may bring candidates of its own."""
        for name in (*Rule._fields, "rule", "preset"):
            if name in param_group:
                raise InputError(f"{name} holds for the whole optimizer and cannot be set for one group.")
        group = dict(param_group)
        if self._key in group:
            group["candidates"] = core.check_candidates(group.pop(self._key), self._key)
        super().add_param_group(group)
        try:
            self._finish_group(self.param_groups[-1], self.param_groups[0])
        except InputError:
            self.param_groups.pop()
            raise

    def _finish_group(self, group: Group, first: Group) -> None:
        one_for_all = group["rule"]["selection"] == "global"
        if one_for_all and group["candidates"] != first["candidates"]:
            raise InputError(
                f"{self._key} must be the same in every group when selection is 'global'; "
                "use selection='per_param' for groups of their own."
            )
        if any(torch.is_complex(p) for p in group["params"]):
            raise InputError("params must be real: the alignment of complex gradients is not defined here.")
        if one_for_all and group is not first:
            remember(group, recall(first))
        else:
            remember(group, core.new_memory(1 if one_for_all else len(group["params"]), len(group["candidates"])))
        show(group)

    @property
    def rule(self) -> Rule:
        """How candidates are chosen."""
        return Rule(**self.param_groups[0]["rule"])

    @property
    def last_choice(self) -> Choice | tuple[Choice, ...]:
        """The candidate used in the last step: one for "global", one per parameter in order for "per_param".

        Before the first step, and for a parameter that never had a gradient, it is the smallest candidate. A single
        candidate reports the value in use, which a scheduler may have written.
        """
        choices = []
        for group in self.param_groups:
            candidates = group["candidates"] if len(group["candidates"]) > 1 else (shown(group),)
            choices += [Choice(index, candidates[index]) for index in group["memory"]["choice"].tolist()]
        return choices[0] if self.rule.selection == "global" else tuple(choices)

    @property
    def alignment(self) -> Tensor | tuple[Tensor, ...]:
        """J per candidate in the last step (smoothed by ``j_ema``), float64 [K]; one per parameter for "per_param".

        Zero before the first step, and with a single candidate, which is never scored.
        """
        rows = [row.clone() for group in self.param_groups for row in group["memory"]["alignment"]]
        return rows[0] if self.rule.selection == "global" else tuple(rows)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: Not accepted: a second evaluation of the gradient inside the step has no alignment.

        Raises:
            InputError: A closure was passed, or a gradient is sparse. Nothing was changed.
        """
        if closure is not None:
            raise InputError(f"closure is not accepted by {type(self).__name__}; call backward() before step().")
        for group in self.param_groups:
            if any(p.grad is not None and p.grad.layout is not torch.strided for p in group["params"]):
                raise InputError("params must not have sparse gradients; use dense ones (sparse=False).")
        rule = self.rule
        parts = []
        for group in self.param_groups:
            positions = [i for i, p in enumerate(group["params"]) if p.grad is not None]
            params = [group["params"][i] for i in positions]
            if len(group["candidates"]) == 1:
                self._plain_step(group, params)
            elif params:
                self._note_scheduler(group)
                parts.append(Part(group, positions, params, *self._advance(group, params, rule)))
        if parts:
            choices = self._choose(self._scores(parts, rule), parts, rule)
            for part, choice in zip(parts, choices, strict=True):
                self._apply(part, choice, rule)

    @abstractmethod
    def _plain_step(self, group: Group, params: list[Tensor]) -> None:
        """Step with torch's own function."""

    @abstractmethod
    def _advance(self, group: Group, params: list[Tensor], rule: Rule) -> tuple[Sums, list[Tensor]]:
        """Update every candidate's buffer; return the sums and Adam's denominators."""

    @abstractmethod
    def _apply(self, part: Part, choice: list[int], rule: Rule) -> None:
        """Move each parameter by its chosen candidate."""

    def _chosen(self, part: Part, choice: list[int], rule: Rule, name: str) -> list[Tensor]:
        """Return the chosen candidate's buffer of each tensor; that of candidate 0 is made here if it is not stored."""
        offset = len(part.group["candidates"]) - len(stored(part.group["candidates"], rule))
        updates = []
        for p, index in zip(part.params, choice, strict=True):
            if index >= offset:
                updates.append(self.state[p][name][index - offset])
            else:
                updates += directions(part.group, [p], [gradient(p)])[1]
        return updates

    def _scores(self, parts: list[Part], rule: Rule) -> list[Floats]:
        """Return J of every part, [P, K]."""
        if self._reduce is not None:  # sharded parameters: what was summed here is a part of the sum
            for part in parts:
                for sums in part.sums:
                    self._reduce(torch.from_numpy(sums))
        factors = [core.norm_factors(part.group["candidates"], rule.normalization, self._averaged) for part in parts]
        if not self._averaged or not weighs(rule):
            return [part.sums.dots * factor for part, factor in zip(parts, factors, strict=True)]
        w_sums, sizes = [part.sums.w for part in parts], [part.sums.sizes for part in parts]
        if rule.w_scope == "all":
            mean = np.concatenate(w_sums).sum() / max(np.concatenate(sizes).sum(), 1.0)
            w_sums = [mean * size for size in sizes]
        return [
            core.scale_scores(part.sums.dots, w, size, factor, rule.w_exponent)
            for part, w, size, factor in zip(parts, w_sums, sizes, factors, strict=True)
        ]

    def _choose(self, scores: list[Floats], parts: list[Part], rule: Rule) -> list[list[int]]:
        """Return, for each part, the index of the candidate for each of its tensors; updates the memory."""
        if rule.selection == "global":
            total = np.array([score.sum(axis=0) for score in scores]).sum(axis=0, keepdims=True)
            memory = self._select(recall(parts[0].group), total, rule)
            for group in self.param_groups:
                remember(group, memory)
                show(group)
            return [[int(memory.choice[0])] * len(part.params) for part in parts]
        chosen = []
        for part, score in zip(parts, scores, strict=True):
            before = recall(part.group)
            memory = self._select(before.rows(part.positions), score, rule)
            remember(part.group, before.with_rows(part.positions, memory))
            show(part.group)
            chosen.append(memory.choice.tolist())
        return chosen

    def _select(self, memory: Memory, scores: Floats, rule: Rule) -> Memory:
        memory, finite = core.select(memory, scores, rule.j_ema, rule.hysteresis)
        if not finite:
            message = (
                "the alignment of this step is not finite (NaN or inf gradients?); the previous candidate is kept."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=6)
        return memory

    def _note_scheduler(self, group: Group) -> None:
        if self._warned or shown(group) == held(group):
            return
        self._warned = True
        message = (
            f"a scheduler wrote the group's momentum, which {type(self).__name__} ignores: with several candidates it "
            "chooses by itself (give one candidate to follow the scheduler, or switch its momentum cycling off)."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=5)
