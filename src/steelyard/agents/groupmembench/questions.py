"""Questions about a group chat, the passages a reader is given, and how its and the judge's words are parsed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.agents.groupmembench.loaders import json_lines
from steelyard.agents.groupmembench.messages import Message
from steelyard.errors import InputError, did_you_mean
from steelyard.models.paths import usable_path

QUESTION_TYPES = ("multi_hop", "knowledge_update", "temporal", "user_implicit", "term_ambiguity", "abstention")
"""The six types of the release."""

_WRONG_WORDS = ("incorrect", "wrong", "not correct")
_BODY_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Question:
    """A question that one person asks about a chat.

    Attributes:
        id: Unique within its type.
        type: One of ``QUESTION_TYPES``, or a type of your own.
        question: What is asked.
        answer: The gold answer.
        asking_user_id: Who asks.
        gold_ids: Messages that hold the answer; empty where unknown (the release) or where there are none.
        hard_negative_ids: Messages that look like it.
    """

    id: str
    type: str
    question: str
    answer: str
    asking_user_id: str
    gold_ids: tuple[str, ...] = ()
    hard_negative_ids: tuple[str, ...] = ()


def read_questions(path: str | Path, type: str | None = None) -> list[Question]:
    """Read JSON Lines with ``id, question, answer, asking_user_id`` (and, if any, ``gold_ids, hard_negative_ids``).

    HTML entities are unescaped; an answer may be true, false or a number.

    Args:
        path: The file.
        type: Type of all questions, one of the six; None: every row has its own under ``type``.

    Raises:
        InputError: The type is unknown, or a row (file and line are named) cannot be used.
    """
    return [_question(row, where, type) for where, row in json_lines(usable_path(path))]


def _question(row: Mapping[str, Any], where: str, type: str | None) -> Question:
    for key in ("id", "question", "answer", "asking_user_id", *(() if type else ("type",))):
        if row.get(key) is None:
            raise InputError(f"{where}: {key!r} is missing.")
        if not isinstance(row[key], str | int | float) or (isinstance(row[key], str) and not row[key].strip()):
            raise InputError(f"{where}: {key!r} must be text that is not empty.")
    kind = type or str(row["type"])
    if kind not in QUESTION_TYPES:
        known = ", ".join(QUESTION_TYPES)
        raise InputError(
            f"{where}: unknown question type {kind[:40]!r}; known are {known}.{did_you_mean(kind, QUESTION_TYPES)}"
        )
    answer = str(row["answer"]).lower() if isinstance(row["answer"], bool) else str(row["answer"])
    return Question(
        str(row["id"]),
        kind,
        html.unescape(str(row["question"])),
        html.unescape(answer),
        str(row["asking_user_id"]),
        _ids(row, "gold_ids", where),
        _ids(row, "hard_negative_ids", where),
    )


def _ids(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, str | int) for one in value):
        raise InputError(f"{where}: {key!r} must be a list of message ids.")
    return tuple(map(str, value))


def passages(messages: Sequence[Message]) -> str:
    """Return messages as the numbered passages a reader is given: a header line with what is known, then the body.

    Every line of a body is indented, so that no message can pass itself off as another passage; a very long one is cut.
    """
    return "\n\n".join(_passage(number, message) for number, message in enumerate(messages, 1))


def _passage(number: int, message: Message) -> str:
    fields = {
        "user": message.author,
        "speaker_role": message.role,
        "channel": message.channel,
        "phase_name": message.phase,
        "topic": message.topic,
        "timestamp": message.timestamp,
        "reply_to": message.reply_to,
        "msg_node": message.id,
    }
    header = " | ".join(f"{name}: {' '.join(str(value or '-').split())}" for name, value in fields.items())
    body = message.content
    if len(body) > _BODY_CHARACTERS:
        body = f"{body[:_BODY_CHARACTERS]} …"
    return "\n    ".join([f"[{number}] {header}", *body.splitlines()])


def parse_final(text: str) -> str:
    """Return what follows the last ``Final:`` or ``Final answer:`` that begins a line, else the last non-empty line.

    Case does not matter. Text without any line that is not empty gives an empty string.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        for mark in ("final answer:", "final:"):
            if line.lower().startswith(mark):
                return line[len(mark) :].strip()
    return lines[-1] if lines else ""


def parse_judgment(text: str) -> bool | None:
    """Return the judge's verdict: False for incorrect, wrong, not correct; else True for correct; else None (unclear).

    Only the part that :func:`parse_final` returns is looked at.
    """
    final = parse_final(text).lower()
    if any(word in final for word in _WRONG_WORDS):
        return False
    return True if "correct" in final else None
