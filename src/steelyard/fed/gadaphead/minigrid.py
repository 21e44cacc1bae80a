"""Federated MiniGrid tasks: planted groups by a permutation of the actions, and a fast encoder of the agent's view.

Two tasks of one group act through the same permutation, so one Q head can serve both as far as their rewards allow;
in two groups the head's columns mean different actions, so a shared head must not help while a shared trunk can.

The library renders every observation as nested Python objects; here the grid is kept as one integer array, the
7 x 7 view is one gather from it, and what the walls hide is looked up by the pattern of opaque cells. The view equals
the library's own observation cell by cell (tested).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import InputError, did_you_mean
from steelyard.fed.gadaphead.features import Array

VIEW = 7
CELLS = ("unseen", "empty", "wall", "door_open", "door_closed", "door_locked", "key", "ball", "box", "goal", "lava")
TARGET = len(CELLS)
CODES = TARGET + 1
INPUTS = VIEW * VIEW * CODES + 4
ACTIVE = VIEW * VIEW + 1
ACTIONS = 5
_CODE = {name: place for place, name in enumerate(CELLS)}
_DOORS = (_CODE["door_open"], _CODE["door_closed"], _CODE["door_locked"])
_SHIFT = 16
_COLOURS = {name: place for place, name in enumerate(("red", "green", "blue", "purple", "yellow", "grey"))}
_LEFT, _RIGHT, _FORWARD, _PICKUP, _TOGGLE, _DONE = 0, 1, 2, 3, 5, 6
_VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_AGENT = 6 * VIEW + 3
_HIDDEN_LIMIT = 50_000


@dataclass(frozen=True)
class GridTask:
    """A task: a MiniGrid environment behind a permutation of five actions.

    Attributes:
        name: of the client.
        env_id: of the registered environment.
        group: number of the planted group (of the permutation).
        permutation: action i of the client is action permutation[i] of (left, right, forward, pick up, use).
        max_steps: length of an episode.
    """

    name: str
    env_id: str
    group: int
    permutation: tuple[int, ...]
    max_steps: int


PERMUTATIONS = ((0, 1, 2, 3, 4), (2, 0, 4, 1, 3), (4, 3, 1, 0, 2))
"""Permutations of the planted groups: no two have an action in the same place."""

LEVELS = {
    "doorkey5": ("MiniGrid-DoorKey-5x5-v0", 100),
    "doorkey6": ("MiniGrid-DoorKey-6x6-v0", 150),
    "unlock": ("MiniGrid-Unlock-v0", 150),
    "lavagap5": ("MiniGrid-LavaGapS5-v0", 100),
    "lavagap6": ("MiniGrid-LavaGapS6-v0", 100),
    "crossing": ("MiniGrid-SimpleCrossingS9N1-v0", 150),
    "fourrooms": ("MiniGrid-FourRooms-v0", 150),
    "fetch5": ("MiniGrid-Fetch-5x5-N2-v0", 100),
    "fetch6": ("MiniGrid-Fetch-6x6-N2-v0", 100),
    "gotodoor5": ("MiniGrid-GoToDoor-5x5-v0", 100),
    "gotodoor6": ("MiniGrid-GoToDoor-6x6-v0", 100),
    "empty6": ("MiniGrid-Empty-Random-6x6-v0", 100),
}
"""Levels by short name: environment id and episode length."""


def grid_tasks(levels: Sequence[str], groups: int = 2) -> tuple[GridTask, ...]:
    """Return one task per level and group, group by group.

    Raises:
        InputError: an unknown level, or more groups than there are permutations.
    """
    if not 1 <= groups <= len(PERMUTATIONS):
        raise InputError(f"groups must lie between 1 and {len(PERMUTATIONS)}, got {groups}")
    for level in levels:
        if level not in LEVELS:
            raise InputError(
                f"there is no level {level!r}; known are {', '.join(LEVELS)}.{did_you_mean(level, LEVELS)}"
            )
    return tuple(
        GridTask(f"{level}/{'abc'[group]}", LEVELS[level][0], group, PERMUTATIONS[group], LEVELS[level][1])
        for group in range(groups)
        for level in levels
    )


class GridEnv:
    """A MiniGrid environment with five permuted actions and index observations (50,): 49 cells and the direction.

    Raises:
        InputError: an environment id that MiniGrid does not know, or a permutation that is none.
    """

    inputs = INPUTS
    actions = ACTIONS
    active: int | None = ACTIVE

    def __init__(self, task: GridTask) -> None:
        if sorted(task.permutation) != list(range(ACTIONS)):
            raise InputError(f"task {task.name!r}: permutation must order 0..{ACTIONS - 1}, got {task.permutation}")
        self.task = task
        self._env = make_level(task.env_id, task.max_steps)
        # The library would encode its observation at every step; this class reads the grid itself.
        self._env.gen_obs = dict
        use = _DONE if "GoToDoor" in task.env_id else _TOGGLE
        env_actions = (_LEFT, _RIGHT, _FORWARD, _PICKUP, use)
        self._map = tuple(env_actions[place] for place in task.permutation)
        self._stride = self._env.width + 2 * VIEW
        self._cells = np.zeros((self._env.height + 2 * VIEW) * self._stride, np.int64)
        self._views = view_offsets(self._stride)
        self._target: tuple[str | None, str | None] = (None, None)

    def fresh(self) -> GridEnv:
        """Return another environment of the same task."""
        return GridEnv(self.task)

    def reset(self, generator: np.random.Generator) -> Array:
        """Start an episode drawn from the generator."""
        env = self._env
        env.np_random = generator
        env.reset()
        kind = getattr(env, "targetType", "door" if hasattr(env, "target_color") else None)
        self._target = (kind, getattr(env, "targetColor", getattr(env, "target_color", None)))
        self._cells[:] = _CODE["wall"]
        inner = self._cells.reshape(-1, self._stride)[VIEW : VIEW + env.height, VIEW : VIEW + env.width]
        inner[:] = np.array([self._code(cell) for cell in env.grid.grid]).reshape(env.height, env.width)
        return self._observe()

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Act by the client's own numbering of the actions."""
        env, real = self._env, self._map[action]
        _, reward, terminated, truncated, _ = env.step(real)
        if real > _FORWARD:
            # The agent stood still, and nothing but the cell in front of it can have changed.
            ahead = _VECTORS[env.agent_dir]
            x, y = int(env.agent_pos[0]) + ahead[0], int(env.agent_pos[1]) + ahead[1]
            self._cells[(y + VIEW) * self._stride + x + VIEW] = self._code(env.grid.grid[y * env.width + x])
        return self._observe(), float(reward), bool(terminated), bool(truncated)

    def state(self) -> Hashable:
        """Return what determines the future but for the time: cells with colours, agent, and what it carries."""
        env = self._env
        x, y = env.agent_pos
        return self._cells.tobytes(), int(x), int(y), int(env.agent_dir), self._code(env.carrying)

    def _code(self, cell: Any) -> int:
        """Return a cell's code, with its colour above the lower four bits where it is an object."""
        if cell is None:
            return _CODE["empty"]
        kind = cell.type
        if kind == "wall":
            return _CODE["wall"]
        if kind == "floor":
            return _CODE["empty"]
        if kind == self._target[0] and cell.color == self._target[1]:
            return TARGET
        if kind == "door":
            code = _DOORS[0] if cell.is_open else _DOORS[2] if cell.is_locked else _DOORS[1]
        else:
            code = _CODE[kind]
        return code + _SHIFT * _COLOURS[cell.color]

    def _observe(self) -> Array:
        env = self._env
        place = (int(env.agent_pos[1]) + VIEW) * self._stride + int(env.agent_pos[0]) + VIEW
        codes = self._cells.take(self._views[env.agent_dir] + place)
        codes &= _SHIFT - 1
        if not env.see_through_walls:
            codes *= visible(_OPAQUE.take(codes).tobytes())
        codes[_AGENT] = self._code(env.carrying) & (_SHIFT - 1)
        observation = np.empty(ACTIVE, np.int64)
        np.add(codes, _FIRST, out=observation[:-1])
        observation[-1] = VIEW * VIEW * CODES + env.agent_dir
        return observation


def make_level(env_id: str, max_steps: int) -> Any:
    """Return the unwrapped MiniGrid environment.

    Raises:
        InputError: an id that is not registered as a MiniGrid environment.
    """
    import gymnasium
    import minigrid  # noqa: F401  (registers the ids)

    known = [name for name in gymnasium.registry if name.startswith("MiniGrid-")]
    if env_id not in known:
        raise InputError(f"env_id {env_id!r} is not a MiniGrid environment.{did_you_mean(env_id, known)}")
    return gymnasium.make(env_id, max_steps=max_steps, disable_env_checker=True).unwrapped


def view_offsets(stride: int) -> Array:
    """Return, by the agent's direction, the offsets (4, 49) of the view's cells in a flat grid, row by row.

    The agent looks up in its view and stands in the middle of the last row.
    """
    offsets = np.zeros((4, VIEW * VIEW), np.int64)
    for direction, (dx, dy) in enumerate(_VECTORS):
        for row in range(VIEW):
            for column in range(VIEW):
                ahead, right = VIEW - 1 - row, column - VIEW // 2
                x, y = ahead * dx - right * dy, ahead * dy + right * dx
                offsets[direction, row * VIEW + column] = y * stride + x
    return offsets


_FIRST = np.arange(VIEW * VIEW, dtype=np.int64) * CODES
_OPAQUE = np.zeros(_SHIFT, np.bool_)
_OPAQUE[[_CODE["wall"], _CODE["door_closed"], _CODE["door_locked"]]] = True
_HIDDEN: dict[bytes, Array] = {}


def visible(opaque: bytes) -> Array:
    """Return which cells (49,) the agent sees, given which are opaque; patterns seen before are looked up."""
    mask = _HIDDEN.get(opaque)
    if mask is None:
        if len(_HIDDEN) >= _HIDDEN_LIMIT:
            _HIDDEN.clear()
        mask = _HIDDEN[opaque] = _spread(opaque)
    return mask


def _spread(opaque: bytes) -> Array:
    """Spread the view from the agent's cell row by row, as the library does (``Grid.process_vis``)."""
    mask = np.zeros((VIEW, VIEW), np.int64)
    mask[VIEW - 1, VIEW // 2] = 1
    for row in range(VIEW - 1, -1, -1):
        for columns, step in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
            for column in columns:
                if not mask[row, column] or opaque[row * VIEW + column]:
                    continue
                mask[row, column + step] = 1
                if row:
                    mask[row - 1, column + step] = 1
                    mask[row - 1, column] = 1
    return mask.ravel()
