"""Progress of a command that counts what it has done: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY_S = 10.0

OnCount = Callable[[int, int, str], None]
"""Called with (done, total, what was done last)."""


@contextmanager
def counted(verb: str) -> Iterator[OnCount]:
    """Yield a callback that shows progress on standard error; ``verb`` says what is being done, e.g. "converting"."""
    if not sys.stderr.isatty():
        yield _lines(verb)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, total=total, completed=done, description=name)

        yield show


def _lines(verb: str) -> OnCount:
    last = time.monotonic()

    def show(done: int, total: int, name: str) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= LINE_EVERY_S:
            last = now
            print(f"{verb}: {100 * done // max(total, 1)} %, {name}", file=sys.stderr, flush=True)

    return show
