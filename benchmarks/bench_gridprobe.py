"""Speed of GridProbe: the selection's logic, probes in a batch beside a loop, and the formula beside torch's counter.

Run: python benchmarks/bench_gridprobe.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import receipt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steelyard.models import TinyVLM, tiny_videos
from steelyard.models.vision.tiny_vlm import FULL, LOW
from steelyard.vision import GridProbe, effective_budget, forward_flops, importance_map, select_frames, shape_statistic

ROUNDS = 9


def least(calls: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the least processor seconds of each call, all of them in turn."""
    found = dict.fromkeys(calls, np.inf)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(times):
                call()
            found[name] = min(found[name], (time.process_time() - start) / times)
    return found


def selection(k: int) -> dict[str, float]:
    draws = np.random.default_rng(0)
    rows, columns = (0.25 + 0.75 * draws.random(k) for _ in range(2))

    def factored() -> object:
        cells = importance_map(rows, columns)
        return select_frames(cells, effective_budget(shape_statistic(row_conf=rows, col_conf=columns).sigma, k))

    def whole() -> object:
        cells = importance_map(rows, columns)
        return select_frames(cells, effective_budget(cells))

    found = least({"moments of the factors": factored, "moments of all cells": whole}, 200)
    return {f"{name}, ms": 1e3 * value for name, value in found.items()}


def probes(k: int) -> dict[str, float]:
    one, model = tiny_videos(np.random.default_rng(0), 1, k * k)[0], TinyVLM.load_default()

    def asked(**options: object) -> Callable[[], object]:
        probe = GridProbe(model, k, probe_pixels=LOW, focus_pixels=FULL, **options)
        return lambda: probe.select(one.frames, one.question, one.options, timestamps=one.timestamps)

    def monolithic() -> object:
        return model.option_logprobs(one.frames, one.timestamps, one.question, one.options)

    found = least({"batch": asked(), "loop": asked(batch_probes=False), "all frames": monolithic}, 20)
    return {
        **{f"{name}, ms": 1e3 * value for name, value in found.items()},
        "loop over batch": found["loop"] / found["batch"],
    }


def counted(k: int) -> dict[str, float]:
    """Compare the formula with the operations that torch counts, in the transformer and its output matrix."""
    model = TinyVLM()
    features = model.patches(torch.zeros(1, k * k, 16, 16, 3), FULL)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.read(torch.zeros(1, 2, dtype=torch.long), features, torch.zeros(1, k * k))
    formula = forward_flops(4 * k * k + 3, model.dims, head="last")
    return {
        "formula": formula,
        "counter": float(counter.get_total_flops()),
        "ratio": formula / counter.get_total_flops(),
    }


def main() -> None:
    torch.set_num_threads(1)
    figures = {
        **{f"selection, K = {k}": selection(k) for k in (8, 12, 32)},
        **{f"probes, K = {k}": probes(k) for k in (8, 12)},
        **{f"operations, K = {k}": counted(k) for k in (8, 12)},
    }
    for name, values in figures.items():
        print(name, {key: round(value, 4) for key, value in values.items()})
    print(receipt.write("speed_gridprobe", figures))


if __name__ == "__main__":
    main()
