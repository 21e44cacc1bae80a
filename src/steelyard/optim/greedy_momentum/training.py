"""The training runs of the bench: two small networks, equal batches and weights for every arm, accuracy in per cent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.contracts import Arrays
from steelyard.optim.greedy_momentum.autocorrelation import GradAutocorrelation
from steelyard.optim.greedy_momentum.core import Floats
from steelyard.optim.greedy_momentum.greedy import Greedy

MakeOptimizer = Callable[[Iterable[Tensor], float], torch.optim.Optimizer]
Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Split:
    """Images [n, channels, height, width] and labels [n] of a training and a test part."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def chance(self) -> float:
        """Accuracy of guessing, in per cent."""
        return 100.0 / int(max(self.train_y.max(), self.test_y.max()) + 1)


@dataclass
class Trained:
    """What a run leaves: accuracy in per cent, steps taken, the momentum of every step, how often each was chosen."""

    accuracy: float
    steps: int
    momentum: list[float] = field(default_factory=list)
    shares: dict[float, float] = field(default_factory=dict)


def split(data: Arrays, test: int, rng: np.random.Generator) -> Split:
    """Shuffle ``data`` (images, labels) and set ``test`` of them apart."""
    order = rng.permutation(len(data["labels"]))
    images = torch.from_numpy(np.ascontiguousarray(data["images"][order], dtype=np.float32))
    labels = torch.from_numpy(np.ascontiguousarray(data["labels"][order], dtype=np.int64))
    return Split(images[test:], labels[test:], images[:test], labels[:test])


def small_cnn(generator: torch.Generator, classes: int = 10) -> nn.Module:
    """Return a network for 8 x 8 grey images: two convolutions with pooling and a linear layer, 1,898 weights."""
    return _initialised(
        nn.Sequential(
            _empty(nn.Conv2d, 1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            _empty(nn.Conv2d, 8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            _empty(nn.Linear, 64, classes),
        ),
        generator,
    )


def mlp(generator: torch.Generator, inputs: int = 784, hidden: int = 64, classes: int = 10) -> nn.Module:
    """Return inputs-hidden-hidden-classes with ReLU, on flattened images."""
    return _initialised(
        nn.Sequential(
            nn.Flatten(),
            _empty(nn.Linear, inputs, hidden),
            nn.ReLU(),
            _empty(nn.Linear, hidden, hidden),
            nn.ReLU(),
            _empty(nn.Linear, hidden, classes),
        ),
        generator,
    )


def _empty(layer: type[nn.Module], *args: int, **kwargs: int) -> nn.Module:
    """Return ``layer`` without drawing initial weights: torch's constructors draw them from the global generator."""
    made: nn.Module = nn.utils.skip_init(layer, *args, **kwargs)  # type: ignore[no-untyped-call]
    return made


def _initialised(network: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw torch's default initial weights from ``generator``."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for parameter in (layer.weight, layer.bias):
                if parameter is not None:
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return network


def batches(data: Split, steps: int, size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``steps`` batches, epoch by epoch in fresh random order."""
    count = len(data.train_y)
    order: list[int] = []
    for _ in range(steps):
        if len(order) < size:
            order = rng.permutation(count).tolist()
        index, order = order[:size], order[size:]
        yield data.train_x[index], data.train_y[index]


def train(
    network: nn.Module,
    stream: Batches,
    make_optimizer: MakeOptimizer,
    lr: float,
    steps: int,
    recorder: GradAutocorrelation | None = None,
    record_steps: int = 0,
) -> Trained | None:
    """Train with cross-entropy and a cosine schedule of the learning rate; None when the loss is no longer finite."""
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters, lr)
    momentum: list[float] = []
    counts: dict[float, int] = {}
    for step, (inputs, labels) in enumerate(stream):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(network(inputs), labels)
        if not math.isfinite(loss.item()):
            return None
        loss.backward()  # type: ignore[no-untyped-call]
        if recorder is not None and step < record_steps:
            recorder.update(parameters)
        optimizer.step()
        if isinstance(optimizer, Greedy):
            choices = optimizer.last_choice
            values = [choice.value for choice in (choices if isinstance(choices, tuple) else (choices,))]
            momentum.append(float(np.mean(values)))
            for value in values:
                counts[value] = counts.get(value, 0) + 1
    total = sum(counts.values())
    return Trained(math.nan, steps, momentum, {value: count / total for value, count in sorted(counts.items())})


@torch.no_grad()
def accuracy(network: nn.Module, stream: Batches) -> float | None:
    """Return the accuracy in per cent; None when an output is not finite."""
    network.eval()
    right = seen = 0
    for inputs, labels in stream:
        outputs = network(inputs)
        if not torch.isfinite(outputs).all():
            return None
        right += int((outputs.argmax(dim=1) == labels).sum())
        seen += len(labels)
    return 100.0 * right / seen


def smooth(values: list[float], points: int = 25) -> tuple[list[float], list[float]]:
    """Return (steps, means) of ``values`` over about ``points`` equal stretches."""
    width = max(1, len(values) // points)
    starts = range(0, len(values), width)
    means: Floats = np.array([np.mean(values[at : at + width]) for at in starts])
    return [float(at + width / 2) for at in starts], means.tolist()
