"""A corridor with a key at one end and a door at the other: every value is known exactly, and the text lies.

What an agent reads names its place alone, so that the way to the key and the way back with it read the same: grouping
by the text mixes two states. Twenty states with ten places (reconstruction).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.groups import Floats
from steelyard.policy.rollouts import Turn

LEFT, RIGHT, TAKE, OPEN = "go left", "go right", "take key", "open door"
TASK = "take the key at the left end and open the door at the right end."
State = tuple[int, bool]
Behaviour = Callable[[State, Sequence[str]], Floats]
"""From a state and its commands to their probabilities."""


class KeyDoorChain:
    """The corridor as a text environment; `state_key` is (place, has the key).

    Args:
        length: Number of places, at least 3.
        start: Where the agent begins.
        max_steps: Commands after which it is cut off.
        reward: Of opening the door with the key.

    Raises:
        InputError: A length below 3, or a start outside.
    """

    def __init__(self, length: int = 10, start: int = 4, max_steps: int = 60, reward: float = 1.0) -> None:
        if length < 3:
            raise InputError(f"length must be at least 3, got {length}")
        if not 0 <= start < length:
            raise InputError(f"start must be a place from 0 to {length - 1}, got {start}")
        if max_steps < 1:
            raise InputError(f"max_steps must be at least 1, got {max_steps}")
        self.length, self.start, self.max_steps, self.reward = length, start, max_steps, reward
        self.state: State = (start, False)
        self.steps, self.over = 0, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation and ``info``; the corridor is deterministic."""
        self.state, self.steps, self.over = (self.start, False), 0, False
        return self._text(), self._info(False)

    def step(self, command: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a command; one that is not admissible does nothing.

        Raises:
            InputError: The episode has ended.
        """
        if self.over:
            raise InputError("the episode has ended; call reset() first")
        after = follow(self.state, command, self.length) if command in commands(self.state, self.length) else self.state
        won = after is None
        self.state = self.state if after is None else after
        self.steps += 1
        truncated = not won and self.steps >= self.max_steps
        self.over = won or truncated
        return self._text(), self.reward if won else 0.0, won, truncated, self._info(won)

    def state_key(self, full: bool = False) -> Hashable:
        """Return (place, has the key), which is the whole state."""
        return self.state

    def make_env(self, max_steps: int = 60, reward: float = 1.0) -> KeyDoorChain:
        """Return the same corridor afresh."""
        return KeyDoorChain(self.length, self.start, max_steps, reward)

    def _text(self) -> str:
        return f"You are in room {self.state[0]}."

    def _info(self, won: bool) -> dict[str, Any]:
        return {"admissible": commands(self.state, self.length), "task": TASK, "won": won}


def commands(state: State, length: int = 10) -> list[str]:
    """Return the commands that are offered in a state; the door is offered without the key, too."""
    place, key = state
    offered = [LEFT] if place > 0 else []
    offered += [RIGHT] if place < length - 1 else [OPEN]
    return offered + ([TAKE] if place == 0 and not key else [])


def follow(state: State, command: str, length: int = 10) -> State | None:
    """Return the state after an admissible command, None when it opens the door with the key."""
    place, key = state
    if command == TAKE:
        return place, True
    if command == OPEN:
        return None if key else state
    return place + (1 if command == RIGHT else -1), key


def optimal_steps(state: State, length: int = 10) -> int:
    """Return the fewest commands from a state to the open door."""
    place, key = state
    return length - place if key else place + 1 + length


class Exact(NamedTuple):
    """Exact values of a behaviour: of states, and of what each command leads to, by commands still to go.

    Attributes:
        value: ``value[h][state]``: expected ``gamma^(commands to the win) * R`` with ``h`` commands to go.
        advantage: ``advantage[h][state, command]``: what taking it first is worth more than the behaviour.
    """

    value: tuple[Mapping[State, float], ...]
    advantage: tuple[Mapping[tuple[State, str], float], ...]


def exact_values(
    behaviour: Behaviour, *, gamma: float = 0.95, reward: float = 1.0, horizon: int = 60, length: int = 10
) -> Exact:
    """Return the exact values of a behaviour with a limit of time, by going backwards from it.

    Args:
        behaviour: Its probabilities.
        gamma: Discount a command.
        reward: Of winning.
        horizon: Limit of time.
        length: Number of places.
    """
    states = [(place, key) for place in range(length) for key in (False, True)]
    values: list[dict[State, float]] = [dict.fromkeys(states, 0.0)]
    advantages: list[dict[tuple[State, str], float]] = [{}]
    for _ in range(horizon):
        before, value, advantage = values[-1], {}, {}
        for state in states:
            offered = commands(state, length)
            ends = [follow(state, command, length) for command in offered]
            worth = [gamma * (reward if end is None else before[end]) for end in ends]
            value[state] = float(np.dot(behaviour(state, offered), worth))
            for command, amount in zip(offered, worth, strict=True):
                advantage[state, command] = amount - value[state]
        values.append(value)
        advantages.append(advantage)
    return Exact(tuple(values), tuple(advantages))


@dataclass
class Wanderer:
    """A policy that walks the right way with probability ``right`` and does not learn; for exact values, as they are.

    Attributes:
        right: Probability of a command that shortens the way, at least 0 and at most 1.
    """

    right: float = 0.6
    length: int = 10
    segments: tuple[str, ...] = ("action",)

    def probabilities(self, state: State, offered: Sequence[str]) -> Floats:
        """Return the probability of each command; wrong ones share what is left."""
        here = optimal_steps(state, self.length)
        good = np.array(
            [
                (end := follow(state, command, self.length)) is None or optimal_steps(end, self.length) < here
                for command in offered
            ]
        )
        if good.all() or not good.any():
            return np.full(len(offered), 1 / len(offered))
        return np.asarray(np.where(good, self.right / good.sum(), (1 - self.right) / (~good).sum()))

    def begin(self, observation: str, info: Mapping[str, Any]) -> list[State]:
        """Return the memory: the state, which it keeps itself."""
        return [(int(observation.rstrip(".").rpartition(" ")[2]), False)]

    def act(
        self, memories: Any, observations: Any, admissible: Any, rng: np.random.Generator, temperature: float
    ) -> list[Turn]:
        """Return a command for each episode."""
        turns = []
        for memory, offered in zip(memories, admissible, strict=True):
            share = np.cumsum(self.probabilities(memory[0], offered))
            turns.append(Turn(offered[min(int(np.searchsorted(share, rng.random())), len(offered) - 1)], None))
        return turns

    def observe(self, memory: list[State], turn: Turn, observation: str, info: Mapping[str, Any]) -> None:
        """Follow the state."""
        memory[0] = follow(memory[0], turn.command, self.length) or memory[0]

    def ascend(self, traces: Any, advantages: Any) -> None:
        """Learn nothing."""

    def copy(self) -> Wanderer:
        """Return itself."""
        return self
