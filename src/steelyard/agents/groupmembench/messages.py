"""What a group chat consists of: messages, who may see them, and what a search returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from steelyard.errors import InputError

_WORDS = ("channel", "reply_to", "role", "phase", "topic", "decision_type")


class UnknownUserError(InputError, KeyError):
    """A name is neither an author's nor in any audience; both a ``ValueError`` and a ``KeyError``."""

    __str__ = Exception.__str__  # KeyError would put the sentence in quotes


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a group chat.

    Attributes:
        id: Unique within its chat.
        content: The text; an empty one keeps the structure and is never found.
        author: Who wrote it.
        channel: Where, or None.
        timestamp: When; ISO 8601 text is parsed by the chat. All messages of a chat have a zone or none has.
        reply_to: ``id`` of the message that this one answers, or None.
        role: The author's role at that time.
        phase: Phase of the project.
        topic: Topic within the phase.
        is_noise: Whether it says nothing that matters.
        is_decision_point: As the release has it: true for about two of three messages, no usable label.
        decision_type: ``"changed"`` marks a change of a decision.
        decision_label: Which decision: text, or the release's own mapping.
        decision_change: ``original_decision`` and ``changed_to``.
        audience: Who may see it; None = everyone. Its author always may.
        truth: Generated chats only: event, entity, value, what it supersedes.
        position: Line of its file, where lines that are no messages count too (IRC logs); None elsewhere.
    """

    id: str
    content: str
    author: str
    channel: str | None = None
    timestamp: datetime | str | None = None
    reply_to: str | None = None
    role: str | None = None
    phase: str | None = None
    topic: str | None = None
    is_noise: bool | None = None
    is_decision_point: bool | None = None
    decision_type: str | None = None
    decision_label: str | Mapping[str, Any] | None = None
    decision_change: Mapping[str, Any] | None = None
    audience: frozenset[str] | None = None
    truth: Mapping[str, Any] | None = None
    position: int | None = None

    def visible_to(self, user: str) -> bool:
        """Say whether ``user`` may see this message: it is public, addressed to them, or their own."""
        return self.audience is None or user in self.audience or user == self.author


class Hit(NamedTuple):
    """One message that a search found, with its score and the parts that the score was made of."""

    id: str
    score: float
    message: Message
    why: dict[str, Any]


def checked(message: Message) -> Message:
    """Return ``message`` with its timestamp parsed, once its fields are of the right kinds.

    Raises:
        InputError: A field is not; the message names its id.
    """
    if not isinstance(message, Message):
        raise InputError(f"messages must be Message objects, got {type(message).__name__}.")
    for name in ("id", "content", "author"):
        if not isinstance(getattr(message, name), str):
            raise InputError(f"message {message.id!r}: {name} must be text, got {getattr(message, name)!r:.80}.")
    if not message.id or not message.author:
        raise InputError(f"message {message.id!r} by {message.author!r}: id and author must not be empty.")
    if message.audience is not None and not isinstance(message.audience, frozenset):
        raise InputError(f"message {message.id!r}: audience must be a frozenset of names or None.")
    if message.audience is not None and not all(isinstance(name, str) for name in message.audience):
        raise InputError(f"message {message.id!r}: audience must hold names, as text.")
    _check_rest(message)
    if isinstance(message.timestamp, str):
        return replace(message, timestamp=parse_time(message.timestamp, f"message {message.id!r}"))
    if message.timestamp is not None and not isinstance(message.timestamp, datetime):
        raise InputError(f"message {message.id!r}: timestamp must be a datetime, ISO 8601 text or None.")
    if message.timestamp is not None:
        _check_instant(message.timestamp, f"message {message.id!r}")
    return message


def _check_rest(message: Message) -> None:
    """Refuse what a store would keep and no memory could take in."""
    for name in _WORDS:
        value = getattr(message, name)
        if value is not None and not isinstance(value, str):
            raise InputError(f"message {message.id!r}: {name} must be text or None, got {type(value).__name__}.")
    place, noise = message.position, message.is_noise
    if place is not None and not (isinstance(place, int) and 0 <= place < 1 << 62):
        raise InputError(f"message {message.id!r}: position must be a line number of at least 0 or None.")
    if noise is not None and not isinstance(noise, bool):
        raise InputError(f"message {message.id!r}: is_noise must be true, false or None, got {noise!r:.40}.")


def _check_instant(stamp: datetime, where: str) -> None:
    """Refuse an instant that has no date in UTC: a memory, which keeps instants, could not give it back."""
    try:
        if stamp.tzinfo is not None:
            stamp.astimezone(UTC)
    except OverflowError:
        raise InputError(f"{where}: timestamp {stamp.isoformat()} lies outside the years 1 to 9999 in UTC.") from None


def parse_time(text: str, where: str) -> datetime | None:
    """Return the instant that ISO 8601 text names; empty text names none.

    Raises:
        InputError: It is not ISO 8601, or outside the years 1 to 9999.
    """
    if not text.strip():
        return None
    try:
        stamp = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"{where}: timestamp {text[:80]!r} is not ISO 8601; write it like 2025-06-19T10:00:00 or with a zone."
        ) from None
    _check_instant(stamp, where)
    return stamp
