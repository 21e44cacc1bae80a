from builders import gdro_plan, hostile, no_rows, unfinished, weighing

from steelyard.bench.results import Outcome
from steelyard.bench.verdicts import OWN_TASKS
from steelyard.report.text import text_table


def test_lines_fit_120_columns_and_hold_every_verdict(three):
    for results in three:
        lines = text_table(results).splitlines()
        assert max(map(len, lines)) <= 120
        marked = [line for line in lines if line.startswith(("  + ", "  > ", "  = ", "  - ", "  ? ", "  . "))]
        assert len(marked) == len(results.verdicts)
        for arm in results.arms:
            assert sum(arm.label in line for line in lines) >= len(results.tasks)


def test_hostile_text_cannot_repaint_a_terminal():
    text = text_table(hostile())
    assert max(map(len, text.splitlines())) <= 120
    assert all(letter.isprintable() for line in text.splitlines() for letter in line)


def test_unfinished_has_no_verdicts():
    text = text_table(unfinished())
    assert "not finished, so no verdicts yet" in text
    assert "borne out" not in text
    assert "0 of 0 cells" in text_table(no_rows())


def test_data_of_ones_own_show_every_metric_that_was_judged():
    plan = gdro_plan(1)
    plan.claims.append(plan.claims[0].model_copy(update={"id": "accurate", "metric": "test_accuracy"}))
    assert "test accuracy (higher is better)" not in text_table(weighing(plan))
    plan.tasks = {"user": "your rows"}
    text = " ".join(text_table(weighing(plan)).split())
    shown = text.partition("test accuracy (higher is better): ")[2]
    assert [word for word in shown.split() if word in dict.fromkeys(arm[0] for arm in plan.arms)]
    assert "steps to target (" not in text


def test_claims_about_the_benchs_own_tasks_are_told_apart(small):
    first, *rest = [verdict for verdict in small.verdicts if verdict.outcome is not Outcome.NOT_TESTABLE]
    for count, said in (
        (1, "one claim is about the bench's own tasks"),
        (2, "2 claims are about the bench's own tasks"),
    ):
        own = first.model_copy(update={"outcome": Outcome.NOT_TESTABLE, "note": OWN_TASKS})
        left_out = first.model_copy(update={"outcome": Outcome.NOT_TESTABLE, "note": "needs more"})
        text = text_table(small.model_copy(update={"verdicts": (*rest, left_out, *[own] * count)}))
        assert said in text
        assert "one claim needs arms, tasks or a scale" in text
        assert max(map(len, text.splitlines())) <= 120
