import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.bench.results import Row
from steelyard.contracts import Trace
from steelyard.report.curves import keep_shape, mean_curve

LINEAR = Trace(name="y", label="", x_label="", y_label="")
LOG = Trace(name="y", label="", x_label="", y_label="", log_x=True, log_y=True)


def row(xs, ys, seed=0):
    return Row(key=str(seed), task="t", arm="a", seed=seed, state="done", traces={"y": (tuple(xs), tuple(ys))})


def test_mean_and_interval_of_two_seeds():
    curve = mean_curve([row([0, 1], [1, 2]), row([0, 1], [3, 4])], LINEAR, 10)
    assert curve.mean.tolist() == [2, 3]
    assert curve.high[0] - curve.mean[0] == pytest.approx(12.706, rel=1e-3)  # t(.975, 1) * sqrt(2) / sqrt(2)
    assert curve.seeds == 2


def test_one_seed_has_no_band():
    curve = mean_curve([row([0, 1], [1, 2])], LINEAR, 10)
    assert curve.low.tolist() == curve.mean.tolist() == curve.high.tolist()


def test_a_logarithmic_axis_takes_the_geometric_mean_and_drops_what_is_not_above_zero():
    curve = mean_curve([row([1, 2], [1, 0]), row([1, 2], [100, 5])], LOG, 10)
    assert curve.mean == pytest.approx([10, 5])
    assert (curve.low > 0).all()


def test_numbers_that_are_none_drop_out_and_grids_may_differ():
    curve = mean_curve([row([0, 1, 2], [1, None, 1]), row([0, 2], [3, 3])], LINEAR, 10)
    assert curve.mean.tolist() == [2, 3, 2]
    gone = mean_curve([row([0, 1], [None, None])], LINEAR, 10)
    assert np.isnan(gone.mean).all()
    assert mean_curve([row([], [])], LINEAR, 10) is None
    assert mean_curve([], LINEAR, 10) is None
    assert mean_curve([row([None], [1])], LINEAR, 10) is None


def test_a_spike_survives_thinning():
    y = np.zeros(1000)
    y[437] = 9.0
    assert 437 in keep_shape(np.arange(1000.0), y, 20)


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 2**31))
def test_thinning_keeps_order_ends_and_the_limit(size, points, seed):
    y = np.random.default_rng(seed).normal(size=size)
    y[:: max(size // 7, 2)] = np.nan
    kept = keep_shape(np.arange(float(size)), y, points)
    assert kept[0] == 0
    assert kept[-1] == size - 1
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(points, 3) or points < 3
