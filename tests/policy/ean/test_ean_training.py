"""The small world, its policy, and what the terms of a training change."""

import copy

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.policy.ean.toy_policy import ToyPolicy, supervised
from steelyard.policy.ean.training import Settings, ablated, evaluate, hidden, patch_saliency, select, train_rl
from steelyard.policy.ean.world import CELLS, blank, draw_items
from steelyard.rng import generator, torch_generator


@pytest.fixture(scope="module")
def base():
    return supervised(0, steps=300)


def trained(base, seed=0, **settings):
    policy = copy.deepcopy(base)
    chosen = Settings(**{"updates": 3, "prompts": 8, "rollouts": 4, "pool": 200, **settings})
    log = train_rl(policy, chosen, generator("t", "data", seed), torch_generator("t", "draws", seed))
    return policy, log


def weights(policy):
    return torch.cat([weight.detach().ravel() for weight in policy.parameters()])


def test_items_follow_their_rules():
    items = draw_items(np.random.default_rng(0), 2000)
    assert items.images.shape == (2000, CELLS, 48)
    assert float((~items.counter).float().mean()) == pytest.approx(0.85 + 0.15 / 6, abs=0.03)
    quiet = draw_items(np.random.default_rng(0), 200, noise=0.0)
    assert ((quiet.images.abs().sum(-1) > 0).sum(1) == 6).all(), "six shapes are in patches of their own"
    rows = torch.arange(200)
    assert (quiet.images[rows, quiet.evidence].abs().sum(-1) > 0).all()
    free = draw_items(np.random.default_rng(0), 3000, prior=0.0)
    assert float(free.counter.float().mean()) == pytest.approx(5 / 6, abs=0.03)
    for bad in ({"count": 0}, {"count": 1, "prior": 2.0}, {"count": 1, "noise": -1.0}):
        with pytest.raises(InputError):
            draw_items(np.random.default_rng(0), **bad)


def test_a_start_learns_the_prior_when_blind(base):
    items = draw_items(np.random.default_rng(1), 500, prior=0.0)
    found = evaluate(base, items)
    assert found["blind_prior"] > 0.95
    assert evaluate(base, draw_items(np.random.default_rng(2), 500))["accuracy"] > 0.8


def test_the_policy_has_the_size_of_the_reference():
    assert sum(weight.numel() for weight in ToyPolicy().parameters()) == 41_670


def test_saliency_is_the_slope_of_the_answer(base):
    items = draw_items(np.random.default_rng(3), 4)
    found = patch_saliency(base, items.images, items.question, items.answer)
    embedded = base.embed(items.images).detach().requires_grad_(True)
    for row in range(4):
        logs = base.read(embedded[row : row + 1], items.question[row : row + 1])[0, items.answer[row]]
        (slope,) = torch.autograd.grad(logs, embedded)
        torch.testing.assert_close(found[row], (slope[row] * embedded[row].detach()).sum(-1).abs())


def test_what_is_hidden(base):
    items = draw_items(np.random.default_rng(4), 6)
    draws = torch_generator("t", "x", 0)
    for kind in ("saliency", "random"):
        images = ablated(base, items, items.answer, Settings(ablation=kind), draws)
        assert ((images == 0).all(-1).sum(1) == 4).all()
    assert not ablated(base, items, items.answer, Settings(ablation="blank"), draws).any()
    assert torch.equal(hidden(items.images, torch.zeros(6, CELLS, dtype=torch.bool)), items.images)
    assert blank(items.images).shape == items.images.shape


def test_without_weight_no_negative_is_drawn_and_it_is_grpo_bit_for_bit(base, monkeypatch):
    plain, _ = trained(base)

    def refused(*_):
        raise AssertionError("a negative was drawn")

    monkeypatch.setattr("steelyard.policy.ean.training._negative_term", refused)
    nothing, log = trained(base, coefficient=0.0)
    assert torch.equal(weights(plain), weights(nothing))
    assert log.kept == []


@pytest.mark.parametrize(
    "settings",
    [{"coefficient": 1.0}, {"coefficient": 1.0, "form": "unbounded"}, {"papo": 0.02},
     {"papo_entropy": 0.03, "papo": 1e-9}, {"data": "selected"}, {"data": "random_half"}],
)  # fmt: skip
def test_every_part_changes_the_weights(base, settings):
    plain, _ = trained(base)
    other, _ = trained(base, **settings)
    assert not torch.equal(weights(plain), weights(other))


def test_equal_seeds_train_alike(base):
    one, two, other = (trained(base, seed, coefficient=1.0)[0] for seed in (0, 0, 1))
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


def test_selection_raises_the_share_of_what_the_image_decides(base):
    _, log = trained(base, data="selected", pool=1000)
    before, after = log.selected_counter
    assert after > before
    pool = draw_items(np.random.default_rng(5), 100)
    assert len(select(base, pool, "random_half", np.random.default_rng(0))) == 50


def test_negatives_lower_the_shortcut(base):
    items = draw_items(np.random.default_rng(6), 1000, prior=0.0)
    plain, _ = trained(base, updates=60, prompts=32, rollouts=8)
    pushed, log = trained(
        base, updates=60, prompts=32, rollouts=8, coefficient=1.0, ablation="blank", normalizer="kept"
    )
    assert evaluate(pushed, items)["prior"] < evaluate(plain, items)["prior"]
    assert 0 < np.mean(log.kept) < 1
    assert max(log.rescued) > 0


def test_numbers_that_cannot_be(base):
    with pytest.raises(InputError, match="updates"):
        trained(base, updates=0)
