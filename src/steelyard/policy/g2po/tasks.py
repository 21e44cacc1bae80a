"""The bench's tasks: a chain whose values are known, games made here, and the official ALFWorld games."""

from __future__ import annotations

import hashlib

import numpy as np

from steelyard.contracts import Arrays, Task
from steelyard.data.household import read_household_games

MADE, OFFICIAL = "household", "alfworld"
_MADE_SOURCE = "made up: household games with the rules of ALFWorld"
OFFICIAL_SOURCE = "ALFWorld's official games (json_2.1.1), MIT"


def chain() -> Arrays:
    """Return what the chain is made of: places, where rollouts start, how often they go the right way."""
    return {"length": np.array(10), "start": np.array(4), "right": np.array(0.6), "horizon": np.array(60)}


def made() -> Arrays:
    """Return how many games are made: to imitate, to train on, to hold out."""
    return {"imitate": np.array(20), "train": np.array(60), "hold_out": np.array(60)}


def official() -> Arrays:
    """Return the names of the official games and a digest of their problems."""
    rows = read_household_games()
    digest = hashlib.sha256("\x1f".join(row.pddl_problem for row in rows).encode()).hexdigest()
    names = np.array([f"{row.split}/{row.name}/{row.trial}" for row in rows])
    return {"names": names, "digest": np.array(digest), "imitate": np.array(40)}


MADE_TASK = Task(MADE, "Household games made here, 60 held out", made, _MADE_SOURCE)
OFFICIAL_TASK = Task(OFFICIAL, "ALFWorld, 134 unseen games", official, OFFICIAL_SOURCE, dataset="alfworld_games")
TASKS = (
    Task("chain", "Key-door chain, 20 states with exact values", chain, "made up: every value is computed exactly"),
    MADE_TASK,
    OFFICIAL_TASK,
)
