"""Run the cells of weighings with worker processes, and come to rest safely whatever happens to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from steelyard.bench.environment import usable_cores
from steelyard.bench.store import Counts, Store
from steelyard.bench.worker import RUNNER
from steelyard.errors import InputError, SteelyardError, StoreError

POLL_S = 0.1
GRACE_S = 10.0
STARTS_PER_JOB = 25  # a worker that is killed is replaced, but not for ever
_TERMINATED = 128 + signal.SIGTERM  # how a worker ends that was asked to
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

OnProgress = Callable[[Counts], None]


def run(
    store: Store, weighings: Sequence[str], jobs: int | None = None, on_progress: OnProgress | None = None
) -> Counts:
    """Run what is left of ``weighings``; return how many cells are done and failed.

    Args:
        store: The open store.
        weighings: Their names in the store.
        jobs: Worker processes; one per usable core when None.
        on_progress: Called with the counts, several times a second while cells run.

    Raises:
        KeyboardInterrupt: Ctrl-C; finished cells are kept, running ones are given back. A second one does not wait.
        StoreError: The store became unusable (full disk, damage), or the workers died again and again.
        InputError: The bench cannot be imported in a worker, or its code has changed since the weighing was planned.
    """
    jobs = usable_cores() if jobs is None else jobs
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    counts = store.counts(weighings)
    if counts.finished:
        return counts
    store.take_back(counted=False)  # what an earlier runner held when it died: not the fault of those cells
    with tempfile.TemporaryDirectory(prefix="steelyard-run-", ignore_cleanup_errors=True) as folder:
        crew = _Crew(store.path, weighings, Path(folder))
        try:
            _watch(store, weighings, crew, min(jobs, counts.waiting + counts.running), on_progress)
        except KeyboardInterrupt:
            crew.stop()
            with contextlib.suppress(StoreError):
                store.take_back(counted=False)
            raise
        finally:
            crew.kill()
    return store.counts(weighings)


def _watch(store: Store, weighings: Sequence[str], crew: _Crew, jobs: int, on_progress: OnProgress | None) -> None:
    budget = STARTS_PER_JOB * jobs
    while True:
        counts = store.counts(weighings)
        if on_progress is not None:
            on_progress(counts)
        if counts.finished:
            crew.wait()
            return
        said = crew.trouble()
        if said is not None:
            raise said
        while len(crew.members) < min(jobs, counts.waiting + counts.running) and budget:
            crew.start()
            budget -= 1
        if not crew.members and not budget:
            raise StoreError(f"the workers died {STARTS_PER_JOB * jobs} times; the last one said: {crew.last_words()}")
        time.sleep(POLL_S)


class _Crew:
    """The worker processes. They run in sessions of their own, so that Ctrl-C reaches the runner alone."""

    def __init__(self, store: Path, weighings: Sequence[str], folder: Path) -> None:
        self.members: list[subprocess.Popen[bytes]] = []
        self._command = [sys.executable, "-m", "steelyard.bench.worker", str(store.resolve()), *weighings]
        self._log = folder / "workers.txt"
        self._environment = {
            **os.environ,
            **dict.fromkeys(_ONE_THREAD, "1"),
            RUNNER: str(os.getpid()),
            "TMPDIR": str(folder),  # what a killed worker leaves behind goes with the runner's folder
            # What the caller can import, its cells can: a script's folder, the working directory of a shell.
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*(p or os.getcwd() for p in sys.path), os.getcwd()])),
        }

    def start(self) -> None:
        """Start one more worker."""
        with open(self._log, "ab") as log:
            self.members.append(
                subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    def trouble(self) -> SteelyardError | None:
        """Forget workers that have ended; return the error that one of them ended with, None for a killed one."""
        codes = [code for member in self.members if (code := member.poll()) is not None]
        self.members = [member for member in self.members if member.returncode is None]
        if not any(code > 0 and code != _TERMINATED for code in codes):
            return None
        kind, _, message = self.last_words().partition(": ")
        for known in SteelyardError.__subclasses__():
            if known.__name__ == kind:
                return known(message)
        return StoreError(f"a worker failed ({self.last_words()}); finished cells are kept, see: steelyard resume")

    def last_words(self) -> str:
        """Return the last error that a worker printed, else its last line."""
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        kinds = tuple(f"{kind.__name__}: " for kind in SteelyardError.__subclasses__())
        return next((line for line in reversed(lines) if line.startswith(kinds)), lines[-1])

    def wait(self) -> None:
        """Wait for workers that have nothing left to do."""
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.wait(GRACE_S)

    def stop(self) -> None:
        """Ask every worker to give its cell back and leave; a second Ctrl-C kills them at once."""
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.send_signal(signal.SIGTERM)
        try:
            self.wait()
        except KeyboardInterrupt:
            self.kill()

    def kill(self) -> None:
        """Kill every worker that is still there; its cell's process dies with it."""
        for member in self.members:
            if member.poll() is None:
                member.kill()
                member.wait()
        self.members = []
