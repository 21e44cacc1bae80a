"""exact_cross_entropy, forward and backward, against F.cross_entropy and a float64 cast: time, peak memory, scaling.

Run: ``python benchmarks/bench_nfi.py``. Times are taken in turns and compared as ratios of the same round. Peak memory
is the high-water mark of the resident set of a fresh process, above what it held before the first large step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import receipt
import torch
from torch import Tensor
from torch.nn import functional

from steelyard.optim import exact_cross_entropy
from steelyard.timing import interleaved

SHAPES = ((512, 10), (512, 97), (4096, 1000), (512, 50304))
MEMORY_SHAPES = ((4096, 1000), (512, 50304))
SCALING = tuple((256, K) for K in (250, 1000, 4000, 16000, 64000))
THREADS = (1, 2)
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.cross_entropy": functional.cross_entropy,
    "exact": exact_cross_entropy,
    "float64 cast": lambda logits, target: functional.cross_entropy(logits.double(), target),
}


def problem(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator).mul_(3).requires_grad_()
    return logits, torch.randint(0, classes, (rows,), generator=generator)


def step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> None:
    logits.grad = None
    loss(logits, target).backward()


def times(rows: int, classes: int, repeats: int) -> dict[str, Any]:
    """Median seconds of each loss and its ratio to the reference, with the quartiles of the ratio."""
    logits, target = problem(rows, classes)
    number = max(1, 200_000 // (rows * classes))
    arms = {name: lambda loss=loss: step(loss, logits, target) for name, loss in LOSSES.items()}
    seconds = interleaved(arms, repeats=repeats, number=number)
    found: dict[str, Any] = {"rows": rows, "classes": classes}
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, seconds["F.cross_entropy"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found[name] = {"seconds": statistics.median(values), "ratio": middle, "quartiles": [low, high]}
    return found


def peak(name: str, rows: int, classes: int, threads: int) -> float:
    """Bytes above the inputs that one forward and backward pass needs at its height; measured in this very process."""
    torch.set_num_threads(threads)
    step(LOSSES[name], *problem(8, classes))  # loads kernels and thread pools; small beside what follows
    logits, target = problem(rows, classes)
    before = _status_kb("VmRSS")
    step(LOSSES[name], logits, target)
    return 1024 * (_status_kb("VmHWM") - before)  # not ru_maxrss, which a child inherits from a large parent


def _status_kb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field)))


def peaks(rows: int, classes: int, threads: int) -> dict[str, Any]:
    """Peak of each loss, each in a fresh process, in bytes, in buffers of the logits' size, and as a ratio."""
    found: dict[str, Any] = {"rows": rows, "classes": classes, "threads": threads}
    for name in LOSSES:
        command = [sys.executable, __file__, "--peak", name, str(rows), str(classes), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = {"bytes": float(done.stdout), "buffers": float(done.stdout) / (4 * rows * classes)}
    for name in LOSSES:
        found[name]["ratio"] = found[name]["bytes"] / found["F.cross_entropy"]["bytes"]
    return found


def scaling(repeats: int) -> dict[str, Any]:
    """Seconds by number of classes, as a curve that plot_scaling.py draws."""
    found = [times(*shape, repeats) for shape in SCALING]
    return {
        f"cross-entropy, {SCALING[0][0]} rows, one thread": {
            "x": [entry["classes"] for entry in found],
            "y": {name: [entry[name]["seconds"] for entry in found] for name in LOSSES},
            "x_label": "classes",
            "y_label": "s, forward and backward",
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds")
    parser.add_argument("--peak", nargs=4, metavar=("LOSS", "ROWS", "CLASSES", "THREADS"), help="one memory figure")
    arguments = parser.parse_args()
    if arguments.peak:
        name, *sizes = arguments.peak
        print(peak(name, *map(int, sizes)))
        return
    figures: dict[str, Any] = {"time": [], "memory": [], "targets": {"ratio": 1.5, "memory_ratio": 1.1}}
    for threads in THREADS:
        torch.set_num_threads(threads)
        figures["time"] += [{"threads": threads, **times(*shape, arguments.repeats)} for shape in SHAPES]
        figures["memory"] += [peaks(*shape, threads) for shape in MEMORY_SHAPES]
    torch.set_num_threads(1)
    figures["scaling"] = scaling(arguments.repeats)
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_nfi", figures))


if __name__ == "__main__":
    main()
