"""The residual split on small decision processes in closed form: where the bound holds, and where it does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.fed import bellman_residual_decomposition
from steelyard.fed.gadaphead.core import fit_head

GAMMA = 0.9


def chain(seed, states=6, sparse=0.3):
    """Random transitions with their stationary distribution, rewards, features, a head and the true values."""
    generator = np.random.default_rng(seed)
    P = generator.random((states, states)) ** (1 / sparse)
    P /= P.sum(axis=1, keepdims=True)
    stationary = np.linalg.matrix_power(P, 4096)[0]
    r = generator.normal(size=states)
    phi, w = generator.normal(size=(states, 3)), generator.normal(size=3)
    return P, stationary, r, phi, w, np.linalg.solve(np.eye(states) - GAMMA * P, r)


def norm(values, weights):
    return float(np.sqrt((weights * values**2).sum()))


def projection(phi, values, weights):
    root = np.sqrt(weights)[:, None]
    return np.linalg.lstsq(root * phi, root[:, 0] * values, rcond=None)[0]


@given(st.integers(0, 10_000))
def test_bound_holds_for_a_policy_in_the_norm_of_its_stationary_distribution(seed):
    P, D, r, phi, w, values = chain(seed)
    best = projection(phi, values, D)
    left = norm(r + GAMMA * P @ phi @ w - phi @ w, D)
    right = (1 + GAMMA) * (norm(values - phi @ best, D) + norm(phi @ (best - w), D))
    assert left <= right * (1 + 1e-9)


@given(st.integers(0, 10_000))
def test_bound_holds_for_the_optimality_operator_in_the_sup_norm(seed):
    generator = np.random.default_rng(seed)
    states, actions = 5, 3
    P = generator.dirichlet(np.full(states, 0.3), size=(states, actions))
    r, phi, w = (
        generator.normal(size=(states, actions)),
        generator.normal(size=(states, actions, 4)),
        generator.normal(size=4),
    )

    def backup(q):
        return r + GAMMA * P @ q.max(axis=1)

    q = np.zeros((states, actions))
    for _ in range(400):
        q = backup(q)
    best = np.linalg.lstsq(phi.reshape(-1, 4), q.reshape(-1), rcond=None)[0]
    own = phi @ w
    right = (1 + GAMMA) * (np.abs(q - phi @ best).max() + np.abs(phi @ (best - w)).max())
    assert np.abs(backup(own) - own).max() <= right * (1 + 1e-9)
    assert np.abs(backup(own) - own).max() <= (1 + GAMMA) * np.abs(q - own).max() * (1 + 1e-9)


def test_bound_fails_in_the_norm_of_another_distribution():
    """Both states lead to the second, which the distribution hardly sees: an error there counts in every residual."""
    P, D = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0.99, 0.01])
    values, error = np.array([0.0, 0.0]), np.array([0.0, 1.0])
    left = norm(GAMMA * P @ (values - error) - (values - error), D)
    assert left == pytest.approx(np.sqrt(0.99 * GAMMA**2 + 0.01 * (1 - GAMMA) ** 2))
    assert left > 4 * (1 + GAMMA) * norm(error, D)  # all of it is a head error on complete features


@given(st.integers(0, 10_000), st.integers(5, 60))
def test_parts_bound_the_residual_of_any_batch(seed, n):
    generator = np.random.default_rng(seed)
    phi, after = generator.normal(size=(2, n, 4))
    r, w = generator.normal(size=n), generator.normal(size=4)
    split = bellman_residual_decomposition(phi, r, after, w)
    assert split.residual <= (split.representation + split.head_residual) * (1 + 1e-9)
    step = after @ (fit_head(phi, r, after).head - w)
    assert split.head_residual <= (split.head + GAMMA * np.sqrt((step**2).mean())) * (1 + 1e-9)


def test_the_refit_has_not_the_smallest_residual():
    """It solves the projected equation: on a few odd rows another head can have a smaller residual."""
    phi, after = np.array([[1.0], [1.0]]), np.array([[1.1], [-0.9]])
    r = np.array([1.0, 0.0])
    split = bellman_residual_decomposition(phi, r, after, [0.5], ridge=0.0)
    assert split.residual < split.representation


@given(st.integers(0, 10_000))
def test_complete_features_leave_no_representation_error(seed):
    """Deterministic steps without noise, one feature for each state: all of the residual is the head's."""
    generator = np.random.default_rng(seed)
    after = generator.integers(0, 5, size=5)
    r, head = generator.normal(size=5), generator.normal(size=5)
    split = bellman_residual_decomposition(np.eye(5), r, np.eye(5)[after], head, ridge=0.0)
    assert split.representation == pytest.approx(0.0, abs=1e-10)
    assert split.residual == pytest.approx(split.head_residual)
    values = np.linalg.solve(np.eye(5) - GAMMA * np.eye(5)[after], r)
    assert split.head == pytest.approx(np.sqrt(((values - head) ** 2).mean()))


def test_noise_of_rewards_looks_like_representation_error():
    generator = np.random.default_rng(7)
    states = generator.integers(0, 4, size=20_000)
    r = 1.0 + 0.5 * generator.normal(size=20_000)
    phi = np.eye(4)[states]
    split = bellman_residual_decomposition(phi, r, phi, np.full(4, 10.0), ridge=0.0)
    assert split.representation == pytest.approx(0.5, rel=0.02)  # the true values, 10, have none
    assert split.head < 0.1


def test_several_outputs_add_their_squares():
    generator = np.random.default_rng(8)
    phi, after = generator.normal(size=(2, 30, 3))
    r, w = generator.normal(size=(30, 2)), generator.normal(size=(3, 2))
    both = bellman_residual_decomposition(phi, r, after, w)
    each = [bellman_residual_decomposition(phi, r[:, k], after, w[:, k]) for k in range(2)]
    for name in both._fields:
        assert getattr(both, name) == pytest.approx(np.hypot(getattr(each[0], name), getattr(each[1], name)))
