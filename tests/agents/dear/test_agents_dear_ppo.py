"""PPO's parts against closed forms, the reward against counts by hand, and training against a known optimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.dear.controller import DEARController
from steelyard.agents.dear.episodes import KEEP, begin, settle, vote
from steelyard.agents.dear.policies import KeepAll
from steelyard.agents.dear.ppo import gae, stopped
from steelyard.agents.dear.reward import Reward
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.settings import PPOSettings
from steelyard.agents.dear.simulator import SimAgents
from steelyard.rng import generator


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 4))
def test_gae_with_decay_one_is_the_discounted_return_minus_the_value(seed, gamma, rounds):
    random = generator("test", "dear/gae", seed)
    rewards, values = random.normal(size=(2, rounds, 3, 2))
    length = random.integers(1, rounds + 1, size=3)  # each debate ends at a round of its own
    ends = [length == t + 1 for t in range(rounds)]
    found = gae(list(rewards), list(values), ends, gamma, 1.0)
    for b in range(3):
        for t in range(length[b]):
            later = sum(gamma ** (s - t) * rewards[s, b] for s in range(t, length[b]))
            np.testing.assert_allclose(found[t][b], later - values[t, b], atol=1e-9)


@given(st.integers(0, 10_000))
def test_gae_with_decay_zero_is_one_step(seed):
    random = generator("test", "dear/gae0", seed)
    rewards, values = random.normal(size=(2, 2, 3, 2))
    ends = [np.array([False, True, False]), np.array([True, True, True])]
    found = gae(list(rewards), list(values), ends, 0.9, 0.0)
    goes_on = np.array([1.0, 0.0, 1.0])[:, None]
    np.testing.assert_allclose(found[0], rewards[0] + 0.9 * values[1] * goes_on - values[0])
    np.testing.assert_allclose(found[1], rewards[1] - values[1])


def moved(before, after, truth=0, options=3):
    """Return the states before and after a round in which all spoke and read nobody."""
    random = generator("test", "dear/reward", 0)
    start = begin(np.array([before]), np.array([truth]), options, random, tie=np.array([[2, 0, 1]]))
    agents = len(before)
    return start, settle(start, np.array([after]), np.zeros((1, agents, agents), bool), np.ones((1, agents), int))


def test_a_tied_vote_is_paid_as_it_is_reported():
    """Two against two: those who stood firm win the vote, though the tie order prefers the others."""
    before, after = moved([0, 0, 2, 2], [0, 0, 1, 1])
    assert vote(after).tolist() == [0]
    assert after.tie[0, 1] < after.tie[0, 0]
    found = Reward(individual=0.0, shaping=0.0)(before, after, np.array([True]), 0.0)
    np.testing.assert_array_equal(found, np.ones((1, 4)))


@given(st.integers(0, 10_000))
def test_difference_credit_is_the_vote_less_the_vote_without_the_change(seed):
    random = generator("test", "dear/difference", seed)
    sim, states = SimAgents(4, 3), []
    states.append(sim.start(20, random))
    for _ in range(2):
        reads = (random.random((20, 4, 4)) < 0.5) & ~np.eye(4, dtype=bool)
        states.append(sim.advance(states[-1], reads, random.integers(4, size=(20, 4)), generator=random))
    before, after = states[-2:]
    found = Reward(individual=0.0, shaping=0.0, credit="difference")(before, after, np.ones(20, dtype=bool), 0.0)
    for i in range(4):
        answers = after.answers.copy()
        answers[:, i] = before.answers[:, i]
        other = replace(after, answers=answers, history=(*after.history[:-1], answers))
        expected = (vote(after) == after.truth).astype(float) - (vote(other) == after.truth)
        np.testing.assert_array_equal(found[:, i], expected)


def test_team_reward_by_hand():
    before, after = moved([0, 1, 1], [1, 0, 0])
    ended = np.array([True])
    found = Reward()(before, after, ended, 0.02)
    team = 1.0 + 0.3 * 2 / 3
    np.testing.assert_allclose(found, [[team - 0.5 - 0.02, team + 0.5 - 0.02, team + 0.5 - 0.02]])
    np.testing.assert_allclose(Reward()(before, after, ~ended, 0.02), [[-0.52, 0.48, 0.48]])


def test_difference_reward_by_hand():
    before, after = moved([0, 1, 1], [1, 0, 0])
    found = Reward(shaping=0.0, credit="difference")(before, after, np.array([True]), 0.0)
    # The vote is right. Without agent 0's move it is right too; without agent 1's, answers are 1, 1, 0: wrong.
    np.testing.assert_allclose(found, [[-0.1, 1.1, 1.1]])


@given(st.integers(0, 10_000))
def test_an_agent_that_did_not_move_gets_no_credit(seed):
    random = generator("test", "dear/credit", seed)
    before, after = random.integers(3, size=(2, 5))
    start, end = moved(before.tolist(), after.tolist(), int(random.integers(3)))
    found = Reward(credit="difference")(start, end, np.array([True]), 0.0)
    assert (found[0][before == after] == 0).all()


def test_shaping_telescopes():
    first, second = moved([0, 1, 1], [1, 0, 0])
    third = settle(second, np.array([[0, 0, 1]]), np.zeros((1, 3, 3), bool), np.ones((1, 3), int))
    plain = Reward(vote=0.0, individual=0.0)
    ended = np.array([False])
    total = plain(first, second, ended, 0.0) + plain(second, third, ended, 0.0)
    np.testing.assert_allclose(total, 0.5 * ((third.answers == 0).astype(float) - (first.answers == 0)))


def test_a_unanimous_debate_is_stopped_and_not_trained_on():
    start, _ = moved([1, 1, 1], [1, 1, 1])
    assert not stopped(start, "unanimous").active.any()
    assert stopped(start, "never").active.all()


@pytest.mark.parametrize("credit", ["team", "difference"])
def test_a_high_price_teaches_silence(credit):
    settings = PPOSettings(batch=128, learning_rate=3e-3)
    made = DEARController(hidden=(16, 16), settings=settings, reward=Reward(credit=credit))
    made.fit(SimAgents(), episodes=3_000, lam=2.0)
    silent = rollout(SimAgents(), made, batch=500, generator=generator("test", "dear/silent", 0))
    assert silent.cost.mean() == 5.0
    assert made.history[-1].cost < made.history[0].cost


def test_training_raises_what_is_paid():
    """Agents of which the reader always gains: one is always right, the others never, and arguments decide."""
    backend = SimAgents(n_agents=3, skills=[-9.0, -9.0, 9.0], conformity=0.0)
    settings = PPOSettings(batch=256, learning_rate=3e-3)
    made = DEARController(hidden=(16, 16), settings=settings, identity=True).fit(backend, episodes=8_000, lam=0.001)
    outcome = rollout(backend, made, batch=1_000, generator=generator("test", "dear/gain", 0)).summary()
    silent = rollout(backend, KeepAll(), batch=1_000, generator=generator("test", "dear/gain", 0)).summary()
    assert outcome["vote_accuracy"] > silent["vote_accuracy"] + 0.05
    assert outcome["individual_accuracy"] > silent["individual_accuracy"] + 0.05


def test_weights_move_and_the_rate_falls():
    made = DEARController(hidden=(8, 8), settings=PPOSettings(batch=64, anneal=False)).fit(SimAgents(), episodes=64)
    fallen = DEARController(hidden=(8, 8), settings=PPOSettings(batch=64)).fit(SimAgents(), episodes=128)
    assert all(torch.isfinite(weight).all() for weight in made._policy.state_dict().values())
    assert len(fallen.history) == 2
    assert KEEP == 0
