"""The bench's tasks: a chain whose values are known, games made here, and the official ALFWorld games."""

from __future__ import annotations

import numpy as np

from steelyard.contracts import Arrays, Task
from steelyard.policy.games import MADE_TASK, OFFICIAL_TASK


def chain() -> Arrays:
    """Return what the chain is made of: places, where rollouts start, how often they go the right way."""
    return {"length": np.array(10), "start": np.array(4), "right": np.array(0.6), "horizon": np.array(60)}


TASKS = (
    Task("chain", "Key-door chain, 20 states with exact values", chain, "made up: every value is computed exactly"),
    MADE_TASK,
    OFFICIAL_TASK,
)
