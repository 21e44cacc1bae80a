"""A chat as arrays and back: what a weighing stores, hashes and hands to its cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from datetime import datetime
from typing import Any

import numpy as np

from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.questions import Question
from steelyard.contracts import Arrays

_KEPT = ("id", "content", "author", "channel", "reply_to", "role", "phase", "topic", "position")


def encode(
    messages: Iterable[Message], links: Iterable[tuple[str, str]] = (), questions: Iterable[Question] = ()
) -> Arrays:
    """Return messages without their labels, (parent, child) links and questions as arrays of bytes.

    ``reply_to`` is a link like the others and kept; see :func:`without_links`.
    """
    rows = [_row(message) for message in messages]
    asked = [astuple(one) for one in questions]
    return {"messages": _bytes(rows), "links": _bytes([list(pair) for pair in links]), "questions": _bytes(asked)}


def messages_of(arrays: Arrays) -> list[Message]:
    """Return the messages."""
    return [_message(row) for row in _parsed(arrays["messages"])]


def links_of(arrays: Arrays) -> list[tuple[str, str]]:
    """Return the (parent id, child id) links."""
    return [(str(parent), str(child)) for parent, child in _parsed(arrays["links"])]


def questions_of(arrays: Arrays) -> list[Question]:
    """Return the questions."""
    return [
        Question(name, kind, question, answer, asker, tuple(gold), tuple(hard))
        for name, kind, question, answer, asker, gold, hard in _parsed(arrays["questions"])
    ]


def without_links(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with nobody's reply known."""
    return [replace(message, reply_to=None) for message in messages]


def unlabelled(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without truth, decision labels and noise flags."""
    bare: dict[str, Any] = dict.fromkeys(
        ("truth", "is_noise", "is_decision_point", "decision_type", "decision_label", "decision_change")
    )
    return [replace(message, **bare) for message in messages]


def _row(message: Message) -> dict[str, Any]:
    row = {name: getattr(message, name) for name in _KEPT if getattr(message, name) is not None}
    if message.timestamp is not None:
        when = message.timestamp
        row["timestamp"] = when.isoformat() if isinstance(when, datetime) else when
    if message.audience is not None:
        row["audience"] = sorted(message.audience)
    return row


def _message(row: Mapping[str, Any]) -> Message:
    fields = dict(row)
    if "timestamp" in fields:
        fields["timestamp"] = datetime.fromisoformat(fields["timestamp"])
    if "audience" in fields:
        fields["audience"] = frozenset(fields["audience"])
    return Message(**fields)


def _bytes(rows: Sequence[Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(rows).encode(), dtype=np.uint8)


def _parsed(array: np.ndarray) -> Any:
    return json.loads(np.asarray(array, dtype=np.uint8).tobytes())
