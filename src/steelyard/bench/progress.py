"""Progress of running cells: a bar on a terminal, a line now and then elsewhere, both on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from steelyard.bench.runner import OnProgress
from steelyard.bench.store import Counts

LINE_EVERY_S = 10.0


@contextmanager
def shown(quiet: bool = False) -> Iterator[OnProgress | None]:
    """Yield a callback for :func:`steelyard.bench.runner.run` that shows progress; None when ``quiet``."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("weighing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells{task.fields[failed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("weighing", total=None, failed="")

        def show(counts: Counts) -> None:
            failed = f", {counts.failed} failed" if counts.failed else ""
            progress.update(task, total=counts.total, completed=counts.done + counts.failed, failed=failed)

        yield show


def _lines() -> OnProgress:
    last = {"at": -LINE_EVERY_S, "ended": -1.0}

    def show(counts: Counts) -> None:
        ended, now = counts.done + counts.failed, time.monotonic()
        if ended == last["ended"] or (now - last["at"] < LINE_EVERY_S and not counts.finished):
            return
        last.update(at=now, ended=ended)
        failed = f", {counts.failed} failed" if counts.failed else ""
        print(f"weighing: {ended} of {counts.total} cells{failed}", file=sys.stderr, flush=True)

    return show
