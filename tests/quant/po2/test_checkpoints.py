"""Checkpoints of every kind, and what hostile ones end in."""

import json

import pytest
import torch

from models.tiny_gguf import write_tiny
from steelyard.errors import InputError
from steelyard.models.safefile import write_safe
from steelyard.quant.po2.checkpoints import INDEX, Entry, open_checkpoint

A, B = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16)


def sharded(folder, places=None, **shards):
    folder.mkdir(exist_ok=True)
    shards = shards or {"one": {"a": A}, "two": {"b": B}}
    for name, tensors in shards.items():
        write_safe(folder / f"{name}.safetensors", tensors, {})
    found = {tensor: f"{name}.safetensors" for name, tensors in shards.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": found if places is None else places}))
    return folder


def test_the_three_kinds_of_safetensors(tmp_path):
    write_safe(tmp_path / "model.safetensors", {"a": A, "b": B}, {})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    file, folder = open_checkpoint(tmp_path / "model.safetensors"), open_checkpoint(tmp_path)
    shards = open_checkpoint(sharded(tmp_path / "s"))
    for found in (file, folder, shards):
        assert found.entries == {"a": Entry((2, 3), torch.float32), "b": Entry((4,), torch.bfloat16)}
        assert torch.equal(found.read("a"), A)
        assert torch.equal(found.read("b"), B)
    assert (file.config, folder.config) == (None, {"model_type": "llama"})
    assert (file.folder, folder.folder) == (None, tmp_path)


def test_a_folder_with_one_file_of_another_name(tmp_path):
    write_safe(tmp_path / "weights.safetensors", {"a": A}, {})
    assert torch.equal(open_checkpoint(tmp_path).read("a"), A)


def test_gguf(tmp_path):
    found = open_checkpoint(write_tiny(tmp_path / "t.gguf", "llama", "Q8_0"))
    assert found.config["hidden_size"] == 32
    assert found.entries["model.norm.weight"] == Entry((32,), torch.float32)
    assert found.read("model.norm.weight").shape == (32,)


def test_integer_buffers_are_carried(tmp_path):
    write_safe(tmp_path / "m.safetensors", {"ids": torch.arange(3)}, {})
    assert torch.equal(open_checkpoint(tmp_path / "m.safetensors").read("ids"), torch.arange(3))


def test_identity_is_of_the_content(tmp_path):
    def identity(values, name):
        write_safe(tmp_path / name, {"a": values}, {})
        return open_checkpoint(tmp_path / name).identity

    assert identity(A, "x.safetensors") == identity(A.clone(), "y.safetensors")
    assert identity(A, "x.safetensors") != identity(A + 1, "y.safetensors")
    gguf = write_tiny(tmp_path / "a.gguf", "llama", "F32")
    assert open_checkpoint(gguf).identity == open_checkpoint(write_tiny(tmp_path / "b.gguf", "llama", "F32")).identity


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_that_are_not_numbers(tmp_path, bad, dtype):
    values = torch.ones(3, 5, dtype=dtype)
    values[2, 4] = bad
    write_safe(tmp_path / "n.safetensors", {"w": values}, {})
    with pytest.raises(InputError, match=r"n\.safetensors: the tensor 'w' holds NaN or infinite values"):
        open_checkpoint(tmp_path / "n.safetensors").read("w")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", ".x.safetensors",
             "x.bin", "", "x\0.safetensors", "..", "x\n.safetensors"]
)  # fmt: skip
def test_names_of_an_index_stay_in_its_folder(tmp_path, name):
    write_safe(tmp_path / "x.safetensors", {"a": A}, {})
    with pytest.raises(InputError, match=r"a plain name of a \.safetensors file is needed"):
        open_checkpoint(sharded(tmp_path / "s", {"a": name}))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({}, "needs a weight_map"),
        ([1], "needs a weight_map"),
        ({"a": 3}, "needs a weight_map"),
        ({"a\n": "one.safetensors"}, "cannot be printed"),
        ({"a": "three.safetensors"}, r"names the shard three\.safetensors, which is missing"),
        ({"a": "two.safetensors"}, "says that the tensor 'a' is in two"),
        ({"c": "two.safetensors"}, "says that the tensor 'c' is in two"),
    ],
)
def test_wrong_indices(tmp_path, places, said):
    with pytest.raises(InputError, match=said):
        open_checkpoint(sharded(tmp_path / "s", places))


def test_the_same_tensor_in_two_shards(tmp_path):
    with pytest.raises(InputError, match=r"the tensor 'a' is in .*one\.safetensors and again in .*two\.sa"):
        open_checkpoint(
            sharded(
                tmp_path / "s", {"a": "one.safetensors", "b": "two.safetensors"}, one={"a": A}, two={"a": A, "b": B}
            )
        )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": {"a": "x", "a": "y"}}', "[" * 100_000])
def test_an_index_that_is_no_table(tmp_path, text):
    folder = sharded(tmp_path / "s")
    (folder / INDEX).write_text(text)
    with pytest.raises(InputError, match=r"is damaged|names 'a' twice"):
        open_checkpoint(folder)


def test_a_shard_cut_short(tmp_path):
    folder = sharded(tmp_path / "s")
    shard = folder / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"two\.safetensors has been cut short"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "m.pth", "m.ckpt", "m.pkl"])
def test_pickles_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(InputError, match="convert it to safetensors first"):
            open_checkpoint(path)


def test_other_refusals(tmp_path):
    with pytest.raises(InputError, match="there is no checkpoint at"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(InputError, match="holds no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.txt").touch()
    with pytest.raises(InputError, match="is no checkpoint: give"):
        open_checkpoint(tmp_path / "x.txt")
    write_safe(tmp_path / "e.safetensors", {}, {})
    with pytest.raises(InputError, match="holds no tensors"):
        open_checkpoint(tmp_path / "e.safetensors")
    write_safe(tmp_path / "b.safetensors", {"q": torch.zeros(2, dtype=torch.uint8)}, {})
    with pytest.raises(InputError, match=r"'q' has the dtype U8; weights of float32"):
        open_checkpoint(tmp_path / "b.safetensors")
    with pytest.raises(InputError, match=r"holds 2 \.safetensors files and no"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "po2"}}')
    with pytest.raises(InputError, match="is quantised already"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InputError, match="holds no JSON table"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        open_checkpoint(tmp_path)
