"""Strategies: what each does to trunk and heads, exact agreements between them, odd clients, state."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed import AdaptiveMix, Clustered, FedAvg, GAdapHead, Local, SharedTrunk, UpdateCosine, mix_heads
from steelyard.fed.gadaphead.rounds import Broadcast, ClientUpdate, Strategy
from steelyard.fed.gadaphead.strategies import average

STRATEGIES = [Local, FedAvg, SharedTrunk, Clustered, GAdapHead]
seeds = st.integers(0, 10_000)
A, B = np.array([1.0, 0.0, 0.1]), np.array([0.0, 1.0, -0.1])


def start(value=0.0, width=3):
    return Broadcast({"w": np.zeros((2, 2)), "n": np.zeros(2)}, np.full(width, value))


def updates_of(seed, clients=6, dtype=np.float64, steps=None, width=3):
    generator = np.random.default_rng(seed)
    found = {}
    for client in range(clients):
        trunk = {name: generator.normal(size=values.shape).astype(dtype) for name, values in start().trunk.items()}
        head, moved = generator.normal(size=(2, width)).astype(dtype)
        count = int(generator.integers(1, 100)) if steps is None else steps
        found[client] = ClientUpdate(trunk, head, moved, float(generator.uniform(0.01, 0.5)), count)
    return found


def begun(strategy, clients=6):
    strategy.begin({client: start(float(client)) for client in range(clients)})
    return strategy


def assert_same(first, second):
    assert list(first) == list(second)
    for client, sent in first.items():
        assert sent.head.dtype == second[client].head.dtype
        assert sent.head.tobytes() == second[client].head.tobytes()
        for name, values in sent.trunk.items():
            assert values.tobytes() == second[client].trunk[name].tobytes()


def test_the_protocol_is_met():
    for strategy in STRATEGIES:
        for name, method in inspect.getmembers(Strategy, inspect.isfunction):
            if not name.startswith("_"):
                assert list(inspect.signature(getattr(strategy, name)).parameters) == list(
                    inspect.signature(method).parameters
                )


@given(seeds)
def test_averages(seed):
    updates = updates_of(seed)
    weights = np.array([update.n_steps for update in updates.values()], dtype=float)
    trunk = sum(w * u.trunk["w"] for w, u in zip(weights, updates.values(), strict=True)) / weights.sum()
    head = sum(w * u.head for w, u in zip(weights, updates.values(), strict=True)) / weights.sum()
    for sent in begun(FedAvg()).aggregate(1, updates).values():
        np.testing.assert_allclose(sent.trunk["w"], trunk, atol=1e-12)
        np.testing.assert_allclose(sent.head, head, atol=1e-12)
    for client, sent in begun(SharedTrunk()).aggregate(1, updates).items():
        np.testing.assert_allclose(sent.trunk["w"], trunk, atol=1e-12)
        assert sent.head is updates[client].head
    for client, sent in begun(Local()).aggregate(1, updates).items():
        assert sent == (updates[client].trunk, updates[client].head)


def test_average_of_odd_arrays():
    same = {client: np.array([0.1, -0.0, 1e300]) for client in range(7)}
    assert (average(same, dict.fromkeys(range(7), 3.0)) == same[0]).all()
    assert average({4: same[0]}, {4: 3.0}).tobytes() == same[0].tobytes()
    counts = average({0: np.array([1, 10]), 1: np.array([2, 20])}, {0: 1.0, 1: 3.0})
    assert (counts.dtype, counts.tolist()) == (np.int64, [2, 18])
    assert average({0: np.array([1.0]), 1: np.array([3.0])}, {0: 0.0, 1: 0.0}).tolist() == [2.0]
    assert average({0: np.ones(2, np.float32), 1: np.zeros(2, np.float32)}, {0: 1.0, 1: 1.0}).dtype == np.float32


@given(seeds, st.sampled_from([np.float32, np.float64]))
def test_no_strength_is_a_shared_trunk_bit_for_bit(seed, dtype):
    adaptive, shared = begun(GAdapHead(mixing=AdaptiveMix(warmup=0, strength=0.0))), begun(SharedTrunk())
    for number in (1, 2, 3):
        updates = updates_of(seed + number, dtype=dtype)
        assert_same(adaptive.aggregate(number, updates), shared.aggregate(number, updates))
    assert set(adaptive.lam.values()) == {0.0}
    warm = begun(GAdapHead(mixing=AdaptiveMix(warmup=1)))
    updates = updates_of(seed, dtype=dtype)
    assert_same(warm.aggregate(1, updates), begun(SharedTrunk()).aggregate(1, updates))


@given(seeds)
def test_full_strength_in_one_group_with_oneself_is_fedavg(seed):
    updates = updates_of(seed, steps=20)
    one = {client: ClientUpdate(u.trunk, u.head, A, u.variance, 20) for client, u in updates.items()}
    mixing = AdaptiveMix(warmup=0, strength=1.0, leave_one_out=False)
    found = begun(GAdapHead(mixing=mixing)).aggregate(1, one)
    clustered = begun(Clustered(linkage="average")).aggregate(1, one)
    for client, sent in begun(FedAvg()).aggregate(1, updates).items():
        np.testing.assert_allclose(found[client].head, sent.head, atol=1e-14)
        assert found[client].trunk["w"].tobytes() == sent.trunk["w"].tobytes()
        assert clustered[client].head.tobytes() == found[client].head.tobytes()


@given(seeds)
def test_one_round_is_mix_heads(seed):
    updates = updates_of(seed)
    strategy = begun(GAdapHead(mixing=AdaptiveMix(warmup=0)))
    sent = strategy.aggregate(1, updates)
    heads, variances = [u.head for u in updates.values()], [u.variance for u in updates.values()]
    expected = mix_heads(heads, list(strategy.groups.values()), variances, mode="debiased")
    assert np.stack([sent[client].head for client in range(6)]).tobytes() == expected.heads.tobytes()
    assert list(strategy.lam.values()) == expected.lam.tolist()
    assert list(strategy.mismatch.values()) == expected.mismatch.tolist()


@given(seeds, st.floats(-1e100, 1e100))
def test_no_head_of_another_group_leaks(seed, value):
    """Clients 2 and 3 are a group of their own; whatever their heads, clients 0 and 1 get the same bytes."""
    found = []
    for foreign in (1.0, value):
        strategy = begun(GAdapHead(UpdateCosine(threshold=0.5), AdaptiveMix(warmup=0)), 4)
        for number in (1, 2):
            updates = updates_of(seed + number, 4)
            sent = strategy.aggregate(
                number,
                {
                    c: ClientUpdate(u.trunk, u.head if c < 2 else u.head * foreign, (A, B)[c // 2], u.variance, 5)
                    for c, u in updates.items()
                },
            )
        found.append(np.stack([sent[0].head, sent[1].head]).tobytes())
        assert list(strategy.groups.values()) == [0, 0, 1, 1]
    assert found[0] == found[1]


@given(seeds, st.permutations(range(6)))
def test_order_of_arrival_does_not_matter(seed, order):
    updates = updates_of(seed)
    for strategy in STRATEGIES:
        first = begun(strategy()).aggregate(1, updates)
        assert_same(first, begun(strategy()).aggregate(1, {client: updates[client] for client in order}))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_reported_changes_nothing(strategy):
    own = begun(strategy(), 2)
    sent = own.aggregate(1, {})
    assert sent[1].head.tolist() == [1, 1, 1]
    assert sent[1].trunk["w"].tolist() == [[0, 0], [0, 0]]


def test_absent_clients_count_less_each_round():
    strategy = begun(GAdapHead(mixing=AdaptiveMix(warmup=0, strength=1.0, staleness=0.5)), 3)
    heads = {0: np.zeros(3), 1: np.ones(3), 2: np.full(3, 4.0)}
    strategy.aggregate(1, {c: ClientUpdate(start().trunk, head, A, 0.1, 1) for c, head in heads.items()})
    for number in (2, 3):
        sent = strategy.aggregate(number, {c: ClientUpdate(start().trunk, heads[c], A, 0.1, 1) for c in (0, 1)})
    np.testing.assert_allclose(sent[0].head, (1 + 0.25 * 4) / 1.25)
    assert sent[2].head.tolist() == [0.5, 0.5, 0.5]  # what it was sent when it last reported
    assert sorted(strategy.lam) == [0, 1]
    assert sorted(strategy.groups) == [0, 1, 2]


def test_clients_that_come_later():
    strategy = begun(GAdapHead(), 2)
    strategy.aggregate(1, {0: ClientUpdate(start().trunk, A, A, 0.1, 1)})
    sent = strategy.aggregate(2, {7: ClientUpdate(start().trunk, B, B, 0.1, 1)})
    assert sorted(sent) == [0, 1, 7]
    assert sent[7].head.tolist() == B.tolist()
    with pytest.raises(InputError, match="client 9 sent no update and is not known"):
        strategy.aggregate(3, {9: ClientUpdate(start().trunk, A, None, 0.1, 1)})


def test_the_server_takes_the_difference_itself():
    strategy = begun(GAdapHead(), 2)
    strategy.aggregate(1, {c: ClientUpdate(start().trunk, float(c) + A, None, 0.1, 1) for c in (0, 1)})
    assert strategy.groups == {0: 0, 1: 0}  # both have moved by A


def test_heads_as_the_signal():
    strategy = begun(GAdapHead(UpdateCosine(0.6, signal="head")), 3)
    moved = {0: A, 1: A, 2: A}
    heads = {0: A, 1: 2 * A, 2: B}
    strategy.aggregate(1, {c: ClientUpdate(start().trunk, heads[c], moved[c], 0.1, 1) for c in range(3)})
    assert strategy.groups == {0: 0, 1: 0, 2: 1}


def test_heads_of_different_shapes():
    starts = {c: start(1.0, 3 if c < 2 else 4) for c in range(4)}
    updates = {c: ClientUpdate(s.trunk, s.head + c, np.ones(len(s.head)), 0.5, 1) for c, s in starts.items()}
    strategy = GAdapHead(mixing=AdaptiveMix(warmup=0, strength=1.0))
    strategy.begin(starts)
    sent = strategy.aggregate(1, updates)
    assert strategy.groups == {0: 0, 1: 0, 2: 1, 3: 1}
    assert [sent[c].head.tolist() for c in range(4)] == [[2, 2, 2], [1, 1, 1], [4, 4, 4, 4], [3, 3, 3, 3]]
    average_all = FedAvg()
    average_all.begin(starts)
    with pytest.raises(InputError, match=r"\(3,\) \(client 1\), \(4,\) \(client 3\); use SharedTrunk or GAdapHead"):
        average_all.aggregate(1, updates)


def test_trunks_that_do_not_fit():
    updates = updates_of(0, 2)
    updates[1] = ClientUpdate({**updates[1].trunk, "w": np.zeros(3)}, updates[1].head, A, 0.1, 1)
    with pytest.raises(InputError, match="trunks of clients 0 and 1 differ in name or shape at 'w'"):
        begun(SharedTrunk(), 2).aggregate(1, updates)
    updates[1] = ClientUpdate({"v": np.zeros(3)}, updates[1].head, A, 0.1, 1)
    with pytest.raises(InputError, match="at 'n'"):
        begun(SharedTrunk(), 2).aggregate(1, updates)


def test_different_first_trunks_are_warned_of():
    other = Broadcast({"w": np.ones((2, 2)), "n": np.zeros(2)}, np.zeros(3))
    with pytest.warns(RuntimeWarning, match="clients start from different trunks"):
        GAdapHead().begin({0: start(), 1: other})


def test_a_trunk_for_each_group():
    strategy = begun(GAdapHead(UpdateCosine(threshold=0.5), trunk="group"), 5)
    updates = {
        c: ClientUpdate({"w": np.full((2, 2), float(c)), "n": np.zeros(2)}, A, (A, B)[c // 2], 0.1, 1) for c in range(4)
    }
    sent = strategy.aggregate(1, updates)
    assert [sent[c].trunk["w"][0, 0] for c in range(5)] == [0.5, 0.5, 2.5, 2.5, 1.5]  # the last has no group yet
    sent = strategy.aggregate(2, {c: updates[c] for c in (1, 2)})
    assert [sent[c].trunk["w"][0, 0] for c in range(4)] == [1, 1, 2, 2]
    sent = strategy.aggregate(3, {0: updates[0]})
    assert [sent[c].trunk["w"][0, 0] for c in range(4)] == [0, 0, 2, 2]  # nobody of the other group: as it was
    with pytest.raises(InputError, match="trunk must be 'all' or 'group'"):
        GAdapHead(trunk="none")


@pytest.mark.parametrize("make", [*STRATEGIES, lambda: GAdapHead(trunk="group")])
def test_state(make):
    first, second = begun(make()), make()
    for number in (1, 2, 3):
        first.aggregate(number, {c: u for c, u in updates_of(number).items() if c % 3 != number % 3})
    second.load_state_dict({name: np.array(values) for name, values in first.state_dict().items()})
    for number in (4, 5):
        own = {c: u for c, u in updates_of(number).items() if c != number}
        assert_same(first.aggregate(number, own), second.aggregate(number, own))
        assert (first.groups, first.lam) == (second.groups, second.lam)


def test_moments_are_kept():
    moment, updates = np.diag([4.0, 1.0, 1.0]), updates_of(0, 3)
    with_moment = {c: ClientUpdate(u.trunk, u.head, A, 0.05, 1, moment) for c, u in updates.items()}
    first, second = (begun(GAdapHead(mixing=AdaptiveMix(warmup=0)), 3) for _ in range(2))
    first.aggregate(1, with_moment)
    second.load_state_dict(first.state_dict())
    assert_same(first.aggregate(2, {0: with_moment[0]}), second.aggregate(2, {0: with_moment[0]}))
    plain = begun(GAdapHead(mixing=AdaptiveMix(warmup=0, sigma=False)), 3)
    plain.aggregate(1, with_moment)
    assert plain.lam[0] > first.lam[0]
    assert "second_moment" in first.uploads
    assert "second_moment" not in plain.uploads


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_broken_state(strategy):
    with pytest.raises(InputError, match=f"state of {strategy.__name__} cannot be read"):
        strategy().load_state_dict({})
    if issubclass(strategy, GAdapHead):
        state = begun(strategy()).state_dict()
        del state["seen"]
        with pytest.raises(InputError, match="cannot be read"):
            strategy().load_state_dict(state)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"last/1": np.full(3, np.nan)}, "a head is not finite"),
        ({"last/1": np.zeros(4)}, "its parts are not of the same clients"),
        ({"mixing/clients": np.array([0, 2])}, "its parts are not of the same clients"),
        ({"moment/1": -np.eye(3)}, "sigma must be positive semidefinite"),
        ({"mixing/variances": np.array([1.0, np.inf])}, "a variance is negative or not finite"),
        ({"grouping/clients": np.zeros(3)}, "state of GAdapHead cannot be read"),
    ],
)
def test_a_state_whose_parts_do_not_fit(odd, said):
    strategy = begun(GAdapHead(), 2)
    strategy.aggregate(1, updates_of(0, 2))
    with pytest.raises(InputError, match=said):
        GAdapHead().load_state_dict({**strategy.state_dict(), **odd})
