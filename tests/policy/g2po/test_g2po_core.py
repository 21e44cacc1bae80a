"""G2PO's advantage: the batch worked by hand, identities, limits."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import StepBatch, edge_variance_bound, gigpo, grpo
from steelyard.policy.g2po.core import g2po_advantage, node_values

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BY_HAND = {
    "value": [8.57375 / 2, (9.025 + 0 + 0) / 3, 9.5],
    "next_value": [3.008333, 9.5, 10, 3.008333, 3.008333, 0],
    "delta": [-1.278542, 6.491667, 0.5, -1.278542, 0, -3.008333],
    "ep": [0.707107] * 3 + [-0.707107] * 3,
    "nc": [0, 1.097891, 0, 0, -0.239145, -0.858746],
    "ec": [-0.459799, 1.896495, 0.079539, -0.459799, -0.072084, -0.984353],
}


def golden():
    return StepBatch([0] * 6, [0] * 3 + [1] * 3, [0, 1, 2] * 2, [0, 0, 10.0, 0, 0, 0], list("ABCABB"))


def test_the_batch_worked_by_hand():
    found = g2po_advantage(golden(), return_info=True)
    for name, values in BY_HAND.items():
        np.testing.assert_allclose(getattr(found, name), values, atol=1e-6)
    np.testing.assert_allclose(found.advantage, np.array(BY_HAND["ep"]) + BY_HAND["nc"] + BY_HAND["ec"], atol=1e-5)
    assert found.size.tolist() == [2, 3, 1]
    assert found.trajectories.tolist() == [2, 2, 1]
    assert found.singleton_fraction == pytest.approx(1 / 6)


@st.composite
def batches(draw, tasks=2, rollouts=3, states=4, longest=6):
    seed = draw(st.integers(0, 2**32 - 1))
    return made(seed, tasks, rollouts, states, longest)


def made(seed, tasks=2, rollouts=3, states=4, longest=6):
    draws = np.random.default_rng(seed)
    lengths = draws.integers(1, longest + 1, size=tasks * rollouts)
    traj = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths) - 1
    reward = np.zeros(len(traj))
    reward[ends] = draws.choice([0.0, 10.0, 3.0], size=len(ends))
    return StepBatch(
        traj // rollouts, traj, np.concatenate([np.arange(n) for n in lengths]), reward,
        draws.integers(0, states, len(traj)), valid=draws.random(len(traj)) > 0.2,
    )  # fmt: skip


@given(batches())
def test_without_weight_it_is_grpo_bit_for_bit(batch):
    assert g2po_advantage(batch, w=0.0).tobytes() == grpo(batch).tobytes()
    assert g2po_advantage(batch, parts=("ep",)).tobytes() == grpo(batch).tobytes()


@given(batches(), st.randoms(use_true_random=False))
def test_neither_the_order_of_rows_nor_names_of_states_change_a_bit(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    names = {state: f"state {7 - state}" for state in set(batch.anchor.tolist())}
    other = StepBatch(
        batch.task[order], batch.traj[order], batch.t[order], batch.reward[order],
        [names[state] for state in batch.anchor[order]], batch.valid[order],
    )  # fmt: skip
    assert g2po_advantage(other).tobytes() == g2po_advantage(batch)[order].tobytes()
    assert gigpo(other).tobytes() == gigpo(batch)[order].tobytes()


@given(batches())
def test_tasks_do_not_see_each_other(batch):
    whole = g2po_advantage(batch)
    for task in np.unique(batch.task):
        rows = np.flatnonzero(batch.task == task)
        assert g2po_advantage(batch.select(rows)).tobytes() == whole[rows].tobytes()


@given(batches())
def test_sums_are_zero_and_rises_telescope(batch):
    found = g2po_advantage(batch, norm="mean", return_info=True)
    for task in np.unique(batch.task):
        assert found.ec[batch.task == task].sum() == pytest.approx(0, abs=1e-9)
    for node in np.unique(found.node):
        assert found.nc[found.node == node].sum() == pytest.approx(0, abs=1e-9)
    for traj in np.unique(batch.traj):
        rows = np.flatnonzero(batch.traj == traj)
        first = found.value[found.node[rows[np.argmin(batch.t[rows])]]]
        assert found.delta[rows].sum() == pytest.approx(batch.reward[rows].sum() - first, abs=1e-9)


def test_what_cannot_be_compared_is_exactly_zero():
    one = StepBatch([0, 1], [0, 1], [0, 0], [10.0, 0.0], ["a", "b"])
    assert (g2po_advantage(one) == 0).all()
    failed = StepBatch([0] * 4, [0, 0, 1, 1], [0, 1] * 2, [0.0] * 4, list("abab"))
    assert (g2po_advantage(failed) == 0).all()
    won = StepBatch([0] * 3, [0, 0, 1], [0, 1, 0], [0, 10.0, 10.0], list("aba"))
    found = g2po_advantage(won, return_info=True)
    assert (found.ep == 0).all()
    assert np.abs(found.ec).max() > 0


@pytest.mark.parametrize("value", [0.1, 1e-9, 1e9, 1 / 3])
def test_equal_returns_give_zero_and_not_rounding(value):
    batch = StepBatch([0] * 7, range(7), [0] * 7, [value] * 7, list("abcabca"))
    assert (g2po_advantage(batch, parts=("ep", "ec")) == 0).all()


def test_success_says_what_the_end_is_worth():
    shaped = {"task": [0] * 2, "traj": [0, 1], "t": [0, 0], "reward": [4.0, 4.0], "anchor": ["a", "b"]}
    with_flag = g2po_advantage(StepBatch(**shaped, success=[True, False]), return_info=True)
    assert with_flag.next_value.tolist() == [4.0, 0.0]
    assert g2po_advantage(StepBatch(**shaped), return_info=True).next_value.tolist() == [4.0, 4.0]
    given_one = g2po_advantage(StepBatch(**shaped), terminal_value=[7.0, 8.0], return_info=True)
    assert given_one.next_value.tolist() == [7.0, 8.0]
    doubled = g2po_advantage(StepBatch(**shaped), terminal_value=lambda r: 2 * r, return_info=True)
    assert doubled.next_value.tolist() == [8.0, 8.0]


def test_a_truncated_rollout_may_end_with_its_last_states_value():
    batch = StepBatch([0] * 2, [0, 1], [0, 0], [10.0, 0.0], ["a", "a"], truncated=[False, True])
    assert g2po_advantage(batch, return_info=True).next_value.tolist() == [10.0, 0.0]
    found = g2po_advantage(batch, bootstrap=True, return_info=True)
    assert found.next_value.tolist() == [10.0, found.value[0]]


def test_rollouts_may_count_once_in_a_states_value():
    batch = StepBatch([0] * 4, [0, 0, 0, 1], [0, 1, 2, 0], [0, 0, 0, 10.0], list("aaaa"))
    assert node_values(batch).tolist() == [9.5 / 4]
    assert node_values(batch, weighting="trajectories").tolist() == [9.5 / 2]


def test_a_floor_of_the_deviation_keeps_noise_small():
    batch = made(3)
    assert np.abs(g2po_advantage(batch, min_std=1e6)).max() < 1e-4


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    batch = golden()
    other = StepBatch(batch.task, batch.traj, batch.t, torch.tensor([0, 0, 10.0, 0, 0, 0]), batch.anchor)
    found = g2po_advantage(other)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), g2po_advantage(batch), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "names"),
    [({"gamma": 0}, "gamma"), ({"w": -1}, "w must"), ({"lam": 2}, "lam"), ({"parts": ()}, "parts"),
     ({"norm": "max"}, "norm"), ({"episode_stats": "all"}, "episode_stats"), ({"weighting": "x"}, "weighting"),
     ({"terminal_value": lambda r: r[:1]}, "terminal_value"), ({"terminal_value": [np.nan] * 6}, "terminal_value"),
     ({"invalid_penalty": float("nan")}, "invalid_penalty"), ({"min_std": -1}, "min_std")],
)  # fmt: skip
def test_bad_arguments_are_named(options, names):
    with pytest.raises(InputError, match=names):
        g2po_advantage(golden(), **options)


@pytest.mark.filterwarnings("default::UserWarning")
def test_what_is_odd_is_said_once():
    lone = StepBatch([0, 0], [0, 0], [0, 1], [0, 1.0], ["a", "b"])
    with pytest.warns(UserWarning, match="tasks have one|of the steps are") as said:
        g2po_advantage(lone)
    assert sorted(str(one.message)[:20] for one in said) == sorted(["1 of 1 tasks have on", "100% of the steps ar"])
    giant = StepBatch([0] * 6, [0] * 3 + [1] * 3, [0, 1, 2] * 2, [0.0] * 6, list("aaaaab"))
    with pytest.warns(UserWarning, match="83% of the steps are at the largest node"):
        g2po_advantage(giant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        g2po_advantage(golden())


def test_the_variance_bound_promises_only_what_holds():
    assert edge_variance_bound(1.0, 2, 2) == (1.0, True)
    assert edge_variance_bound(1.0, 1, 100).reduces is False
    assert edge_variance_bound(2.0, 4, 8).bound == 0.75
    for arguments in ((-1.0, 1, 1), (1.0, 0, 1), (1.0, 1, 0), (float("inf"), 1, 1), (1.0, 1.5, 2)):
        with pytest.raises(InputError):
            edge_variance_bound(*arguments)


def test_the_variance_of_a_rise_stays_below_the_bound():
    draws = np.random.default_rng(0)
    for n_src, n_dst in ((1, 4), (3, 2), (8, 8)):
        source = draws.normal(size=(20_000, n_src)).mean(axis=1)
        target = draws.normal(size=(20_000, n_dst)).mean(axis=1)
        assert np.var(target - source) == pytest.approx(edge_variance_bound(1.0, n_src, n_dst).bound, rel=0.05)


def test_a_nodes_value_varies_as_its_visits_say():
    """Rollouts of one step from two nodes, gamma 1: the value of a node of n visits varies by sigma^2 / n."""
    draws, sizes, found = np.random.default_rng(1), (1, 3, 12), []
    for _ in range(3_000):
        reward = draws.normal(size=sum(sizes))
        count = len(reward)
        batch = StepBatch([0] * count, range(count), [0] * count, reward, np.repeat(np.arange(3), sizes))
        found.append(node_values(batch, gamma=1.0))
    np.testing.assert_allclose(np.var(found, axis=0), 1 / np.array(sizes), rtol=0.12)


def test_no_variance_is_saved_where_all_who_leave_a_node_arrive_at_the_next():
    """The caveat: values of a forced edge differ by the discount only, whatever the number of visits."""
    reward = np.random.default_rng(2).normal(size=6)
    rows = np.stack([np.zeros(6), reward], axis=1).reshape(-1)
    batch = StepBatch([0] * 12, np.repeat(np.arange(6), 2), [0, 1] * 6, rows, list("ab") * 6)
    first, second = node_values(batch, gamma=0.9)
    assert first == pytest.approx(0.9 * second, rel=1e-12)
