"""The steps of rollouts as arrays: what is refused, and by which words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import StepBatch, broadcast_to_tokens, dr_grpo, gigpo, grpo, rloo
from steelyard.policy.advantages import accumulated, rewards_to_go
from steelyard.policy.groups import coupled, decoupled, factorise, group_moments, standardise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GOOD = {"task": [0, 0, 0, 0], "traj": [0, 0, 1, 1], "t": [0, 1, 0, 1], "reward": [0, 1.0, 0, 0], "anchor": list("abab")}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"t": [0, 0, 0, 1]}, r"t: row 1 \(trajectory 0, step 0\) is there twice"),
        ({"t": [0, 2, 0, 1]}, r"t: row 1 .* does not follow"),
        ({"t": [1, 2, 0, 1]}, "begins with 1"),
        ({"t": [5, 6, 5, 6]}, "begins with 5"),
        ({"t": [0, 0.5, 0, 1]}, "whole number"),
        ({"t": [0, -1, 0, 1]}, "t: row 1 is negative"),
        ({"task": [0, 1, 0, 0]}, "task: row 1"),
        ({"reward": [0, np.nan, 0, 0]}, "reward: row 1 is not a finite number"),
        ({"reward": [0, np.inf, 0, 0]}, "reward: row 1"),
        ({"reward": ["a", 0, 0, 0]}, "reward"),
        ({"reward": [[0.0]] * 4}, "reward"),
        ({"anchor": ["a"]}, "anchor: it has 1 entries"),
        ({"anchor": [["a"], "b", "a", "b"]}, "anchor: row 0 is a list"),
        ({"anchor": "abab"}, "anchor"),
        ({"anchor": [float("nan"), 1.0, 2.0, 3.0]}, "anchor: row 0"),
        ({"valid": [2, 0, 0, 0]}, "valid"),
        ({"success": [True]}, "success"),
        ({"process": {"progress": [1.0]}}, "progress"),
        ({"process": {"progress": [np.inf] * 4}}, "progress"),
        ({"task": 3}, "task"),
    ],
)
def test_what_does_not_belong_together_is_refused(change, names):
    with pytest.raises(InputError, match=names):
        StepBatch(**{**GOOD, **change})


def test_arrays_may_be_anchors_and_names_may_be_anything():
    one = StepBatch(
        **{**GOOD, "anchor": [np.zeros(2), np.ones(2)] * 2, "task": [("a", 1)] * 4, "traj": ["x", "x", 3, 3]}
    )
    assert one.nodes[1] == 2
    assert len(one) == 4
    assert StepBatch(**{**GOOD, "t": [1, 2, 1, 2]}).layout.lengths.tolist() == [2, 2]


def test_no_steps_are_a_batch():
    empty = StepBatch([], [], [], [], [])
    assert grpo(empty).shape == gigpo(empty).shape == (0,)


def test_episodes_become_rows():
    batch = StepBatch.from_episodes(
        [
            [
                {"reward": 0, "anchor": "a", "process": {"progress": None}},
                {"reward": 1, "anchor": "b", "success": True},
            ],
            [{"reward": 0, "anchor": "a", "valid": False, "process": {"progress": 1}}],
        ]
    )
    assert batch.success.tolist() == [True, True, False]
    assert batch.valid.tolist() == [True, True, False]
    assert np.isnan(batch.process["progress"]).tolist() == [True, True, False]
    assert batch.returns.tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="episode 0, step 0: 'reward'"):
        StepBatch.from_episodes([[{}]])


def test_baselines_are_their_formulas():
    returns = np.array([1.0, 4.0, 7.0])
    batch = StepBatch([0] * 3, range(3), [0] * 3, returns)
    np.testing.assert_allclose(grpo(batch), (returns - 4) / (3 + 1e-6))
    np.testing.assert_allclose(grpo(batch, eps=1e-4), (returns - 4) / (3 + 1e-4))
    np.testing.assert_allclose(dr_grpo(batch), returns - 4)
    np.testing.assert_allclose(rloo(batch), [1 - 5.5, 0, 7 - 2.5])


def test_gigpo_adds_what_came_of_the_same_state():
    batch = StepBatch(**{**GOOD, "reward": [0, 10.0, 0, 0]})
    returned = np.array([9.5, 10, 0, 0])
    expected = np.array([9.5, 10, 0, 0]) - np.array([4.75, 5, 4.75, 5])
    np.testing.assert_allclose(gigpo(batch, norm="mean", w=2.0), np.array([5, 5, -5, -5]) + 2 * expected)
    np.testing.assert_allclose(rewards_to_go(batch, 0.95), returned)
    for options in ({"gamma": 0}, {"w": -1}, {"norm": "x"}):
        with pytest.raises(InputError):
            gigpo(batch, **options)
    with pytest.raises(InputError, match="anchor"):
        gigpo(StepBatch(**{**GOOD, "anchor": None}))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.floats(0, 1))
def test_accumulation_is_the_recursion(lengths, factor):
    traj = np.repeat(np.arange(len(lengths)), lengths)
    t = np.concatenate([np.arange(n) for n in lengths])
    batch = StepBatch(np.zeros(len(t), int), traj, t, np.zeros(len(t)))
    values = np.random.default_rng(len(t)).normal(size=len(t))
    expected, after = values.copy(), 0.0
    for row in reversed(range(len(t))):
        after = values[row] + (factor * after if row + 1 < len(t) and traj[row + 1] == traj[row] else 0.0)
        expected[row] = after
    np.testing.assert_allclose(accumulated(batch, values, factor), expected, atol=1e-12)


def test_keys_are_numbered():
    assert factorise(["b", "a", "b"])[0].tolist() == [0, 1, 0]
    codes, count = factorise(np.array([5, -3, 5]))
    assert count == 2
    assert codes[0] == codes[2] != codes[1]
    assert factorise(np.array([2**60, 0, 2**60]))[1] == 2
    assert factorise(np.array(["x", "y"]))[1] == 2
    assert factorise(np.array([], int))[1] == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6)), min_size=1, max_size=30))
def test_moments_are_numpys(rows):
    groups, values = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = group_moments(values, groups, 4)
    for group in range(4):
        own = values[groups == group]
        if len(own):
            assert found.mean[group] == pytest.approx(own.mean(), rel=1e-9, abs=1e-6)
        if len(own) > 1:
            assert found.std[group] == pytest.approx(own.std(ddof=1), rel=1e-6, abs=1e-6)


def test_masked_values_stay_out():
    found = standardise(np.array([1.0, np.nan, 3.0]), np.zeros(3, int), 1)
    np.testing.assert_allclose(found, np.array([-1, 0, 1]) / (np.sqrt(2) + 1e-6))


def test_signals_apart_and_together():
    rewards = {"r": [1.0, 0, 1, 0], "p": [0.0, 1, 1, 0]}
    ones = {"r": 1.0, "p": 1.0}
    np.testing.assert_allclose(decoupled(rewards, [0] * 4, ones), [0, 0, 1.732, -1.732], atol=1e-3)
    np.testing.assert_allclose(coupled(rewards, [0] * 4, ones), [0, 0, 1.2247, -1.2247], atol=1e-3)
    two = {"r": [0.0, 1, 0, 1], "p": [0.0, 0, 0, 1]}
    np.testing.assert_allclose(decoupled(two, [0, 0, 1, 1], ones), [-0.707, 0.707, -1.414, 1.414], atol=1e-3)
    np.testing.assert_allclose(coupled(two, [0, 0, 1, 1], ones), [-0.707, 0.707, -0.707, 0.707], atol=1e-3)


@given(st.floats(1e-3, 1e3), st.integers(0, 99))
def test_a_signals_part_does_not_depend_on_its_scale(scale, seed):
    draws = np.random.default_rng(seed)
    first, second = draws.normal(size=8), draws.normal(size=8)
    weights = {"a": 1.0, "b": 0.5}
    one = decoupled({"a": first, "b": second}, [0] * 8, weights)
    two = decoupled({"a": first, "b": 1000 + scale * second}, [0] * 8, weights)
    np.testing.assert_allclose(one, two, atol=5e-3)


@pytest.mark.parametrize(
    ("rewards", "group", "weights"),
    [({"a": [1.0]}, [0], {"b": 1.0}), ({"a": [1.0]}, [0], {"a": -1.0}), ({"a": [1.0, 2.0]}, [0], {"a": 1.0}),
     ({"a": [np.inf]}, [0], {"a": 1.0}), ({"a": [1.0]}, [[0]], {"a": 1.0})],
)  # fmt: skip
def test_rewards_that_do_not_fit_are_refused(rewards, group, weights):
    with pytest.raises(InputError):
        decoupled(rewards, group, weights)


def test_tokens_get_their_steps_advantage():
    mask = np.array([[1, 1, 0], [0, 1, 1]])
    assert broadcast_to_tokens(np.array([2.0, -1.0]), mask).tolist() == [[2, 2, 0], [0, -1, -1]]
    by_part = broadcast_to_tokens(
        {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])},
        {"a": np.array([[1, 0], [0, 0]]), "b": np.array([[0, 1], [1, 0]])},
    )
    assert by_part.tolist() == [[1, 3], [4, 0]]
    torch = pytest.importorskip("torch")
    found = broadcast_to_tokens(torch.tensor([float("nan"), 1.0]), torch.tensor([[0, 0], [0, 1]]))
    assert found.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("advantage", "mask"),
    [(np.ones(2), {"a": np.ones((2, 1))}), (np.ones(2), np.ones((3, 1))), ({"a": np.ones(1)}, {"b": np.ones((1, 1))}),
     ({"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones((1, 1)), "b": np.ones((1, 1))}), ({"a": np.ones(1)}, {})],
)  # fmt: skip
def test_masks_that_do_not_fit_are_refused(advantage, mask):
    with pytest.raises(InputError, match="mask"):
        broadcast_to_tokens(advantage, mask)
