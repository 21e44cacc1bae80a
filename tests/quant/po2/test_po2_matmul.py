"""Products with packed weights: the numba and the torch path against the dequantised product, and gradients."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2 import packed_matrix as module
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.matmul import matmul
from steelyard.quant.po2.packed_matrix import GroupMajor, RowMajor, dense, pack
from steelyard.quant.po2.tensor import quantize

FOUR = GridFamily("four", tuple(tuple(g * k for g in (-1.0, -0.4, 0.1, 0.6, 1.0)) for k in (0.4, 0.6, 0.8, 1.0)))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=["numba", "torch"])
def path(request, monkeypatch):
    """Both paths; without numba the blocks are decoded by torch."""
    if request.param == "torch":
        monkeypatch.setattr(module, "_kernels", lambda: None)
    else:
        assert module._kernels() is not None
    return request.param


def close(found, true, tolerance=1e-5):
    assert found.shape == true.shape
    assert float((found - true).abs().max()) <= tolerance * float(true.abs().max())


@pytest.mark.parametrize("family", ["nvfp4", "mxfp4", "nf4", "mpo2", "sfp4", "sfp4_pair", "if4"])
@pytest.mark.parametrize("shape", [(256, 64), (130, 172), (40, 48)])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 16])
def test_equals_the_dequantised_product(path, family, shape, batch):
    weight = quantize(normal(*shape), family)
    packed = pack(weight)
    assert isinstance(packed, GroupMajor)
    x = normal(batch, shape[1], seed=1)
    close(matmul(x, packed), x @ weight.dequantize().T)


@pytest.mark.parametrize(
    "options",
    [
        {"group_size": 8}, {"group_size": 5}, {"group_size": 24}, {"scale": "fp16"}, {"scale": "fp32"},
        {"family": FOUR}, {"group_size": 1},
    ],
)  # fmt: skip
def test_what_the_group_major_order_does_not_fit_is_multiplied_in_the_canonical_one(options):
    weight = quantize(normal(33, 50), **options)
    packed = pack(weight)
    assert isinstance(packed, RowMajor)
    for batch in (1, 16):
        x = normal(batch, 50, seed=1)
        close(matmul(x, packed), x @ weight.dequantize().T)


def test_blocks_smaller_than_the_matrix(path, monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 3 * 200 * 16)
    monkeypatch.setattr(module, "_VECTORISED", 3 * 200 * 16)
    for options in ({}, {"scale": "fp32"}):
        weight = quantize(normal(200, 172), **options)
        packed = pack(weight)
        assert len(list(packed.blocks(torch.float32))) > 1
        x = normal(5, 172, seed=1)
        close(matmul(x, packed), x @ weight.dequantize().T)


def test_decoding_is_exact(path):
    for options in ({}, {"family": "sfp4"}, {"group_size": 32}, {"scale": "fp16"}):
        weight = quantize(normal(64, 172), **options)
        assert torch.equal(dense(pack(weight)), weight.dequantize())
        assert torch.equal(dense(pack(weight), torch.bfloat16), weight.dequantize(torch.bfloat16))


@given(
    rows=st.integers(1, 140), columns=st.integers(1, 70), batch=st.integers(1, 5),
    family=st.sampled_from(["mpo2", "sfp4", "nvfp4"]), size=st.sampled_from([1, 4, 7, 16, 32]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_any_shape(rows, columns, batch, family, size, seed):
    weight = quantize(normal(rows, columns, seed=seed), family, size, scale="fp32" if size == 1 else None)
    x = normal(batch, columns, seed=seed + 1)
    found = matmul(x, pack(weight)).double()
    exact = x.double() @ weight.dequantize(torch.float64).T
    bound = x.double().abs() @ weight.dequantize(torch.float64).abs().T
    assert bool(((found - exact).abs() <= 2e-6 * bound + 1e-30).all())


@given(seed=st.integers(0, 99), factor=st.sampled_from([0.0, -1.0, 0.5, 4.0]))
@settings(max_examples=20)
def test_linear_in_x(seed, factor):
    packed = pack(quantize(normal(150, 32, seed=seed)))
    x = normal(1, 32, seed=seed + 1)
    assert torch.equal(matmul(factor * x, packed), factor * matmul(x, packed))


@given(seed=st.integers(0, 99), columns=st.integers(1, 80))
@settings(max_examples=20)
def test_the_transposed_product_is_the_adjoint(seed, columns):
    packed = pack(quantize(normal(50, columns, seed=seed)))
    x, y = normal(3, columns, seed=seed + 1).requires_grad_(), normal(3, 50, seed=seed + 2)
    product = (matmul(x, packed) * y).sum()
    (back,) = torch.autograd.grad(product, x)
    assert float((x * back).sum().detach()) == pytest.approx(float(product.detach()), rel=1e-4, abs=1e-3)


def test_a_row_alone_and_in_a_batch():
    packed = pack(quantize(normal(300, 64)))
    x = normal(8, 64, seed=1)
    close(torch.cat([matmul(row[None], packed) for row in x]), matmul(x, packed), 1e-6)


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64), (0, 64), (2, 0, 64)])
def test_shapes_of_x(path, shape):
    weight = quantize(normal(200, 64))
    x = normal(*shape, seed=1)
    found = matmul(x, pack(weight))
    assert found.shape == (*shape[:-1], 200)
    torch.testing.assert_close(found, x @ weight.dequantize().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(path, dtype):
    weight = quantize(normal(200, 64))
    for batch in (1, 16):
        x = normal(batch, 64, seed=1).to(dtype)
        found = matmul(x, pack(weight))
        assert found.dtype == dtype
        torch.testing.assert_close(found, (x.float() @ weight.dequantize().T).to(dtype), rtol=1e-2, atol=1e-2)


def test_float64(path):
    weight = quantize(normal(200, 64))
    x = normal(2, 64, seed=1, dtype=torch.float64)
    close(matmul(x, pack(weight)), x @ weight.dequantize(torch.float64).T, 1e-14)


def test_x_that_is_not_contiguous():
    weight = quantize(normal(200, 64))
    x = normal(64, 2, seed=1).T
    close(matmul(x, pack(weight)), x @ weight.dequantize().T)


@pytest.mark.parametrize("options", [{}, {"scale": "fp32"}])
def test_gradcheck(path, options):
    packed = pack(quantize(normal(20, 18), **options))
    x = normal(2, 18, seed=1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: matmul(x, packed), (x,))
    assert torch.autograd.gradgradcheck(lambda x: matmul(x, packed).tanh(), (x,))


def test_gradient_equals_that_of_the_dequantised_product(path):
    weight = quantize(normal(200, 172))
    for batch in (1, 16):
        x, y = normal(batch, 172, seed=1).requires_grad_(), normal(batch, 200, seed=2)
        (found,) = torch.autograd.grad(matmul(x, pack(weight)), x, y)
        close(found, y @ weight.dequantize())


def test_the_packed_copy_has_the_bytes_of_the_canonical_one():
    weight = quantize(normal(256, 64))
    packed = pack(weight)
    assert packed.codes.numel() == weight.codes.numel()
    assert packed.scales.numel() == weight.scales.numel()


def test_nothing_as_large_as_the_matrix_is_made(monkeypatch):
    """4096 x 1024 floats are 16 MB; the blocks of the numba path hold 1 MB."""
    packed = pack(quantize(normal(4096, 1024)))
    largest = max(weights.numel() for _, _, weights in packed.blocks(torch.float32))
    assert largest <= 2**18
    monkeypatch.setattr(module, "_kernels", lambda: None)
    other = dataclasses.replace(packed)
    assert max(weights.numel() for _, _, weights in other.blocks(torch.float32)) <= 2**22


def test_zero_weight_gives_exactly_zero(path):
    packed = pack(quantize(torch.zeros(200, 32)))
    assert torch.equal(matmul(normal(1, 32), packed), torch.zeros(1, 200))
    assert torch.equal(matmul(normal(16, 32), packed), torch.zeros(16, 200))


def test_the_kernels_compute_what_their_python_says():
    """The compiled functions against their source, run by the interpreter."""
    kernels = module._kernels()
    weight = quantize(normal(3, 40), "sfp4")
    packed = pack(weight)
    x = torch.nn.functional.pad(normal(40, seed=1), (0, 8)).numpy()
    table = torch.zeros(3 * 2048).numpy()
    kernels._fill.py_func(table, packed.grids.numpy(), x[:16])
    low, high, position, grid = 3, 11, 5, 2
    expected = packed.grids[grid, low] * x[10] + packed.grids[grid, high] * x[11]
    assert table[((grid * 8 + position) * 16 + high) * 16 + low] == pytest.approx(float(expected), rel=1e-6)
    y = torch.zeros(3)
    kernels.row_product.py_func(*packed.kernels, packed.grids.numpy(), x, y.numpy())
    close(y, weight.dequantize() @ torch.from_numpy(x)[:40])
    out = torch.zeros(3, 3, 16)
    kernels.decode.py_func(*packed.kernels, packed.pairs.numpy().view("uint64")[:, 0], 0, out.numpy())
    assert torch.equal(out.reshape(3, 48)[:, :40], weight.dequantize())


def test_bad_inputs():
    packed = pack(quantize(normal(20, 32)))
    with pytest.raises(InputError, match=r"x must have 32 values.*\(2, 31\)"):
        matmul(normal(2, 31), packed)
    with pytest.raises(InputError, match="x must have 32 values"):
        matmul(torch.tensor(1.0), packed)
    with pytest.raises(InputError, match="x must be floating"):
        matmul(torch.ones(2, 32, dtype=torch.int64), packed)


def test_words_that_are_read_high_byte_first_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(module.sys, "byteorder", "big")
    assert module._kernels() is None


def test_defaults_of_the_process_do_not_matter(path):
    weight = quantize(normal(200, 40))
    x = normal(2, 40, seed=1)
    expected = matmul(x, pack(weight))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert torch.equal(matmul(x, pack(weight)), expected)
            close(matmul(x.repeat(8, 1), pack(weight)), expected.repeat(8, 1))
    finally:
        torch.set_default_dtype(torch.float32)


def test_functional_gradients_and_autocast():
    weight = quantize(normal(200, 40))
    packed = pack(weight)
    x = normal(2, 40, seed=1)
    close(torch.func.grad(lambda x: matmul(x, packed).sum())(x), weight.dequantize().sum(0).expand(2, -1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(matmul(x, packed), matmul(x, packed))
        close(matmul(x, packed), x @ weight.dequantize().T, 2e-2)
