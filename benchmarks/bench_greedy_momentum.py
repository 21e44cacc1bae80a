"""Time and memory of the greedy optimizers' step against torch's foreach SGD and AdamW, side by side.

Run: python benchmarks/bench_greedy_momentum.py [--repeats N]. Ratios are medians over interleaved rounds; memory is
counted over the tensors of the optimizer's state, in units of the parameters. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import receipt
import torch
from torch import Tensor, nn

from steelyard.optim import GreedyAdamW, GreedySGD
from steelyard.timing import interleaved

MODELS: dict[str, tuple[tuple[int, ...], ...]] = {
    "MLP 784-64-64-10": ((64, 784), (64,), (64, 64), (64,), (10, 64), (10,)),
    "24 layers of 256": tuple(shape for _ in range(24) for shape in ((256, 256), (256,))),
    "10 layers of 1000": tuple(shape for _ in range(10) for shape in ((1000, 1000), (1000,))),
}
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)
Make = Callable[[list[Tensor]], torch.optim.Optimizer]
SGD: dict[str, Make] = {
    "torch SGD foreach": lambda ps: torch.optim.SGD(ps, lr=1e-4, momentum=0.9, foreach=True),
    "torch SGD": lambda ps: torch.optim.SGD(ps, lr=1e-4, momentum=0.9),
    "GreedySGD K=1": lambda ps: GreedySGD(ps, lr=1e-4, momentum=0.9),
    "GreedySGD K=3": lambda ps: GreedySGD(ps, lr=1e-4),
    "GreedySGD K=3 robust": lambda ps: GreedySGD(ps, lr=1e-4, preset="robust"),
    "GreedySGD K=3 per_param": lambda ps: GreedySGD(ps, lr=1e-4, selection="per_param"),
}
ADAMW: dict[str, Make] = {
    "torch AdamW foreach": lambda ps: torch.optim.AdamW(ps, lr=1e-4, foreach=True),
    "torch AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-4),
    "GreedyAdamW K=1": lambda ps: GreedyAdamW(ps, lr=1e-4, beta1=0.9),
    "GreedyAdamW K=2": lambda ps: GreedyAdamW(ps, lr=1e-4, beta1=(0.5, 0.99)),
    "GreedyAdamW K=2 robust": lambda ps: GreedyAdamW(ps, lr=1e-4, beta1=(0.5, 0.99), preset="robust"),
    "GreedyAdamW K=2 per_param": lambda ps: GreedyAdamW(ps, lr=1e-4, beta1=(0.5, 0.99), selection="per_param"),
}
TARGETS = {"GreedySGD K=3": 4.0, "GreedyAdamW K=2": 2.0, "end to end, batch 64": 1.15}


def parameters(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator) * 1e-3
    return params


def ratios(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return median seconds, and ratio to the first arm with its quartiles."""
    base = next(iter(seconds.values()))
    found = {}
    for name, values in seconds.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(values, base, strict=True)], n=4)
        found[name] = {"seconds": statistics.median(values), "ratio": middle, "quartiles": [low, high]}
    return found


def step_times(arms: dict[str, Make], shapes: Sequence[tuple[int, ...]], repeats: int) -> dict[str, list[float]]:
    size = sum(torch.Size(shape).numel() for shape in shapes)
    calls = {name: make(parameters(shapes)).step for name, make in arms.items()}
    return interleaved(calls, repeats=repeats, number=max(1, min(100, 2_000_000 // size)))


def memory(arms: dict[str, Make], shapes: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """Return bytes of optimizer state over bytes of the parameters."""
    found = {}
    for name, make in arms.items():
        params = parameters(shapes)
        optimizer = make(params)
        optimizer.step()
        held = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        found[name] = sum(x.nbytes for x in held) / sum(p.nbytes for p in params)
    return found


def end_to_end(repeats: int) -> dict[str, Any]:
    """Return the time of a whole training step (batch 64, MLP 784-256-256-10) with each optimizer."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(64, 784, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    arms = {name: SGD[name] for name in ("torch SGD foreach", "GreedySGD K=3", "GreedySGD K=3 robust")}
    arms |= {name: ADAMW[name] for name in ("torch AdamW foreach", "GreedyAdamW K=2")}

    def training_step(make: Make) -> Callable[[], None]:
        network = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = make(list(network.parameters()))

        def call() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()

        return call

    seconds = interleaved({name: training_step(make) for name, make in arms.items()}, repeats=repeats, number=20)
    sgd = {name: values for name, values in seconds.items() if "SGD" in name}
    adamw = {name: values for name, values in seconds.items() if "AdamW" in name}
    return {**ratios(sgd), **ratios(adamw)}


def scaling(repeats: int) -> dict[str, Any]:
    """Return seconds a step by number of parameters in four square tensors, as a curve that plot_scaling.py draws."""
    arms = {name: SGD[name] for name in ("torch SGD foreach", "GreedySGD K=3")}
    arms |= {name: ADAMW[name] for name in ("torch AdamW foreach", "GreedyAdamW K=2")}
    curves: dict[str, list[float]] = {name: [] for name in arms}
    for size in SIZES:
        side = round((size / 4) ** 0.5)
        for name, values in step_times(arms, ((side, side),) * 4, repeats).items():
            curves[name].append(statistics.median(values))
    return {
        "optimizer step, one thread": {"x": SIZES, "y": curves, "x_label": "parameters", "y_label": "s a step"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    figures = {
        "targets": TARGETS,
        "step": {
            model: {**ratios(step_times(SGD, shapes, repeats)), **ratios(step_times(ADAMW, shapes, repeats))}
            for model, shapes in MODELS.items()
        },
        "end_to_end": end_to_end(repeats),
        "state_over_parameters": {
            **memory(SGD, MODELS["24 layers of 256"]),
            **memory(ADAMW, MODELS["24 layers of 256"]),
        },
        "scaling": scaling(repeats),
    }
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_greedy_momentum", figures))


if __name__ == "__main__":
    main()
