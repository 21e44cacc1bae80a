import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steelyard.bench import Outcome, Row, verdict
from steelyard.bench.verdicts import judge, wanted_of_metric
from steelyard.card import Claim
from steelyard.contracts import Metric
from steelyard.errors import InputError

ACCURACY = Metric(name="accuracy", label="accuracy", better="higher", worst=0.1)
COST = Metric(name="cost", label="cost", better="lower")


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (-0.4, 0.5, 0.5, Outcome.NO_DIFFERENCE),
        (0.1, 0.4, 0.5, Outcome.NO_DIFFERENCE),  # inside the margin comes before direction
        (-0.4, -0.1, 0.5, Outcome.NO_DIFFERENCE),
        (0.6, 2.0, 0.5, Outcome.BORNE_OUT),
        (0.5, 2.0, 0.5, Outcome.DIRECTION_ONLY),
        (0.1, 2.0, 0.5, Outcome.DIRECTION_ONLY),
        (0.1, 2.0, 0.0, Outcome.BORNE_OUT),
        (-2.0, -0.1, 0.0, Outcome.REVERSED),
        (-2.0, -0.1, 0.5, Outcome.REVERSED),
        (-0.1, 2.0, 0.5, Outcome.INCONCLUSIVE),
        (0.0, 2.0, 0.0, Outcome.INCONCLUSIVE),
        (0.0, 0.0, 0.0, Outcome.INCONCLUSIVE),
        (-math.inf, math.inf, 1.0, Outcome.INCONCLUSIVE),
    ],
)
def test_the_rule(low, high, margin, expected):
    assert verdict(low, high, margin) is expected


def test_the_rule_refuses_what_is_no_interval():
    for low, high, margin in ((1.0, 0.0, 0.0), (math.nan, 1.0, 0.0), (0.0, 1.0, -1.0), (0.0, 1.0, math.nan)):
        with pytest.raises(InputError):
            verdict(low, high, margin)


def rows(arm, values, metric="accuracy", task="digits", failed=()):
    return [
        Row(
            key=f"{arm}{task}{seed}",
            task=task,
            arm=arm,
            seed=seed,
            state="failed" if seed in failed else "done",
            metrics={} if seed in failed else {metric: value},
        )
        for seed, value in enumerate(values)
    ]


def claim(**changes):
    values = {
        "id": "c",
        "text": "ours is better",
        "metric": "accuracy",
        "arm": "ours",
        "versus": "theirs",
        "direction": "higher",
    }
    return Claim(**{**values, **changes})


def judged(claims, all_rows, metrics=(ACCURACY, COST), few=frozenset()):
    return judge([claims] if isinstance(claims, Claim) else claims, all_rows, metrics, few)


OURS, THEIRS = [0.9, 0.92, 0.88, 0.91, 0.9, 0.93], [0.8, 0.83, 0.8, 0.8, 0.81, 0.82]


def test_pairs_by_seed_whatever_the_order_of_rows():
    straight = judged(claim(), rows("ours", OURS) + rows("theirs", THEIRS))
    shuffled = judged(claim(), rows("theirs", THEIRS)[::-1] + rows("ours", OURS))
    assert straight == shuffled
    assert straight[0].outcome is Outcome.BORNE_OUT
    assert straight[0].differences == pytest.approx([a - b for a, b in zip(OURS, THEIRS, strict=True)])


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=8), st.floats(0, 2))
def test_the_mirrored_claim_gets_the_mirrored_verdict(values, margin):
    assume(max(values) - min(values) > 1e-6)
    mirror = {
        Outcome.REVERSED: {Outcome.BORNE_OUT, Outcome.DIRECTION_ONLY},
        Outcome.NO_DIFFERENCE: {Outcome.NO_DIFFERENCE},
    }
    zeros = [0.0] * len(values)
    one = judged(claim(margin=margin), rows("ours", values) + rows("theirs", zeros))[0]
    other = judged(claim(margin=margin, direction="lower"), rows("ours", values) + rows("theirs", zeros))[0]
    same = judged(claim(margin=margin), rows("ours", zeros) + rows("theirs", values))[0]
    assert other.outcome is same.outcome
    assert (other.low, other.high) == (same.low, same.high)
    if one.outcome in mirror:
        assert other.outcome in mirror[one.outcome]


def test_offset_margin_and_constant():
    constant = claim(versus=0.85, direction="higher")
    assert judged(constant, rows("ours", OURS))[0].outcome is Outcome.BORNE_OUT
    near = claim(offset=-0.2)  # not worse by more than .2
    assert judged(near, rows("ours", THEIRS) + rows("theirs", OURS))[0].outcome is Outcome.BORNE_OUT
    assert judged(claim(), rows("ours", THEIRS) + rows("theirs", OURS))[0].outcome is Outcome.REVERSED
    assert judged(claim(margin=0.5), rows("ours", OURS) + rows("theirs", THEIRS))[0].outcome is Outcome.NO_DIFFERENCE
    assert judged(claim(offset=0.05, margin=0.06), rows("ours", OURS) + rows("theirs", THEIRS))[0].outcome in (
        Outcome.DIRECTION_ONLY,
        Outcome.NO_DIFFERENCE,
    )


def test_log_ratio_claims_read_the_ratio():
    cheap, dear = [1.0, 1.1, 0.9, 1.0, 1.05, 1.0], [2.0, 2.1, 1.9, 2.2, 2.0, 1.95]
    both = rows("ours", cheap, "cost") + rows("theirs", dear, "cost")
    ratio = claim(metric="cost", direction="lower", scale="log_ratio")
    assert judged(ratio.model_copy(update={"offset": math.log(1.5)}), both)[0].outcome is Outcome.BORNE_OUT
    assert judged(ratio.model_copy(update={"offset": math.log(3.0)}), both)[0].outcome is Outcome.REVERSED
    found = judged(ratio, both)[0]
    assert math.exp(found.estimate) == pytest.approx(2.02, abs=0.05)
    assert "ratio 2.0" in found.sentence
    broken = judged(ratio, rows("ours", [0.0, *cheap[1:]], "cost") + rows("theirs", dear, "cost"))[0]
    assert broken.outcome is Outcome.INCONCLUSIVE
    assert "logarithm" in broken.note


def test_a_failed_cell_counts_as_the_worst_and_many_make_it_inconclusive():
    many = [0.9 + 0.001 * i for i in range(12)]
    base = [0.8] * 12
    one = judged(claim(), rows("ours", many, failed={3}) + rows("theirs", base))[0]
    assert one.differences[3] == pytest.approx(0.1 - 0.8)
    assert (one.failed_cells, one.cells) == (1, 24)
    three = judged(claim(), rows("ours", many, failed={3, 4, 5}) + rows("theirs", base))[0]
    assert three.outcome is Outcome.INCONCLUSIVE
    assert "3 of 24 cells failed" in three.sentence
    assert three.estimate is None


def test_a_seed_that_a_derived_arm_lacks_counts_as_failed():
    theirs = [row.model_copy(update={"key": ""}) for row in rows("oracle", THEIRS) if row.seed > 1]
    found = judged(claim(versus="oracle"), rows("ours", OURS) + theirs)[0]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.note == "2 of 12 cells failed"
    many = [0.9 + 0.001 * i for i in range(12)]
    one = judged(claim(versus="oracle"), rows("ours", many) + rows("oracle", [0.8] * 11))[0]
    assert (one.outcome, one.failed_cells, one.cells, len(one.differences)) == (Outcome.BORNE_OUT, 1, 24, 11)


def test_a_constant_is_named_beside_the_figures():
    found = judged(claim(versus=0.85), rows("ours", OURS))[0]
    assert "0.907 [0.888, 0.925], must be above 0.85, 6 seeds" in found.sentence
    below = judged(claim(versus=2.0, direction="lower", scale="log_ratio"), rows("ours", OURS))[0]
    assert "0.907 [0.888, 0.925], must be below 2, 6 seeds" in below.sentence


def test_without_a_declared_worst_value_the_worst_seen_is_taken():
    lost = judged(
        claim(metric="cost", direction="lower"),
        rows("ours", [1.0] * 12, "cost", failed={0}) + rows("theirs", [2.0] * 11 + [7.0], "cost"),
    )[0]
    assert lost.differences[0] == 2.0 - 7.0


def test_a_failed_cell_never_speaks_for_a_claim_that_its_arm_is_worse():
    lost = judged(
        claim(direction="lower", versus=0.5), rows("ours", [0.2, 0.3] + [0.25] * 10, failed={0}) + rows("x", [0.9] * 12)
    )[0]
    assert lost.differences[0] == pytest.approx(0.5 - 0.9)  # the worst accuracy, 0.1, would have been for the claim


def test_all_equal_is_said_and_all_zero_is_inconclusive():
    same = judged(claim(), rows("ours", [0.5] * 6) + rows("theirs", [0.5] * 6))[0]
    assert same.outcome is Outcome.INCONCLUSIVE
    assert "one point" in same.note
    assert same.seeds_needed is None
    apart = judged(claim(), rows("ours", [1.0] * 6) + rows("theirs", [0.5] * 6))[0]
    assert apart.outcome is Outcome.BORNE_OUT
    assert "one point" in apart.sentence


def test_inconclusive_says_how_many_seeds_and_equivalence_that_it_is_wished_for():
    open_ = judged(claim(), rows("ours", [0.5, 0.9, 0.4, 0.8, 0.45, 0.8]) + rows("theirs", [0.6] * 6))[0]
    assert open_.outcome is Outcome.INCONCLUSIVE
    assert f"about {open_.seeds_needed} seeds needed" in open_.sentence
    assert open_.seeds_needed > 6
    equal = judged(claim(kind="equivalence", margin=0.5), rows("ours", OURS) + rows("theirs", THEIRS))[0]
    assert equal.outcome is Outcome.NO_DIFFERENCE
    assert "asks for" in equal.note


def test_a_forecast_of_thousands_of_seeds_is_no_number():
    values = [0.5 + side * 0.3 + 0.01 for side in (1, -1, 1, -1, 1, -1)]
    open_ = judged(claim(), rows("ours", values) + rows("theirs", [0.5] * 6))[0]
    assert open_.seeds_needed > 1000
    assert open_.sentence.startswith("inconclusive (more than 1,000 seeds needed): ")


def test_a_single_seed_has_no_interval():
    for changes in ({}, {"scale": "log_ratio"}, {"versus": 0.3}):
        one = judged(claim(**changes), rows("ours", [0.5]) + rows("theirs", [0.4]))[0]
        assert "inf" not in one.sentence
        assert " –, " in one.sentence
        assert one.sentence.endswith("1 seed]")


def test_reversed_says_when_the_arm_is_ahead_but_short_of_the_bar():
    ours = [0.6, 0.61, 0.59, 0.6, 0.62, 0.58]
    both = rows("ours", ours) + rows("theirs", [0.5] * 6)
    short = judged(claim(offset=0.2, margin=0.05), both)[0]
    assert short.outcome is Outcome.REVERSED
    assert short.note == "ahead, but short of the bar by 0.15"
    assert short.note in short.sentence
    ratio = judged(claim(offset=math.log(1.8), scale="log_ratio"), both)[0]
    assert ratio.outcome is Outcome.REVERSED
    assert re.fullmatch(r"ahead, but short of the bar by a factor of 1\.50?1?", ratio.note)
    behind = judged(claim(offset=0.2), rows("ours", [value - 0.3 for value in ours]) + rows("theirs", [0.5] * 6))[0]
    assert (behind.outcome, behind.note) == (Outcome.REVERSED, "")


def test_on_own_data_a_claim_about_the_benchs_tasks_is_said_to_be_that():
    both = rows("ours", OURS, task="user") + rows("theirs", THEIRS, task="user")
    named = claim(tasks=("digits",))
    told = judge([named], both, [ACCURACY, COST], frozenset(), own_data=True)[0]
    assert told.note == "this claim is about the bench's own tasks"
    absent = judge([claim(versus="absent")], both, [ACCURACY, COST], frozenset(), own_data=True)[0]
    assert absent.note == "its arms are not run on your own data, or --arms leaves them out"
    assert "--full" in judge([named], both, [ACCURACY, COST], frozenset())[0].note


def test_an_equivalence_claim_that_is_false_is_reversed_and_never_borne_out():
    false = claim(kind="equivalence", margin=0.01)
    both = rows("ours", OURS) + rows("theirs", THEIRS)
    assert judged(false, both)[0].outcome is Outcome.REVERSED
    assert judged(false.model_copy(update={"direction": "lower"}), both)[0].outcome is Outcome.REVERSED
    open_ = judged(claim(kind="equivalence", margin=0.1), both)[0]
    assert open_.outcome is Outcome.INCONCLUSIVE


def test_one_verdict_per_task_and_none_for_few_seeds_or_absent_arms():
    two = rows("ours", OURS) + rows("theirs", THEIRS) + rows("ours", THEIRS, task="b") + rows("theirs", OURS, task="b")
    assert [(v.task, v.outcome) for v in judged(claim(), two)] == [
        ("digits", Outcome.BORNE_OUT),
        ("b", Outcome.REVERSED),
    ]
    assert [v.task for v in judged(claim(tasks=("b",)), two)] == ["b"]
    assert [v.task for v in judged(claim(), two, few={("b", "ours")})] == ["digits"]
    for missing in (claim(arm="nobody"), claim(paper_scale_only=True), claim(tasks=("c",))):
        found = judged(missing, two)
        assert [v.outcome for v in found] == [Outcome.NOT_TESTABLE]
        assert found[0].p is None
    with pytest.raises(InputError, match="unknown metric"):
        judged(claim(metric="nothing"), two)


def test_holm_is_shown_beside_and_does_not_change_the_verdict():
    both = rows("ours", OURS) + rows("theirs", THEIRS)
    found = judged([claim(id="a"), claim(id="b", direction="lower"), claim(id="c", paper_scale_only=True)], both)
    assert [v.p for v in found[:2]] == [2 / 64, 2 / 64]
    assert [v.p_holm for v in found[:2]] == [4 / 64, 4 / 64]
    assert found[2].p_holm is None
    assert found[0].outcome is Outcome.BORNE_OUT


def test_an_equivalence_claim_needs_a_margin():
    with pytest.raises(ValueError, match="margin"):
        claim(kind="equivalence")


def test_an_equivalence_with_a_constant_names_both_ends():
    claim = Claim(
        id="c",
        text="t",
        metric="m",
        arm="a",
        versus=-0.5,
        direction="lower",
        margin=0.15,
        kind="equivalence",
        paper="p",
    )
    assert wanted_of_metric(claim, "{:.2f}".format) == "must be within -0.65 and -0.35"
