"""The figures of a report: intervals per claim, cost against quality, and curves, each as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from steelyard.bench.results import Outcome, Verdict
from steelyard.contracts import Arm, Metric, Trace
from steelyard.extras import require
from steelyard.report import svg
from steelyard.report.axes import (
    apart,
    free_places,
    linear_axis,
    log_axis,
    ratio_ticks,
    set_ticks,
    span,
    symlog_threshold,
)
from steelyard.report.curves import Curve
from steelyard.report.summary import ArmSummary, finite

OUTCOME_COLOURS = {
    Outcome.BORNE_OUT: "o-borne",
    Outcome.DIRECTION_ONLY: "o-direction",
    Outcome.NO_DIFFERENCE: "o-none",
    Outcome.REVERSED: "o-reversed",
    Outcome.INCONCLUSIVE: "o-open",
    Outcome.NOT_TESTABLE: "muted",
}
OUTCOME_MARKERS = {
    Outcome.BORNE_OUT: "o",
    Outcome.DIRECTION_ONLY: ">",
    Outcome.NO_DIFFERENCE: "s",
    Outcome.REVERSED: "<",
    Outcome.INCONCLUSIVE: "D",
}
ROLE_MARKERS = {"method": "o", "ablation": "D", "baseline": "s", "floor": "v", "ceiling": "^"}
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)))
_LOG_SPREAD = 40.0  # quality that spreads over more than this many times gets a logarithmic axis
_LINE = 37.0  # pixels of one row of an interval plot


class Style(NamedTuple):
    """How an arm is drawn everywhere on the page: a letter beside it, a colour, a dash and a marker of its role."""

    letter: str
    colour: str
    dash: Any
    marker: str


def arm_styles(arms: Sequence[Arm]) -> dict[str, Style]:
    """Return a style per arm; methods take the first colours, floor and ceiling are grey."""
    rank = {"method": 0, "ablation": 1, "baseline": 2, "ceiling": 3, "floor": 4}
    styles: dict[str, Style] = {}
    coloured = 0
    for index, arm in enumerate(sorted(arms, key=lambda arm: rank[arm.role])):
        letter = _letter(index)
        if arm.role in ("floor", "ceiling"):
            styles[arm.name] = Style(letter, "floor", _DASHES[2], ROLE_MARKERS[arm.role])
            continue
        dash = _DASHES[coloured // svg.SERIES % len(_DASHES)]
        styles[arm.name] = Style(letter, f"a{coloured % svg.SERIES}", dash, ROLE_MARKERS[arm.role])
        coloured += 1
    return styles


def _letter(index: int) -> str:
    """Return the index-th of the letters A to Z, then AA, AB and so on."""
    first, last = divmod(index, 26)
    return (chr(ord("A") + first - 1) if first else "") + chr(ord("A") + last)


def clip(text: str, length: int) -> str:
    """Return ``text`` cut to ``length`` characters with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def interval_figure(verdicts: Sequence[Verdict], labels: Mapping[str, str], salt: str) -> str:
    """Return the intervals of one claim, a row per task, in the claimed direction.

    Args:
        verdicts: Verdicts of one claim that have an estimate, at least one.
        labels: Task name -> label.
        salt: Name of the figure, unique on the page.
    """
    claim = verdicts[0].claim
    height = _LINE * len(verdicts) + 46

    def draw(figure: Any) -> None:
        ax = figure.add_axes((0.02, 42 / height, 0.96, 1 - 44 / height))
        _claim_axis(ax, verdicts)
        for row, verdict in enumerate(reversed(verdicts)):
            _interval_row(ax, verdict, row, clip(labels.get(verdict.task or "", verdict.task or ""), 44))
        ax.set_ylim(-0.55, len(verdicts) - 0.3)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.text(0, -31, "← against the claim", transform=_below(ax), color=svg.colour("muted"), va="top")
        ax.text(1, -31, "for the claim →", transform=_below(ax), color=svg.colour("muted"), va="top", ha="right")

    said = "; ".join(f"{labels.get(v.task or '', v.task or '')}: {v.outcome}" for v in verdicts)
    return svg.render(draw, 340, height, salt, clip(f"Interval plot. {claim.text} {said}", 400))


def _below(ax: Any) -> Any:
    """Return a transform with x in axes widths and y in pixels above the axes' lower edge."""
    transforms = require("matplotlib.transforms", svg.EXTRA)
    size = ax.figure.bbox.height * ax.get_position().height
    return transforms.Affine2D().scale(1, 1 / size) + ax.transAxes


def _claim_axis(ax: Any, verdicts: Sequence[Verdict]) -> None:
    """Set the x axis of a claim: band of the margin, the line to clear, and where nothing differs."""
    claim = verdicts[0].claim
    rows = [[v.estimate, v.low, v.high, *v.differences] for v in verdicts]
    shifted = [[value + claim.offset for value in map(finite, row) if value is not None] for row in rows]
    marks = [claim.offset - claim.margin, claim.offset + claim.margin, 0.0]
    low, high = span([*chain.from_iterable(shifted), *marks], 0.06)
    threshold = symlog_threshold(shifted) if claim.scale == "difference" and not claim.offset else None
    if claim.scale == "log_ratio":
        ax.set_xlim(low, high)
        set_ticks(ax.xaxis, *ratio_ticks(low, high))
    else:
        linear_axis(ax, "x", low, high, threshold)
    if claim.margin:
        ax.axvspan(claim.offset - claim.margin, claim.offset + claim.margin, color=svg.colour("band"), lw=0, zorder=0)
    if claim.offset:
        ax.axvline(0, color=svg.colour("grid"), lw=0.8, ls=(0, (2, 2)), zorder=1)
    ax.axvline(claim.offset, color=svg.colour("muted"), lw=1, zorder=1)


def _interval_row(ax: Any, verdict: Verdict, y: int, label: str) -> None:
    shade, offset = svg.colour(OUTCOME_COLOURS[verdict.outcome]), verdict.claim.offset
    left, right = ax.get_xlim()
    ends = [None if end is None else end + offset for end in (finite(verdict.low), finite(verdict.high))]
    low = left if ends[0] is None else max(ends[0], left)
    high = right if ends[1] is None else min(ends[1], right)
    dots = [value + offset for value in map(finite, verdict.differences) if value is not None]
    _dots(ax, dots, [y - 0.28 - 0.09 * (index % 2) for index in range(len(dots))])
    ax.plot([low, high], [y, y], color=shade, lw=2.4, zorder=3)
    marker = OUTCOME_MARKERS[verdict.outcome]
    ax.plot(
        [(verdict.estimate or 0.0) + offset], [y], marker, ms=7, mew=1.2, color=shade, mec=svg.colour("card"), zorder=4
    )
    ax.annotate(label, (0, y), (2, 6), xycoords=("axes fraction", "data"), textcoords="offset points", va="bottom")


def _dots(ax: Any, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Draw points as lines of no length with round ends: one path, a third of the bytes of markers."""
    path = require("matplotlib.path", svg.EXTRA).Path
    patch = require("matplotlib.patches", svg.EXTRA).PathPatch
    corners = [point for point in zip(xs, ys, strict=True) for _ in range(2)]
    codes = [path.MOVETO, path.LINETO] * len(xs)
    shape = path(corners, codes)
    ax.add_patch(patch(shape, fill=False, lw=3.2, ec=svg.colour("muted"), capstyle="round", alpha=0.7, zorder=2))


def scatter_figure(
    items: Sequence[ArmSummary], styles: Mapping[str, Style], metric: Metric, cost_label: str, label: str, salt: str
) -> str:
    """Return cost against quality for the arms of one task: mean with interval over the mean cost.

    Floor and ceiling, whose cost means nothing, are lines; one that is :func:`off_chart` is left out.

    Args:
        items: Arms with an interval and a cost; at least one is neither floor nor ceiling.
        styles: Style per arm name.
        metric: The task's metric, on the y axis.
        cost_label: Label of the x axis.
        label: The task's label, for the description.
        salt: Name of the figure, unique on the page.
    """
    points = [item for item in items if not _is_edge(item)]
    hidden = off_chart(items)
    lines = [item for item in items if _is_edge(item) and item not in hidden]

    def draw(figure: Any) -> None:
        ax = figure.add_axes((0.15, 0.145, 0.82, 0.785))
        costs = [item.cost or 0.0 for item in points]
        log_axis(ax, "x", costs, 8.0)
        ends = [*_ends(points), *(item.interval.estimate for item in lines if item.interval)]
        log_axis(ax, "y", ends, _LOG_SPREAD if _is_wide(_ends(points)) else math.inf)
        ax.grid(visible=True)
        for item in points:
            _scatter_point(ax, item, styles[item.arm.name])
        for item in lines:
            _scatter_line(ax, item, styles[item.arm.name])
        if metric.chance is not None and ax.get_ylim()[0] < metric.chance < ax.get_ylim()[1]:
            ax.axhline(metric.chance, color=svg.colour("floor"), lw=1, ls=(0, (1, 2)))
        means = [item.interval.estimate for item in points if item.interval]
        _letters(ax, costs, means, [styles[item.arm.name] for item in points])
        ax.set_xlabel(clip(cost_label, 50), labelpad=2)
        ax.set_title(_axis_name(metric), loc="left", fontsize=11, color=svg.colour("muted"), pad=3, x=-0.17)

    best = clip(items[0].arm.label, 80)
    return svg.render(draw, 340, 250, salt, clip(f"Cost against {metric.label} on {label}. Best: {best}.", 300))


def off_chart(items: Sequence[ArmSummary]) -> list[ArmSummary]:
    """Return the floors and ceilings so far from all other arms that showing them would flatten these."""
    ends = _ends([item for item in items if not _is_edge(item)])
    low, high = min(ends), max(ends)
    room = 1.5 * ((high - low) or abs(high) or 1.0)

    def seen(value: float) -> bool:
        return low / 10 <= value <= high * 10 if _is_wide(ends) else low - room <= value <= high + room

    return [item for item in items if _is_edge(item) and item.interval and not seen(item.interval.estimate)]


def _is_edge(item: ArmSummary) -> bool:
    return item.arm.role in ("floor", "ceiling")


def _ends(items: Sequence[ArmSummary]) -> list[float]:
    """Return the means and the finite interval ends of ``items``."""
    return [end for item in items if item.interval for end in item.interval if finite(end) is not None]


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > _LOG_SPREAD


def _axis_name(metric: Metric) -> str:
    unit = f", {clip(metric.unit, 12)}" if metric.unit else ""
    return f"{clip(metric.label, 34)}{unit} ({metric.better} is better)"


def _scatter_point(ax: Any, item: ArmSummary, style: Style) -> None:
    assert item.interval is not None
    shade = svg.colour(style.colour)
    low, high = ax.get_ylim()
    ends = [low if math.isinf(item.interval.low) else item.interval.low]
    ends.append(high if math.isinf(item.interval.high) else item.interval.high)
    if ax.get_yscale() == "log":
        ends[0] = max(ends[0], low)
    ax.plot([item.cost, item.cost], ends, color=shade, lw=1.4)
    ax.plot([item.cost], [item.interval.estimate], style.marker, ms=7, color=shade, mec=svg.colour("card"), mew=1)


def _scatter_line(ax: Any, item: ArmSummary, style: Style) -> None:
    assert item.interval is not None
    ax.axhline(item.interval.estimate, color=svg.colour(style.colour), lw=1, ls=(0, (4, 2)), zorder=0)
    place = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": 10, "fontweight": "bold"}
    ax.text(0.015, item.interval.estimate, f"{style.letter} {item.arm.role}", color=svg.colour("muted"), **place)


def _letters(ax: Any, xs: Sequence[float], ys: Sequence[float], styles: Sequence[Style]) -> None:
    """Write each arm's letter beside its point, where it covers no other point or letter."""
    points = ax.transData.transform(np.column_stack([xs, ys]))
    for style, (x, y), (dx, dy) in zip(styles, points, free_places(points), strict=True):
        place = ax.transAxes.inverted().transform((x + dx, y + dy))
        ax.text(*place, style.letter, transform=ax.transAxes, ha="center", va="center", fontsize=10, fontweight="bold")


def trace_figure(
    curves: Mapping[str, Curve],
    styles: Mapping[str, Style],
    trace: Trace,
    banded: frozenset[str],
    label: str,
    salt: str,
) -> str:
    """Return the curves of one task: mean over seeds, with a band for the arms in ``banded``.

    Args:
        curves: Curve per arm name, at least one.
        styles: Style per arm name.
        trace: Axis labels and scales.
        banded: Arms whose interval is drawn.
        label: The task's label, for the description.
        salt: Name of the figure, unique on the page.
    """

    def draw(figure: Any) -> None:
        ax = figure.add_axes((0.15, 0.155, 0.78, 0.765))
        _trace_axes(ax, curves, trace, banded)
        for arm, curve in curves.items():
            shade = svg.colour(styles[arm].colour)
            if arm in banded:
                known = np.isfinite(curve.mean)
                xs, low, high = curve.x[known], curve.low[known], curve.high[known]
                ax.fill([*xs, *xs[::-1]], [*low, *high[::-1]], color=shade, alpha=0.16, lw=0)
            width = 1.9 if styles[arm].marker == "o" else 1.2
            ax.plot(curve.x, curve.mean, color=shade, lw=width, ls=styles[arm].dash)
        _end_letters(ax, curves, styles)
        ax.set_xlabel(clip(trace.x_label, 50), labelpad=2)
        ax.set_title(clip(trace.y_label, 50), loc="left", fontsize=11, color=svg.colour("muted"), pad=3, x=-0.17)

    return svg.render(
        draw, 340, 230, salt, clip(f"{trace.label} on {label}, mean over seeds of {len(curves)} arms.", 300)
    )


def _trace_axes(ax: Any, curves: Mapping[str, Curve], trace: Trace, banded: frozenset[str]) -> None:
    xs = np.concatenate([curve.x for curve in curves.values()])
    ys = [curve.mean for curve in curves.values()]
    ys += [part for arm, curve in curves.items() if arm in banded for part in (curve.low, curve.high)]
    flat = np.concatenate(ys)
    flat = flat[np.isfinite(flat)]
    log_axis(ax, "x", xs.tolist(), 1.0 if trace.log_x else math.inf, pad=0.0)
    log_axis(ax, "y", flat.tolist(), 1.0 if trace.log_y else math.inf)
    ax.grid(visible=True, axis="y")


def _end_letters(ax: Any, curves: Mapping[str, Curve], styles: Mapping[str, Style]) -> None:
    """Write each arm's letter at the end of its curve, moved apart where ends meet."""
    ends = []
    for arm, curve in curves.items():
        known = np.flatnonzero(np.isfinite(curve.mean))
        if known.size:
            point = ax.transData.transform((curve.x[known[-1]], curve.mean[known[-1]]))
            ends.append((float(ax.transAxes.inverted().transform(point)[1]), arm))
    ends.sort()
    levels = apart([height for height, _ in ends], 10.5 / (230 * 0.765))
    for level, (_, arm) in zip(levels, ends, strict=True):
        shade = svg.colour("ink" if styles[arm].colour == "floor" else styles[arm].colour)
        ax.text(1.02, level, styles[arm].letter, transform=ax.transAxes, va="center", fontsize=10, color=shade)
