"""The bench: every arm, derived arms, the user's own model, text and tensors; the card fits the bench."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import transformers

from steelyard.card import Source, decision_of
from steelyard.contracts import CellInput
from steelyard.data import locate
from steelyard.errors import InputError
from steelyard.models import llama2c
from steelyard.models.hugging_face import load_tokenizer
from steelyard.quant.po2 import activations, arms, user
from steelyard.quant.po2.bench import _RUN, BENCH
from steelyard.quant.po2.card import CARD
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.user import Options, user_task

SMALL = {"shape": np.array([32, 256])}


def cell(task, arm, data=SMALL, seed=0, options=None, **params):
    return CellInput(task, arm, BENCH.arm(arm).config, params, options or {}, seed, data)


@pytest.mark.parametrize("arm", arms.TENSOR_ARMS)
def test_every_arm_on_a_tensor(arm):
    found = BENCH.run(cell("gaussian", arm))
    assert set(found.metrics) == {"weight_error", "bits"}
    assert (found.metrics["weight_error"] == 0) == (arm == "reference")
    expected = {"mxfp4": 4.25, "q4_1": 5.0, "reference": 32.0}
    assert found.metrics["bits"] == expected.get(arm, 4.5)
    assert found == BENCH.run(cell("gaussian", arm))


def test_arms_tasks_and_profiles_fit_together():
    names = [arm.name for arm in BENCH.arms]
    assert len(set(names)) == len(names)
    for arm in BENCH.arms:
        if not arm.derived:
            Config(**arm.config)
    assert {task.name for task in BENCH.tasks} | {"user", "user_weights"} == set(_RUN)
    used = {name for profile in BENCH.profiles.values() for block in profile.blocks for name in block.arms}
    assert used == {arm.name for arm in BENCH.arms if not arm.derived}
    assert [BENCH.profiles[name].seeds for name in ("quick", "full")] == [6, 10]
    fetched = {task.name for task in BENCH.tasks if task.dataset or "package" in task.source}
    quick = {task for block in BENCH.profiles["quick"].blocks for task in block.tasks}
    assert not quick & fetched  # a quick weighing needs no download and no weights


def test_derived_arms_are_the_worst_and_the_best():
    metrics = {name: {"weight_error": float(i), "bits": 4.5} for i, name in enumerate(
        ("mpo2", "po2_nf4", "po2_split87", "sfp4", "nvfp4", "four_over_six"))}  # fmt: skip
    metrics["mpo2"]["kl_w4a16"] = 0.1
    found = BENCH.derive(metrics)
    assert found == {"worst_po2": {"weight_error": 3.0}, "best_nvfp4": {"weight_error": 4.0}}
    del metrics["sfp4"]
    assert set(BENCH.derive(metrics)) == {"best_nvfp4"}


def test_the_card_names_every_decision():
    ids = [decision.id for decision in CARD.decisions]
    assert [f"Q{number}" for number in range(1, 24)] == [name for name in ids if name.startswith("Q")]
    for decision in CARD.decisions:
        assert (decision.knob is not None) or decision.source is not Source.RECON
    for field in Config.model_fields:
        assert decision_of(Config, field) in ids
    assert "Q4_1" in " ".join(CARD.limits)
    json.dumps(CARD.model_dump(mode="json"))


def test_usage_runs():
    scope = {}
    exec(compile(CARD.usage, "usage", "exec"), scope)
    assert scope["pair"].n_grids == 2


@pytest.fixture(scope="module")
def own_model(tmp_path_factory):
    """A Hugging Face folder: the stories model with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    llama2c.load_model(locate("stories260k").paths[0]).save_pretrained(folder)
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {letter: token for token, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a cat who liked to sit in the sun. " * 8)
    return path


def test_the_users_model_and_text(own_model, text):
    task = user_task(str(text), model=str(own_model), window=32)
    data = dict(task.load())
    assert (task.name, task.source) == ("user", "your own")
    assert len(data["tuning"]) == 32
    options = Options(model=str(own_model), window=32).model_dump(mode="json")
    found = [BENCH.run(cell("user", "mpo2", data, seed, options)).metrics for seed in (0, 1)]
    assert 0 < found[0]["kl_w4a16"] < found[0]["kl_w4a4"]
    assert found[0] != found[1]
    wished = BENCH.run(cell("user", "mpo2", data, 0, {**options, "search": "sweep"})).metrics
    assert wished["model_weight_error"] < found[0]["model_weight_error"]
    with pytest.raises(InputError, match="the data of task 'user' are enough"):
        BENCH.run(cell("user", "mpo2", data, 100, options))
    assert load_tokenizer(own_model).decode(data["tuning"][:4]).replace(" ", "") == "Once"


def test_a_gguf_file_is_weighed_through_its_float32_copy(own_model, text, tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.setattr(user, "float32_copy", lambda path: own_model)
    data = user_task(text, model=str(tmp_path / "m.gguf"), window=16).load()
    assert str(data["folder"]) == str(own_model)


@pytest.mark.parametrize("as_file", [True, False])
def test_the_users_tensors(as_file, tmp_path):
    data = {"w": np.random.default_rng(0).normal(size=(64, 48))}
    if as_file:
        np.savez(tmp_path / "w.npz", **data)
        data = str(tmp_path / "w.npz")
    task = user_task(data)
    arrays = dict(task.load())
    assert task.name == "user_weights"
    assert arrays["w"].dtype == np.float32
    assert 0 < BENCH.run(cell("user_weights", "mpo2", arrays)).metrics["weight_error"] < 0.01


def test_arrays_without_rows_for_every_seed_are_left_out():
    """Grids would be learned on the rows that they are judged by."""
    task = user_task({"w": np.ones((16, 8)), "bias": np.ones(40), "small": np.ones((3, 5, 8))})
    assert set(task.load()) == {"w"}
    assert task.label == "your tensors (1, 2 of fewer than 16 rows left out)"
    with pytest.raises(InputError, match="no array of at least 16 rows"):
        user_task({"bias": np.ones(40)})


def test_grids_for_inputs_are_learned_as_those_for_weights(own_model, text, monkeypatch):
    learned = []
    fit = activations.fit_grids
    monkeypatch.setattr(
        activations, "fit_grids", lambda pool, **options: learned.append(options) or fit(pool, **options)
    )
    data = dict(user_task(str(text), model=str(own_model), window=32).load())
    options = Options(model=str(own_model), window=32, group_size=32, explicit_zero=True).model_dump(mode="json")
    BENCH.run(cell("user", "mpo2_learned", data, 0, options))
    (found,) = learned
    assert {key: found[key] for key in ("group_size", "n_grids", "explicit_zero", "rule")} == {
        "group_size": 32, "n_grids": 2, "explicit_zero": True, "rule": "absmax",
    }  # fmt: skip


def test_what_users_bring_in_vain(own_model, text, tmp_path, monkeypatch):
    def refuse(says, data=text, **options):
        with pytest.raises(InputError, match=says):
            user_task(data, **options)

    model = str(own_model)
    refuse("neither a folder nor a .gguf file", model="/nonexistent")
    refuse("too few for 9 windows of 4096", model=model, window=4096)
    refuse("cannot be read", data=tmp_path / "none.txt", model=model)
    refuse("must be the path of a text file", data={"a": 1}, model=model)
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    refuse("is not UTF-8 text", data=tmp_path / "latin", model=model)
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(own_model / "tokenizer.json", empty)
    shutil.copy(own_model / "tokenizer_config.json", empty)
    refuse(r"holds no \.safetensors file", model=str(empty), window=8)
    shutil.copy(own_model / "model.safetensors", empty)
    refuse(r"config\.json cannot be read", model=str(empty), window=8)
    (empty / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 50}))
    refuse("the tokenizer gives the token .* beyond the model's 50", model=str(empty), window=8)
    monkeypatch.setattr(user, "token_ids", lambda folder, text: [1] * 1000)
    (empty / "config.json").write_text("[]")
    refuse("holds no JSON table", model=str(empty), window=8)
    monkeypatch.undo()
    refuse("its tokenizer cannot be read", model=str(empty), window=8)
    monkeypatch.setattr(user, "_MAX_TEXT", 10)
    refuse("has more than 10 bytes", model=model)
    refuse("data must be an npz file or a mapping", data=3)
    refuse("data holds no arrays", data={})
    refuse("array 'a'", data={"a": np.array([np.nan])})
