"""A SIMULATED agent: a rule that turns a contract into a chance of success. No model runs, and no task is carried out.

It exists to see how missing skills, a wrong start and distraction trade off, and is no evidence about real agents.
"""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.errors import InputError

DISTRACTION = 0.03
"""Share of successes that every skill beyond the required ones costs; chosen, not measured."""


def simulated_success(
    chosen: Sequence[str], start: str | None, required: Sequence[str], budget: int, distraction: float = DISTRACTION
) -> float:
    """Return the chance that the simulated agent succeeds (reconstruction of a rule, not of an agent).

    (1 - distraction)^(skills beyond the required) if min(|required|, budget) required skills are there and the first
    skill executed is a required one; else 0.

    Args:
        chosen: The skills handed to the agent.
        start: The one that it executes first: the contract's START, a flat list's first.
        required: Skills that the task needs, at least one.
        budget: Most skills that could be handed over, at least 1.
        distraction: From 0 to 1.

    Raises:
        InputError: Nothing is required, or a number is out of range.
    """
    wanted = set(required)
    if not wanted:
        raise InputError("required is empty: the simulated agent has nothing to succeed at")
    if budget < 1 or not 0 <= distraction <= 1:
        raise InputError(f"budget must be at least 1 and distraction from 0 to 1, got {budget} and {distraction}")
    there = wanted & set(chosen)
    if len(there) < min(len(wanted), budget) or start not in wanted:
        return 0.0
    return float((1 - distraction) ** (len(set(chosen)) - len(there)))
