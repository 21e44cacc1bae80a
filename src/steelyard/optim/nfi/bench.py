"""Weigh the guards: full-batch training far past fit, where plain float32 cross-entropy spikes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from steelyard import data as datasets
from steelyard.card import Frozen
from steelyard.contracts import Arm, Arrays, BenchSpec, Block, CellInput, Measured, Metric, Profile, Task, Trace
from steelyard.errors import InputError
from steelyard.optim.nfi.baselines import Loss, loss_function, orthogonalize_gradients_
from steelyard.optim.nfi.card import Config
from steelyard.optim.nfi.monitor import AlarmRule
from steelyard.optim.nfi.torch_nn import center_head_, zero_sum_hook

Vector = NDArray[np.float64]
PRIME = 97
POINTS = 200  # of a trace
FLUSH = 250  # steps kept as tensors before they are reduced to a few numbers each

METRICS = (
    Metric(name="spikes", label="loss spikes", better="lower", worst=1000.0),
    Metric(name="growth", label="growth of the feature mean's norm", better="lower", unit="x", worst=1e6),
    Metric(name="cosine", label="cos(W_G, mu_G) at the end", better="higher", worst=-1.0),
    Metric(name="abs_cosine", label="|cos(W_G, mu_G)| at the end", better="lower", worst=1.0),
    Metric(name="sc_frac", label="collapsed samples, last tenth of the steps", better="lower", worst=1.0),
    Metric(name="alarm_share", label="steps with the alarm 'NFI active'", better="lower", worst=1.0),
    Metric(name="final_loss", label="final loss (float64 cross-entropy)", better="lower", worst=1e3),
    Metric(name="peak_loss", label="largest loss after it first fell below 1e-4", better="lower", worst=1e3),
    Metric(name="accuracy", label="test accuracy", better="higher"),
    Metric(name="max_logit", label="largest |logit| at the end", better="lower", worst=1e6),
)


def _arm(name: str, label: str, role: str, **config: Any) -> Arm:
    return Arm.model_validate({"name": name, "label": label, "role": role, "config": config})


ARMS = (
    _arm("f32", "float32 cross-entropy, no guard", "floor", loss="f32"),
    _arm("exact", "exact cross-entropy", "method", loss="exact"),
    _arm("zero_sum", "float32, zero-sum gradient", "baseline", loss="f32", guard="zero_sum"),
    _arm("centering", "float32, centred head", "baseline", loss="f32", guard="centering"),
    _arm("f64", "float64 loss", "ceiling", loss="f64"),
    _arm("batch_norm", "float32, BatchNorm before the head", "baseline", loss="f32", guard="batch_norm"),
    _arm("adam_eps_1e-5", "float32, Adam eps 1e-5", "baseline", loss="f32", adam_eps=1e-5),
    _arm("adam_eps_1e-6", "float32, Adam eps 1e-6", "baseline", loss="f32", adam_eps=1e-6),
    _arm("label_smoothing", "float32, label smoothing 0.1", "baseline", loss="f32", label_smoothing=0.1),
    _arm("stablemax", "StableMax cross-entropy", "baseline", loss="stablemax"),
    _arm("perpgrad", "float32, perpGrad", "baseline", loss="f32", guard="perpgrad"),
)


def _digits() -> Arrays:
    pixels, labels = datasets.digits()
    return {"features": pixels / 16.0, "labels": labels.astype(np.int64)}


def _division() -> Arrays:
    """All pairs a / b modulo 97 with b != 0; the operands one-hot, side by side."""
    a, b = np.divmod(np.arange(PRIME * (PRIME - 1)), PRIME - 1)
    b = b + 1
    features = np.zeros((len(a), 2 * PRIME), dtype=np.float32)
    features[np.arange(len(a)), a] = 1.0
    features[np.arange(len(a)), PRIME + b] = 1.0
    inverse = np.array([0] + [pow(int(x), -1, PRIME) for x in range(1, PRIME)])
    return {"features": features, "labels": (a * inverse[b] % PRIME).astype(np.int64)}


TASKS = (
    Task("digits", "digits, 100 samples, full batch", _digits, "scikit-learn digits (embedded)"),
    Task("digits_minibatch", "digits, batches of 256", _digits, "scikit-learn digits (embedded)"),
    Task("division", "division modulo 97, batches of 512", _division, "generated"),
)


class Options(Frozen):
    """What a weighing on the user's own classification data takes beside the data."""

    label: str = Field(default="y", description="column (or key) that holds the class")
    samples: int = Field(default=100, ge=2, description="rows trained on, in one full batch; the rest is the test set")


def user_task(data: Any, label: str = "y", samples: int = 100) -> Task:
    """Turn a table, a path, or a mapping or pair of arrays (X, y) into a task with the bench's model on it.

    Raises:
        InputError: No such label, a row without one, fewer than two classes, or too few rows.
    """
    features, labels = _features_and_labels(data, label)
    if len(labels) < 5:
        raise InputError(f"data has {len(labels)} rows; at least 5 are needed, four to train on and one to test.")
    if len(np.unique(labels)) < 2:
        raise InputError(f"column '{label}' holds one class only; at least 2 are needed.")
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    arrays = {"features": features, "labels": codes}
    used = min(samples, len(labels) - max(1, len(labels) // 5))
    return Task("user", f"your data, {used} samples, full batch", lambda: arrays, "the user's own")


def _features_and_labels(data: Any, label: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    if isinstance(data, tuple) and len(data) == 2:
        data = {"X": data[0], label: data[1]}
    if isinstance(data, dict) and getattr(data.get("X"), "ndim", 0) == 2:
        if label not in data:
            raise InputError(f"data has no key '{label}' for the label; its keys are {', '.join(map(str, data))}.")
        features, labels = np.asarray(data["X"], dtype=np.float64), np.asarray(data[label])
        if labels.shape != features.shape[:1]:
            raise InputError(f"'{label}' has shape {labels.shape}, but X has {len(features)} rows.")
        if not np.all(np.isfinite(features)):
            row = int(np.argwhere(~np.isfinite(features))[0, 0])
            raise InputError(f"X has a NaN or infinite value in row {row}; fill or drop it.")
        spread = features.std(0)
        return (features - features.mean(0)) / np.where(spread > 0, spread, 1.0), labels
    table = datasets.read_table(data)
    labels = table.column(label)
    missing = np.isnan(labels) if table.is_numeric(label) else labels == ""
    if missing.any():
        raise InputError(f"column '{label}' has no value in row {int(np.argmax(missing))}; drop such rows.")
    return datasets.encode_features(table, exclude=(label,)).matrix, labels


def _model(sizes: list[int], batch_norm: bool, generator: torch.Generator) -> tuple[nn.Sequential, nn.Linear]:
    """Return body and head of a ReLU MLP, drawn as torch does by default, but from ``generator``."""
    layers: list[nn.Module] = []
    linears = []
    for inputs, outputs in itertools.pairwise(sizes):
        linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
        bound = 1.0 / math.sqrt(inputs)
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.uniform_(-bound, bound, generator=generator)
        linears.append(linear)
    for linear in linears[:-1]:
        layers += [linear, nn.ReLU()]
    if batch_norm:
        layers.append(nn.BatchNorm1d(sizes[-2]))
    return nn.Sequential(*layers), linears[-1]


@dataclass
class _Course:
    """What is recorded at every step: reduced in bulk, so that recording hardly slows the run."""

    rows: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    parts: list[Vector] = field(default_factory=list)

    def add(self, logits: Tensor, target: Tensor, gradient: Tensor, features: Tensor, head: nn.Linear) -> None:
        mean_row = head.weight.detach().mean(0)
        self.rows.append((logits.detach(), target, gradient, features.detach().mean(0), mean_row))
        if len(self.rows) == FLUSH:
            self.flush()

    def flush(self) -> None:
        """Reduce the kept tensors to loss, collapsed share, norm of mu_G, cosine and largest logit of each step."""
        if not self.rows:
            return
        logits, target, gradient, mu, w = (torch.stack(parts) for parts in zip(*self.rows, strict=True))
        self.rows = []
        steps, batch, classes = logits.shape
        loss = functional.cross_entropy(logits.double().reshape(-1, classes), target.reshape(-1), reduction="none")
        lost = (gradient >= 0).all(-1) & (gradient > 0).any(-1)
        columns = (
            loss.reshape(steps, batch).mean(1),
            lost.double().mean(1),
            mu.double().norm(dim=1),
            functional.cosine_similarity(w.double(), mu.double(), dim=1),
            logits.abs().amax((1, 2)).double(),
        )
        self.parts.append(torch.stack(columns, 1).numpy())

    @property
    def broken(self) -> bool:
        """Whether the last reduced step holds NaN or infinity."""
        return bool(self.parts) and not bool(np.isfinite(self.parts[-1]).all())


def _batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor | None]:
    """Yield row indices, epoch after epoch; None stands for all rows."""
    if batch <= 0 or batch >= count:
        while True:
            yield None
    while True:
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order[: count - count % batch], batch)


def run(cell: CellInput, loss: Loss | None = None) -> Measured:
    """Train one arm on one seed's split and return its metrics and curves; ``loss`` stands in for the arm's own."""
    config = Config(**cell.config)
    loss_of = loss or loss_function(config.loss, config.label_smoothing)
    count = len(cell.data["labels"])
    wanted = int(cell.options.get("samples", cell.params["samples"]))
    samples = min(wanted, count - max(1, count // 5))
    order = cell.rng("split").permutation(count)
    features = torch.from_numpy(np.asarray(cell.data["features"][order], dtype=np.float32))
    labels = torch.from_numpy(np.asarray(cell.data["labels"][order]))
    classes = int(labels.max()) + 1
    sizes = [features.shape[1], *[int(cell.params["width"])] * int(cell.params["depth"]), classes]
    body, head = _model(sizes, config.guard == "batch_norm", cell.torch_rng("weights"))
    batches = _batches(samples, int(cell.params["batch"]), cell.torch_rng("batches"))
    course = _train(
        config, loss_of, int(cell.params["steps"]), body, head, features[:samples], labels[:samples], batches
    )
    body.eval()
    with torch.no_grad():
        predicted = head(body(features[samples:])).argmax(1)
    accuracy = float((predicted == labels[samples:]).double().mean())
    measured = _measure(config, np.concatenate(course.parts), course.broken, accuracy, 1.0 / classes)
    if 0 < int(cell.params["batch"]) < samples:
        for name in ("spikes", "peak_loss"):  # of the batch's own loss: one hard sample in it looks like a spike
            measured.metrics.pop(name)
    return measured


def _train(
    config: Config,
    loss_of: Loss,
    steps: int,
    body: nn.Module,
    head: nn.Linear,
    x: Tensor,
    y: Tensor,
    batches: Iterator[Tensor | None],
) -> _Course:
    weights = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=config.lr, betas=(0.9, config.beta2), eps=config.adam_eps, foreach=True)
    after = _after_backward(config, weights)
    course = _Course()
    kept: list[Tensor] = []
    for _ in range(steps):
        rows = next(batches)
        inputs, target = (x, y) if rows is None else (x[rows], y[rows])
        features = body(inputs)
        logits = head(features)
        logits.register_hook(kept.append)  # before the guard's: after a zero-sum hook a collapse no longer shows
        if config.guard == "zero_sum":
            zero_sum_hook(logits)
        optimizer.zero_grad()
        loss_of(logits, target).backward()  # type: ignore[no-untyped-call]
        after()
        optimizer.step()
        if config.guard == "centering":
            center_head_(head)
        course.add(logits, target, kept.pop(), features, head)
        if course.broken:
            break
    course.flush()
    return course


def _after_backward(config: Config, weights: list[nn.Parameter]) -> Callable[[], None]:
    if config.guard == "perpgrad":
        return lambda: orthogonalize_gradients_(weights)
    return lambda: None


def _measure(config: Config, course: Vector, broken: bool, accuracy: float, chance: float) -> Measured:
    steps = len(course)
    if broken:
        worst = {metric.name: metric.worst for metric in METRICS if metric.worst is not None}
        return Measured({**worst, "accuracy": chance}, steps, notes={"stopped": "the model's outputs became NaN"})
    loss, collapsed, mu, cosine, largest = course.T
    reference, notes = _reference_step(config, loss, collapsed)
    window = min(config.alarm_window, steps - 1)
    growth_in_window = np.concatenate([np.ones(window), mu[window:] / np.maximum(mu[:-window], 1e-30)])
    rule = AlarmRule(config.alarm_sc_frac, config.alarm_cosine, config.alarm_growth)
    alarms = [rule.active(*row) for row in zip(collapsed, cosine, growth_in_window, strict=True)]
    metrics = {
        "spikes": float(count_spikes(loss, config.spike_low, config.spike_high)),
        "growth": float(mu[-1] / max(mu[reference], 1e-30)),
        "cosine": float(cosine[-1]),
        "abs_cosine": float(abs(cosine[-1])),
        "sc_frac": float(collapsed[-max(1, steps // 10) :].mean()),
        "alarm_share": float(np.mean(alarms)),
        "final_loss": float(loss[-1]),
        "peak_loss": float(loss[reference:].max()),
        "accuracy": accuracy,
        "max_logit": float(largest[-1]),
    }
    traces = {"loss": _binned(loss), "mu_norm": _binned(mu)}
    return Measured(metrics, steps, traces, notes)


def _reference_step(config: Config, loss: Vector, collapsed: Vector) -> tuple[int, dict[str, str | float | int]]:
    """Return the step that growth is counted from, and a note where the rule found none."""
    reached = loss < config.spike_low if config.growth_from == "small_loss" else collapsed >= 0.9
    if reached.any():
        return int(np.argmax(reached)), {}
    step = int(np.argmin(loss))
    return step, {"growth counted from": f"step {step + 1}, the smallest loss; it never reached the usual reference"}


def count_spikes(loss: Vector, low: float = 1e-4, high: float = 1e-2) -> int:
    """Count rises of the loss from below ``low`` to above ``high``, each one anew only after it was below ``low``."""
    spikes, armed = 0, False
    for value in loss:
        if value < low:
            armed = True
        elif armed and value > high:
            spikes, armed = spikes + 1, False
    return spikes


def _binned(values: Vector) -> tuple[list[float], list[float]]:
    """Return at most POINTS points: the largest value of each stretch, so that a spike of one step still shows."""
    edges = np.linspace(0, len(values), min(POINTS, len(values)) + 1).astype(int)
    tops = [start + int(np.argmax(values[start:stop])) for start, stop in itertools.pairwise(edges)]
    # A loss of exactly 0 has no place on a log axis.
    return [float(top + 1) for top in tops], [float(max(values[top], 1e-30)) for top in tops]


_BASE = {"steps": 3000, "samples": 100, "batch": 0, "width": 64, "depth": 4}
_EVERY = tuple(arm.name for arm in ARMS)
_MINIBATCH = {"steps": 5000, "samples": 1437, "batch": 256}
_DIVISION = {"steps": 10_000, "samples": 4656, "batch": 512, "width": 128, "depth": 2}
_PAPER_RECIPE = (
    "CIFAR-10 without augmentation, full batch (2048 for the ViT), N in {200, 2000, 20000, 50000}, 10,000 epochs, "
    "Adam 1e-3, betas (.9, .95), eps 1e-8, models MLP 5x512, VGG11, VGG11-BN, ViT (patch 4, d 256, 12 blocks, "
    "8 heads), and a 110M language model on FineWeb, bfloat16 with the loss in float32, 1e5 steps. About an hour a run "
    "on an RTX 5090, says the paper. Train with ExactCrossEntropyLoss and with center_head_ after each step, watch "
    "with NFIMonitor(every=100)."
)

BENCH = BenchSpec(
    method="nfi",
    tasks=TASKS,
    arms=ARMS,
    metrics=METRICS,
    primary="spikes",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(Block(tasks=("digits",), arms=("f32", "exact", "zero_sum")),),
            seeds=6,
            work=54_000,
            params=_BASE,
            cell_seconds=120,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("digits",), arms=_EVERY),
                Block(
                    tasks=("digits_minibatch",), arms=("f32", "exact", "centering"), seeds=1, params=_BASE | _MINIBATCH
                ),
                Block(tasks=("division",), arms=("f32", "exact"), seeds=1, params=_BASE | _DIVISION),
            ),
            seeds=10,
            work=10 * len(ARMS) * 3000 + 3 * 5000 + 2 * 10_000,
            params=_BASE,
            cell_seconds=400,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=_PAPER_RECIPE),
    },
    run=run,
    easy_task="digits",
    traces=(
        Trace(name="loss", label="loss (float64 cross-entropy)", x_label="step", y_label="loss", log_y=True),
        Trace(name="mu_norm", label="norm of the feature mean", x_label="step", y_label="||mu_G||", log_y=True),
    ),
    user_task=user_task,
    options=Options,
)
