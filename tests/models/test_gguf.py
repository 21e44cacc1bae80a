"""GGUF files: names, permuted rows, configuration against transformers' own loader; hostile headers."""

import contextlib
import struct

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.tiny_gguf import write_tiny
from steelyard.errors import InputError
from steelyard.models.gguf import GGUFFile

NOT_OURS = {"_name_or_path", "_model_name_or_path", "architectures", "dtype", "quantization_config", "unk_token_id"}


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "F32"), ("llama", "F16"), ("llama", "Q8_0"), ("llama", "Q4_1"), ("qwen2", "Q8_0"), ("qwen3", "F32")],
)
def test_what_transformers_loads(tmp_path, architecture, kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    path = write_tiny(tmp_path / "tiny.gguf", architecture, kind)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    file = GGUFFile(path)
    state = theirs.state_dict()
    assert set(state) - set(file.tensors) == {"lm_head.weight"}  # tied, stored once
    for name in file.tensors:
        mine = file.read(name)
        assert mine.dtype == np.float32
        np.testing.assert_array_equal(mine, state[name].numpy(), err_msg=name)
    config = file.config()
    known = theirs.config.to_dict()
    assert config.pop("architectures") == [type(theirs).__name__]
    rebuilt = AutoConfig.for_model(**config).to_dict()
    assert {key for key in set(known) | set(rebuilt) if known.get(key) != rebuilt.get(key)} <= NOT_OURS


def test_an_untied_head_and_q_biases(tmp_path):
    file = GGUFFile(write_tiny(tmp_path / "t.gguf", "llama", "F32", head=True, q_bias=True))
    assert file.config()["tie_word_embeddings"] is False
    assert file.read("lm_head.weight").shape == (40, 32)
    stored = np.arange(32, dtype=np.float32)
    expected = stored.reshape(4, 4, 2).swapaxes(1, 2).reshape(32)  # heads, half of a head, two halves
    np.testing.assert_array_equal(file.read("model.layers.0.self_attn.q_proj.bias"), expected)


@given(heads=st.integers(1, 4), half=st.integers(1, 4), columns=st.integers(1, 5))
def test_rows_put_back_undo_the_permutation_of_the_converter(tmp_path_factory, heads, half, columns):
    path = tmp_path_factory.getbasetemp() / "permuted.gguf"
    weight = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    permuted = weight.reshape(heads, 2, half, columns).swapaxes(1, 2).reshape(weight.shape)  # as the converter does
    write_tiny(path, "llama", "F32", heads=heads, kv_heads=heads, replace={"blk.0.attn_q.weight": permuted})
    np.testing.assert_array_equal(GGUFFile(path).read("model.layers.0.self_attn.q_proj.weight"), weight)


def test_the_file_is_never_changed(tmp_path):
    path = write_tiny(tmp_path / "t.gguf", "llama", "F32")
    before = path.read_bytes()
    values = GGUFFile(path).read("model.norm.weight")
    values[:] = 7.0
    assert path.read_bytes() == before


def test_a_tensor_without_rows(tmp_path):
    path = write_tiny(tmp_path / "t.gguf", "llama", "F32", replace={"blk.1.ffn_up.weight": np.zeros((0, 32), "f4")})
    assert GGUFFile(path).read("model.layers.1.mlp.up_proj.weight").shape == (0, 32)


@pytest.mark.parametrize("part", [0, 3, 4, 12, 30, 200, 700, -5000, -1])
def test_cut_short(tmp_path, part):
    path = write_tiny(tmp_path / "t.gguf", "llama", "F32")
    whole = path.read_bytes()
    path.write_bytes(whole[:part])
    with pytest.raises(InputError, match=r"cut short|is empty|letters GGUF") as raised:
        GGUFFile(path)
    assert str(path) in str(raised.value)


@given(data=st.data())
def test_damaged_headers_end_in_a_sentence(tmp_path_factory, data):
    base = tmp_path_factory.getbasetemp()
    whole = bytearray(write_tiny(base / "whole.gguf", "llama", "F32").read_bytes())
    size = GGUFFile(base / "whole.gguf").header_size
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    (base / "damaged.gguf").write_bytes(whole)
    with contextlib.suppress(InputError):  # any other error is a failure
        file = GGUFFile(base / "damaged.gguf")
        file.config()
        for name in file.tensors:
            file.read(name)


def field(key, kind, value):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def info(name, shape, kind=0, offset=0):
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name.encode() + dims + struct.pack("<IQ", kind, offset)


LLAMA = field("general.architecture", 8, struct.pack("<Q", 5) + b"llama")
BLOCKS = field("llama.block_count", 4, struct.pack("<I", 1))


@pytest.mark.parametrize(
    ("fields", "infos", "said"),
    [
        ([field("x", 99, b"")], [], "unknown type 99"),
        ([field("x", 9, struct.pack("<IQ", 9, 1))], [], "array of the unsupported type 9"),
        ([field("x", 9, struct.pack("<IQ", 4, 1 << 60))], [], "cut short"),
        ([field("x", 9, struct.pack("<IQ", 8, 1 << 60))], [], "cut short"),
        ([field("general.alignment", 4, struct.pack("<I", 3))], [], "power of two"),
        ([], [], "architecture 'None'; supported from GGUF: llama, qwen2, qwen3"),
        ([LLAMA], [], "llama.block_count must be a positive number"),
        ([LLAMA, field("llama.block_count", 6, struct.pack("<f", 1.5))], [], "block_count must be a whole number"),
        ([LLAMA, BLOCKS], [], "0 tensors, too few for its 1 layers"),
        ([LLAMA, BLOCKS], [info("../../x", (4,))], "no tensor like '../../x'"),
        (
            [LLAMA, BLOCKS, field("llama.rope.scaling.type", 8, struct.pack("<Q", 4) + b"yarn")],
            [info("output_norm.weight", (4,))],
            "scaled rotary positions",
        ),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (4,))], "no token embeddings"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (4,))] * 2, "'output_norm.weight' twice"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (4,), 77)], "unknown type 77"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (4,), 24)], "I8, which cannot be decoded"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (4,), 8)], "multiple of 32"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", ())], "multiple of 1"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (1,) * 5)], "5 dimensions"),
        ([LLAMA, BLOCKS], [info("output_norm.weight", (1 << 40,))], "cut short"),
    ],
)
def test_hostile_headers(tmp_path, fields, infos, said):
    path = tmp_path / "h.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields))
    path.write_bytes(head + b"".join(fields + infos) + bytes(256))
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        GGUFFile(path)


def test_other_mistakes(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        GGUFFile(tmp_path / "none.gguf")
    path = write_tiny(tmp_path / "t.gguf", "llama", "F32")
    with pytest.raises(InputError, match="holds no tensor 'x'"):
        GGUFFile(path).read("x")
    odd = write_tiny(tmp_path / "odd.gguf", "llama", "F32", replace={"blk.0.attn_q.weight": np.zeros((31, 32), "f4")})
    with pytest.raises(InputError, match="31 rows, which 4 heads do not divide"):
        GGUFFile(odd).read("model.layers.0.self_attn.q_proj.weight")
    for key in ("attention.head_count", "attention.head_count_kv"):
        halved = GGUFFile(path)
        halved._field[key] = 0.5
        with pytest.raises(InputError, match=f"{key} must be a whole number, got 0.5"):
            halved.read("model.layers.0.self_attn.k_proj.weight")
        with pytest.raises(InputError, match=f"{key} must be a whole number, got 0.5"):
            halved.config()
    whole = bytearray(path.read_bytes())
    whole[4:8] = struct.pack("<I", 1)
    path.write_bytes(whole)
    with pytest.raises(InputError, match="GGUF version 1"):
        GGUFFile(path)
    other = write_tiny(tmp_path / "mpt.gguf", "mpt", "F32")
    with pytest.raises(InputError, match="architecture 'mpt'; supported"):
        GGUFFile(other)


def test_every_type_that_gguf_decodes_is_taken():
    refused = {kind.name for kind in gguf.GGMLQuantizationType if not hasattr(gguf.quants, kind.name)}
    assert refused - {"F32", "F16"} <= {"Q1_0", "Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}


@given(factor=st.sampled_from([2.0, 8.0, 32.0]), theta=st.sampled_from([5e5, 1e6]))
def test_rotary_scaling_of_llama_3(tmp_path_factory, factor, theta):
    """The divisors are those of transformers' own scaled frequencies; the configuration gives these back."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    shape = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 131072, "rope_theta": theta}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**shape, rope_scaling=dict(scaling)), "cpu")
    plain = theta ** -(torch.arange(0, 8, 2) / 8)
    path = tmp_path_factory.getbasetemp() / "rope.gguf"
    write_tiny(path, "llama", "F32", theta=theta, replace={"rope_freqs.weight": (plain / scaled).numpy()})
    file = GGUFFile(path)
    assert "rope_freqs.weight" not in file.tensors
    found = file.config()["rope_scaling"]
    assert found.pop("factor") == pytest.approx(scaling.pop("factor"), rel=1e-6)
    assert found == scaling
    for wrong in (np.array([1, 1, 3, factor]), np.ones(5)):
        write_tiny(path, "llama", "F32", theta=theta, replace={"rope_freqs.weight": wrong.astype(np.float32)})
        with pytest.raises(InputError, match="scaled rotary positions"):
            GGUFFile(path).config()


@pytest.mark.acceptance
def test_smollm2_is_what_transformers_loads():
    """Every tensor and the configuration of a real file, q and k rows above all."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from steelyard.models.smollm2 import gguf_file

    path = gguf_file()
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    file, state = GGUFFile(path), theirs.state_dict()
    assert set(state) - set(file.tensors) == {"lm_head.weight"}
    for name in file.tensors:
        np.testing.assert_array_equal(file.read(name), state[name].numpy(), err_msg=name)
    config = {key: value for key, value in file.config().items() if key != "architectures"}
    known, rebuilt = theirs.config.to_dict(), AutoConfig.for_model(**config).to_dict()
    assert {key for key in set(known) | set(rebuilt) if known.get(key) != rebuilt.get(key)} <= NOT_OURS
