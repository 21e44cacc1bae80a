"""The runner: how many workers, what they are told, and what becomes of their errors."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from steelyard.bench import runner
from steelyard.bench.store import Store
from steelyard.errors import DataMissingError, InputError, MissingExtraError, StoreError
from toys.tools import cells, counts, planned


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.db") as opened:
        yield opened


class Starts(list):
    """Counts the workers that a runner starts, and can put another program in their place."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.instead = None
        real = subprocess.Popen

        def start(command, **rest):
            if command[0] != sys.executable:  # the environment's record asks git
                return real(command, **rest)
            self.append((command, rest))
            return real(self.instead or command, **rest)

        monkeypatch.setattr(runner.subprocess, "Popen", start)


@pytest.fixture
def starts(monkeypatch):
    return Starts(monkeypatch)


def test_nothing_to_do_starts_nothing(store, starts):
    assert runner.run(store, []).total == 0
    weighing = planned(store.path)
    assert runner.run(store, [weighing], 1).done == 12
    starts.clear()
    assert runner.run(store, [weighing]).done == 12
    assert starts == []


def test_no_more_workers_than_cells(store, starts):
    weighing = planned(store.path, seeds=1, arms=["fair"])
    seen = []
    runner.run(store, [weighing], 8, seen.append)
    assert len(starts) == 1
    assert (seen[0].waiting + seen[0].running, seen[-1].finished) == (1, True)


def test_one_worker_per_core_unless_told(store, starts, monkeypatch):
    monkeypatch.setattr(runner, "usable_cores", lambda: 3)
    weighing = planned(store.path, "slow")
    runner.run(store, [weighing])
    assert len(starts) == 3


@pytest.mark.parametrize("jobs", [0, -2])
def test_jobs_below_one(store, jobs):
    with pytest.raises(InputError, match=f"jobs must be at least 1, got {jobs}"):
        runner.run(store, [], jobs)


def test_workers_use_one_thread_find_the_callers_modules_and_clean_up(store, starts):
    weighing = planned(store.path, seeds=1)
    runner.run(store, [weighing], 1)
    command, settings = starts[0]
    assert command == [sys.executable, "-m", "steelyard.bench.worker", str(store.path.resolve()), weighing]
    environment = settings["env"]
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    assert environment["STEELYARD_RUNNER"] == str(os.getpid())
    assert set(environment["PYTHONPATH"].split(os.pathsep)) >= {path or os.getcwd() for path in sys.path}
    assert not Path(environment["TMPDIR"]).exists()
    assert Path(environment["TMPDIR"]).parent == Path(tempfile.gettempdir())


BROKEN = {
    "raise RuntimeError('the moon is full')": "RuntimeError: the moon is full",
    "raise RuntimeError('two\\nlines')": "RuntimeError: two lines",
    "import no_such_module_at_all": "ModuleNotFoundError: No module named 'no_such_module_at_all'",
    "raise SystemExit('not today')": "SystemExit: not today",
}


def own_package(folder, monkeypatch, worker_line=""):
    """Make the package own.coin; its bench runs ``worker_line`` in workers only."""
    home = folder / "own" / "coin"
    home.mkdir(parents=True)
    (folder / "own" / "__init__.py").touch()
    (home / "__init__.py").touch()
    (home / "card.py").write_text("from toys.coin.card import CARD\n")
    (home / "bench.py").write_text(
        "import dataclasses, sys\n"
        "if '-m' in sys.orig_argv and 'steelyard.bench.worker' in sys.orig_argv:\n"
        f"    {worker_line or 'pass'}\n"
        "from toys.coin.bench import BENCH as COIN\n"
        "BENCH = dataclasses.replace(COIN, method='own.coin')\n"
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "own"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    return home / "bench.py"


@pytest.mark.parametrize("line", BROKEN)
def test_a_bench_that_a_worker_cannot_import_is_said_at_once(tmp_path, store, starts, monkeypatch, line):
    own_package(tmp_path, monkeypatch, line)
    weighing = planned(store.path, method="own.coin")
    with pytest.raises(InputError) as caught:
        runner.run(store, [weighing], 2)
    assert str(caught.value) == f"a worker cannot import the bench of own.coin: {BROKEN[line]}"
    assert len(starts) <= 4
    assert (counts(store.path).waiting, {cell["attempts"] for cell in cells(store.path, weighing)}) == (12, {0})


def test_code_that_has_changed_since_the_plan_is_not_run(tmp_path, store, monkeypatch):
    bench = own_package(tmp_path, monkeypatch)
    weighing = planned(store.path, method="own.coin")
    before = bench.read_text()
    bench.write_text(before + "\n# changed\n")
    with pytest.raises(InputError, match=r"code of own.coin has changed since this weighing was planned; weigh again"):
        runner.run(store, [weighing], 1)
    assert (counts(store.path).waiting, {cell["attempts"] for cell in cells(store.path, weighing)}) == (12, {0})
    bench.write_text(before)
    assert runner.run(store, [weighing], 1).done == 12


@pytest.mark.parametrize(
    ("said", "code", "kind", "message"),
    [
        ("StoreError: no room", 2, StoreError, "no room"),
        ("InputError: not this", 2, InputError, "not this"),
        ("MissingExtraError: get it", 3, MissingExtraError, "get it"),
        ("DataMissingError: no data", 3, DataMissingError, "no data"),
        ("StoreError: no room\\nsome: warning", 2, StoreError, "no room"),
        ("OSError: too many\\n", 1, StoreError, r"a worker failed \(OSError: too many\); finished cells are kept"),
        ("", 1, StoreError, r"a worker failed \(nothing\)"),
    ],
)
def test_what_a_worker_ends_with_is_raised(store, starts, said, code, kind, message):
    weighing = planned(store.path)
    starts.instead = [sys.executable, "-c", f"import sys; print({said!r}.replace('\\\\n', chr(10))); sys.exit({code})"]
    with pytest.raises(kind, match=message) as caught:
        runner.run(store, [weighing], 1)
    assert type(caught.value) is kind
    assert len(starts) == 1


def test_workers_that_finish_late_are_waited_for_but_not_for_ever(store, starts, monkeypatch):
    monkeypatch.setattr(runner, "GRACE_S", 0.05)
    weighing = planned(store.path, seeds=1)
    with Store(store.path) as other:
        for cell in other.cells(weighing):
            claimed = other.claim([weighing], "elsewhere|1|1")
            assert claimed.key == cell["key"]
        starts.instead = [sys.executable, "-c", "import time; time.sleep(600)"]

        def finish(found):
            if starts and not found.finished:
                for cell in other.cells(weighing):
                    other._db.execute("UPDATE cell SET state = 'failed' WHERE key = ?", (cell["key"],))

        assert runner.run(store, [weighing], 1, finish).failed == 2
    assert len(starts) == 1


def test_what_a_killed_runner_held_is_not_blamed(store):
    weighing = planned(store.path, seeds=1)
    code = (
        "import sys; from steelyard.bench.store import *\n"
        "with Store(sys.argv[1]) as s:\n    s.claim([sys.argv[2]], owner_name())"
    )
    for _ in range(4):
        subprocess.run([sys.executable, "-c", code, store.path, weighing], check=True)
        store.take_back(counted=False)
    subprocess.run([sys.executable, "-c", code, store.path, weighing], check=True)
    runner.run(store, [weighing], 1)
    assert [(cell["state"], cell["attempts"]) for cell in store.cells(weighing)] == [("done", 1), ("done", 1)]
