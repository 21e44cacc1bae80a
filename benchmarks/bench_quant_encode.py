"""What quantising and dequantising cost beside torchao, bitsandbytes and gguf, on one thread, and how it scales.

Ratios are medians over interleaved rounds. torchao's NVFP4 and MXFP4 and ours hold the same format. bitsandbytes has
NF4 at a block of 64 by default and 32 at least; ours is shown at 64 with FP32 scales (the same block and bits) and at
16 with E4M3 scales (this library's default). gguf's Q4_0 has one FP16 scale for 32 weights.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import warnings
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"

import bitsandbytes.functional as bnb
import gguf
import torch
from receipt import write
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

from steelyard.quant import dequantize, quantize
from steelyard.quant.po2 import tensor
from steelyard.rng import torch_generator
from steelyard.timing import interleaved

SIZES = (2048, 4096)
TARGETS = {  # the peer's time over ours, at least
    "quantize torchao_nvfp4 / nvfp4": 3.0,
    "quantize torchao_nvfp4 / mpo2": 2.5,
    "quantize bitsandbytes_nf4_b64 / nf4_g64": 4.0,
    "dequantize bitsandbytes_nf4_b64 / mpo2": 1 / 1.5,
}
Q4_0, MXFP4 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.MXFP4


def weights(size: int) -> torch.Tensor:
    return torch.randn(size, size, generator=torch_generator("bench", "quant encode", size))


def to_nvfp4(x: torch.Tensor) -> NVFP4Tensor:
    return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()))


def to_bnb(x: torch.Tensor, block: int) -> tuple[torch.Tensor, object]:
    return bnb.quantize_4bit(x, blocksize=block, quant_type="nf4", compress_statistics=False)


def encoders(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    half = x.bfloat16()
    return {
        "torchao_nvfp4": lambda: to_nvfp4(x),
        "torchao_mxfp4": lambda: MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32),
        "bitsandbytes_nf4_b64": lambda: to_bnb(x, 64),
        "bitsandbytes_nf4_b32": lambda: to_bnb(x, 32),
        "gguf_q4_0": lambda: gguf.quants.quantize(x.numpy(), Q4_0),
        "gguf_mxfp4": lambda: gguf.quants.quantize(x.numpy(), MXFP4),
        "nvfp4": lambda: quantize(x, "nvfp4"),
        "nvfp4_bfloat16": lambda: quantize(half, "nvfp4"),
        "mxfp4": lambda: quantize(x, "mxfp4"),
        "nf4_g16": lambda: quantize(x, "nf4"),
        "nf4_g64": lambda: quantize(x, "nf4", 64, "fp32"),
        "mpo2": lambda: quantize(x, "mpo2"),
        "sfp4": lambda: quantize(x, "sfp4"),
    }


def decoders(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    packed, state = to_bnb(x, 64)
    ao, q4_0 = to_nvfp4(x), gguf.quants.quantize(x.numpy(), Q4_0)
    ours = {name: quantize(x, name) for name in ("nvfp4", "mpo2", "sfp4")} | {"nf4_g64": quantize(x, "nf4", 64, "fp32")}
    return {
        "torchao_nvfp4": lambda: ao.dequantize(torch.float32),
        "bitsandbytes_nf4_b64": lambda: bnb.dequantize_4bit(packed, state),
        "gguf_q4_0": lambda: gguf.quants.dequantize(q4_0, Q4_0),
    } | {name: functools.partial(dequantize, q) for name, q in ours.items()}


def ratios(seconds: dict[str, list[float]], what: str) -> dict[str, float]:
    """Return every peer's time over every time of ours, round by round."""
    peers = [name for name in seconds if name.startswith(("torchao", "bitsandbytes", "gguf"))]
    return {
        f"{what} {peer} / {name}": statistics.median(a / b for a, b in zip(seconds[peer], seconds[name], strict=True))
        for peer in peers
        for name in seconds
        if name not in peers
    }


def side_by_side(size: int) -> dict[str, object]:
    x = weights(size)
    encode = interleaved(encoders(x), repeats=9 if size <= 2048 else 5, warmup=1)
    decode = interleaved(decoders(x), repeats=15, warmup=3)
    return {
        "quantize_ms": {name: 1e3 * statistics.median(values) for name, values in encode.items()},
        "dequantize_ms": {name: 1e3 * statistics.median(values) for name, values in decode.items()},
        "peer_over_ours": ratios(encode, "quantize") | ratios(decode, "dequantize"),
    }


def without_numba(x: torch.Tensor) -> object:
    """Quantise on the plain torch path."""
    found, tensor._kernels = tensor._kernels, lambda: None
    try:
        return quantize(x, "mpo2")
    finally:
        tensor._kernels = found


def torch_path() -> dict[str, float]:
    x = weights(1024)
    seconds = interleaved({"torch": lambda: without_numba(x), "numba": lambda: quantize(x, "mpo2")}, repeats=5)
    return {
        "torch_over_numba": statistics.median(a / b for a, b in zip(seconds["torch"], seconds["numba"], strict=True))
    }


def scaling() -> dict[str, dict[str, object]]:
    """Return the time over elements, and over grids times scale factors at 2048 x 2048."""
    sizes = (256, 512, 1024, 2048, 4096)
    data = {size: weights(size) for size in sizes}
    grown = interleaved({str(n): functools.partial(quantize, x, "mpo2") for n, x in data.items()}, repeats=5)
    x = data[2048]
    tried = {
        1: ("nvfp4", "none"),
        2: ("mpo2", "none"),
        3: ("sfp4", "none"),
        15: ("nvfp4", "sweep"),
        30: ("mpo2", "sweep"),
    }
    pairs = interleaved(
        {str(n): functools.partial(quantize, x, family, search=how) for n, (family, how) in tried.items()}, repeats=5
    )
    return {
        "quantize: two grids": {
            "x": [n * n for n in sizes],
            "y": [1e3 * statistics.median(values) for values in grown.values()],
            "x_label": "elements",
            "y_label": "milliseconds",
        },
        "quantize: grids times factors": {
            "x": list(tried),
            "y": [1e3 * statistics.median(values) for values in pairs.values()],
            "x_label": "grids times scale factors",
            "y_label": "milliseconds",
        },
    }


def main() -> None:
    warnings.filterwarnings("ignore", module="torchao|bitsandbytes")
    torch.set_num_threads(1)
    figures = {
        "threads": 1,
        "targets_peer_over_ours": TARGETS,
        "sizes": {f"{size}x{size}": side_by_side(size) for size in SIZES},
        "plain_torch_path_1024": torch_path(),
        "scaling": scaling(),
    }
    print(json.dumps(figures, indent=1))
    for name, target in TARGETS.items():
        found = [f"{size} {part['peer_over_ours'][name]:.2f}" for size, part in figures["sizes"].items()]
        print(f"{name}: {', '.join(found)} (target {target:.2f})")
    print(write("speed_quant_encode", figures))


if __name__ == "__main__":
    main()
