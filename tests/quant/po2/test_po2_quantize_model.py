"""quantize_model over language models, CNNs and models of odd build."""

import copy
import warnings

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from steelyard.errors import InputError, NoEffectWarning
from steelyard.quant.po2 import torch_nn
from steelyard.quant.po2.calibration import contraction_rows, second_moments
from steelyard.quant.po2.layers import PackedLayer, QuantizedConv, QuantizedLinear
from steelyard.quant.po2.tensor import quantize
from steelyard.quant.po2.torch_nn import default_filter, quantizable, quantize_model


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def llama(tied=True):
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return seeded(LlamaForCausalLM(config))


def cnn():
    return seeded(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16),
            nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
        )
    )  # fmt: skip


def mlp():
    return seeded(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 8)))


def relative(found, true):
    return float(((found - true).square().sum() / true.square().sum()).detach())


def packed_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, PackedLayer)]


IDS = torch.randint(0, 64, (2, 11), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [True, False])
def test_language_model(tied):
    model = llama(tied)
    true = model(IDS).logits
    packed = copy.deepcopy(model)
    assert quantize_model(packed) is packed
    names = packed_names(packed)
    assert len(names) == 14
    assert not any("lm_head" in name or "embed" in name for name in names)
    assert type(packed.lm_head) is nn.Linear
    assert (packed.lm_head.weight is packed.model.embed_tokens.weight) is tied
    assert 0 < relative(packed(IDS).logits, true) < 0.05
    weight = quantize(model.model.layers[1].mlp.up_proj.weight)
    assert torch.equal(packed.model.layers[1].mlp.up_proj.weight.codes, weight.codes)


def test_more_bits_and_more_grids_are_nearer_to_the_reference():
    model = llama()
    true = model(IDS).logits
    errors = [
        relative(quantize_model(copy.deepcopy(model), family, size, scale=scale)(IDS).logits, true)
        for family, size, scale in (("mxfp4", 32, None), ("nvfp4", 16, None), ("mpo2", 16, None), ("mpo2", 2, "fp32"))
    ]
    assert errors == sorted(errors, reverse=True)


def test_the_rest_stays_trainable_and_learns():
    model = quantize_model(llama())
    before = model.model.embed_tokens.weight.detach().clone()
    assert all(parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        loss = model(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert not torch.equal(model.model.embed_tokens.weight, before)


def test_frozen_parameters_stay_frozen_and_modes_stay():
    model = mlp().train()
    model[0].requires_grad_(False)
    model[2].eval()
    quantize_model(model)
    assert [module.training for module in model] == [True, True, False, True, True]
    assert not model[0].bias.requires_grad
    assert model[2].bias.requires_grad


def test_bf16_model():
    model = llama().to(torch.bfloat16)
    true = model(IDS).logits
    packed = quantize_model(copy.deepcopy(model))
    found = packed(IDS).logits
    assert found.dtype == torch.bfloat16
    assert relative(found.float(), true.float()) < 0.05
    later = quantize_model(llama()).to(torch.bfloat16)
    assert later(IDS).logits.dtype == torch.bfloat16


def test_cnn():
    model, x = cnn(), normal(4, 3, 12, 12)
    packed = quantize_model(copy.deepcopy(model))
    assert packed_names(packed) == ["0", "4", "7"]
    assert isinstance(packed[4], QuantizedConv)
    assert type(packed[3]) is nn.Conv2d
    assert 0 < relative(packed(x), model(x)) < 0.05
    packed(x).sum().backward()


@pytest.mark.parametrize("batch", [1, 16])
def test_batches_equal_the_dequantised_model(batch):
    packed = quantize_model(mlp())
    dense = mlp()
    with torch.no_grad():
        for ours, theirs in zip(packed, dense, strict=True):
            if isinstance(ours, QuantizedLinear):
                theirs.weight.copy_(ours.weight.dequantize())
    x = normal(batch, 64)
    assert relative(packed(x), dense(x)) < 1e-10


def test_state_dict_of_a_whole_model():
    packed, other = quantize_model(llama()), quantize_model(seeded(llama(), 5), "nvfp4")
    missing = other.load_state_dict(packed.state_dict())
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    assert torch.equal(other(IDS).logits, packed(IDS).logits)


def test_weights_that_layers_share_are_packed_once_and_stay_shared():
    model = mlp()
    model[2] = nn.Linear(64, 64)
    model[2].weight = model[0].weight
    model[4] = nn.Linear(64, 8)
    calls = []
    quantize_model(model, progress=lambda done, total, name: calls.append((done, total, name)))
    assert calls == [(1, 3, "0"), (2, 3, "2"), (3, 3, "4")]
    assert model[0].codes is model[2].codes
    assert model[0].scales is model[2].scales
    assert model[0].bias is not model[2].bias
    assert model[0].matrix is model[2].matrix


def test_a_layer_used_twice_is_replaced_in_both_places():
    inner = nn.Linear(32, 32)
    model = quantize_model(nn.Sequential(inner, nn.Tanh(), inner))
    assert model[0] is model[2]
    assert isinstance(model[0], QuantizedLinear)


def test_a_weight_shared_with_an_embedding_or_a_head_stays():
    model = nn.Module()
    model.embed, model.out, model.other = nn.Embedding(20, 16), nn.Linear(16, 20), nn.Linear(16, 20)
    model.lm_head = nn.Linear(16, 20)
    model.out.weight = model.embed.weight
    model.other.weight = model.lm_head.weight
    keep = default_filter(model)
    assert not any(keep(module, name) for name, module in model.named_modules())
    with pytest.warns(NoEffectWarning, match="no layer"):
        assert quantize_model(model) is model
    quantize_model(model, filter_fn=lambda module, name: name == "out")
    assert isinstance(model.out, QuantizedLinear)
    assert type(model.embed) is nn.Embedding


def test_filter():
    model = quantize_model(mlp(), filter_fn=lambda module, name: name != "2")
    assert packed_names(model) == ["0", "4"]
    assert packed_names(quantize_model(llama(), filter_fn=lambda module, name: name == "lm_head")) == ["lm_head"]


def test_a_layer_alone_is_returned():
    layer = nn.Linear(16, 4)
    packed = quantize_model(layer)
    assert isinstance(packed, QuantizedLinear)
    assert type(layer) is nn.Linear


def test_attention_and_encoder_layers():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = seeded(nn.TransformerEncoder(layer, 2))
    x = normal(2, 5, 32)
    with torch.no_grad():
        true = model(x)
        packed = quantize_model(copy.deepcopy(model))
        assert packed_names(packed) == ["layers.0.linear1", "layers.0.linear2", "layers.1.linear1", "layers.1.linear2"]
        assert 0 < relative(packed(x), true) < 0.05
    assert 0 < relative(packed(x), true) < 0.05


def test_transformers_conv1d_is_turned():
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    model = seeded(GPT2LMHeadModel(config))
    true = model(IDS).logits
    weight = model.transformer.h[0].mlp.c_fc.weight
    packed = quantize_model(copy.deepcopy(model))
    assert len(packed_names(packed)) == 4
    assert torch.equal(packed.transformer.h[0].mlp.c_fc.weight.codes, quantize(weight.T).codes)
    assert 0 < relative(packed(IDS).logits, true) < 0.05
    assert quantizable(Conv1D(4, 3))


def test_what_is_left_alone():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
    attention = nn.MultiheadAttention(16, 2)
    for module in (normed, attention.out_proj, nn.Embedding(4, 4), nn.LayerNorm(4), nn.ConvTranspose2d(16, 16, 3)):
        assert not quantizable(module)
    old = nn.Linear(16, 16)
    old.weight = None
    assert not quantizable(old)


def test_hooks_stay():
    model = mlp()
    seen = []
    handle = model[0].register_forward_hook(lambda *_: seen.append(1))
    quantize_model(model)
    model(normal(1, 64))
    assert seen == [1]
    handle.remove()
    model(normal(1, 64))
    assert seen == [1]


def correlated(n=256, columns=64, seed=3):
    mix = normal(columns, columns, seed=seed) * torch.linspace(0.05, 2, columns)
    return normal(n, columns, seed=seed + 1) @ mix


@pytest.mark.parametrize("family", ["nvfp4", "mpo2", "sfp4"])
def test_gptq_lowers_the_error_of_the_output(family):
    model, x = mlp(), correlated()
    batches = [x[:128], (x[128:],)]
    plain = quantize_model(copy.deepcopy(model), family)
    better = quantize_model(copy.deepcopy(model), family, gptq=True, calibration=batches)
    held_out = correlated(n=512)[256:]
    assert relative(better[0](held_out), model[0](held_out)) < 0.9 * relative(plain[0](held_out), model[0](held_out))


def test_gptq_in_several_passes_sees_the_layers_quantised_before(monkeypatch):
    monkeypatch.setattr(torch_nn, "_HESSIAN_BYTES", 8 * 64**2)
    model, x = mlp(), correlated()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    packed = quantize_model(model, gptq=True, calibration=[x])
    assert len(packed_names(packed)) == 3
    assert len(calls) == 3


def test_gptq_of_a_cnn_rounds_what_has_no_hessian():
    model, x = cnn(), normal(8, 3, 12, 12)
    packed = quantize_model(copy.deepcopy(model), gptq=True, calibration=[x])
    assert torch.equal(packed[4].weight.codes, quantize(model[4].weight.flatten(1)).codes)
    assert not torch.equal(packed[0].weight.codes, quantize(model[0].weight.flatten(1)).codes)
    assert relative(packed(x), model(x)) < 0.05


def test_importance_from_calibration_and_given():
    model, x = mlp(), correlated()
    measured = quantize_model(copy.deepcopy(model), importance=True, calibration=[{"input": x}])
    given = quantize_model(copy.deepcopy(model), importance={"0": x.square().mean(0)})
    plain = quantize_model(copy.deepcopy(model))
    assert torch.equal(measured[0].weight.codes, given[0].weight.codes)
    assert not torch.equal(measured[0].weight.codes, plain[0].weight.codes)
    assert torch.equal(given[2].weight.codes, plain[2].weight.codes)


def test_activations_of_the_packed_layers():
    model, x = mlp(), normal(4, 64)
    both = quantize_model(copy.deepcopy(model), activations="sfp4")
    weights = quantize_model(copy.deepcopy(model))
    assert relative(both(x), model(x)) > relative(weights(x), model(x))
    assert relative(both(x), model(x)) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "mpo3"}, "family must be.*mpo2"),
        ({"search": "deep"}, "search must be"),
        ({"group_size": 0}, "group_size must be"),
        ({"scale": "fp9"}, "scale must be"),
        ({"gptq": True}, "calibration is missing"),
        ({"importance": True}, "calibration is missing"),
        ({"importance": True, "gptq": True, "calibration": [1]}, "importance is not used with gptq"),
        ({"calibration": [1]}, "calibration is given but not used"),
        ({"gptq": True, "calibration": []}, "at least one batch"),
        ({"gptq": True, "calibration": iter([1])}, "run over again"),
        ({"gptq": True, "calibration": [torch.full((2, 64), float("nan"))]}, "NaN or infinity at the input of layer"),
        ({"importance": {"9": torch.ones(64)}}, "importance names '9'"),
        ({"importance": {"0": torch.ones(63)}}, r"layer '0' \(Linear\): importance"),
        ({"activations": "w4a4"}, r"layer '0' \(Linear\): family must be"),
    ],
)
def test_bad_inputs_leave_the_model_alone(options, message):
    model = mlp()
    with pytest.raises(InputError, match=message):
        quantize_model(model, **options)
    assert all(type(module) in (nn.Linear, nn.Tanh) for module in model)


def test_a_weight_that_is_not_finite_is_named():
    model = mlp()
    model[2].weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"layer '2' \(Linear\).*NaN"):
        quantize_model(model)


def test_no_warning_and_no_draw_from_the_global_stream():
    state = torch.get_rng_state()
    model = copy.deepcopy(mlp())
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize_model(model, gptq=True, calibration=[correlated()])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), lambda: nn.Conv2d(3, 6, (3, 2), dilation=(1, 2)),
        lambda: nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), lambda: nn.Conv2d(3, 6, 3, padding="same"),
    ],
)  # fmt: skip
def test_unfolded_inputs_times_the_flat_weight_are_the_convolution(make):
    layer = make()
    x = normal(2, layer.in_channels, *(8,) * len(layer.kernel_size))
    true = (layer(x) - layer.bias.reshape(-1, *(1,) * len(layer.kernel_size))).movedim(1, -1).reshape(-1, 6)
    torch.testing.assert_close(contraction_rows(layer, x) @ layer.weight.flatten(1).T, true, rtol=1e-4, atol=1e-5)
    alone = contraction_rows(layer, x[0])
    torch.testing.assert_close(alone, contraction_rows(layer, x)[: len(alone)])


def test_second_moments():
    model, x = mlp(), normal(6, 64)
    found = second_moments(model, {"0": model[0]}, [x[:2], x[2:]])["0"]
    torch.testing.assert_close(found, x.double().square().mean(0), rtol=1e-5, atol=1e-6)
    full = second_moments(model, {"0": model[0]}, [x[:2], x[2:]], full=True)["0"]
    torch.testing.assert_close(full, x.double().T @ x.double(), rtol=1e-4, atol=1e-5)
    assert second_moments(model, {"x": nn.Linear(3, 3)}, [x]) == {}


def test_an_encoder_with_padded_inputs():
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = seeded(nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Identity())).eval()[0]
    x, padded = normal(2, 6, 32), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    packed = quantize_model(copy.deepcopy(model))
    with torch.inference_mode():
        found, true = (one(x, src_key_padding_mask=padded)[~padded] for one in (packed, model))
    assert relative(found, true) < 0.05
    assert model.use_nested_tensor
    assert not packed.use_nested_tensor


@pytest.mark.parametrize("importance", [torch.ones(64), "a", [1.0]])
def test_importance_of_another_kind(importance):
    with pytest.raises(InputError, match="importance must be a mapping"):
        quantize_model(mlp(), importance=importance)


@pytest.mark.parametrize("options", [{}, {"gptq": True, "calibration": [torch.ones(2, 64)]}])
def test_a_model_on_the_meta_device(options):
    with pytest.raises(InputError, match="layer '0' lies on the meta device"):
        quantize_model(nn.Sequential(nn.Linear(64, 16, device="meta")), **options)
