"""Policies that learn: gradients against differences, sampling against the softmax, credit that teaches, the chain."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from steelyard.errors import InputError
from steelyard.policy import (
    AnchorWrapper,
    CommitmentPolicy,
    KeyDoorChain,
    LogLinearPolicy,
    StepBatch,
    alias_report,
    collect,
    evaluate,
    g2po_advantage,
    generate_games,
    grpo,
    run_policy,
    train_household,
)
from steelyard.policy.arc.heads import committed
from steelyard.policy.chain import Wanderer, commands, exact_values, follow, optimal_steps
from steelyard.policy.loglinear import Adam, softmax
from steelyard.policy.training import Streams, anchored

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GAMES = generate_games(12, seed=3)


def played(policy, games=GAMES[:3], seed=0, wrap=None):
    envs = [(task, game.make_env(8, 10.0)) for task, game in enumerate(games) for _ in range(2)]
    envs = [(task, wrap(env) if wrap else env) for task, env in envs]
    return collect(envs, policy, np.random.default_rng(seed))


def log_likelihood(softmaxes, weights, traces, advantages):
    """Mean of advantage times log probability, from the weights alone."""
    total = 0.0
    for head, trace, advantage in zip(softmaxes, traces, advantages, strict=True):
        scores = weights[head._table[trace.rows]].sum(axis=1)
        total += advantage * (scores[trace.chosen] - np.log(np.exp(scores).sum()))
    return total / len(advantages)


def test_the_gradient_is_that_of_the_log_likelihood():
    policy = LogLinearPolicy(bins=512)
    policy.weights = np.random.default_rng(0).normal(size=512)
    traces = [step["trace"] for episode in played(policy) for step in episode]
    advantages = np.random.default_rng(1).normal(size=len(traces))
    gradient = policy.gradient(traces, advantages)
    for place in np.argsort(-np.abs(gradient))[:20]:
        moved = [policy.weights + sign * 1e-5 * (np.arange(512) == place) for sign in (1, -1)]
        up, down = (log_likelihood([policy._softmax] * len(traces), one, traces, advantages) for one in moved)
        assert gradient[place] == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_the_gradient_of_a_turns_five_decisions():
    policy = CommitmentPolicy(bins=512)
    policy.weights = np.random.default_rng(0).normal(size=512)
    traces = [step["trace"] for episode in played(policy, wrap=committed) for step in episode]
    draws = np.random.default_rng(1)
    advantages = {name: draws.normal(size=len(traces)) for name in ("progress", "action", "prediction")}
    gradient = policy.gradient(traces, advantages)

    def value(weights):
        parts = [(policy._actions, [t.action for t in traces], "action"),
                 (policy._predictions, [t.prediction for t in traces], "prediction"),
                 *((policy._statements, [t.heads[k] for t in traces], "progress") for k in range(3))]  # fmt: skip
        return sum(log_likelihood([head] * len(own), weights, own, advantages[name]) for head, own, name in parts)

    for place in np.argsort(-np.abs(gradient))[:20]:
        moved = [policy.weights + sign * 1e-5 * (np.arange(512) == place) for sign in (1, -1)]
        assert gradient[place] == pytest.approx((value(moved[0]) - value(moved[1])) / 2e-5, abs=1e-6)


def test_adam_is_torchs():
    ours, weights = Adam(5, 0.05, (0.9, 0.99)), np.zeros(5)
    theirs = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    peer = torch.optim.Adam([theirs], lr=0.05, betas=(0.9, 0.99), maximize=True)
    for step in range(20):
        gradient = np.random.default_rng(step).normal(size=5)
        weights = weights + ours.step(gradient)
        theirs.grad = torch.tensor(gradient)
        peer.step()
    np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=1e-9)


def test_commands_are_drawn_by_their_probabilities():
    policy = LogLinearPolicy(bins=256)
    policy.weights = np.random.default_rng(5).normal(size=256)
    env = GAMES[0].make_env()
    observation, info = env.reset()
    memory, count = policy.begin(observation, info), 4000
    turns = policy.act(
        [memory] * count, [observation] * count, [info["admissible"]] * count, np.random.default_rng(0), 1
    )
    seen = np.bincount([turn.trace.chosen for turn in turns], minlength=len(info["admissible"]))
    assert chisquare(seen, turns[0].trace.probabilities * count).pvalue > 1e-4
    greedy = policy.act([memory], [observation], [info["admissible"]], np.random.default_rng(0), 0.0)[0]
    assert greedy.trace.probabilities.max() == greedy.trace.probabilities[greedy.trace.chosen]


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8), st.floats(0.1, 3))
def test_the_softmax_is_torchs(scores, temperature):
    values = np.array(scores)
    found = softmax(values, np.array([0]), np.array([len(values)]), temperature)
    np.testing.assert_allclose(found, torch.softmax(torch.tensor(values) / temperature, 0).numpy(), atol=1e-12)


def test_ties_of_the_likeliest_are_shared():
    assert softmax(np.array([1.0, 1.0, 0.0]), np.array([0]), np.array([3]), 0.0).tolist() == [0.5, 0.5, 0.0]


def test_imitation_and_credit_teach():
    policy = LogLinearPolicy()
    start, _ = evaluate(policy, GAMES, np.random.default_rng(0))
    policy.fit_bc(GAMES, epochs=30)
    imitated, _ = evaluate(policy, GAMES, np.random.default_rng(0))
    assert imitated > start + 0.3
    learner = LogLinearPolicy()
    learner.fit_bc(GAMES[:6], 3)
    log = train_household(
        learner, GAMES, g2po_advantage, iterations=25, tasks=6, rollouts=6, evaluate_on=GAMES, evaluate_every=5
    )
    assert [one.iteration for one in log.evaluations] == [5, 10, 15, 20, 25]
    assert np.mean(log.train_success[-5:]) > np.mean(log.train_success[:5]) + 0.2
    assert log.area == pytest.approx(np.mean(log.train_success))
    assert log.success == log.evaluations[-1].success
    assert log.steps > 0
    assert log.seconds > log.advantage_seconds


def test_credit_of_nothing_teaches_nothing():
    policy = LogLinearPolicy()
    train_household(policy, GAMES, lambda batch: np.zeros(len(batch)), iterations=2, tasks=2, rollouts=2)
    assert (policy.weights == 0).all()


def test_equal_seeds_give_equal_trainings_and_others_do_not():
    def trained(seed, policy):
        wrap = committed if isinstance(policy, CommitmentPolicy) else None
        policy.fit_bc(GAMES[:4], 10)
        log = train_household(policy, GAMES, grpo, iterations=2, tasks=3, rollouts=3, seed=seed, wrap=wrap)
        return policy.weights.tobytes(), tuple(log.train_success)

    for made in (LogLinearPolicy, CommitmentPolicy):
        assert trained(1, made()) == trained(1, made())
        assert trained(1, made()) != trained(2, made())


@pytest.mark.parametrize("made", [LogLinearPolicy, CommitmentPolicy])
def test_a_policys_state_and_copy(made):
    policy = made(bins=128)
    policy.fit_bc(GAMES[:2], 2)
    other = made(bins=128)
    other.load_state_dict(policy.state_dict())
    copied = policy.copy()
    assert other.weights.tobytes() == copied.weights.tobytes() == policy.weights.tobytes()
    copied.weights[0] += 1
    assert policy.weights[0] != copied.weights[0]
    with pytest.raises(InputError, match="state"):
        made(bins=64).load_state_dict(policy.state_dict())


class Bad:
    name, walkthrough = "bad", ("fly away",)

    def make_env(self, max_steps=30, reward=1.0):
        return GAMES[0].make_env(max_steps, reward)


@pytest.mark.parametrize("made", [LogLinearPolicy, CommitmentPolicy])
def test_a_walkthrough_that_cannot_be_followed_is_named(made):
    with pytest.raises(InputError, match="fly away"):
        made().fit_bc([Bad()])


@pytest.mark.parametrize(
    "options",
    [
        {"evaluate_every": 0},
        {"temperature": -1.0},
        {"rollouts": 1.5},
        {"iterations": 0},
        {"tasks": 0},
        {"rollouts": 0},
        {"tasks": 99},
    ],
)
def test_trainings_that_cannot_be_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options)) if 99 not in options.values() else "games"):
        train_household(LogLinearPolicy(), GAMES, grpo, **options)
    for bad in ({"bins": 0}, {"learning_rate": -1}):
        with pytest.raises(InputError):
            LogLinearPolicy(**bad)


def test_progress_and_iterations_are_told():
    told, seen = [], []
    train_household(
        LogLinearPolicy(), GAMES, grpo, iterations=2, tasks=2, rollouts=2, streams=Streams.of(3),
        progress=lambda done, total: told.append((done, total)), on_iteration=seen.append,
    )  # fmt: skip
    assert told == [(1, 2), (2, 2)]
    assert [one.number for one in seen] == [1, 2]
    assert len(seen[0].batch) == sum(map(len, seen[0].episodes))


def test_one_episode():
    episode = run_policy(GAMES[0].make_env(5), LogLinearPolicy(), np.random.default_rng(0), task="mine")
    assert 1 <= len(episode) <= 5
    assert episode[0]["task"] == "mine"
    assert [step["t"] for step in episode] == list(range(len(episode)))
    for before, after in itertools.pairwise(episode):
        assert before["next_observation"] == after["observation"]


def test_the_chain_is_what_it_says():
    env = KeyDoorChain(start=1, max_steps=30, reward=10.0)
    observation, info = env.reset()
    assert observation == "You are in room 1."
    way = ["go left", "take key", *["go right"] * 9, "open door"]
    assert len(way) == optimal_steps((1, False)) + 0
    for place, command in enumerate(way):
        assert command in info["admissible"]
        observation, reward, won, _cut, info = env.step(command)
        assert won == (place == len(way) - 1)
    assert reward == 10.0
    with pytest.raises(InputError, match="ended"):
        env.step("go left")
    for bad in ({"length": 2}, {"start": 10}, {"max_steps": 0}):
        with pytest.raises(InputError):
            KeyDoorChain(**bad)
    env.reset()
    env.step("open door")
    assert env.state_key() == (1, False)


def test_exact_values_are_closed_forms_and_simulations():
    best = exact_values(Wanderer(1.0).probabilities, reward=10.0, horizon=60)
    for state in ((4, False), (0, True), (9, True)):
        assert best.value[60][state] == pytest.approx(10 * 0.95 ** optimal_steps(state))
        assert best.value[optimal_steps(state) - 1][state] == 0
    acting = Wanderer(0.6)
    exact = exact_values(acting.probabilities, horizon=40)
    won = []
    for episode in collect([(0, KeyDoorChain(max_steps=40)) for _ in range(1500)], acting, np.random.default_rng(0)):
        won.append(0.95 ** len(episode) if episode[-1]["success"] else 0.0)
    assert np.mean(won) == pytest.approx(exact.value[40][4, False], abs=4 * np.std(won) / np.sqrt(len(won)))
    for state in ((3, False), (0, False), (9, False)):
        offered = commands(state)
        share = acting.probabilities(state, offered)
        assert share.sum() == pytest.approx(1)
        assert np.dot(share, [exact.advantage[20][state, one] for one in offered]) == pytest.approx(0, abs=1e-12)
    assert follow((9, False), "open door") == (9, False)


def test_anchors_are_the_states_before_the_actions():
    env = AnchorWrapper(KeyDoorChain(start=0), "obs", history=2)
    _, info = env.reset()
    assert info["anchor"] == ("You are in room 0.",)
    info = env.step("take key")[4]
    assert info["anchor"] == ("You are in room 0.", "You are in room 0.", "take key")
    assert anchored(KeyDoorChain(), "state").reset()[1]["anchor"] == (4, False)
    own = AnchorWrapper(KeyDoorChain(), lambda env, text, info: len(text))
    assert own.reset()[1]["anchor"] == 18
    assert own.state_key() == (4, False)
    assert own.length == 10
    for bad in ({"key": "text"}, {"history": -1}, {"history": True}):
        with pytest.raises(InputError):
            AnchorWrapper(KeyDoorChain(), **bad)


def test_the_report_of_anchors_says_what_is_wrong():
    episodes = collect([(0, anchored(KeyDoorChain(), "obs")) for _ in range(8)], Wanderer(), np.random.default_rng(0))
    batch = StepBatch.from_episodes(episodes)
    sets = [step["admissible"] for episode in episodes for step in episode]
    report = alias_report(batch, sets)
    assert report.aliased_share > 0.05
    assert "different admissible actions" in report.warnings[0]
    by_hand = {step["anchor"]: set() for episode in episodes for step in episode}
    for episode in episodes:
        for step in episode:
            by_hand[step["anchor"]].add(tuple(step["admissible"]))
    mixed = [len(by_hand[step["anchor"]]) > 1 for episode in episodes for step in episode]
    assert report.aliased_share == pytest.approx(np.mean(mixed))
    assert alias_report(batch).aliased_share is None
    assert alias_report(batch, [None] * len(batch)).aliased_share is None
    lone = StepBatch([0] * 4, [0] * 4, range(4), [0.0] * 4, list("abcd"))
    assert "node of their own" in alias_report(lone).warnings[0]
    giant = StepBatch([0] * 5, [0] * 5, range(5), [0.0] * 5, list("aaaab"))
    assert "80%" in alias_report(giant).warnings[0]
    assert alias_report(giant).lines()[0].startswith("5 steps at 2 nodes")
    assert alias_report(giant).to_json()["nodes"] == 2
    several = StepBatch([0] * 5 + [1] * 5, [0] * 5 + [1] * 5, [*range(5)] * 2, [0.0] * 10, list("aaaabccccd"))
    assert alias_report(several).largest_share == 0.8, "a node is large within its own task"
    starts = StepBatch([0] * 8, range(8), [0] * 8, [0.0] * 8, ["s"] * 8)
    assert not alias_report(starts).warnings, "rollouts of one step all begin, and rightly, at one state"
    assert alias_report(list("aaaab")) == alias_report(giant), "observations alone serve as anchors"
    for bad in (lambda: alias_report(StepBatch([], [], [], [], [])), lambda: alias_report(giant, [None])):
        with pytest.raises(InputError), warnings.catch_warnings():
            bad()
