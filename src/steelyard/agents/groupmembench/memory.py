"""What every memory of a group chat does: take messages, and answer a query on behalf of one person.

The audience is looked at before anything is ranked: a message that the asker may not see is not among the candidates,
and no memory lets it lend a score, replace another message, or be named in ``why``. What a hidden message does change
is the lexical statistics (document frequencies and the average length are those of the whole store).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from steelyard.agents.groupmembench.columns import Ints
from steelyard.agents.groupmembench.messages import Hit, Message, UnknownUserError, checked
from steelyard.agents.groupmembench.table import Mask, MessageTable
from steelyard.errors import InputError, did_you_mean

BLOCK = 8192  # messages added at a time


class Memory(Protocol):
    """A memory of a group chat."""

    def add(self, message: Message) -> None:
        """Take in one message."""
        ...

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages and return how many."""
        ...

    def search(
        self,
        query: str,
        *,
        asker: str | None = None,
        k: int = 10,
        at: datetime | str | None = None,
        anchor: str | None = None,
    ) -> list[Hit]:
        """Return the ``k`` best messages for ``query``, best first, among those that ``asker`` may see."""
        ...


class Request(NamedTuple):
    """A checked search.

    ``allowed`` is the mask (N,) of rows that may be ranked, ``seen`` of those that may be used (which includes rows
    without content and the anchor); None stands for all rows.
    """

    query: str
    asker: str | None
    k: int
    allowed: Mask | None
    seen: Mask | None
    anchor: int  # a row, or -1
    instant: int | None  # of ``at``: microseconds since 1970


class Found(NamedTuple):
    """A ranked row, its score, and why it was found."""

    row: int
    score: float
    why: dict[str, Any]


class RankedMemory(ABC):
    """A memory over a :class:`MessageTable`; subclasses index the messages and rank the allowed rows.

    Args:
        seed: Of the order of messages with equal scores: a hash of (seed, id), whatever the order of their arrival.
        allow_unknown_asker: Whether someone who neither wrote nor is in an audience may ask (and sees what is public).
    """

    def __init__(self, *, seed: int = 0, allow_unknown_asker: bool = False) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise InputError(f"seed must be a whole number, got {seed!r}.")
        self.seed, self.allow_unknown_asker = int(seed), allow_unknown_asker
        self._table = MessageTable(self.seed)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._table)

    def add(self, message: Message) -> None:
        """Take in one message.

        Raises:
            InputError: Its id is there already, or its timestamp cannot be compared with those before.
        """
        self.add_many((message,))

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages and return how many; they may come in any order and in any number of calls.

        Raises:
            InputError: As for :meth:`add`; of the messages given, whole blocks before the faulty one have been added.
        """
        source, added = iter(messages), 0
        while block := tuple(islice(source, BLOCK)):
            block = tuple(checked(message) for message in block)
            with self._lock:
                prepared = self._prepare(block)
                first = len(self._table)
                self._table.extend(block)
                try:
                    self._index(block, prepared)
                except BaseException:  # a callable of the user may fail
                    self._drop(np.arange(len(self._table)) >= first, roots=False)
                    raise
            added += len(block)
        return added

    def forget(self, author: str) -> int:
        """Remove every message of ``author`` from this memory and return how many; replies to them become roots."""
        with self._lock:
            return self._drop(self._table.authors.codes == self._table.authors.code(author))

    def remove(self, id: str) -> bool:
        """Remove one message and return whether it was there; replies to it become roots."""
        with self._lock:
            return self._drop(np.arange(len(self._table)) == self._table.row(id)) == 1

    def discard(self, ids: Iterable[str]) -> None:
        """Remove messages as if they had never been added: replies to them wait for them to come again."""
        with self._lock:
            gone = np.zeros(len(self._table), np.bool_)
            gone[[row for id_ in ids if (row := self._table.row(id_)) >= 0]] = True
            self._drop(gone, roots=False)

    def replace(self, message: Message) -> None:
        """Take in a message in the place of the one with its id; replies to that one stay replies.

        Raises:
            InputError: As for :meth:`add`; the old message stays then.
        """
        new = checked(message)
        with self._lock:
            row = self._table.row(new.id)
            if row < 0:
                self.add_many((new,))
                return
            old = self._table.message(row)
            self._drop(np.arange(len(self._table)) == row, roots=False)
            try:
                self.add_many((new,))
            except BaseException:
                self.add_many((old,))
                raise

    def _drop(self, gone: Mask, roots: bool = True) -> int:
        kept = np.flatnonzero(~gone)
        removed = len(gone) - len(kept)
        if removed:
            self._table = self._table.kept(kept, roots)
            self._keep(kept)
        return removed

    def get(self, id: str, *, asker: str | None = None) -> Message | None:
        """Return the message called ``id``, or None where ``asker`` sees none."""
        with self._lock:
            row, seen = self._table.row(id), self._table.visible(asker)
            return None if row < 0 or not (seen is None or seen[row]) else self._shown(row, seen)

    def messages(self, *, asker: str | None = None) -> Iterator[Message]:
        """Yield the messages that ``asker`` may see, in the order of their arrival."""
        with self._lock:
            seen = self._table.visible(asker)
            rows = np.arange(len(self._table)) if seen is None else np.flatnonzero(seen)
            ids = [self._table.id(row) for row in rows.tolist()]
        for id_ in ids:
            message = self.get(id_, asker=asker)
            if message is not None:
                yield message

    def clear(self) -> None:
        """Remove every message."""
        with self._lock:
            self._table = MessageTable(self.seed)
            self._keep(np.zeros(0, np.int64))

    def search(
        self,
        query: str,
        *,
        asker: str | None = None,
        k: int = 10,
        at: datetime | str | None = None,
        anchor: str | None = None,
    ) -> list[Hit]:
        """Return the ``k`` best messages for ``query``, best first, among those that ``asker`` may see.

        Args:
            query: What to look for.
            asker: On whose behalf; None sees messages without an audience only.
            k: How many; all there are where that is fewer.
            at: Answer as of that instant: later messages, and those without a timestamp, are invisible.
            anchor: Id of the message that the query stands for; it is never returned.

        Raises:
            UnknownUserError: ``asker`` neither wrote a message nor is in an audience.
            InputError: The query is empty, ``k`` is below 1, or the asker sees no message with the anchor's id.
        """
        self._check_query(query)
        return self._search(query, asker, k, at, anchor)

    @staticmethod
    def _check_query(query: str) -> None:
        if not isinstance(query, str) or not query.strip():
            raise InputError("query must be a text that is not empty.")

    @staticmethod
    def check_k(k: int) -> None:
        """Raise InputError unless ``k`` is a whole number of at least 1."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k must be a whole number of at least 1, got {k!r}.")

    def tie_key(self, id_: str) -> int:
        """Return what orders messages of equal scores: the lower key comes first."""
        return self._table.key(id_)

    @contextmanager
    def ranking(
        self, query: str, asker: str | None, k: int, at: datetime | str | None, anchor: str | None
    ) -> Iterator[tuple[list[str], Callable[[int], Hit]]]:
        """Hold this memory still and give the ids that :meth:`search` finds, and what makes the hit of a place.

        Making a message costs more than ranking it, so who wants few of the found asks for those.
        """
        self._check_query(query)
        with self._lock:
            found, seen = self._found(query, asker, k, at, anchor)
            yield [self._table.id(one.row) for one in found], lambda place: self._hit(found[place], seen)

    def _search(
        self, query: str, asker: str | None, k: int, at: datetime | str | None, anchor: str | None
    ) -> list[Hit]:
        with self._lock:
            found, seen = self._found(query, asker, k, at, anchor)
            return [self._hit(one, seen) for one in found]

    def _found(
        self, query: str, asker: str | None, k: int, at: datetime | str | None, anchor: str | None
    ) -> tuple[list[Found], Mask | None]:
        """Return what was found, best first, and which rows the asker sees."""
        self.check_k(k)
        if not len(self._table):
            return [], None
        request = self._request(query, asker, int(k), at, anchor)
        return self._rank(request), request.seen

    def _request(self, query: str, asker: str | None, k: int, at: datetime | str | None, anchor: str | None) -> Request:
        table = self._table
        if asker is not None and not self.allow_unknown_asker and not table.knows(asker):
            near = did_you_mean(asker, table.public_authors())  # never a name that only hidden messages bear
            raise UnknownUserError(
                f"asker {asker!r} neither wrote a message nor is in an audience.{near} "
                "Give allow_unknown_asker=True to search what is public."
            )
        seen = table.visible(asker, at)
        allowed = seen
        if not table.written.all():
            allowed = table.written if seen is None else table.written & seen
        row = -1
        if anchor is not None:
            row = table.row(anchor)
            if row < 0 or not (seen is None or seen[row]):
                raise InputError(f"anchor {anchor!r} is not the id of a message that the asker sees.")
            allowed = np.ones(len(table), np.bool_) if allowed is None else allowed.copy()
            allowed[row] = False
        return Request(query, asker, k, allowed, seen, row, None if at is None else table.instant(at))

    def _hit(self, found: Found, seen: Mask | None) -> Hit:
        message = self._shown(found.row, seen)
        return Hit(message.id, found.score, message, found.why)

    def _shown(self, row: int, seen: Mask | None) -> Message:
        """Return a message without the id of a hidden one that it replies to."""
        message, parent = self._table.message(row), int(self._table.parents[row])
        hidden = parent >= 0 and seen is not None and not seen[parent]
        return replace(message, reply_to=None) if hidden else message

    def _prepare(self, messages: Sequence[Message]) -> Any:
        """Return what :meth:`_index` needs and may fail to make; nothing has been added yet."""
        return None

    @abstractmethod
    def _index(self, messages: Sequence[Message], prepared: Any) -> None:
        """Index the messages that the table has just taken in."""

    @abstractmethod
    def _keep(self, rows: Ints) -> None:
        """Index the table anew: it holds what the rows (of the old table) ``rows`` held."""

    @abstractmethod
    def _rank(self, request: Request) -> list[Found]:
        """Return at most ``request.k`` allowed rows, best first."""
