"""Tasks on whole models: the bench's short way gives what the packed layers and the hooks of the library give."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.models import llama2c, minilm
from steelyard.quant.po2 import digits, model_tasks, pretraining
from steelyard.quant.po2.arms import ARMS
from steelyard.quant.po2.evaluate import compare
from steelyard.quant.po2.tensor import fake_quantize, quantize
from steelyard.quant.po2.torch_nn import quantize_activations, quantize_model

PARAMS = {"sequences": 3, "sentences": 3, "window": 48}


def cell(task, arm, data, seed=0, options=None, root="evaluation", **params):
    config = next(one.config for one in ARMS if one.name == arm)
    return CellInput(task, arm, config, {**PARAMS, **params}, options or {}, seed, data, root)


@pytest.fixture(scope="module")
def stories():
    data = model_tasks.stories()
    model = llama2c.stories260k()
    rng = np.random.default_rng(0)
    starts = torch.from_numpy(rng.integers(3, 512, (4, 3, 1)))
    text = torch.cat([llama2c.sample(model, 3, 30, torch.Generator().manual_seed(i))[None] for i in range(4)])
    text = torch.cat((text, starts), -1).numpy()
    return {**data, "windows": text[:2], "tuning": text[2:]}


def measure(one):
    return model_tasks.run_language_model(one).metrics


@pytest.mark.parametrize("family", ["mpo2", "sfp4", "mxfp4"])
def test_it_is_what_packed_layers_give(stories, family):
    found = measure(cell("stories", family, stories))
    reference = llama2c.stories260k()
    windows = torch.from_numpy(stories["windows"][0]).long()
    packed = quantize_model(copy.deepcopy(reference), family)
    both = quantize_model(copy.deepcopy(reference), family)
    quantize_activations(both, family)
    expected = compare(reference, {"w4a16": packed, "w4a4": both}, windows)
    for name, divergence in expected.items():
        assert found[f"kl_{name}"] == pytest.approx(divergence.kl, rel=1e-3)
        assert found[f"ppl_{name}"] == pytest.approx(divergence.perplexity, rel=1e-4)
        assert found[f"top1_{name}"] == pytest.approx(divergence.top1)
    layers = [module.weight for name, module in reference.named_modules() if isinstance(module, torch.nn.Linear)
              and name != "lm_head"]  # fmt: skip
    error = sum(float((fake_quantize(w, family) - w).square().sum()) for w in layers)
    assert found["model_weight_error"] == pytest.approx(error / sum(float(w.square().sum()) for w in layers), rel=1e-5)


def test_the_reference_diverges_by_nothing(stories):
    found = measure(cell("stories", "reference", stories))
    assert (found["kl_w4a16"], found["kl_w4a4"], found["model_weight_error"], found["bits"]) == (0, 0, 0, 32)
    assert found["top1_w4a16"] == found["top1_w4a4"] == 1


def test_arms_have_the_figures_that_suit_them(stories):
    learned = measure(cell("stories", "mpo2_learned", stories))
    assert 0 < learned["kl_w4a16"] < learned["kl_w4a4"] < 1
    for arm in ("random", "mpo2_first", "q4_1"):
        found = measure(cell("stories", arm, stories))
        assert found["kl_w4a16"] > 0
        assert "kl_w4a4" not in found
    assert "kl_w4a4" not in measure(cell("stories", "mpo2", stories, w4a4=["sfp4"]))
    assert "kl_w4a4" in measure(cell("stories", "sfp4", stories, w4a4=["sfp4"]))


def test_settings_change_what_they_say(stories):
    plain = measure(cell("stories", "mpo2", stories))
    for wish in ({"importance": True}, {"layers": "all"}, {"group_size": 32}):
        assert measure(cell("stories", "mpo2", stories, options=wish))["kl_w4a16"] != plain["kl_w4a16"]
    fixed = measure(cell("stories", "mpo2", stories, options={"activation_scale": "calibrated"}))
    assert fixed["kl_w4a16"] == plain["kl_w4a16"]
    assert fixed["kl_w4a4"] != plain["kl_w4a4"]


def test_seeds_and_roots_read_other_text(stories):
    found = [measure(cell("stories", "nvfp4", stories, seed=seed, root=root)) for seed, root in
             ((0, "evaluation"), (1, "evaluation"), (0, "tuning"))]  # fmt: skip
    assert len({one["kl_w4a16"] for one in found}) == 3
    with pytest.raises(InputError, match="seed 16: the data of task 'stories' are enough for the seeds 0 to 15"):
        measure(cell("stories", "nvfp4", stories, seed=16))
    with pytest.raises(InputError, match="seed 1"):
        measure(cell("stories", "nvfp4", stories, seed=1, root="tuning"))


def test_prepared_text_is_the_models_own(monkeypatch):
    monkeypatch.setattr(model_tasks, "SEEDS", 2)
    monkeypatch.setattr(model_tasks, "_SEQUENCES", 2)
    monkeypatch.setattr(model_tasks, "_LENGTH", 9)
    found = [model_tasks.prepare_stories({}) for _ in range(2)]
    assert {name: array.shape for name, array in found[0].items()} == {"windows": (2, 2, 9), "tuning": (2, 2, 9)}
    assert all((found[0][name] == found[1][name]).all() for name in found[0])
    assert not (found[0]["windows"] == found[0]["tuning"]).all()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_DATA", str(folder))
        yield model_tasks.wikitext()
    shutil.rmtree(folder)


def test_smollm2_on_wikitext(smollm2):
    assert len(smollm2["tokens"]) > 9000
    assert not np.array_equal(smollm2["tokens"][:50], smollm2["tuning"][:50])
    found = measure(cell("smollm2", "mpo2", smollm2, w4a4=[]))
    assert 0.02 < found["kl_w4a16"] < 0.5
    assert found["model_weight_error"] == pytest.approx(0.00430, rel=0.02)
    exact = measure(cell("smollm2", "q4_1", smollm2))  # its weights lie on that lattice already
    assert exact["model_weight_error"] < 1e-4
    with pytest.raises(InputError, match="enough for the seeds 0 to"):
        measure(cell("smollm2", "mpo2", smollm2, seed=1000))


def test_minilm_embeddings():
    data = model_tasks.sentences()
    assert data["ids"].shape[0] == model_tasks.SEEDS * model_tasks._SENTENCES
    found = {arm: model_tasks.run_embeddings(cell("minilm", arm, data)).metrics for arm in
             ("reference", "mpo2", "nvfp4", "q4_1")}  # fmt: skip
    assert found["reference"]["cos_w4a16"] == found["reference"]["cos_w4a4"] == 0
    assert 0 < found["mpo2"]["cos_w4a16"] < found["nvfp4"]["cos_w4a16"] < 0.1
    assert found["mpo2"]["cos_w4a16"] < found["mpo2"]["cos_w4a4"]
    assert "cos_w4a4" not in found["q4_1"]
    model = minilm.load()
    ids, mask = (torch.from_numpy(data[name][:3]).long() for name in ("ids", "mask"))
    truth = minilm.embed(model, ids, mask)
    quantize_model(model, "nvfp4", filter_fn=lambda module, name: "pooler" not in name)
    drift = 1 - torch.nn.functional.cosine_similarity(truth, minilm.embed(model, ids, mask)).mean()
    assert found["nvfp4"]["cos_w4a16"] == pytest.approx(float(drift), rel=1e-2)
    assert model_tasks.run_embeddings(cell("minilm", "mpo2", data, root="tuning")).metrics != found["mpo2"]
    with pytest.raises(InputError, match="seed 16"):
        model_tasks.run_embeddings(cell("minilm", "mpo2", data, seed=16))
    assert set(model_tasks.minilm_weights()) == {"model"}


@pytest.fixture(scope="module")
def images():
    data = digits.load()
    return {**data, **digits.prepare(data)}


def test_digits_networks(images):
    for seed in (0, 15):
        found = {arm: digits.run(cell("digits", arm, images, seed=seed)).metrics for arm in
                 ("reference", "mpo2", "mpo2_learned", "mxfp4", "random")}  # fmt: skip
        assert found["reference"]["kl_w4a16"] == found["reference"]["kl_w4a4"] == 0
        assert found["reference"]["accuracy_w4a16"] > 0.93
        assert 0 < found["mpo2"]["kl_w4a16"] < found["mxfp4"]["kl_w4a16"]
        assert 0 < found["mpo2_learned"]["kl_w4a4"] < found["mxfp4"]["kl_w4a4"]
        assert "kl_w4a4" not in found["random"]
    assert len({digits.run(cell("digits", "mpo2", images, seed=seed)).metrics["kl_w4a16"] for seed in range(4)}) == 4
    weighed = digits.run(cell("digits", "mpo2", images, options={"importance": True})).metrics
    assert weighed != digits.run(cell("digits", "mpo2", images)).metrics
    with pytest.raises(InputError, match="seed 16"):
        digits.run(cell("digits", "mpo2", images, seed=16))


def test_a_digits_network_is_the_one_that_was_trained(images):
    one = cell("digits", "reference", images, seed=3)
    x = torch.from_numpy(images["x"][:5])
    weights, biases = ([torch.from_numpy(images[f"{part}{i}"]) for i in range(3)] for part in ("weight", "bias"))
    together = digits.forward(x.expand(digits.SEEDS, 5, 64), weights, biases)[3]
    torch.testing.assert_close(digits._network(one.data, one.seed)(x), together)
    assert not set(images["test"][3]) - set(range(1797))
    assert len(set(images["test"][3])) == 597


def test_digits_of_tuning_are_other_networks_and_splits(images):
    found = digits.run(cell("digits", "mpo2", images)).metrics
    tuning = digits.run(cell("digits", "mpo2", images, root="tuning")).metrics
    assert found["kl_w4a16"] != tuning["kl_w4a16"]
    assert found["bits"] == tuning["bits"]
    ours = digits._trained("tuning")
    assert all(set(a) != set(b) for a, b in zip(ours["test"], images["test"], strict=True))
    assert not np.array_equal(ours["weight0"], images["weight0"])


TEXT = {"train": np.frombuffer(b"the cat sat on the mat. " * 40, np.uint8).copy(),
        "test": np.frombuffer(b"the dog sat on the rug. " * 40, np.uint8).copy()}  # fmt: skip


def trained(arm, steps=2, **more):
    return pretraining.run(cell("pretraining", arm, TEXT, steps=steps, **more))


def test_training_in_four_bits(monkeypatch):
    monkeypatch.setattr(pretraining, "_BATCH", 3)
    monkeypatch.setattr(pretraining, "_LENGTH", 48)
    monkeypatch.setattr(pretraining, "_TEST_WINDOWS", 6)
    state = torch.get_rng_state()
    found = {arm: trained(arm).metrics for arm in ("reference", "mpo2", "mxfp4")}
    assert torch.equal(state, torch.get_rng_state())
    assert len({one["loss"] for one in found.values()}) == 3
    assert all(4 < one["loss"] < 5.7 for one in found.values())  # ln 256 = 5.5 at the start
    assert trained("mpo2").metrics == found["mpo2"]
    assert trained("mpo2", options={"hadamard": True}).metrics != found["mpo2"]
    assert trained("mpo2", options={"stochastic_gradients": True}).metrics != found["mpo2"]
    assert trained("mpo2", seed=1).metrics != found["mpo2"]
    long = trained("nvfp4", steps=12)
    assert long.metrics["loss"] < found["mxfp4"]["loss"] - 0.3
    assert long.traces["training_loss"][0] == [float(step) for step in range(1, 13)]


def test_the_gradient_passes_straight_through():
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer = pretraining._StraightThrough(lambda t: fake_quantize(t, "mpo2"), hadamard=False)
    out = layer(x)
    torch.testing.assert_close(out.detach(), fake_quantize(x.detach(), "mpo2"), rtol=0, atol=1e-6)
    out.backward(torch.ones(3, 32))
    assert torch.equal(x.grad, torch.ones(3, 32))


def test_stochastic_rounding_keeps_the_expectation_and_the_grid():
    generator = torch.Generator().manual_seed(2)
    t = torch.randn(4, 32, generator=generator)
    drawn = torch.stack([pretraining.stochastically_rounded(t, generator) for _ in range(4000)])
    scale = quantize(t, "nvfp4").group_scales().repeat_interleave(16, 1)
    assert set((drawn / scale).abs().mul(2).round(decimals=3).unique().tolist()) <= {0, 1, 2, 3, 4, 6, 8, 12}
    inside = t.abs() <= 6 * scale
    error = (drawn.mean(0) - t)[inside] / drawn.std(0)[inside].clamp(min=1e-6) * 4000**0.5
    assert float(error.abs().max()) < 5  # standard errors
    assert float((drawn - t).abs().max()) <= float(2 * scale.max())
    assert torch.equal(pretraining.stochastically_rounded(torch.zeros(2, 16), generator), torch.zeros(2, 16))


def test_only_the_gradient_is_rounded_at_random():
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    out = pretraining._StochasticGradient.apply(x, torch.Generator().manual_seed(1))
    assert torch.equal(out, x)
    gradient = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    out.backward(gradient)
    assert torch.equal(x.grad, pretraining.stochastically_rounded(gradient, torch.Generator().manual_seed(1)))


def test_the_rotation_keeps_products():
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(5, 48, generator=generator), torch.randn(7, 48, generator=generator)
    torch.testing.assert_close(pretraining.rotated(x) @ pretraining.rotated(w).T, x @ w.T, rtol=1e-4, atol=1e-4)


def test_the_texts_of_pre_training():
    data = pretraining.load()
    assert {name: (array.dtype, len(array) > 10**6) for name, array in data.items()} == {
        "train": (np.uint8, True),
        "test": (np.uint8, True),
    }
