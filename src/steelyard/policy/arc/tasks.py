"""The bench's tasks: household games made here, and the official ALFWorld games."""

from __future__ import annotations

from steelyard.policy.games import MADE_TASK, OFFICIAL_TASK

TASKS = (MADE_TASK, OFFICIAL_TASK)
