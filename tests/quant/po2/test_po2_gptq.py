"""GPTQ against the optimal-brain updates it abbreviates, and against plain rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2 import core
from steelyard.quant.po2.gptq import _round_group, gptq
from steelyard.quant.po2.tensor import quantize


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(n, columns, seed=0):
    return normal(n, columns, seed=seed) @ (normal(columns, columns, seed=seed + 1) * torch.linspace(0.1, 2, columns))


def damped(x, damping=0.01):
    hessian = (x.T @ x).double()
    return hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian))


def by_the_book(weight, hessian, values):
    """Quantise column after column; after each, the best change of the rest given the inverse Hessian of the rest."""
    weight, inverse = weight.double().clone(), torch.linalg.inv(hessian)
    columns = weight.shape[1]
    chosen = torch.empty_like(weight)
    for column in range(columns):
        rest = slice(column + 1, columns)
        chosen[:, column] = values.gather(1, (weight[:, column, None] - values).abs().argmin(1)[:, None])[:, 0]
        error = weight[:, column] - chosen[:, column]
        weight[:, rest] -= error[:, None] * inverse[column, rest] / inverse[column, column]
        inverse = inverse - inverse[:, column, None] * inverse[column] / inverse[column, column]
    return chosen


@given(seed=st.integers(0, 200), columns=st.integers(2, 9))
@settings(max_examples=40)
def test_a_group_equals_updates_with_explicit_inverses(seed, columns):
    weight, hessian = normal(3, columns, seed=seed).double(), damped(inputs(30, columns, seed))
    values = normal(3, 16, seed=seed + 1).double().sort(1).values
    factor = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    codes, _ = _round_group(weight.clone(), factor, values)
    assert torch.equal(values.gather(1, codes.long()), by_the_book(weight, hessian, values))


def test_the_rest_is_moved_to_its_optimum_given_the_columns_already_quantised():
    """After the first group, the second starts at argmin ||X (w - v)||^2 (damped) over v with the first group fixed."""
    weight, x = normal(4, 32), inputs(200, 32)
    found = gptq(weight, x.T @ x, "nvfp4").dequantize().double()
    hessian = damped(x)
    first, rest = slice(0, 16), slice(16, 32)
    error = weight.double()[:, first] - found[:, first]
    best = weight.double()[:, rest] + error @ hessian[first, rest] @ torch.linalg.inv(hessian[rest, rest])
    assert float((found[:, rest] - best).square().sum()) < float((found[:, rest] - weight[:, rest]).square().sum())


@given(seed=st.integers(0, 50), family=st.sampled_from(["nvfp4", "mpo2", "sfp4", "nf4"]))
@settings(max_examples=20)
def test_lower_output_error_than_plain_rounding(seed, family):
    weight, x = normal(16, 64, seed=seed), inputs(256, 64, seed=seed + 1)
    plain, ours = quantize(weight, family).dequantize(), gptq(weight, x.T @ x, family).dequantize()
    assert float((x @ (ours - weight).T).square().sum()) < 0.95 * float((x @ (plain - weight).T).square().sum())


@pytest.mark.parametrize(
    "options", [{}, {"group_size": 24}, {"scale": "fp16"}, {"scale": "fp32"}, {"search": "sweep"}, {"family": "mxfp4"}]
)
def test_formats_and_padding(options):
    weight, x = normal(8, 50), inputs(200, 50)
    found = gptq(weight, x.T @ x, **options)
    assert found.shape == (8, 50)
    plain = quantize(weight, **options)
    assert found.codes.shape == plain.codes.shape
    assert found.bits_per_weight == plain.bits_per_weight
    errors = [float((x @ (q.dequantize() - weight).T).square().sum()) for q in (found, plain)]
    assert errors[0] < errors[1]


@given(seed=st.integers(0, 100), size=st.sampled_from([8, 16]))
@settings(max_examples=20)
def test_without_correlation_it_is_rounding(seed, size):
    """With H a multiple of the identity nothing is fed back; fp32 scales leave the tensor scale without effect."""
    weight = normal(5, 32, seed=seed)
    found = gptq(weight, 3.0 * torch.eye(32), "mpo2", size, "fp32")
    plain = quantize(weight, "mpo2", size, "fp32")
    torch.testing.assert_close(found.dequantize(), plain.dequantize(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [32, 40])
def test_no_damping_needs_a_definite_hessian_and_no_sound_padding(columns):
    weight, x = normal(6, columns), inputs(200, columns)
    hessian = (x.T @ x).double()
    found = gptq(weight, hessian, "nvfp4", damping=0.0)
    least = gptq(weight, hessian, "nvfp4", damping=1e-12)
    assert torch.equal(found.codes, least.codes)
    assert torch.equal(found.scales, least.scales)
    with pytest.raises(InputError, match="not positive definite"):
        gptq(weight, x[:3].T @ x[:3], "nvfp4", damping=0.0)
    assert gptq(weight, torch.zeros(columns, columns), "nvfp4").codes.shape == quantize(weight, "nvfp4").codes.shape


def test_heavy_damping_ends_in_rounding():
    weight, x = normal(6, 48), inputs(100, 48)
    plain = quantize(weight, "mpo2", scale="fp32").dequantize()
    torch.testing.assert_close(
        gptq(weight, x.T @ x, "mpo2", scale="fp32", damping=1e9).dequantize(), plain, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("n", [1, 0])
def test_few_inputs_and_columns_that_never_fire(n):
    weight, x = normal(6, 32), inputs(40, 32)[: n or 40]
    x[:, 5:9] = 0
    if not n:
        x.zero_()
    found = gptq(weight, x.T @ x, "mpo2", scale="fp32").dequantize()
    plain = quantize(weight, "mpo2", scale="fp32").dequantize()
    assert float((found - weight)[:, 5:9].square().sum()) < 3 * float((plain - weight)[:, 5:9].square().sum())
    assert bool(found.isfinite().all())


def test_the_input_is_left_alone():
    weight, x = normal(6, 32), inputs(40, 32)
    hessian = x.T @ x
    before = weight.clone(), hessian.clone()
    gptq(weight, hessian)
    assert torch.equal(weight, before[0])
    assert torch.equal(hessian, before[1])


@pytest.mark.parametrize(
    ("weight", "hessian", "damping", "message"),
    [
        (torch.ones(4), torch.eye(4), 0.01, "weight must be a floating matrix"),
        (torch.ones(2, 4, dtype=torch.int64), torch.eye(4), 0.01, "weight must be a floating matrix"),
        (torch.ones(2, 4), torch.eye(3), 0.01, "hessian must have shape"),
        (torch.full((2, 4), float("inf")), torch.eye(4), 0.01, "finite"),
        (torch.ones(2, 4), torch.eye(4) * float("nan"), 0.01, "finite"),
        (torch.ones(2, 4), torch.eye(4), -0.1, "damping must be finite and at least 0"),
        (torch.ones(2, 4), torch.tensor([[1.0, 9, 0, 0], [9, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]), 0.01, "definite"),
    ],
)
def test_bad_inputs(weight, hessian, damping, message):
    with pytest.raises(InputError, match=message):
        gptq(weight, hessian, damping=damping)


def test_codes_are_indices_of_the_decode_grids():
    weight, x = normal(6, 32), inputs(100, 32)
    found = gptq(weight, x.T @ x, "sfp4")
    grids = core.tables(found.family).decode
    index = found.unpacked_codes().reshape(6, -1, 16).long()
    values = grids[found.selectors().long()[..., None], index] * found.group_scales()[..., None]
    assert torch.equal(values.reshape(6, 32), found.dequantize())
