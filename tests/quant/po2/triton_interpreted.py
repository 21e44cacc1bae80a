"""The Triton kernel in Triton's interpreter; test_po2_triton.py runs this file in a process of its own.

The interpreter has to be chosen before Triton is imported (TRITON_INTERPRET=1), and then holds for the whole process.
"""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.quant.po2 import matmul as module
from steelyard.quant.po2 import packed_matrix, triton_kernels
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.layers import QuantizedLinear
from steelyard.quant.po2.matmul import matmul
from steelyard.quant.po2.packed_matrix import pack
from steelyard.quant.po2.tensor import quantize

torch.set_num_threads(1)
FOUR = GridFamily("four", tuple(tuple(g * k for g in (-1.0, -0.4, 0.1, 0.6, 1.0)) for k in (0.4, 0.6, 0.8, 1.0)))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(autouse=True)
def interpreter():
    """The kernel runs interpreted, and no test falls back to torch unseen."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    yield
    assert not triton_kernels._refused


@pytest.fixture
def on_cpu(monkeypatch):
    """Let matmul take the kernel for matrices on the CPU too."""
    monkeypatch.setattr(module, "_triton", lambda device: triton_kernels)


def error(found, weight, x):
    true = x.double() @ weight.dequantize(torch.float64).T
    assert found.shape == true.shape
    return float((found.double() - true).abs().max() / true.abs().max())


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("family", ["nvfp4", "mpo2", "sfp4", "mxfp4"])
@pytest.mark.parametrize("batch", [1, 3, 16, 65])
def test_equals_the_torch_path(monkeypatch, family, size, batch):
    weight = quantize(normal(70, 172), family, size)
    x, packed = normal(batch, 172, seed=1), pack(weight)
    found = triton_kernels.product(x, packed)
    assert error(found, weight, x) <= 1e-5
    monkeypatch.setattr(packed_matrix, "_kernels", lambda: None)
    blocks = matmul(x, pack(weight))
    assert float((found - blocks).abs().max()) <= 1e-5 * float(blocks.abs().max())


@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (33, 1), (31, 15), (32, 32), (65, 97)])
@pytest.mark.parametrize("options", [{}, {"family": FOUR, "scale": "e3m3"}, {"group_size": 48}])
def test_shapes_beside_the_tiles(shape, options):
    weight = quantize(normal(*shape), **options)
    for batch in (1, 17):
        x = normal(batch, shape[1], seed=1)
        assert error(triton_kernels.product(x, pack(weight)), weight, x) <= 1e-5


@given(
    rows=st.integers(1, 70), columns=st.integers(1, 100), batch=st.integers(1, 34),
    family=st.sampled_from(["mpo2", "sfp4", "nvfp4", "sfp4_pair"]), size=st.sampled_from([16, 32, 64]),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=12)
def test_any_shape(rows, columns, batch, family, size, seed):
    weight = quantize(normal(rows, columns, seed=seed), family, size)
    x = normal(batch, columns, seed=seed + 1)
    found = triton_kernels.product(x, pack(weight)).double()
    dense = weight.dequantize(torch.float64).T
    assert bool(((found - x.double() @ dense).abs() <= 2e-6 * (x.double().abs() @ dense.abs()) + 1e-30).all())


@given(seed=st.integers(0, 99), factor=st.sampled_from([0.0, -1.0, 0.5, 4.0]))
@settings(max_examples=8)
def test_linear_in_x(seed, factor):
    packed = pack(quantize(normal(40, 48, seed=seed)))
    x = normal(2, 48, seed=seed + 1)
    assert torch.equal(triton_kernels.product(factor * x, packed), factor * triton_kernels.product(x, packed))


@given(row=st.integers(0, 19), seed=st.integers(0, 99))
@settings(max_examples=8)
def test_a_row_does_not_see_the_others(row, seed):
    packed = pack(quantize(normal(40, 48, seed=seed)))
    x = normal(20, 48, seed=seed + 1)
    alone = torch.full_like(x, torch.nan)
    alone[row] = x[row]
    assert torch.equal(triton_kernels.product(alone, packed)[row], triton_kernels.product(x, packed)[row])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [3, 65])
def test_half_precision_is_summed_in_float32_and_rounded_once(on_cpu, dtype, batch):
    weight = quantize(normal(70, 172), "sfp4")
    x, packed = normal(batch, 172, seed=1).to(dtype), pack(weight)
    found = triton_kernels.product(x, packed)
    assert found.dtype == torch.float32
    assert error(found, weight, x) <= 1e-5
    assert torch.equal(matmul(x, packed), found.to(dtype))


def test_what_the_kernel_leaves_to_torch():
    packed = pack(quantize(normal(40, 48)))
    assert triton_kernels.product(normal(2, 48, dtype=torch.float64), packed) is None
    assert triton_kernels.product(torch.empty(0, 48), packed) is None
    assert triton_kernels.product(torch.empty(2, 48, device="meta"), packed) is None


def test_matmul_takes_the_kernel_and_keeps_the_gradients(on_cpu, monkeypatch):
    weight = quantize(normal(150, 172), "sfp4")
    packed, seen = pack(weight), []
    launch = triton_kernels._launch
    monkeypatch.setattr(triton_kernels, "_launch", lambda *a: seen.append(len(a[0])) or launch(*a))
    for shape in ((172,), (2, 3, 172), (0, 172), (5, 172)):
        x = normal(*shape, seed=1)
        torch.testing.assert_close(matmul(x, packed), x @ weight.dequantize().T, rtol=1e-4, atol=1e-4)
    strided = normal(172, 4, seed=1).T
    assert error(matmul(strided, packed), weight, strided) <= 1e-5
    assert seen[-4:] == [1, 6, 5, 4]
    x, back = normal(5, 172, seed=2).requires_grad_(), normal(5, 150, seed=3)
    (found,) = torch.autograd.grad(matmul(x, packed), x, back)
    true = back @ weight.dequantize()
    assert float((found - true).abs().max()) <= 1e-5 * float(true.abs().max())
    torch.testing.assert_close(
        torch.func.grad(lambda x: matmul(x, packed).sum())(x.detach()),
        weight.dequantize().sum(0).expand(5, -1), rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_a_layer_multiplies_with_the_kernel(on_cpu):
    linear = torch.nn.Linear(172, 70)
    layer = QuantizedLinear.from_float(linear, "mpo2")
    x = normal(4, 172, seed=1)
    found = layer(x) - linear.bias
    assert error(found.detach(), layer.weight, x) <= 1e-5


def test_defaults_of_the_process_do_not_matter():
    triton_kernels._check.cache_clear()
    packed, x = pack(quantize(normal(40, 48))), normal(3, 48, seed=1)
    expected = triton_kernels.product(x, packed)
    triton_kernels._check.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert torch.equal(triton_kernels.product(x, packed), expected)
    finally:
        torch.set_default_dtype(torch.float32)
