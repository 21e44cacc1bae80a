"""One writer for a folder: a second one is told, and a killed one leaves nothing that has to be removed by hand."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from steelyard.errors import InputError

LOCK = ".conversion.lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` and hold its lock, which the kernel releases whatever ends the process.

    Raises:
        InputError: Another conversion holds it, or the folder cannot be written.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"output {folder} cannot be written: {error.strerror}") from None
    try:
        _take(held, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held: who opened this very file finds its name gone
    finally:
        os.close(held)


def _take(held: int, path: Path) -> None:
    busy = f"another conversion is writing to output {path.parent}; wait until it has ended, or name another folder"
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = path.exists() and os.path.samestat(os.fstat(held), path.stat())
    except BlockingIOError:
        raise InputError(busy) from None
    except OSError as error:
        raise InputError(f"output {path.parent} cannot be locked: {error.strerror}") from None
    if not current:
        raise InputError(busy)
