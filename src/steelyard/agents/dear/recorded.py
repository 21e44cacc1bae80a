"""Recorded answers of real language models, replayed as debate agents: the file format and the back end.

A recording is one JSON object, see `Recording`. An entry is one call of one agent, found by its key: question id,
agent, the agent's own answer before the call, the answers it read (sorted), and the behaviour it was asked for. The
first answers have behaviour "start", own answer null and nothing read; ``repeat`` counts further samples of the same
call. Answers are option indices in the question's own order; null is an answer that could not be parsed.

A recording of a few dozen questions tests the machinery. It carries no verdict. Reconstruction.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from steelyard.agents.dear.episodes import (
    BEHAVIOURS,
    KEEP,
    NO_ANSWER,
    Bools,
    Episodes,
    Floats,
    Ints,
    begin,
    checked_actions,
    random_order,
    relabel_options,
    settle,
)
from steelyard.errors import InputError, NoEffectWarning, UnsupportedError
from steelyard.models.paths import printable, usable_path

MAX_BYTES = 64 * 2**20
MAX_OPTIONS = 26
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Text = Annotated[str, Field(max_length=20_000)]
_Option = Annotated[int, Field(ge=0, lt=MAX_OPTIONS)]
_Tokens = Annotated[int, Field(ge=0, le=10**9)]
START = "start"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RecordedQuestion(_Strict):
    """One question with its options; ``answer`` is the index of the right one."""

    id: _Name
    question: _Text
    options: list[_Text] = Field(min_length=2, max_length=MAX_OPTIONS)
    answer: _Option

    @model_validator(mode="after")
    def _answer_is_an_option(self) -> Self:
        if self.answer >= len(self.options):
            raise ValueError(f"answer {self.answer} is none of the {len(self.options)} options")
        return self


class Entry(_Strict):
    """One recorded call.

    Attributes:
        question: Id of the question.
        agent: Name of the agent.
        own: The agent's answer before the call; null for none yet or none parsed.
        read: The answers it read, sorted, null last.
        behaviour: "start" for a first answer, else "revise", "critique" or "explore".
        answer: What it answered; null if that could not be parsed.
        rationale: Its text, may be empty.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        confidence: What it stated, 0..1, or its option probability; null if unknown.
        repeat: 0, or 1, 2, … for further samples of the same call.
    """

    question: _Name
    agent: _Name
    own: _Option | None = None
    read: list[_Option | None] = Field(default_factory=list, max_length=64)
    behaviour: Literal["start", "revise", "critique", "explore"]
    answer: _Option | None
    rationale: _Text = ""
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat: Annotated[int, Field(ge=0, le=1000)] = 0

    @property
    def key(self) -> Key:
        """The key it is found by."""
        return make_key(self.question, self.agent, self.own, self.read, self.behaviour, self.repeat)


class Key(NamedTuple):
    """What identifies a recorded call; answers are option indices, -1 for none."""

    question: str
    agent: str
    own: int
    read: tuple[int, ...]
    behaviour: str
    repeat: int = 0

    def __str__(self) -> str:
        said = [printable(each) for each in (self.question, self.agent)]
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return (
            f"(question {said[0]}, agent {said[1]}, own {self.own}, read {list(self.read)}, {self.behaviour}{repeat})"
        )


def make_key(
    question: str, agent: str, own: int | None, read: Sequence[int | None], behaviour: str, repeat: int = 0
) -> Key:
    """Return the key of a call; ``read`` in any order, None or -1 for no answer."""
    plain = sorted((NO_ANSWER if each is None else int(each) for each in read), key=lambda each: (each < 0, each))
    return Key(question, agent, NO_ANSWER if own is None else int(own), tuple(plain), behaviour, repeat)


class Recording(_Strict):
    """A file of recorded calls.

    Attributes:
        format: Always "steelyard-debate-recording".
        version: Always 1.
        agents: Names of the agents in order.
        source: Free notes: which models, when, where the questions come from and under which licence.
        questions: All with equally many options.
        entries: The calls; no two with one key.
    """

    format: Literal["steelyard-debate-recording"] = "steelyard-debate-recording"
    version: Literal[1] = 1
    agents: list[_Name] = Field(min_length=1, max_length=64)
    source: dict[_Name, _Text] = Field(default_factory=dict, max_length=50)
    questions: list[RecordedQuestion] = Field(min_length=1, max_length=100_000)
    entries: list[Entry] = Field(max_length=1_000_000)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        options = {question.id: len(question.options) for question in self.questions}
        if len(options) != len(self.questions) or len(set(self.agents)) != len(self.agents):
            raise ValueError("ids of questions and names of agents must be unique")
        if len(set(options.values())) > 1:
            raise ValueError("all questions must have equally many options")
        agents, size, seen = set(self.agents), len(self.questions[0].options), set[Key]()
        for row, entry in enumerate(self.entries):
            if entry.question not in options or entry.agent not in agents:
                raise ValueError(f"entry {row} is about an unknown question or agent: {entry.key}")
            if max([each for each in (entry.own, entry.answer, *entry.read) if each is not None], default=0) >= size:
                raise ValueError(f"entry {row} names an option beyond the {size} there are: {entry.key}")
            if entry.behaviour == START and (entry.own is not None or entry.read):
                raise ValueError(f"entry {row} is a first answer but has an own answer or read some: {entry.key}")
            if entry.key in seen:
                raise ValueError(f"entry {row} has the key of an earlier one: {entry.key}")
            seen.add(entry.key)
        return self

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording; the file may come from anyone.

        Raises:
            InputError: It is no file, larger than 64 MiB, no JSON, or no recording; the message says where.
        """
        place = usable_path(path)
        name = printable(place.name)
        if not place.is_file():
            raise InputError(f"path: {name} is no file; give a recording (JSON).")
        with place.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise InputError(f"path: {name} is larger than {MAX_BYTES >> 20} MiB; split the recording.")
        try:
            return cls.model_validate(json.loads(raw))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = printable(".".join(map(str, first["loc"])))[:200]
            raise InputError(
                f"path: {name} is no recording: {where or 'file'}: {printable(first['msg'])[:500]}"
            ) from None
        except (ValueError, RecursionError):
            raise InputError(f"path: {name} is no JSON file, or its numbers or nesting are too large.") from None

    def save(self, path: str | Path) -> None:
        """Write the recording with entries in order of their keys; a reader never sees half a file."""
        place = usable_path(path)
        ordered = self.model_copy(update={"entries": sorted(self.entries, key=lambda entry: entry.key)})
        rows = ordered.model_dump(mode="json")
        head = {name: rows[name] for name in rows if name != "entries"}
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows["entries"])
        beside = place.with_name(f".{place.name}.{os.getpid()}.part")
        try:
            beside.write_text(f'{text},\n "entries": [\n{lines}\n ]\n}}\n', encoding="utf-8")
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)


class RecordedAgents:
    """Agents that replay a recording.

    The options of each episode are renamed at random, so that the right one's index says nothing. A call that was not
    recorded is an error that names its key: nothing is substituted silently.

    Args:
        recording: A `Recording`, or the path of one.
        on_missing: "error", or "keep": the agent keeps its answer, the call is counted, and a warning tells how many.
    """

    def __init__(self, recording: Recording | str | Path, *, on_missing: Literal["error", "keep"] = "error") -> None:
        if on_missing not in ("error", "keep"):
            raise InputError(f"on_missing must be 'error' or 'keep', not {on_missing!r}.")
        self.recording = recording if isinstance(recording, Recording) else Recording.load(recording)
        self.on_missing = on_missing
        self.agents = tuple(self.recording.agents)
        self.questions = tuple(self.recording.questions)
        self.n_agents = len(self.agents)
        self.n_options = len(self.questions[0].options)
        self._entries = {entry.key: entry for entry in self.recording.entries}
        firsts = [entry for entry in self.recording.entries if entry.behaviour == START]
        self._states_confidence = bool(firsts) and all(entry.confidence is not None for entry in self.recording.entries)

    @property
    def draws(self) -> int:
        """Further samples recorded for every first answer: what `resample` can give."""
        draw = 1
        while all(
            make_key(question.id, agent, None, (), START, draw) in self._entries
            for question in self.questions
            for agent in self.agents
        ):
            draw += 1
        return draw - 1

    def start(self, batch: int, generator: np.random.Generator, *, items: Sequence[int] | None = None) -> Episodes:
        """Return ``batch`` debates: the questions numbered ``items``, or random ones (each once if they suffice).

        Raises:
            InputError: Unknown items, another number of them than ``batch``, or a first answer that is missing.
        """
        chosen = choose_items(batch, len(self.questions), generator, items)
        entries = [
            [self._first(int(item), agent, 0) for agent in range(self.n_agents)] for item in chosen
        ]  # a debate without its first answers cannot be played, whatever on_missing says
        order = np.broadcast_to(np.arange(self.n_options), (batch, self.n_options))
        plain = begin(
            _answers(entries),
            np.array([self.questions[int(item)].answer for item in chosen]),
            self.n_options,
            generator,
            private=order,
            items=chosen,
            confidence=_confidences(entries) if self._states_confidence else None,
            tokens=_tokens(entries),
        )
        return relabel_options(plain, random_order(batch, self.n_options, generator))

    def advance(
        self,
        episodes: Episodes,
        reads: Bools,
        behaviours: Ints,
        noise: Floats | None = None,
        generator: np.random.Generator | None = None,
    ) -> Episodes:
        """Return the debates after one round of recorded calls; ``noise`` and ``generator`` are not used.

        Raises:
            InputError: Actions that cannot be used, or a call that was not recorded (with ``on_missing="error"``).
        """
        reads, behaviours = checked_actions(episodes, reads, behaviours)
        names = _recorded_names(episodes)  # (B, K): recorded option of each label
        held = _look_up(names, episodes.answers)
        answers, tokens = held.copy(), np.zeros_like(held)
        confidence = None if episodes.confidence is None else episodes.confidence.copy()
        missing: list[Key] = []
        for b, i in zip(*np.nonzero(behaviours != KEEP), strict=True):
            question = self.questions[int(episodes.items[b])].id
            behaviour = BEHAVIOURS[int(behaviours[b, i])]
            key = make_key(question, self.agents[i], int(held[b, i]), held[b, reads[b, i]].tolist(), behaviour)
            entry = self._entries.get(key)
            if entry is None:
                missing.append(key)
                continue
            answers[b, i] = NO_ANSWER if entry.answer is None else entry.answer
            tokens[b, i] = entry.prompt_tokens + entry.completion_tokens
            if confidence is not None and entry.confidence is not None:
                confidence[b, i] = entry.confidence
        self._report(missing)
        return settle(episodes, _look_up(names.argsort(axis=1), answers), reads, behaviours, confidence, tokens)

    def resample(self, episodes: Episodes, draw: int, generator: np.random.Generator) -> Ints:
        """Return the ``draw``-th further sample of every first answer.

        Raises:
            UnsupportedError: So many samples were not recorded: self-consistency is not available.
        """
        if draw > self.draws:
            raise UnsupportedError(
                f"self-consistency is not available: the recording has {self.draws} further samples of every first "
                f"answer, and sample {draw} was asked for"
            )
        rows = [[self._first(int(item), agent, draw) for agent in range(self.n_agents)] for item in episodes.items]
        return _look_up(_recorded_names(episodes).argsort(axis=1), _answers(rows))

    def _first(self, item: int, agent: int, repeat: int) -> Entry:
        key = make_key(self.questions[item].id, self.agents[agent], None, (), START, repeat)
        if key not in self._entries:
            raise InputError(f"the recording has no first answer {key}; record it.")
        return self._entries[key]

    def _report(self, missing: list[Key]) -> None:
        if not missing:
            return
        told = f"the recording lacks {len(missing)} call(s) of this round, the first is {missing[0]}"
        if self.on_missing == "error":
            raise InputError(f"{told}; record what this controller asks for, or pass on_missing='keep'.")
        warnings.warn(f"{told}; these agents keep their answers.", NoEffectWarning, 3)


def choose_items(batch: int, size: int, generator: np.random.Generator, items: Sequence[int] | None) -> Ints:
    """Return int64 (batch,) item numbers: those given, else random ones, without repetition if ``size`` suffices.

    Raises:
        InputError: An empty batch, unknown items, or another number of them than ``batch``.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}.")
    if items is None:
        return generator.permutation(size)[:batch] if batch <= size else generator.integers(size, size=batch)
    chosen = np.asarray(items)
    if chosen.shape != (batch,) or chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= size:
        raise InputError(f"items must hold batch = {batch} item numbers 0..{size - 1}.")
    return chosen.astype(np.int64)


def _answers(rows: list[list[Entry]]) -> Ints:
    return np.array([[NO_ANSWER if entry.answer is None else entry.answer for entry in row] for row in rows])


def _confidences(rows: list[list[Entry]]) -> Floats:
    return np.array([[entry.confidence for entry in row] for row in rows], dtype=float)


def _tokens(rows: list[list[Entry]]) -> Ints:
    return np.array([[entry.prompt_tokens + entry.completion_tokens for entry in row] for row in rows])


def _recorded_names(episodes: Episodes) -> Ints:
    if episodes.private is None or episodes.private.ndim != 2:
        raise InputError("episodes must come from this back end's start.")
    return episodes.private


def _look_up(names: Ints, answers: Ints) -> Ints:
    """Return ``names[b, answers[b, i]]``, -1 staying -1."""
    found = np.take_along_axis(names, np.maximum(answers, 0), axis=1)
    return np.where(answers == NO_ANSWER, NO_ANSWER, found)
