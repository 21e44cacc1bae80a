"""Time and memory of products with packed 4-bit weights against float32 torch.mm and bitsandbytes, side by side.

Run: python benchmarks/bench_quant_matmul.py [--repeats N]. Processor time of one thread; ratios are medians over
interleaved rounds.
The targets are for (4096, 4096): batch 1 within 1.1 times torch.mm, batch 16 within 1.5 times, each against torch.mm
at the same batch; and for (2048, 2048) at batch 1 faster than bitsandbytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import bitsandbytes
import receipt
import torch
from torch import Tensor

from steelyard.quant.po2.matmul import matmul
from steelyard.quant.po2.packed_matrix import GroupMajor, pack
from steelyard.quant.po2.tensor import quantize
from steelyard.timing import interleaved

SIZES = (2048, 4096)
BATCHES = (1, 2, 4, 16, 64)
FAMILIES = ("mpo2", "sfp4", "nvfp4")
TARGETS = {"4096 batch 1 mpo2 / torch.mm": 1.1, "4096 batch 16 mpo2 / torch.mm": 1.5, "2048 batch 1 mpo2 / bnb": 1.0}


def arms(weight: Tensor, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return what is timed: torch.mm first, whose time is the unit."""
    transposed = weight.T
    calls: dict[str, Callable[[], Tensor]] = {"torch.mm float32": lambda: torch.mm(x, transposed)}
    half, half_x = weight.bfloat16().T, x.bfloat16()
    calls["torch.mm bfloat16"] = lambda: torch.mm(half_x, half)
    for family in FAMILIES:
        packed = pack(quantize(weight, family))
        calls[family] = lambda packed=packed: matmul(x, packed)
    codes, state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4", blocksize=64)
    calls["bitsandbytes nf4 b64"] = lambda: bitsandbytes.matmul_4bit(x, codes.t(), state)
    return calls


def ratios(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return median seconds, and ratio to the first arm with its quartiles."""
    base = next(iter(seconds.values()))
    found = {}
    for name, values in seconds.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(values, base, strict=True)], n=4)
        found[name] = {"seconds": statistics.median(values), "ratio": middle, "quartiles": [low, high]}
    return found


def times(repeats: int) -> dict[str, Any]:
    """Return times by size and batch."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for size in SIZES:
        weight = torch.randn(size, size, generator=generator)
        for batch in BATCHES:
            x = torch.randn(batch, size, generator=generator)
            seconds = interleaved(arms(weight, x), repeats=repeats, number=2, clock=time.process_time)
            found[f"{size} batch {batch}"] = ratios(seconds)
    return found


def memory() -> dict[str, Any]:
    """Return bytes of a packed (4096, 4096), with the constant tables, and how often they go into float32."""
    packed = pack(quantize(torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0)), "mpo2"))
    assert isinstance(packed, GroupMajor)
    weight = packed.codes.numel() + packed.scales.numel()
    tables = sum(part.nbytes for part in (packed.scale_of, packed.selector_of, packed.grids, packed.pairs))
    return {"packed_bytes": weight, "table_bytes": tables, "float32_over_packed": 4 * 4096**2 / (weight + tables)}


def largest_error() -> float:
    """Return the largest difference to the dequantised product, over its largest value, for batches 1 and 16."""
    generator = torch.Generator().manual_seed(1)
    quantized = quantize(torch.randn(4096, 4096, generator=generator), "mpo2")
    packed, dense = pack(quantized), quantized.dequantize()
    worst = 0.0
    for batch in (1, 16):
        x = torch.randn(batch, 4096, generator=generator)
        true = x.double() @ dense.double().T
        worst = max(worst, float((matmul(x, packed) - true).abs().max() / true.abs().max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    measured = times(repeats)
    figures = {
        "targets": TARGETS,
        "reached": {
            "4096 batch 1 mpo2 / torch.mm": measured["4096 batch 1"]["mpo2"]["ratio"],
            "4096 batch 16 mpo2 / torch.mm": measured["4096 batch 16"]["mpo2"]["ratio"],
            "2048 batch 1 mpo2 / bnb": measured["2048 batch 1"]["mpo2"]["seconds"]
            / measured["2048 batch 1"]["bitsandbytes nf4 b64"]["seconds"],
        },
        "times": measured,
        "memory": memory(),
        "largest_relative_error": largest_error(),
    }
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_quant_matmul", figures))


if __name__ == "__main__":
    main()
