"""Baselines beside TRL; tensors, copies and keys of every kind; tokens."""

import inspect
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import (
    StepBatch,
    broadcast_to_tokens,
    coupled,
    decoupled,
    dr_grpo,
    g2po_advantage,
    gigpo,
    grpo,
    rloo,
)
from steelyard.policy.groups import standardise

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GOOD = {"task": [0] * 4, "traj": [0, 0, 1, 1], "t": [0, 1, 0, 1], "reward": [0.0, 10.0, 0.0, 0.0]}
ESTIMATORS = (grpo, dr_grpo, rloo, gigpo, g2po_advantage)


@pytest.mark.parametrize(("rollouts", "within"), [(5, 1e-12), (8, 6e-8)])
def test_grpo_and_its_kin_are_trls(rollouts, within):
    """TRL computes inside its trainer's step: its lines are looked for, then followed with its own deviation.

    Its n / (n - 1) is of single precision whatever the rewards are: exact for 5 rollouts, not for 8.
    """
    from trl.trainer import grpo_trainer, rloo_trainer
    from trl.trainer.utils import nanstd

    source = inspect.getsource(grpo_trainer)
    assert "advantages = rewards - mean_grouped_rewards" in source
    assert "advantages = advantages / (std_rewards + 1e-4)" in source
    assert "advantages = rewards - baselines" in inspect.getsource(rloo_trainer)
    rewards = torch.as_tensor(np.random.default_rng(0).normal(size=(5, rollouts)))
    centred = rewards - torch.nanmean(rewards, dim=1, keepdim=True)
    theirs = centred / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    task = np.repeat(np.arange(5), rollouts)
    batch = StepBatch(task, np.arange(5 * rollouts), np.zeros(5 * rollouts, int), rewards.reshape(-1))
    torch.testing.assert_close(grpo(batch, eps=1e-4), theirs.reshape(-1), rtol=within, atol=1e-12)
    torch.testing.assert_close(grpo(batch), theirs.reshape(-1), rtol=1e-3, atol=0)
    torch.testing.assert_close(dr_grpo(batch), centred.reshape(-1), rtol=1e-12, atol=1e-12)
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / (rollouts - 1)
    torch.testing.assert_close(rloo(batch), (rewards - others).reshape(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_come_back_as_tensors(function, dtype):
    anchor = torch.tensor([[0.0, 1], [2, 3], [0, 1], [4, 5]])
    fields = {name: torch.tensor(values) for name, values in GOOD.items()}
    fields["reward"] = fields["reward"].to(dtype)
    batch = StepBatch(**fields, anchor=anchor)
    found = function(batch)
    assert found.dtype == (dtype if dtype.is_floating_point else torch.float64)
    assert found.device == fields["reward"].device
    expected = function(StepBatch(**GOOD, anchor=list("abac")))
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-2)
    assert function(batch.select(torch.tensor([True, True, False, False]))).dtype == found.dtype


def test_learned_rewards_give_advantages_without_a_gradient():
    reward = torch.tensor(GOOD["reward"], requires_grad=True)
    assert not grpo(StepBatch(**{**GOOD, "reward": reward})).requires_grad
    found = decoupled({"r": reward, "p": torch.ones(4)}, torch.tensor([0, 0, 1, 1]), {"r": 1.0, "p": 1.0})
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0, 0.0, 0.0]) / 2**0.5, rtol=1e-5, atol=1e-6)
    assert isinstance(coupled({"r": reward}, [0] * 4, {"r": 1.0}), torch.Tensor)


@pytest.mark.parametrize(
    "anchor",
    [
        [torch.tensor([1.0, 2]), torch.tensor([3.0]), torch.tensor([1.0, 2]), torch.tensor([4.0])],
        [np.array([1, 2]), np.array([3]), np.array([1, 2]), np.array([[1, 2]])],
        list(torch.tensor([7, 8, 7, 9])),
        [np.int64(7), 8, 7.0, "7"],
        [2**70, -(2**70), 2**70, 0],
        [("a", None), ("b", 1), ("a", None), frozenset("b")],
        [b"x", "x", b"x", ""],
        np.array([[1, 2], [3, 4], [1, 2], [5, 6]]),
        np.array(["x", "y", "x", "z"]),
        np.array([1.5, 2.5, 1.5, 0.0]),
        (True, False, True, 2),
    ],
)
def test_keys_are_equal_by_their_content(anchor):
    codes, count = StepBatch(**GOOD, anchor=anchor).nodes
    assert count == 3
    assert codes[0] == codes[2]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"anchor": ["a", None, "b", "c"]}, "anchor: row 1 has none"),
        ({"anchor": [None] * 4}, "anchor: the steps have none"),
        ({"reward": [1e200, 0, 0, 0]}, "reward: row 0 is larger than"),
        ({"process": [1.0]}, "process: it must be a mapping"),
        ({"anchor": [{}, "a", "b", "c"]}, "anchor: row 0 is a dict"),
        ({"anchor": [np.float64("nan"), "a", "b", "c"]}, "anchor: row 0 is not a number"),
        ({"anchor": [np.array([None]), "a", "b", "c"]}, "anchor: row 0 is a ndarray"),
        ({"anchor": 3}, "anchor"),
        ({"traj": {0, 1}}, "traj"),
        ({"task": iter([0])}, "task"),
    ],
)
def test_unusable_fields_are_named(change, names):
    with pytest.raises(InputError, match=names):
        gigpo(StepBatch(**{**GOOD, "anchor": list("abac"), **change}))


@pytest.mark.parametrize("eps", [0, -1, float("nan")])
def test_what_keeps_a_division_finite_is_above_zero(eps):
    with pytest.raises(InputError, match="eps"):
        grpo(StepBatch(**GOOD), eps=eps)


@given(st.integers(0, 2**32 - 1))
def test_doubled_rows_count_once(seed):
    draws = np.random.default_rng(seed)
    traj = np.repeat(np.arange(4), 3)
    rows = {
        "task": traj // 2, "traj": traj, "t": np.tile(np.arange(3), 4), "reward": draws.normal(size=12),
        "anchor": draws.integers(0, 3, 12), "valid": draws.random(12) < 0.8,
    }  # fmt: skip
    order = draws.permutation(np.concatenate([np.arange(12), draws.integers(0, 12, 5)]))
    doubled = {name: values[order] for name, values in rows.items()}
    batch, step = StepBatch.without_copies(**doubled, process={"p": doubled["reward"]})
    assert len(batch) == 12
    assert g2po_advantage(batch)[step].tobytes() == g2po_advantage(StepBatch(**rows))[order].tobytes()
    np.testing.assert_array_equal(batch.process["p"], batch.reward)
    with pytest.raises(InputError, match="twice"):
        StepBatch(**doubled)


def test_copies_that_differ_are_no_copies():
    doubled = {name: [*values, values[-1]] for name, values in GOOD.items()}
    tensors = {**doubled, "reward": torch.tensor(doubled["reward"])}
    batch, step = StepBatch.without_copies(**tensors, valid=None)
    assert step.tolist() == [0, 1, 2, 3, 3]
    assert isinstance(grpo(batch), torch.Tensor)
    for name, other in (("reward", 9.0), ("task", 5)):
        with pytest.raises(InputError, match=f"{name}: row 4 is not that of the row it is a copy of"):
            StepBatch.without_copies(**{**doubled, name: [*GOOD[name], other]})
    with pytest.raises(InputError, match="anchor: row 4"):
        StepBatch.without_copies(**doubled, anchor=list("ababx"))


def test_names_of_several_kinds_have_an_order():
    mixed = ["b", 1, ("a", 2), "a"]
    batch = StepBatch([0] * 4, mixed, [0] * 4, [1.0, 2.0, 3.0, 4.0])
    turned = StepBatch([0] * 4, mixed[::-1], [0] * 4, [4.0, 3.0, 2.0, 1.0])
    assert grpo(turned)[::-1].tobytes() == grpo(batch).tobytes()


@given(st.integers(2, 40), st.floats(1e-3, 1e6), st.sampled_from(["std", "mean"]))
def test_what_rounding_alone_tells_apart_is_equal(size, scale, norm):
    values = scale * (1 + np.arange(size) % 2 * 4e-16)
    assert (standardise(values, np.zeros(size, int), 1, norm=norm) == 0).all()
    apart = scale * (1 + np.arange(size) % 2 * 1e-3)
    assert (standardise(apart, np.zeros(size, int), 1, norm=norm) != 0).all()


def test_long_rollouts_count_more_where_steps_are_counted():
    batch = StepBatch([0] * 4, [0, 0, 0, 1], [0, 1, 2, 0], [0, 0, 10.0, 0], list("abcd"))
    np.testing.assert_allclose(gigpo(batch, norm="mean", episode_stats="step", w=0), [2.5, 2.5, 2.5, -7.5])
    alone = StepBatch([0] * 2, [0, 0], [0, 1], [0, 10.0], list("ab"), valid=[True, False])
    assert (g2po_advantage(alone, parts="ep", episode_stats="step") == 0).all()


@pytest.mark.parametrize("mask", [[[1, 0], [1, 1]], np.array([[1.0, 0], [0.5, 1]]), torch.tensor([[True, False]] * 2)])
def test_tokens_take_lists_arrays_and_tensors(mask):
    found = broadcast_to_tokens([2.0, -1.0], mask)
    assert found[0].tolist() == [2, 0]
    assert isinstance(found, torch.Tensor) == isinstance(mask, torch.Tensor)
    assert isinstance(broadcast_to_tokens(torch.ones(2), [[1], [0]]), torch.Tensor)


@given(st.integers(0, 2**32 - 1))
def test_every_token_has_its_steps_advantage_or_none(seed):
    draws = np.random.default_rng(seed)
    advantage, mask = draws.normal(size=5), draws.random((5, 7)) < 0.5
    found = broadcast_to_tokens(advantage, mask)
    np.testing.assert_array_equal(found, advantage[:, None] * mask)
    whole = broadcast_to_tokens({"a": advantage, "b": advantage}, {"a": mask, "b": ~mask})
    np.testing.assert_array_equal(whole, np.tile(advantage[:, None], 7))


@pytest.mark.parametrize(("advantage", "mask"), [(1.0, [[1]]), ([1.0], [1]), ([[1.0]], [[1]]), ([1.0, 2.0], [[1]])])
def test_tokens_that_do_not_fit_are_refused(advantage, mask):
    with pytest.raises(InputError, match="a row for each of the advantages"):
        broadcast_to_tokens(advantage, mask)
