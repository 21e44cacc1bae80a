"""What a method's part of the page shows, as plain data and finished figures for the template."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from steelyard.bench.results import Outcome, Results, Row, Verdict
from steelyard.bench.stats import Interval
from steelyard.card import Claim, Source
from steelyard.contracts import Metric
from steelyard.report.curves import Curve, mean_curve
from steelyard.report.diagrams import diagram_pictures
from steelyard.report.figures import (
    Style,
    arm_styles,
    clip,
    interval_figure,
    off_chart,
    scatter_figure,
    trace_figure,
)
from steelyard.report.summary import (
    ArmSummary,
    arm_summaries,
    before_offset,
    count_outcomes,
    detectable,
    finite,
    interval_text,
    iqm_table,
    number,
    progress,
    reading,
    row_value,
    seed_figures,
    task_metric,
)

CLASSES = {
    Outcome.BORNE_OUT: "borne",
    Outcome.DIRECTION_ONLY: "direction",
    Outcome.NO_DIFFERENCE: "none",
    Outcome.REVERSED: "reversed",
    Outcome.INCONCLUSIVE: "open",
    Outcome.NOT_TESTABLE: "untestable",
}
MEASURED = {"cpu_s": "CPU seconds", "wall_s": "seconds", "rss_mb": "memory, MB", "steps": "steps"}
_FIGURE_POINTS = 5  # places of a curve that its data table lists


def method_page(results: Results, slug: str, points: int) -> dict[str, Any]:
    """Return everything that the template shows of one weighing.

    Args:
        results: The weighing, cleaned.
        slug: Prefix of this method's ids on the page.
        points: Most points that a curve is drawn with.
    """
    styles = arm_styles(results.arms)
    labels = {task.name: clip(task.label, 120) for task in results.tasks}
    page: dict[str, Any] = {
        "slug": slug,
        "results": results,
        "created": f"{results.created[:10]} {results.created[11:16]} UTC",
        "card": results.card,
        "finished": results.finished,
        "progress": progress(results),
        "keys": [_key(arm.label, arm.role, styles[arm.name]) for arm in sorted_arms(results, styles)],
        "decisions": _ledger(results.card),
        "environment": _flat(results.environment),
        "options": _flat(results.options),
        "failures": _failures(results, labels),
        "raw": [],
        "raw_note": "Figures to four digits; steelyard export has all of them.",
    }
    if not results.finished:
        return page
    summaries = {task.name: arm_summaries(results, task.name) for task in results.tasks}
    return page | {
        "outcomes": outcome_counts(results.verdicts),
        "claims": _claims(results, labels, slug),
        "tasks": [_task(results, name, items, styles, labels) for name, items in summaries.items() if items],
        "iqm": _iqm(results, styles),
        "scatters": _scatters(results, summaries, styles, labels, slug),
        "traces": _traces(results, styles, labels, slug, points),
        "diagrams": diagram_pictures(results, labels),
        "raw": _raw(results, styles, labels),
    }


def outcome_counts(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the outcomes that occur: CSS class, word and count."""
    return [{"css": CLASSES[o], "word": str(o), "n": n} for o, n in count_outcomes(verdicts)]


def sorted_arms(results: Results, styles: Mapping[str, Style]) -> list[Any]:
    """Return the arms in the order of their letters."""
    return sorted(results.arms, key=lambda arm: (len(styles[arm.name].letter), styles[arm.name].letter))


def _key(label: str, role: str, style: Style) -> dict[str, Any]:
    dash = style.dash if isinstance(style.dash, str) else ",".join(f"{part * 1.5:g}" for part in style.dash[1])
    return {
        "letter": style.letter,
        "label": clip(label, 120),
        "role": role,
        "colour": style.colour,
        "dash": "" if dash == "-" else dash,
        "marker": role,
    }


def _claims(results: Results, labels: Mapping[str, str], slug: str) -> list[dict[str, Any]]:
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in results.verdicts:
        by_claim.setdefault(verdict.claim.id, []).append(verdict)
    arms = {arm.name: clip(arm.label, 80) for arm in results.arms}
    metrics = {metric.name: clip(metric.label, 60) for metric in results.metrics}
    claims = []
    for index, verdicts in enumerate(by_claim.values()):
        name = f"{slug}-c{index + 1}"
        drawn = [v for v in verdicts if finite(v.estimate) is not None]
        claims.append(
            {
                "slug": name,
                "number": index + 1,
                "claim": verdicts[0].claim,
                "about": _about(verdicts[0].claim, arms, metrics),
                "outcomes": outcome_counts(verdicts),
                "rows": [_verdict_row(v, labels) for v in verdicts],
                "figure": interval_figure(drawn, labels, name) if drawn else None,
                "caption": _caption(verdicts[0].claim, arms, metrics),
                "table": _claim_table(drawn, labels),
            }
        )
    return claims


def _about(claim: Claim, arms: Mapping[str, str], metrics: Mapping[str, str]) -> str:
    """Return which numbers a claim compares, in words."""
    metric = metrics.get(claim.metric, claim.metric)
    versus = arms.get(claim.versus, claim.versus) if isinstance(claim.versus, str) else number(claim.versus)
    ours = arms.get(claim.arm, claim.arm)
    if claim.kind == "equivalence":
        return f"{metric}: {ours} against {versus}; no difference is what this claim asks for"
    return f"{claim.direction} {metric}: {ours} against {versus}"


def _caption(claim: Claim, arms: Mapping[str, str], metrics: Mapping[str, str]) -> str:
    metric = metrics.get(claim.metric, claim.metric)
    versus = arms.get(claim.versus, claim.versus) if isinstance(claim.versus, str) else number(claim.versus)
    ours = arms.get(claim.arm, claim.arm)
    first, second = (ours, versus) if claim.direction == "higher" else (versus, ours)
    join = "divided by" if claim.scale == "log_ratio" else "minus"
    return f"{metric} of {first} {join} that of {second}"


def _verdict_row(verdict: Verdict, labels: Mapping[str, str]) -> dict[str, Any]:
    task = labels.get(verdict.task or "", verdict.task or "")
    said = reading(verdict) or verdict.sentence
    row = {"css": CLASSES[verdict.outcome], "word": str(verdict.outcome), "task": task, "said": said}
    return row | {"estimate": " ".join(before_offset(verdict)[:2]) if verdict.estimate is not None else ""}


def _claim_table(verdicts: Sequence[Verdict], labels: Mapping[str, str]) -> dict[str, Any]:
    head = ["Data", "verdict", "estimate", "95 % interval", "bar", "p", "p (Holm)", "detectable", "failed", "per seed"]
    rows = []
    for verdict in verdicts:
        estimate, interval, bar = before_offset(verdict)
        seeds = " ".join(seed_figures(verdict))
        tail = [number(verdict.p, 2), number(verdict.p_holm, 2), detectable(verdict)]
        failed = f"{verdict.failed_cells} of {verdict.cells}"
        task = labels.get(verdict.task or "", verdict.task or "")
        rows.append([task, str(verdict.outcome), estimate, interval, bar, *tail, failed, seeds])
    return {"head": head, "rows": rows}


def _task(
    results: Results,
    task: str,
    items: Sequence[ArmSummary],
    styles: Mapping[str, Style],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    shown = task_metric(results, task)
    others = [
        metric
        for metric in results.metrics
        if metric.name not in (shown.name, results.cost) and any(i.others.get(metric.name) is not None for i in items)
    ]
    rows = [
        {
            **_key(item.arm.label, item.arm.role, styles[item.arm.name]),
            "mean": number(item.interval.estimate, 4) if item.interval else "–",
            "interval": interval_text(item.interval),
            "place": place,
            "n": item.n,
            "failed": item.failed,
            "others": [number(item.others.get(metric.name)) for metric in others],
            "cost": number(item.cost),
        }
        for item, place in zip(items, _places([item.interval for item in items]), strict=True)
    ]
    ours = next((row for row in rows if row["role"] == "method"), None)
    return {
        "label": labels[task],
        "metric": f"{clip(shown.label, 100)}{_unit(shown)}; {shown.better} is better",
        "rows": rows,
        "others": [_head(metric.label, metric.unit) for metric in others],
        "cost": cost_label(results, results.cost),
        "best": rows[0],
        "ours": ours if ours is not rows[0] else None,
    }


def _unit(metric: Metric) -> str:
    return f", {clip(metric.unit, 12)}" if metric.unit else ""


def _head(label: str, unit: str) -> str:
    return clip(label, 40) + (f", {clip(unit, 12)}" if unit else "")


def cost_label(results: Results, name: str) -> str:
    """Return what an axis shows that a cost or resource called ``name`` is drawn on."""
    if name in MEASURED:
        return f"{MEASURED[name]} per cell"
    metric = next((metric for metric in results.metrics if metric.name == name), None)
    return _head(metric.label, metric.unit) if metric else name


def _places(intervals: Sequence[Interval | None]) -> list[dict[str, str] | None]:
    """Return where each interval lies in percent of the range of all means and finite limits."""
    ends = [end for interval in intervals if interval for end in interval if finite(end) is not None]
    if not ends:
        return [None for _ in intervals]
    low, width = min(ends), (max(ends) - min(ends)) or 1.0

    def percent(value: float) -> float:
        return 100 * min(max((value - low) / width, 0.0), 1.0)

    return [
        {
            "left": f"{percent(i.low):.1f}",
            "width": f"{percent(i.high) - percent(i.low):.1f}",
            "mean": f"{percent(i.estimate):.1f}",
        }
        if i
        else None
        for i in intervals
    ]


def _iqm(results: Results, styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    table = iqm_table(results)
    places = _places([interval for _, interval, _ in table])
    return [
        {
            **_key(arm.label, arm.role, styles[arm.name]),
            "mean": number(interval.estimate, 4),
            "interval": interval_text(interval),
            "place": place,
            "n": runs,
        }
        for (arm, interval, runs), place in zip(table, places, strict=True)
    ]


def _scatters(
    results: Results,
    summaries: Mapping[str, Sequence[ArmSummary]],
    styles: Mapping[str, Style],
    labels: Mapping[str, str],
    slug: str,
) -> list[dict[str, Any]]:
    """Return a scatter per task and cost: the bench's cost first, then its resources, each against the same quality."""
    figures: list[dict[str, Any]] = []
    for name in (results.cost, *results.resources):
        for task, items in summaries.items():
            priced = [_priced(item, name, results.cost) for item in items]
            drawn = [item for item in priced if item.interval and item.cost is not None]
            if sum(item.arm.role not in ("floor", "ceiling") for item in drawn) >= 2:
                salt = f"{slug}-s{len(figures)}"
                figures.append(_scatter(results, task, drawn, cost_label(results, name), styles, labels[task], salt))
    return figures


def _priced(item: ArmSummary, name: str, cost: str) -> ArmSummary:
    """Return ``item`` with metric ``name`` as its cost."""
    return item if name == cost else item._replace(cost=item.others.get(name))


def _scatter(
    results: Results,
    task: str,
    drawn: Sequence[ArmSummary],
    cost: str,
    styles: Mapping[str, Style],
    label: str,
    salt: str,
) -> dict[str, Any]:
    metric = task_metric(results, task)
    rows = [
        [f"{styles[i.arm.name].letter} {clip(i.arm.label, 60)}", number(i.cost), *_mean_and_interval(i.interval)]
        for i in drawn
    ]
    beyond = [f"{styles[i.arm.name].letter} at {number(i.interval.estimate)}" for i in off_chart(drawn) if i.interval]
    return {
        "label": label,
        "note": f"Beyond the chart: {', '.join(beyond)}." if beyond else "",
        "figure": scatter_figure(drawn, styles, metric, cost, label, salt),
        "table": {"head": ["Arm", cost, f"mean {clip(metric.label, 40)}", "95 % interval"], "rows": rows},
    }


def _mean_and_interval(interval: Interval | None) -> list[str]:
    return [number(interval.estimate if interval else None, 4), interval_text(interval)]


def _traces(
    results: Results, styles: Mapping[str, Style], labels: Mapping[str, str], slug: str, points: int
) -> list[dict[str, Any]]:
    compared = {v.claim.arm for v in results.verdicts} | {str(v.claim.versus) for v in results.verdicts}
    methods = [arm.name for arm in results.arms if arm.role == "method"]
    rivals = [arm.name for arm in results.arms if arm.role == "baseline" and arm.name in compared]
    banded = frozenset([*methods[:2], *rivals[:1]])
    groups = []
    for number_, trace in enumerate(results.traces):
        figures = []
        for index, task in enumerate(labels):
            rows = [row for row in results.rows if row.task == task and row.state == "done"]
            curves = {
                arm.name: curve
                for arm in sorted_arms(results, styles)
                if (curve := mean_curve([row for row in rows if row.arm == arm.name], trace, points)) is not None
            }
            if curves:
                figure = trace_figure(curves, styles, trace, banded, labels[task], f"{slug}-t{number_}x{index}")
                table = _curve_table(curves, results, styles, trace.x_label)
                figures.append({"label": labels[task], "figure": figure, "table": table})
        if figures:
            groups.append({"trace": trace, "figures": figures})
    return groups


def _curve_table(
    curves: Mapping[str, Curve], results: Results, styles: Mapping[str, Style], x_label: str
) -> dict[str, Any]:
    arms = {arm.name: clip(arm.label, 60) for arm in results.arms}
    head = [f"Arm: mean at this share of {clip(x_label, 30)}"]
    head += [f"{100 * step // (_FIGURE_POINTS - 1)} %" for step in range(_FIGURE_POINTS)]
    rows = []
    for arm, curve in curves.items():
        last = curve.x.size - 1
        picks = [round(last * step / (_FIGURE_POINTS - 1)) for step in range(_FIGURE_POINTS)]
        rows.append([f"{styles[arm].letter} {arms[arm]}", *(number(float(curve.mean[pick])) for pick in picks)])
    return {"head": head, "rows": rows}


def _ledger(card: Mapping[str, Any]) -> dict[str, Any]:
    decisions = [
        {**decision, "css": str(decision.get("source", "")).split(" ")[0], "why": _closed(str(decision.get("why", "")))}
        for decision in card.get("decisions", ())
    ]
    counts = Counter(str(decision.get("source", "")) for decision in decisions)
    sources = [{"css": str(s).split(" ")[0], "word": str(s), "n": counts[str(s)]} for s in Source if counts[str(s)]]
    return {"rows": decisions, "sources": sources}


def _closed(text: str) -> str:
    """Return ``text`` with a full stop, so that what is put after it starts a sentence of its own."""
    text = text.rstrip()
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as (dotted name, text) pairs."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value and all(not isinstance(item, Mapping) for item in value.values()):
            pairs.append((f"{prefix}{name}", ", ".join(f"{key} {item}" for key, item in value.items())))
        elif isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            pairs.append((f"{prefix}{name}", clip(text, 1000)))
    return pairs


def _failures(results: Results, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return failed cells, those with the same last line of their error together."""
    arms = {arm.name: clip(arm.label, 80) for arm in results.arms}
    groups: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.state == "failed":
            lines = (row.error or "no error was recorded").strip().splitlines()
            groups.setdefault(lines[-1] if lines else "no error was recorded", []).append(row)
    return [
        {
            "said": clip(said, 300),
            "n": len(rows),
            "cells": [f"{labels.get(r.task, r.task)}, {arms.get(r.arm, r.arm)}, seed {r.seed}" for r in rows[:40]],
            "more": max(len(rows) - 40, 0),
            "error": rows[0].error or said,
        }
        for said, rows in list(groups.items())[:20]
    ]


def _raw(results: Results, styles: Mapping[str, Style], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every cell, grouped by task and arm, as the columns that hold anything."""
    arms = {arm.name: clip(arm.label, 80) for arm in results.arms}
    order = {arm.name: index for index, arm in enumerate(sorted_arms(results, styles))}
    rows = sorted(results.rows, key=lambda row: (order.get(row.arm, len(order)), row.seed))
    tables = []
    for task, label in labels.items():
        cells = [row for row in rows if row.task == task]
        names = [m.name for m in results.metrics if any(finite(r.metrics.get(m.name)) is not None for r in cells)]
        names += [name for name in MEASURED if name not in names and any(row_value(r, name) for r in cells)]
        groups = []
        for arm, members in groupby(cells, key=lambda row: row.arm):
            group = list(members)
            letter = styles[arm].letter if arm in styles else ""
            config = json.dumps(group[0].config, ensure_ascii=False, sort_keys=True, default=str)
            groups.append(
                {
                    "arm": f"{letter} {arms.get(arm, arm)}",
                    "config": clip(config, 300) if group[0].config else "",
                    "rows": [_cell(row, names) for row in group],
                }
            )
        heads = {m.name: _head(m.label, m.unit) for m in results.metrics} | MEASURED
        notes = any(row.notes for row in cells)
        head = [heads[name] for name in names]
        tables.append({"label": label, "head": head, "notes": notes, "groups": groups, "text": ""})
    return tables


def _cell(row: Row, names: Sequence[str]) -> dict[str, Any]:
    tries = f"{row.attempts} tries" if row.attempts > 1 else ""
    state = ", ".join(part for part in ("" if row.state == "done" else row.state, tries) if part)
    notes = ", ".join(f"{name} {value}" for name, value in row.notes.items())
    return {
        "seed": row.seed,
        "state": state,
        "values": [number(row_value(row, name), 4) for name in names],
        "notes": clip(notes, 160),
    }


def csv_text(table: Mapping[str, Any], columns: int | None = None) -> str:
    """Return a raw table as comma-separated lines, the arm by its letter, with the first ``columns`` metrics."""
    head = [name.replace(",", ";") for name in table["head"][:columns]]
    lines = [",".join(["arm", "seed", "state", *head])]
    for group in table["groups"]:
        letter = group["arm"].split(" ")[0]
        for row in group["rows"]:
            values = ["" if value == "–" else value.replace("−", "-") for value in row["values"][:columns]]
            lines.append(",".join([letter, str(row["seed"]), row["state"].replace(", ", " "), *values]))
    return "\n".join(lines)
