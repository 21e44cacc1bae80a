"""Ctrl-C: once gives running cells back and says how to go on; a second one does not wait."""

import os
import signal

import pytest

from steelyard.bench import runner
from steelyard.bench.store import Store
from toys.tools import alive, at_work, cells, children, command_line, counts, ended, kill, planned, python, until

# A grace that no test waits for: only a kill ends a worker that is stopped.
PATIENT = "from steelyard.bench import runner; runner.GRACE_S = 600; from steelyard.cli.main import run; run()"


def states(path):
    with Store(path, create=False) as store:
        (weighing,) = store.weighing_ids()
        return [(cell["state"], cell["attempts"]) for cell in store.cells(weighing)]


def weighing_in_progress(path, *words):
    process = python(*words, "weigh", "toys.coin", "--profile", "slow", "--store", path, "--jobs", "2")
    until(lambda: path.exists() and counts(path).running == 2 and counts(path).done)
    return process


def test_once(tmp_path):
    path = tmp_path / "s.db"
    process = weighing_in_progress(path, "-m", "steelyard.cli.main")
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130
    (line,) = [line for line in err.splitlines() if "interrupted" in line]
    assert line.startswith("steelyard: interrupted; ")
    assert "of 8 cells are kept. Go on with: steelyard resume coin-slow-" in line
    assert f"--store {path}" in line
    assert "Traceback" not in err
    assert out == ""
    found = states(path)
    assert {state for state, _ in found} == {"done", "waiting"}
    assert {attempts for state, attempts in found if state == "waiting"} == {0}
    assert not at_work(path)

    words = line.partition("steelyard resume ")[2].split()
    code, _, _ = ended(command_line("resume", *words, "--jobs", "2"))
    assert code == 0
    assert {state for state, _ in states(path)} == {"done"}
    assert {attempts for _, attempts in states(path)} == {1}


def test_twice_does_not_wait_for_workers_that_do_not_answer(tmp_path):
    path = tmp_path / "s.db"
    process = weighing_in_progress(path, "-c", PATIENT)
    workers = children(process.pid)
    running = [cell for worker in workers for cell in children(worker)]
    for worker in workers:
        kill(worker, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(Exception, match="timed out"):
        process.wait(1)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "Go on with: steelyard resume" in err
    until(lambda: not any(alive(pid) for pid in workers + running), 20)
    assert {state for state, _ in states(path)} == {"done", "waiting"}
    assert {attempts for state, attempts in states(path) if state == "waiting"} == {0}


def test_before_a_cell_runs(tmp_path):
    """While the plan is made there is nothing to keep; the exit code is the same."""
    path = tmp_path / "s.db"
    code = (
        "import os, signal; from steelyard.bench import plan;"
        "plan.make_plan = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT);"
        "from steelyard.cli.main import run; run()"
    )
    code, _, err = ended(python("-c", code, "weigh", "toys.coin", "--store", path))
    assert code == 130
    assert "Traceback" not in err


def test_a_worker_that_was_started_by_hand(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path, "slow")
    worker = python("-m", "steelyard.bench.worker", path, weighing)
    until(lambda: counts(path).running == 1 and counts(path).done)
    (running,) = until(lambda: children(worker.pid))
    os.killpg(worker.pid, signal.SIGINT)
    assert ended(worker) == (130, "", "")
    until(lambda: not alive(running), 20)
    assert {state for state, _ in states(path)} == {"done", "waiting"}
    assert {attempts for state, attempts in states(path) if state == "waiting"} == {0}


def test_the_library_raises_keyboard_interrupt_and_keeps_what_is_done(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path, "slow")

    def interrupt(found):
        if found.done:
            raise KeyboardInterrupt

    with Store(path) as store, pytest.raises(KeyboardInterrupt):
        runner.run(store, [weighing], 2, interrupt)
    kept = [cell["attempts"] for cell in cells(path, weighing) if cell["state"] == "done"]
    assert kept
    assert counts(path).running == 0
    assert not at_work(path)
