"""Against published libraries: torchao (NVFP4, MXFP4), bitsandbytes (NF4) and gguf (MXFP4)."""

import bitsandbytes.functional as bnb
import gguf
import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, nvfp4_quantize, per_tensor_amax_to_scale

from steelyard.quant.po2.families import E2M1_CODES, NF4_GRID
from steelyard.quant.po2.tensor import quantize
from steelyard.rng import torch_generator


def draw(seed, kind="gauss"):
    stream = torch_generator("test", f"po2 peers {kind}", seed)
    x = torch.randn(128, 512, generator=stream)
    if kind == "laplace":
        x = x.sign() * -torch.rand(128, 512, generator=stream).clamp(min=1e-6).log()
    return x


def relative(x, y):
    return float((x - y).double().square().sum() / x.double().square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gauss", "laplace"])
@pytest.mark.parametrize("seed", range(4))
def test_nvfp4_is_torchaos_bit_for_bit(seed, kind, dtype):
    x = draw(seed, kind).to(dtype)
    scale = per_tensor_amax_to_scale(x.float().abs().max())
    theirs, packed = nvfp4_quantize(x, 16, scale)
    q = quantize(x, "nvfp4")
    assert q.tensor_scale == float(scale)
    assert torch.equal(q.scales, theirs.view(torch.uint8).reshape(q.scales.shape))
    codes = torch.tensor(E2M1_CODES, dtype=torch.uint8)[q.unpacked_codes().int()]
    assert torch.equal(codes[:, ::2] | (codes[:, 1::2] << 4), packed.reshape(q.codes.shape))
    whole = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)
    assert relative(x.float(), q.dequantize()) == pytest.approx(relative(x.float(), whole), rel=0.01)


@pytest.mark.filterwarnings("ignore:.*so small")
@pytest.mark.parametrize("factor", [1e-5, 1e-6])
def test_nvfp4_below_torchaos_floor(factor):
    """torchao raises scales to 2^-6 t; the smallest subnormal 2^-9 t that is used here loses less."""
    x = draw(0)
    x[5:] *= factor
    scale = per_tensor_amax_to_scale(x.abs().max())
    whole = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)
    ours = quantize(x, "nvfp4").dequantize()
    assert relative(x[5:], ours[5:]) < 0.5 * relative(x[5:], whole[5:])
    assert torch.equal(ours[:5], whole[:5])


@pytest.mark.parametrize("kind", ["gauss", "laplace"])
def test_mxfp4_is_torchaos_and_gguf_agrees(kind):
    x = draw(1, kind)
    theirs = MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32)
    q = quantize(x, "mxfp4")
    assert torch.equal(q.scales, theirs.scale.view(torch.uint8).reshape(q.scales.shape))
    assert torch.equal(q.dequantize(), theirs.dequantize(torch.float32))
    mxfp4 = gguf.GGMLQuantizationType.MXFP4
    from_gguf = gguf.quants.dequantize(gguf.quants.quantize(x.numpy(), mxfp4), mxfp4)
    assert q.relative_mse(x) == pytest.approx(relative(x, torch.from_numpy(from_gguf)), rel=0.01)


def test_nf4_table_and_error_are_bitsandbytes():
    table = bnb.get_4bit_type("nf4", device="cpu")
    assert np.abs(np.sort(table.numpy()) - np.array(NF4_GRID)).max() < 1e-6
    x = draw(2)
    packed, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=False)
    theirs = bnb.dequantize_4bit(packed, state).reshape(x.shape)
    q = quantize(x, "nf4", 64, "fp32")
    assert q.relative_mse(x) == pytest.approx(relative(x, theirs), rel=1e-3)
    assert relative(theirs, q.dequantize()) < 1e-4
