"""Sharing strength, its estimates and the residual split: closed forms, Monte Carlo, limits, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from steelyard.errors import InputError
from steelyard.fed import (
    bellman_residual_decomposition,
    debiased_mismatch,
    head_variance_iterates,
    head_variance_refit,
    head_variance_split,
    mixing_risk,
    optimal_sharing_strength,
    plug_in_strength,
)
from steelyard.fed.gadaphead.core import fit_head, second_moment, squared_norm

TABLE = [
    (2.0, 5, 1.0, 0.5714, 0.8571, 0.7143),
    (0.5, 3, 2.0, 0.1818, 0.4091, 0.2727),
    (1.0, 10, 0.2, 0.7627, 0.2373, 0.8475),
]
positive = st.floats(1e-6, 1e6)
anything = st.floats(0, 1e6)


def inclusive(V, n, delta2):
    """Arguments of the strength for the mean that includes the client."""
    return V, V / n, delta2 * ((n - 1) / n) ** 2, V / n


@pytest.mark.parametrize(("V", "n", "delta2", "share", "risk", "with_self"), TABLE)
def test_worked_values(V, n, delta2, share, risk, with_self):
    lam = optimal_sharing_strength(V, V / (n - 1), delta2)
    assert lam == pytest.approx(share, abs=5e-5)
    assert mixing_risk(lam, V, V / (n - 1), delta2) == pytest.approx(risk, abs=5e-5)
    assert optimal_sharing_strength(*inclusive(V, n, delta2)) == pytest.approx(with_self, abs=5e-5)


@pytest.mark.parametrize(("V", "n", "delta2"), [row[:3] for row in TABLE])
@pytest.mark.parametrize("valued", [False, True])
def test_monte_carlo(V, n, delta2, valued):
    """40,000 draws of all heads of a group, by the regression that minimises the sampled risk, within 1 %."""
    generator, d = np.random.default_rng(5), 64
    sigma = np.diag(np.linspace(0.2, 1.8, d)) if valued else np.eye(d)  # its trace is d
    gap = np.sqrt(delta2 / d / np.diag(sigma))  # true heads of the others less the client's: delta2 in values
    scale = math.sqrt(V / np.trace(sigma))
    sums = np.zeros((2, 2))
    estimates = 0.0
    for _ in range(10):
        errors = scale * generator.standard_normal((4000, n, d))
        own = errors[:, 0]
        others = errors[:, 1:].mean(axis=1) + gap
        for row, proto in enumerate((others, (own + (n - 1) * others) / n)):
            step = (proto - own) * np.diag(sigma)
            sums[row] += (-np.vdot(own, step), np.vdot(proto - own, step))
        apart = (((others - own) ** 2) * np.diag(sigma)).sum(axis=1)
        estimates += np.minimum(V / apart, 1).mean() / 10
    left_out, with_self = sums[:, 0] / sums[:, 1]
    assert optimal_sharing_strength(V, V / (n - 1), delta2) == pytest.approx(left_out, rel=0.01)
    assert optimal_sharing_strength(*inclusive(V, n, delta2)) == pytest.approx(with_self, rel=0.01)
    if not valued:
        noise = (V + V / (n - 1)) / d  # of each coordinate of a difference, whose square is chi-squared, not central
        mean = stats.ncx2(d, delta2 / noise).expect(lambda x: np.minimum(V / noise / x, 1.0))
        assert estimates == pytest.approx(mean, rel=0.005)
        assert 0 < mean - left_out < 0.025  # the estimate runs slightly high


@given(positive, st.integers(2, 50), anything)
def test_both_prototypes_give_one_risk(V, n, delta2):
    left_out, with_self = (V, V / (n - 1), delta2), inclusive(V, n, delta2)
    lam, lam_self = optimal_sharing_strength(*left_out), optimal_sharing_strength(*with_self)
    assert lam == pytest.approx((n - 1) / n * lam_self, rel=1e-9)
    assert mixing_risk(lam, *left_out) == pytest.approx(mixing_risk(lam_self, *with_self), rel=1e-9)


@given(positive, anything, anything, st.floats(0, 1), st.floats(-1, 1))
def test_no_share_is_better(V, g, delta2, other, correlation):
    cov = correlation * math.sqrt(V) * math.sqrt(g)
    lam = optimal_sharing_strength(V, g, delta2, cov)
    assert 0 <= lam <= 1
    best = mixing_risk(lam, V, g, delta2, cov)
    assert best <= mixing_risk(other, V, g, delta2, cov) * (1 + 1e-9) + 1e-9
    if cov == 0:
        assert best <= min(V, g + delta2) * (1 + 1e-12)


@given(positive, anything, anything, positive)
def test_strength_has_no_unit(V, g, delta2, unit):
    assert optimal_sharing_strength(unit * V, unit * g, unit * delta2) == pytest.approx(
        optimal_sharing_strength(V, g, delta2), rel=1e-9
    )


def test_limits():
    assert optimal_sharing_strength(1.0, 0.0, 0.0) == 1.0  # nothing speaks against the prototype
    assert optimal_sharing_strength(0.0, 1.0, 1.0) == 0.0  # the local head is exact
    assert optimal_sharing_strength(1.0, 0.25, 0.0) == 0.8  # no mismatch: the mean of five heads
    assert optimal_sharing_strength(1.0, 0.0, 1e300) == pytest.approx(0.0)
    assert optimal_sharing_strength(1e308, 1e308, 1e308) == pytest.approx(1 / 3)
    assert optimal_sharing_strength(0.0, 0.0, 0.0) == 0.0  # 0 / 0 keeps the local head
    assert optimal_sharing_strength(1.0, 1.0, 0.0, 1.0) == 0.0  # the same error twice
    assert optimal_sharing_strength(1.0, 4.0, 0.0, 2.0) == 0.0  # clipped from below
    assert optimal_sharing_strength(4.0, 1.0, 0.0, 2.0) == 1.0  # and from above


def test_arrays_and_tensors():
    V = np.array([[2.0], [1.0]])
    lam = optimal_sharing_strength(V, np.array([0.5, 0.25, 0.0]), 1.0)
    assert lam.shape == (2, 3)
    assert lam[0, 0] == optimal_sharing_strength(2.0, 0.5, 1.0)
    tensor = optimal_sharing_strength(torch.tensor([2.0, 1.0]), 0.5, 1.0)
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == pytest.approx([4 / 7, 0.4])
    assert mixing_risk(np.array([0.0, 1.0]), 2.0, 0.5, 1.0).tolist() == [2.0, 1.5]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: optimal_sharing_strength(-1.0, 1.0, 1.0), "V_i must be at least 0, got -1"),
        (lambda: optimal_sharing_strength(1.0, -1.0, 1.0), "V_g must be at least 0"),
        (lambda: optimal_sharing_strength(1.0, 1.0, [1.0, -2.0]), "delta2 must be at least 0, got -2"),
        (lambda: optimal_sharing_strength(math.nan, 1.0, 1.0), "V_i must be finite"),
        (lambda: optimal_sharing_strength(1.0, 1.0, 1.0, 1.5), "cov must lie within"),
        (lambda: mixing_risk(math.inf, 1.0, 1.0, 1.0), "lam must be finite"),
        (lambda: mixing_risk("a", 1.0, 1.0, 1.0), "lam must be numbers"),
        (lambda: plug_in_strength([1.0], [2.0], -1.0), "V_i must be at least 0"),
        (lambda: plug_in_strength([1.0, 2.0], [2.0], 1.0), "w_i and proto must have one shape"),
        (lambda: plug_in_strength([1.0], [math.nan], 1.0), "w_i and proto must be finite"),
        (lambda: plug_in_strength([1.0, 0.0], [2.0, 0.0], 1.0, np.eye(3)), "sigma must be the (2, 2)"),
        (lambda: plug_in_strength([1.0, 0.0], [2.0, 0.0], 1.0, [[1, 1], [0, 1]]), "sigma must be symmetric"),
        (lambda: plug_in_strength([1.0, 0.0], [2.0, 0.0], 1.0, -np.eye(2)), "sigma must be positive"),
        (lambda: plug_in_strength([1.0, 0.0], [2.0, 0.0], 1.0, [[1, 2], [2, 1]]), "sigma must be positive"),
        (lambda: head_variance_refit(np.eye(2), [1.0, 2.0], sigma=np.diag([1, -1e-3])), "sigma must be positive"),
        (lambda: head_variance_iterates(np.eye(2), np.diag([1, -1])), "sigma must be positive"),
        (lambda: debiased_mismatch([1.0], [2.0], 1.0, -1.0), "V_g must be at least 0"),
        (lambda: head_variance_split([1.0], [1.0, 2.0]), "first and second must have one shape"),
        (lambda: head_variance_iterates([[1.0]]), "iterates must be at least two heads"),
        (lambda: head_variance_refit([[1.0]], [1.0], gamma=1.0), "gamma must lie in [0, 1)"),
        (lambda: head_variance_refit([[1.0]], [1.0], ridge=-1.0), "ridge must be a finite number"),
        (lambda: head_variance_refit([[1.0]], [1.0, 2.0]), "features must be (n, d)"),
        (lambda: head_variance_refit(np.zeros((0, 2)), []), "features must be (n, d)"),
        (lambda: head_variance_refit([[1.0]], [1.0], [[1.0, 2.0]]), "next_features must have the shape"),
        (lambda: head_variance_refit([[1.0]], [1.0], outputs=[-1]), "outputs must be integers"),
        (lambda: head_variance_refit([[0.0]], [1.0], ridge=0.0), "features do not determine the head"),
        (lambda: bellman_residual_decomposition([[1.0]], [1.0], [[0.0]], [1.0, 2.0]), "head must have shape (1,)"),
    ],
)  # fmt: skip
def test_bad_input(call, said):
    with pytest.raises(InputError) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plug_in():
    w, proto = np.array([1.0, 2.0]), np.array([1.0, 4.0])
    assert plug_in_strength(w, proto, 1.0) == 0.25
    assert plug_in_strength(w, proto, 9.0) == 1.0
    assert plug_in_strength(w, proto, 1.0, np.diag([5.0, 0.5])) == 0.5
    two = np.array([[1.0, 0.0], [2.0, 1.0]])  # two outputs: the feature dimension comes first
    assert plug_in_strength(two, np.zeros((2, 2)), 3.0, np.diag([1.0, 2.0])) == pytest.approx(3.0 / (1 + 8 + 2))
    assert debiased_mismatch(w, proto, 1.0, 0.5) == 2.5
    assert debiased_mismatch(w, proto, 5.0, 0.5) == 0.0


def test_plug_in_at_distance_zero():
    w, other = np.array([1.0, 2.0]), np.array([1.0, 5.0])
    assert plug_in_strength(w, w, 1.0) == 1.0
    assert plug_in_strength(w, w, 0.0) == 0.0
    assert plug_in_strength(w, other, 1.0, np.diag([1.0, 0.0])) == 0.0  # they differ where no feature looks


@given(st.integers(0, 1000), st.floats(0, 10))
def test_plug_in_is_the_closed_form_at_the_expected_distance(seed, V):
    generator = np.random.default_rng(seed)
    w, proto = generator.normal(size=(2, 5))
    rest = max(float(((w - proto) ** 2).sum()) - V, 0.0)
    assert plug_in_strength(w, proto, V) == pytest.approx(optimal_sharing_strength(V, 0.0, rest), rel=1e-9)


def test_fit_head_is_ridge_regression_without_next_features():
    generator = np.random.default_rng(1)
    X, y = generator.normal(size=(30, 4)), generator.normal(size=(30, 2))
    fit = fit_head(X, y, ridge=0.7)
    augmented = np.vstack([X, math.sqrt(0.7) * np.eye(4)])
    expected = np.linalg.lstsq(augmented, np.vstack([y, np.zeros((4, 2))]), rcond=None)[0]
    np.testing.assert_allclose(fit.head, expected, atol=1e-12)
    np.testing.assert_allclose(fit.residual, y - X @ expected, atol=1e-12)
    assert fit_head(X, y[:, 0], ridge=0.7).head.shape == (4,)


def test_fit_head_finds_the_values_of_a_chain():
    """Two states in turn, reward 1 in the first: V = (1, gamma) / (1 - gamma^2)."""
    fit = fit_head(np.eye(2), [1.0, 0.0], np.eye(2)[::-1], gamma=0.5, ridge=0.0)
    np.testing.assert_allclose(fit.head, [4 / 3, 2 / 3], atol=1e-12)
    np.testing.assert_allclose(fit.residual, 0, atol=1e-12)


def test_outputs_train_on_their_own_rows():
    generator = np.random.default_rng(2)
    X, y, which = generator.normal(size=(40, 3)), generator.normal(size=40), generator.integers(0, 3, size=40)
    fit = fit_head(X, y, outputs=which)
    alone = [fit_head(X[which == k], y[which == k]) for k in range(3)]
    np.testing.assert_allclose(fit.head, np.stack([one.head for one in alone], axis=1), atol=1e-10)
    parts = sum(head_variance_refit(X[which == k], y[which == k]) for k in range(3))
    assert head_variance_refit(X, y, outputs=which) == pytest.approx(parts)


def test_refit_variance_of_a_mean():
    """One constant feature, no ridge: the sandwich is the sum of squared residuals over n^2."""
    y = np.array([1.0, 2.0, 6.0])
    assert head_variance_refit(np.ones((3, 1)), y, ridge=0.0) == pytest.approx(((y - 3) ** 2).sum() / 9)
    assert head_variance_refit(np.ones((3, 1)), y, ridge=0.0, sigma=[[4.0]]) == pytest.approx(
        4 * ((y - 3) ** 2).sum() / 9
    )


@pytest.mark.parametrize("gamma", [None, 0.9])
def test_refit_and_split_variance_against_many_fits(gamma):
    generator, d, n = np.random.default_rng(3), 4, 400
    w = generator.normal(size=d)
    heads, refit, split = [], [], []
    for _ in range(400):
        X, after = generator.normal(size=(2, n, d)) / 2
        mean = X @ w - (0 if gamma is None else gamma * (after @ w))
        y = mean + 0.5 * generator.normal(size=n)
        step = None if gamma is None else after
        own = {"gamma": gamma or 0.0}
        heads.append(fit_head(X, y, step, **own).head)
        refit.append(head_variance_refit(X, y, step, **own))
        half = [fit_head(X[k::2], y[k::2], None if step is None else step[k::2], **own).head for k in (0, 1)]
        split.append(head_variance_split(*half))
    true = float(((np.array(heads) - w) ** 2).sum(axis=1).mean())
    assert np.mean(refit) == pytest.approx(true, rel=0.08)  # 400 draws of a chi-square of 4: sd 3.5 %
    assert np.mean(split) == pytest.approx(true, rel=0.12)


def test_iterates_variance():
    iterates = np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 6.0]])
    assert head_variance_iterates(iterates) == pytest.approx(iterates.var(axis=0, ddof=1).sum())
    assert head_variance_iterates(iterates, np.diag([1.0, 0.0])) == pytest.approx(4.0)


def test_norms():
    assert squared_norm(np.array([[1.0, 2.0], [3.0, 4.0]]), np.diag([1.0, 10.0])) == 1 + 4 + 90 + 160
    assert squared_norm(np.array([1.0, -1.0]), np.ones((2, 2))) == 0.0
    assert second_moment(np.eye(2, dtype=np.float32), 2).dtype == np.float64


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 40))
def test_second_moments_of_few_single_precision_features_are_positive(seed, rows, width):
    """Fewer rows than features leave eigenvalues that are 0 but for rounding."""
    phi = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32) * np.float32(1e3)
    assert second_moment(phi.T @ phi / rows, width).shape == (width, width)
    assert second_moment(np.zeros((width, width)), width).sum() == 0.0
