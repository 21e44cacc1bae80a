"""Time advantages of steps beside the formulation with a loop over trajectories, and beside each other.

The peer is written from the description of the usual implementation: for every trajectory a search through all rows,
torch scalars, a dictionary of states, statistics of each state by a list. It gives the same numbers, which is checked.

Run: python benchmarks/bench_advantages.py [--largest 1000000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import receipt
import torch

from steelyard.policy import StepBatch, g2po_advantage, gigpo, grpo
from steelyard.timing import interleaved

STEPS, ROLLOUTS, STATES = 20, 8, 40
TARGETS = {"us a step, string anchors": 2.0, "us a step, integer anchors": 0.5, "times the loop at 6,400 steps": 100.0}


def rows(size: int, seed: int = 0, shuffled: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of ``size`` steps in rollouts of 20, eight a task."""
    draws = np.random.default_rng(seed)
    traj = np.repeat(np.arange(size // STEPS), STEPS)
    t = np.tile(np.arange(STEPS), size // STEPS)
    reward = np.where(t == STEPS - 1, 10.0 * draws.integers(0, 2, len(t)), 0.0)
    made = {
        "task": traj // ROLLOUTS,
        "traj": traj,
        "t": t,
        "reward": reward,
        "anchor": draws.integers(0, STATES, len(t)),
    }
    order = draws.permutation(len(t)) if shuffled else np.arange(len(t))
    return {name: values[order] for name, values in made.items()}


def texts(anchor: np.ndarray) -> list[str]:
    return [
        f"You arrive at shelf {number}. On the shelf {number}, you see a mug {number}." for number in anchor.tolist()
    ]


def loop(data: dict[str, np.ndarray], gamma: float = 0.95, norm: str = "std") -> np.ndarray:
    """The peer: G2PO with statistics over steps, one trajectory after the other."""

    def spread(values: torch.Tensor) -> torch.Tensor | float:
        return values.std() + 1e-6 if norm == "std" else 1.0

    reward = torch.tensor(data["reward"], dtype=torch.float64)
    total = torch.zeros(len(reward), dtype=torch.float64)
    for task in np.unique(data["task"]):
        trajectories = np.unique(data["traj"][data["task"] == task])
        visits: dict[Any, list[torch.Tensor]] = defaultdict(list)
        returned = {}
        for name in trajectories:
            own = np.where(data["traj"] == name)[0]
            own = own[np.argsort(data["t"][own])]
            value = returned[name] = reward[own].sum()
            for place, row in enumerate(own):
                visits[data["anchor"][row]].append(gamma ** (len(own) - place) * value)
        values = {state: torch.stack(found).mean() for state, found in visits.items()}
        following: dict[int, torch.Tensor] = {}
        leaving: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for name in trajectories:
            own = np.where(data["traj"] == name)[0]
            own = own[np.argsort(data["t"][own])]
            for place, row in enumerate(own):
                last = place + 1 == len(own)
                following[row] = returned[name] if last else values[data["anchor"][own[place + 1]]]
                leaving[data["anchor"][row]].append(following[row])
        steps = list(following)
        rises = torch.stack([following[row] - values[data["anchor"][row]] for row in steps])
        ends = torch.stack([returned[data["traj"][row]] for row in steps])
        edge, episode = ((x - x.mean()) / spread(x) for x in (rises, ends))
        for place, row in enumerate(steps):
            own_state = torch.stack(leaving[data["anchor"][row]])
            node = (following[row] - own_state.mean()) / spread(own_state) if len(own_state) > 1 else 0.0
            total[row] = episode[place] + edge[place] + node
    return total.numpy()


def microseconds(size: int, repeats: int, shuffled: bool, named: bool) -> dict[str, float]:
    """Return microseconds a step, reading the rows included."""
    data: dict[str, Any] = rows(size, shuffled=shuffled)
    if named:
        data["anchor"] = texts(data["anchor"])
    plain = {name: values for name, values in data.items() if name != "anchor"}
    arms = {
        "g2po": lambda: g2po_advantage(StepBatch(**data)),
        "gigpo": lambda: gigpo(StepBatch(**data)),
        "grpo": lambda: grpo(StepBatch(**plain)),
    }
    seconds = interleaved(arms, repeats=repeats, warmup=1, clock=time.process_time)
    return {name: 1e6 * statistics.median(values) / size for name, values in seconds.items()}


def bytes_a_step(size: int) -> float:
    """Return the peak of what is allocated from arrays to advantages, the batch's own arrays and layout included."""
    data = rows(size, shuffled=True)
    tracemalloc.start()
    g2po_advantage(StepBatch(**data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / size


def beside_the_loop(repeats: int) -> dict[str, float]:
    """Return how much longer the loop takes at 6,400 steps, and how far the two differ."""
    data = rows(6_400)
    apart = {
        norm: float(
            np.abs(g2po_advantage(StepBatch(**data), norm=norm, episode_stats="step") - loop(data, norm=norm)).max()
        )
        for norm in ("std", "mean")
    }
    arms = {
        "loop": lambda: loop(data),
        "g2po": lambda: g2po_advantage(StepBatch(**data), episode_stats="step"),
    }
    seconds = interleaved(arms, repeats=repeats, warmup=1, clock=time.process_time)
    ratios = [slow / fast for slow, fast in zip(seconds["loop"], seconds["g2po"], strict=True)]
    return {"times": statistics.median(ratios), "largest difference": max(apart.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"targets": TARGETS, "loop over trajectories": beside_the_loop(chosen.repeats)}
    for named in (False, True):
        for shuffled in (False, True):
            kind = f"{'string' if named else 'integer'} anchors, {'shuffled' if shuffled else 'sorted'} rows"
            figures[f"us a step, {kind}"] = microseconds(chosen.largest, chosen.repeats, shuffled, named)
    sizes = [size for size in (6_400, 100_000, chosen.largest) if size <= chosen.largest]
    curve = [microseconds(size, chosen.repeats, False, False)["g2po"] * size / 1e6 for size in sizes]
    figures["scaling"] = {"g2po, integer anchors": {"x": sizes, "y": curve, "x_label": "steps", "y_label": "s"}}
    figures["time of the largest over that of a tenth"] = curve[-1] / curve[-2]
    figures["bytes a step at the peak"] = bytes_a_step(min(chosen.largest, 1_000_000))
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_advantages", figures))


if __name__ == "__main__":
    main()
