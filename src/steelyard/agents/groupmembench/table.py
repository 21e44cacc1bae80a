"""Messages as columns: what every memory stands on, at a few hundred bytes a message and without an object for each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.groupmembench.columns import Codes, Column, Ints, Keys, Texts
from steelyard.agents.groupmembench.messages import Message, parse_time
from steelyard.errors import InputError

Mask = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).min  # the instant of a message without a timestamp
_NAIVE = np.iinfo(np.int16).min  # the offset of a timestamp without a zone
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FLAGS = {None: -1, False: 0, True: 1}
_BLOCK = 8192
_RARE = ("is_decision_point", "decision_label", "decision_change", "truth")


class MessageTable:
    """Columns of messages in the order of their arrival; rows are numbered from 0.

    Args:
        seed: Of the keys that break ties: each is a keyed hash of the message's id, so it depends neither on the
            order of arrival nor on what else is there.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = int(seed)
        self._hash_key = str(self.seed).encode()[:64]
        self._ids, self._contents, self._keys = Texts(), Texts(), Keys()
        self.authors: Codes[str] = Codes()
        self.channels: Codes[str | None] = Codes()
        self.roles: Codes[str | None] = Codes()
        self.phases: Codes[str | None] = Codes()
        self.topics: Codes[str | None] = Codes()
        self.decision_types: Codes[str | None] = Codes()
        self.audiences: Codes[frozenset[str] | None] = Codes()
        self._parents, self._instants = Column(np.int32), Column(np.int64)
        self._zones, self._noise = Column(np.int16), Column(np.int8)
        self._positions = Column(np.int64)
        self._written, self._waiting = Column(np.bool_), dict[str, list[int]]()
        self._dangling: dict[int, str] = {}
        self._rare: dict[int, dict[str, Any]] = {}
        self._zoned: tuple[bool, str] | None = None  # whether timestamps have zones, and the first id that has one
        self.version = 0

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def parents(self) -> NDArray[np.int32]:
        """Row of the message that each row replies to, shape (N,); -1 for none and for one that is not here."""
        return self._parents.values

    @property
    def keys(self) -> Ints:
        """What breaks ties between rows, shape (N,): the lower key comes first."""
        return self._keys.values

    @property
    def instants(self) -> Ints:
        """Microseconds since 1970 (UTC) of each row, shape (N,); :data:`NEVER` without a timestamp."""
        return self._instants.values

    @property
    def positions(self) -> Ints:
        """Line of its file of each row, shape (N,); -1 where there is none."""
        return self._positions.values

    @property
    def noise(self) -> Mask:
        """Which rows are marked as noise, shape (N,)."""
        return np.asarray(self._noise.values == 1)

    @property
    def written(self) -> Mask:
        """Which rows have a content to return, shape (N,)."""
        return self._written.values

    def id(self, row: int) -> str:
        """Return the id of a row."""
        return self._ids[row]

    def content(self, row: int) -> str:
        """Return the content of a row."""
        return self._contents[row]

    def row(self, id_: str) -> int:
        """Return the row of an id, or -1."""
        return self._find(id_, self.key(id_))

    def key(self, id_: str) -> int:
        """Return the key of an id: a 63-bit hash keyed by the seed."""
        digest = hashlib.blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8, key=self._hash_key).digest()
        return int.from_bytes(digest, "big") >> 1

    def _find(self, id_: str, key: int) -> int:
        return next((row for row in self._keys.rows(key) if self._ids[row] == id_), -1)

    def extend(self, messages: Sequence[Message]) -> None:
        """Append ``messages``, all of them or, on an error, none.

        Raises:
            InputError: An id is there already, or some timestamps have a zone and others have none.
        """
        ids = [message.id for message in messages]
        keys = [self.key(id_) for id_ in ids]
        self._refuse_duplicates(ids, keys)
        times, zoned = self._times(messages)
        self._zoned = zoned
        first = len(self)
        self._ids.extend(ids)
        self._keys.extend(np.array(keys, np.int64))
        self._contents.extend(message.content for message in messages)
        self.authors.extend(message.author for message in messages)
        self.channels.extend(message.channel for message in messages)
        self.roles.extend(message.role for message in messages)
        self.phases.extend(message.phase for message in messages)
        self.topics.extend(message.topic for message in messages)
        self.decision_types.extend(message.decision_type for message in messages)
        self.audiences.extend(message.audience for message in messages)
        self._instants.extend([instant for instant, _ in times])
        self._zones.extend([zone for _, zone in times])
        self._noise.extend([_FLAGS[message.is_noise] for message in messages])
        self._positions.extend([-1 if message.position is None else message.position for message in messages])
        self._written.extend([bool(message.content.strip()) for message in messages])
        for row, message in enumerate(messages, first):
            rare = {name: value for name in _RARE if (value := getattr(message, name)) is not None}
            if rare:
                self._rare[row] = rare
        self._link(messages, first, dict(zip(ids, range(first, first + len(ids)), strict=True)))
        self.version += 1

    def _refuse_duplicates(self, ids: list[str], keys: list[int]) -> None:
        seen: set[str] = set()
        for id_, key in zip(ids, keys, strict=True):
            if id_ in seen or self._find(id_, key) >= 0:
                raise InputError(f"the message id {id_!r} is there twice; ids must be unique in a memory.")
            seen.add(id_)

    def _times(self, messages: Sequence[Message]) -> tuple[list[tuple[int, int]], tuple[bool, str] | None]:
        """Return (instant, zone in minutes) of each message, and whether timestamps have zones so far."""
        zoned, times = self._zoned, []
        for message in messages:
            stamp = _instant(message.timestamp, f"message {message.id!r}")
            if stamp is None:
                times.append((NEVER, _NAIVE))
                continue
            aware = stamp.tzinfo is not None
            zoned = zoned or (aware, message.id)
            if aware != zoned[0]:
                raise InputError(
                    f"the timestamps of messages {zoned[1]!r} and {message.id!r} cannot be compared: one has a time "
                    "zone and the other has none; give all of them one."
                )
            times.append((_microseconds(stamp), _offset_minutes(stamp)))
        return times, zoned

    def _link(self, messages: Sequence[Message], first: int, new: dict[str, int]) -> None:
        parents = np.full(len(messages), -1, np.int32)
        for row, message in enumerate(messages, first):
            if not message.reply_to or message.reply_to == message.id:
                continue
            parent = new.get(message.reply_to, -1)
            if parent < 0:
                parent = self.row(message.reply_to)
            parents[row - first] = parent
            if parent < 0:
                self._dangling[row] = message.reply_to
                self._waiting.setdefault(message.reply_to, []).append(row)
        self._parents.extend(parents)
        for id_ in self._waiting.keys() & new.keys():
            for row in self._waiting.pop(id_):
                self._parents.values[row] = new[id_]
                del self._dangling[row]

    def message(self, row: int) -> Message:
        """Return the message of a row."""
        parent, position = int(self.parents[row]), int(self._positions.values[row])
        rare = self._rare.get(row, {})
        return Message(
            id=self._ids[row],
            content=self._contents[row],
            author=self.authors[row],
            channel=self.channels[row],
            timestamp=self._stamp(row),
            reply_to=self._ids[parent] if parent >= 0 else self._dangling.get(row),
            role=self.roles[row],
            phase=self.phases[row],
            topic=self.topics[row],
            is_noise=(None, False, True)[int(self._noise.values[row]) + 1],
            decision_type=self.decision_types[row],
            audience=self.audiences[row],
            position=None if position < 0 else position,
            **rare,
        )

    def _stamp(self, row: int) -> datetime | None:
        instant, zone = int(self.instants[row]), int(self._zones.values[row])
        if instant == NEVER:
            return None
        stamp = _EPOCH + timedelta(microseconds=instant)
        return stamp.replace(tzinfo=None) if zone == _NAIVE else stamp.astimezone(timezone(timedelta(minutes=zone)))

    def kept(self, rows: Ints, roots: bool = True) -> MessageTable:
        """Return a new table of some rows; replies to a row that is left out become roots, or wait for it to return."""
        table, here = MessageTable(self.seed), np.zeros(len(self), np.bool_)
        here[rows] = True
        parents = self.parents
        for start in range(0, len(rows), _BLOCK):
            block = []
            for row in rows[start : start + _BLOCK].tolist():
                parent = int(parents[row])
                message = self.message(row)
                orphan = roots and parent >= 0 and not here[parent]
                block.append(replace(message, reply_to=None) if orphan else message)
            table.extend(block)
        return table

    def public_authors(self) -> set[str]:
        """Return everyone who wrote a message without an audience."""
        public, codes = self.visible(None), self.authors.codes
        return {self.authors.words[code] for code in np.unique(codes if public is None else codes[public]).tolist()}

    def knows(self, person: str) -> bool:
        """Return whether ``person`` wrote a message or is named in an audience."""
        return self.authors.code(person) >= 0 or any(
            audience is not None and person in audience for audience in self.audiences.words
        )

    def visible(self, asker: str | None, at: datetime | str | None = None) -> Mask | None:
        """Return which rows ``asker`` may see as of ``at``, shape (N,), or None when that is all of them.

        A message without an audience is public; one with an audience is seen by those in it and by its author. No
        asker sees what is public. With ``at``, later messages and those without a timestamp are left out.
        """
        mask: Mask | None = None
        open_to = np.array([words is None or asker in words for words in self.audiences.words], np.bool_)
        if not open_to.all():
            mask = open_to[self.audiences.codes]
            if asker is not None and (code := self.authors.code(asker)) >= 0:
                mask |= self.authors.codes == code
        if at is not None:
            past = (self.instants <= self.instant(at)) & (self.instants != NEVER)
            mask = past if mask is None else mask & past
        return mask

    def instant(self, at: datetime | str) -> int:
        """Return ``at`` in microseconds since 1970.

        Raises:
            InputError: It is no instant, or cannot be compared with the messages' timestamps.
        """
        stamp = _instant(at, "at")
        if not isinstance(stamp, datetime):
            raise InputError(f"at must be a datetime or ISO 8601 text, got {at!r:.40}.")
        if self._zoned is not None and (stamp.tzinfo is not None) != self._zoned[0]:
            raise InputError("at and the messages' timestamps must both have a time zone, or neither.")
        return _microseconds(stamp)


def _instant(value: datetime | str | None, where: str) -> datetime | None:
    return parse_time(value, where) if isinstance(value, str) else value


def _microseconds(stamp: datetime) -> int:
    return ((stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _offset_minutes(stamp: datetime) -> int:
    offset = stamp.utcoffset()
    return _NAIVE if offset is None else int(offset.total_seconds() / 60)  # toward 0: a day is no zone
