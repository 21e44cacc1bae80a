"""Thresholds against measured ones, the recursion against theorem 3.7, the drift against autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim import collapse_threshold, simulate_nfi
from steelyard.optim.nfi.theory import (
    mantissa_digits,
    mean_row_drift,
    neural_collapse_eps,
    paper_threshold,
    wrong_mass,
)

DTYPES = {torch.float32: 24, torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}


def test_mantissa_digits_and_the_papers_threshold():
    paper = {torch.float32: 15.9424, torch.float64: 36.0437, torch.bfloat16: 4.8520, torch.float16: 6.9315}
    for dtype, digits in DTYPES.items():
        assert mantissa_digits(dtype) == digits
        assert paper_threshold(dtype) == pytest.approx(paper[dtype], abs=1e-4)


def measured_threshold(dtype: torch.dtype, K: int) -> float:
    """Largest margin on a fine grid at which the reference still gives the true class a gradient."""
    low, high = collapse_threshold(dtype, K)
    grid = torch.linspace(low - 2.0, high + 2.0, 4001, dtype=torch.float64)
    logits = torch.zeros(len(grid), K, dtype=dtype)
    logits[:, 0] = grid.to(dtype)
    leaf = logits.requires_grad_()
    loss = functional.cross_entropy(leaf, torch.zeros(len(grid), dtype=torch.long), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(logits.detach()[:, 0][gradient[:, 0] != 0].double().max())


@pytest.mark.parametrize("K", [2, 10, 97, 1000])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_collapse_threshold_holds_what_is_measured(dtype, K):
    low, high = collapse_threshold(dtype, K)
    grid_step = torch.finfo(dtype).eps * 16 + 0.01  # half precision has few logits there
    assert low - grid_step <= measured_threshold(dtype, K) <= high + grid_step
    assert high == pytest.approx(DTYPES[dtype] * math.log(2) + math.log(K - 1))
    if K == 2 or DTYPES[dtype] < 12:
        assert low == high
    else:
        assert low == pytest.approx(DTYPES[dtype] * math.log(2))


def test_recursion_reaches_growth_cosine_and_ratio_of_the_theorem():
    for K, eta, eps in ((10, 0.1, 0.5), (97, 0.01, 0.9), (2, 0.5, 0.2)):
        run = simulate_nfi(K, eta, eps, steps=40_000)
        assert run.growth[-1] == pytest.approx(1 + eta * eps / math.sqrt(K), rel=1e-12)
        assert run.predicted_growth[-1] == pytest.approx(run.growth[-1], rel=1e-12)
        assert run.cosine[-1] == pytest.approx(-1, abs=1e-9)
        assert run.norm_ratio[-1] == pytest.approx(1 / math.sqrt(K), rel=1e-9)


def test_falling_eps_grows_like_a_power_only():
    steps = 20_000
    run = simulate_nfi(10, 0.1, 1.0 / np.arange(1, steps + 1), steps=steps)
    log_norm = np.cumsum(np.log(run.growth))
    slope = (log_norm[-1] - log_norm[steps // 10]) / math.log(10)
    assert 0 < slope < 1  # a straight line over log t, not over t
    assert slope == pytest.approx((log_norm[steps // 10] - log_norm[steps // 100]) / math.log(10), abs=0.02)


def test_one_step_by_hand():
    run = simulate_nfi(4, 0.1, 0.5, steps=1, w_mean=np.array([0.0, 1.0]), mu_mean=np.array([2.0, 0.0]))
    w, mu = np.array([-0.1 * 0.5 / 4 * 2, 1.0]), np.array([2.0, -0.1 * 0.5])
    assert run.growth[0] == pytest.approx(np.linalg.norm(mu) / 2)
    assert run.cosine[0] == pytest.approx(w @ mu / np.linalg.norm(w) / np.linalg.norm(mu))
    assert run.norm_ratio[0] == pytest.approx(np.linalg.norm(w) / np.linalg.norm(mu))
    still = simulate_nfi(4, 0.1, 0.0, steps=3, w_mean=np.zeros(2), mu_mean=np.array([2.0, 0.0]))
    assert np.all(still.growth == 1)
    assert np.all(still.cosine == 0)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 1000), st.floats(1e-3, 0.5), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_recursion_is_the_matrix_power(K, eta, eps, seed):
    rng = np.random.default_rng(seed)
    w, mu = rng.normal(size=3), rng.normal(size=3)
    matrix = np.array([[1, -eta * eps / K], [-eta * eps, 1]])
    pair = np.linalg.matrix_power(matrix, 20) @ np.stack([w, mu])
    run = simulate_nfi(K, eta, eps, steps=20, w_mean=w, mu_mean=mu)
    assert np.prod(run.growth) == pytest.approx(np.linalg.norm(pair[1]) / np.linalg.norm(mu), rel=1e-9)
    assert run.norm_ratio[-1] == pytest.approx(np.linalg.norm(pair[0]) / np.linalg.norm(pair[1]), rel=1e-9)


def test_drift_is_the_gradient_of_the_mean_row_in_a_collapsed_batch():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(8, 5, generator=g)
    weight = torch.randn(4, 5, generator=g)
    target = torch.randint(0, 4, (8,), generator=g)
    logits = features @ weight.T
    logits = logits + functional.one_hot(target, 4) * (25.0 + logits.amax() - logits.amin())
    leaf = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(leaf, target), leaf)
    assert torch.all(gradient.gather(1, target[:, None]) == 0)
    step = -0.1 * (gradient.T @ features).mean(0)
    drift = mean_row_drift(features, wrong_mass(gradient) * 8, 0.1, 4)
    torch.testing.assert_close(drift, step)
    with pytest.raises(InputError, match="mass has shape"):
        mean_row_drift(features, torch.ones(3), 0.1, 4)


def test_neural_collapse_eps_is_the_mass_of_a_simplex():
    K, class_norm, feature_norm = 5, 2.0, 3.0
    frame = np.eye(K) - 1 / K
    frame /= np.linalg.norm(frame[0])
    logits = class_norm * frame @ (feature_norm * frame[0])
    assert neural_collapse_eps(K, class_norm, feature_norm) == pytest.approx(np.exp(logits[1:] - logits[0]).sum())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-12, 12, width=32), min_size=2, max_size=8), st.integers(0, 7))
def test_wrong_mass_needs_no_labels(logits, true):
    leaf = torch.tensor([logits], dtype=torch.float64).requires_grad_()
    target = torch.tensor([true % len(logits)])
    (gradient,) = torch.autograd.grad(functional.cross_entropy(leaf, target), leaf)
    probability = torch.softmax(leaf.detach(), 1)[0]
    assert float(wrong_mass(gradient)) == pytest.approx(float(probability.sum() - probability[target]), abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"K": 1}, "K must be at least 2"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"eta": math.inf}, "eta must be a finite number"),
        ({"eta": 0.0}, "eta must be a finite number"),
        ({"eps": -1.0}, "eps must be"),
        ({"eps": np.ones(3)}, "eps must be"),
        ({"mu_mean": np.zeros(2)}, "mu_mean must be finite and not zero"),
        ({"mu_mean": np.ones(3)}, "w_mean must be given"),
        ({"w_mean": np.ones(3)}, "both must be the same"),
    ],
)
def test_simulation_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        simulate_nfi(**{"K": 10, "eta": 0.1, "eps": 0.1, "steps": 10, **arguments})


def test_threshold_bad_input():
    with pytest.raises(InputError, match="K must be"):
        collapse_threshold(torch.float32, 1)
    with pytest.raises(InputError, match="dtype must be"):
        collapse_threshold(torch.int32, 4)
