"""The report of a quantised model, against sums by hand."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from steelyard.errors import InputError
from steelyard.quant.po2.error_report import entropy, kl_divergence, output_divergence, quantization_report
from steelyard.quant.po2.torch_nn import quantize_model


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model():
    made = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 10), nn.LayerNorm(10))
    with torch.no_grad():
        made[0].weight.copy_(normal(48, 32))
        made[2].weight.copy_(3 * normal(10, 48, seed=1))
    return made


def test_report_with_reference_and_data():
    reference = model()
    packed = quantize_model(copy.deepcopy(reference))
    data = [normal(4, 32, seed=2), (normal(3, 32, seed=3),)]
    report = quantization_report(packed, reference, data)
    first = report.layers[0]
    assert (first.name, first.shape, first.family, first.group_size) == ("0", (48, 32), "mpo2", 16)
    true = {i: reference[i].weight.detach() for i in (0, 2)}
    errors = [float((packed[i].weight.dequantize() - true[i]).square().sum()) for i in (0, 2)]
    powers = [float(true[i].square().sum()) for i in (0, 2)]
    assert first.relative_mse == pytest.approx(errors[0] / powers[0], rel=1e-4)
    assert report.relative_mse == pytest.approx(sum(errors) / sum(powers), rel=1e-4)
    assert first.bits_per_weight == 4.5
    assert report.stored_bits_per_weight == pytest.approx(4.5 + 64 / (48 * 32 + 10 * 48), rel=1e-6)
    assert sum(first.histogram) == 48 * 2
    assert 0 < first.selector_entropy <= 1
    assert report.packed_share == pytest.approx((48 * 32 + 480) / (48 * 32 + 480 + 48 + 10 + 20))
    x = torch.cat([data[0], data[1][0]])
    p, q = reference(x).softmax(-1), packed(x).softmax(-1)
    assert report.kl == pytest.approx(float((p * (p / q).log()).sum(-1).mean().detach()), rel=1e-2)
    assert 0 <= report.top1 <= 1
    text = str(report)
    assert "0.00" in text
    assert "KL(reference || model)" in text
    assert text.count("mpo2") == 2


def test_report_without_reference():
    report = quantization_report(quantize_model(model(), "nvfp4"))
    assert report.relative_mse is None
    assert report.kl is None
    assert report.layers[0].relative_mse is None
    assert report.layers[0].selector_entropy == 0
    assert report.layers[0].histogram == (96,)
    assert " -" in str(report)
    assert "KL" not in str(report)


def test_a_shared_weight_comes_once_and_zero_weights_have_no_error():
    reference = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    reference[1].weight = reference[0].weight
    reference[0].weight.data.zero_()
    report = quantization_report(quantize_model(copy.deepcopy(reference)), reference)
    assert len(report.layers) == 1
    assert report.relative_mse == 0


def test_transposed_weights_of_transformers():
    reference = nn.Sequential(Conv1D(8, 32), nn.Conv1d(1, 4, 16))
    report = quantization_report(quantize_model(copy.deepcopy(reference)), reference)
    assert all(0 < layer.relative_mse < 0.05 for layer in report.layers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantization_report(model()), "no quantised layer"),
        (lambda: quantization_report(quantize_model(model()), data=[normal(1, 32)]), "data needs a reference"),
        (lambda: quantization_report(quantize_model(model()), nn.Tanh()), "no layer '0'"),
        (
            lambda: quantization_report(quantize_model(model()), nn.Sequential(nn.Linear(3, 3))),
            r"shape \(3, 3\), the model's \(48, 32\)",
        ),
        (lambda: quantization_report(quantize_model(model()), model(), []), "at least one batch"),
        (lambda: kl_divergence(normal(2, 3), normal(2, 4)), "logits must have the shape"),
        (lambda: kl_divergence(normal(2, 3), torch.full((2, 3), float("inf"))), "finite"),
        (lambda: output_divergence(nn.LSTM(4, 4), nn.LSTM(4, 4), [normal(2, 4)]), "outputs must be a tensor"),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(InputError, match=message):
        call()


@given(seed=st.integers(0, 99), shift=st.floats(-50, 50))
@settings(max_examples=30)
def test_kl_is_not_negative_and_blind_to_a_shift(seed, shift):
    a, b = normal(3, 7, seed=seed), normal(3, 7, seed=seed + 1)
    found = kl_divergence(a, b)
    assert bool((found >= 0).all())
    torch.testing.assert_close(kl_divergence(a + shift, b - shift), found, rtol=1e-3, atol=1e-5)
    assert float(kl_divergence(a, a).abs().max()) < 1e-12


@given(p=st.floats(0.01, 0.99), q=st.floats(0.01, 0.99))
@settings(max_examples=30)
def test_kl_of_two_classes_in_closed_form(p, q):
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    a, b = (torch.tensor([math.log(v), math.log(1 - v)], dtype=torch.float64) for v in (p, q))
    assert float(kl_divergence(a, b)) == pytest.approx(expected, abs=1e-9)


@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(sum))
@settings(max_examples=30)
def test_entropy_lies_between_0_and_that_of_equal_shares(counts):
    assert 0 <= entropy(torch.tensor(counts)) <= math.log2(len(counts)) + 1e-9


def test_entropy_of_equal_shares():
    assert entropy(torch.tensor([5, 5, 5, 5])) == 2.0
    assert entropy(torch.tensor([5, 0])) == 0.0
