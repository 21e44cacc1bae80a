"""The torch side of the bench: one small network trained with the library's sampler and loss, or with a baseline's."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils import skip_init
from torch.utils.data import DataLoader, TensorDataset

from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured
from steelyard.optim.gdro_fsq.baselines import SAGAWA_RATE
from steelyard.optim.gdro_fsq.card import Config
from steelyard.optim.gdro_fsq.player import PLAPlayer
from steelyard.optim.gdro_fsq.torch_data import FlexGroupBatchSampler, FlexGroupDRO

HIDDEN = 32
LEARNING_RATE = 5e-3  # of Adam, times c_w
PER_GROUP = 4  # samples of each group in a batch
TEST_SHARE = 0.3


class Factors(Frozen):
    """What a baseline's cell may be configured with."""

    c_w: float = 1.0
    c_q: float = 1.0


def length(cell: CellInput, name: str) -> int:
    """Return how many ``name`` (rounds or steps) the profile plays on the cell's task."""
    return int(cell.params.get(f"{name}_by_task", {}).get(cell.task, cell.params[name]))


@contextlib.contextmanager
def clips_are_counted() -> Iterator[None]:
    """Silence the warning about clipped losses: in the bench their number is a metric."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="losses above loss_range")
        yield


def train(cell: CellInput) -> Measured:
    """Train one network on 70 % of every group and measure it on the rest; every arm sees equally many samples."""
    data = _split(cell)
    m, classes = int(cell.data["m"]), int(cell.data["classes"])
    model = _network(data["x"].shape[1], classes, cell.torch_rng("network"))
    steps = length(cell, "steps")
    sizes = cell.rng("stream").integers(1, m + 1, steps).tolist()
    if cell.arm == "torch_fsq":
        clipped = _train_fsq(cell, model, data, m, sizes)
    else:
        clipped = _train_baseline(cell, model, data, m, sizes)
    model.eval()
    with torch.no_grad():
        scores = model(data["test_x"])
        losses = functional.cross_entropy(scores, data["test_y"], reduction="none").double().numpy()
        right = (scores.argmax(1) == data["test_y"]).double().numpy()
    groups = data["test_groups"].numpy()
    counts = np.bincount(groups, minlength=m)
    risks = np.bincount(groups, losses, m) / counts / float(cell.data["loss_range"])
    accuracy = np.bincount(groups, right, m) / counts
    metrics = {
        "worst_accuracy": float(accuracy.min()),
        "accuracy": float(right.mean()),
        "worst_risk": float(risks.max()),
        "average_risk": float(losses.mean() / float(cell.data["loss_range"])),
        "samples": float(sum(sizes) * PER_GROUP),
        "clipped": float(clipped),
    }
    if cell.root == "tuning":
        metrics["gap"] = 1.0 - metrics["worst_accuracy"]  # a network has no optimum to be measured against
    return Measured(metrics, steps)


def _train_fsq(
    cell: CellInput, model: torch.nn.Module, data: Mapping[str, torch.Tensor], m: int, sizes: list[int]
) -> int:
    config = Config(**cell.config)
    player = PLAPlayer(m, config.mode, config.c_q, query=config.query, round_weight=config.round_weight)
    dro = FlexGroupDRO(
        torch.nn.CrossEntropyLoss(reduction="none"),
        m,
        player=player,
        loss_range=float(cell.data["loss_range"]),
        gradient=config.gradient,
    )
    batches = FlexGroupBatchSampler(
        data["groups"].numpy(), sizes, player, samples_per_group=PER_GROUP, rng=cell.rng("draws"), batches=len(sizes)
    )
    dataset = TensorDataset(data["x"], data["y"], data["groups"])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE * config.c_w)
    with clips_are_counted():
        for x, y, groups in DataLoader(dataset, batch_sampler=batches, generator=cell.torch_rng("loader")):
            optimizer.zero_grad()
            dro.from_outputs(model(x), y, groups).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return dro.clipped


def _train_baseline(
    cell: CellInput, model: torch.nn.Module, data: Mapping[str, torch.Tensor], m: int, sizes: list[int]
) -> int:
    factors = Factors(**cell.config)
    rng = cell.rng("draws")
    groups = data["groups"].numpy()
    members = [np.flatnonzero(groups == group) for group in range(m)]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE * factors.c_w)
    gains = torch.zeros(m)
    clipped = 0
    for r in sizes:
        chosen = rng.permutation(m)[:r]
        if cell.arm == "torch_erm":
            rows = rng.integers(0, len(groups), r * PER_GROUP)
        else:
            rows = np.concatenate([members[group][rng.integers(0, len(members[group]), PER_GROUP)] for group in chosen])
        losses = functional.cross_entropy(model(data["x"][rows]), data["y"][rows], reduction="none")
        loss = losses.mean()
        if cell.arm == "torch_sagawa":
            scaled = losses.detach() / float(cell.data["loss_range"])
            clipped += int((scaled > 1).sum())
            gains[chosen] += SAGAWA_RATE * factors.c_q * scaled.clamp(max=1).view(r, PER_GROUP).mean(1)
            weights = torch.softmax(gains, 0)[chosen] * (m / r)
            loss = (weights * losses.view(r, PER_GROUP).mean(1)).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return clipped


def _split(cell: CellInput) -> dict[str, torch.Tensor]:
    """Split every group 70:30; equal for all arms of a seed."""
    groups = np.asarray(cell.data["groups"])
    order = cell.rng("split").permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups, minlength=int(cell.data["m"]))
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = rank < np.maximum(1, np.round(TEST_SHARE * np.repeat(sizes, sizes)))
    features = torch.tensor(cell.data["features"], dtype=torch.float32)
    labels, codes = torch.tensor(cell.data["labels"]), torch.tensor(groups)
    train_rows, test_rows = order[~test], order[test]
    return {
        "x": features[train_rows],
        "y": labels[train_rows],
        "groups": codes[train_rows],
        "test_x": features[test_rows],
        "test_y": labels[test_rows],
        "test_groups": codes[test_rows],
    }


def _network(inputs: int, classes: int, generator: torch.Generator) -> torch.nn.Module:
    """Return a network with one hidden layer whose weights come from ``generator`` alone."""
    sizes = ((inputs, HIDDEN), (HIDDEN, classes))
    layers: list[torch.nn.Linear] = [skip_init(torch.nn.Linear, a, b) for a, b in sizes]  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for layer in layers:
            limit = 1.0 / math.sqrt(layer.weight.shape[1])
            layer.weight.uniform_(-limit, limit, generator=generator)
            layer.bias.uniform_(-limit, limit, generator=generator)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
