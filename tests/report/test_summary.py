import math

import pytest
from builders import gdro_plan, hostile, nfi_plan, no_rows, unfinished, weighing
from hypothesis import given
from hypothesis import strategies as st

from steelyard.bench.results import Outcome
from steelyard.bench.stats import Interval
from steelyard.report.summary import (
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
    seed_figures,
    signed,
    task_metric,
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (1.0, "1.00"),
        (-0.01234, "−0.0123"),
        (123456, "123456"),
        (1.5e9, "1.50e+09"),
        (2e-7, "2.00e−07"),
    ],
)
def test_number(value, said):
    assert number(value) == said


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_number_keeps_its_value_to_three_digits(value):
    assert float(number(value).replace("−", "-")) == pytest.approx(value, rel=6e-3, abs=1e-320)


def test_signed_and_finite():
    assert signed(0.5) == "+0.500"
    assert signed(-0.5) == "−0.500"
    assert finite(True) is None
    assert finite("1") is None
    assert finite(math.inf) is None


def test_a_failed_cell_counts_as_the_declared_worst_value(small):
    item = next(item for item in arm_summaries(small, "digits10") if item.arm.name == "sagawa")
    done = [
        row.metrics["gap"] for row in small.rows if (row.task, row.arm, row.state) == ("digits10", "sagawa", "done")
    ]
    assert item.failed == 2
    assert item.n == 10
    assert item.interval.estimate == pytest.approx((sum(done) + 2 * 0.35) / 10)


def test_nan_metrics_count_as_failed():
    results = hostile()
    items = arm_summaries(results, results.tasks[0].name)
    assert all(item.failed >= 1 and math.isfinite(item.interval.estimate) for item in items)


def test_arms_are_sorted_in_the_metric_s_direction(small):
    means = [item.interval.estimate for item in arm_summaries(small, "digits10")]
    assert means == sorted(means)


def test_iqm_needs_two_tasks_and_every_task(small):
    assert iqm_table(weighing(gdro_plan(1))) == []
    table = iqm_table(small)
    assert {arm.name for arm, _, _ in table} == {arm.name for arm in small.arms}
    assert all(interval.low <= interval.estimate <= interval.high and runs == 20 for _, interval, runs in table)
    without = small.model_copy(update={"rows": tuple(r for r in small.rows if (r.task, r.arm) != ("digits10", "erm"))})
    assert "erm" not in {arm.name for arm, _, _ in iqm_table(without)}


def test_progress_counts_states_and_names_running_cells():
    state = progress(unfinished())
    assert state["total"] == 180
    assert state["done"] + state["running"] + state["waiting"] == 180
    assert state["running"] == len(state["cells"]) > 0
    assert sum(arm["total"] for arm in state["arms"]) == 180
    assert progress(no_rows())["total"] == 0


def test_figures_are_shown_before_the_offset_as_ratios(small):
    verdict = next(v for v in small.verdicts if v.claim.id == "oracle")
    estimate, _, bar = before_offset(verdict)
    assert bar == "0.909"
    assert float(estimate) == pytest.approx(math.exp(verdict.estimate + verdict.claim.offset), rel=0.01)
    assert "bar 0.909" in reading(verdict)


def test_what_rounding_leaves_of_a_zero_is_zero(small):
    verdict = next(v for v in small.verdicts if v.estimate is not None)
    claim = verdict.claim.model_copy(update={"versus": 2.5, "offset": 0.0, "scale": "difference"})
    zero = verdict.model_copy(update={"claim": claim, "estimate": -5.6e-17, "low": -0.115, "high": 0.115})
    assert before_offset(zero)[:2] == ("0", "[−0.115, +0.115]")


def test_against_a_constant_the_metric_itself_is_shown(small):
    verdict = next(v for v in small.verdicts if v.estimate is not None)
    below = verdict.claim.model_copy(
        update={"versus": 2.5, "offset": 0.0, "margin": 0.0, "scale": "difference", "direction": "lower"}
    )
    shown = verdict.model_copy(update={"claim": below, "estimate": 2.0, "low": 1.0, "high": 3.0})
    assert reading(shown).startswith("0.500 [−0.500, 1.50], must be below 2.50, ")
    ratio = shown.model_copy(update={"claim": below.model_copy(update={"scale": "log_ratio"})})
    assert reading(ratio).startswith(f"{2.5 * math.exp(-2):.3f} [")


def test_an_interval_without_ends_is_a_dash(small):
    verdict = next(v for v in small.verdicts if v.estimate is not None)
    for low, high in ((None, None), (-math.inf, math.inf)):  # as a store and as this process has it
        one = verdict.model_copy(update={"low": low, "high": high, "differences": (0.1,), "note": ""})
        assert before_offset(one)[1] == "–"
        assert "∞" not in reading(one)
        assert " –, bar " in reading(one)
        assert "1 seed" in reading(one)
        constant = one.model_copy(update={"claim": one.claim.model_copy(update={"versus": 2.5})})
        assert "∞" not in reading(constant)
    assert interval_text(Interval(0.1, -math.inf, math.inf)) == "–"
    assert interval_text(None) == "–"


def test_reading_says_why_a_claim_is_open():
    results = weighing(gdro_plan(3))
    failed = next(v for v in results.verdicts if v.claim.id == "anytime" and v.task == "adult6")
    assert failed.outcome is Outcome.INCONCLUSIVE
    assert reading(failed) == "4 of 20 cells failed"
    huge = failed.model_copy(update={"estimate": 800.0, "low": None, "high": math.inf})
    assert "∞" in reading(huge)


def test_outcomes_are_counted_in_a_fixed_order():
    counts = count_outcomes(weighing(nfi_plan(2)).verdicts)
    assert [outcome for outcome, _ in counts] == [o for o in Outcome if o in dict(counts)]


def other_question():
    """A weighing whose second task records a metric of its own, and one arm of the first task another still."""
    results = weighing(gdro_plan(3))
    rows = []
    for row in results.rows:
        if row.state == "done" and (row.task == "synthetic20" or (row.task, row.arm) == ("digits10", "erm")):
            row = row.model_copy(update={"metrics": {"test_accuracy": row.metrics["test_accuracy"]}})
        rows.append(row)
    return results.model_copy(update={"rows": tuple(rows)})


def test_a_task_without_the_primary_metric_is_ranked_by_its_own():
    results = other_question()
    assert task_metric(results, "digits10").name == "gap"
    assert task_metric(results, "synthetic20").name == "test_accuracy"
    means = [item.interval.estimate for item in arm_summaries(results, "synthetic20")]
    assert means == sorted(means, reverse=True)
    assert {runs for _, _, runs in iqm_table(results)} == {20}


def test_an_arm_that_measures_something_else_has_not_failed():
    item = next(item for item in arm_summaries(other_question(), "digits10") if item.arm.name == "erm")
    assert (item.interval, item.n, item.failed) == (None, 0, 0)
    assert item.others["test_accuracy"] is not None


def test_seeds_and_detectable_effects_are_shown_like_the_estimate(small):
    ratio = next(v for v in small.verdicts if v.claim.id == "oracle")
    assert float(seed_figures(ratio)[0]) == pytest.approx(math.exp(ratio.differences[0] + ratio.claim.offset), rel=0.01)
    assert detectable(ratio).startswith("factor 1.")
    plain = ratio.model_copy(update={"claim": ratio.claim.model_copy(update={"scale": "difference"})})
    assert seed_figures(plain)[0][0] in "+−"
    assert "factor" not in detectable(plain)
