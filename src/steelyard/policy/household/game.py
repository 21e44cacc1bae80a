"""A household game: its task, its expert's walkthrough, and its rules, which are read on first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.data.records import parse_json, read_text
from steelyard.errors import InputError
from steelyard.policy.household.goal import State, compile_goal, goal_types
from steelyard.policy.household.pddl import read_problem
from steelyard.policy.household.rules import Rules, make_rules

if TYPE_CHECKING:
    from steelyard.policy.household.env import HouseholdEnv

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six kinds of tasks."""
_TASK = "Your task is to: "


@dataclass(frozen=True, eq=False)
class HouseholdGame:
    """One game.

    Attributes:
        name: Kind, object, movable receptacle, receptacle and scene, joined by "-".
        trial: Which recording of that name.
        task: The sentence that says what to do, such as "put a clean mug in coffeemachine.".
        pddl_problem: The problem: objects, initial facts and goal.
        walkthrough: Commands of an expert that win.
        split: ``"train"``, ``"valid_seen"``, ``"valid_unseen"`` or ``""``.
    """

    name: str
    trial: str
    task: str
    pddl_problem: str
    walkthrough: tuple[str, ...]
    split: str = ""

    @property
    def kind(self) -> str:
        """Which of the six kinds of tasks, `KINDS`."""
        return self.name.partition("-")[0]

    @property
    def optimal_steps(self) -> int:
        """Length of the walkthrough, an upper bound of the shortest solution (reconstruction)."""
        return len(self.walkthrough)

    @cached_property
    def rules(self) -> Rules:
        """What no command changes."""
        try:
            return make_rules(read_problem(self.pddl_problem))
        except InputError as error:
            raise InputError(f"game {self.name}/{self.trial}: {error}") from None

    @cached_property
    def won(self) -> Callable[[State], bool]:
        """Says whether a state fulfils the goal."""
        try:
            return compile_goal(self.rules)
        except InputError as error:
            raise InputError(f"game {self.name}/{self.trial}: {error}") from None

    @cached_property
    def targets(self) -> tuple[frozenset[int], frozenset[int]]:
        """The objects and the receptacles of the types that the goal names."""
        things, receptacles = goal_types(self.rules)
        return (
            frozenset(number for number, kind in enumerate(self.rules.object_types) if kind in things),
            frozenset(number for number, kind in enumerate(self.rules.receptacle_types) if kind in receptacles),
        )

    def make_env(self, max_steps: int = 30, reward: float = 1.0) -> HouseholdEnv:
        """Return an environment that plays the game."""
        from steelyard.policy.household.env import HouseholdEnv

        return HouseholdEnv(self, max_steps=max_steps, reward=reward)

    @classmethod
    def from_tw_pddl(cls, path: str | os.PathLike[str]) -> HouseholdGame:
        """Return the game of a ``game.tw-pddl`` file, as ALFWorld's own download has them.

        Raises:
            InputError: The file is missing, no such JSON, of another domain, or states a goal that is not known.
        """
        path = Path(path)
        value = parse_json(read_text(path), str(path))
        if not isinstance(value, dict):
            raise InputError(f"{path.name}: it must be a JSON object, got a {type(value).__name__}")
        for field, kind in (("pddl_problem", str), ("grammar", str), ("walkthrough", list)):
            if not isinstance(value.get(field), kind):
                raise InputError(f"{path.name}: the field '{field}' is missing or no {kind.__name__}")
        game = cls(
            name=path.parent.parent.name,
            trial=path.parent.name,
            task=_task_of(value["grammar"], path.name),
            pddl_problem=" ".join(value["pddl_problem"].split()),
            walkthrough=_commands(value["walkthrough"], path.name),
            split=path.parent.parent.parent.name,
        )
        _ = game.won  # an unknown domain or goal is told now, not while playing
        return game


def _task_of(grammar: str, where: str) -> str:
    place = grammar.find(_TASK)
    end = grammar.find('"', place)
    if place < 0 or end < 0:
        raise InputError(f"{where}: the grammar has no sentence '{_TASK}…'")
    return grammar[place + len(_TASK) : end]


def _commands(value: list[Any], where: str) -> tuple[str, ...]:
    for command in value:
        if not isinstance(command, str):
            raise InputError(f"{where}: the walkthrough must be a list of commands, got {command!r}")
    return tuple(value)
