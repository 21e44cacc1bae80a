"""A log-linear policy: a softmax over admissible commands whose scores are sums of hashed indicator weights.

It trains in seconds on one core, so that credit rules can be compared on a laptop; the indicators are a reconstruction
(the reference runs' own).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import Floats, Ints
from steelyard.policy.household.tracker import HouseholdTracker, appliance, base, command_words, task_words
from steelyard.policy.rollouts import Turn, check_count, credit_of

BINS = 2**14
_MOST_REPEATS = 3


class Features(Protocol):
    """What a log-linear policy sees of a command; a key stands for all that its indicators depend on."""

    def begin(self, observation: str, info: Mapping[str, Any]) -> Any:
        """Return the memory of a new episode."""
        ...

    def keys(self, memory: Any, observation: str, admissible: Sequence[str]) -> list[Hashable]:
        """Return a key for every admissible command."""
        ...

    def indicators(self, key: Any) -> tuple[Any, ...]:
        """Return the indicators that are on for a key; always equally many."""
        ...

    def observe(self, memory: Any, command: str, observation: str) -> None:
        """Take in what a command was answered."""
        ...


class Trace(NamedTuple):
    """A choice among commands: their rows in the table of features, their probabilities, which was taken, and how.

    The probabilities are those at the temperature of the draw. Rows are numbers in the table of the policy that chose,
    which its copies share and no other policy does: only they can learn from it.
    """

    rows: Ints
    probabilities: Floats
    chosen: int
    temperature: float = 1.0


class Adam:
    """Adam's ascent on one array, bias-corrected.

    Raises:
        InputError: A number out of range.
    """

    def __init__(self, shape: int, learning_rate: float, betas: tuple[float, float], eps: float = 1e-8) -> None:
        check_number("learning_rate", learning_rate, low=0.0)
        pair = isinstance(betas, tuple | list) and len(betas) == 2
        if not pair or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
            raise InputError(f"betas must be two numbers of at least 0 and below 1, got {betas!r}")
        self.first, self.second, self.count = np.zeros(shape), np.zeros(shape), 0
        self.learning_rate, self.betas, self.eps = learning_rate, betas, eps

    def step(self, gradient: Floats) -> Floats:
        """Return what is to be added to the weights."""
        one, two = self.betas
        self.count += 1
        self.first = one * self.first + (1 - one) * gradient
        self.second = two * self.second + (1 - two) * gradient * gradient
        scale = np.sqrt(self.second / (1 - two**self.count)) + self.eps
        return np.asarray(self.learning_rate * self.first / (1 - one**self.count) / scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the number of steps."""
        return {"first": self.first.copy(), "second": self.second.copy(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; :func:`loaded_weights` has looked at it."""
        self.first, self.second = (np.array(state[name], np.float64) for name in ("first", "second"))
        self.count = int(state["count"])


class HashedSoftmax:
    """Choices among keyed options by a softmax of summed hashed weights; the table of features grows as keys come."""

    def __init__(self, indicators: Any, bins: int) -> None:
        self._indicators, self._bins = indicators, bins
        self._rows: dict[Hashable, int] = {}
        self._bin_of: dict[Any, int] = {}
        self._table: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def rows(self, keys: Iterable[Hashable]) -> Ints:
        """Return the row of each key in the table of features."""
        known = self._rows
        found = []
        for key in keys:
            row = known.get(key)
            if row is None:
                row = self._add(key)
            found.append(row)
        return np.array(found, np.int64)

    def _add(self, key: Hashable) -> int:
        bins = [self._bin(indicator) for indicator in self._indicators(key)]
        row = len(self._rows)
        if row == len(self._table):
            grown = np.zeros((max(1024, 2 * row), len(bins)), np.int64)
            grown[:row] = self._table[:row] if row else 0
            self._table = grown
        self._table[row] = bins
        self._rows[key] = row
        return row

    def _bin(self, indicator: Any) -> int:
        found = self._bin_of.get(indicator)
        if found is None:
            found = self._bin_of[indicator] = crc32(repr(indicator).encode()) % self._bins
        return found

    def choose(
        self, weights: Floats, options: Sequence[Ints], rng: np.random.Generator, temperature: float
    ) -> list[Trace]:
        """Return a choice for each list of option rows; temperature 0 takes the likeliest, ties at random."""
        parts = self.probabilities(weights, options, temperature)
        sizes = np.array([len(rows) for rows in options])
        starts = np.cumsum(sizes) - sizes
        flat = np.concatenate(parts)
        total = np.cumsum(flat)
        before, last = total[starts] - flat[starts], starts + sizes - 1
        draws = before + rng.random(len(sizes)) * (total[last] - before)
        picked = np.clip(np.searchsorted(total, draws, side="right"), starts, last) - starts
        return [Trace(*trace, temperature) for trace in zip(options, parts, picked.tolist(), strict=True)]

    def probabilities(self, weights: Floats, options: Sequence[Ints], temperature: float = 1.0) -> list[Floats]:
        """Return the probabilities of each list of option rows; without any list raises InputError."""
        if not len(options):
            raise InputError("options: there is no choice to make, or no walkthrough to imitate")
        sizes = np.array([len(rows) for rows in options])
        starts = np.cumsum(sizes) - sizes
        scores = weights[self._table[np.concatenate(options)]].sum(axis=1)
        return np.split(softmax(scores, starts, sizes, temperature), starts[1:])

    def gradient(self, traces: Sequence[Trace], advantages: Floats | Mapping[str, Floats]) -> Floats:
        """Return the gradient of the mean over choices of advantage times log probability, (bins,).

        The probability is that of the draw, at its temperature T: its logarithm's derivative has the factor 1 / T.

        Raises:
            InputError: What :func:`credit_of` refuses, such as choices at temperature 0.
        """
        temperatures = np.array([trace.temperature for trace in traces])
        share = credit_of(traces, advantages) / len(traces) / temperatures
        sizes = np.array([len(trace.rows) for trace in traces])
        factors = -np.concatenate([trace.probabilities for trace in traces]) * np.repeat(share, sizes)
        chosen = np.cumsum(sizes) - sizes + np.array([trace.chosen for trace in traces])
        factors[chosen] += share
        bins = self._table[np.concatenate([trace.rows for trace in traces])]
        return np.asarray(np.bincount(bins.ravel(), np.repeat(factors, bins.shape[1]), self._bins), np.float64)


def softmax(scores: Floats, starts: Ints, sizes: Ints, temperature: float) -> Floats:
    """Return the softmax of scores within consecutive segments; temperature 0 shares among the largest."""
    largest = np.repeat(np.maximum.reduceat(scores, starts), sizes)
    if temperature == 0:
        powers: Floats = (scores == largest).astype(np.float64)
    else:
        powers = np.asarray(np.exp((scores - largest) / temperature), np.float64)
    return np.asarray(powers / np.repeat(np.add.reduceat(powers, starts), sizes))


class LogLinearPolicy:
    """A softmax over admissible commands; `Policy` for the training loop.

    Args:
        features: What is seen of a command; None: those of the household games.
        bins: Number of weights; an indicator's weight is found by the CRC-32 of its printed form.
        learning_rate: Of Adam in :meth:`ascend`.
        betas: Of Adam.

    Raises:
        InputError: A number out of range.
    """

    segments: tuple[str, ...] = ("action",)

    def __init__(
        self,
        features: Features | None = None,
        bins: int = BINS,
        learning_rate: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        check_count("bins", bins)
        self.features: Features = HouseholdFeatures() if features is None else features
        self.bins = bins
        self.weights: Floats = np.zeros(bins)
        self._softmax = HashedSoftmax(self.features.indicators, bins)
        self._adam = Adam(bins, learning_rate, betas)

    def begin(self, observation: str, info: Mapping[str, Any]) -> Any:
        """Return the memory of a new episode."""
        return self.features.begin(observation, info)

    def act(
        self,
        memories: Sequence[Any],
        observations: Sequence[str],
        admissible: Sequence[Sequence[str]],
        rng: np.random.Generator,
        temperature: float,
    ) -> list[Turn]:
        """Return a command for each episode, drawn at ``temperature``."""
        options = [
            self._softmax.rows(self.features.keys(memory, observation, commands))
            for memory, observation, commands in zip(memories, observations, admissible, strict=True)
        ]
        traces = self._softmax.choose(self.weights, options, rng, temperature)
        return [Turn(commands[trace.chosen], trace) for commands, trace in zip(admissible, traces, strict=True)]

    def observe(self, memory: Any, turn: Turn, observation: str, info: Mapping[str, Any]) -> None:
        """Take in what a turn was answered."""
        self.features.observe(memory, turn.command, observation)

    def gradient(self, traces: Sequence[Trace], advantages: Floats | Mapping[str, Floats]) -> Floats:
        """Return the gradient of the mean over turns of advantage times log probability, (bins,).

        Raises:
            InputError: No turn, one at temperature 0, or another number of advantages.
        """
        return self._softmax.gradient(traces, advantages)

    def ascend(self, traces: Sequence[Trace], advantages: Floats | Mapping[str, Floats]) -> None:
        """Take one step of Adam up :meth:`gradient`, which says what it refuses."""
        self.weights = self.weights + self._adam.step(self.gradient(traces, advantages))

    def fit_bc(self, games: Sequence[Any], epochs: int = 3, learning_rate: float = 2.0) -> None:
        """Imitate the games' walkthroughs by full-batch steps up the mean log likelihood.

        Args:
            games: Games with ``make_env`` and ``walkthrough``.
            epochs: Number of steps.
            learning_rate: Factor of the gradient.

        Raises:
            InputError: No game, or a walkthrough's command is not admissible when its turn comes.
        """
        shown = [step for game in games for step in self._shown(game)]
        for _ in range(epochs):
            parts = self._softmax.probabilities(self.weights, [rows for rows, _ in shown])
            traces = [Trace(rows, part, chosen) for (rows, chosen), part in zip(shown, parts, strict=True)]
            self.weights = self.weights + learning_rate * self.gradient(traces, np.ones(len(traces)))

    def _shown(self, game: Any) -> list[tuple[Ints, int]]:
        """Return the options and the expert's choice of every step of a walkthrough."""
        env: TextEnv = game.make_env(max_steps=len(game.walkthrough) + 1)
        observation, info = env.reset()
        memory = self.features.begin(observation, info)
        steps = []
        for command in game.walkthrough:
            commands = info["admissible"]
            if command not in commands:
                raise InputError(f"games: the walkthrough's '{command}' is not admissible in {game.name}")
            steps.append(
                (self._softmax.rows(self.features.keys(memory, observation, commands)), commands.index(command))
            )
            observation, _, _, _, info = env.step(command)
            self.features.observe(memory, command, observation)
        return steps

    def copy(self) -> LogLinearPolicy:
        """Return a policy with the same weights, and an optimiser of its own that has taken no step."""
        other = LogLinearPolicy(self.features, self.bins, self._adam.learning_rate, self._adam.betas)
        other.weights, other._softmax = self.weights.copy(), self._softmax  # the table only ever grows
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimiser's state as arrays."""
        return {"weights": self.weights.copy(), **self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: It is no state, or that of a policy with another number of weights; nothing of it is taken.
        """
        self.weights = loaded_weights(state, self.bins)
        self._adam.load_state_dict(state)


def loaded_weights(state: Mapping[str, Any], bins: int) -> Floats:
    """Return the weights of a state all of whose parts are what a policy with ``bins`` weights needs.

    Raises:
        InputError: A part is missing, of another shape, or holds what no training leaves.
    """
    if not isinstance(state, Mapping):
        raise InputError(f"state: it must be what state_dict() returned, got {type(state).__name__}")
    for name in ("weights", "first", "second"):
        try:
            values = np.asarray(state.get(name), np.float64)
        except (TypeError, ValueError):
            raise InputError(f"state: its {name} must be an array of numbers") from None
        if values.shape != (bins,):
            raise InputError(f"state: it has {name} of shape {values.shape}, the policy {(bins,)}")
        if not np.isfinite(values).all() or (name == "second" and values.min() < 0):
            raise InputError(f"state: its {name} hold a number that no training leaves")
    count = state.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InputError(f"state: its count must be a whole number of at least 0, got {count!r}")
    return np.array(state["weights"], np.float64)


@dataclass
class HouseholdMemory:
    """What the household features remember of an episode."""

    tracker: HouseholdTracker
    appliance: str
    words: frozenset[str]
    visited: set[str] = field(default_factory=set)
    repeats: Counter[str] = field(default_factory=Counter)
    last: str = ""
    last_verb: str = ""


class HouseholdFeatures:
    """The thirteen indicators of the household games (reconstruction), from the agent's own commands and answers."""

    def __init__(self, indicators: int = 13) -> None:
        self._count = indicators
        self._static: dict[tuple[str, str], tuple[Any, ...]] = {}

    def begin(self, observation: str, info: Mapping[str, Any]) -> HouseholdMemory:
        """Return the memory of a new episode; ``info`` has the task's sentence."""
        task = info["task"]
        return HouseholdMemory(HouseholdTracker(task), appliance(task), task_words(task))

    def keys(self, memory: HouseholdMemory, observation: str, admissible: Sequence[str]) -> list[Hashable]:
        """Return (what the command is to the task, was its place visited, repeats, is it the last, memory)."""
        tracker = memory.tracker
        state = (tracker.hold[0], memory.appliance, tracker.done, tracker.placed, memory.last_verb)
        return self.keyed(memory, admissible, state)

    def keyed(self, memory: HouseholdMemory, admissible: Sequence[str], state: tuple[Any, ...]) -> list[Hashable]:
        """Return the keys of commands where ``state`` is (held, appliance, done, placed, last verb)."""
        task, static, visited, repeats, last = (
            memory.tracker.task,
            self._static,
            memory.visited,
            memory.repeats,
            memory.last,
        )
        keys: list[Hashable] = []
        for command in admissible:
            known = static.get((task, command))
            if known is None:
                known = static[task, command] = self._parsed(command, memory)
            count = repeats.get(command, 0)
            keys.append((known[0], known[1] in visited, count, command == last, state))
        return keys

    def _parsed(self, command: str, memory: HouseholdMemory) -> tuple[Any, ...]:
        """Return what a command is to the task, as `indicators` takes it apart, and its receptacle."""
        verb, thing, place = command_words(command)
        name = base(place)
        return (verb, base(thing) in memory.words, name in memory.words, name, name == memory.appliance), place

    def indicators(self, key: Any) -> tuple[Any, ...]:
        """Return the indicators of a key, each a tuple that begins with its number."""
        (v, ot, rt, r, isop), vi, rep, same, (h, op, done, placed, last_verb) = key
        return (
            (0, v),
            (1, v, h),
            (2, v, h, op, done),
            (3, v, ot, rt),
            (4, v, h, ot, rt, placed),
            (5, v, vi, h),
            (6, v, rt, vi, h, done),
            (7, v, isop, h, done),
            (8, v, r, op, h),
            (9, v, rep),
            (10, v, same),
            (11, v, last_verb, ot),
            (12, v, r, rep > 0),
        )[: self._count]

    def observe(self, memory: HouseholdMemory, command: str, observation: str) -> None:
        """Take in what a command was answered."""
        memory.tracker.observe(command, observation)
        verb, _, place = command_words(command)
        if verb == "go":
            memory.visited.add(place)
        memory.last, memory.last_verb = command, verb
        memory.repeats[command] = min(memory.repeats[command] + 1, _MOST_REPEATS)
