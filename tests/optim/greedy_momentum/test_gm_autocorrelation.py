import math

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.optim import GradAutocorrelation
from steelyard.optim.greedy_momentum import core


def record(gradients, lags):
    p = torch.zeros(gradients.shape[1], dtype=torch.float64, requires_grad=True)
    estimator = GradAutocorrelation(lags)
    for gradient in gradients:
        p.grad = torch.from_numpy(gradient.copy())
        estimator.update([p])
    return estimator


def test_matches_the_estimate_from_all_gradients():
    gradients = np.random.default_rng(0).normal(size=(40, 6)).cumsum(axis=0)
    estimator = record(gradients, 7)
    assert estimator.rho == pytest.approx(core.autocorrelation(gradients, 7))
    assert estimator.steps == 40


def test_early_lags_only_when_few_steps_were_recorded():
    gradients = np.random.default_rng(0).normal(size=(3, 6))
    assert record(gradients, 7).rho == pytest.approx(core.autocorrelation(gradients, 2))


def test_curve_of_an_ar1_stream_peaks_at_its_correlation():
    rng = np.random.default_rng(1)
    g = [rng.normal(size=800)]
    for _ in range(400):
        g.append(0.8 * g[-1] + math.sqrt(1 - 0.64) * rng.normal(size=800))
    grid = np.linspace(0, 0.99, 100)
    curve = record(np.stack(g), 30).curve(grid)
    assert grid[curve.argmax()] == pytest.approx(0.8, abs=0.05)


def test_missing_sparse_and_half_gradients():
    a, b = torch.zeros(3, requires_grad=True), torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    estimator = GradAutocorrelation(1)
    a.grad = torch.ones(3).to_sparse()
    estimator.update([a, b])
    assert estimator.rho.tolist() == [3.0]


def test_bad_input():
    for lags in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="lags"):
            GradAutocorrelation(lags)
    estimator = GradAutocorrelation(2)
    with pytest.raises(InputError, match="update"):
        estimator.curve([0.5])
    with pytest.raises(InputError, match="at least one"):
        estimator.update([])
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.ones(3)
    estimator.update([p])
    with pytest.raises(InputError, match="same at every call"):
        estimator.update([p, p])
    p.grad = torch.full((3,), math.inf)
    with pytest.raises(InputError, match="finite"):
        estimator.update([p])
    p.grad = torch.ones(3)
    estimator.update([p])
    assert estimator.rho.tolist() == [3.0, 3.0]
    with pytest.raises(InputError, match="candidates"):
        estimator.curve([1.0])
