"""Linear clients: the walk, the fits beside scikit-learn and closed forms, and variances beside repeated draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from steelyard.errors import InputError
from steelyard.fed.gadaphead.linear import (
    Transitions,
    fit_clients,
    grid_walk,
    make_world,
    sample,
)
from steelyard.rng import generator


def draws(name, seed=0):
    return generator("test", f"gadaphead/{name}", seed)


def test_the_walk_is_a_walk():
    steps = grid_walk()
    np.testing.assert_allclose(steps.sum(axis=1), 1.0)
    np.testing.assert_allclose(steps, steps.T)  # walls keep it in place, so all states stay alike likely
    assert steps[0, 0] == 0.5  # a corner has two walls
    assert steps[24, [17, 31, 23, 25]].tolist() == [0.25] * 4


def test_rewards_make_values_exactly_linear():
    world = make_world(draws("world"))
    batch = sample(world, 3, 4_000, draws("batch"), noise=0.0)
    head = fit_clients([batch], world.discount, ridge=1e-9).heads[0]
    assert world.errors(np.tile(head, (12, 1)))[3] < 0.05
    expected = world.features @ world.heads[3]
    rewards = expected - world.discount * world.steps @ expected
    value = np.linalg.solve(np.eye(49) - world.discount * world.steps, rewards)
    np.testing.assert_allclose(value, expected, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_worlds_have_the_groups_that_were_asked_for(seed, groups, members):
    world = make_world(draws("shape", seed), groups, members, spread=0.0)
    assert np.bincount(world.groups).tolist() == [members] * groups
    for group in range(groups):
        own = world.heads[world.groups == group]
        np.testing.assert_array_equal(own, np.repeat(own[:1], members, axis=0))
    np.testing.assert_array_equal(world.errors(world.heads), 0.0)


@given(st.integers(0, 10_000), st.integers(2, 60), st.floats(0.01, 10.0))
def test_without_a_future_it_is_ridge_regression(seed, n, ridge):
    stream = draws("ridge", seed)
    batch = Transitions(stream.normal(size=(n, 5)), stream.normal(size=(n, 5)), stream.normal(size=n))
    fits = fit_clients([batch], 0.0, ridge)
    peer = Ridge(alpha=ridge, fit_intercept=False).fit(batch.features, batch.rewards)
    np.testing.assert_allclose(fits.heads[0], peer.coef_, atol=1e-7)
    residual = batch.rewards - peer.predict(batch.features)
    inverse = np.linalg.inv(batch.features.T @ batch.features + ridge * np.eye(5))
    white = inverse @ (batch.features.T * residual**2) @ batch.features @ inverse
    assert fits.variances["weights"][0] == pytest.approx(np.trace(white), rel=1e-6)
    assert fits.variances["refit"][0] == pytest.approx(np.trace(fits.second_moment @ white), rel=1e-6)


def test_the_sandwich_is_the_variance_over_repeated_draws():
    world = make_world(draws("variance"))
    fits = [fit_clients([sample(world, 0, 1_500, draws("repeat", seed))]) for seed in range(200)]
    heads = np.array([fit.heads[0] for fit in fits])
    metric = world.features.T @ world.features / len(world.features)
    apart = heads - heads.mean(axis=0)
    seen = np.einsum("ti,ij,tj->t", apart, metric, apart).sum() / (len(fits) - 1)
    assert np.mean([fit.variances["refit"][0] for fit in fits]) == pytest.approx(seen, rel=0.15)
    assert np.mean([fit.variances["split"][0] for fit in fits]) == pytest.approx(seen, rel=0.3)
    assert np.mean([fit.variances["iterates"][0] for fit in fits]) < 0.5 * seen  # iterates share their data


@given(st.integers(0, 10_000))
def test_fits_do_not_depend_on_who_is_asked_first(seed):
    world = make_world(draws("order", seed), 2, 2)
    batches = [sample(world, client, 40, draws(f"order/{client}", seed)) for client in range(4)]
    forth, back = fit_clients(batches), fit_clients(batches[::-1])
    np.testing.assert_array_equal(forth.heads, back.heads[::-1])
    for proxy, values in forth.variances.items():
        assert (values >= 0).all()
        np.testing.assert_allclose(values, back.variances[proxy][::-1], rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: make_world(draws("bad"), groups=0), "groups"),
        (lambda: make_world(draws("bad"), members=0), "members"),
        (lambda: make_world(draws("bad"), width=0), "width"),
        (lambda: make_world(draws("bad"), spread=-1.0), "spread"),
        (lambda: make_world(draws("bad"), spread=float("nan")), "spread"),
        (lambda: sample(make_world(draws("bad")), 0, 0, draws("bad")), "n must"),
        (lambda: fit_clients([]), "batches"),
        (lambda: fit_clients([Transitions(*(np.zeros((3, 2)),) * 2, np.zeros(2))]), "features"),
        (lambda: fit_clients([sample(make_world(draws("bad")), 0, 1, draws("bad"))]), "client 0"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
