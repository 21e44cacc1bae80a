"""Reading the problem text of a household game: its objects, its facts, its goal."""

from __future__ import annotations

import re
from typing import NamedTuple

from steelyard.errors import InputError

Expression = str | tuple["Expression", ...]
LARGEST = 4_000_000
"""Characters of a problem; the official ones have some 60,000."""
_FACT = re.compile(r"\(([^\s()]+)((?:\s+[^\s()]+)*)\s*\)")
_TYPED = re.compile(r"([^\s()]+)\s+-\s+([^\s()]+)")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_DEEPEST = 40


class Problem(NamedTuple):
    """A problem in lower case.

    Attributes:
        objects: Name -> its type, such as ``"receptacle"``.
        facts: Predicate -> the arguments of each of its facts.
        goal: The goal as nested tuples of words.
    """

    objects: dict[str, str]
    facts: dict[str, list[tuple[str, ...]]]
    goal: Expression


def read_problem(text: str) -> Problem:
    """Return the problem that ``text`` states.

    Raises:
        InputError: A section is missing, or brackets do not match.
    """
    if len(text) > LARGEST:
        raise InputError(f"pddl_problem: it has {len(text):,} characters; at most {LARGEST:,} are read")
    lower = text.lower()
    places = [lower.find(f"(:{section}") for section in ("objects", "init", "goal")]
    if min(places) < 0 or places != sorted(places):
        raise InputError("pddl_problem: it must have the sections :objects, :init and :goal, in this order")
    objects, init, goal = (lower[start:end] for start, end in zip(places, [*places[1:], len(lower)], strict=True))
    facts: dict[str, list[tuple[str, ...]]] = {}
    for name, rest in _FACT.findall(init):
        facts.setdefault(name, []).append(tuple(rest.split()))
    parsed = expression(goal)
    if len(parsed) != 2:
        raise InputError("pddl_problem: the goal must be one expression")
    return Problem(dict(_TYPED.findall(objects)), facts, parsed[1])


def expression(text: str) -> Expression:
    """Return the first bracketed expression of ``text`` as nested tuples of words.

    Raises:
        InputError: A bracket is not closed, or they are nested more than 40 deep.
    """
    open_: list[list[Expression]] = []
    for token in _TOKEN.findall(text):
        if token == "(":  # noqa: S105 - a bracket
            if len(open_) == _DEEPEST:
                raise InputError(f"pddl_problem: the goal is nested more than {_DEEPEST} deep")
            open_.append([])
        elif token == ")" and open_:  # noqa: S105
            done = tuple(open_.pop())
            if not open_:
                return done
            open_[-1].append(done)
        elif open_:
            open_[-1].append(token)
    raise InputError("pddl_problem: a bracket of the goal is not closed")
