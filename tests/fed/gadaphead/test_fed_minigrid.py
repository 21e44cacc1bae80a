"""MiniGrid clients: the fast view is the library's, cell by cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall
from minigrid.minigrid_env import MiniGridEnv

from steelyard.errors import InputError
from steelyard.fed.gadaphead import minigrid
from steelyard.fed.gadaphead.dqn import DqnClient, DqnSettings, evaluate, random_policy
from steelyard.fed.gadaphead.minigrid import CELLS, LEVELS, PERMUTATIONS, TARGET, GridEnv, GridTask, grid_tasks

KINDS = {place: name for name, place in OBJECT_TO_IDX.items()}
DOORS = ("door_open", "door_closed", "door_locked")


def _name(cell: np.ndarray, env: GridEnv) -> str:
    kind, colour, state = KINDS[int(cell[0])], int(cell[1]), int(cell[2])
    wanted, shade = env._target
    if kind == wanted and COLOR_TO_IDX[str(shade)] == colour:
        return "target"
    return DOORS[state] if kind == "door" else kind


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_the_view_is_the_library_s(level: str) -> None:
    env, generator = GridEnv(grid_tasks([level])[0]), np.random.default_rng(0)
    seen = env.reset(generator)
    for _ in range(150):
        image = MiniGridEnv.gen_obs(env._env)["image"]  # (column, row, kind and colour and state)
        theirs = [_name(image[column, row], env) for row in range(7) for column in range(7)]
        codes = seen[:-1] % minigrid.CODES
        assert [(*CELLS, "target")[code] for code in codes] == theirs
        assert (seen[:-1] // minigrid.CODES == np.arange(49)).all()
        assert seen.max() < minigrid.INPUTS
        assert seen[-1] == 49 * minigrid.CODES + env._env.agent_dir
        seen, _, terminated, truncated = env.step(int(generator.integers(0, 5)))
        if terminated or truncated:
            seen = env.reset(generator)


@given(st.lists(st.booleans(), min_size=49, max_size=49))
def test_what_walls_hide_is_what_the_library_hides(opaque: list[bool]) -> None:
    grid = Grid(7, 7)
    for place, wall in enumerate(opaque):
        if wall:
            grid.set(place % 7, place // 7, Wall())
    theirs = grid.process_vis((3, 6)).T.ravel()
    np.testing.assert_array_equal(minigrid.visible(np.array(opaque).tobytes()), theirs)


def test_patterns_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minigrid, "_HIDDEN", {})
    monkeypatch.setattr(minigrid, "_HIDDEN_LIMIT", 2)
    for place in range(5):
        pattern = np.zeros(49, bool)
        pattern[place] = True
        minigrid.visible(pattern.tobytes())
        assert len(minigrid._HIDDEN) <= 2


@given(st.integers(0, 1000))
def test_groups_differ_by_the_order_of_their_actions_alone(seed: int) -> None:
    first, second = (GridEnv(task) for task in grid_tasks(["doorkey5"], groups=2))
    streams = [np.random.default_rng(seed) for _ in range(2)]
    np.testing.assert_array_equal(first.reset(streams[0]), second.reset(streams[1]))
    inverse = np.argsort(PERMUTATIONS[1])
    for action in np.random.default_rng(seed).integers(0, 5, 30):
        ours, theirs = first.step(int(action)), second.step(int(inverse[action]))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
        if ours[2]:
            break


def test_no_action_is_in_the_same_place_of_two_groups() -> None:
    for place in range(5):
        assert len({order[place] for order in PERMUTATIONS}) == len(PERMUTATIONS)


def test_tasks_are_named_by_level_and_group() -> None:
    tasks = grid_tasks(["doorkey5", "unlock"], groups=3)
    assert [task.name for task in tasks] == [f"{level}/{g}" for g in "abc" for level in ("doorkey5", "unlock")]
    assert [task.group for task in tasks] == [0, 0, 1, 1, 2, 2]
    assert len(LEVELS) == 12


def test_a_client_trains_and_is_evaluated_on_the_same_episodes() -> None:
    task = grid_tasks(["empty6"])[0]
    settings = DqnSettings(hidden=(8,), steps=60, warmup=16, batch=8)
    updates = []
    for _ in range(2):
        client = DqnClient(GridEnv(task), settings)
        trunk, head = client.initial(np.random.default_rng(0))
        updates.append(client(trunk, head, 1, np.random.default_rng(1)))
    np.testing.assert_array_equal(updates[0].head, updates[1].head)
    assert updates[0].variance == updates[1].variance
    scores = [evaluate(client.env, client.learner.network, np.random.default_rng(3), 3) for _ in range(2)]
    assert scores[0] == scores[1]
    assert len(scores[0].returns) == 3


@pytest.mark.parametrize("level", ["doorkey5", "fetch5", "gotodoor5"])
def test_a_loop_that_is_cut_had_no_reward_to_come(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = GridEnv(grid_tasks([level])[0])
    client = DqnClient(env, DqnSettings(hidden=(8,)))
    client.learner.receive(*client.initial(np.random.default_rng(0)))
    cut = evaluate(env, client.learner.network, np.random.default_rng(1), 5)
    monkeypatch.setattr(GridEnv, "state", lambda self: None)
    assert evaluate(env, client.learner.network, np.random.default_rng(1), 5) == cut


def test_the_floor_is_low_but_not_nothing() -> None:
    assert 0 < random_policy(GridEnv(grid_tasks(["fetch5"])[0]), np.random.default_rng(0), 20).mean_return < 0.8


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match=r"no level 'dorkey5'.*Did you mean 'doorkey"):
        grid_tasks(["dorkey5"])
    with pytest.raises(InputError, match="groups must lie between 1 and 3"):
        grid_tasks(["doorkey5"], groups=4)
    with pytest.raises(InputError, match=r"'MiniGrid-DoorKey-5x5-v9' is not a MiniGrid environment.*Did you mean"):
        GridEnv(GridTask("x", "MiniGrid-DoorKey-5x5-v9", 0, PERMUTATIONS[0], 10))
    with pytest.raises(InputError, match="is not a MiniGrid environment"):
        GridEnv(GridTask("x", "CartPole-v1", 0, PERMUTATIONS[0], 10))
    with pytest.raises(InputError, match="permutation must order"):
        GridEnv(GridTask("x", "MiniGrid-DoorKey-5x5-v0", 0, (0, 1, 2, 3, 3), 10))
    assert len(CELLS) == TARGET
