"""One SQLite file that holds plans, data, claims of cells by workers, and results; safe against kills at any point.

A cell is claimed in one transaction and finished in another that writes its metrics and its state together, so a
finished cell is whole or not there. A cell whose owner is dead goes back to waiting, and after three attempts it has
failed.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from steelyard.errors import InputError, StoreError

DEFAULT_PATH = ".steelyard/store.db"
ATTEMPTS = 3
LOCKED_S = 60.0  # how long to wait for another writer
LEASE_S = 60.0  # a heartbeat older than this, from another machine, means a dead owner

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blob(hash TEXT PRIMARY KEY, bytes BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS weighing(
  id TEXT PRIMARY KEY, method TEXT NOT NULL, profile TEXT NOT NULL, created TEXT NOT NULL,
  plan TEXT NOT NULL, environment TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS cell(
  key TEXT PRIMARY KEY, method TEXT NOT NULL, task TEXT NOT NULL, arm TEXT NOT NULL, seed INTEGER NOT NULL,
  spec TEXT NOT NULL, exclusive INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('waiting', 'running', 'done', 'failed')),
  owner TEXT, heartbeat REAL, attempts INTEGER NOT NULL DEFAULT 0, error TEXT, result TEXT,
  steps INTEGER, wall_s REAL, cpu_s REAL, rss_mb REAL) STRICT;
CREATE TABLE IF NOT EXISTS weighing_cell(
  weighing TEXT NOT NULL REFERENCES weighing(id), position INTEGER NOT NULL, key TEXT NOT NULL REFERENCES cell(key),
  PRIMARY KEY(weighing, position)) STRICT;
CREATE INDEX IF NOT EXISTS weighing_cell_key ON weighing_cell(key);
CREATE TABLE IF NOT EXISTS metric(
  key TEXT NOT NULL REFERENCES cell(key), name TEXT NOT NULL, value REAL, PRIMARY KEY(key, name)) STRICT;
"""
_VERSION = 1


def store_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return the store's file: the argument, else ``STEELYARD_STORE``, else ``.steelyard/store.db`` here."""
    return Path(store or os.environ.get("STEELYARD_STORE") or DEFAULT_PATH)


class Claimed(NamedTuple):
    """A cell that this owner holds, and what to run."""

    key: str
    attempt: int
    spec: dict[str, Any]


class Counts(NamedTuple):
    """Cells of a weighing by state."""

    waiting: int
    running: int
    done: int
    failed: int

    @property
    def total(self) -> int:
        """All cells."""
        return sum(self)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return self.waiting == 0 and self.running == 0


def owner_name() -> str:
    """Return a name for this process that no other process, and no later one with the same number, has."""
    return f"{_host()}|{os.getpid()}|{_start_time(os.getpid())}"


def _host() -> str:
    """Return the machine, and the process namespace on it: process numbers mean something within that only."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks, or None when there is no such live process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if os.path.isdir("/proc/self"):
            return None
        try:  # a system without /proc: the number alone must do
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return "?"
        return "?"
    return None if fields[0] in "ZX" else fields[19]


def is_alive(owner: str, heartbeat: float) -> bool:
    """Return whether the process behind ``owner`` lives; on another machine its heartbeat (Unix seconds) decides."""
    host, pid, started = owner.split("|")
    if host == _host():
        return _start_time(int(pid)) == started
    return time.time() - heartbeat < LEASE_S


class Store:
    """The store at ``path``, created when it does not exist. Use as a context manager or call :meth:`close`."""

    def __init__(self, path: str | os.PathLike[str], create: bool = True, check: bool = False) -> None:
        self.path = Path(path)
        self._db = _connect(self.path, create, check)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _store_error(self.path, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        with self._errors():
            return self._db.execute(query, parameters).fetchall()

    def parse(self, text: str) -> Any:
        """Return what ``text`` of this store says as JSON; StoreError when it is damaged."""
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise _store_error(self.path, sqlite3.DatabaseError(f"malformed: {error}")) from None

    def add_weighing(
        self,
        plan: dict[str, Any],
        cells: Iterable[dict[str, Any]],
        blobs: dict[str, bytes],
        environment: dict[str, Any],
    ) -> None:
        """Add a weighing with its cells and data; cells that an earlier weighing finished are taken over as they are.

        Cells that had failed get three fresh attempts.
        """
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO blob VALUES (?, ?)", list(blobs.items()))
            db.execute(
                "INSERT INTO weighing VALUES (?, ?, ?, ?, ?, ?)",
                (
                    plan["id"],
                    plan["method"],
                    plan["profile"],
                    plan["created"],
                    json.dumps(plan),
                    json.dumps(environment),
                ),
            )
            for position, cell in enumerate(cells):
                db.execute(
                    "INSERT INTO cell(key, method, task, arm, seed, spec, exclusive, state) "
                    "VALUES (:key, :method, :task, :arm, :seed, :spec, :exclusive, 'waiting') "
                    "ON CONFLICT(key) DO UPDATE SET state = 'waiting', attempts = 0, error = NULL "
                    "WHERE state = 'failed'",
                    {**cell, "spec": json.dumps(cell["spec"])},
                )
                db.execute("INSERT INTO weighing_cell VALUES (?, ?, ?)", (plan["id"], position, cell["key"]))

    def add_blob(self, name: str, content: bytes) -> None:
        """Store ``content`` under ``name`` unless it is there."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?)", (name, content))

    def blob(self, name: str) -> bytes | None:
        """Return the bytes stored under ``name``, or None."""
        rows = self._rows("SELECT bytes FROM blob WHERE hash = ?", (name,))
        return bytes(rows[0][0]) if rows else None

    def claim(self, weighings: Sequence[str], owner: str) -> Claimed | None:
        """Take the next waiting cell of ``weighings``, or None when there is none for now.

        A cell that measures time runs alone: it waits for the others, and they wait for it.
        """
        with self._transaction() as db:
            self._take_back(db, counted=True)
            running = db.execute("SELECT exclusive FROM cell WHERE state = 'running'").fetchall()
            if any(row[0] for row in running):
                return None
            row = db.execute(
                "SELECT c.key, c.attempts, c.spec, c.exclusive FROM cell c JOIN weighing_cell w ON w.key = c.key "
                "WHERE c.state = 'waiting' AND w.weighing IN (SELECT value FROM json_each(?)) "
                "ORDER BY c.exclusive, w.position, w.weighing LIMIT 1",
                (json.dumps(list(weighings)),),
            ).fetchone()
            if row is None or (row[3] and running):
                return None
            db.execute(
                "UPDATE cell SET state = 'running', owner = ?, heartbeat = ?, attempts = attempts + 1 WHERE key = ?",
                (owner, time.time(), row[0]),
            )
        return Claimed(row[0], row[1] + 1, self.parse(row[2]))

    def _take_back(self, db: sqlite3.Connection, counted: bool) -> None:
        held = db.execute("SELECT key, owner, heartbeat, attempts FROM cell WHERE state = 'running'").fetchall()
        for key, owner, heartbeat, attempts in held:
            if is_alive(owner, heartbeat):
                continue
            if attempts >= ATTEMPTS and counted:
                error = f"its worker process died {attempts} times (killed, or out of memory)"
                db.execute("UPDATE cell SET state = 'failed', owner = NULL, error = ? WHERE key = ?", (error, key))
            else:
                query = "UPDATE cell SET state = 'waiting', owner = NULL, attempts = ? WHERE key = ?"
                db.execute(query, (attempts if counted else attempts - 1, key))

    def take_back(self, counted: bool = True) -> None:
        """Give the cells of dead owners back; ``counted`` says whether that was an attempt of theirs."""
        with self._transaction() as db:
            self._take_back(db, counted)

    def beat(self, key: str, owner: str) -> bool:
        """Renew the heartbeat of a held cell; False when it is no longer held."""
        with self._transaction() as db:
            query = "UPDATE cell SET heartbeat = ? WHERE key = ? AND owner = ? AND state = 'running'"
            return db.execute(query, (time.time(), key, owner)).rowcount == 1

    def finish(self, claimed: Claimed, owner: str, result: dict[str, Any]) -> bool:
        """Write metrics and ``done`` together; False (and nothing written) when the cell is no longer held."""
        with self._transaction() as db:
            updated = db.execute(
                "UPDATE cell SET state = 'done', owner = NULL, error = NULL, result = ?, steps = ?, wall_s = ?, "
                "cpu_s = ?, rss_mb = ? WHERE key = ? AND owner = ? AND state = 'running' AND attempts = ?",
                (
                    json.dumps({name: result[name] for name in ("traces", "notes", "diagrams") if name in result}),
                    result["steps"],
                    result["wall_s"],
                    result["cpu_s"],
                    result["rss_mb"],
                    claimed.key,
                    owner,
                    claimed.attempt,
                ),
            )
            if updated.rowcount != 1:
                return False
            db.executemany(
                "INSERT INTO metric VALUES (?, ?, ?)",
                [(claimed.key, name, value) for name, value in result["metrics"].items()],
            )
        return True

    def fail(self, claimed: Claimed, owner: str, error: str, final: bool = False) -> None:
        """Record a failed attempt; the third, or a ``final`` one, fails the cell."""
        state = "failed" if final or claimed.attempt >= ATTEMPTS else "waiting"
        with self._transaction() as db:
            db.execute(
                "UPDATE cell SET state = ?, owner = NULL, error = ? "
                "WHERE key = ? AND owner = ? AND state = 'running' AND attempts = ?",
                (state, error, claimed.key, owner, claimed.attempt),
            )

    def release(self, owner: str) -> None:
        """Give back what ``owner`` holds, as if it had not been tried."""
        with self._transaction() as db:
            query = "UPDATE cell SET state = 'waiting', owner = NULL, attempts = attempts - 1 WHERE owner = ?"
            db.execute(query + " AND state = 'running'", (owner,))

    def retry_failed(self, weighing: str) -> int:
        """Give the failed cells of a weighing three fresh attempts; return how many there were."""
        with self._transaction() as db:
            return db.execute(
                "UPDATE cell SET state = 'waiting', attempts = 0, error = NULL WHERE state = 'failed' "
                "AND key IN (SELECT key FROM weighing_cell WHERE weighing = ?)",
                (weighing,),
            ).rowcount

    def counts(self, weighings: Sequence[str]) -> Counts:
        """Return the number of cells in each state."""
        rows = self._rows(
            "SELECT state, count(*) FROM cell WHERE key IN (SELECT key FROM weighing_cell "
            "WHERE weighing IN (SELECT value FROM json_each(?))) GROUP BY state",
            (json.dumps(list(weighings)),),
        )
        return Counts(**{"waiting": 0, "running": 0, "done": 0, "failed": 0, **{row[0]: row[1] for row in rows}})

    def weighing_ids(self) -> list[str]:
        """Return all weighings, the newest last."""
        return [row[0] for row in self._rows("SELECT id FROM weighing ORDER BY created, rowid")]

    def weighing(self, identity: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (plan, environment) of a weighing; an unknown one raises InputError."""
        rows = self._rows("SELECT plan, environment FROM weighing WHERE id = ?", (identity,))
        if not rows:
            known = ", ".join(self.weighing_ids()[-5:]) or "none"
            raise InputError(f"no weighing '{identity}' in {self.path}; the newest are: {known}")
        return self.parse(rows[0][0]), self.parse(rows[0][1])

    def cells(self, weighing: str) -> list[dict[str, Any]]:
        """Return the cells of a weighing in plan order, each with its metrics."""
        rows = self._rows(
            "SELECT c.key, c.task, c.arm, c.seed, c.spec, c.state, c.attempts, c.error, c.result, c.steps, c.wall_s, "
            "c.cpu_s, c.rss_mb FROM weighing_cell w JOIN cell c ON c.key = w.key WHERE w.weighing = ? "
            "ORDER BY w.position",
            (weighing,),
        )
        metrics: dict[str, dict[str, float | None]] = {}
        for key, name, value in self._rows(
            "SELECT m.key, m.name, m.value FROM metric m JOIN weighing_cell w ON w.key = m.key WHERE w.weighing = ?",
            (weighing,),
        ):
            metrics.setdefault(key, {})[name] = value
        return [{**dict(row), "metrics": metrics.get(row["key"], {})} for row in rows]


def _connect(path: Path, create: bool, check: bool) -> sqlite3.Connection:
    try:
        if not create and not path.exists():
            raise StoreError(f"there is no store at {path}; name one with --store, or weigh something first")
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)
        db.row_factory = sqlite3.Row
    except (OSError, sqlite3.Error) as error:
        raise _store_error(path, error) from error
    try:
        _prepare(db, path)
        if check and (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(f"malformed: {found}")
    except sqlite3.Error as error:
        db.close()
        raise _store_error(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Set the connection up, and the schema in a new file."""
    version = _version(db, path)
    end = time.monotonic() + LOCKED_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:  # SQLite does not wait by itself where several open a new file
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    if version == 0:
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")


def _version(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of the store's schema, 0 for a new file; a file of another program is not touched."""
    version, tables, ours = db.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), count(*), total(name = 'weighing_cell') "
        "FROM sqlite_master"
    ).fetchone()
    if tables and not ours:
        raise StoreError(f"{path} is an SQLite file of another program; name another file with --store")
    if version not in (0, _VERSION):
        raise StoreError(f"the store {path} was written by another version of steelyard; name a new file with --store")
    return int(version)


def _store_error(path: Path, error: Exception) -> StoreError:
    """Return the sentence for what SQLite or the file system said."""
    said = " ".join(str(error).split())  # SQLite's findings come in several lines
    if "full" in said or "disk I/O" in said:  # a file system of limited size may report the second for the first
        return StoreError(
            f"the disk of the store {path} is full or failing ({said}); free some space, then run: steelyard resume"
        )
    if "malformed" in said or "not a database" in said or "corrupt" in said:
        return StoreError(
            f"the store {path} is damaged ({said}); move it away, or save what is readable with sqlite3's .recover"
        )
    if "readonly" in said or "unable to open" in said or isinstance(error, OSError):
        return StoreError(f"the store {path} cannot be written ({said}); name a writable place with --store")
    if "locked" in said:
        return StoreError(f"the store {path} stayed locked for a minute; stop the program that holds it")
    return StoreError(f"the store {path} failed: {said}")
