"""What the tests of the engine share: plans, raw looks into a store, processes to start, watch and kill."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from steelyard.bench.plan import make_plan
from steelyard.bench.store import Store

TESTS = Path(__file__).parents[1]


def planned(path, profile="quick", method="toys.coin", **settings):
    """Plan a weighing in the store at ``path`` and return its name."""
    with Store(path) as store:
        plan = make_plan(method, store, profile=profile, **settings)
        plan.save(store)
        return plan.id


def counts(path, *weighings):
    with Store(path, create=False) as store:
        return store.counts(weighings or store.weighing_ids())


def cells(path, weighing):
    with Store(path, create=False) as store:
        return store.cells(weighing)


def environment(**more):
    """Return the environment of a child that must find the toys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def python(*arguments, **more):
    """Start a Python process in a session of its own, its output kept as text."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, *map(str, arguments)], **{**settings, "env": environment(), **more})


def command_line(*words, **more):
    return python("-m", "steelyard.cli.main", *words, **more)


def ended(process, timeout=120):
    """Wait for a process; return (exit code, standard output, standard error)."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def until(condition, seconds=60.0):
    """Wait until ``condition`` gives something true and return that; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"still not so after {seconds} s: {condition}")


def children(pid):
    """Return the live child processes of ``pid``."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return [child for child in found if alive(child)]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def at_work(path):
    """Return the processes that have the store at ``path`` on their command line: workers and their forked cells."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"steelyard.bench.worker" in words and str(path).encode() in words and alive(folder.name):
                found.append(int(folder.name))
    return found


def kill(pid, how=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


class Ledger:
    """What a store has promised: rows seen as committed, which must stay as they are whatever is killed."""

    def __init__(self, path, log=None):
        self.path, self.log = Path(path), log
        self.done, self.weighings, self.runs = {}, {}, Counter()

    def runs_now(self):
        """Return how often each (arm, seed) has been started."""
        if self.log is None or not Path(self.log).exists():
            return Counter()
        return Counter(tuple(line.split()[:2]) for line in Path(self.log).read_text().splitlines())

    def look(self, whole=False):
        """Compare the store with what was seen before, without steelyard's own code, and remember it."""
        if not self.path.exists():
            assert not self.done
            return
        db = sqlite3.connect(self.path, timeout=60)
        try:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                assert not self.done
                return
            db.execute("BEGIN")
            rows = db.execute("SELECT key, arm, seed, state, result, steps, wall_s, cpu_s, rss_mb FROM cell").fetchall()
            metrics = {}
            for key, name, value in db.execute("SELECT key, name, value FROM metric"):
                metrics.setdefault(key, []).append((name, value))
            weighings = dict(db.execute("SELECT id, plan FROM weighing").fetchall())
            listed = dict(db.execute("SELECT weighing, count(*) FROM weighing_cell GROUP BY weighing").fetchall())
            db.execute("COMMIT")
            if whole:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            db.close()
        done = {row[0]: (row[1:], tuple(metrics[row[0]])) for row in rows if row[3] == "done"}
        assert set(metrics) == set(done), "metrics without a finished cell"
        assert all(len(values) == 1 for _, values in done.values()), "a cell with two sets of metrics"
        assert {key: done.get(key) for key in self.done} == self.done, "a committed result was lost or changed"
        assert {name: weighings.get(name) for name in self.weighings} == self.weighings
        assert set(listed) == set(weighings), "a weighing without its cells"
        runs = self.runs_now()
        for row, _ in self.done.values():
            cell = (row[0], str(row[1]))
            assert runs[cell] == self.runs[cell], f"{cell} was finished and has been run again"
        self.done, self.weighings, self.runs = done, weighings, runs
