"""The numbers of a report: means with intervals per arm, IQM across tasks, progress, and how a number is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from steelyard.bench.results import Outcome, Results, Row, Verdict
from steelyard.bench.stats import Interval, iqm_interval, paired_interval
from steelyard.bench.verdicts import arm_values as values_by_seed  # how a failed cell counts as the worst
from steelyard.bench.verdicts import of_metric, seeds_text, wanted_of_metric
from steelyard.contracts import Arm, Metric

STATES = ("done", "failed", "running", "waiting")


class ArmSummary(NamedTuple):
    """One arm on one task: the task's metric with interval, and the plain means of everything else."""

    arm: Arm
    interval: Interval | None  # None: no value at all
    n: int
    failed: int
    others: dict[str, float | None]
    cost: float | None


def primary_metric(results: Results) -> Metric:
    """Return the metric that the arms are ranked by."""
    return next(metric for metric in results.metrics if metric.name == results.primary)


def task_metric(results: Results, task: str) -> Metric:
    """Return the metric that the arms of ``task`` are ranked by: the primary one, or the first that its cells record.

    A bench may hold a task that answers another question, with metrics of its own.
    """
    recorded = {name for row in results.rows if row.task == task for name in row.metrics}
    primary = primary_metric(results)
    ranked = [primary, *(metric for metric in results.metrics if metric.name != primary.name)]
    return next((metric for metric in ranked if metric.name in recorded), primary)


def finite(value: Any) -> float | None:
    """Return ``value`` as a finite float, or None for NaN, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values, or None when there is none."""
    known = [value for value in map(finite, values) if value is not None]
    return math.fsum(known) / len(known) if known else None


def row_value(row: Row, name: str) -> float | None:
    """Return metric ``name`` of a cell; ``cpu_s``, ``wall_s``, ``rss_mb`` and ``steps`` are recorded for every cell."""
    if name in row.metrics:
        return finite(row.metrics[name])
    return finite(getattr(row, name)) if name in ("cpu_s", "wall_s", "rss_mb", "steps") else None


def _without_nan(row: Row) -> Row:
    """Return the row with NaN and infinite metrics as None, which is what they mean in a store."""
    return row.model_copy(update={"metrics": {name: finite(value) for name, value in row.metrics.items()}})


def arm_summaries(results: Results, task: str) -> list[ArmSummary]:
    """Return the arms that ran on ``task``, the best mean of its metric first, arms without one last."""
    metric = task_metric(results, task)
    rows = [_without_nan(row) for row in results.rows if row.task == task]
    found = [_summarise(results, arm, metric, rows) for arm in results.arms if any(row.arm == arm.name for row in rows)]
    sign = -1 if metric.better == "higher" else 1

    def rank(item: ArmSummary) -> tuple[bool, float]:
        return item.interval is None, sign * item.interval.estimate if item.interval else 0.0

    return sorted(found, key=rank)


def _summarise(results: Results, arm: Arm, metric: Metric, rows: list[Row]) -> ArmSummary:
    ran = [row for row in rows if row.arm == arm.name]
    done = [row for row in ran if row.state == "done"]
    if done and not any(metric.name in row.metrics for row in done):  # measures something else; no failure of its own
        values: dict[int, float] = {}
        failed = sum(row.state == "failed" for row in ran)
    else:
        values, failed, _ = values_by_seed(arm.name, metric, rows)
    others = {m.name: mean(row_value(row, m.name) for row in done) for m in results.metrics if m.name != metric.name}
    return ArmSummary(
        arm=arm,
        interval=paired_interval(list(values.values())) if values else None,
        n=len(values),
        failed=failed,
        others=others,
        cost=mean(row_value(row, results.cost) for row in done),
    )


def iqm_table(results: Results) -> list[tuple[Arm, Interval, int]]:
    """Return (arm, IQM of the primary metric with bootstrap interval, runs) for arms that ran on every task.

    Only tasks that record the primary metric count; empty for a single one. Runs that all tasks of an arm share are
    used, so that each task weighs the same.
    """
    metric = primary_metric(results)
    tasks = [task for task in results.tasks if task_metric(results, task.name) == metric]
    if len(tasks) < 2:
        return []
    rows = {task.name: [_without_nan(row) for row in results.rows if row.task == task.name] for task in tasks}
    table = []
    for arm in results.arms:
        columns = [list(values_by_seed(arm.name, metric, rows[task.name])[0].values()) for task in tasks]
        runs = min(map(len, columns))
        if runs:
            scores = [[column[run] for column in columns] for run in range(runs)]
            table.append((arm, iqm_interval(scores), runs * len(columns)))
    sign = -1 if metric.better == "higher" else 1
    return sorted(table, key=lambda item: sign * item[1].estimate)


def count_states(rows: Iterable[Row]) -> dict[str, int]:
    """Return how many cells are done, failed, running and waiting, and their total; derived rows are no cells."""
    counts = Counter(row.state for row in rows if row.key)
    return {**{state: counts[state] for state in STATES}, "total": sum(counts.values())}


def progress(results: Results) -> dict[str, Any]:
    """Return the progress of a weighing as plain data: totals, per arm, and the cells that run right now."""
    arms = []
    for arm in results.arms:
        counts = count_states(row for row in results.rows if row.arm == arm.name)
        if counts["total"]:
            arms.append({"name": arm.name, "label": arm.label, "role": arm.role, **counts})
    running = [{"task": r.task, "arm": r.arm, "seed": r.seed} for r in results.rows if r.state == "running"]
    return {
        "id": results.id,
        "method": results.method,
        "profile": results.profile,
        "finished": results.finished,
        **count_states(results.rows),
        "arms": arms,
        "cells": running,
    }


def count_outcomes(verdicts: Iterable[Verdict]) -> list[tuple[Outcome, int]]:
    """Return the outcomes that occur with their counts, in the fixed order of :class:`Outcome`."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return [(outcome, counts[outcome]) for outcome in Outcome if counts[outcome]]


def number(value: float | None, digits: int = 3) -> str:
    """Return ``value`` in ``digits`` significant digits; an en dash for None and NaN, a true minus sign."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(places, 0)}f}" if -4 < math.log10(abs(value)) < 6 else f"{value:.{digits - 1}e}"
    return text.replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    """Return :func:`number` with a plus sign in front of positive values."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 else text


def interval_text(interval: Interval | None) -> str:
    """Return ``[low, high]``; an en dash when there is none, or it has no end on either side (a single seed)."""
    if interval is None or _is_endless(interval.low, interval.high):
        return "–"
    return f"[{number(interval.low)}, {number(interval.high)}]"


def _is_endless(low: float | None, high: float | None) -> bool:
    return finite(low) is None and finite(high) is None


def before_offset(verdict: Verdict) -> tuple[str, str, str]:
    """Return estimate, interval and the bar to clear as shown: before the offset, and log-ratios as ratios."""
    claim = verdict.claim
    shown = [None if v is None else v + claim.offset for v in (verdict.estimate, verdict.low, verdict.high)]
    noise = 1e-12 * max([abs(v) for v in map(finite, shown) if v is not None], default=0.0)
    shown = [0.0 if v is not None and abs(v) < noise else v for v in shown]  # what rounding left of a zero
    bar = claim.offset + claim.margin
    if claim.scale == "log_ratio":
        estimate, low, high, bar_text = (number(_exp(value)) for value in (*shown, bar))
    else:
        estimate, low, high, bar_text = (signed(value) for value in (*shown, bar))
    return estimate, "–" if _is_endless(verdict.low, verdict.high) else f"[{low}, {high}]", bar_text


def seed_figures(verdict: Verdict) -> list[str]:
    """Return the difference of each seed as shown: before the offset, and log-ratios as ratios."""
    shown = [value + verdict.claim.offset for value in verdict.differences]
    return [number(_exp(v)) if verdict.claim.scale == "log_ratio" else signed(v) for v in shown]


def detectable(verdict: Verdict) -> str:
    """Return the minimum detectable effect as shown: a factor for ratios."""
    value = finite(verdict.detectable)
    return (
        f"factor {number(_exp(value))}" if value is not None and verdict.claim.scale == "log_ratio" else number(value)
    )


def reading(verdict: Verdict) -> str:
    """Return the figures behind a verdict in one line: estimate, interval, bar, seeds, and what qualifies them."""
    parts = []
    if verdict.estimate is not None:
        seeds = len(verdict.differences)
        parts.append(f"{_figures(verdict)}, {seeds} seed{'s' * (seeds != 1)}")
    if verdict.seeds_needed is not None:
        parts.append(seeds_text(verdict.seeds_needed))
    if verdict.failed_cells and "failed" not in verdict.note:
        parts.append(f"{verdict.failed_cells} of {verdict.cells} cells failed")
    return "; ".join([*parts, verdict.note] if verdict.note else parts)


def _figures(verdict: Verdict) -> str:
    """Return estimate, interval and bar: of the difference or ratio of two arms, or of the metric for a constant."""
    claim = verdict.claim
    if isinstance(claim.versus, str):
        estimate, interval, bar = before_offset(verdict)
        return f"{'ratio ' if claim.scale == 'log_ratio' else ''}{estimate} {interval}, bar {bar}"
    infinite = (-math.inf, math.inf)
    low, high = (
        of_metric(claim, (end if value is None else value) + claim.offset)
        for value, end in zip((verdict.low, verdict.high), infinite, strict=True)
    )
    estimate = number(of_metric(claim, (verdict.estimate or 0.0) + claim.offset))
    between = f"[{number(min(low, high))}, {number(max(low, high))}]"
    interval = "–" if _is_endless(verdict.low, verdict.high) else between
    return f"{estimate} {interval}, {wanted_of_metric(claim, number)}"


def _exp(value: float | None) -> float | None:
    if value is None:
        return None
    return math.exp(value) if value < 700 else math.inf
