"""Cells that hang, eat memory, die or give no number: each becomes a row that says so, and the rest goes on."""

import itertools
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from steelyard.bench import cell as cell_module
from steelyard.bench import runner
from steelyard.bench.source import read_results
from steelyard.bench.store import Store
from steelyard.bench.worker import Worker
from toys.tools import children, counts, kill, planned, until

FORKED_AND_SPAWNED = pytest.mark.parametrize("no_fork", [False, True])
SAID = {
    "hang": "timed out: the cell's limit is 1 s",
    "hog": "out of memory: the cell's limit is 200 MB",
    "die": "the cell's process ended with signal SIGKILL and no result",
}


def run(path, jobs=2):
    with Store(path) as store:
        runner.run(store, store.weighing_ids(), jobs)
        return [read_results(store, weighing) for weighing in store.weighing_ids()][-1]


def rows_of(results, arm):
    return [row for row in results.rows if row.arm == arm]


@FORKED_AND_SPAWNED
@pytest.mark.parametrize("fate", SAID)
def test_limits(tmp_path, monkeypatch, fate, no_fork):
    if no_fork:
        monkeypatch.setenv("STEELYARD_NO_FORK", "1")
    slow = no_fork and fate == "hang"  # where there is no fork, a second of time is for Python's start as well
    planned(tmp_path / "s.db", fate, arms=["hang"] if slow else None)
    results = run(tmp_path / "s.db")
    (row,) = rows_of(results, fate)
    assert (row.state, row.attempts, row.error) == ("failed", 3, SAID[fate])
    assert [row.state for row in results.rows if row.arm in ("biased", "fair")] == ([] if slow else ["done", "done"])
    assert results.finished


@FORKED_AND_SPAWNED
def test_an_error_and_a_value_that_is_no_number(tmp_path, monkeypatch, no_fork):
    if no_fork:
        monkeypatch.setenv("STEELYARD_NO_FORK", "1")
    planned(tmp_path / "s.db", "bad", seeds=1)
    results = run(tmp_path / "s.db")
    (raised,), (nan,) = rows_of(results, "raise"), rows_of(results, "nan")
    assert (raised.state, raised.attempts) == ("failed", 3)
    assert raised.error.startswith("Traceback")
    assert "ValueError: this arm always fails" in raised.error
    assert (nan.state, nan.attempts, nan.error) == ("failed", 1, "not a finite number: score")
    assert nan.metrics == {}


def test_memory_is_watched_where_the_address_space_cannot_be_limited(tmp_path, monkeypatch):
    cuda = types.SimpleNamespace(version=types.SimpleNamespace(cuda="12.8"))
    monkeypatch.setitem(sys.modules, "torch", cuda)  # the limit is not set beside CUDA, which maps more than it uses
    weighing = planned(tmp_path / "s.db", "hog", arms=["hog"])
    with Store(tmp_path / "s.db") as store:
        Worker(store, [weighing]).run()
        (cell,) = store.cells(weighing)
    assert (cell["state"], cell["error"]) == ("failed", SAID["hog"])


def test_a_thread_that_a_cell_left_behind_does_not_hold_it(tmp_path, monkeypatch):
    folder = tmp_path / "threads" / "coin"
    folder.mkdir(parents=True)
    (tmp_path / "threads" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "card.py").write_text("from toys.coin.card import CARD\n")
    (folder / "bench.py").write_text(
        "import dataclasses, threading, time\n"
        "from toys.coin.bench import BENCH as COIN\n"
        "def run(cell):\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    return COIN.run(cell)\n"
        "BENCH = dataclasses.replace(COIN, method='threads.coin', run=run)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for no_fork in ("", "1"):
        if no_fork:
            monkeypatch.setenv("STEELYARD_NO_FORK", no_fork)
        planned(tmp_path / f"s{no_fork}.db", method="threads.coin", seeds=1, arms=["fair"])
        assert [row.state for row in run(tmp_path / f"s{no_fork}.db").rows] == ["done", "done"]


def test_a_limit_that_the_system_refuses_is_left_to_the_watch(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(cell_module.resource, "setrlimit", refuse)
    cell_module._limit_memory(100)


def test_failed_cells_are_tried_again_when_asked(tmp_path):
    weighing = planned(tmp_path / "s.db", "die")
    run(tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        assert store.retry_failed(weighing) == 1
        assert store.counts([weighing]) == (1, 0, 2, 0)
        found = runner.run(store, [weighing], 1)
        assert (found.done, found.failed) == (2, 1)


def test_a_terminated_worker_gives_its_cell_back_and_is_replaced(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path, "slow", seeds=1)
    with Store(path) as store:
        killed = []

        def terminate_once(found):
            if found.running and not killed:
                killed.append(children(os.getpid())[0])
                kill(killed[0], signal.SIGTERM)

        runner.run(store, [weighing], 1, terminate_once)
        assert killed
        assert [cell["state"] for cell in store.cells(weighing)] == ["done", "done"]
        assert {cell["attempts"] for cell in store.cells(weighing)} == {1}


def test_a_worker_that_dies_every_time_ends_in_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "s.db"
    weighing = planned(path)
    monkeypatch.setattr(runner, "STARTS_PER_JOB", 3)
    monkeypatch.setattr(runner, "POLL_S", 0.01)
    die = [sys.executable, "-c", "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"]
    real = subprocess.Popen
    monkeypatch.setattr(runner.subprocess, "Popen", lambda _command, **rest: real(die, **rest))
    with Store(path) as store, pytest.raises(runner.StoreError, match=r"workers died 3 times.*last words"):
        runner.run(store, [weighing], 1)
    assert counts(path).waiting == 12


def test_a_cell_whose_worker_dies_three_times_has_failed(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path, "hang", arms=["hang"])
    with Store(path) as store:
        seen = set()

        def kill_each(found):
            for pid in children(os.getpid()) if found.running else ():
                if pid not in seen and children(pid):
                    seen.add(pid)
                    kill(pid)

        found = runner.run(store, [weighing], 1, kill_each)
        (cell,) = store.cells(weighing)
    assert found.failed == 1
    assert cell["error"] in ("its worker process died 3 times (killed, or out of memory)", SAID["hang"])


def test_wrong_clocks_change_nothing(tmp_path, monkeypatch):
    path = tmp_path / "s.db"
    weighing = planned(path)
    jumps = itertools.cycle((0.0, 1e9, -1e9, 1e5))
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    with Store(path) as store:
        Worker(store, [weighing]).run()
        assert {(cell["state"], cell["attempts"]) for cell in store.cells(weighing)} == {("done", 1)}


def test_when_the_clock_jumps_a_cell_of_another_machine_has_one_result(tmp_path, monkeypatch):
    weighing = planned(tmp_path / "s.db")
    result = {
        "metrics": {"score": 1.0},
        "traces": {},
        "notes": {},
        "steps": 1,
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "rss_mb": 1.0,
    }
    far, near = "elsewhere/1|7|7", "elsewhere/2|8|8"
    with Store(tmp_path / "s.db") as store:
        first = store.claim([weighing], far)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        assert store.claim([weighing], near).key != first.key  # back: the holder is believed alive
        monkeypatch.setattr(time, "time", lambda: now + 3600)
        second = store.claim([weighing], near)
        assert (second.key, second.attempt) == (first.key, 2)  # forward: believed dead
        assert not store.beat(first.key, far)
        assert not store.finish(first, far, {**result, "metrics": {"score": 9.0}})
        store.fail(first, far, "too late")
        assert store.finish(second, near, result)
        assert not store.finish(second, near, result)
        assert store.cells(weighing)[0]["metrics"] == {"score": 1.0}
        assert store.cells(weighing)[0]["error"] is None


def test_a_cell_that_lost_its_claim_is_killed(tmp_path, monkeypatch):
    weighing = planned(tmp_path / "s.db", "hang", arms=["hang"])
    monkeypatch.setattr("steelyard.bench.worker.BEAT_S", 0.0)
    with Store(tmp_path / "s.db") as store, Store(tmp_path / "s.db") as other:
        worker = Worker(store, [weighing])
        claimed = store.claim([weighing], worker.owner)
        other.release(worker.owner)
        assert worker._in_child(claimed) == {"error": "its claim was taken by another worker"}
        until(lambda: not children(os.getpid()))
