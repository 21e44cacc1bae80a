"""The small transformer policy: it imitates, learns by the same loop, and leaves torch's chance alone."""

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.policy import TransformerPolicy, evaluate, g2po_advantage, generate_games, train_household

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GAMES = generate_games(6, 3, ("pick_and_place_simple",))


def test_it_imitates_and_trains_in_the_same_loop():
    policy = TransformerPolicy(learning_rate=1e-2)
    start, _ = evaluate(policy, GAMES, np.random.default_rng(0), max_steps=12)
    policy.fit_bc(GAMES, 40)
    after, _episodes = evaluate(policy, GAMES, np.random.default_rng(0), temperature=0.0, max_steps=12)
    assert after >= start + 0.5
    before = policy.copy()
    log = train_household(policy, GAMES, g2po_advantage, iterations=1, tasks=2, rollouts=4, max_steps=12)
    assert log.steps > 0
    assert not torch.equal(before.network.embedding.weight, policy.network.embedding.weight)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_the_objective_is_the_mean_of_advantage_times_log_probability(temperature):
    policy = TransformerPolicy(width=8, words=64)
    env = GAMES[0].make_env()
    observation, info = env.reset()
    memory = policy.begin(observation, info)
    turns = policy.act([memory] * 3, [observation] * 3, [info["admissible"]] * 3, np.random.default_rng(0), temperature)
    traces, weights = [turn.trace for turn in turns], np.array([1.0, -2.0, 0.5])
    scores = policy._scores(traces)
    by_hand = np.mean([
        weight * ((own / temperature)[one.chosen] - torch.logsumexp(own / temperature, 0)).item()
        for weight, own, one in zip(weights, scores, traces, strict=True)
    ])  # fmt: skip
    assert policy.objective(traces, weights).item() == pytest.approx(by_hand, abs=1e-6)


def test_equal_seeds_and_states_and_no_global_chance():
    before = torch.random.get_rng_state()
    one, two, other = TransformerPolicy(seed=1), TransformerPolicy(seed=1), TransformerPolicy(seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True))
    assert not torch.equal(one.network.place.weight, other.network.place.weight)
    state = one.state_dict()
    other.load_state_dict(state)
    assert torch.equal(one.network.place.weight, other.network.place.weight)
    with torch.no_grad():
        one.network.place.weight += 1
    assert torch.equal(state["network"]["place.weight"], other.network.place.weight), "a state is a copy"
    with pytest.raises(InputError, match="state: it is not that of a policy with"):
        TransformerPolicy(width=8).load_state_dict(state)


@pytest.mark.parametrize("options", [{"width": 0}, {"heads": 3}, {"words": 0}])
def test_sizes_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        TransformerPolicy(**options)


def test_a_walkthrough_that_cannot_be_followed_is_named():
    class Bad:
        name, walkthrough = "bad", ("fly",)

        def make_env(self, max_steps=30, reward=1.0):
            return GAMES[0].make_env(max_steps, reward)

    with pytest.raises(InputError, match="fly"):
        TransformerPolicy().fit_bc([Bad()])
