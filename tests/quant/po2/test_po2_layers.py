"""Layers with packed weights: forward, gradients, state, copies, dtypes."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from steelyard.errors import InputError
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer
from steelyard.quant.po2.layers import QuantizedConv, QuantizedLinear
from steelyard.quant.po2.tensor import fake_quantize, quantize

OPTIONS = [{}, {"family": "sfp4"}, {"group_size": 5}, {"scale": "fp16"}, {"scale": "fp32", "group_size": 8}]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(columns=40, rows=24, bias=True, seed=0):
    made = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + number))
    return made


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_the_layer_with_the_dequantised_weight(options, bias):
    original = linear(bias=bias)
    packed = QuantizedLinear.from_float(original, **options)
    x = normal(3, 5, 40, seed=9)
    expected = nn.functional.linear(x, packed.weight.dequantize(), original.bias)
    torch.testing.assert_close(packed(x), expected, rtol=1e-5, atol=1e-5)
    reference = quantize(original.weight, **options)
    assert torch.equal(packed.weight.codes, reference.codes)
    assert torch.equal(packed.weight.scales, reference.scales)


def test_bias_is_the_same_parameter_and_gradients_reach_input_and_bias():
    original = linear()
    packed = QuantizedLinear.from_float(original)
    assert packed.bias is original.bias
    assert [name for name, _ in packed.named_parameters()] == ["bias"]
    x = normal(2, 40, seed=9).requires_grad_()
    packed(x).sum().backward()
    torch.testing.assert_close(x.grad, packed.weight.dequantize().sum(0).expand(2, -1), rtol=1e-4, atol=1e-5)
    assert torch.equal(original.bias.grad, torch.full((24,), 2.0))


@pytest.mark.parametrize("options", OPTIONS)
def test_state_dict_round_trip_is_exact(options):
    packed = QuantizedLinear.from_float(linear(), **options)
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = QuantizedLinear(40, 24)
    assert not torch.equal(other(normal(2, 40)), packed(normal(2, 40)))
    assert not other.load_state_dict(state).missing_keys
    assert torch.equal(other(normal(2, 40)), packed(normal(2, 40)))
    assert other.weight.family == packed.weight.family
    assert set(state) >= {"weight.codes", "weight.scales", "weight.tensor_scale", "weight.header", "bias"}


def test_a_fresh_layer_is_zero():
    assert torch.equal(QuantizedLinear(17, 3)(normal(2, 17)), torch.zeros(2, 3))
    assert "in_features=17, out_features=3, bias=True, family=mpo2, group_size=16, bits=4.5" in repr(
        QuantizedLinear(17, 3)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("weight.header"), "'header' of a quantised layer is missing"),
        (lambda state: state.pop("weight.codes"), "'codes'"),
        (lambda state: state.update({"weight.codes": "text"}), "'codes'"),
        (lambda state: state.update({"weight.header": torch.tensor([1, 2], dtype=torch.uint8)}), "cannot be read"),
        (lambda state: state.update({"weight.header": torch.tensor([0.5])}), "cannot be read"),
        (lambda state: state.update({"weight.header": torch.tensor(list(b"[]"))}), "JSON table"),
        (lambda state: state.update({"weight.header": torch.tensor(list(b'{"scale_format": []}'))}), "text throughout"),
        (lambda state: state.update({"weight.scales": state["weight.scales"][:, :1]}), "'scales'"),
        (lambda state: state.update({"weight.tensor_scale": torch.tensor([float("nan")])}), "tensor_scale"),
    ],
)
def test_a_damaged_state_is_refused_and_the_layer_keeps_its_weight(change, message):
    packed = QuantizedLinear.from_float(linear())
    state = packed.state_dict()
    change(state)
    other = QuantizedLinear.from_float(linear(seed=5))
    before = other(normal(2, 40))
    with pytest.raises(RuntimeError, match=message):
        other.load_state_dict(state)
    other.bias.data.copy_(linear(seed=5).bias)
    assert torch.equal(other(normal(2, 40)), before)


def test_a_state_of_another_shape_or_without_weight():
    other = QuantizedLinear(41, 24)
    with pytest.raises(RuntimeError, match=r"shape \(24, 41\), the saved weight \(24, 40\)"):
        other.load_state_dict(QuantizedLinear.from_float(linear()).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*weight\.codes"):
        other.load_state_dict({"bias": torch.zeros(24)})
    assert other.load_state_dict({"bias": torch.zeros(24)}, strict=False).unexpected_keys == []


@pytest.mark.parametrize("options", OPTIONS)
def test_dtype_changes_leave_the_packed_weight_alone(options):
    packed = QuantizedLinear.from_float(linear(), **options)
    before = packed.weight
    packed.to(torch.bfloat16)
    assert packed.bias.dtype == torch.bfloat16
    assert torch.equal(packed.weight.codes, before.codes)
    assert torch.equal(packed.weight.scales, before.scales)
    x = normal(2, 40, seed=9)
    assert packed(x.bfloat16()).dtype == torch.bfloat16
    assert packed(x).dtype == torch.float32
    torch.testing.assert_close(packed(x.bfloat16()).float(), packed(x), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_move_of_devices(options):
    packed = QuantizedLinear.from_float(linear(), **options)
    meta = copy.deepcopy(packed).to("meta")
    assert meta.codes.device.type == "meta"
    assert meta.bias.device.type == "meta"
    x = normal(2, 40)
    assert torch.equal(packed.to("cpu")(x), packed(x))


def test_copies_and_pickles_hold_the_bytes_once_and_compute_the_same():
    packed = QuantizedLinear.from_float(linear())
    x = normal(2, 40)
    before = packed(x)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert twin._matrix is None
        assert torch.equal(twin(x), before)
        assert twin.matrix.codes.data_ptr() == twin.codes.data_ptr()
        assert twin.codes.data_ptr() != packed.codes.data_ptr()


def test_bytes_held():
    assert QuantizedLinear.from_float(linear(64, 32)).packed_bytes == 64 * 32 // 2 + 4 * 32
    assert QuantizedLinear.from_float(linear(64, 32), scale="fp32").packed_bytes == 64 * 32 // 2 + 4 * 4 * 32


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_a_layer_needs_inputs_and_outputs(sizes):
    with pytest.raises(InputError, match="at least one input and one output"):
        QuantizedLinear(*sizes)


def test_weights_that_are_no_matrix_along_columns():
    for weight in (quantize(normal(4, 4, 4)), quantize(normal(16, 4), axis=0)):
        with pytest.raises(InputError, match="weight must be a matrix packed along axis 1"):
            QuantizedLinear(4, 4).set_weight(weight)


def test_activations_on_grids():
    original = linear()
    packed = QuantizedLinear.from_float(original, activations="sfp4")
    x = normal(3, 40, seed=9)
    plain = QuantizedLinear.from_float(original)
    assert torch.equal(packed(x), plain(fake_quantize(x, "sfp4")))
    mine = ActivationQuantizer("nvfp4")
    assert QuantizedLinear(4, 4, activations=mine).activations is mine


CONVOLUTIONS = [
    lambda: nn.Conv1d(6, 8, 3, padding=1),
    lambda: nn.Conv1d(6, 8, 3, padding="same", padding_mode="reflect"),
    lambda: nn.Conv2d(3, 8, 3, bias=False),
    lambda: nn.Conv2d(4, 8, (3, 2), stride=(2, 1), dilation=(1, 2), groups=2),
    lambda: nn.Conv2d(4, 8, 3, padding=(1, 2), padding_mode="circular"),
    lambda: nn.Conv2d(4, 8, 3, padding="same"),
]


@pytest.mark.parametrize("make", CONVOLUTIONS)
@pytest.mark.parametrize("options", [{}, {"group_size": 9}])
def test_convolution_equals_the_layer_with_the_dequantised_weight(make, options):
    original = make()
    packed = QuantizedConv.from_float(original, **options)
    twin = copy.deepcopy(original)
    with torch.no_grad():
        twin.weight.copy_(packed.weight.dequantize().reshape(original.weight.shape))
    x = normal(2, original.in_channels, *(9,) * len(original.kernel_size))
    for batch in (x, x[0], x.requires_grad_()):
        torch.testing.assert_close(packed(batch), twin(batch), rtol=1e-5, atol=1e-5)
    (found,) = torch.autograd.grad(packed(x).square().sum(), x)
    (true,) = torch.autograd.grad(twin(x).square().sum(), x)
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-4)


def test_convolution_groups_run_along_the_flattened_kernel_in_its_own_order():
    original = nn.Conv2d(3, 8, 3)
    expected = quantize(original.weight.reshape(8, 27)).dequantize()
    assert torch.equal(QuantizedConv.from_float(original).weight.dequantize(), expected)


def test_convolution_in_bf16_with_state_and_activations():
    original = nn.Conv2d(3, 8, 3)
    packed = QuantizedConv.from_float(original, activations="nvfp4")
    other = QuantizedConv.from_float(nn.Conv2d(3, 8, 3), "sfp4", activations="nvfp4")
    other.load_state_dict(packed.state_dict())
    x = normal(2, 3, 8, 8)
    assert torch.equal(other(x), packed(x))
    plain = QuantizedConv.from_float(original)
    assert torch.equal(packed(x), plain(fake_quantize(x, "nvfp4", axis=1)))
    assert packed.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    assert "3, 8, kernel_size=(3, 3), stride=(1, 1), groups=1, family=mpo2" in repr(packed)


def test_what_is_no_convolution():
    weight = quantize(normal(8, 27))
    for wrong in (nn.ConvTranspose2d(3, 8, 3), nn.Linear(27, 8)):
        with pytest.raises(InputError, match="conv must be"):
            QuantizedConv(wrong, weight)
    with pytest.raises(InputError, match=r"weight must have shape \(8, 12\)"):
        QuantizedConv(nn.Conv2d(3, 8, 2), weight)


@pytest.mark.filterwarnings("ignore:for bias. copying from a non-meta")
@pytest.mark.parametrize("options", [{}, {"family": "sfp4", "scale": "e4m3"}, {"group_size": 8}, {"scale": "fp16"}])
def test_a_layer_on_the_meta_device_is_filled_by_assignment(options):
    full = QuantizedLinear.from_float(linear(48, 40), **options)
    x = normal(3, 48)
    with torch.device("meta"):
        layer = QuantizedLinear(48, 40, **options)
    assert layer.codes.is_meta
    assert layer.bias.is_meta
    assert layer.weight.shape == (40, 48)
    with pytest.raises(InputError, match="assign=True"):
        layer(x)
    with pytest.raises(RuntimeError, match="assign=True"):
        layer.load_state_dict(full.state_dict())
    with pytest.raises(RuntimeError, match="holds no values"):
        layer.load_state_dict(QuantizedLinear(48, 40, device="meta", **options).state_dict(), assign=True)
    layer.load_state_dict(full.state_dict(), assign=True)
    assert torch.equal(layer(x), full(x))
    emptied = QuantizedLinear(48, 40, device="meta", **options).to_empty(device="cpu")
    emptied.load_state_dict(full.state_dict())
    assert torch.equal(emptied(x), full(x))
