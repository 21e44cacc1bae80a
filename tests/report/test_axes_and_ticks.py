import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steelyard.report.axes import (
    _log_places,
    _round_places,
    _symlog_places,
    apart,
    free_places,
    plain,
    ratio_ticks,
    span,
    symlog_threshold,
)

LOW = st.floats(-1e6, 1e6)
WIDTH = st.floats(1e-3, 1e6)


@given(LOW, WIDTH)
def test_round_ticks_are_few_and_inside(low, width):
    places = _round_places(low, low + width)
    assert 1 <= len(places) <= 7
    assert all(low - 1e-6 * width <= place <= low + width * (1 + 1e-6) for place in places)


@given(st.floats(-5, 5), st.floats(0.05, 10))
def test_ratio_ticks_are_inside_and_apart(low, width):
    places, names = ratio_ticks(low, low + width)
    assert all(low <= place <= low + width for place in places)
    assert (np.diff(places) >= 0.129 * width).all()
    assert len(set(names)) == len(names)


@given(st.floats(-20, 20), st.floats(0.1, 30))
def test_log_ticks_are_inside(start, width):
    low, high = math.exp(start), math.exp(start + width)
    places = _log_places(low, high)
    assert 1 <= len(places) <= 7
    assert all(low * 0.999 <= place <= high * 1.001 for place in places)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_span_is_never_empty(values):
    low, high = span(values, 0.1)
    assert low < high
    assert low <= min(values)
    assert max(values) <= high


def test_symlog_only_where_sizes_differ_widely():
    assert symlog_threshold([[1, 2], [3, 4]]) is None
    assert symlog_threshold([[0.0], []]) is None
    assert symlog_threshold([[0.02, 0.03], [5.0, -7.0]]) == pytest.approx(0.01)
    places = _symlog_places(-8.0, 8.0, 0.01)
    assert 0.0 in places
    assert all(-8 <= place <= 8 for place in places)


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 200)), min_size=1, max_size=12))
def test_labels_get_a_place_each(points):
    assume(len(points) > 0)
    places = free_places(np.array(points))
    assert len(places) == len(points)
    assert all(math.hypot(*place) == pytest.approx(10.0) for place in places)


def test_labels_of_close_points_do_not_meet():
    points = np.array([[100.0, 100.0], [104.0, 100.0]])
    ends = points + np.array(free_places(points))
    assert np.hypot(*(ends[0] - ends[1])) > 8


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1000, "1000"),
        (1e-7, "1e−7"),
        (2e8, "2e8"),
        (2.5e-4, "2.5e−4"),
        (1e-4, "1e−4"),
        (0.001, "0.001"),
        (-0.5, "−0.5"),
    ],
)
def test_plain(value, said):
    assert plain(value) == said


@pytest.mark.parametrize(
    ("heights", "levels"),
    [
        ([], []),
        ([0.3], [0.3]),
        ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
        ([0.2, 0.2, 0.2], [0.2, 0.3, 0.4]),
        ([0.95, 0.95, 0.95], [0.8, 0.9, 1.0]),
        ([0.5, 1.0, 1.0], [0.5, 0.9, 1.0]),
    ],
)
def test_letters_stand_apart_and_stay_beside_the_axis(heights, levels):
    assert apart(heights, 0.1) == pytest.approx(levels)


def test_more_letters_than_fit_share_the_axis():
    levels = apart([1.0] * 21, 0.1)
    assert levels == pytest.approx([index / 20 for index in range(21)], abs=1e-9)


def test_an_axis_of_a_single_value_has_a_tick_there():
    assert _round_places(3.0, 3.0) == [3.0]
