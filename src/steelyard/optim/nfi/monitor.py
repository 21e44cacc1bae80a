"""Watch a classifier during training and say when numerical feature inflation is on or a loss spike is near."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steelyard.errors import InputError
from steelyard.optim.nfi.theory import wrong_mass

# The seams: hooks that run after a forward pass, on a tensor's gradient, and around an optimizer's step.
assert callable(nn.Module.register_forward_hook)
assert callable(Tensor.register_hook)
assert callable(torch.optim.Optimizer.register_step_pre_hook)
assert callable(torch.optim.Optimizer.register_step_post_hook)

_LOG = logging.getLogger("steelyard.nfi")
ACTIVE = "NFI active"
IMMINENT = "spike imminent"


@dataclass(frozen=True)
class AlarmRule:
    """When to raise an alarm (an addition of this library; every threshold is a knob).

    Attributes:
        sc_frac: "NFI active" needs more than this share of samples with a collapsed gradient,
        cosine: and cos(W_G, mu_G) below this,
        growth: and ||mu_G|| grown by more than this factor over the window.
        update_ratio: "spike imminent" needs an update this many times larger than the window's median.
        window: Recorded steps to look back.
    """

    sc_frac: float = 0.5
    cosine: float = -0.5
    growth: float = 2.0
    update_ratio: float = 10.0
    window: int = 200

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"window must be at least 1 record, not {self.window}.")

    def active(self, sc_frac: float, cosine: float, growth: float) -> bool:
        """Return whether the three signs of running inflation are there together."""
        return sc_frac > self.sc_frac and cosine < self.cosine and growth > self.growth


@dataclass(frozen=True)
class NFIRecord:
    """One recorded step; what could not be known is NaN.

    Attributes:
        step: Optimizer steps so far (backward passes without an optimizer).
        sc_frac: Share of samples whose true-class gradient is exactly 0 beside a wrong-class one that is not, among the
            rows that have any gradient (ignored rows, and rows that underflowed whole, are left out).
        zero_sum_defect: ||sum_i (sum_k g_ik) h_i||, 0 in exact arithmetic; times lr/K the drift of the mean row.
        eps: Mean wrong-class mass of a sample.
        w_norm: ||W_G||, norm of the classifier's mean row.
        mu_norm: ||mu_G||, norm of the mean feature of the batch.
        cosine: cos(W_G, mu_G).
        predicted_growth: 1 + lr eps / sqrt(K), eps over the collapsed samples only: the others do not drift.
        measured_growth: Factor of ||mu_G|| per step since the last record.
        window_growth: Factor of ||mu_G|| over the window.
        effective_lr: Largest lr / (sqrt(v_hat) + eps) of any weight (optimizers with Adam's state).
        update_norm: Norm of the optimizer's step.
        update_ratio: That norm over its median in the window.
        alarms: The alarms that hold.
    """

    step: int
    sc_frac: float
    zero_sum_defect: float
    eps: float
    w_norm: float
    mu_norm: float
    cosine: float
    predicted_growth: float
    measured_growth: float
    window_growth: float
    effective_lr: float
    update_norm: float
    update_ratio: float
    alarms: tuple[str, ...]


class _Batch:
    """Sums over the backward passes of one step (several under gradient accumulation)."""

    def __init__(self) -> None:
        self.rows = 0
        self.collapsed = 0.0
        self.eps = 0.0
        self.eps_collapsed = 0.0
        self.passes = 0
        self.defect: Tensor | None = None
        self.features: Tensor | None = None

    def add(self, features: Tensor, gradient: Tensor, mean: bool, scale: float) -> None:
        h = features.reshape(-1, features.shape[-1]).to(_statistics_dtype(features))
        g = gradient.reshape(-1, gradient.shape[-1])
        counted = (g != 0).any(-1)  # a row that the loss ignores has no gradient at all
        h, g = h[counted], g[counted]
        if not len(g):
            return
        # Without labels: only the true class's entry is ever negative, so a row without one has lost it.
        lost = (g >= 0).all(-1) & (g > 0).any(-1)
        g = g.to(h.dtype)
        mass = wrong_mass(g) / scale
        factor = 1.0 if mean else 1.0 / len(g)
        defect = (g.sum(-1) / scale) @ h * factor
        self.rows += len(g)
        self.passes += 1
        self.collapsed += float(lost.sum())
        self.eps += float(mass.sum()) * factor
        self.eps_collapsed += float(mass[lost].sum()) * factor
        self.defect = defect if self.defect is None else self.defect + defect
        self.features = h.sum(0) if self.features is None else self.features + h.sum(0)


class NFIMonitor:
    """Context manager that watches a linear classifier through hooks and changes nothing.

    The gradient is read where it leaves the head's output, before any guard's hook on the logits: a zero-sum
    projection hides the collapse. Collapse is read from the gradient, never from a margin (the margin at which it
    happens depends on the processor). A fused cross-entropy that never forms the logits bypasses the hooks.

    Args:
        head: The classifier, with ``weight`` (K, d); its input is the feature h, its output the logits.
        optimizer: Optimizer of the head's weight. Without one a record is made per backward pass, and learning rate,
            update and predicted growth stay NaN.
        every: Record every so many steps.
        rule: Thresholds of the alarms.
        reduction: "mean" or "sum": how the loss adds up its samples (for the scale of eps).
        loss_scale: Factor on the loss, or a function that returns it (``scaler.get_scale``).
        watch: "all" parameters of the optimizer for the update's norm (one copy of them), or the "head" only.
        keep: Records kept in ``history``.
        on_alarm: Called with a record whose alarms are new; default: one warning in the log ``steelyard.nfi``.

    Attributes:
        history: The records, oldest first.
        alarms: (step, alarm) for each time that an alarm set in.

    Raises:
        InputError: An option out of range, or an optimizer that does not hold the head's weight.
    """

    def __init__(
        self,
        head: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 1,
        rule: AlarmRule | None = None,
        reduction: str = "mean",
        loss_scale: float | Callable[[], float] = 1.0,
        watch: str = "all",
        keep: int = 10_000,
        on_alarm: Callable[[NFIRecord], None] | None = None,
    ) -> None:
        self._weight = _check_monitor(head, every, reduction, watch, keep)
        self.head, self.every = head, every
        # accelerate wraps the optimizer; hooks belong on the one that takes the step.
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self._group = _group_of(self._weight, self.optimizer)
        self.rule = rule or AlarmRule()
        self._mean, self._loss_scale, self._watch = reduction == "mean", loss_scale, watch
        self.history: deque[NFIRecord] = deque(maxlen=keep)
        self.alarms: list[tuple[int, str]] = []
        self.step = 0
        self._on_alarm = on_alarm or _warn
        self._handles: list[RemovableHandle] = []
        self._batch = _Batch()
        self._before: list[Tensor] = []

    def __enter__(self) -> Self:
        """Attach the hooks."""
        if self._handles:
            raise InputError("NFIMonitor is attached already; leave its context first.")
        self._handles = [self.head.register_forward_hook(self._after_forward, with_kwargs=True)]
        if self.optimizer is not None:
            self._handles.append(self.optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(self.optimizer.register_step_post_hook(self._after_step))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._before = []

    def state_dict(self) -> dict[str, Any]:
        """Return step, history and alarms as plain numbers, to go on after a restart."""
        return {
            "step": self.step,
            "history": [asdict(record) for record in self.history],
            "alarms": [list(alarm) for alarm in self.alarms],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that :meth:`state_dict` returned."""
        self.step = int(state["step"])
        records = [NFIRecord(**{**record, "alarms": tuple(record["alarms"])}) for record in state["history"]]
        self.history = deque(records, maxlen=self.history.maxlen)
        self.alarms = [(int(step), str(name)) for step, name in state["alarms"]]

    @property
    def _due(self) -> bool:
        return (self.step + 1) % self.every == 0

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        if not output.requires_grad or (self.optimizer is not None and not self._due):
            return
        features = (*inputs, *named.values())[0].detach()
        output.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: self._after_backward(features, gradient)
        )

    @torch.no_grad()
    def _after_backward(self, features: Tensor, gradient: Tensor) -> None:
        if self.optimizer is None:
            self.step += 1
            if self.step % self.every:
                return
        if callable(self._loss_scale) and not bool(gradient.isfinite().all()):
            return  # the scaler skips this step, so no record would take the sums away
        scale = self._loss_scale() if callable(self._loss_scale) else self._loss_scale
        self._batch.add(features, gradient, self._mean, scale)
        if self.optimizer is None:
            self._record(math.nan)

    def _before_step(self, *_: Any) -> None:
        if self._due:
            self._before = [parameter.detach().clone() for parameter in self._watched()]

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self.step += 1
        if self._before and self._batch.rows:
            moves = [(now - old).norm().double() for now, old in zip(self._watched(), self._before, strict=True)]
            self._record(float(torch.stack(moves).norm()))
        self._before = []

    def _watched(self) -> list[Tensor]:
        if self._watch == "head" or self.optimizer is None:
            return [self._weight]
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def _record(self, update_norm: float) -> None:
        batch, self._batch = self._batch, _Batch()
        assert batch.features is not None
        assert batch.defect is not None
        mu = batch.features / batch.rows
        w = self._weight.detach().to(mu.dtype).mean(0)
        mu_norm, w_norm = float(mu.norm()), float(w.norm())
        window = list(self.history)[-self.rule.window :]
        norms = [record.update_norm for record in window if math.isfinite(record.update_norm)]
        lr = math.nan if self._group is None else float(self._group["lr"])
        last = window[-1] if window else None
        record = NFIRecord(
            step=self.step,
            sc_frac=batch.collapsed / batch.rows,
            zero_sum_defect=float(batch.defect.norm()) / batch.passes,
            eps=batch.eps / batch.passes,
            w_norm=w_norm,
            mu_norm=mu_norm,
            cosine=float(w @ mu) / (w_norm * mu_norm) if w_norm * mu_norm > 0 else 0.0,
            predicted_growth=1 + lr * batch.eps_collapsed / batch.passes / math.sqrt(len(self._weight)),
            measured_growth=_ratio(mu_norm, last.mu_norm) ** (1 / (self.step - last.step)) if last else math.nan,
            window_growth=_ratio(mu_norm, window[0].mu_norm) if window else 1.0,
            effective_lr=_largest_effective_lr(self.optimizer),
            update_norm=update_norm,
            update_ratio=_ratio(update_norm, statistics.median(norms)) if norms else math.nan,
            alarms=(),
        )
        self._alarm(record, last)

    def _alarm(self, record: NFIRecord, last: NFIRecord | None) -> None:
        names = []
        if self.rule.active(record.sc_frac, record.cosine, record.window_growth):
            names.append(ACTIVE)
        if record.update_ratio > self.rule.update_ratio:
            names.append(IMMINENT)
        record = NFIRecord(**{**asdict(record), "alarms": tuple(names)})
        self.history.append(record)
        new = [name for name in names if last is None or name not in last.alarms]
        self.alarms += [(record.step, name) for name in new]
        if new:
            self._on_alarm(record)


def _check_monitor(head: nn.Module, every: int, reduction: str, watch: str, keep: int) -> Tensor:
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise InputError(f"head must have a weight of shape (K, d); {type(head).__name__} has none.")
    if every < 1 or keep < 1:
        raise InputError(f"every and keep must be at least 1, not {every} and {keep}.")
    if reduction not in ("mean", "sum"):
        raise InputError(f"reduction must be 'mean' or 'sum', not {reduction!r}.")
    if watch not in ("all", "head"):
        raise InputError(f"watch must be 'all' or 'head', not {watch!r}.")
    return weight


def _group_of(weight: Tensor, optimizer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    for group in optimizer.param_groups:
        if any(parameter is weight for parameter in group["params"]):
            return group
    raise InputError("optimizer does not hold the weight of head; pass the one that trains it.")


def _largest_effective_lr(optimizer: torch.optim.Optimizer | None) -> float:
    """Return the largest lr / (sqrt(v_hat) + eps) of any weight, NaN for an optimizer without Adam's state."""
    largest = math.nan
    for group in optimizer.param_groups if optimizer is not None else ():
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
            if "exp_avg_sq" not in state or "betas" not in group:
                continue
            correction = 1 - group["betas"][1] ** float(state["step"])
            v = float(state["exp_avg_sq"].min()) / correction
            largest = max(float(group["lr"]) / (math.sqrt(v) + group["eps"]), 0.0 if math.isnan(largest) else largest)
    return largest


def _statistics_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference > 0 else math.nan


def _warn(record: NFIRecord) -> None:
    _LOG.warning(
        "step %d: %s (collapsed %.0f %%, cos %.2f, feature mean %.3g, update ratio %.3g)",
        record.step,
        " and ".join(record.alarms),
        100 * record.sc_frac,
        record.cosine,
        record.mu_norm,
        record.update_ratio,
    )
