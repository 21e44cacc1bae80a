"""Activations on grids: the quantiser, the hooks, and grids learned on what layers see."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from steelyard.errors import InputError
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer
from steelyard.quant.po2.activations import fit_activation_grids, quantize_activations
from steelyard.quant.po2.tensor import fake_quantize, quantize
from steelyard.quant.po2.torch_nn import quantize_model


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def mlp():
    return seeded(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)))


@given(
    rows=st.integers(1, 6), columns=st.integers(1, 40), family=st.sampled_from(["sfp4", "mpo2", "nvfp4", "mxfp4"]),
    seed=st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=40)
def test_the_quantiser_is_quantize_and_dequantize(rows, columns, family, seed):
    x = normal(rows, columns, seed=seed)
    assert torch.equal(ActivationQuantizer(family)(x), quantize(x, family).dequantize())


@given(seed=st.integers(0, 50), factor=st.floats(1.0, 8.0))
@settings(max_examples=30)
def test_a_fixed_scale_makes_tokens_independent_of_their_batch(seed, factor):
    quantizer = ActivationQuantizer("sfp4")
    x = normal(4, 32, seed=seed)
    quantizer.observe(x * factor)
    together = quantizer(x)
    assert torch.equal(together, torch.cat([quantizer(token[None]) for token in x]))


@given(seed=st.integers(0, 50))
@settings(max_examples=20)
def test_observing_is_a_running_maximum(seed):
    quantizer, x = ActivationQuantizer("mpo2"), normal(5, 16, seed=seed)
    for token in x:
        quantizer.observe(token)
    assert float(quantizer.amax) == float(x.abs().max())
    torch.testing.assert_close(quantizer(x), fake_quantize(x, "mpo2"))


def test_gradient_passes_straight_through():
    x = normal(3, 32).requires_grad_()
    quantizer = ActivationQuantizer("nvfp4")
    (found,) = torch.autograd.grad(quantizer(x).square().sum(), x)
    torch.testing.assert_close(found, 2 * quantizer(x.detach()))


def test_dtype_empty_and_saved_amax():
    quantizer = ActivationQuantizer("sfp4", search="sweep")
    quantizer.observe(torch.full((2, 16), 1.2345678))
    quantizer.to(torch.bfloat16)
    assert quantizer.amax.dtype == torch.float32
    assert float(quantizer.amax) == pytest.approx(1.2345678, abs=1e-7)
    assert quantizer(normal(2, 16).bfloat16()).dtype == torch.bfloat16
    assert quantizer(torch.empty(0, 16)).shape == (0, 16)
    quantizer.observe(torch.empty(0, 16))
    other = ActivationQuantizer("sfp4")
    other.load_state_dict(quantizer.state_dict())
    assert torch.equal(other.amax, quantizer.amax)
    assert "sfp4, group_size=16, scale=e3m3" in repr(quantizer)


def test_values_that_are_not_finite():
    for call in (ActivationQuantizer("sfp4"), ActivationQuantizer("sfp4").observe):
        with pytest.raises(InputError, match="finite"):
            call(torch.full((2, 16), float("nan")))


def test_hooks_quantise_inputs_and_go_away():
    model, x = mlp(), normal(4, 64)
    true = model(x)
    with quantize_activations(model, "sfp4") as handle:
        assert list(handle.quantizers) == ["0", "2"]
        hidden = model[1](model[0](x))
        inside = model(x)
        twin = copy.deepcopy(mlp())
        expected = twin[2](fake_quantize(twin[1](twin[0](fake_quantize(x, "sfp4"))), "sfp4"))
        assert torch.equal(inside, expected)
        assert hidden.shape == (4, 64)
    assert torch.equal(model(x), true)
    handle = quantize_activations(model, "mxfp4")
    assert not torch.equal(model(x), true)
    handle.remove()
    handle.remove()
    assert torch.equal(model(x), true)


def test_hooks_on_a_packed_model_are_its_activations():
    model, x = mlp(), normal(4, 64)
    packed, both = quantize_model(copy.deepcopy(model)), quantize_model(copy.deepcopy(model), activations="sfp4")
    with quantize_activations(packed, "sfp4"):
        assert torch.equal(packed(x), both(x))


def test_channels_of_convolutions():
    model, x = seeded(nn.Sequential(nn.Conv2d(32, 8, 3), nn.Flatten(2), nn.Conv1d(8, 4, 3))), normal(2, 32, 6, 6)
    twin = copy.deepcopy(model)
    expected = twin[2](fake_quantize(twin[1](twin[0](fake_quantize(x, "nvfp4", axis=1))), "nvfp4", axis=1))
    with quantize_activations(model, "nvfp4"):
        assert torch.equal(model(x), expected)
    packed = quantize_model(copy.deepcopy(model))
    both = quantize_model(copy.deepcopy(model), activations="nvfp4")
    with quantize_activations(packed, "nvfp4"):
        assert torch.equal(packed(x), both(x))


def test_calibration_fixes_the_scales_of_the_unquantised_model():
    model, x = mlp().train(), normal(16, 64)
    handle = quantize_activations(model, "sfp4", calibrate=[x[:8], {"input": x[8:]}])
    assert model.training
    assert float(handle.quantizers["0"].amax) == float(x.abs().max())
    handle.remove()
    fixed, fresh = handle.quantizers["0"], ActivationQuantizer("sfp4")
    assert torch.equal(fixed(x), torch.cat([fixed(token[None]) for token in x]))
    assert not torch.equal(fresh(x), torch.cat([fresh(token[None]) for token in x]))


def test_filter_head_and_options():
    model = nn.ModuleDict({"body": nn.Linear(16, 16), "lm_head": nn.Linear(16, 16)})
    assert list(quantize_activations(model).quantizers) == ["body"]
    handle = quantize_activations(model, "mpo2", lambda module, name: True, group_size=8, scale="fp32", search="sweep")
    assert list(handle.quantizers) == ["body", "lm_head"]
    assert handle.quantizers["body"].plan.group_size == 8


def outliers(n, seed):
    """Activations with a few loud features, as transformers have them."""
    return normal(n, 64, seed=seed) * torch.where(torch.arange(64) % 16 == 3, 12.0, 1.0)


def test_grids_learned_on_activations_beat_gaussian_ones_on_outliers():
    model = mlp()
    fit = fit_activation_grids(
        model, [outliers(200, 1)], filter_fn=lambda module, name: name == "0", n_grids=2, groups_per_layer=500
    )
    x = outliers(200, 2)

    def error(family):
        return float((fake_quantize(x, family) - x).square().sum())

    assert error(fit.family) < 0.8 * error("mpo2")
    assert len(fit.grids) == 2
    again = fit_activation_grids(
        model, [outliers(200, 1)], filter_fn=lambda module, name: name == "0", n_grids=2, groups_per_layer=500
    )
    assert again.grids == fit.grids
    with quantize_activations(model, fit.family):
        model(x)


@pytest.mark.parametrize("size", [8, 32])
def test_grids_are_learned_for_the_size_of_the_groups(size):
    fit = fit_activation_grids(mlp(), [normal(80, 64)], group_size=size, n_grids=1, n_restarts=1)
    assert fit.family.default_group == size


def test_samples_of_several_batches_are_bounded():
    model = mlp()
    fit = fit_activation_grids(model, [normal(50, 64, seed=s) for s in range(3)], groups_per_layer=60, n_grids=1)
    assert len(fit.grids) == 1
    assert torch.equal(model(normal(1, 64)), mlp()(normal(1, 64)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_activations(nn.Tanh()), "no linear layer"),
        (lambda: quantize_activations(mlp(), "sfp5"), "family must be"),
        (lambda: quantize_activations(mlp(), calibrate=[]), "at least one batch"),
        (lambda: quantize_activations(mlp(), calibrate=[torch.full((1, 64), float("inf"))]), "NaN or infinity"),
        (lambda: fit_activation_grids(mlp(), [normal(2, 64)], group_size=128), "smaller group_size"),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(InputError, match=message):
        call()
