"""Time of the lattice network, side by side: fused step against naive loop, early exit, shrinking, cost overhead.

Ratios are medians over interleaved rounds on one thread (those of early exit are of means, as every round draws other
steps); processor time, as the wall clock also counts the neighbours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from receipt import write
from torch import Tensor
from torch.nn import functional

from steelyard import rng
from steelyard.nets.lattice import core
from steelyard.nets.lattice.inference import stop_early
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.torch_nn import LatticeRCNN, ResourceCost

ROUNDS = 9
TARGETS = {
    "training_step_ms": 74.0,
    "naive_over_fused": 1.3,
    "early_exit_over_steps_ratio_batch_1": 1.25,
    "early_exit_over_steps_ratio_batch_100": 1.5,
    "shrunk_time_over_flop_ratio": 1.5,
    "cost_share_of_step": 0.03,
}


def measure(calls: dict[str, Callable[[], object]], number: int = 1, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return processor seconds per call; the arms take turns, so that the same index is the same round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-2, rounds):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(number):
                call()
            if turn >= 0:
                seconds[name].append((time.process_time() - start) / number)
    return seconds


def median_ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def images(batch: int, size: int = 14) -> Tensor:
    return torch.rand(batch, 1, size, size, generator=rng.torch_generator("bench", "images", batch))


def naive_readouts(net: LatticeRCNN, x: Tensor) -> Tensor:
    """The formula, one convolution per edge, layer and step, the image's too."""
    state = [x.new_zeros(len(x), width, *x.shape[2:]) for width in net.widths]
    weights = [torch.split(weight, list(net.fan_in(layer)), 1) for layer, weight in enumerate(net.weights)]
    readouts = []
    for _ in range(net.max_steps):
        new = []
        for layer, ((below, own, above), bias) in enumerate(zip(weights, net.biases, strict=True)):
            z = functional.conv2d(state[layer - 1] if layer else x, below, bias, padding=1)
            z = z + functional.conv2d(state[layer], own, padding=1)
            if above.shape[1]:
                z = z + functional.conv2d(state[layer + 1], above, padding=1)
            new.append(torch.relu(z))
        state = new
        readouts.append(net.read(torch.cat([functional.adaptive_avg_pool2d(h, net.pool).flatten(1) for h in state], 1)))
    return torch.stack(readouts, 1)


def training_step() -> dict[str, float]:
    """Return a step's milliseconds, the naive loop over it, and the share of the costs in it."""
    net, x = LatticeRCNN(1, 10, 8, 3, 8), images(100)
    y = torch.arange(100) % 10
    cost = ResourceCost(breadth=0.01, depth=0.01, time=0.03)

    def step(priced: bool) -> None:
        output = net(x)
        loss = core.task_loss(output.step_logits, output.log_p_time, y)
        if priced:
            loss = loss + torch.stack(list(cost(net, output).values())).sum()
        torch.autograd.backward(loss)

    def naive() -> None:
        step_logits = naive_readouts(net, x)
        log_p = net.log_p_time(step_logits, step_logits)
        core.mixture_log_probs(step_logits, log_p)
        torch.autograd.backward(core.task_loss(step_logits, log_p, y))

    def costs_alone() -> None:
        torch.autograd.backward(torch.stack(list(cost(net, output).values())).sum(), retain_graph=True)

    output = net(x)._replace(expected_time=net.halting_bias.sum().expand(100))  # no graph through the network
    seconds = measure({"fused": lambda: step(False), "naive": naive})
    small = measure({"costs": costs_alone}, number=50)
    return {
        "training_step_ms": 1e3 * statistics.median(seconds["fused"]),
        "naive_over_fused": median_ratio(seconds, "naive", "fused"),
        "cost_ms": 1e3 * statistics.median(small["costs"]),
        "cost_share_of_step": statistics.median(small["costs"]) / statistics.median(seconds["fused"]),
    }


def early(channels: int, batch: int) -> dict[str, float]:
    """Return early exit over full run in steps and in time; the images stop at different steps, 3 of 8 on average."""
    net, x = LatticeRCNN(1, 10, channels, 3, 8), images(batch)
    with torch.no_grad():
        net.halting_bias.fill_(-0.75)

    def full() -> None:
        with torch.no_grad():
            net(x)

    def stopped() -> None:
        taken.append(float(stop_early(net, x, "sample", generator=draws).steps.double().mean()))

    draws, taken = rng.torch_generator("bench", "draws", batch), []
    rounds, number = (ROUNDS, 100) if batch == 1 else (3 * ROUNDS, 1)
    seconds = measure({"stopped": stopped, "full": full}, number, rounds)
    steps = statistics.fmean(taken) / net.max_steps
    ratio = statistics.fmean(seconds["stopped"]) / statistics.fmean(seconds["full"])
    return {"steps_ratio": steps, "time_ratio": ratio, "time_over_steps_ratio": ratio / steps}


def shrunk(channels: int, live: tuple[int, ...], batch: int = 100) -> dict[str, float]:
    """Return shrunk over full network in multiply-adds and in time."""
    net, x = LatticeRCNN(1, 10, channels, 3, 8), images(batch)
    with torch.no_grad():
        for weight, bias, count in zip(net.weights, net.biases, live, strict=True):
            weight[count:] = 0
            bias[count:] = 0
    small = shrink(net)
    calls: dict[str, Callable[[], object]] = {"full": lambda: net(x), "shrunk": lambda: small(x)}
    with torch.no_grad():
        seconds = measure(calls)
    macs = [float(core.total_macs(one.macs_per_step(14, 14), torch.tensor(8))) for one in (small, net)]
    flops, ratio = macs[0] / macs[1], median_ratio(seconds, "shrunk", "full")
    return {"flop_ratio": flops, "time_ratio": ratio, "time_over_flop_ratio": ratio / flops}


def scaling() -> dict[str, dict[str, object]]:
    """Return the forward milliseconds by channels of a layer."""
    x, calls = images(20), {}
    for channels in (2, 4, 8, 16, 32, 64):
        net = LatticeRCNN(1, 10, channels, 3, 8)
        calls[str(channels)] = lambda net=net: net(x)
    with torch.no_grad():
        seconds = measure(calls, rounds=5)
    times = [1e3 * statistics.median(values) for values in seconds.values()]
    return {
        "lattice network: forward pass of 20 images": {
            "x": [int(name) for name in seconds],
            "y": times,
            "x_label": "channels of a layer",
            "y_label": "milliseconds",
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print the figures, write no receipt")
    dry = parser.parse_args().dry
    torch.set_num_threads(1)
    figures = {
        **training_step(),
        "early_exit": {
            f"channels_{channels}_batch_{batch}": early(channels, batch) for channels in (8, 32) for batch in (1, 100)
        },
        "shrunk": {
            "8_to_8_7_1": shrunk(8, (8, 7, 1)),
            "8_to_4_4_4": shrunk(8, (4, 4, 4)),
            "32_to_16_16_16": shrunk(32, (16, 16, 16)),
            "64_to_32_16_0": shrunk(64, (32, 16, 0), batch=20),
        },
        "scaling": scaling(),
        "targets": TARGETS,
    }
    print(json.dumps(figures, indent=1))
    if not dry:
        print(write("speed_lattice", figures))


if __name__ == "__main__":
    main()
