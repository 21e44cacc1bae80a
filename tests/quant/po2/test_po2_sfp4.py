"""The product of shifted grids equals that of the dequantised matrices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2.families import sfp4_family
from steelyard.quant.po2.sfp4 import sfp4_matmul, shifted_parts
from steelyard.quant.po2.tensor import quantize

SHIFTED = ("sfp4", "sfp4_pair", sfp4_family(0.375), "nvfp4", "four_over_six")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found, true):
    assert found.shape == true.shape
    assert float((found - true).abs().max()) <= 1e-5 * float(true.abs().max())


@pytest.mark.parametrize("family", SHIFTED)
@pytest.mark.parametrize("columns", [64, 172])
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_w4a4(family, columns, offset):
    a, w = quantize(normal(7, columns) + offset, family), quantize(normal(9, columns, seed=1) - offset, family)
    close(sfp4_matmul(a, w), a.dequantize() @ w.dequantize().T)


def test_all_three_grids_are_in_use_so_that_the_correction_counts():
    a, w = quantize(normal(50, 64), "sfp4"), quantize(normal(50, 64, seed=1), "sfp4")
    assert int(a.selector_histogram().min()) > 0
    parts = shifted_parts(a)
    plain = (parts.codes * parts.scales[..., None]).flatten(1)
    assert float((plain - a.dequantize()).abs().max()) > 0.01
    assert set(parts.shifts.unique().tolist()) == {-0.5, 0.0, 0.5}
    close(sfp4_matmul(a, w), a.dequantize() @ w.dequantize().T)


def test_families_may_differ():
    a, w = quantize(normal(4, 64), "nvfp4"), quantize(normal(5, 64, seed=1), "sfp4")
    close(sfp4_matmul(a, w), a.dequantize() @ w.dequantize().T)


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64)])
def test_weight_only(shape):
    x, w = normal(*shape), quantize(normal(9, 64, seed=1) + 0.2, "sfp4")
    close(sfp4_matmul(x, w), x @ w.dequantize().T)
    half = sfp4_matmul(x.bfloat16(), w)
    assert half.dtype == torch.bfloat16
    assert sfp4_matmul(x.double(), w).dtype == torch.float64


@given(
    rows=st.integers(1, 4), outputs=st.integers(1, 4), columns=st.integers(1, 50), size=st.sampled_from([5, 16, 32]),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=50)
def test_any_shape(rows, outputs, columns, size, seed):
    a, w = quantize(normal(rows, columns, seed=seed), "sfp4", size), quantize(normal(outputs, columns), "sfp4", size)
    bound = a.dequantize().abs() @ w.dequantize().abs().T
    exact = a.dequantize(torch.float64) @ w.dequantize(torch.float64).T
    assert bool(((sfp4_matmul(a, w) - exact).abs() <= 1e-5 * bound + 1e-12).all())


@given(seed=st.integers(0, 99))
@settings(max_examples=20)
def test_transposing_exchanges_the_arguments(seed):
    a, w = quantize(normal(3, 32, seed=seed), "sfp4"), quantize(normal(5, 32, seed=seed + 1), "sfp4")
    torch.testing.assert_close(sfp4_matmul(a, w).T, sfp4_matmul(w, a), rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 99))
@settings(max_examples=20)
def test_weight_only_on_dequantised_activations_is_w4a4(seed):
    a, w = quantize(normal(3, 32, seed=seed), "sfp4"), quantize(normal(5, 32, seed=seed + 1), "sfp4")
    torch.testing.assert_close(sfp4_matmul(a.dequantize(), w), sfp4_matmul(a, w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "w", "message"),
    [
        (quantize(normal(2, 32), "sfp4"), quantize(normal(2, 32), "mpo2"), "'mpo2' are not"),
        (quantize(normal(2, 32), "nf4"), quantize(normal(2, 32), "sfp4"), "'nf4' are not"),
        (quantize(normal(2, 48), "sfp4"), quantize(normal(2, 32), "sfp4"), "same columns"),
        (quantize(normal(2, 32), "sfp4", 8), quantize(normal(2, 32), "sfp4"), "same columns and group size"),
        (normal(2, 31), quantize(normal(2, 32), "sfp4"), "a must be floating with 32 columns"),
        (torch.ones(2, 32, dtype=torch.int64), quantize(normal(2, 32), "sfp4"), "a must be floating"),
        (normal(2, 32), quantize(normal(32, 2), "sfp4", axis=0), "along axis 1"),
        (normal(2, 2), quantize(normal(2, 2, 2), "sfp4"), "along axis 1"),
    ],
)
def test_bad_inputs(a, w, message):
    with pytest.raises(InputError, match=message):
        sfp4_matmul(a, w)


def test_the_default_dtype_does_not_matter():
    a, w = quantize(normal(3, 32), "sfp4"), quantize(normal(5, 32, seed=1), "sfp4")
    expected = sfp4_matmul(a, w)
    torch.set_default_dtype(torch.float64)
    try:
        found = sfp4_matmul(a, w)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
    assert found.dtype == torch.float32


def test_what_is_no_quantised_matrix():
    w = quantize(torch.ones(4, 32), "sfp4")
    for a, b in (("a", "b"), ("a", w), (torch.ones(2, 32), torch.ones(4, 32)), (w, "b")):
        with pytest.raises(InputError, match="sfp4_matmul takes"):
            sfp4_matmul(a, b)
    with pytest.raises(InputError, match="a must be floating"):
        sfp4_matmul(torch.ones(2, 32, dtype=torch.int64), w)
