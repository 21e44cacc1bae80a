"""The verdict rule, and its application to the claims of a card."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from steelyard.bench import stats
from steelyard.bench.results import Outcome, Row, Verdict
from steelyard.card import Claim
from steelyard.contracts import Metric
from steelyard.errors import InputError

FAILED_SHARE = 0.1  # above it a claim is inconclusive whatever its interval
OWN_TASKS = "this claim is about the bench's own tasks"  # the note of one that the user's own data cannot test
_MANY_SEEDS = 1000


def verdict(low: float, high: float, margin: float = 0.0) -> Outcome:
    """Return the outcome for the interval [low, high] of a difference in the claimed direction.

    First that fits: inside [-margin, margin] with margin > 0, *no difference*; low > margin, *borne out*; low > 0,
    *direction only*; high < 0, *reversed*; else *inconclusive*.
    """
    if math.isnan(low) or math.isnan(high) or low > high:
        raise InputError(f"low and high must be numbers with low <= high, got {low} and {high}")
    if not margin >= 0:
        raise InputError(f"margin must be at least 0, got {margin}")
    if margin > 0 and low >= -margin and high <= margin:
        return Outcome.NO_DIFFERENCE
    if low > margin:
        return Outcome.BORNE_OUT
    if low > 0:
        return Outcome.DIRECTION_ONLY
    if high < 0:
        return Outcome.REVERSED
    return Outcome.INCONCLUSIVE


def judge(
    claims: Sequence[Claim],
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    without_verdict: Collection[tuple[str, str]],
    own_data: bool = False,
) -> tuple[Verdict, ...]:
    """Return the verdicts on ``claims``, one per claim and task, with Holm's p over all of them.

    Args:
        claims: The claims of a card.
        rows: Cells of one weighing, derived arms included.
        metrics: The bench's metrics.
        without_verdict: (task, arm) that ran on too few seeds to be judged.
        own_data: Whether the rows are of the user's own data, on which no claim about the bench's tasks can be tested.
    """
    by_name = {metric.name: metric for metric in metrics}
    verdicts = [
        verdict for claim in claims for verdict in _judge_claim(claim, rows, by_name, without_verdict, own_data)
    ]
    tested = [index for index, verdict in enumerate(verdicts) if verdict.p is not None]
    for index, p in zip(tested, stats.holm([verdicts[i].p or 0.0 for i in tested]), strict=True):
        verdicts[index] = verdicts[index].model_copy(update={"p_holm": p})
    return tuple(verdicts)


def _judge_claim(
    claim: Claim,
    rows: Sequence[Row],
    metrics: Mapping[str, Metric],
    without_verdict: Collection[tuple[str, str]],
    own_data: bool,
) -> list[Verdict]:
    if claim.paper_scale_only:
        return [_not_testable(claim, "the paper's setting does not fit this machine; see the gpu profile")]
    metric = metrics.get(claim.metric)
    if metric is None:
        raise InputError(f"claim {claim.id}: unknown metric '{claim.metric}'")
    arms = [arm for arm in (claim.arm, claim.versus) if isinstance(arm, str)]
    ran = {arm: {row.task for row in rows if row.arm == arm} for arm in arms}
    tasks = dict.fromkeys(row.task for row in rows)  # keeps the order of the plan
    shared = [task for task in tasks if all(task in ran[arm] and (task, arm) not in without_verdict for arm in arms)]
    if claim.tasks is not None:
        shared = [task for task in shared if task in claim.tasks]
    judged = [_judge_task(claim, metric, task, [row for row in rows if row.task == task]) for task in shared]
    found = [verdict for verdict in judged if verdict is not None]
    if found:
        return found
    if not own_data:
        return [_not_testable(claim, "its arms or tasks are not part of this run; see --full, --profile, --arms")]
    if claim.tasks is not None or all(ran.values()):
        return [_not_testable(claim, OWN_TASKS)]
    return [_not_testable(claim, "its arms are not run on your own data, or --arms leaves them out")]


def _not_testable(claim: Claim, note: str) -> Verdict:
    return Verdict(
        claim=claim,
        task=None,
        outcome=Outcome.NOT_TESTABLE,
        sentence=f"{Outcome.NOT_TESTABLE}: {claim.text} ({note})",
        note=note,
    )


def _judge_task(claim: Claim, metric: Metric, task: str, rows: Sequence[Row]) -> Verdict | None:
    """Return the verdict on one task, or None when no cell there records the metric."""
    if not any(metric.name in row.metrics for row in rows if row.arm == claim.arm):
        return None
    ours, lost_ours, cells_ours = arm_values(claim.arm, _against(claim, metric), rows)
    if isinstance(claim.versus, str):
        theirs, lost_theirs, cells_theirs = arm_values(claim.versus, metric, rows)
    else:
        theirs, lost_theirs, cells_theirs = dict.fromkeys(ours, float(claim.versus)), 0, 0
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours) if seed in theirs]
    unpaired = len(ours.keys() ^ theirs.keys())  # a derived arm has no value where a cell that it needs has failed
    failed, cells = lost_ours + lost_theirs + unpaired, cells_ours + cells_theirs + unpaired
    blank = {"claim": claim, "task": task, "cells": cells, "failed_cells": failed}
    if cells and failed > FAILED_SHARE * cells:
        return _inconclusive(blank, f"{failed} of {cells} cells failed")
    if not pairs:
        return _inconclusive(blank, "no finished pair of cells")
    if claim.scale == "log_ratio" and any(a <= 0 or b <= 0 for a, b in pairs):
        return _inconclusive(blank, "a ratio of values that are not above 0 has no logarithm")
    return _from_pairs(blank, claim, pairs)


def _against(claim: Claim, metric: Metric) -> Metric:
    """Return ``metric`` so that a failed cell of the claimed arm counts against the claim.

    Where the claim says that an arm is worse (plain training spikes), the metric's worst value would speak for it;
    there the other end of what was seen is taken.
    """
    if claim.direction == metric.better:
        return metric
    return metric.model_copy(update={"better": claim.direction, "worst": None})


def arm_values(arm: str, metric: Metric, rows: Sequence[Row]) -> tuple[dict[int, float], int, int]:
    """Return seed -> value of an arm, a failed cell counted as the worst, and how many of how many cells failed."""
    seen = [value for row in rows if (value := row.metrics.get(metric.name)) is not None]
    worst = metric.worst
    if worst is None and seen:
        worst = min(seen) if metric.better == "higher" else max(seen)
    values: dict[int, float] = {}
    failed = cells = 0
    for row in rows:
        if row.arm != arm or row.state not in ("done", "failed"):
            continue
        cells += 1
        value = row.metrics.get(metric.name) if row.state == "done" else None
        if value is None:
            failed += 1
            value = worst
        if value is not None:
            values[row.seed] = value
    return values, failed, cells


def _inconclusive(blank: dict[str, object], note: str) -> Verdict:
    claim = blank["claim"]
    assert isinstance(claim, Claim)
    sentence = f"{Outcome.INCONCLUSIVE} ({note}): {claim.text} [{blank['task']}]"
    return Verdict(outcome=Outcome.INCONCLUSIVE, sentence=sentence, note=note, **blank)


def seed_value(claim: Claim, ours: float, theirs: float) -> float:
    """Return the value of one seed: the difference, or log-ratio, in the claimed direction before the offset."""
    higher, lower = (ours, theirs) if claim.direction == "higher" else (theirs, ours)
    return math.log(higher / lower) if claim.scale == "log_ratio" else higher - lower


def _from_pairs(blank: dict[str, object], claim: Claim, pairs: Sequence[tuple[float, float]]) -> Verdict:
    differences = [seed_value(claim, a, b) - claim.offset for a, b in pairs]
    estimate, low, high = stats.paired_interval(differences)
    outcome = verdict(low, high, claim.margin)
    if claim.kind == "equivalence" and outcome is not Outcome.NO_DIFFERENCE:
        outside = low > claim.margin or high < -claim.margin
        outcome = Outcome.REVERSED if outside else Outcome.INCONCLUSIVE
    needed = None
    if outcome is Outcome.INCONCLUSIVE and len(differences) > 1:
        needed = stats.seeds_needed(differences, claim.margin)
    notes = []
    if low == high:
        notes.append("all differences are equal, so the interval is one point")
    if claim.kind == "equivalence" and outcome is Outcome.NO_DIFFERENCE:
        notes.append("no difference is what this claim asks for")
    if claim.kind != "equivalence" and outcome is Outcome.REVERSED and estimate + claim.offset > 0:
        short = claim.margin - estimate  # the bar, margin included, is what is shown
        notes.append(f"ahead, but short of the bar by {_apart(claim, short)}")
    note = "; ".join(notes)
    return Verdict(
        outcome=outcome,
        sentence=_sentence(claim, str(blank["task"]), outcome, (estimate, low, high), len(pairs), needed, note),
        estimate=estimate,
        low=low,
        high=high,
        p=stats.sign_flip_p(differences),
        detectable=stats.detectable_effect(differences),
        seeds_needed=needed,
        differences=tuple(differences),
        note=note,
        **blank,
    )


def _apart(claim: Claim, distance: float) -> str:
    return f"a factor of {_exp(distance):.3g}" if claim.scale == "log_ratio" else f"{distance:.3g}"


def seeds_text(needed: int) -> str:
    """Return how many seeds would settle a claim, as said: a forecast of thousands is no number to plan with."""
    return "more than 1,000 seeds needed" if needed > _MANY_SEEDS else f"about {needed} seeds needed"


def _sentence(
    claim: Claim,
    task: str,
    outcome: Outcome,
    interval: tuple[float, float, float],
    pairs: int,
    needed: int | None,
    note: str,
) -> str:
    """Return the verdict as one line; numbers are shown before the offset, against the bar that the claim sets."""
    head = f"{outcome} ({seeds_text(needed)})" if needed is not None else str(outcome)
    estimate, low, high = (value + claim.offset for value in interval)
    bar = claim.offset + claim.margin
    endless = math.isinf(low) and math.isinf(high)  # of a single seed
    if not isinstance(claim.versus, str):
        least, most = sorted((of_metric(claim, low), of_metric(claim, high)))
        wanted = wanted_of_metric(claim, "{:.3g}".format)
        between = f"[{least:.3g}, {most:.3g}]"
        figures = f"{of_metric(claim, estimate):.3g} {'–' if endless else between}, {wanted}"
    elif claim.scale == "log_ratio":
        between = f"[{_exp(low):.3g}, {_exp(high):.3g}]"
        figures = f"ratio {_exp(estimate):.3g} {'–' if endless else between}, bar {_exp(bar):.3g}"
    else:
        between = f"[{low:+.3g}, {high:+.3g}]"
        figures = f"{estimate:+.3g} {'–' if endless else between}, bar {bar:+.3g}"
    tail = f"; {note}" if note else ""
    return f"{head}: {claim.text} [{task}: {figures}, {pairs} seed{'s' * (pairs != 1)}{tail}]"


_SIDE_OF_BAR = {"higher": "above", "lower": "below"}


def wanted_of_metric(claim: Claim, write: Callable[[float], str]) -> str:
    """Return where a claim about a constant wants the metric, as "must be below 3" or "must be within 1 and 2"."""
    far = of_metric(claim, claim.offset + claim.margin)
    if claim.kind == "equivalence":
        low, high = sorted((of_metric(claim, claim.offset - claim.margin), far))
        return f"must be within {write(low)} and {write(high)}"
    return f"must be {_SIDE_OF_BAR[claim.direction]} {write(far)}"


def of_metric(claim: Claim, value: float) -> float:
    """Return the metric that a difference from (or log-ratio to) the claim's constant stands for."""
    assert not isinstance(claim.versus, str)
    sign = 1 if claim.direction == "higher" else -1
    return claim.versus * _exp(sign * value) if claim.scale == "log_ratio" else claim.versus + sign * value


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
