"""The store: claims, results, counts; what it promises between two processes is tested in tests/faults."""

import os
import re
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from steelyard.bench import store as module
from steelyard.bench.store import ATTEMPTS, DEFAULT_PATH, Counts, Store, is_alive, owner_name, store_path
from steelyard.errors import InputError, StoreError
from toys.tools import planned

RESULT = {"metrics": {"score": 1.0}, "traces": {}, "notes": {}, "steps": 3, "wall_s": 1.0, "cpu_s": 0.5, "rss_mb": 9.0}


@pytest.fixture
def opened(tmp_path):
    weighing = planned(tmp_path / "s.db", seeds=2)
    with Store(tmp_path / "s.db") as store:
        yield store, weighing


def test_path(monkeypatch, tmp_path):
    monkeypatch.delenv("STEELYARD_STORE", raising=False)
    assert str(store_path()) == DEFAULT_PATH
    monkeypatch.setenv("STEELYARD_STORE", "elsewhere.db")
    assert str(store_path()) == "elsewhere.db"
    assert store_path(tmp_path) == tmp_path


def test_claims_follow_the_plan_and_end(opened):
    store, weighing = opened
    me = owner_name()
    claimed = [store.claim([weighing], me) for _ in range(4)]
    assert [(c.spec["seed"], c.spec["arm"], c.attempt) for c in claimed] == [
        (0, "biased", 1), (0, "fair", 1), (1, "biased", 1), (1, "fair", 1),
    ]  # fmt: skip
    assert store.claim([weighing], me) is None
    assert store.counts([weighing]) == Counts(0, 4, 0, 0)
    assert not store.counts([weighing]).finished


def test_a_finished_cell_has_its_result_and_is_held_by_nobody(opened):
    store, weighing = opened
    me = owner_name()
    claimed = store.claim([weighing], me)
    assert store.finish(claimed, me, RESULT)
    cell = store.cells(weighing)[0]
    assert (cell["state"], cell["metrics"], cell["steps"], cell["rss_mb"]) == ("done", {"score": 1.0}, 3, 9.0)
    assert not store.beat(claimed.key, me)
    assert not store.finish(claimed, me, RESULT)


def test_three_attempts_then_failed(opened):
    store, weighing = opened
    me = owner_name()
    for attempt in range(1, ATTEMPTS + 1):
        claimed = store.claim([weighing], me)
        assert claimed.attempt == attempt
        store.fail(claimed, me, f"error {attempt}")
        assert store.cells(weighing)[0]["error"] == f"error {attempt}"
    assert store.cells(weighing)[0]["state"] == "failed"
    assert store.claim([weighing], me).key != claimed.key
    assert store.retry_failed(weighing) == 1
    assert store.retry_failed("another") == 0
    assert store.claim([weighing], me).attempt == 1


def test_a_final_error_is_not_tried_again(opened):
    store, weighing = opened
    me = owner_name()
    store.fail(store.claim([weighing], me), me, "no use", final=True)
    assert (store.cells(weighing)[0]["state"], store.cells(weighing)[0]["attempts"]) == ("failed", 1)


def test_release_does_not_count(opened):
    store, weighing = opened
    me = owner_name()
    store.claim([weighing], me)
    store.claim([weighing], "other|1|1")
    store.release(me)
    assert [(c["state"], c["attempts"]) for c in store.cells(weighing)[:2]] == [("waiting", 0), ("running", 1)]
    assert store.claim([weighing], me).attempt == 1


def dead_owner():
    """The name of a process that was here and is gone."""
    code = "from steelyard.bench.store import owner_name; print(owner_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_cells_of_the_dead_go_back(opened):
    store, weighing = opened
    dead = dead_owner()
    for _ in range(ATTEMPTS):
        claimed = store.claim([weighing], dead)
        store.take_back()
    cell = store.cells(weighing)[0]
    assert (cell["key"], cell["state"]) == (claimed.key, "failed")
    assert cell["error"] == "its worker process died 3 times (killed, or out of memory)"


def test_cells_of_the_dead_go_back_without_blame(opened):
    store, weighing = opened
    dead = dead_owner()
    for _ in range(ATTEMPTS + 2):
        assert store.claim([weighing], dead).attempt == 1
        store.take_back(counted=False)
    assert store.counts([weighing]) == Counts(4, 0, 0, 0)


def test_cells_of_the_living_stay(opened):
    store, weighing = opened
    me = owner_name()
    store.claim([weighing], me)
    store.take_back()
    assert store.counts([weighing]).running == 1


def test_owners():
    me = owner_name()
    host, pid, started = me.split("|")
    assert is_alive(me, 0.0)
    assert not is_alive(f"{host}|{pid}|{int(started) - 1}", time.time())  # the number was given to another process
    assert not is_alive(f"{host}|{2**22 + 5}|{started}", time.time())
    assert is_alive(f"elsewhere|{pid}|{started}", time.time())
    assert not is_alive(f"elsewhere|{pid}|{started}", time.time() - module.LEASE_S - 1)
    assert not is_alive(dead_owner(), time.time())


def test_a_process_that_waits_for_its_parent_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = module._start_time(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert started is not None
    assert module._start_time(child.pid) is None
    child.wait()


def test_where_there_is_no_proc_the_number_alone_must_do(monkeypatch):
    monkeypatch.setattr(module.Path, "read_text", lambda _: (_ for _ in ()).throw(FileNotFoundError()))
    assert module._start_time(os.getpid()) is None  # /proc is there, this process is not in it
    monkeypatch.setattr(module.os.path, "isdir", lambda _: False)
    assert module._start_time(os.getpid()) == "?"
    assert module._start_time(2**22 + 5) is None
    monkeypatch.setattr(module.os, "kill", lambda *_: (_ for _ in ()).throw(PermissionError()))
    assert module._start_time(1) == "?"
    monkeypatch.setattr(module.os, "stat", lambda _: (_ for _ in ()).throw(FileNotFoundError()))
    assert "/" not in module._host()


def test_a_weighing_that_shares_cells_takes_what_is_done_and_tries_again_what_failed(tmp_path):
    path, me = tmp_path / "s.db", owner_name()
    first = planned(path, seeds=1)
    with Store(path) as store:
        done = store.claim([first], me)
        store.finish(done, me, RESULT)
        failed = store.claim([first], me)
        store.fail(failed, me, "no use", final=True)
    second = planned(path, seeds=2)
    with Store(path) as store:
        assert [(c["state"], c["attempts"], c["error"]) for c in store.cells(second)] == [
            ("done", 1, None), ("waiting", 0, None), ("waiting", 0, None), ("waiting", 0, None),
        ]  # fmt: skip
        assert store.weighing_ids() == [first, second]
        assert store.counts([first, second]).total == 4


def test_cells_that_measure_time_wait_for_all_others_and_keep_them_waiting(tmp_path):
    path, me = tmp_path / "s.db", owner_name()
    shared, alone = planned(path, seeds=1), planned(path, "clocked", seeds=1)
    with Store(path) as store:
        first, second = store.claim([shared, alone], me), store.claim([shared, alone], me)
        assert [first.spec["profile"], second.spec["profile"]] == ["quick", "quick"]
        assert store.claim([shared, alone], me) is None
        store.finish(first, me, RESULT)
        assert store.claim([alone], me) is None
        store.finish(second, me, RESULT)
        clocked = store.claim([alone], me)
        assert clocked.spec["profile"] == "clocked"
        assert store.claim([alone], me) is None
        store.finish(clocked, me, RESULT)
        assert store.claim([alone], me) is not None


def test_an_unknown_weighing_names_the_newest(opened):
    store, weighing = opened
    with pytest.raises(InputError, match=re.escape(f"no weighing 'x' in {store.path}; the newest are: {weighing}")):
        store.weighing("x")


def test_blobs(opened):
    store, _ = opened
    assert store.blob("nothing") is None
    store.add_blob("name", b"first")
    store.add_blob("name", b"second")
    assert store.blob("name") == b"first"


def test_a_plan_is_written_whole_or_not_at_all(opened):
    store, weighing = opened
    plan, environment = store.weighing(weighing)
    with pytest.raises(StoreError):
        store.add_weighing(plan, [], {"new": b"1"}, environment)  # the name is taken
    assert store.blob("new") is None
    with pytest.raises(KeyError):
        store.add_weighing({**plan, "id": "other"}, [{"key": "k"}], {}, environment)
    assert store.weighing_ids() == [weighing]


def test_opening_many_times_at_once_makes_one_store(tmp_path):
    code = (
        "import sys, time; from steelyard.bench.store import Store\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "Store(sys.argv[1]).close()"
    )
    start = str(time.time() + 1.0)
    crowd = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s.db"), start]) for _ in range(6)]
    assert [process.wait(60) for process in crowd] == [0] * 6


@given(said=st.sampled_from(["database or disk is full", "disk I/O error", "malformed", "readonly", "locked", "odd"]))
def test_every_complaint_is_one_sentence_with_the_path(said):
    message = str(module._store_error(module.Path("a/s.db"), module.sqlite3.OperationalError(f"{said}\nmore")))
    assert "a/s.db" in message
    assert "\n" not in message


class TwoOwners(RuleBasedStateMachine):
    """Whatever two owners do in whatever order, a cell has one holder and one result."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "s.db")
        self.weighing = planned(self.path, seeds=2)
        self.store = Store(self.path)
        self.held, self.results = {"a|1|1": [], "b|2|2": []}, {}

    @rule(owner=st.sampled_from(["a|1|1", "b|2|2"]))
    def claim(self, owner):
        claimed = self.store.claim([self.weighing], owner)
        if claimed is not None:
            assert claimed.key not in self.results
            assert all(claimed.key != other.key for held in self.held.values() for other in held)
            self.held[owner].append(claimed)

    @precondition(lambda self: any(self.held.values()))
    @rule(owner=st.sampled_from(["a|1|1", "b|2|2"]), fails=st.booleans(), by_whom=st.booleans())
    def end(self, owner, fails, by_whom):
        if not self.held[owner]:
            return
        claimed = self.held[owner][0]
        other = "b|2|2" if owner == "a|1|1" else "a|1|1"
        if by_whom:  # a stranger's result is not taken
            assert not self.store.finish(claimed, other, RESULT)
            self.store.fail(claimed, other, "not mine")
        elif fails:
            self.store.fail(self.held[owner].pop(0), owner, "it failed")
        else:
            assert self.store.finish(self.held[owner].pop(0), owner, RESULT)
            self.results[claimed.key] = 1

    @rule(owner=st.sampled_from(["a|1|1", "b|2|2"]))
    def leave(self, owner):
        self.store.release(owner)
        self.held[owner] = []

    @invariant()
    def holds(self):
        cells = self.store.cells(self.weighing)
        assert {cell["key"] for cell in cells if cell["state"] == "done"} == set(self.results)
        assert sum(cell["state"] == "running" for cell in cells) == sum(map(len, self.held.values()))
        assert all(len(cell["metrics"]) == (cell["state"] == "done") for cell in cells)
        assert all(0 <= cell["attempts"] <= ATTEMPTS for cell in cells)

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestTwoOwners = TwoOwners.TestCase
TestTwoOwners.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


class Busy:
    """A connection that finds the file locked ``times`` times when it asks for the write-ahead log."""

    def __init__(self, path, times, said="database is locked"):
        self.db, self.times, self.said = module.sqlite3.connect(path, isolation_level=None), times, said
        self.executescript = self.db.executescript

    def execute(self, query):
        if "journal_mode" in query and self.times:
            self.times -= 1
            raise module.sqlite3.OperationalError(self.said)
        return self.db.execute(query)


def test_a_file_that_others_open_at_this_moment_is_waited_for(tmp_path, monkeypatch):
    busy = Busy(tmp_path / "s.db", 3)
    module._prepare(busy, tmp_path / "s.db")
    assert busy.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with pytest.raises(module.sqlite3.OperationalError, match="disk"):
        module._prepare(Busy(tmp_path / "s.db", 1, "disk I/O error"), tmp_path / "s.db")
    monkeypatch.setattr(module, "LOCKED_S", -1.0)
    with pytest.raises(module.sqlite3.OperationalError, match="locked"):
        module._prepare(Busy(tmp_path / "s.db", 1), tmp_path / "s.db")
