import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.optim import gdro_error_bound, rounds_for_eps

UNIT = {"D": 1.0, "G": 1.0}


@pytest.mark.parametrize(("r", "t", "value"), [(2, 50_000, 0.18092), (10, 10_000, 0.26600), (10, 50_000, 0.11891)])
def test_worked_values(r, t, value):
    assert gdro_error_bound(10, r, t, **UNIT, delta=0.1) == pytest.approx(value, abs=5e-6)


def test_value_at_the_scale_of_the_bench():
    stream = np.random.default_rng(0).integers(1, 19, 3000)
    assert gdro_error_bound(18, stream, D=3.0, G=1.0, delta=0.05) == pytest.approx(1.3, abs=0.03)


def test_sequence_and_number_agree():
    assert gdro_error_bound(6, [3] * 40, **UNIT) == pytest.approx(gdro_error_bound(6, 3, 40, **UNIT), rel=1e-14)


def test_one_group_keeps_the_first_term_only():
    L = math.log(4 / 0.05)
    assert gdro_error_bound(1, 1, 100, D=2.0, G=3.0) == pytest.approx(0.6 * (4.5 + 4 * math.sqrt(2 * L)))
    assert rounds_for_eps(0.5, 1, 1, **UNIT) == math.ceil((4.5 + 4 * math.sqrt(2 * L)) ** 2 / 0.25)


@given(st.integers(2, 50), st.floats(0.02, 3.0), st.floats(0.1, 5.0), st.floats(0.001, 0.5), st.data())
def test_rounds_for_eps_is_the_smallest(m, eps, D, delta, data):
    r = data.draw(st.integers(1, m))
    t = rounds_for_eps(eps, m, r, D=D, G=0.7, delta=delta)
    assert gdro_error_bound(m, r, t, D=D, G=0.7, delta=delta) <= eps
    assert t == 1 or gdro_error_bound(m, r, t - 1, D=D, G=0.7, delta=delta) > eps


@given(st.integers(2, 40), st.integers(1, 10**6), st.data())
def test_bound_falls_with_rounds_and_with_queries(m, t, data):
    r = data.draw(st.integers(1, m - 1))
    here = gdro_error_bound(m, r, t, **UNIT)
    assert gdro_error_bound(m, r, t + 1, **UNIT) < here
    assert gdro_error_bound(m, r + 1, t, **UNIT) < here
    assert gdro_error_bound(m, r, t, **UNIT, delta=0.2) < here


def test_q_term_is_equal_at_equal_samples():
    """As D G goes to 0 only the q-terms remain, and those depend on the number of samples alone, up to L/(2t)."""
    tiny = {"D": 1e-9, "G": 1e-9}
    values = [gdro_error_bound(10, r, 10**8 // r, **tiny) * 10**8 / r / math.sqrt(1 / r) for r in (1, 2, 10)]
    assert max(values) / min(values) > 0  # finite
    loads = [gdro_error_bound(10, r, 10**8 // r, **tiny) for r in (1, 2, 10)]
    assert max(loads) / min(loads) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: gdro_error_bound(0, 1, 1, **UNIT), "m must"),
        (lambda: gdro_error_bound(3, 4, 1, **UNIT), "r must"),
        (lambda: gdro_error_bound(3, 1, 0, **UNIT), "t must"),
        (lambda: gdro_error_bound(3, 1, **UNIT), "t is needed"),
        (lambda: gdro_error_bound(3, [1, 4], **UNIT), r"r\[1\]"),
        (lambda: gdro_error_bound(3, [1, 1.5], **UNIT), r"r\[0\]"),
        (lambda: gdro_error_bound(3, [], **UNIT), "empty"),
        (lambda: gdro_error_bound(3, [1, 2], 3, **UNIT), "contradicts"),
        (lambda: gdro_error_bound(3, 1, 5, D=0.0, G=1.0), "D must"),
        (lambda: gdro_error_bound(3, 1, 5, D=1.0, G=math.inf), "G must"),
        (lambda: gdro_error_bound(3, 1, 5, **UNIT, delta=0.0), "delta"),
        (lambda: gdro_error_bound(3, 1, 5, **UNIT, delta=math.nan), "delta"),
        (lambda: rounds_for_eps(0.0, 3, 1, **UNIT), "eps"),
        (lambda: rounds_for_eps(0.1, 3, 4, **UNIT), "r must"),
    ],
)
def test_bad_arguments(call, word):
    with pytest.raises(InputError, match=word):
        call()
