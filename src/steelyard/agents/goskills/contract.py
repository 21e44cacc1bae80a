"""The execution contract: what an agent is handed, and its rendering within a hard limit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from steelyard.agents.goskills.layout import LISTS, Counts, Drawer, fitted, json_text, markdown_text, smallest
from steelyard.agents.goskills.skill import Skill
from steelyard.errors import InputError

Format = Literal["markdown", "json"]
Counter = Callable[[str], int]


class Start(NamedTuple):
    """The entry: the responsible skill, and why it was chosen."""

    skill: str
    why: str


class Support(NamedTuple):
    """A supporting skill, its role, and when to use it, quoted from its own description."""

    skill: str
    role: str
    when: str


class Note(NamedTuple):
    """A line of CHECK or AVOID: words quoted from ``source``, a skill's name or ``"task"``."""

    text: str
    source: str


class Debt(NamedTuple):
    """A required feature of the task that no presented skill covers."""

    dimension: str
    value: str
    conf: float


def count_tokens(text: str) -> int:
    """Return the default estimate of a text's tokens: characters / 4, rounded up."""
    return math.ceil(len(text) / 4)


@dataclass(frozen=True)
class ExecutionContract:
    """What a task is handed: START, SUPPORT, CHECK, AVOID, a line of DEBT, and the skills themselves.

    Attributes:
        start: The entry; None in an empty contract.
        support: Supporting skills, what others depend on first.
        check: Conditions to satisfy.
        avoid: What not to do.
        debt: Required features that ``payloads`` do not cover.
        payloads: The chosen skills, the entry first.
        max_chars: Most characters of the rendered contract, in either format.
        chars_per_skill: Most characters of the text of one skill in it.
        max_tokens: Most tokens of the rendered contract; None: no such limit.
        counter: Counts the tokens of a text.
    """

    start: Start | None
    support: tuple[Support, ...] = ()
    check: tuple[Note, ...] = ()
    avoid: tuple[Note, ...] = ()
    debt: tuple[Debt, ...] = ()
    payloads: tuple[Skill, ...] = ()
    max_chars: int = 12_000
    chars_per_skill: int = 2_400
    max_tokens: int | None = None
    counter: Counter = field(default=count_tokens, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_limits(self.max_chars, self.chars_per_skill, self.max_tokens)
        first = self.payloads[0].name if self.payloads else None
        if first != (self.start.skill if self.start else None):
            raise InputError("start must name the first of payloads, and be None where there is none")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen skills, in order."""
        return tuple(skill.name for skill in self.payloads)

    @property
    def empty(self) -> bool:
        """True when nothing in the library fits the task."""
        return self.start is None

    def render(self, format: Literal["markdown", "json"] = "markdown") -> str:
        """Return the contract as text within ``max_chars`` and ``max_tokens``, headings and skills included.

        The skills share equally what the lists leave, at most ``chars_per_skill`` each; a cut is stated. Where the
        lists alone are too long, AVOID, CHECK, SUPPORT and DEBT end in "… n more", in that order, and then so do the
        skills; the anchor's name and the headings always stay. Text of skills is quoted line by line and control
        characters are written as escapes, so that it cannot pass for a part of the contract.

        Args:
            format: ``"markdown"``, or ``"json"``: one object with the fields by name, and in ``more`` how many entries
                of each were left out.

        Raises:
            InputError: Another format, or a limit below the smallest possible text, which the message names.
        """
        drawer = self._drawer(format)
        self._refuse_small_limits(drawer, format)
        text = fitted(drawer, self.max_chars, self.chars_per_skill)
        if self.max_tokens is None or self._tokens(text) <= self.max_tokens:
            return text
        low, high = len(smallest(drawer)), len(text)
        best = smallest(drawer)
        while high - low > 1:  # fewer characters, fewer tokens, for any sane counter; only counted texts are returned
            middle = (low + high) // 2
            tried = fitted(drawer, middle, self.chars_per_skill)
            if self._tokens(tried) <= self.max_tokens:
                best, low = tried, middle
            else:
                high = middle
        return best

    def refuse_small_limits(self) -> None:
        """Raise InputError when either format cannot be rendered within the limits."""
        for name in ("markdown", "json"):
            self._refuse_small_limits(self._drawer(name), name)

    def _refuse_small_limits(self, drawer: Drawer, format: str) -> None:
        least = smallest(drawer)
        if len(least) > self.max_chars:
            raise InputError(
                f"max_chars is {self.max_chars}, the smallest possible contract as {format} has {len(least)} characters"
            )
        if self.max_tokens is not None and self._tokens(least) > self.max_tokens:
            raise InputError(
                f"max_tokens is {self.max_tokens}, the smallest possible contract as {format} has "
                f"{self._tokens(least)} tokens"
            )

    def _tokens(self, text: str) -> int:
        number = self.counter(text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InputError(f"count_tokens must give a whole number of at least 0, got {number!r}")
        return number

    def _drawer(self, format: str) -> Drawer:
        if format not in ("markdown", "json"):
            raise InputError(f"format must be 'markdown' or 'json', got {format!r}")
        fields = self._fields()
        full = Counts(payloads=len(self.payloads), **{name: len(fields[name]) for name in LISTS})
        draw = markdown_text if format == "markdown" else json_text
        return Drawer(lambda counts, share: draw(fields, self.payloads, counts, share), full)

    def _fields(self) -> dict[str, Any]:
        return {
            "start": self.start._asdict() if self.start else None,
            **{name: [item._asdict() for item in getattr(self, name)] for name in LISTS},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, uncut, as plain values; the skills by name."""
        return {**self._fields(), "payloads": list(self.names)}

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        """Return the object of a contract that was rendered as JSON.

        Raises:
            InputError: It is none.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"text is not JSON ({type(error).__name__})") from None
        if not isinstance(found, dict) or not {"start", *LISTS, "payloads"} <= set(found):
            raise InputError("text is JSON, but no contract: it lacks start, support, check, avoid, debt or payloads")
        return found


def check_limits(max_chars: int, chars_per_skill: int, max_tokens: int | None) -> None:
    """Raise InputError unless the limits are whole numbers of at least 1 (``max_tokens`` may be None)."""
    limits = {"max_chars": max_chars, "chars_per_skill": chars_per_skill, "max_tokens": max_tokens}
    for name, value in limits.items():
        if value is None and name == "max_tokens":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
