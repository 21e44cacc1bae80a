"""The gain of a choice against its definition, its normal approximation against quadrature, its law against data."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate, stats

from steelyard.errors import InputError
from steelyard.quant.po2.theory import breakeven_gain, clark_min, expected_gain, gain_law

errors = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[arrays(np.float64, n, elements=st.floats(0, 1e6, allow_subnormal=False))] * 2)
)
finite = st.floats(-50, 50)
spreads = st.floats(0.01, 20)


@given(errors)
def test_expected_gain_is_its_definition_and_the_identity(pair):
    e0, e1 = pair
    gain, size = expected_gain(e0, e1), max(e0.max(), e1.max(), 1e-300)
    difference = e0 - e1
    assert gain == pytest.approx(min(e0.mean(), e1.mean()) - np.minimum(e0, e1).mean(), abs=1e-13 * size)
    assert gain == pytest.approx((np.abs(difference).mean() - abs(difference.mean())) / 2, abs=1e-13 * size)
    assert gain == pytest.approx(expected_gain(e1, e0), abs=1e-13 * size)


@given(errors)
def test_expected_gain_lies_between_zero_and_half_the_deviation(pair):
    assert 0 <= expected_gain(*pair) <= (pair[0] - pair[1]).std() / 2 * (1 + 1e-9) + 1e-9


def test_expected_gain_by_hand():
    assert expected_gain([1.0, 2.0, 3.0], [2.0, 2.0, 1.0]) == pytest.approx(1 / 3)
    assert expected_gain([[1.0], [2.0]], [[3.0], [4.0]]) == 0.0  # one grid is always better: nothing to choose
    assert expected_gain([1.0 + 1e-12, 1.0], [1.0, 1.0 + 1e-12]) == pytest.approx(5e-13, rel=1e-3)


@given(finite, finite, spreads)
def test_clark_min_is_the_expectation_of_a_minimum(m0, m1, theta):
    # E min(X, Y) = m1 + E min(D, 0) with D = X - Y normal
    mean = m0 - m1
    below, _ = integrate.quad(
        lambda d: d * stats.norm.pdf(d, mean, theta), mean - 40 * theta, 0.0, points=[mean], limit=200
    ) if mean - 40 * theta < 0 else (0.0, 0.0)  # fmt: skip
    assert clark_min(m0, m1, theta) == pytest.approx(m1 + below, abs=1e-6 * (1 + abs(m0) + abs(m1)))


@given(finite, finite, spreads)
def test_clark_min_is_symmetric_and_below_both_means(m0, m1, theta):
    value = clark_min(m0, m1, theta)
    assert value <= min(m0, m1)
    assert value == pytest.approx(clark_min(m1, m0, theta), abs=1e-12)
    assert clark_min(m0, m1, 2 * theta) <= value + 1e-12  # more spread, more to choose from


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0, 3.0, 8.0, 20.0, 35.0])
def test_the_far_tail_keeps_its_digits(a):
    with mpmath.workdps(60):
        exact = mpmath.npdf(a) - a * mpmath.erfc(a / mpmath.sqrt(2)) / 2
        assert gain_law(1, 1.0, a) == pytest.approx(float(exact), rel=1e-10)
        assert clark_min(0.0, a, 1.0) == pytest.approx(-float(exact), rel=1e-10)


def test_clark_min_of_sure_things_and_of_draws():
    assert clark_min(1.0, 2.0, 0.0) == 1.0
    assert clark_min(0.0, 0.0, 1.0) == pytest.approx(-1 / math.sqrt(2 * math.pi))
    rng = np.random.default_rng(0)
    x = rng.normal([0.3, 0.5], [0.4, 0.2], (200_000, 2))
    predicted = clark_min(0.3, 0.5, math.hypot(0.4, 0.2))
    assert np.minimum(*x.T).mean() == pytest.approx(predicted, abs=4 * 0.4 / math.sqrt(200_000))
    assert clark_min([0.0, 1.0], 0.0, [[1.0], [0.0]]).shape == (2, 2)


def test_gain_law_ties_and_ends():
    g = np.array([8, 16, 32, 64, 128, 256])
    tied = gain_law(g, 2.0)
    assert tied * np.sqrt(g) == pytest.approx(np.full(6, 2 / math.sqrt(2 * math.pi)))
    assert isinstance(gain_law(8, 1.0), float)
    # With a mean the logarithm falls by mean^2 / (2 sd^2) an element, up to a power of g.
    g = np.array([2000.0, 4000.0])
    slope = np.diff(np.log(gain_law(g, 1.0, 0.3)) + 1.5 * np.log(g))[0] / 2000
    assert slope == pytest.approx(-0.045, rel=0.01)
    assert gain_law(10**9, 1.0, 1.0) == 0.0


@given(st.integers(1, 10_000), st.floats(0.01, 10), st.floats(0.001, 10))
def test_choice_between_groups_of_gaussian_terms_follows_the_law(g, sd, mean):
    assert 0 <= gain_law(g, sd, mean) <= gain_law(g, sd) * (1 + 1e-12)
    assert gain_law(g, sd, mean) == gain_law(g, sd, -mean)
    assert gain_law(g, sd, mean) == pytest.approx(mean - clark_min(mean, 2 * mean, sd / math.sqrt(g)), abs=1e-9)


def test_the_law_on_measured_groups():
    rng = np.random.default_rng(1)
    for g in (32, 64, 256):
        d = rng.exponential(size=(40_000, g)).mean(axis=1) - 1.0  # terms of mean 0 and deviation 1, skewed
        measured = expected_gain(np.maximum(d, 0), np.maximum(-d, 0))
        assert measured == pytest.approx(gain_law(g, 1.0), rel=0.03)


@given(st.floats(1, 1e9))
def test_breakeven_gain_is_the_closed_form(g):
    with mpmath.workdps(40):
        exact = 1 - mpmath.power(2, -2 / mpmath.mpf(g))
        assert breakeven_gain(g) == pytest.approx(float(exact), rel=1e-14)


def test_breakeven_gain_of_known_groups():
    assert breakeven_gain(1) == pytest.approx(0.75)  # a whole bit an element quarters the error
    assert breakeven_gain([64, 128, 256]) == pytest.approx([0.021428, 0.010772, 0.0054006], rel=1e-4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: expected_gain([], []), "e0"),
        (lambda: expected_gain([1.0], [1.0, 2.0]), "shapes"),
        (lambda: expected_gain([1.0], [float("nan")]), "e1"),
        (lambda: expected_gain([-1.0], [1.0]), "e0"),
        (lambda: expected_gain("many", [1.0]), "e0"),
        (lambda: expected_gain([1.0], [[1.0], [1.0, 2.0]]), "e1"),
        (lambda: clark_min(0.0, 0.0, -1.0), "theta"),
        (lambda: clark_min(float("inf"), 0.0, 1.0), "m0"),
        (lambda: clark_min(0.0, float("nan"), 1.0), "m1"),
        (lambda: gain_law(0, 1.0), "group_size"),
        (lambda: gain_law(16, -1.0), "sd"),
        (lambda: gain_law(16, 1.0, float("nan")), "mean"),
        (lambda: breakeven_gain(0.5), "group_size"),
        (lambda: breakeven_gain(float("nan")), "group_size"),
    ],
)
def test_bad_input_names_the_argument(call, named):
    with pytest.raises(InputError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value)
