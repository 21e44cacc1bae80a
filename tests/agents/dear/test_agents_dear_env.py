"""The environments against PettingZoo's and gymnasium's own tests, and their rewards by hand."""

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from steelyard.agents.dear.committee import CommitteeAgents
from steelyard.agents.dear.env import DebateEnv
from steelyard.agents.dear.episodes import vote
from steelyard.agents.dear.simulator import SimAgents
from steelyard.errors import InputError


@pytest.mark.parametrize("early_stop", ["never", "unanimous", "stable"])
def test_pettingzoo_api(early_stop):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(DebateEnv(SimAgents(), early_stop=early_stop), num_cycles=20)
    parallel_seed_test(lambda: DebateEnv(SimAgents(), early_stop=early_stop), num_cycles=20)


def test_gymnasium_check():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(DebateEnv(CommitteeAgents("controller")).as_gymnasium(), skip_render_check=True)


def test_spaces():
    env = DebateEnv(SimAgents(4, 3), identity=True)
    assert env.action_space("agent_0").nvec.tolist() == [2, 2, 2, 4]
    joint = env.as_gymnasium()
    assert joint.action_space.nvec.tolist() == [2, 2, 2, 4] * 4
    seen, info = joint.reset(seed=1)
    assert seen.shape == joint.observation_space.shape
    assert seen in joint.observation_space
    assert info == {}
    few = DebateEnv(SimAgents(3, 2), behaviours=("keep", "critique"))
    assert few.action_space("agent_2").nvec.tolist() == [2, 2, 2]


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_rewards_by_hand(seed):
    env = DebateEnv(SimAgents(3, 3), rounds=2, lam=0.02, shaping=0.5)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    while env.agents:
        before = env._episodes
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        actions = {agent: rng.integers(env.action_space(agent).nvec) for agent in actions}
        _, rewards, ended, cut, _ = env.step(actions)
        after = env._episodes
        over = all(ended.values())
        assert not any(cut.values())
        for i, agent in enumerate(env.possible_agents):
            was, now = (state.answers[0, i] == state.truth[0] for state in (before, after))
            spoke = before.active[0] and actions[agent][-1] != 0
            cost = spoke * (1 + actions[agent][:-1].sum() / 2)
            expected = 0.5 * (float(now) - float(was)) - 0.02 * cost
            if over:
                right = (after.answers[0] == after.truth[0]).mean()
                expected += float(np.bincount(after.answers[0], minlength=3).argmax() == after.truth[0]) + 0.3 * right
            counts = np.sort(np.bincount(after.answers[0], minlength=3))
            if not over or counts[-1] > counts[-2]:  # a tie goes by the episode's order, not by argmax
                assert rewards[agent] == pytest.approx(expected, abs=1e-12)
    assert vote(env._episodes).shape == (1,)


def test_a_unanimous_debate_ends_with_a_step_in_which_nothing_happens():
    env = DebateEnv(SimAgents(3, 2))
    for seed in range(100):
        env.reset(seed=seed)
        state = env._episodes
        if not state.active[0]:
            break
    actions = {agent: np.array([1, 1, 1]) for agent in env.agents}
    _, rewards, ended, _, _ = env.step(actions)
    assert all(ended.values())
    assert env._episodes.cost.tolist() == [[1.0] * 3]
    right = float(state.answers[0, 0] == state.truth[0])
    assert set(rewards.values()) == {1.3 * right}
    with pytest.raises(InputError, match="over"):
        env.step(actions)


def test_joint_reward_is_the_mean():
    single, joint = DebateEnv(SimAgents()), DebateEnv(SimAgents()).as_gymnasium()
    seen, _ = single.reset(seed=5)
    together, _ = joint.reset(seed=5)
    assert np.array_equal(together, np.concatenate([seen[agent] for agent in single.possible_agents]))
    action = np.array([1, 0, 1, 1, 2] * 5)
    _, rewards, ended, _, _ = single.step(dict.fromkeys(single.agents, action[:5]))
    _, reward, over, cut, _ = joint.step(action)
    assert reward == pytest.approx(np.mean(list(rewards.values())))
    assert (over, cut) == (ended["agent_0"], False)


def test_reads_follow_the_order_of_the_others():
    env = DebateEnv(SimAgents(3, 2))
    reads, behaviours = env._decode({f"agent_{i}": np.array([1, 0, i]) for i in range(3)})
    assert reads[0].astype(int).tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert behaviours.tolist() == [[0, 1, 2]]


def test_infos_and_observations_hold_no_label():
    env = DebateEnv(SimAgents())
    seen, infos = env.reset(seed=3)
    assert set(map(str, infos.values())) == {"{}"}
    assert all(values in env.observation_space(agent) for agent, values in seen.items())
    assert env.render() is None


def test_bad_input():
    with pytest.raises(InputError, match="at least 2"):
        DebateEnv(SimAgents(1, 2))
    with pytest.raises(InputError, match="rounds"):
        DebateEnv(SimAgents(), rounds=0)
    for behaviours in ((), ("keep", "keep"), ("shout",)):
        with pytest.raises(InputError, match="behaviours"):
            DebateEnv(SimAgents(), behaviours=behaviours)
    env = DebateEnv(SimAgents(3, 2), early_stop="never")
    with pytest.raises(InputError, match="reset"):
        env.state()
    env.reset(seed=0)
    for bad in ({}, {"agent_0": [1, 1]}, {"agent_0": [2, 0, 0]}, {"agent_0": [0.5, 0, 0]}, {"agent_0": "x"}):
        with pytest.raises(InputError, match="agent_0"):
            env.step(bad)
    with pytest.raises(InputError, match="action has shape"):
        env.as_gymnasium().step(np.zeros(4))
