"""A worker: claims cells from the store and runs each in a child of its own, with a clock and a memory limit.

Started as ``python -m steelyard.bench.worker STORE WEIGHING…``, so that it works under a script without a ``__main__``
guard, a shell and a notebook alike. It imports the benches once and forks a child per cell: an import of torch costs
about 2 s, a fork about 10 ms. The worker itself calls nothing of torch, so there are no threads to lose in the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from steelyard import catalog
from steelyard.bench import cell
from steelyard.bench.plan import source_hash
from steelyard.bench.store import Claimed, Store, owner_name
from steelyard.contracts import Arrays
from steelyard.errors import InputError, SteelyardError, StoreError

BEAT_S = 5.0
IDLE_S = 0.1
RUNNER = "STEELYARD_RUNNER"  # the runner's process number, for the workers that it starts


class Child:
    """A running cell: its process, the pipe its result comes through, and what it printed."""

    def __init__(self, pid: int, pipe: int, folder: str) -> None:
        self.pid, self.pipe, self.folder = pid, pipe, folder
        self.answer = bytearray()
        self._closed = False
        self._status: int | None = None
        os.set_blocking(pipe, False)

    def read(self, wait: float) -> bool:
        """Read what has come within ``wait`` seconds; False once the process has ended and its answer is read.

        The pipe's end alone says nothing: a process that the cell left behind holds it open, a cell that closes it
        may go on.
        """
        if not self._closed and select.select([self.pipe], [], [], wait)[0] and self._take():
            return True
        if not self._ended():
            if self._closed:
                time.sleep(0.001)
            return True
        while self._take():
            pass
        return False

    def _take(self) -> bool:
        """Read one piece; False when there is none for now."""
        try:
            chunk = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return False
        self._closed = not chunk
        self.answer += chunk
        return bool(chunk)

    def _ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def rss_mb(self) -> float:
        """Return the resident memory of the process, 0 when it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        except (OSError, IndexError):
            return 0.0

    def kill(self) -> None:
        """Kill the process and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the process and kill what it left behind; return its exit code, negative for a signal."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(self._status)

    def printed(self, most: int = 2000) -> str:
        """Return the end of what the cell printed."""
        try:
            with open(Path(self.folder, "printed.txt"), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""


class Worker:
    """Runs cells of ``weighings`` from one store until none is waiting."""

    def __init__(self, store: Store, weighings: list[str]) -> None:
        self.store, self.weighings = store, weighings
        self.owner = owner_name()
        self.child: Child | None = None
        self._blobs: dict[str, Arrays] = {}
        self._sources: dict[str, str] = {}
        self._can_fork = hasattr(os, "fork") and "STEELYARD_NO_FORK" not in os.environ

    def run(self) -> None:
        """Claim and run until every cell is done or failed; waits while other workers hold the rest."""
        while True:
            claimed = self.store.claim(self.weighings, self.owner)
            if claimed is None:
                if self.store.counts(self.weighings).finished:
                    return
                time.sleep(IDLE_S)
                continue
            self._check_source(claimed)
            self._run_cell(claimed)

    def _check_source(self, claimed: Claimed) -> None:
        """Refuse a cell that was planned with other code: its result would be filed under a key that is not its own."""
        method = claimed.spec["method"]
        if method not in self._sources:  # once: what is edited while this worker runs, it has imported already
            self._sources[method] = source_hash(method)
        if claimed.spec["source"] != self._sources[method]:
            raise InputError(f"the code of {method} has changed since this weighing was planned; weigh again")

    def load(self, name: str) -> Arrays:
        """Return stored arrays, read once per worker: children share them until they write."""
        if name not in self._blobs:
            self._blobs[name] = cell.load_arrays(self.store, name)
        return self._blobs[name]

    def _run_cell(self, claimed: Claimed) -> None:
        result = self._in_child(claimed)
        if "error" in result:
            self.store.fail(claimed, self.owner, result["error"], final=result.get("final", False))
        else:
            self.store.finish(claimed, self.owner, result)

    def _in_child(self, claimed: Claimed) -> dict[str, Any]:
        spec = claimed.spec
        folder = tempfile.mkdtemp(prefix="steelyard-cell-")
        try:
            child = self.child = self._fork(spec, folder) if self._can_fork else self._spawn(spec, folder)
            trouble = self._watch(child, claimed)
            code = child.reap()
            if trouble is None and code == 0 and child.answer:
                answer: dict[str, Any] = json.loads(child.answer)
                return answer
            said = child.printed()
            trouble = trouble or f"the cell's process ended with {_name_of(code)} and no result"
            return {"error": f"{trouble}\n{said}" if said else trouble}
        finally:
            self.child = None
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, child: Child, claimed: Claimed) -> str | None:
        """Read the child's answer until its end; kill it past its limits and return what was wrong."""
        spec = claimed.spec
        started = beaten = time.monotonic()
        ceiling = spec["memory_mb"] + child.rss_mb()
        while child.read(0.2):
            now = time.monotonic()
            if now - started > spec["seconds"]:
                child.kill()
                return f"timed out: the cell's limit is {spec['seconds']:g} s"
            if child.rss_mb() > ceiling:
                child.kill()
                return f"out of memory: the cell's limit is {spec['memory_mb']} MB"
            if now - beaten > BEAT_S:
                beaten = now
                if not self.store.beat(claimed.key, self.owner):
                    child.kill()
                    return "its claim was taken by another worker"
        return None

    def _fork(self, spec: dict[str, Any], folder: str) -> Child:
        for name in spec["data"]:
            self.load(name)
        read_end, write_end = os.pipe()
        worker = os.getpid()
        pid = os.fork()
        if pid:
            os.close(write_end)
            return Child(pid, read_end, folder)
        code = 1
        try:  # the child: it must never return into the worker's loop, nor touch the store
            os.setsid()
            cell.die_with(worker)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _send_output_to(Path(folder, "printed.txt"))
            cell.isolate(folder)
            answer = cell.to_bytes(cell.execute(spec, self._blobs.__getitem__))
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _spawn(self, spec: dict[str, Any], folder: str) -> Child:
        read_end, write_end = os.pipe()
        with open(Path(folder, "printed.txt"), "wb") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "steelyard.bench.cell"],
                stdin=subprocess.PIPE,
                stdout=write_end,
                stderr=printed,
                start_new_session=True,
            )
        os.close(write_end)
        assert process.stdin is not None
        request = {"store": str(self.store.path.resolve()), "spec": spec, "folder": folder, "parent": os.getpid()}
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(request).encode() + b"\n")
        process.returncode = 0  # reaped by Child, not by Popen
        return Child(process.pid, read_end, folder)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """End at once: kill the running cell and leave; whoever comes next takes the cell back."""
        if self.child is not None:
            self.child.kill()
        raise SystemExit(128 + number)


def _load_benches(store: Store, weighings: list[str]) -> None:
    for method in {store.weighing(weighing)[0]["method"] for weighing in weighings}:
        try:
            catalog.load_bench(method)
        except SteelyardError:
            raise
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"
            raise InputError(f"a worker cannot import the bench of {method}: {said}") from error


def _send_output_to(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False, errors="replace")


def _name_of(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def main(arguments: list[str]) -> int:
    """Run a worker on ``STORE WEIGHING…``; 0 when nothing is left to run, else the exit code of what was wrong."""
    runner = os.environ.pop(RUNNER, None)
    if runner is not None:
        cell.die_with(int(runner))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what Ctrl-C means
    if len(arguments) < 2:
        print("InputError: say which cells to run: python -m steelyard.bench.worker STORE WEIGHING…", file=sys.stderr)
        return InputError.exit_code
    path, weighings = arguments[0], arguments[1:]
    try:
        with Store(path, create=False) as store:
            _load_benches(store, weighings)
            worker = Worker(store, weighings)
            signal.signal(signal.SIGTERM, worker.stop)
            if runner is None:
                signal.signal(signal.SIGINT, worker.stop)
            try:
                worker.run()
            finally:
                with contextlib.suppress(StoreError):
                    store.release(worker.owner)
    except SteelyardError as error:
        # One line, its kind first: the runner raises the same error again.
        # One write with its end of line: workers share the log, and two must not run into each other.
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
