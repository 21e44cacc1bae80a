"""A group chat: messages in order, who answers whom, who may see what."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from steelyard.agents.groupmembench import loaders
from steelyard.agents.groupmembench.core import on_cycle
from steelyard.agents.groupmembench.links import predict_parents
from steelyard.agents.groupmembench.messages import Message, checked
from steelyard.data.registry import Progress
from steelyard.errors import InputError

OnBadReply = Literal["warn", "ignore", "raise"]
OnDuplicate = Literal["raise", "first"]
Ints = NDArray[np.int64]


class GroupChat:
    """Messages sorted by channel, time, line and id, with their reply links resolved.

    Args:
        messages: In any order.
        on_bad_reply: What to do where ``reply_to`` names no message or replies run in a circle: ``"warn"`` (one
            warning with the count), ``"ignore"`` or ``"raise"``. The message is a root then; of a circle only the
            first message.
        on_duplicate: ``"raise"``, or ``"first"`` to keep the first message given under an id.
        extra_links: (parent id, child id) pairs beyond ``reply_to``, for messages that answer several ones.

    Raises:
        InputError: A message cannot be used, an id occurs twice, some timestamps have a zone and others none, or an
            extra link names no message.
    """

    def __init__(
        self,
        messages: Iterable[Message],
        *,
        on_bad_reply: OnBadReply = "warn",
        on_duplicate: OnDuplicate = "raise",
        extra_links: Iterable[tuple[str, str]] = (),
    ) -> None:
        if on_bad_reply not in ("warn", "ignore", "raise"):
            raise InputError(f"on_bad_reply must be 'warn', 'ignore' or 'raise', not {on_bad_reply!r}.")
        if on_duplicate not in ("raise", "first"):
            raise InputError(f"on_duplicate must be 'raise' or 'first', not {on_duplicate!r}.")
        unique: dict[str, Message] = {}
        for message in map(checked, messages):
            if unique.setdefault(message.id, message) is not message and on_duplicate == "raise":
                raise InputError(f"two messages have the id {message.id!r}; on_duplicate='first' keeps the first one.")
        _refuse_mixed_zones(unique.values())
        self.messages: tuple[Message, ...] = tuple(sorted(unique.values(), key=_sort_key))
        self._index = {message.id: place for place, message in enumerate(self.messages)}
        self.parents: Ints = self._resolve(on_bad_reply)
        self._extra = tuple((self.index(parent), self.index(child)) for parent, child in extra_links)

    @classmethod
    def from_groupmembench(
        cls,
        path: str | Path,
        *,
        on_bad_reply: OnBadReply = "warn",
        on_duplicate: OnDuplicate = "raise",
        progress: Progress | None = None,
    ) -> GroupChat:
        """Read a conversation file of GroupMemBench, ``{channel: [message, ...]}``; HTML entities are unescaped.

        The file is read in pieces, never as a whole. ``progress`` is called with (file name, bytes done, bytes in all).

        Raises:
            InputError: The file, or a message in it (file, channel and number are named), cannot be used.
        """
        return cls(loaders.read_groupmembench(path, progress), on_bad_reply=on_bad_reply, on_duplicate=on_duplicate)

    @classmethod
    def from_slack(
        cls,
        export_dir: str | Path,
        *,
        on_bad_reply: OnBadReply = "warn",
        on_duplicate: OnDuplicate = "raise",
        progress: Progress | None = None,
    ) -> GroupChat:
        """Read an unpacked Slack export: one folder per channel, one JSON list per day.

        Private channels and direct messages (``groups.json``, ``mpims.json``, ``dms.json``) get their members as
        audience; a folder that no list names gets those who wrote in it, unless there is no list at all. People are
        called by their names where ``users.json`` is there and a name is one person's alone, by their ids elsewhere.

        Raises:
            InputError: The folder, a file or a message in it cannot be used.
        """
        return cls(loaders.read_slack(export_dir, progress), on_bad_reply=on_bad_reply, on_duplicate=on_duplicate)

    @classmethod
    def from_discord(
        cls,
        path: str | Path,
        *,
        on_bad_reply: OnBadReply = "warn",
        on_duplicate: OnDuplicate = "raise",
        progress: Progress | None = None,
    ) -> GroupChat:
        """Read a Discord export, ``{"channel": …, "messages": […]}``, or every ``*.json`` of a folder of them.

        Direct messages get those who wrote in them as audience. Authors are called by their nickname or name where it
        is theirs alone, by their ids elsewhere.

        Raises:
            InputError: A file or a message in it cannot be used.
        """
        return cls(loaders.read_discord(path, progress), on_bad_reply=on_bad_reply, on_duplicate=on_duplicate)

    @classmethod
    def from_jsonl(
        cls,
        path: str | Path,
        *,
        on_bad_reply: OnBadReply = "warn",
        on_duplicate: OnDuplicate = "raise",
        progress: Progress | None = None,
    ) -> GroupChat:
        """Read JSON Lines: ``id``, ``content`` or ``text``, ``author`` or ``user``, and whatever else a message has.

        Optional: channel, timestamp, reply_to, role, phase, topic, is_noise, audience (list of names).

        Raises:
            InputError: The file or a row of it (file and line are named) cannot be used, or there is no row.
        """
        return cls(loaders.read_jsonl(path, progress), on_bad_reply=on_bad_reply, on_duplicate=on_duplicate)

    @classmethod
    def from_irc(cls, ascii_path: str | Path, annotation_path: str | Path | None = None) -> GroupChat:
        """Read an IRC log of the disentanglement corpus, with its annotated reply links if given.

        Lines ``[hh:mm] <nick> text`` are messages, whose id and position is their line number from 0; other lines
        count but are left out, and so are links from or to them. Of several annotated parents ``reply_to`` is the
        nearest one; :attr:`links` holds all.

        Raises:
            InputError: A file cannot be used.
        """
        messages, extra = loaders.read_irc(ascii_path, annotation_path)
        return cls(messages, extra_links=extra)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __contains__(self, id: object) -> bool:
        return id in self._index

    def __getitem__(self, id: str) -> Message:
        return self.messages[self.index(id)]

    def index(self, id: str) -> int:
        """Return the place of the message called ``id`` in :attr:`messages`.

        Raises:
            InputError: There is none.
        """
        try:
            return self._index[id]
        except KeyError:
            raise InputError(f"the chat has no message with the id {id!r}.") from None

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """(parent, child) places of all reply links, those beyond ``reply_to`` included."""
        replies = [(int(parent), child) for child, parent in enumerate(self.parents) if parent >= 0]
        return (*replies, *self._extra)

    @cached_property
    def users(self) -> frozenset[str]:
        """Everyone who wrote a message or is in the audience of one."""
        audiences = {message.audience for message in self.messages if message.audience}
        return frozenset(message.author for message in self.messages).union(*audiences)

    @cached_property
    def positions(self) -> Ints:
        """Line of every message where its source has lines, else its number within its channel, shape (N,)."""
        seen: dict[str | None, int] = {}
        places = []
        for message in self.messages:
            number = seen.get(message.channel, 0)
            seen[message.channel] = number + 1
            places.append(number if message.position is None else message.position)
        return np.array(places, dtype=np.int64)

    def parent(self, id: str) -> Message | None:
        """Return the message that ``id`` answers, or None.

        Raises:
            InputError: There is no message ``id``.
        """
        place = int(self.parents[self.index(id)])
        return None if place < 0 else self.messages[place]

    def children(self, id: str) -> tuple[Message, ...]:
        """Return the messages that answer ``id`` by their ``reply_to``, in order.

        Raises:
            InputError: There is no message ``id``.
        """
        order, start = self._children
        place = self.index(id)
        return tuple(self.messages[child] for child in order[start[place] : start[place + 1]])

    def threads(self) -> tuple[tuple[Message, ...], ...]:
        """Return the connected components of the reply links, each in order, the one with the first message first."""
        n = len(self.messages)
        if not n:
            return ()
        links = np.array(self.links, dtype=np.int64).reshape(-1, 2)
        graph = coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), shape=(n, n))
        _, labels = connected_components(graph, directed=False)
        groups: dict[int, list[Message]] = {}
        for label, message in zip(labels.tolist(), self.messages, strict=True):
            groups.setdefault(label, []).append(message)
        return tuple(map(tuple, groups.values()))

    def visible_to(self, user: str) -> GroupChat:
        """Return the chat as ``user`` may see it: public messages, those addressed to them, and their own.

        A reply to a hidden message becomes a root, so that not even the hidden message's id is given away.
        """
        shown = {message.id for message in self.messages if message.visible_to(user)}
        hidden = self._index.keys() - shown
        kept = [
            replace(message, reply_to=None) if message.reply_to in hidden else message
            for message in self.messages
            if message.id in shown
        ]
        return GroupChat(kept, on_bad_reply="ignore", extra_links=self._links_among(shown))

    def predict_replies(
        self, *, address_window: int = 150, response_window: int = 60, own_window: int = 40
    ) -> GroupChat:
        """Return the chat with predicted reply links in the place of its own; see :func:`links.predict_parents`."""
        channels: dict[str | None, list[int]] = {}
        for place, message in enumerate(self.messages):
            channels.setdefault(message.channel, []).append(place)
        linked: list[Message] = []
        for places in channels.values():
            members = [self.messages[place] for place in places]
            parents = predict_parents(
                [message.author for message in members],
                [message.content for message in members],
                self.positions[places].tolist(),
                address_window=address_window,
                response_window=response_window,
                own_window=own_window,
            )
            linked += [
                replace(message, reply_to=None if parent < 0 else members[parent].id)
                for message, parent in zip(members, parents, strict=True)
            ]
        return GroupChat(linked)

    @cached_property
    def _children(self) -> tuple[list[int], list[int]]:
        """Children of all messages one after another, and where those of each message begin."""
        order = np.argsort(self.parents, kind="stable")
        start = np.searchsorted(self.parents[order], np.arange(len(self.messages) + 1))
        return order.tolist(), start.tolist()

    def _links_among(self, ids: Collection[str]) -> list[tuple[str, str]]:
        pairs = ((self.messages[parent].id, self.messages[child].id) for parent, child in self._extra)
        return [(parent, child) for parent, child in pairs if parent in ids and child in ids]

    def _resolve(self, on_bad_reply: OnBadReply) -> Ints:
        """Return the index of every message's parent, -1 for none; what cannot be resolved is cut and reported."""
        wanted = [message.reply_to for message in self.messages]
        parents = np.array([self._index.get(id, -1) if id else -1 for id in wanted], dtype=np.int64)
        dangling = [place for place, id in enumerate(wanted) if id and parents[place] < 0]
        circles = _first_of_circles(parents)
        parents[circles] = -1
        for places, what in ((dangling, "answer a message that is not there"), (circles, "begin a circle of replies")):
            if not places or on_bad_reply == "ignore":
                continue
            text = f"{len(places)} of {len(wanted)} messages {what}, first {self.messages[places[0]].id!r}"
            if on_bad_reply == "raise":
                raise InputError(f"{text}; on_bad_reply='warn' takes them for roots.")
            warnings.warn(f"{text}; they are taken for roots.", UserWarning, stacklevel=3)
        return parents


def _first_of_circles(parents: Ints) -> list[int]:
    """Return the lowest member of every circle of replies, rising."""
    members = np.flatnonzero(on_cycle(parents)).tolist()
    left, first = set(members), []
    for start in members:
        if start in left:
            first.append(start)
        place = start
        while place in left:
            left.remove(place)
            place = int(parents[place])
    return first


def _sort_key(message: Message) -> tuple[str, bool, datetime | int, int, str]:
    time = message.timestamp
    assert not isinstance(time, str), "checked() has parsed it"
    position = -1 if message.position is None else message.position
    return (message.channel or "", time is not None, 0 if time is None else time, position, message.id)


def _refuse_mixed_zones(messages: Collection[Message]) -> None:
    first: dict[bool, str] = {}
    for message in messages:
        if isinstance(message.timestamp, datetime):
            first.setdefault(message.timestamp.utcoffset() is None, message.id)
    if len(first) == 2:
        raise InputError(
            f"message {first[False]!r} has a timestamp with a zone and message {first[True]!r} one without; give all "
            "timestamps a zone, or none."
        )
