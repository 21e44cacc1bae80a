"""How a cell may end: leaving processes behind, closing its pipe, printing much, with text that no file can hold."""

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from test_source import ARMS, rows

from steelyard.bench import cell as cell_module
from steelyard.bench.source import with_derived
from steelyard.bench.store import Store
from steelyard.bench.worker import Child, Worker
from steelyard.contracts import Measured
from steelyard.errors import InputError
from toys.coin import bench as coin
from toys.tools import alive, cells, planned, until

MEASURED = Measured(metrics={"score": 1.0}, steps=1)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return a function that runs one cell which does ``run``, within one second, and returns its row."""
    monkeypatch.setattr(cell_module, "_limit_memory", lambda _: None)  # it would stay with this process

    def one(run):
        monkeypatch.setattr(coin, "BENCH", dataclasses.replace(coin.BENCH, run=run))
        weighing = planned(tmp_path / "s.db", "hang", seeds=1, arms=["fair"])
        with Store(tmp_path / "s.db") as store:
            Worker(store, [weighing]).run()
        (row,) = cells(tmp_path / "s.db", weighing)
        return row

    return one


def test_a_process_that_a_cell_left_behind_does_not_hold_it(tmp_path, play):
    note = tmp_path / "daemon.txt"

    def run(_):
        if os.fork() == 0:
            os.setsid()  # out of the reach of the cell's end, with the pipe still open
            note.write_text(str(os.getpid()))
            time.sleep(30)
            os._exit(0)
        until(note.exists, 10)
        return MEASURED

    row = play(run)
    assert (row["state"], row["attempts"], row["metrics"]) == ("done", 1, {"score": 1.0})
    os.kill(int(note.read_text()), 9)


def test_what_a_finished_cell_left_running_is_killed(tmp_path, play):
    note = tmp_path / "left.txt"

    def run(_):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        note.write_text(str(pid))
        return MEASURED

    assert play(run)["state"] == "done"
    until(lambda: not alive(note.read_text()), 10)


def test_a_cell_that_closes_its_pipe_and_goes_on_is_timed_out(play):
    def run(_):
        os.closerange(3, 256)
        time.sleep(600)

    row = play(run)
    assert row["error"] == "timed out: the cell's limit is 1 s"


def test_a_killed_process_whose_end_was_seen_is_not_signalled_again(tmp_path, monkeypatch):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    os.close(write_end)
    child = Child(pid, read_end, str(tmp_path))
    while child.read(0.1):
        pass
    sent = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    child.kill()
    assert sent == []
    assert child.reap() == 7


def test_text_that_no_file_can_hold(tmp_path, play):
    def refuse(_):
        raise FileNotFoundError("no \udcff here")

    row = play(refuse)
    assert row["state"] == "failed"
    assert "no ? here" in row["error"]

    def odd(_):
        return Measured(metrics={"score": 1.0, "\udcff": 2.0}, steps=1, notes={"name": "a\udcffb"})

    row = play(odd)
    assert row["metrics"] == {"score": 1.0, "?": 2.0}
    assert json.loads(row["result"])["notes"] == {"name": "a?b"}
    assert json.loads(cell_module.to_bytes({"error": "ü\ud800"})) == {"error": "ü?"}


def test_only_the_end_of_what_was_printed_is_read(tmp_path):
    file = Path(tmp_path, "printed.txt")
    with open(file, "wb") as out:
        out.truncate(2**40)  # a hole: reading it whole would not fit
        out.seek(0, os.SEEK_END)
        out.write(b"last words")
    read_end, write_end = os.pipe()
    try:
        assert Child(os.getpid(), read_end, str(tmp_path)).printed(10) == "last words"
        file.write_bytes(b" short ")
        assert Child(os.getpid(), read_end, str(tmp_path)).printed() == "short"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_derive_function_that_fails_is_one_sentence():
    def broken(arms):
        return {"best": {"x": arms["a"]["nothing"]}}

    with pytest.raises(InputError, match=r"derive function failed on task t, seed 0 \(KeyError: 'nothing'\)"):
        with_derived(rows(a={"x": 1.0}), ARMS, broken)


def test_a_derive_function_cannot_replace_what_was_measured():
    with pytest.raises(InputError, match=r"replaces what arm a measured \(task t, seed 0\): x"):
        with_derived(rows(a={"x": 1.0}), ARMS, lambda _: {"a": {"x": 99.0}})
