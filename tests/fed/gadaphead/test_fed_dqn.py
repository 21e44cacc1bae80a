"""Q-learning clients on a corridor whose values are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed.gadaphead.dqn import (
    Batch,
    Centralised,
    DqnClient,
    DqnSettings,
    QLearner,
    Replay,
    Runner,
    check_alike,
    evaluate,
    evaluate_head,
    exploration_rates,
    random_policy,
)
from steelyard.fed.gadaphead.features import Network
from steelyard.fed.gadaphead.rounds import federated_rounds
from steelyard.fed.gadaphead.strategies import FedAvg, GAdapHead, Local, SharedTrunk

QUICK = DqnSettings(
    hidden=(16, 12), steps=40, batch=8, warmup=8, exploration=60, buffer=100, target_every=20, discount=0.9, horizon=2
)


class Corridor:
    """Five cells; action 0 goes back, 1 goes on (or the other way round); the last cell ends with reward 1."""

    inputs, active = 5, 1

    def __init__(self, flip: bool = False, actions: int = 2, limit: int = 20, dense: bool = False) -> None:
        self.flip, self.actions, self.limit, self.dense = flip, actions, limit, dense
        self.place = self.time = 0

    def fresh(self) -> "Corridor":
        return Corridor(self.flip, self.actions, self.limit, self.dense)

    def reset(self, generator: np.random.Generator) -> np.ndarray:
        self.place, self.time = int(generator.integers(0, 3)), 0
        return self._seen()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        self.place = max(self.place + (1 if (action == 1) != self.flip else -1), 0)
        self.time += 1
        return self._seen(), float(self.place == 4), self.place == 4, self.time >= self.limit

    def state(self) -> int:
        return self.place

    def _seen(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.place] if self.dense else np.array([self.place])


def _run(strategy, settings=QUICK, rounds=3, seed=0, envs=None):
    clients = [DqnClient(env, settings) for env in envs or (Corridor(), Corridor(True))]
    start = clients[0].initial(np.random.default_rng(seed))
    return clients, federated_rounds(clients, rounds, strategy, seed, initial=start)


@pytest.mark.parametrize("dense", [False, True])
def test_a_client_learns_the_corridor(dense: bool) -> None:
    env = Corridor(dense=dense)
    clients, history = _run(Local(), DqnSettings(**{**vars(QUICK), "steps": 300}), 4, envs=[env])
    final = history.final[0]
    seen = evaluate_head(env, final.trunk, final.head, QUICK.hidden, np.random.default_rng(0), 5)
    assert seen.success_rate == 1.0
    assert seen.mean_return == 1.0
    assert len(seen.returns) == 5
    assert clients[0].n_steps == 1200
    network = clients[0].learner.network
    best = network.values(np.arange(4)[:, None]).max(axis=1)
    np.testing.assert_allclose(best, 0.9 ** np.arange(3, -1, -1), atol=0.15)  # discount ^ (steps to go - 1)


@pytest.mark.parametrize("strategy", [Local, FedAvg, SharedTrunk, GAdapHead])
def test_equal_seeds_give_equal_results(strategy) -> None:
    first, second = _run(strategy())[1], _run(strategy())[1]
    assert first.to_json() == second.to_json()
    for client in first.final:
        np.testing.assert_array_equal(first.final[client].head, second.final[client].head)
    assert _run(strategy(), seed=1)[1].to_json() != first.to_json()


def test_an_update_holds_what_the_server_needs() -> None:
    client = DqnClient(Corridor(), QUICK)
    trunk, head = client.initial(np.random.default_rng(0))
    update = client(trunk, head, 1, np.random.default_rng(1))
    np.testing.assert_allclose(update.update, update.head - head)
    assert update.variance > 0
    assert update.n_steps == 40
    assert set(update.metrics) == {"td_error"}
    assert update.feature_second_moment.shape == (13, 13)
    assert update.feature_second_moment[-1, -1] == pytest.approx(1.0)  # the constant feature


def test_the_variance_of_a_head_of_the_whole_replay_is_smaller_by_its_share() -> None:
    variances = []
    for whole in (False, True):
        client = DqnClient(Corridor(), DqnSettings(**{**vars(QUICK), "refit_samples": 10, "whole_replay": whole}))
        trunk, head = client.initial(np.random.default_rng(0))
        variances.append(client(trunk, head, 1, np.random.default_rng(1)).variance)
        size = client.runner.replay.size
    assert variances[1] == pytest.approx(variances[0] * 10 / size)


def test_receiving_resets_the_head_and_the_target() -> None:
    client = DqnClient(Corridor(), QUICK)
    trunk, head = client.initial(np.random.default_rng(0))
    client(trunk, head, 1, np.random.default_rng(1))
    learner = client.learner
    trunk_moments = learner.adam.first[learner.network.part("trunk")].copy()
    learner.receive(trunk, head + 1)
    np.testing.assert_array_equal(learner.target.flat, learner.network.flat)
    np.testing.assert_array_equal(learner.target.head, head + 1)
    assert not learner.adam.first[learner.network.part("head")].any()
    np.testing.assert_array_equal(learner.adam.first[learner.network.part("trunk")], trunk_moments)


def test_alternating_moves_one_part_at_a_time() -> None:
    def moved(share: float) -> tuple[bool, bool]:
        client = DqnClient(Corridor(), DqnSettings(**{**vars(QUICK), "alternate": True, "head_share": share}))
        trunk, head = client.initial(np.random.default_rng(0))
        update = client(trunk, head, 1, np.random.default_rng(1))
        return any((update.trunk[name] != trunk[name]).any() for name in trunk), bool((update.head != head).any())

    assert moved(1.0) == (False, True)
    assert moved(0.0) == (True, False)
    assert moved(0.5) == (True, True)


def test_the_proximal_term_is_added_to_the_gradient_of_all_parameters() -> None:
    batch = Batch(np.arange(4)[:, None], np.array([0, 1, 0, 1]), np.ones(4, np.float32), np.arange(4)[:, None],
                  np.zeros(4, np.float32))  # fmt: skip
    gradients = []
    for mu in (0.0, 0.5):
        learner = QLearner(5, 2, DqnSettings(**{**vars(QUICK), "prox_mu": mu}))
        start = learner.network.initialise(np.random.default_rng(0))
        learner.receive(start.trunk(), start.head.copy())
        learner.network.flat += 0.25  # now away from what the server sent
        learner.update(batch)
        gradients.append(learner.gradient.copy())
    np.testing.assert_allclose(gradients[1] - gradients[0], 0.5 * 0.25, rtol=1e-4)


@given(st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_targets_sum_the_rewards_up_to_the_horizon(horizon: int, length: int, ends: bool) -> None:
    class Line(Corridor):
        def step(self, action):
            self.time += 1
            return np.array([min(self.time, 4)]), float(self.time), ends and self.time == length, self.time == length

    replay = Replay(50, np.array([0]))
    runner = Runner(Line(), replay, 0.5, horizon)
    network, generator = Network(5, (3,), 2), np.random.default_rng(0)
    for _ in range(length):
        runner.step(network, True, 1, generator)
    assert replay.size == length
    stored = replay.take(np.arange(length))
    for start in range(length):
        reach = min(horizon, length - start)
        assert stored.rewards[start] == pytest.approx(sum(0.5**i * (start + 1 + i) for i in range(reach)))
        over = ends and start + reach == length
        assert stored.discounts[start] == pytest.approx(0.0 if over else 0.5**reach)


def test_the_replay_forgets_the_oldest() -> None:
    replay = Replay(3, np.array([0]))
    for value in range(5):
        replay.add(np.array([value]), value, 0.0, np.array([0]), 1.0)
    assert replay.size == 3
    assert sorted(replay.take(np.arange(3)).actions) == [2, 3, 4]
    assert set(replay.sample(50, np.random.default_rng(0)).actions) <= {2, 3, 4}


def test_an_update_lowers_the_error_on_its_batch() -> None:
    learner = QLearner(5, 2, QUICK)
    learner.network.initialise(np.random.default_rng(0))
    batch = Batch(np.arange(4)[:, None], np.array([0, 1, 0, 1]), np.ones(4, np.float32), np.arange(4)[:, None],
                  np.zeros(4, np.float32))  # fmt: skip
    errors = [learner.update(batch) for _ in range(300)]
    assert errors[-1] < 0.1 * errors[0]


@given(st.integers(0, 500), st.integers(1, 50))
def test_exploration_falls_to_its_floor(done: int, count: int) -> None:
    rates = exploration_rates(QUICK, done, count)
    assert rates.shape == (count,)
    assert (np.diff(rates) <= 0).all()
    assert rates.min() >= QUICK.epsilon
    assert rates.max() <= 1.0
    assert done < 60 or (rates == QUICK.epsilon).all()


def test_the_central_learner_is_told_the_task() -> None:
    settings = DqnSettings(**{**vars(QUICK), "steps": 300})
    for dense in (False, True):
        central = Centralised([Corridor(dense=dense), Corridor(True, dense=dense)], settings, np.random.default_rng(0))
        generator = np.random.default_rng(1)
        for _ in range(4):
            central.advance(generator)
        assert central.n_steps == 1200
        assert central.learner.network.inputs == 7
        assert [central.evaluate(task, np.random.default_rng(2), 5).success_rate for task in (0, 1)] == [1.0, 1.0]


def test_evaluation_leaves_a_running_episode_alone_and_cuts_loops() -> None:
    env, network = Corridor(limit=10**9), Network(5, (3,), 2)  # all values equal: goes back for ever
    env.reset(np.random.default_rng(0))
    env.step(1)
    place = env.place
    seen = evaluate(env, network, np.random.default_rng(0), 3)
    assert seen == (0.0, 0.0, (0.0, 0.0, 0.0))
    assert env.place == place
    assert env.time == 1


def test_the_floor_acts_at_random() -> None:
    seen = random_policy(Corridor(), np.random.default_rng(0), 30)
    assert 0 < seen.success_rate < 1
    assert seen.mean_return == seen.success_rate


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="environment 1 has 3 actions and environment 0 has 2"):
        check_alike([Corridor(), Corridor(actions=3)])
    with pytest.raises(InputError, match="at least one environment"):
        check_alike([])
    client = DqnClient(Corridor(), QUICK)
    trunk, head = client.initial(np.random.default_rng(0))
    with pytest.raises(InputError, match="head must have shape"):
        client(trunk, head[:-1], 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="not finite"):
        client(trunk, np.full_like(head, np.nan), 1, np.random.default_rng(0))
    for name, value in (("steps", 0), ("discount", 0.0), ("epsilon", 2.0), ("head_share", -1.0), ("prox_mu", -1.0)):
        with pytest.raises(InputError, match=name):
            DqnSettings(**{name: value})
