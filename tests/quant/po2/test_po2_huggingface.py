"""transformers loads, quantises and saves models on PO2 grids."""

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from steelyard.errors import InputError
from steelyard.quant.po2.convert import convert
from steelyard.quant.po2.families import MPO2, GridFamily
from steelyard.quant.po2.huggingface import PO2Config
from steelyard.quant.po2.layers import PackedLayer, QuantizedLinear
from steelyard.quant.po2.torch_nn import quantize_model

IDS = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, attention_bias=True,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("float")
    model.save_pretrained(path)
    return path


def converted(folder, path, family="mpo2", **options):
    convert(folder, path, family, **options)
    return path


@pytest.mark.parametrize(
    "options", [{}, {"family": "sfp4"}, {"family": "mxfp4"}, {"scale": "fp16"}, {"group_size": 8, "scale": "fp32"}]
)
def test_a_converted_folder_loads_packed(model, folder, tmp_path, options, caplog):
    expected = quantize_model(copy.deepcopy(model), **{"family": "mpo2", **options})
    with caplog.at_level(logging.WARNING):
        found = AutoModelForCausalLM.from_pretrained(converted(folder, tmp_path / "q", **options))
    assert sum(isinstance(module, QuantizedLinear) for module in found.modules()) == 14
    assert torch.equal(found(IDS).logits, expected(IDS).logits)
    assert found.lm_head.weight is found.model.embed_tokens.weight
    assert not [record for record in caplog.records if "MISSING" in record.message or "UNEXPECTED" in record.message]
    assert found.generate(IDS[:1], max_new_tokens=3, do_sample=False).shape == (1, 12)


def test_shards_base_model_and_bf16(model, folder, tmp_path):
    path = converted(folder, tmp_path / "q", shard_bytes=20_000)
    assert len(list(path.glob("*.safetensors"))) > 1
    expected = quantize_model(copy.deepcopy(model))
    base = AutoModel.from_pretrained(path)
    assert torch.equal(base(IDS).last_hidden_state, expected.model(IDS).last_hidden_state)
    half = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    layer, true = half.model.layers[0].mlp.up_proj, expected.model.layers[0].mlp.up_proj
    assert half.dtype == torch.bfloat16
    assert layer.weight.tensor_scale == true.weight.tensor_scale
    assert torch.equal(layer.weight.scales, true.weight.scales)
    torch.testing.assert_close(half(IDS).logits.float(), expected(IDS).logits, rtol=0.1, atol=0.05)


def test_saved_and_loaded_again(folder, tmp_path):
    first = AutoModelForCausalLM.from_pretrained(converted(folder, tmp_path / "q", "sfp4"))
    first.save_pretrained(tmp_path / "again")
    second = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(second(IDS).logits, first(IDS).logits)
    assert not [name for name in load_file(tmp_path / "again" / "model.safetensors") if name.endswith("header")]


def test_a_float_model_is_packed_on_loading(model, folder, tmp_path):
    found = AutoModelForCausalLM.from_pretrained(folder, quantization_config=PO2Config("sfp4", search="sweep"))
    expected = quantize_model(copy.deepcopy(model), "sfp4", search="sweep")
    assert torch.equal(found(IDS).logits, expected(IDS).logits)
    assert len(found.config.quantization_config.modules) == 14
    found.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, found(IDS).logits)
    assert found.hf_quantizer.is_serializable()
    assert not found.hf_quantizer.is_trainable


def test_config_is_json_and_comes_back():
    config = PO2Config(GridFamily("mine", (MPO2.grids[0],)), group_size=8, scale="fp16", modules=["a.b"])
    text = json.loads(json.dumps(config.to_dict()))
    again = PO2Config.from_dict(text)
    assert again.to_dict() == config.to_dict()
    assert again.grid_family == config.grid_family
    assert again.group_size == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "x"}, "family must be"),
        ({"family": {"name": "x"}}, "grid family cannot be read"),
        ({"format": "2"}, "format '2'"),
        ({"modules": "all"}, "modules of quantization_config"),
        ({"modules": [1]}, "modules of quantization_config"),
        ({"modules": 5}, "modules of quantization_config"),
        ({"scale": ["e4m3"]}, "scale must be one of"),
        ({"group_size": 1 << 40}, "group_size must be an integer >= 1 and at most"),
        ({"group_size": -1}, "group_size must be"),
    ],
)
def test_bad_configs(options, message):
    with pytest.raises(InputError, match=message):
        PO2Config(**options)


def test_a_folder_for_another_model(folder, tmp_path):
    path = converted(folder, tmp_path / "q")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["modules"] = ["elsewhere"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="names no linear layer of this model"):
        AutoModelForCausalLM.from_pretrained(path)


@pytest.mark.parametrize("part", ["codes", "scales", "tensor_scale"])
def test_a_folder_that_lacks_a_part_is_refused(folder, tmp_path, part):
    path = converted(folder, tmp_path / "q")
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(f".{part}"))
    save_file({key: value for key, value in tensors.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(InputError, match=f"lacks {part}; the folder is not whole"):
        AutoModelForCausalLM.from_pretrained(path)


def test_a_damaged_folder_names_the_layer(folder, tmp_path):
    quantized = AutoModelForCausalLM.from_pretrained(converted(folder, tmp_path / "q"))
    quantized.save_pretrained(tmp_path / "again")
    file = tmp_path / "again" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight.tensor_scale"] = torch.tensor([float("inf")])
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"model.layers.0.mlp.up_proj.*tensor_scale"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert any(isinstance(module, PackedLayer) for module in quantized.modules())
