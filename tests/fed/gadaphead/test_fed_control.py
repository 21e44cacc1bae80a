"""Pendulums of other gravity and sign."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed.gadaphead.control import FORCES, REWARD, SETTINGS, PendulumEnv, PendulumTask, pendulum_tasks
from steelyard.fed.gadaphead.dqn import Centralised, DqnClient, evaluate

KEPT, FLIPPED = PendulumEnv(PendulumTask("kept", 1.0, 1, 30)), PendulumEnv(PendulumTask("flipped", 1.0, -1, 30))
SMALL = dataclasses.replace(SETTINGS, hidden=(6, 6), steps=40, warmup=8, batch=8, exploration=20)


def _play(env: PendulumEnv, actions: list[int], seed: int = 0) -> list[tuple]:
    env.reset(np.random.default_rng(seed))
    steps = []
    for action in actions:
        after, reward, terminated, truncated = env.step(action)
        steps.append((tuple(after.tolist()), reward, terminated, truncated))
        if terminated or truncated:
            break
    return steps


@given(st.lists(st.integers(0, len(FORCES) - 1), min_size=1, max_size=40), st.integers(0, 1000))
def test_a_flipped_sign_is_the_opposite_order_of_forces(actions: list[int], seed: int) -> None:
    mirrored = [len(FORCES) - 1 - action for action in actions]
    assert _play(KEPT, actions, seed) == _play(FLIPPED, mirrored, seed)


def test_more_gravity_falls_sooner() -> None:
    still = FORCES.index(0.0)
    lengths = [len(_play(PendulumEnv(PendulumTask("x", g, 1)), [still] * 500)) for g in (0.7, 1.0, 1.3, 1.6)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_an_episode_pays_for_each_step_upright_and_ends() -> None:
    steps = _play(PendulumEnv(PendulumTask("x", 1.0, 1)), [0] * 500)
    assert [step[1] for step in steps] == [REWARD] * (len(steps) - 1) + [0.0]
    assert steps[-1][2]
    assert not steps[-1][3]
    env = PendulumEnv(PendulumTask("x", 1.0, 1, max_steps=3))
    assert _play(env, [2] * 9)[-1][2:] == (False, True)
    assert env.state() is None


def test_the_tasks_are_four_gravities_by_two_signs() -> None:
    tasks = pendulum_tasks()
    assert [task.name for task in tasks] == ["g0.7+", "g1+", "g1.3+", "g1.6+", "g0.7-", "g1-", "g1.3-", "g1.6-"]
    assert [task.group for task in tasks] == [0] * 4 + [1] * 4


def test_a_client_trains_the_same_twice() -> None:
    updates = []
    for _ in range(2):
        client = DqnClient(PendulumEnv(PendulumTask("x", 1.0, 1, 50)), SMALL)
        trunk, head = client.initial(np.random.default_rng(0))
        updates.append(client(trunk, head, 1, np.random.default_rng(1)))
    np.testing.assert_array_equal(updates[0].head, updates[1].head)
    assert updates[0].head.shape == (7, 5)
    assert updates[0].variance == updates[1].variance > 0
    assert evaluate(client.env, client.learner.network, np.random.default_rng(0), 2).mean_return > 0


def test_the_central_reference_runs_on_all_tasks() -> None:
    central = Centralised([PendulumEnv(task) for task in pendulum_tasks(20)[:2]], SMALL, np.random.default_rng(0))
    central.advance(np.random.default_rng(1))
    assert central.learner.network.inputs == 6
    assert central.evaluate(1, np.random.default_rng(2), 1).mean_return > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [({"gravity": 0.0}, "gravity"), ({"gravity": np.nan}, "gravity"), ({"sign": 2}, "sign"), ({"max_steps": 0}, "max")],
)
def test_bad_tasks_are_named(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=f"task 'x': {message}"):
        PendulumTask(**{"name": "x", "gravity": 1.0, "sign": 1, **change})
