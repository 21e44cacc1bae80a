"""A small policy that commits itself: its only memory of the task's state is its own last progress statement.

Five decisions a turn of one log-linear model (reconstruction, the reference runs' own): what is held, whether it was
transformed, how many targets are placed, the command, and what will be seen next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.arc.commitment import CommitmentWrapper
from steelyard.policy.arc.format import CommitmentFormat
from steelyard.policy.arc.verifiers import RuleVerifier
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import Floats, Ints
from steelyard.policy.household.tracker import (
    CLASSES,
    NONE,
    OTHER,
    TARGET,
    HouseholdTracker,
    base,
    command_words,
    observation_class,
)
from steelyard.policy.loglinear import (
    BINS,
    Adam,
    HashedSoftmax,
    HouseholdFeatures,
    HouseholdMemory,
    Trace,
    loaded_weights,
)
from steelyard.policy.rollouts import Turn

HEADS: Mapping[str, tuple[str, ...]] = {
    "hold": (NONE, TARGET, OTHER),
    "done": ("no", "yes"),
    "placed": ("0", "1", "2"),
}
"""What a progress statement says, and its values; the first ones are true at the start."""
SILENT = ""
_INDICATORS = 12


class CommitmentTrace(NamedTuple):
    """The choices of a turn: the three parts of the statement, the command, the prediction."""

    heads: tuple[Trace, ...]
    action: Trace
    prediction: Trace


@dataclass
class CommitmentMemory:
    """What the policy remembers: of the task's state only what it said itself."""

    household: HouseholdMemory
    said: dict[str, str]
    last_class: str = "misc"
    last_target: bool = False


class CommitmentPolicy:
    """A policy whose turns are texts with a progress statement, a command and a prediction.

    Args:
        bins: Number of weights.
        learning_rate: Of Adam in :meth:`ascend`.
        betas: Of Adam.
        silence: Whether a part of the statement may be left unsaid; what was said before then stands.
        form: The tags of a turn.
    """

    segments: tuple[str, ...] = ("progress", "action", "prediction")

    def __init__(
        self,
        bins: int = BINS,
        learning_rate: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.99),
        *,
        silence: bool = False,
        form: CommitmentFormat | None = None,
    ) -> None:
        self.bins, self.silence, self.form = bins, silence, form or CommitmentFormat()
        self.weights: Floats = np.zeros(bins)
        self.features = HouseholdFeatures(_INDICATORS)
        self._statements = HashedSoftmax(_statement_indicators, bins)
        self._actions = HashedSoftmax(self.features.indicators, bins)
        self._predictions = HashedSoftmax(_prediction_indicators, bins)
        self._adam = Adam(bins, learning_rate, betas)
        self._values = {name: (*values, SILENT) if silence else values for name, values in HEADS.items()}

    def begin(self, observation: str, info: Mapping[str, Any]) -> CommitmentMemory:
        """Return the memory of a new episode; nothing is held, transformed or placed."""
        return CommitmentMemory(
            self.features.begin(observation, info), {name: values[0] for name, values in HEADS.items()}
        )

    def act(
        self,
        memories: Sequence[CommitmentMemory],
        observations: Sequence[str],
        admissible: Sequence[Sequence[str]],
        rng: np.random.Generator,
        temperature: float,
    ) -> list[Turn]:
        """Return a turn for each episode: statements first, then a command by what they say, then a prediction."""
        options = [self._statements.rows(keys) for memory in memories for keys in self._statement_keys(memory)]
        stated = self._statements.choose(self.weights, options, rng, temperature)
        heads = [tuple(stated[place : place + len(HEADS)]) for place in range(0, len(stated), len(HEADS))]
        for memory, traces in zip(memories, heads, strict=True):
            self._state(memory, traces)
        options = [
            self._actions.rows(self._action_keys(memory, commands))
            for memory, commands in zip(memories, admissible, strict=True)
        ]
        acted = self._actions.choose(self.weights, options, rng, temperature)
        commands = [of[trace.chosen] for of, trace in zip(admissible, acted, strict=True)]
        options = [
            self._predictions.rows(_prediction_keys(memory, command))
            for memory, command in zip(memories, commands, strict=True)
        ]
        foreseen = self._predictions.choose(self.weights, options, rng, temperature)
        return [
            Turn(self._text(said, command, CLASSES[last.chosen]), CommitmentTrace(said, middle, last))
            for said, middle, last, command in zip(heads, acted, foreseen, commands, strict=True)
        ]

    def observe(self, memory: CommitmentMemory, turn: Turn, observation: str, info: Mapping[str, Any]) -> None:
        """Take in what a turn was answered; the statement is not mended by it."""
        said = info.get("commitment") or self.form.parse(turn.command)  # the wrapper has read it already
        self.take_in(memory, said.action or "", observation)

    def take_in(self, memory: CommitmentMemory, command: str, observation: str) -> None:
        """Take in what a command was answered."""
        household = memory.household
        self.features.observe(household, command, observation)
        memory.last_class = observation_class(observation, household.words)
        memory.last_target = base(command_words(command)[1]) in household.words

    def ascend(self, traces: Sequence[CommitmentTrace], advantages: Floats | Mapping[str, Floats]) -> None:
        """Take one step of Adam up the mean over turns of advantage times log probability.

        ``advantages`` is one array for all decisions of a turn, or one for each of "progress" (or "hold", "done" and
        "placed"), "action" and "prediction".
        """
        if not isinstance(advantages, Mapping):
            advantages = dict.fromkeys(self.segments, advantages)
        self.weights = self.weights + self._adam.step(self.gradient(traces, advantages))

    def gradient(self, traces: Sequence[CommitmentTrace], advantages: Mapping[str, Floats]) -> Floats:
        """Return the gradient of the mean over turns of advantage times log probability, (bins,)."""
        total = self._actions.gradient([trace.action for trace in traces], np.asarray(advantages["action"]))
        total += self._predictions.gradient(
            [trace.prediction for trace in traces], np.asarray(advantages["prediction"])
        )
        for place, name in enumerate(HEADS):
            values = advantages[name] if name in advantages else advantages["progress"]
            total += self._statements.gradient([trace.heads[place] for trace in traces], np.asarray(values))
        return total

    def fit_bc(self, games: Sequence[Any], epochs: int = 6, learning_rate: float = 2.0, head_epochs: int = 20) -> None:
        """Imitate walkthroughs in which every statement is true, by full-batch steps.

        Args:
            games: Games with ``make_env`` and ``walkthrough``.
            epochs: Steps for the command.
            learning_rate: Factor of the gradient.
            head_epochs: Steps for statements and predictions.
        """
        shown = [step for game in games for step in self._shown(game)]
        ones = np.ones(len(shown))
        parts: list[tuple[HashedSoftmax, list[tuple[Ints, int]], int]] = [
            (self._actions, [step[1] for step in shown], epochs),
            (self._predictions, [step[2] for step in shown], head_epochs),
            *((self._statements, [step[0][place] for step in shown], head_epochs) for place in range(len(HEADS))),
        ]
        for head, choices, times in parts:
            for _ in range(times):
                self.weights = self.weights + learning_rate * head.gradient(_traces(head, self.weights, choices), ones)

    def _shown(self, game: Any) -> list[tuple[list[tuple[Ints, int]], tuple[Ints, int], tuple[Ints, int]]]:
        """Return the choices of an expert whose statements are true, for every step of a walkthrough."""
        env: TextEnv = game.make_env(max_steps=len(game.walkthrough) + 1)
        observation, info = env.reset()
        memory, tracker, steps = self.begin(observation, info), HouseholdTracker(info["task"]), []
        for command in game.walkthrough:
            if command not in info["admissible"]:
                raise InputError(f"games: the walkthrough's '{command}' is not admissible in {game.name}")
            truth = tracker.facts()
            said = [
                (self._statements.rows(keys), self._values[name].index(truth[name]))
                for name, keys in zip(HEADS, self._statement_keys(memory), strict=True)
            ]
            memory.said.update(truth)
            keys = self._action_keys(memory, info["admissible"])
            acted = (self._actions.rows(keys), info["admissible"].index(command))
            expected = self._predictions.rows(_prediction_keys(memory, command))
            observation, _, _, _, info = env.step(command)
            steps.append((said, acted, (expected, CLASSES.index(tracker.seen(observation)["next"]))))
            tracker.observe(command, observation)
            self.take_in(memory, command, observation)
        return steps

    def _state(self, memory: CommitmentMemory, traces: Sequence[Trace]) -> None:
        for (name, values), trace in zip(self._values.items(), traces, strict=True):
            if values[trace.chosen] != SILENT:
                memory.said[name] = values[trace.chosen]

    def _statement_keys(self, memory: CommitmentMemory) -> list[list[Hashable]]:
        """Return for each part of the statement the keys of its values."""
        verb, kind, said = memory.household.last_verb, memory.last_class, memory.said
        seen: dict[str, tuple[Any, ...]] = {
            "hold": ((said["hold"], verb, kind, memory.last_target), (said["hold"],), (verb, memory.last_target)),
            "done": ((said["done"], verb, kind), (said["done"],), (verb,)),
            "placed": ((said["placed"], verb, said["hold"]), (said["placed"],), (verb,)),
        }
        return [[(name, value, seen[name]) for value in values] for name, values in self._values.items()]

    def _action_keys(self, memory: CommitmentMemory, commands: Sequence[str]) -> list[Hashable]:
        household, said = memory.household, memory.said
        state = (said["hold"][0], household.appliance, said["done"] == "yes", int(said["placed"]), household.last_verb)
        return self.features.keyed(household, commands, state)

    def _text(self, heads: Sequence[Trace], command: str, expected: str) -> str:
        pairs = (
            (name, values[trace.chosen]) for (name, values), trace in zip(self._values.items(), heads, strict=True)
        )
        progress = "; ".join(f"{name}={value}" for name, value in pairs if value != SILENT)
        return self.form.render(progress=progress, action=command, prediction=f"next={expected}")

    def copy(self) -> CommitmentPolicy:
        """Return a policy with the same weights, and an optimiser of its own that has taken no step."""
        other = CommitmentPolicy(
            self.bins, self._adam.learning_rate, self._adam.betas, silence=self.silence, form=self.form
        )
        other.weights = self.weights.copy()
        other.features = self.features
        other._statements, other._actions, other._predictions = self._statements, self._actions, self._predictions
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimiser's state as arrays."""
        return {"weights": self.weights.copy(), **self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.weights = loaded_weights(state, self.bins)
        self._adam.load_state_dict(state)


def committed(env: TextEnv, *, format_penalty: float = 0.0, silence: bool = False) -> CommitmentWrapper:
    """Return a household game that checks the statements of a `CommitmentPolicy` by rules.

    With ``silence`` a part that is left unsaid is not counted as wrong, as in free-form reasoning.
    """
    verifiers = {
        "progress": RuleVerifier(required=() if silence else tuple(HEADS)),
        "prediction": RuleVerifier(required=("next",)),
    }
    return CommitmentWrapper(env, verifiers, tracker=HouseholdTracker, format_penalty=format_penalty)


def _traces(head: HashedSoftmax, weights: Floats, choices: Sequence[tuple[Ints, int]]) -> list[Trace]:
    options = [rows for rows, _ in choices]
    parts = head.probabilities(weights, options)
    return [Trace(rows, part, chosen) for (rows, chosen), part in zip(choices, parts, strict=True)]


def _statement_indicators(key: Any) -> tuple[Any, ...]:
    name, value, seen = key
    return tuple((name, place, part, value) for place, part in enumerate(seen))


def _prediction_keys(memory: CommitmentMemory, command: str) -> list[Hashable]:
    verb, thing, place = command_words(command)
    known = (verb, base(place), place in memory.household.visited, base(thing) in memory.household.words)
    return [(value, known) for value in CLASSES]


def _prediction_indicators(key: Any) -> tuple[Any, ...]:
    value, (verb, place, visited, target) = key
    return (("next", 0, verb, value), ("next", 1, verb, place, visited, value), ("next", 2, verb, target, value))
