"""The bench's tasks: linear clients at four sample sizes, MiniGrid levels and pendulums with planted groups."""

from __future__ import annotations

import numpy as np

from steelyard.contracts import Arrays, Task

LINEAR_SIZES = (60, 150, 400, 1500)
LEVELS = ("doorkey5", "lavagap5", "crossing", "unlock")
GRID_GROUPS = 2
_MADE = "made up: a random walk on a grid whose values are linear in known features"


def linear(transitions: int) -> Arrays:
    """Return what linear clients are made of: planted groups, members of each, and transitions of a client."""
    return {"groups": np.array(3), "members": np.array(4), "transitions": np.array(transitions)}


def minigrid() -> Arrays:
    """Return the levels, each played by one client of every planted group."""
    return {"levels": np.array(LEVELS), "groups": np.array(GRID_GROUPS)}


def _linear_task(transitions: int) -> Task:
    label = f"Linear values, 12 clients in 3 groups, {transitions:,} transitions each"
    return Task(f"linear_{transitions}", label, lambda: linear(transitions), _MADE)


TASKS = (
    *(_linear_task(size) for size in LINEAR_SIZES),
    Task("minigrid", "MiniGrid, 8 clients: 4 levels, actions in 2 orders", minigrid, "MiniGrid 3, Apache-2.0"),
)
