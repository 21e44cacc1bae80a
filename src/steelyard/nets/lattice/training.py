"""The training recipe of the lattice network, with warnings where its choice of time has failed."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.core import TaskLoss
from steelyard.nets.lattice.torch_nn import (
    LatticeOutput,
    LatticeRCNN,
    ResourceCost,
    refuse_batch_norm,
    torch_generator,
    whole_number,
)

Augment = Callable[[Tensor, torch.Generator], Tensor]
_MARGIN = 0.02  # E[t] this close to 1 or T is a collapse or a saturation
_LARGEST = 1e37  # of rates and norms: Adam's first step multiplies by ten, and float32 ends at 3.4e38
_SPREAD = 1e-3  # steps; below, E[t] is the same for all inputs


class HaltingWarning(UserWarning):
    """The choice of time has collapsed, saturated or does not depend on the input."""


@dataclass(frozen=True)
class Update:
    """What the progress callback is told after an update: ``number`` of ``total``, and the batch's ``loss``."""

    number: int
    total: int
    loss: float


@dataclass
class History:
    """What training did; every list holds one value per epoch, a mean over its batches.

    Attributes:
        updates: Updates made.
        loss: Task loss plus costs.
        task: Task loss with deep supervision.
        accuracy: Of the mixture, on the (occluded) training batches.
        expected_time: Mean E[t] in steps.
        time_spread: Standard deviation of E[t] over inputs.
        breadth: Weighted breadth cost.
        depth: Weighted depth cost.
        time: Weighted time cost.
        readout: Weighted decay of the readout.
    """

    updates: int = 0
    loss: list[float] = field(default_factory=list)
    task: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    expected_time: list[float] = field(default_factory=list)
    time_spread: list[float] = field(default_factory=list)
    breadth: list[float] = field(default_factory=list)
    depth: list[float] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    readout: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Recipe:
    """How a batch becomes a loss."""

    cost: ResourceCost
    kind: TaskLoss
    deep_supervision: float
    occlusion: tuple[int, int] | None
    fill: float
    augment: Augment | None

    def images(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.occlusion is not None:
            low, high = self.occlusion
            sizes = torch.randint(low, high + 1, (x.shape[0],), generator=generator)
            x = core.occlude(x, sizes.masked_fill(sizes < 2, 0), self.fill, generator=generator)
        return x if self.augment is None else self.augment(x, generator)

    def losses(self, model: LatticeRCNN, x: Tensor, y: Tensor, progress: float) -> tuple[dict[str, Tensor], Tensor]:
        output: LatticeOutput = model(x)
        task = core.task_loss(output.step_logits, output.log_p_time, y, self.kind, self.deep_supervision)
        terms = _checked(self.cost(model, output, progress))
        loss = task + torch.stack(list(terms.values())).sum()
        seen = output.expected_time.detach()
        hits = (output.logits.detach().argmax(1) == y).to(seen.dtype).mean()
        spread = seen.std(correction=0)
        shown = {"loss": loss, "task": task, "accuracy": hits, "expected_time": seen.mean(), "time_spread": spread}
        return {name: value.detach() for name, value in (shown | terms).items()}, loss


def train_lattice(
    model: LatticeRCNN,
    data: tuple[Any, Any],
    cost: ResourceCost | None = None,
    epochs: int = 9,
    lr: float = 4e-3,
    halting_lr: float = 2e-2,
    batch_size: int = 100,
    grad_clip: float = 5.0,
    deep_supervision: float = 0.1,
    occlusion: tuple[int, int] | None = (0, 8),
    seed: int | torch.Generator = 0,
    *,
    updates: int | None = None,
    occlusion_fill: float = 0.5,
    task_loss: TaskLoss = "steps",
    augment: Augment | None = None,
    progress: Callable[[Update], object] | None = None,
) -> History:
    """Train the network in place: Adam, per-sample occlusion, deep supervision, prices that rise.

    Args:
        model: The network; either time selection.
        data: (images (N, C, H, W), class indices (N,)), tensors or arrays.
        cost: Prices of breadth, depth and time; None for none.
        epochs: Passes over the data.
        lr: Adam's rate.
        halting_lr: Adam's rate for the time selection.
        batch_size: Images per update; the last batch of an epoch may be smaller.
        grad_clip: Largest norm of the whole gradient.
        deep_supervision: Weight of the mean cross-entropy of all steps; 0 leaves late readouts untrained.
        occlusion: (smallest, largest) side in pixels of the square that covers each training image, drawn uniformly,
            sides below 2 covering nothing; None for no occlusion.
        seed: Of the order of the data and the occluders, or a torch.Generator.
        updates: Number of updates instead of ``epochs`` passes.
        occlusion_fill: Value of the square.
        task_loss: "steps" for sum_t p_t CE(y_t), "mixture" for the cross-entropy of the mixture.
        augment: Further change of a batch, a function of (images, generator).
        progress: Called with an :class:`Update` after every update.

    Returns:
        The history.

    Raises:
        InputError: Data that do not fit, batch norm, an impossible setting, a loss that is no longer finite, or a first
            layer that died (its price is too high).

    Warns:
        HaltingWarning: E[t] within 2 % of 1 or of T, below 2 steps in a deep network, or equal for all inputs.
    """
    _check_model(model, cost)
    x, y = _tensors(model, data)
    _check_settings(epochs, lr, halting_lr, batch_size, grad_clip, deep_supervision, updates)
    recipe = _Recipe(
        ResourceCost() if cost is None else cost, task_loss, deep_supervision, occlusion, occlusion_fill, augment
    )
    _check_occlusion(occlusion, x)
    generator = torch_generator("training", seed)
    optimizer = _adam(model, lr, halting_lr)
    per_epoch = math.ceil(len(x) / batch_size)
    total = epochs * per_epoch if updates is None else updates
    history, rows = History(), []
    model.train()
    for number, batch in enumerate(_batches(len(x), batch_size, total, generator)):
        images = recipe.images(x[batch], generator)
        row, loss = recipe.losses(model, images, y[batch], number / total)
        if not bool(torch.isfinite(loss)):
            raise InputError(f"the loss is not finite at update {number + 1}: lower lr, or grad_clip = {grad_clip}.")
        _update(optimizer, model, loss, grad_clip)
        rows.append(row)
        history.updates = number + 1
        if progress is not None:
            progress(Update(number + 1, total, float(row["loss"])))
        if len(rows) == per_epoch or number + 1 == total:
            _close_epoch(history, rows)
            refuse_dead_input(model)
            rows = []
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise InputError(f"the weights are not finite after the last update: lower lr, or grad_clip = {grad_clip}.")
    warn_of_halting(model, history.expected_time[-1], history.time_spread[-1])
    return history


def _check_model(model: object, cost: object) -> None:
    if not isinstance(model, LatticeRCNN):
        raise InputError(f"model must be a LatticeRCNN, not {type(model).__name__}.")
    refuse_batch_norm(model)
    if cost is not None and not callable(cost):
        raise InputError(f"cost must be a ResourceCost or None, not {cost!r}.")


def _update(optimizer: torch.optim.Optimizer, model: LatticeRCNN, loss: Tensor, grad_clip: float) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()


def warn_of_halting(model: LatticeRCNN, expected_time: float, time_spread: float) -> None:
    """Warn when the choice of time has failed, by the mean and standard deviation of E[t] over inputs."""
    steps = model.max_steps
    if steps == 1:
        return
    if expected_time <= 1 + _MARGIN or (model.n_layers > 1 and expected_time < 2):
        what = "so few that deep layers hardly matter (collapse): lower the price of time, or ramp it"
    elif expected_time >= steps * (1 - _MARGIN):
        what = "all that there are (saturation): give more steps, a price of time, or a halting bound"
    elif model.time == "adaptive" and time_spread < _SPREAD:
        what = "the same for all inputs: train longer, with deep supervision and harder (occluded) images"
    else:
        return
    warnings.warn(f"E[t] is {expected_time:.2f} of {steps} steps, {what}.", HaltingWarning, stacklevel=3)


def refuse_dead_input(model: LatticeRCNN) -> None:
    """Refuse a network whose first layer sees nothing of the image."""
    if not bool(model.weights[0][:, : model.in_channels].any()):
        raise InputError("all of layer 1 is dead: no weight sees the image; lower the price of breadth or depth.")


def _checked(terms: Any) -> dict[str, Tensor]:
    """Refuse what a cost must not return."""
    known = {"breadth", "depth", "time", "readout"}
    if not isinstance(terms, dict) or not terms or not terms.keys() <= known:
        told = sorted(map(str, terms)) if isinstance(terms, dict) else f"a {type(terms).__name__}"
        raise InputError(f"cost must return a dict with some of the terms {sorted(known)}, not {told}.")
    if not all(isinstance(term, Tensor) and term.ndim == 0 for term in terms.values()):
        raise InputError("cost must return terms that are scalar tensors.")
    return terms


def _close_epoch(history: History, rows: list[dict[str, Tensor]]) -> None:
    for name in rows[0]:
        getattr(history, name).append(float(torch.stack([row[name] for row in rows]).mean()))


def _batches(count: int, size: int, total: int, generator: torch.Generator) -> Iterator[Tensor]:
    made = 0
    while True:
        for batch in torch.split(torch.randperm(count, generator=generator), int(size)):
            if made == total:
                return
            made += 1
            yield batch


def _adam(model: LatticeRCNN, lr: float, halting_lr: float) -> torch.optim.Adam:
    halting = model.halting_parameters()
    names = {id(parameter) for parameter in halting}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in names]
    return torch.optim.Adam([{"params": rest, "lr": lr}, {"params": halting, "lr": halting_lr}])


def _tensors(model: LatticeRCNN, data: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    if not isinstance(data, Sequence) or len(data) != 2:
        raise InputError("data must be a pair (images, classes).")
    try:
        x, y = (torch.as_tensor(part) for part in data)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("data must hold images and classes as tensors or arrays of numbers.") from None
    if x.layout != torch.strided or y.layout != torch.strided:
        raise InputError("data's images and classes must be dense tensors.")
    if x.ndim != 4 or len(x) == 0 or x.shape[1] != model.in_channels:
        raise InputError(
            f"data's images have shape {tuple(x.shape)}; they must be (N, {model.in_channels}, height, width), N >= 1."
        )
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(f"data's classes must be {len(x)} whole numbers, one per image.")
    if int(y.min()) < 0 or int(y.max()) >= model.n_classes:
        raise InputError(
            f"data's classes go from {int(y.min())} to {int(y.max())}, not within 0..{model.n_classes - 1}."
        )
    return x.to(model.readout), y.to(model.readout.device, torch.int64)


def _check_settings(
    epochs: int,
    lr: float,
    halting_lr: float,
    batch_size: int,
    grad_clip: float,
    deep_supervision: float,
    updates: int | None,
) -> None:
    for name, count in (("epochs", epochs), ("batch_size", batch_size), ("updates", 1 if updates is None else updates)):
        whole_number(name, count)
    for name, value in (("lr", lr), ("halting_lr", halting_lr), ("grad_clip", grad_clip)):
        if not core.is_number(value) or not 0 < value < _LARGEST:
            raise InputError(f"{name} must be above 0 and below {_LARGEST:g}, not {value!r}.")
    if not core.is_number(deep_supervision) or not 0 <= deep_supervision < math.inf:
        raise InputError(f"deep_supervision must be finite and not negative, not {deep_supervision!r}.")


def _check_occlusion(occlusion: tuple[int, int] | None, x: Tensor) -> None:
    if occlusion is None:
        return
    sides = list(occlusion) if isinstance(occlusion, Sequence) else []
    whole = len(sides) == 2 and all(isinstance(side, numbers.Integral) for side in sides)
    if not whole or not 0 <= sides[0] <= sides[1] <= min(x.shape[2:]):
        raise InputError(
            "occlusion must be None or (smallest, largest) side, whole numbers within the image's "
            f"{min(x.shape[2:])} pixels, not {occlusion!r}."
        )
