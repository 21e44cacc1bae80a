"""A worker and its cells, in this process as far as that goes: what runs in forked children leaves no trace here."""

import dataclasses
import io
import json
import os
import signal
import sys
import tempfile
import time

import numpy as np
import pytest

from steelyard.bench import cell as cell_module
from steelyard.bench import worker as module
from steelyard.bench.cell import execute, isolate
from steelyard.bench.plan import make_plan
from steelyard.bench.store import Store
from steelyard.bench.worker import Worker
from steelyard.contracts import Measured
from steelyard.errors import DataMissingError
from toys.coin import bench as coin
from toys.tools import alive, cells, environment, planned, until

LIMIT_MEMORY = cell_module._limit_memory


@pytest.fixture(autouse=True)
def _no_memory_limit(monkeypatch):
    monkeypatch.setattr(cell_module, "_limit_memory", lambda _: None)  # it would stay with this process


def spec_of(tmp_path, **changes):
    with Store(tmp_path / "plan.db") as store:
        plan = make_plan("toys.coin", store, seeds=1, arms=["biased"])
    return {**plan.cells[0]["spec"], "data": ["blob"], **changes}


def load(name):
    assert name == "blob"
    return {"x": np.full(3, 2.0)}


def test_a_cell(tmp_path):
    result = execute(spec_of(tmp_path), load)
    assert set(result) == {"metrics", "steps", "traces", "notes", "diagrams", "wall_s", "cpu_s", "rss_mb"}
    assert result == {**result, "steps": 1, "diagrams": [], "notes": {"pid": os.getpid(), "cwd": os.getcwd()}}
    xs, ys = result["traces"]["walk"]
    assert (xs, ys[1]) == ([0.0, 1.0], result["metrics"]["score"])
    again = execute(spec_of(tmp_path), load)
    assert again["metrics"] == result["metrics"]
    other = execute(spec_of(tmp_path, seed=1), load)
    assert other["metrics"] != result["metrics"]
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize(
    ("error", "said", "final"),
    [
        (MemoryError(), "out of memory: the cell's limit is 4096 MB", False),
        (RuntimeError("[enforce fail] can't allocate memory: you tried"), "out of memory: the cell's limit", False),
        (RuntimeError("shapes differ"), "RuntimeError: shapes differ", False),
        (KeyError("x"), "KeyError: 'x'", False),
        (DataMissingError("this does nothing"), "this does nothing", False),
        (cell_module.InputError("momentum: too large"), "momentum: too large", True),
    ],
)
def test_errors_become_rows(tmp_path, monkeypatch, error, said, final):
    def run(_):
        raise error

    spec = spec_of(tmp_path)
    monkeypatch.setattr("steelyard.catalog.load_bench", lambda _: type("Bench", (), {"run": staticmethod(run)}))
    result = execute(spec, load)
    assert said in result["error"]
    assert result["final"] is final


def measured(**parts):
    return Measured(**{"metrics": {"score": 1.0}, "steps": 1, **parts})


def test_numbers_that_are_none(tmp_path, monkeypatch):
    def bench(result):
        return lambda _: type("Bench", (), {"run": staticmethod(lambda _: result)})

    spec = spec_of(tmp_path)
    two = measured(metrics={"b": float("inf"), "a": float("nan"), "c": 1.0})
    monkeypatch.setattr("steelyard.catalog.load_bench", bench(two))
    assert execute(spec, load) == {"error": "not a finite number: a, b", "final": True}
    gap = measured(metrics={"c": np.float32(0.5)}, traces={"t": ([0, 1], [float("nan"), np.float32(2)])})
    monkeypatch.setattr("steelyard.catalog.load_bench", bench(gap))
    result = execute(spec, load)
    assert result["traces"] == {"t": [[0.0, 1.0], [None, 2.0]]}
    assert result["metrics"] == {"c": 0.5}


def test_isolation(tmp_path, monkeypatch):
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("TMPDIR", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "before")
    old = os.umask(0o022)
    try:
        isolate(str(tmp_path))
        assert os.getcwd() == str(tmp_path)
        assert tempfile.gettempdir() == str(tmp_path)
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        (tmp_path / "private").touch()
        assert (tmp_path / "private").stat().st_mode & 0o077 == 0
    finally:
        os.umask(old)


def test_a_cell_process_without_fork(tmp_path, monkeypatch):
    """What ``python -m steelyard.bench.cell`` does, here."""
    path = tmp_path / "s.db"
    weighing = planned(path, seeds=1)
    with Store(path) as store:
        spec = store.claim([weighing], "me|1|1").spec
    folder = tmp_path / "cell"
    folder.mkdir()
    request = {"store": str(path), "spec": spec, "folder": str(folder), "parent": os.getppid()}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request) + "\n"))
    monkeypatch.setattr(cell_module, "die_with", lambda _: None)
    monkeypatch.setattr(cell_module, "isolate", lambda _: None)
    kept = os.dup(1)
    with open(tmp_path / "answer.txt", "wb") as file:
        os.dup2(file.fileno(), 1)
        try:
            assert cell_module.main() == 0
        finally:
            os.dup2(kept, 1)
            os.close(kept)
    assert json.loads((tmp_path / "answer.txt").read_text())["metrics"].keys() == {"score"}


def in_children(path, weighing):
    with Store(path) as store:
        Worker(store, [weighing]).run()
    return cells(path, weighing)


@pytest.mark.parametrize("no_fork", [False, True])
def test_cells_run_in_processes_and_folders_of_their_own(tmp_path, monkeypatch, no_fork):
    if no_fork:
        monkeypatch.setenv("STEELYARD_NO_FORK", "1")
        monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # as the runner does for its workers
    weighing = planned(tmp_path / "s.db", seeds=1)
    rows = in_children(tmp_path / "s.db", weighing)
    notes = [json.loads(row["result"])["notes"] for row in rows]
    assert len({note["pid"] for note in notes} | {os.getpid()}) == 3
    folders = {note["cwd"] for note in notes}
    assert len(folders) == 2
    assert not any(os.path.exists(folder) for folder in folders)
    assert all(os.path.basename(folder).startswith("steelyard-cell-") for folder in folders)


def misbehave(monkeypatch, run):
    """Let the toy's cells do ``run``; children are forked, so they see it."""
    monkeypatch.setattr(coin, "BENCH", dataclasses.replace(coin.BENCH, run=run))


def one_error(tmp_path):
    weighing = planned(tmp_path / "s.db", seeds=1, arms=["fair"])
    (row,) = in_children(tmp_path / "s.db", weighing)
    assert row["state"] == "failed"
    return row["error"]


def test_what_a_dying_cell_printed_is_kept(tmp_path, monkeypatch):
    def run(_):
        print("x" * 5000)
        os.write(2, b"almost there\n")
        os.kill(os.getpid(), signal.SIGUSR1)

    misbehave(monkeypatch, run)
    error = one_error(tmp_path)
    assert error.startswith("the cell's process ended with signal SIGUSR1 and no result\nxxx")
    assert error.endswith("almost there")
    assert len(error) < 2200


def test_what_a_cell_prints_does_not_mix_with_its_result(tmp_path, monkeypatch):
    def run(cell):
        print('{"metrics": "wrong"}')
        os.write(1, b"noise")
        return measured()

    misbehave(monkeypatch, run)
    weighing = planned(tmp_path / "s.db", seeds=1, arms=["fair"])
    (row,) = in_children(tmp_path / "s.db", weighing)
    assert (row["state"], row["metrics"]) == ("done", {"score": 1.0})


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (lambda: os._exit(0), "the cell's process ended with exit code 0 and no result"),
        (lambda: os._exit(7), "the cell's process ended with exit code 7 and no result"),
        (lambda: sys.exit(3), "the cell's process ended with exit code 1 and no result\nTraceback"),
    ],
)
def test_a_cell_that_leaves(tmp_path, monkeypatch, leave, said):
    misbehave(monkeypatch, lambda _: leave())
    assert one_error(tmp_path).startswith(said)


def test_a_result_that_is_not_json(tmp_path, monkeypatch):
    misbehave(monkeypatch, lambda _: measured(notes={"bad": object()}))
    assert "is not JSON serializable" in one_error(tmp_path)


def test_a_large_result_comes_whole(tmp_path, monkeypatch):
    points = [float(i) for i in range(60_000)]
    misbehave(monkeypatch, lambda _: measured(traces={"long": (points, points)}))
    weighing = planned(tmp_path / "s.db", seeds=1, arms=["fair"])
    (row,) = in_children(tmp_path / "s.db", weighing)
    assert json.loads(row["result"])["traces"]["long"] == [points, points]


def test_a_cell_cannot_change_what_the_next_one_sees(tmp_path, monkeypatch):
    def run(cell):
        found = measured(metrics={"score": float(cell.data["x"].sum() + len(os.environ.get("LEFT", "")))})
        cell.data["x"][:] = 9.0
        os.environ["LEFT"] = "behind"
        return found

    misbehave(monkeypatch, run)
    weighing = planned(tmp_path / "s.db", seeds=3, arms=["fair"])
    assert [row["metrics"]["score"] for row in in_children(tmp_path / "s.db", weighing)] == [0.0, 0.0, 0.0]


def test_what_a_cell_started_is_killed_with_it(tmp_path, monkeypatch):
    note = tmp_path / "grandchild.txt"

    def run(_):
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        note.write_text(str(pid))
        time.sleep(600)

    misbehave(monkeypatch, run)
    weighing = planned(tmp_path / "s.db", "hang", seeds=1, arms=["fair"])
    (row,) = in_children(tmp_path / "s.db", weighing)
    assert row["error"] == "timed out: the cell's limit is 1 s"
    until(lambda: not alive(note.read_text()), 10)


def test_stop_kills_the_cell_and_leaves(tmp_path):
    weighing = planned(tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        worker = Worker(store, [weighing])
        with pytest.raises(SystemExit) as left:
            worker.stop(signal.SIGTERM, None)
        assert left.value.code == 143
        claimed = store.claim([weighing], worker.owner)
        child = worker.child = worker._fork({**claimed.spec, "config": {"fate": "hang"}}, str(tmp_path))
        with pytest.raises(SystemExit):
            worker.stop(signal.SIGTERM, None)
        assert child.reap() == -signal.SIGKILL
        assert child.rss_mb() == 0.0
        child.kill()  # gone already: no error


def test_a_child_that_wrote_nothing_printed_nothing(tmp_path):
    read_end, write_end = os.pipe()
    os.close(write_end)
    child = module.Child(os.getpid(), read_end, str(tmp_path / "nowhere"))
    assert child.printed() == ""
    assert child.rss_mb() > 1
    os.close(read_end)


def test_waits_while_others_hold_the_rest(tmp_path, monkeypatch):
    weighing = planned(tmp_path / "s.db", seeds=1, arms=["fair"])
    with Store(tmp_path / "s.db") as store, Store(tmp_path / "s.db") as other:
        claimed = other.claim([weighing], "elsewhere|1|1")
        waited = []

        def sleep(seconds):
            waited.append(seconds)
            if len(waited) == 3:
                other.fail(claimed, "elsewhere|1|1", "gave up", final=True)

        monkeypatch.setattr(module.time, "sleep", sleep)
        Worker(store, [weighing]).run()
    assert waited == [module.IDLE_S] * 3


@pytest.fixture
def main(monkeypatch, capsys):
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)  # this process keeps its handlers

    def call(*words):
        code = module.main(list(map(str, words)))
        return code, capsys.readouterr().err

    return call


def test_main(main, tmp_path):
    weighing = planned(tmp_path / "s.db", seeds=1)
    assert main(tmp_path / "s.db", weighing) == (0, "")
    assert {row["state"] for row in cells(tmp_path / "s.db", weighing)} == {"done"}


def test_main_says_what_is_wrong(main, tmp_path):
    weighing = planned(tmp_path / "s.db")
    usage = "InputError: say which cells to run: python -m steelyard.bench.worker STORE WEIGHING…\n"
    assert main() == (2, usage)
    assert main(tmp_path / "s.db") == (2, usage)
    code, err = main(tmp_path / "other.db", weighing)
    assert (code, err.startswith("StoreError: there is no store at ")) == (2, True)
    code, err = main(tmp_path / "s.db", "nothing")
    assert (code, err.startswith("InputError: no weighing 'nothing' in ")) == (2, True)


def test_main_under_a_runner_dies_with_it(main, tmp_path, monkeypatch):
    parents = []
    monkeypatch.setattr(module.cell, "die_with", parents.append)
    monkeypatch.setenv(module.RUNNER, "4711")
    main()
    assert parents == [4711]
    assert module.RUNNER not in os.environ  # what a cell starts is nobody's worker


def test_a_missing_extra_keeps_its_kind(main, tmp_path, monkeypatch):
    from steelyard.errors import MissingExtraError

    def missing(_):
        raise MissingExtraError("torch is not installed;\ninstall it")

    weighing = planned(tmp_path / "s.db")
    monkeypatch.setattr("steelyard.catalog.load_bench", missing)
    assert main(tmp_path / "s.db", weighing) == (3, "MissingExtraError: torch is not installed; install it\n")


@pytest.fixture
def limits(monkeypatch):
    """The limits that a cell sets, without setting them."""
    found = []
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(cell_module.resource, "getrlimit", lambda _: (found[-1][0] if found else -1, -1))
    monkeypatch.setattr(cell_module.resource, "setrlimit", lambda _, pair: found.append(pair))
    return found


def test_memory_is_limited_on_top_of_what_is_mapped(limits, monkeypatch):
    LIMIT_MEMORY(100)
    mapped = limits[0][0] - 100 * 2**20
    assert mapped > 2**20
    monkeypatch.setattr(cell_module.resource, "getrlimit", lambda _: (-1, 1000))
    LIMIT_MEMORY(100)
    assert limits[1] == (1000, 1000)  # no more than the system allows
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    monkeypatch.setattr(cell_module.resource, "getrlimit", lambda _: (-1, -1))
    LIMIT_MEMORY(100)
    assert limits[2] == (100 * 2**20, -1)


def test_the_address_space_is_not_limited_beside_cuda(limits, monkeypatch):
    cuda = type("torch", (), {"version": type("version", (), {"cuda": "12.8"})})
    monkeypatch.setitem(sys.modules, "torch", cuda)
    LIMIT_MEMORY(100)
    assert limits == []
    cuda.version.cuda = None
    LIMIT_MEMORY(100)
    assert len(limits) == 1


def test_a_process_leaves_when_its_parent_has(monkeypatch):
    asked, left = [], []
    library = type("library", (), {"prctl": lambda _, *words: asked.append(words)})
    monkeypatch.setattr(cell_module.ctypes, "CDLL", lambda _: library())
    monkeypatch.setattr(cell_module.os, "_exit", left.append)
    cell_module.die_with(os.getppid())
    assert left == []
    cell_module.die_with(os.getppid() + 1)
    assert left == [1]
    if sys.platform == "linux":
        assert asked == [(1, signal.SIGKILL)] * 2
    monkeypatch.setattr(cell_module.sys, "platform", "elsewhere")
    cell_module.die_with(os.getppid())
    assert len(asked) in (0, 2)
