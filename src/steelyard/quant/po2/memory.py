"""The anonymous memory of this process while it works: what a bound on a streaming converter is about."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_EVERY_S = 0.005


def anonymous_bytes() -> int | None:
    """Return RssAnon, the resident memory that no file backs; None where the system does not tell (not Linux)."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)


def give_back() -> None:
    """Return freed memory to the system; glibc keeps tens of MB of it, which count as resident."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class PeakMemory:
    """Samples RssAnon from entry to exit, every 5 ms in a thread and whenever :meth:`sample` is called.

    Attributes:
        start: Bytes at entry; None where the system does not tell.
        peak: The most that was seen, or None.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self.peak: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self.start = self.peak = anonymous_bytes()
        if self.start is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self.start is not None:
            self._thread.join()

    def sample(self) -> None:
        """Look once."""
        now = anonymous_bytes()
        if now is not None and self.peak is not None:
            self.peak = max(self.peak, now)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.sample()
