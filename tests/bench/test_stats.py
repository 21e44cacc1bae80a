import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from steelyard.bench import (
    Outcome,
    clustered_bootstrap,
    detectable_effect,
    holm,
    iqm,
    iqm_interval,
    mcnemar_p,
    paired_interval,
    seeds_needed,
    sign_flip_p,
    verdict,
)
from steelyard.errors import InputError

numbers = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=12)


def test_interval_equals_scipys():
    values = [0.3, -0.1, 0.8, 0.4, 0.05, 0.6]
    found = paired_interval(values, 0.9)
    low, high = reference.ttest_1samp(values, 0).confidence_interval(0.9)
    assert found.estimate == pytest.approx(np.mean(values), rel=1e-14)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


def test_interval_of_one_pair_is_the_whole_line_and_of_equal_ones_a_point():
    assert paired_interval([2.0]) == (2.0, -math.inf, math.inf)
    assert paired_interval([0.1] * 7) == (0.1, 0.1, 0.1)


@given(numbers, st.floats(-100, 100))
def test_interval_moves_with_the_data_and_flips_with_their_sign(values, shift):
    low, high = paired_interval(values)[1:]
    flipped = paired_interval([-v for v in values])
    moved = paired_interval([v + shift for v in values])
    scale = max(1.0, *(abs(v) for v in values))
    assert (-flipped.high, -flipped.low) == pytest.approx((low, high), abs=1e-9 * scale)
    assert (moved.low - shift, moved.high - shift) == pytest.approx((low, high), abs=1e-8 * scale)


def test_sign_flip_closed_forms():
    assert sign_flip_p([1.0] * 6) == 2 / 2**6  # only all plus and all minus are as far out
    assert sign_flip_p([0.0] * 5) == 1.0
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, 2.0, 1.0]) == 2 / 8
    assert sign_flip_p([3.0, 2.0, -1.0]) == 4 / 8  # sums 6 and 4, and their mirror images


def test_sign_flip_agrees_with_scipys_permutation_test():
    values = np.array([0.9, -0.2, 0.4, 0.7, -0.1, 0.3, 0.5])
    expected = reference.permutation_test(
        (values,), lambda x, axis: x.sum(axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    assert sign_flip_p(values) == pytest.approx(expected, abs=1e-12)


def test_sign_flip_by_drawing_agrees_with_the_exact_value_and_is_never_zero():
    rng = np.random.default_rng(3)
    values = rng.normal(0.3, 1.0, size=16)
    exact = sign_flip_p(values)
    drawn = sign_flip_p(np.concatenate([values, [0.0]]))  # a zero leaves the exact p as it is, and forces drawing
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))
    assert sign_flip_p(np.full(40, 1.0), draws=999) == 1 / 1000


@given(numbers)
def test_sign_flip_ignores_sign_and_order(values):
    p = sign_flip_p(values)
    assert p == sign_flip_p([-v for v in values])
    assert p == pytest.approx(sign_flip_p(values[::-1]), abs=1e-12)
    assert 2 / 2 ** len(values) <= p + 1e-12 <= 1 + 1e-11


def test_holm_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_between_raw_and_bonferroni_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    for raw, found in zip(p_values, adjusted, strict=True):
        assert raw <= found <= min(1.0, raw * len(p_values)) + 1e-12
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.asarray(adjusted)[order]) >= 0).all()


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx(np.mean([2, 3, 4, 5]))
    assert iqm([[1.0, 2.0], [3.0, 400.0]]) == pytest.approx(2.5)


def test_iqm_interval_holds_the_estimate_and_shrinks_with_runs():
    rng = np.random.default_rng(0)
    few, many = (iqm_interval(rng.normal(size=(runs, 3))) for runs in (5, 500))
    assert few.low <= few.estimate <= few.high
    assert many.high - many.low < (few.high - few.low) / 4
    assert iqm_interval(np.ones((4, 2))) == (1.0, 1.0, 1.0)


def test_detectable_effect_has_the_power_it_promises():
    rng = np.random.default_rng(5)
    sample = rng.normal(size=8)
    sample = (sample - sample.mean()) / sample.std(ddof=1)
    effect = detectable_effect(sample)
    draws = rng.normal(effect, 1.0, size=(20_000, 8))
    half = reference.t.ppf(0.975, 7) * draws.std(axis=1, ddof=1) / math.sqrt(8)
    assert np.mean(draws.mean(axis=1) > half) == pytest.approx(0.8, abs=0.012)
    assert detectable_effect([1.0, 1.0, 1.0]) == 0.0
    assert detectable_effect([1.0]) == math.inf


def test_seeds_needed_is_the_first_number_that_settles():
    values = [0.5, -0.4, 0.9, -0.2, 0.3, 0.1]
    needed = seeds_needed(values)
    mean, spread = np.mean(values), np.std(values, ddof=1)

    def half(n):
        return reference.t.ppf(0.975, n - 1) * spread / math.sqrt(n)

    assert half(needed) < mean <= half(needed - 1)


def test_seeds_needed_counts_towards_no_difference_when_that_is_nearer():
    values = [0.05, -0.3, 0.4, -0.1, 0.0, 0.1]
    assert seeds_needed(values, margin=1.0) < 50
    assert seeds_needed(values) > 300
    assert seeds_needed([1.0, -1.0]) is None  # a mean of zero is never told from zero
    assert seeds_needed([1e-9, 1.0, -1.0, 0.5, -0.5]) is None


def test_mcnemar_equals_the_binomial_of_the_discordant_pairs():
    first = [True] * 9 + [False] * 2 + [True] * 20
    second = [False] * 9 + [True] * 2 + [True] * 20
    assert mcnemar_p(first, second) == pytest.approx(reference.binomtest(9, 11).pvalue)
    assert mcnemar_p([True, False], [True, False]) == 1.0


def test_clusters_widen_the_interval_when_their_items_agree():
    rng = np.random.default_rng(1)
    per_cluster = rng.normal(size=20)
    values, clusters = np.repeat(per_cluster, 10), np.repeat(np.arange(20), 10)
    clustered = clustered_bootstrap(values, clusters)
    single = clustered_bootstrap(values, np.arange(200))
    assert clustered.estimate == single.estimate == pytest.approx(per_cluster.mean())
    assert clustered.high - clustered.low > 2 * (single.high - single.low)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: paired_interval([]), "differences"),
        (lambda: paired_interval([1.0, float("nan")]), "index 1"),
        (lambda: paired_interval([1.0, 2.0], level=95), "level"),
        (lambda: holm([0.5, 1.5]), "p_values"),
        (lambda: iqm([]), "scores"),
        (lambda: iqm_interval([1.0, 2.0]), "(runs, tasks)"),
        (lambda: seeds_needed([1.0]), "at least 2"),
        (lambda: mcnemar_p([True], [True, False]), "paired"),
        (lambda: clustered_bootstrap([1.0, 2.0], [0]), "clusters"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError) as caught:
        call()
    assert named in str(caught.value)


@pytest.mark.parametrize("pairs", [6, 8, 10])
def test_coverage_and_false_verdicts_over_two_thousand_nulls(pairs):
    """The self-test of the engine: intervals cover 93-97 %, false *borne out* stays at its 2.5 %."""
    rng = np.random.default_rng(100 + pairs)
    draws = rng.normal(size=(2000, pairs))
    intervals = [paired_interval(row) for row in draws]
    coverage = np.mean([low <= 0 <= high for _, low, high in intervals])
    assert 0.93 <= coverage <= 0.97
    margin = 0.5
    at_margin = [verdict(low + margin, high + margin, margin) for _, low, high in intervals]
    at_zero = [verdict(low, high, margin) for _, low, high in intervals]
    assert np.mean([outcome is Outcome.BORNE_OUT for outcome in at_margin]) <= 0.036
    assert np.mean([outcome is Outcome.BORNE_OUT for outcome in at_zero]) <= 0.025
    assert np.mean([outcome is Outcome.BORNE_OUT for outcome in at_margin]) >= 0.014  # a rule that never says so fails
