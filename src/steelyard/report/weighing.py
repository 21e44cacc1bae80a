"""``steelyard.weigh``: plan, run and judge in one call, and the object that holds what was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steelyard.bench import runner
from steelyard.bench.plan import make_plan
from steelyard.bench.progress import shown
from steelyard.bench.results import Results, Verdict
from steelyard.bench.source import read_results
from steelyard.bench.store import Store, store_path
from steelyard.report.html import write_report
from steelyard.report.text import text_table


class Weighing:
    """A weighing that has been run: verdicts, a text table, an HTML report, JSON."""

    def __init__(self, results: Results) -> None:
        self.results = results

    @property
    def id(self) -> str:
        """The weighing's name in its store."""
        return self.results.id

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per claim and task."""
        return self.results.verdicts

    def table(self) -> str:
        """Return verdict lines and the arms table as plain text."""
        return text_table(self.results)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML file and return its path."""
        return write_report([self.results], path)

    def to_json(self) -> str:
        """Return everything (plan, rows, verdicts, environment) as JSON."""
        return self.results.model_dump_json()

    def __repr__(self) -> str:
        outcomes = ", ".join(str(verdict.outcome) for verdict in self.verdicts) or "no verdict yet"
        return f"<Weighing {self.id}: {outcomes}>"


def weigh(
    id: str,
    data: Any = None,
    profile: str = "quick",
    seeds: int | Sequence[int] | None = None,
    arms: Sequence[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: runner.OnProgress | None = None,
    **bench_options: Any,
) -> Weighing:
    """Weigh a method against its baselines, and judge its claims.

    Args:
        id: A method of the catalog (``steelyard list``), or the dotted name of a package of your own.
        data: Your own data, as the method's bench takes it: a path, a data frame, ``"module:callable"``. None runs the
            profile's data sets.
        profile: ``"quick"`` (at most a minute) or ``"full"``.
        seeds: How many seeds, or which; None: 6 quick, 10 full, 8 on your own data.
        arms: Names of arms to run; None runs all of the profile.
        store: SQLite file; what it holds is not run again. None: ``STEELYARD_STORE``, else ``.steelyard/store.db``.
        jobs: Worker processes; None: one per core.
        on_progress: Called with the counts of cells (``done``, ``failed``, ``total``) several times a second, in this
            thread; None: progress is shown on standard error.
        **bench_options: What the bench takes beside the data, e.g. ``group="region", label="y"``.

    Returns:
        The finished weighing.

    Raises:
        InputError: A name, an option or the data cannot be used.
        MissingExtraError: The method's extra is not installed; the message has the command.
        DataMissingError: A data set cannot be had.
        StoreError: The store cannot be used.
    """
    with Store(store_path(store), check=True) as opened:
        plan = make_plan(id, opened, data, profile, seeds, arms, bench_options)
        plan.save(opened)
        with shown(quiet=on_progress is not None) as shows:
            runner.run(opened, [plan.id], jobs, on_progress or shows)
        return Weighing(read_results(opened, plan.id))
