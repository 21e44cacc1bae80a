"""Messages in one SQLite file that survives kills at any point and erases on request, and memories kept in step."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.messages import Message, checked
from steelyard.errors import InputError, StoreError
from steelyard.models.paths import printable, usable_path

_APPLICATION = 1398361427  # "SYMS", in the file's header
_VERSION = 1
_MAGIC = b"SQLite format 3\0"  # how every SQLite file begins
_LOCKED_S = 60.0  # how long to wait for another writer
_PAGE = 8192  # messages read at a time
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS message(
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, author TEXT NOT NULL, reply_to TEXT,
  zoned INTEGER, body TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS message_zoned ON message(zoned) WHERE zoned IS NOT NULL;
CREATE TABLE IF NOT EXISTS erasure(count INTEGER NOT NULL) STRICT;
INSERT INTO erasure SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM erasure);
PRAGMA application_id = 1398361427;
PRAGMA user_version = 1;
COMMIT;
"""
_MIXED = (
    "SELECT (SELECT min(zoned) FROM message WHERE zoned IS NOT NULL)"
    " < (SELECT max(zoned) FROM message WHERE zoned IS NOT NULL)"
)
_BODY = (
    "content", "channel", "role", "phase", "topic", "is_noise", "is_decision_point", "decision_type", "decision_label",
    "decision_change", "truth", "position",
)  # fmt: skip


class Attached(Protocol):
    """What a store keeps in step with itself: any memory of this room."""

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages."""
        ...

    def clear(self) -> None:
        """Remove every message."""
        ...


Memory = TypeVar("Memory", bound=Attached)


class MemoryStore:
    """The messages of a group in a SQLite file; several processes may write to it at once.

    When :meth:`add_many` has returned, its messages are on disk, all of them; when the process is killed before, none
    are. Deleted messages are overwritten, and the file and its log are written anew without them. Use as a context
    manager or call :meth:`close`.

    Args:
        path: The file, created (readable by its owner only) where it does not exist.

    Raises:
        InputError: The path cannot be used.
        StoreError: The file is no SQLite database, damaged, another program's, of a newer schema, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = usable_path(path)
        self._lock = threading.RLock()
        self._attached: list[Attached] = []
        self._last, self._erasures = 0, 0  # what the attached memories hold
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(self.path, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        version, application = self._one("PRAGMA user_version"), self._one("PRAGMA application_id")
        tables = self._one("SELECT count(*) FROM sqlite_master")
        if application != _APPLICATION and (application or version or tables):
            raise StoreError(f"{self._name} is a database of another program; name another file.")
        if version > _VERSION:
            raise StoreError(f"{self._name} has schema {version}, newer than this steelyard's {_VERSION}; upgrade it.")
        end = time.monotonic() + _LOCKED_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:  # SQLite does not wait where several open a new file
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA secure_delete = ON")
        if version == 0:
            self._db.executescript(_SCHEMA)

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._errors():
            return int(self._one("SELECT count(*) FROM message"))

    def close(self) -> None:
        """Close the file; attached memories stay usable and are no longer kept in step."""
        with self._lock:
            self._attached = []
            self._db.close()

    def add(self, message: Message) -> None:
        """Store one message; as :meth:`add_many`."""
        self.add_many((message,))

    def add_many(self, messages: Iterable[Message]) -> int:
        """Store messages and return how many: all of them are on disk then, or, on an error, none is added.

        Raises:
            InputError: A message cannot be stored, its id is there already, or its timestamp has a time zone and those
                of others have none.
            StoreError: The file cannot be written.
        """
        insert = "INSERT INTO message(id, author, reply_to, zoned, body) VALUES (?, ?, ?, ?, ?)"
        with self._lock, self._errors():
            source = _Rows(messages)
            try:
                with self._transaction():
                    self._db.executemany(insert, source)
                    if self._one(_MIXED):
                        raise InputError("some timestamps have a time zone and others have none; give all of them one.")
            except sqlite3.IntegrityError:
                raise InputError(f"message id {source.last!r} is there twice; ids must be unique in a store.") from None
            self.refresh()
        return source.count

    def delete_user(self, author: str) -> int:
        """Erase every message of ``author`` from the file and every attached memory, and return how many there were.

        Replies to them become roots. The file is written anew, so that no byte of them is left in it or in its log;
        what others quoted, and audiences that name the person, stay. Attached memories of other processes follow at
        their next :meth:`refresh`.

        Raises:
            StoreError: The file cannot be written, or another program kept reading it for a minute: the messages are
                deleted then, and calling this again finishes the erasing.
        """
        with self._lock, self._errors():
            with self._transaction():
                self._db.execute(
                    "UPDATE message SET reply_to = NULL WHERE reply_to IN (SELECT id FROM message WHERE author = ?)",
                    (author,),
                )
                deleted = self._db.execute("DELETE FROM message WHERE author = ?", (author,)).rowcount
                if deleted:
                    self._db.execute("UPDATE erasure SET count = count + 1")
            self._db.execute("VACUUM")  # rebalanced pages may hold copies that secure_delete does not know of
            busy = self._one("PRAGMA wal_checkpoint(TRUNCATE)")
            self.refresh()
        if busy:
            raise StoreError(
                f"the messages are deleted from {self._name}, but another program kept reading it: their bytes may "
                "still be in its log; close that program and call delete_user again."
            )
        return deleted

    def messages(self) -> Iterator[Message]:
        """Yield the messages in the order in which they were stored, a page at a time.

        Raises:
            StoreError: A row is damaged.
        """
        for _, message in self._after(0):
            yield message

    def chat(self) -> GroupChat:
        """Return all messages as a chat."""
        return GroupChat(self.messages())

    def attach(self, memory: Memory) -> Memory:
        """Fill ``memory``, which must be empty, keep it in step with this store from now on, and return it."""
        with self._lock:
            self.refresh()
            for block in _blocks(self._until(self._last)):
                memory.add_many(block)
            self._attached.append(memory)
        return memory

    def refresh(self) -> None:
        """Bring the attached memories up to what is in the file, which other processes may have changed."""
        with self._lock, self._errors():
            erasures = int(self._one("SELECT count FROM erasure"))
            if erasures != self._erasures:
                for memory in self._attached:
                    memory.clear()
                self._last, self._erasures = 0, erasures
            if not self._attached:
                self._last = int(self._one("SELECT coalesce(max(number), 0) FROM message"))
                return
            for block in _blocks(self._after(self._last)):
                for memory in self._attached:
                    memory.add_many([message for _, message in block])
                self._last = block[-1][0]

    def _until(self, last: int) -> Iterator[Message]:
        for number, message in self._after(0):
            if number > last:
                return
            yield message

    def _after(self, number: int) -> Iterator[tuple[int, Message]]:
        query = "SELECT number, id, author, reply_to, body FROM message WHERE number > ? ORDER BY number LIMIT ?"
        while True:
            with self._lock, self._errors():
                rows = self._db.execute(query, (number, _PAGE)).fetchall()
            for row in rows:
                yield row[0], self._message(*row)
            if len(rows) < _PAGE:
                return
            number = rows[-1][0]

    def _message(self, number: int, id_: str, author: str, reply_to: str | None, body: str) -> Message:
        try:
            fields = json.loads(body)
            audience = fields.pop("audience", None)
            return checked(
                Message(
                    id=id_,
                    author=author,
                    reply_to=reply_to,
                    audience=None if audience is None else frozenset(map(str, audience)),
                    **fields,
                )
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._name} is damaged: message number {number} cannot be read ({error}).") from None

    @property
    def _name(self) -> str:
        return f"the store {printable(str(self.path))}"

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _is_sqlite(self) -> bool:
        """Return whether the file begins as SQLite's do: a damaged memory does, another kind of file does not."""
        with self.path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, StoreError | sqlite3.IntegrityError):
                raise
            said = " ".join(str(error).split())
            if "not a database" in said and not self._is_sqlite():
                raise StoreError(
                    f"{printable(str(self.path))} is no memory of steelyard (not a SQLite database); name another file."
                ) from None
            if "malformed" in said or "not a database" in said or "corrupt" in said:
                raise StoreError(f"{self._name} is damaged ({said}); restore it from a copy.") from None
            raise StoreError(f"{self._name} cannot be used ({said}).") from None


class _Rows:
    """Rows for SQLite out of messages; ``last`` is the id of the one given last, ``count`` how many were given."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._source, self.last, self.count = iter(messages), "", 0

    def __iter__(self) -> Iterator[tuple[str, str, str | None, int | None, str]]:
        for given in self._source:
            message = checked(given)
            self.last, self.count = message.id, self.count + 1
            if not all(_is_text(text) for text in (message.id, message.author, message.reply_to)):
                raise InputError(f"message {message.id!r}: id, author and reply_to must be text without surrogates.")
            body = {name: value for name in _BODY if (value := getattr(message, name)) is not None}
            stamp, zoned = message.timestamp, None
            if isinstance(stamp, datetime):
                body["timestamp"], zoned = stamp.isoformat(), int(stamp.utcoffset() is not None)
            if message.audience is not None:
                body["audience"] = sorted(message.audience)
            yield message.id, message.author, message.reply_to, zoned, _json(body, message.id)


def _is_text(text: str | None) -> bool:
    try:
        (text or "").encode()
    except (UnicodeEncodeError, AttributeError):
        return False
    return True


def _json(body: Mapping[str, Any], id_: str) -> str:
    try:
        return json.dumps(body)
    except (TypeError, ValueError) as error:
        raise InputError(f"message {id_!r} cannot be stored: {error}.") from None


def _blocks(items: Iterator[Any]) -> Iterator[list[Any]]:
    while block := list(islice(items, _PAGE)):
        yield block
