"""The bench's tasks: linear clients at four sample sizes, MiniGrid levels and pendulums with planted groups."""

from __future__ import annotations

import numpy as np

from steelyard.contracts import Arrays, Task
from steelyard.fed.gadaphead.control import GRAVITIES

LINEAR_SIZES = (60, 150, 400, 1500)
LEVELS = ("doorkey5", "lavagap5", "fetch5", "gotodoor5")
"""Levels that a client alone can learn in the time there is: in others tried on tuning streams nobody learns at all."""
MORE_LEVELS = (*LEVELS, "gotodoor6", "lavagap6")
"""With two larger ones, where a client alone learns more slowly."""
_MADE = "made up: a random walk on a grid whose values are linear in known features"


def linear(transitions: int) -> Arrays:
    """Return what linear clients are made of: planted groups, members of each, and transitions of a client."""
    return {"groups": np.array(3), "members": np.array(4), "transitions": np.array(transitions)}


def minigrid(levels: tuple[str, ...] = LEVELS) -> Arrays:
    """Return the levels, each played by two clients that are a planted group."""
    return {"levels": np.array(levels), "copies": np.array(2)}


def pendulum() -> Arrays:
    """Return the pendulums: gravity by sign of the force; returns are shares of what long training alone reached."""
    return {
        "gravities": np.array(GRAVITIES),
        "signs": np.array((1, -1)),
        "length": np.array(500),
        "relative": np.array(True),
    }


def _linear_task(transitions: int) -> Task:
    label = f"Linear values, 12 clients in 3 groups, {transitions:,} transitions each"
    return Task(f"linear_{transitions}", label, lambda: linear(transitions), _MADE)


TASKS = (
    *(_linear_task(size) for size in LINEAR_SIZES),
    Task("minigrid", "MiniGrid, 8 clients: two on each of 4 levels", minigrid, "MiniGrid 3, Apache-2.0"),
    Task("minigrid_12", "MiniGrid, 12 clients: two on each of 6 levels", lambda: minigrid(MORE_LEVELS),
         "MiniGrid 3, Apache-2.0"),
    Task("pendulum", "Inverted pendulums, 8 clients: 4 gravities, force kept or flipped", pendulum,
         "Gymnasium's InvertedPendulum-v5, MIT; MuJoCo, Apache-2.0"),
)  # fmt: skip
