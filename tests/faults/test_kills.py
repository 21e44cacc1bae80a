"""Kills at random points: nothing committed is lost or run again, nothing computes on, and resume ends the work."""

import os
import random
import signal
import sys
import time

import pytest

from steelyard.bench.store import Store
from toys import drive
from toys.tools import Ledger, alive, at_work, children, counts, ended, environment, kill, planned, python, until

RUNNER_KILLS = 72  # in each of two tests
WORKER_KILLS = 60
CELLS = 120


def start(path, verb):
    """Fork a runner: everything is imported, so that kills meet its work and not Python's imports."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        drive.main(path, 2, verb)
        os._exit(0)
    finally:
        os._exit(1)


def ended_by_itself(pid):
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def run_to_the_end(path, ledger):
    pid = start(path, "resume")
    assert os.waitpid(pid, 0)[1] == 0
    ledger.look(whole=True)
    assert len(ledger.done) == CELLS
    found = counts(path)
    assert (found.done, found.failed, found.finished) == (CELLS, 0, True)


@pytest.mark.parametrize("root", [1, 2])
def test_kills_of_the_runner(tmp_path, monkeypatch, root):
    rng, kills, stores = random.Random(root), 0, 0
    while kills < RUNNER_KILLS:
        stores += 1
        path, log = tmp_path / f"{stores}.db", tmp_path / f"{stores}.txt"
        monkeypatch.setenv("TOY_LOG", str(log))
        ledger = Ledger(path, log)
        while True:
            pid = start(path, "resume" if ledger.weighings and rng.random() < 0.9 else "weigh")
            if rng.random() < 0.6:  # amid the cells, however slow the machine; else while everything starts
                until(lambda: ledger.runs_now() != ledger.runs or not alive(pid))  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.3))
            if ended_by_itself(pid):
                break
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            kills += 1
            until(lambda: not at_work(path), 20)  # noqa: B023 - the workers and their cells die with the runner
            ledger.look(whole=rng.random() < 0.1)
        run_to_the_end(path, ledger)


def test_kills_of_workers_and_cells(tmp_path, monkeypatch):
    rng, kills, stores = random.Random(3), 0, 0
    while kills < WORKER_KILLS:
        stores += 1
        path, log = tmp_path / f"{stores}.db", tmp_path / f"{stores}.txt"
        monkeypatch.setenv("TOY_LOG", str(log))
        ledger = Ledger(path, log)
        pid = start(path, "weigh")
        while not ended_by_itself(pid):
            time.sleep(rng.uniform(0.05, 0.3))
            workers = children(pid)
            targets = [cell for worker in workers for cell in children(worker)] if rng.random() < 0.3 else workers
            if targets:
                kill(rng.choice(targets))
                kills += 1
                ledger.look()
        with Store(path) as store:  # a cell that was hit three times counts as failed until it is tried again
            for weighing in store.weighing_ids():
                store.retry_failed(weighing)
        run_to_the_end(path, ledger)


@pytest.mark.parametrize("no_fork", [False, True])
def test_cells_die_with_their_worker(tmp_path, no_fork):
    path = tmp_path / "s.db"
    planned(path, "hang", arms=["hang"], seeds=2)
    runner = python(
        "-m", "toys.drive", path, 2, "resume", env=environment(STEELYARD_NO_FORK="1") if no_fork else environment()
    )
    workers = until(lambda: len(found := children(runner.pid)) == 2 and found)
    hanging = [until(lambda: children(worker), 30)[0] for worker in workers]  # noqa: B023
    for worker in workers:
        kill(worker)
    until(lambda: not any(alive(pid) for pid in hanging), 20)
    kill(runner.pid)
    runner.communicate()


def test_a_worker_whose_runner_is_gone_leaves(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    orphan = python("-m", "steelyard.bench.worker", path, weighing, env=environment(STEELYARD_RUNNER="1"))
    assert ended(orphan)[0] == 1
    assert counts(path).waiting == 12


def test_a_worker_of_its_own_outlives_the_shell_that_started_it(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    words = [sys.executable, "-m", "steelyard.bench.worker", str(path), weighing]
    shell = python(
        "-c", f"import subprocess; subprocess.Popen({words!r}, start_new_session=True)", stdout=None, stderr=None
    )
    assert shell.wait(60) == 0
    until(lambda: counts(path).finished)
    assert counts(path).done == 12


def test_killing_the_runner_again_and_again_does_not_fail_the_cells_it_ran(tmp_path):
    path = tmp_path / "s.db"
    planned(path, "slow", seeds=1)
    for _ in range(4):
        pid = start(path, "resume")
        until(lambda: counts(path).running == 2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        until(lambda: not at_work(path))
    assert os.waitpid(start(path, "resume"), 0)[1] == 0
    assert counts(path).done == 2
