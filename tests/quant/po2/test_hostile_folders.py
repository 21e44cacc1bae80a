"""Folders and paths that nobody should have to trust: each ends in one sentence, and nothing is fetched or copied."""

import json
import os
import signal
import socket

import pytest
import torch

from models.tiny_gguf import write_tiny
from quant.po2.small_checkpoints import CONFIG, write_llama, write_tokenizer
from steelyard.errors import InputError
from steelyard.models.hugging_face import load_causal_lm, names_other_model, offline, one_line, token_ids
from steelyard.models.paths import check_links, printable, usable_path
from steelyard.quant.po2 import hf_files
from steelyard.quant.po2.checkpoints import INDEX, open_checkpoint
from steelyard.quant.po2.convert import MANIFEST, convert
from steelyard.quant.po2.folder_lock import LOCK, locked
from steelyard.quant.po2.packed_files import packed_files, write_packed
from steelyard.quant.po2.storage import load_quantized, save_quantized
from steelyard.quant.po2.summary import summarize
from steelyard.quant.po2.tensor import quantize
from steelyard.quant.po2.text_eval import evaluate_text

DETR = {"architectures": ["DetrForObjectDetection"], "model_type": "detr", "backbone": "evil/repo",
        "use_pretrained_backbone": True}  # fmt: skip


@pytest.fixture
def no_network(monkeypatch):
    """Count what would go online."""
    seen = []

    def refuse(*args, **options):
        seen.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return seen


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("config", [DETR, {**CONFIG, "vision_config": DETR}])
def test_convert_stays_offline(tmp_path, monkeypatch, no_network, config, checked):
    if not checked:  # the flag of the hub alone must do, too
        monkeypatch.setattr(hf_files, "names_other_model", lambda config: False)
    done = convert(write_llama(tmp_path / "in", config=config), tmp_path / "out")
    assert len(done.summary.layers) == 14
    assert no_network == []


def test_the_hub_is_off_while_a_model_is_made():
    from huggingface_hub import constants, is_offline_mode

    before = constants.HF_HUB_OFFLINE
    with offline():
        assert is_offline_mode()
    assert before == constants.HF_HUB_OFFLINE


def test_loading_names_no_other_model(tmp_path, no_network):
    with pytest.raises(InputError, match="names another model"):
        load_causal_lm(write_llama(tmp_path / "in", config=DETR))
    assert names_other_model({"a": {"backbone": "x"}})
    assert not names_other_model({"backbone": None, "use_timm_backbone": False})
    assert no_network == []


@pytest.mark.parametrize("name", ["merges.txt", "config.json", "tokenizer.json", "model.safetensors"])
def test_a_link_out_of_the_folder(tmp_path, name):
    source = write_llama(tmp_path / "in")
    (tmp_path / "secret").write_bytes((source / name).read_bytes() if (source / name).exists() else b"secret")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "secret")
    for use in (lambda: convert(source, tmp_path / "out"), lambda: load_causal_lm(source),
                lambda: token_ids(source, "w2")):  # fmt: skip
        with pytest.raises(InputError, match=f"{name} is a link that leads out of its folder"):
            use()
    assert not (tmp_path / "out").exists()


def test_links_that_are_right(tmp_path):
    home = tmp_path / "models--a--b"
    source = write_llama(home / "snapshots" / "1f")
    (home / "blobs").mkdir()
    (source / "model.safetensors").rename(home / "blobs" / "77")
    (source / "model.safetensors").symlink_to("../../blobs/77")
    (source / "vocab.json").symlink_to("config.json")
    assert convert(source, tmp_path / "out").summary.weights > 0
    (home / "blobs").rename(tmp_path / "elsewhere")
    (home / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads out of its folder"):
        open_checkpoint(source)


def test_links_to_nothing_and_pipes(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(InputError, match="leads nowhere"):
        check_links(tmp_path)
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is a pipe or a device"):
        open_checkpoint(tmp_path)


def test_a_second_conversion_is_told(tmp_path):
    source, out = write_llama(tmp_path / "in"), tmp_path / "out"
    with locked(out):
        with pytest.raises(InputError, match="another conversion is writing to output"):
            convert(source, out)
        assert (out / LOCK).exists()
    convert(source, out)
    assert not (out / LOCK).exists()


def test_a_killed_one_holds_no_lock(tmp_path):
    child = os.fork()
    if child == 0:
        with locked(tmp_path / "out"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / "out" / LOCK).exists()
    convert(write_llama(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out" / LOCK).exists()


def test_a_lock_that_is_a_link_or_was_replaced(tmp_path, monkeypatch):
    (tmp_path / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="cannot be written"), locked(tmp_path):
        pass
    assert not (tmp_path / "victim").exists()
    (tmp_path / LOCK).unlink()
    monkeypatch.setattr("os.path.samestat", lambda one, two: False)
    with pytest.raises(InputError, match="another conversion"), locked(tmp_path):
        pass

    def refuse(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(InputError, match="cannot be locked: No locks available"), locked(tmp_path):
        pass


def test_force_removes_the_old_tokenizer(tmp_path):
    out = tmp_path / "out"
    convert(write_tokenizer(write_llama(tmp_path / "in")), out)
    assert "tokenizer.json" in json.loads((out / MANIFEST).read_text())["files"]
    (out / "mine.txt").write_text("stays")
    convert(write_llama(tmp_path / "bare", seed=1), out, force=True)
    assert not (out / "tokenizer.json").exists()
    assert (out / "mine.txt").exists()


def test_force_trusts_no_manifest(tmp_path):
    source, out = write_llama(tmp_path / "in"), tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (tmp_path / "victim").touch()
    for files, said in ((["../victim", 3], None), ("x", None), (["sub"], "sub cannot be removed")):
        (out / MANIFEST).write_text(json.dumps({"plan": "other", "files": files}))
        if said is None:
            convert(source, out, force=True)
        else:
            with pytest.raises(InputError, match=said):
                convert(source, out, force=True)
    assert (tmp_path / "victim").exists()


def test_eval_checks_the_digest(tmp_path):
    out = tmp_path / "out"
    convert(write_tokenizer(write_llama(tmp_path / "in")), out)
    (tmp_path / "text").write_text("w2 w3 " * 40)
    assert evaluate_text(out, tmp_path / "text", tokens=32, window=16).perplexity > 1
    (shard,) = out.glob("*.safetensors")
    whole = bytearray(shard.read_bytes())
    whole[-1] ^= 1
    shard.write_bytes(whole)
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        evaluate_text(out, tmp_path / "text", tokens=32, window=16)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_paths_that_no_system_takes(tmp_path, name):
    source, model = write_llama(tmp_path / "in"), torch.nn.Linear(4, 4)
    uses = (
        lambda path: convert(source, path), lambda path: convert(path, tmp_path / "out"), load_quantized, packed_files,
        lambda path: save_quantized(model, path), lambda path: evaluate_text(path, path), load_causal_lm,
        lambda path: token_ids(path, "w"),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(InputError, match=r"^the path .* cannot be used: ") as raised:
            use(tmp_path / name)
        assert raised.value.args[0].isprintable()
    assert usable_path(tmp_path / "none") == tmp_path / "none"


def test_a_shard_with_a_long_name(tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "x" * 5000 + ".safetensors"}}))
    with pytest.raises(InputError, match="a plain name") as raised:
        open_checkpoint(tmp_path)
    assert len(str(raised.value)) < 500


def test_nothing_steers_the_terminal(tmp_path):
    assert printable("a\x1b[2J\u202eb ü") == "a\\x1b[2J\\u202eb ü"
    assert one_line(ValueError("a\x1b\nb")) == "a\\x1b b"
    (tmp_path / "a\x1b[2J.pt").touch()
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="may be a pickle") as raised:
        open_checkpoint(tmp_path)
    assert raised.value.args[0].isprintable()
    (tmp_path / "b" / "a\x1b.safetensors").touch()
    with pytest.raises(InputError, match="whose name cannot be printed"):
        open_checkpoint(tmp_path / "b")
    whole = write_tiny(tmp_path / "t.gguf", "llama", "Q8_0").read_bytes()
    (tmp_path / "t.gguf").write_bytes(whole.replace(b"llama", b"l\x1b[2m", 2))
    with pytest.raises(InputError) as raised:
        open_checkpoint(tmp_path / "t.gguf")
    assert raised.value.args[0].isprintable()


@pytest.mark.parametrize("about", [{"tied": {"a\x1b": "w"}}, {"tied": {"a": []}}, {"activations": {"\u202e": {}}}])
def test_names_in_the_header_of_a_saved_model(tmp_path, about):
    write_packed(tmp_path / "a", {"w": quantize(torch.ones(2, 3), "mpo2")}, {}, model=about)
    with pytest.raises(InputError) as raised:
        load_quantized(tmp_path / "a")
    assert raised.value.args[0].isprintable()


def test_a_number_beyond_floats_in_a_report(tmp_path):
    reports = {"w": {"error": 10**400, "power": 1.0}}
    write_packed(tmp_path / "a", {"w": quantize(torch.ones(2, 3), "mpo2")}, {}, reports)
    assert summarize(packed_files(tmp_path / "a")).relative_mse is None
