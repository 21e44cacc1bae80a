"""A full disk, damaged and foreign files, places that cannot be written: one clear sentence, nothing committed lost."""

import contextlib
import os
import resource
import shutil
import sqlite3
import subprocess

import pytest

from steelyard.bench import runner
from steelyard.bench.store import Store
from steelyard.bench.worker import Worker
from steelyard.errors import StoreError
from toys import drive
from toys.tools import Ledger, cells, counts, ended, planned, python

FULL = r"^the disk of the store .* is full or failing \(.*\); free some space, then run: steelyard resume$"


def whole(path, tmp_path):
    """A store that has run a weighing, all of it in the main file."""
    planned(path)
    with Store(path) as store:
        runner.run(store, store.weighing_ids(), 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def test_a_full_disk_stops_a_worker_and_resume_goes_on(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    ledger = Ledger(path)
    with Store(path) as store:
        pages = store._rows("PRAGMA page_count")[0][0]
        store._rows(f"PRAGMA max_page_count = {pages + 1}")
        padding = "x" * 3000
        worker = Worker(store, [weighing])
        finish = store.finish
        store.finish = lambda claimed, owner, result: finish(claimed, owner, {**result, "notes": {"padding": padding}})
        with pytest.raises(StoreError, match=FULL):
            worker.run()
        ledger.look(whole=True)
        assert 0 < len(ledger.done) < 12
        store._rows("PRAGMA max_page_count = 1000000")
        store.release(worker.owner)
        assert runner.run(store, [weighing], 1).done == 12
    ledger.look(whole=True)
    assert {cell["attempts"] for cell in cells(path, weighing)} == {1}


def test_a_limit_on_the_size_of_files_stops_a_runner_and_resume_goes_on(tmp_path):
    path = tmp_path / "s.db"
    planned(path, "many")
    ledger = Ledger(path)

    def limit():
        size = path.stat().st_size + 200_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    code, _, err = ended(python("-m", "toys.drive", path, 2, "resume", preexec_fn=limit))
    assert code == 2
    assert err.startswith("StoreError: the disk of the store ")
    assert "free some space, then run: steelyard resume" in err
    assert "Traceback" not in err
    ledger.look(whole=True)
    assert 0 < len(ledger.done) < 120
    assert ended(python("-m", "toys.drive", path, 2, "resume"))[0] == 0
    assert counts(path).done == 120
    ledger.look(whole=True)


@contextlib.contextmanager
def small_file_system(folder, size):
    """A file system of ``size`` bytes where this machine lets us mount one, else None."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if mounted.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_file_system_stops_a_runner_and_resume_goes_on(tmp_path):
    with small_file_system(tmp_path / "small", 24_000_000) as folder:
        if folder is None:  # not allowed to mount: the two tests above stand for it
            return
        path, filler = folder / "s.db", folder / "filler"
        planned(path, "many")
        ledger = Ledger(path)
        free = os.statvfs(folder)
        filler.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - 60_000)))
        code, _, err = ended(python("-m", "toys.drive", path, 2, "resume"))
        assert (code, err.count("\n")) == (2, 1)
        assert "free some space, then run: steelyard resume" in err
        filler.unlink()
        ledger.look(whole=True)
        assert len(ledger.done) < 120
        assert ended(python("-m", "toys.drive", path, 2, "resume"))[0] == 0
        ledger.look(whole=True)
        assert len(ledger.done) == 120


@pytest.mark.parametrize("root", range(8))
def test_a_damaged_page(tmp_path, root):
    path = whole(tmp_path / "good.db", tmp_path)
    bad = tmp_path / "bad.db"
    shutil.copy(path, bad)
    size = bad.stat().st_size
    with open(bad, "r+b") as file:
        file.seek(4096 * (1 + root * (size // 4096 - 1) // 8))
        file.write(b"\x5a" * 4096)
    before = bad.read_bytes()
    with pytest.raises(StoreError, match=r"^the store .* is damaged .*move it away"):
        drive.main(bad, 1, "resume" if root % 2 else "weigh", "quick")
    assert bad.read_bytes() == before


def test_a_truncated_file(tmp_path):
    path = whole(tmp_path / "s.db", tmp_path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match="is damaged"):
        Store(path, check=True)


def test_damaged_data_stop_the_weighing_with_a_sentence(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE blob SET bytes = zeroblob(length(bytes))")
        db.commit()
    with Store(path) as store, pytest.raises(StoreError, match=r"is damaged: its data under \w+ cannot be read"):
        runner.run(store, [weighing], 1)
    assert (counts(path).waiting, {cell["attempts"] for cell in cells(path, weighing)}) == (12, {0})


def test_missing_data_stop_the_weighing_with_a_sentence(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM blob")
        db.commit()
    with Store(path) as store, pytest.raises(StoreError, match=r"holds no data under \w+; weigh again"):
        runner.run(store, [weighing], 1)


def test_not_a_database(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database" * 100)
    with pytest.raises(StoreError, match=r"notes.txt is damaged \(file is not a database\)"):
        Store(path)
    assert path.read_text().startswith("these are my notes")


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_database_of_another_program_is_not_touched(tmp_path, version):
    path = tmp_path / "places.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE place(name TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="SQLite file of another program; name another file with --store"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_of_another_version(tmp_path):
    path = tmp_path / "s.db"
    Store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version of steelyard; name a new file with --store"):
        Store(path)


def unwritable(tmp_path):
    """Places where nobody can write, root included."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.db").mkdir()
    return {
        "under a file": tmp_path / "file" / "s.db",
        "deep under a file": tmp_path / "file" / "deep" / "s.db",
        "a folder": tmp_path / "folder.db",
        "a system folder": "/proc/s.db",
        "a long name": tmp_path / ("n" * 300),
    }


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("place", ["under a file", "deep under a file", "a folder", "a system folder", "a long name"])
def test_a_place_that_cannot_be_written(tmp_path, place, create):
    with pytest.raises(StoreError) as caught:
        Store(unwritable(tmp_path)[place], create=create)
    assert "name one with --store" in str(caught.value) or "name a writable place with --store" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.exists", refuse)
    with pytest.raises(StoreError, match=r"cannot be written \(.*Permission denied.*\); name a writable place"):
        Store(tmp_path / "s.db", create=False)


def test_a_read_only_file(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    with Store(path) as store:
        store._rows("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match="cannot be written"):
            store.claim([weighing], "me|1|1")


def test_a_store_that_somebody_holds(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder, Store(path) as store:
        store._rows("PRAGMA busy_timeout = 50")
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="stayed locked for a minute; stop the program that holds it"):
            store.claim([weighing], "me|1|1")
        holder.execute("ROLLBACK")
        assert store.claim([weighing], "me|1|1") is not None
