"""A weighing as plain text, at most 120 columns wide: for logs, pipes and notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from steelyard.bench.results import Outcome, Results, TaskInfo, Verdict
from steelyard.bench.verdicts import OWN_TASKS
from steelyard.report.summary import (
    ArmSummary,
    arm_summaries,
    count_outcomes,
    count_states,
    interval_text,
    number,
    reading,
    task_metric,
)

WIDTH = 120
USER_TASK = "user"  # the task on prompts, or a table, of the user's own
UNITS = {"cpu_s": "cpu s", "wall_s": "wall s", "rss_mb": "memory MB", "steps": "steps"}  # heads of the cost column
MARKS = {
    Outcome.BORNE_OUT: "+ ",
    Outcome.DIRECTION_ONLY: "> ",
    Outcome.NO_DIFFERENCE: "= ",
    Outcome.REVERSED: "- ",
    Outcome.INCONCLUSIVE: "? ",
    Outcome.NOT_TESTABLE: ". ",
}


def text_table(results: Results) -> str:
    """Return the verdict lines and the arms table of ``results`` as text of at most 120 columns."""
    lines = [_heading(results), ""]
    if results.finished:
        labels = {task.name: task.label for task in results.tasks}
        claim = None
        tested = [verdict for verdict in results.verdicts if verdict.outcome is not Outcome.NOT_TESTABLE]
        for verdict in tested:
            if verdict.claim.id != claim:
                lines += textwrap.wrap(one_line(verdict.claim.text), WIDTH)[:3]
                claim = verdict.claim.id
            lines += _verdict_lines(verdict, labels)
        lines += _untested_lines(results)
        lines += [""] if results.verdicts else []
    for task in results.tasks:
        lines += _task_lines(results, task)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _untested_lines(results: Results) -> list[str]:
    """Return a line or two for all claims that were not tested: they are many, and the report has their reasons."""
    notes = [verdict.note for verdict in results.verdicts if verdict.outcome is Outcome.NOT_TESTABLE]
    other, untested = notes.count(OWN_TASKS), len(notes) - notes.count(OWN_TASKS)
    mark = f"  {MARKS[Outcome.NOT_TESTABLE]}{Outcome.NOT_TESTABLE:<18}"
    lines = []
    if untested:
        rest = "one claim needs" if untested == 1 else f"{untested} claims need"
        lines.append(f"{mark}{rest} arms, tasks or a scale that this run left out; the report names them")
    if other:
        rest = "one claim is" if other == 1 else f"{other} claims are"
        lines.append(f"{mark}{rest} about the bench's own tasks, not about data of yours; the report names them")
    return lines


def one_line(text: str) -> str:
    """Return ``text`` with control characters and line breaks as spaces, so that it cannot repaint a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _heading(results: Results) -> str:
    counts = count_states(results.rows)
    seeds = f"{len(results.seeds)} seed{'s' * (len(results.seeds) != 1)}"
    state = f"{counts['done']} of {counts['total']} cells done, {counts['failed']} failed"
    said = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(results.verdicts))
    tail = said if results.finished else "not finished, so no verdicts yet"
    heading = one_line(f"{results.method}, {results.profile} profile, {seeds}: {state}. {tail}")
    return "\n".join(textwrap.wrap(heading, WIDTH)[:3])


def _verdict_lines(verdict: Verdict, labels: Mapping[str, str]) -> list[str]:
    task = _clip(one_line(labels.get(verdict.task or "", "")), 36)
    head = f"{MARKS[verdict.outcome]}{verdict.outcome:<18}"
    head = f"{head}{task:<38}" if task else head
    said = one_line(reading(verdict))
    return textwrap.wrap(head + said, WIDTH, initial_indent="  ", subsequent_indent=" " * 22)[:4]


def _task_lines(results: Results, task: TaskInfo) -> list[str]:
    metric = task_metric(results, task.name)
    unit = f", {metric.unit}" if metric.unit else ""
    title = one_line(f"{task.label}: {metric.label}{unit} ({metric.better} is better)")
    cost = _clip(UNITS.get(results.cost, results.cost), 10)
    head = f"  {'arm':<46} {'role':<9} {'mean':>10}  {'95 % interval':<24} {'n':>3} {'failed':>6}  {cost:>10}"
    rows = [_arm_line(item) for item in arm_summaries(results, task.name)]
    return [_clip(title, WIDTH), head, *rows, *_other_lines(results, task, metric.name), ""] if rows else []


def _other_lines(results: Results, task: TaskInfo, ranked: str) -> list[str]:
    """Return the arms' means in every other metric that a claim was judged by on data of the user's own."""
    judged = {verdict.claim.metric for verdict in results.verdicts if verdict.task == task.name} - {ranked}
    arms = arm_summaries(results, task.name) if task.name == USER_TASK else []
    lines: list[str] = []
    for metric in results.metrics if arms else ():
        if metric.name in judged:
            means = [f"{item.arm.name} {number(item.others[metric.name])}" for item in arms]
            said = one_line(f"{metric.label} ({metric.better} is better): {', '.join(means)}")
            lines += textwrap.wrap(said, WIDTH, initial_indent="  ", subsequent_indent=" " * 4)[:6]
    return lines


def _arm_line(item: ArmSummary) -> str:
    estimate = number(item.interval.estimate if item.interval else None)
    interval = interval_text(item.interval)
    label = _clip(one_line(item.arm.label), 46)
    return (
        f"  {label:<46} {item.arm.role:<9} {estimate:>10}  {interval:<24} {item.n:>3} {item.failed:>6}"
        f"  {number(item.cost):>10}"
    )


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
