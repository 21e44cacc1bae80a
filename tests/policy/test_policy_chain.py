"""The chain teaches by its exact values: features of one's own, exact advantages, values by counting every way."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.policy import KeyDoorChain, LogLinearPolicy, collect, evaluate, generate_games, grpo, train_household
from steelyard.policy.chain import Wanderer, commands, exact_values, follow, optimal_steps

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LENGTH, LIMIT, GAMMA = 4, 16, 0.95
STATES = [(place, key) for place in range(LENGTH) for key in (False, True)]


class ChainFeatures:
    """What a policy of the chain sees: the command with the room and with whether it has taken the key."""

    def begin(self, observation, info):
        return {"key": False}

    def keys(self, memory, observation, admissible):
        return [(command, observation, memory["key"]) for command in admissible]

    def indicators(self, key):
        command, observation, has_key = key
        return ((0, command), (1, command, has_key), (2, command, observation, has_key))

    def observe(self, memory, command, observation):
        memory["key"] = memory["key"] or command == "take key"


def behaviour_of(policy):
    """The policy's probabilities as a function of the state, from its own softmax."""

    def behaviour(state, offered):
        keys = [(command, f"You are in room {state[0]}.", state[1]) for command in offered]
        return policy._softmax.probabilities(policy.weights, [policy._softmax.rows(keys)])[0]

    return behaviour


def table(shares):
    """A behaviour from a list of numbers, one for each state and command."""
    numbers = iter(itertools.cycle(shares))
    fixed = {state: np.array([next(numbers) for _ in commands(state, LENGTH)]) for state in STATES}
    return lambda state, offered: fixed[state] / fixed[state].sum()


def counted(behaviour, state, horizon):
    """The value of a state by going through every sequence of commands."""
    total = 0.0
    paths = [(state, 1.0)]
    for step in range(1, horizon + 1):
        longer = []
        for here, chance in paths:
            offered = commands(here, LENGTH)
            for command, share in zip(offered, behaviour(here, offered), strict=True):
                after = follow(here, command, LENGTH)
                if after is None:
                    total += chance * share * GAMMA**step
                else:
                    longer.append((after, chance * share))
        paths = longer
    return total


@given(st.lists(st.floats(0.05, 1), min_size=5, max_size=17), st.sampled_from(STATES))
def test_values_are_those_of_counting_every_way(shares, state):
    behaviour = table(shares)
    exact = exact_values(behaviour, gamma=GAMMA, horizon=6, length=LENGTH)
    assert exact.value[6][state] == pytest.approx(counted(behaviour, state, 6), abs=1e-12)


@given(st.lists(st.floats(0.05, 1), min_size=5, max_size=17))
def test_values_without_a_limit_solve_bellmans_equations(shares):
    behaviour = table(shares)
    exact = exact_values(behaviour, gamma=GAMMA, horizon=450, length=LENGTH).value[450]
    moves, wins = np.zeros((len(STATES), len(STATES))), np.zeros(len(STATES))
    for row, state in enumerate(STATES):
        offered = commands(state, LENGTH)
        for command, share in zip(offered, behaviour(state, offered), strict=True):
            after = follow(state, command, LENGTH)
            if after is None:
                wins[row] += share
            else:
                moves[row, STATES.index(after)] += share
    solved = np.linalg.solve(np.eye(len(STATES)) - GAMMA * moves, GAMMA * wins)
    np.testing.assert_allclose([exact[state] for state in STATES], solved, atol=1e-9)


@given(st.lists(st.floats(0.05, 1), min_size=5, max_size=17), st.integers(1, 12))
def test_advantages_average_to_nothing_and_nobody_beats_the_best(shares, horizon):
    behaviour = table(shares)
    exact = exact_values(behaviour, gamma=GAMMA, horizon=horizon, length=LENGTH)
    best = exact_values(Wanderer(1.0, LENGTH).probabilities, gamma=GAMMA, horizon=horizon, length=LENGTH)
    for state in STATES:
        offered = commands(state, LENGTH)
        mean = np.dot(behaviour(state, offered), [exact.advantage[horizon][state, command] for command in offered])
        assert mean == pytest.approx(0, abs=1e-12)
        assert exact.value[horizon][state] <= best.value[horizon][state] + 1e-12
        reached = optimal_steps(state, LENGTH)
        assert best.value[horizon][state] == pytest.approx(GAMMA**reached if reached <= horizon else 0)


def exact_credit(policy, episodes):
    """The exact advantage of every step under the policy as it is."""
    advantage = exact_values(behaviour_of(policy), gamma=GAMMA, horizon=LIMIT, length=LENGTH).advantage
    return [advantage[LIMIT - step["t"]][step["anchor"], step["action"]] for steps in episodes for step in steps]


def test_exact_advantages_teach_the_shortest_way():
    chain, policy = KeyDoorChain(LENGTH, 2, LIMIT), LogLinearPolicy(ChainFeatures(), bins=4096, learning_rate=0.1)
    draws = np.random.default_rng(0)
    before, _ = evaluate(policy, [chain] * 50, draws, temperature=1.0, max_steps=LIMIT)
    for _ in range(60):
        episodes = collect([(0, chain.make_env(LIMIT)) for _ in range(16)], policy, draws)
        policy.ascend([step["trace"] for steps in episodes for step in steps], exact_credit(policy, episodes))
    after, played = evaluate(policy, [chain] * 50, draws, temperature=0.0, max_steps=LIMIT)
    assert before < 0.9
    assert after == 1.0
    assert {len(steps) for steps in played} == {optimal_steps((2, False), LENGTH)}


def test_the_gradient_points_at_the_exact_gradient_of_the_value():
    """The mean of the sampled gradients is the derivative of the exact value: the policy gradient theorem."""
    policy = LogLinearPolicy(ChainFeatures(), bins=4096)
    policy.weights = np.random.default_rng(1).normal(size=4096) * 0.3
    chain, count = KeyDoorChain(LENGTH, 2, LIMIT), 4000

    def value(weights):
        moved = policy.copy()
        moved.weights = weights
        return exact_values(behaviour_of(moved), gamma=GAMMA, horizon=LIMIT, length=LENGTH).value[LIMIT][2, False]

    episodes = collect([(0, chain.make_env(LIMIT)) for _ in range(count)], policy, np.random.default_rng(2))
    discounts = np.array([GAMMA ** step["t"] for steps in episodes for step in steps])
    traces = [step["trace"] for steps in episodes for step in steps]
    sampled = policy.gradient(traces, discounts * exact_credit(policy, episodes)) * len(traces) / count
    bins = np.argsort(-np.abs(sampled))[:8]
    nudges = [1e-4 * (np.arange(4096) == place) for place in bins]
    exact = [(value(policy.weights + nudge) - value(policy.weights - nudge)) / 2e-4 for nudge in nudges]
    np.testing.assert_allclose(sampled[bins], exact, atol=0.05 * np.abs(exact).max())


def test_credit_by_returns_teaches_the_chain_in_the_same_loop():
    policy = LogLinearPolicy(ChainFeatures(), bins=4096, learning_rate=0.1)
    log = train_household(
        policy, [KeyDoorChain(LENGTH, 2)], grpo, iterations=40, tasks=1, rollouts=16, max_steps=12, evaluate_on=[]
    )
    assert np.mean(log.train_success[-5:]) > np.mean(log.train_success[:5]) + 0.3


def some_credit(batch):
    """Credit that is not nothing, whoever wins."""
    return np.arange(len(batch)) % 3 - 1.0


def test_equal_seeds_draw_equal_tasks_however_long_the_episodes():
    chains = [KeyDoorChain(3, start) for start in (0, 1, 2)] * 3

    def drawn(credit):
        tasks, lengths = [], []

        def look(one):
            tasks.append([episode[0]["task"] for episode in one.episodes])
            lengths.append([len(episode) for episode in one.episodes])

        policy = LogLinearPolicy(ChainFeatures(), bins=512, learning_rate=0.5)
        train_household(
            policy, chains, credit, iterations=6, tasks=3, rollouts=4, max_steps=12, seed=5, on_iteration=look
        )
        return tasks, lengths

    (tasks, lengths), (others, other_lengths) = drawn(grpo), drawn(some_credit)
    assert tasks == others
    assert lengths != other_lengths


def test_training_again_from_a_kept_state_goes_on_bit_by_bit():
    games = generate_games(4, seed=3)
    first, second = LogLinearPolicy(), LogLinearPolicy()
    train_household(first, games, some_credit, iterations=2, tasks=3, rollouts=4, seed=1)
    second.load_state_dict(first.state_dict())
    before = first.weights.tobytes()
    for policy in (first, second):
        train_household(policy, games, some_credit, iterations=2, tasks=3, rollouts=4, seed=2)
    assert first.weights.tobytes() == second.weights.tobytes() != before
