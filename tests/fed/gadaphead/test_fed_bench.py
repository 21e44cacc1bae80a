"""The bench: what a cell measures, that arms share their fits and streams, and that the card is whole."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.fed.gadaphead import arms, bench, card, cells, deep, sharing, tasks, user
from steelyard.fed.gadaphead.linear import fit_clients, make_world, sample
from steelyard.rng import generator

TINY = {"rounds": 3, "steps": 40, "every": 2, "episodes": 1}


def cell(task, arm, seed=0, root="tuning", config=None, **params):
    spec = bench.BENCH
    settings = {**spec.arm(arm).config, **(config or {})}
    return CellInput(task, arm, settings, {**TINY, **params}, {}, seed, spec.task(task).load(), root)


@functools.cache
def fitted(seed=0, n=150):
    draws = generator("test", "gadaphead/bench", seed)
    world = make_world(draws)
    return world, fit_clients([sample(world, client, n, draws) for client in range(12)])


@pytest.fixture(scope="module")
def linear():
    return {arm: bench.run(cell("linear_150", arm)) for arm in arms.ONCE}


def test_one_cell_shares_in_every_way(linear):
    found = arms.derive({"gadaphead": linear["gadaphead"].metrics})
    assert set(found) == {arm.name for arm in arms.SHARED}
    names = {metric.name for metric in arms.METRICS}
    assert names >= {name for name in linear["gadaphead"].metrics if ":" not in name}
    assert linear["oracle_lambda"].metrics["mse"] <= linear["gadaphead"].metrics["mse"]
    assert found["oracle_groups"]["ari"] == 1.0
    assert found["group_loo"]["strength"] == pytest.approx(1.0, abs=0.35)
    assert linear["local"].metrics["strength"] == 0.0
    assert linear["fedavg"].metrics["ari"] == 0.0
    assert [picture.name for picture in linear["gadaphead"].diagrams] == ["sharing"]


def test_arms_share_their_fits():
    clients = [cells.linear_clients(cell("linear_150", arm)) for arm in ("local", "gadaphead")]
    np.testing.assert_array_equal(clients[0].fits.heads, clients[1].fits.heads)
    other = cells.linear_clients(cell("linear_150", "local", root="evaluation"))
    assert not np.array_equal(clients[0].fits.heads, other.fits.heads)


def test_an_arm_of_other_tasks_is_refused():
    with pytest.raises(InputError, match="fedper"):
        bench.run(cell("linear_60", "fedper"))
    with pytest.raises(InputError, match="zero"):
        bench.run(cell("minigrid", "zero"))


@given(st.integers(0, 500))
def test_no_point_between_is_better_than_the_oracle(seed):
    world, fits = fitted(seed % 20)
    groups = generator("test", "gadaphead/groups", seed).integers(0, 4, size=12)
    best = world.errors(sharing.oracle(fits, groups, world.errors).heads)
    for strength in np.linspace(0, 1, 11):
        assert (best <= world.errors(sharing.at_strength(fits, groups, float(strength)).heads) + 1e-9).all()


@given(st.integers(0, 500))
def test_the_group_mean_is_the_mean(seed):
    _, fits = fitted(seed % 20)
    groups = generator("test", "gadaphead/groups", seed).integers(0, 5, size=12)
    shared = sharing.group_mean(fits, groups)
    for group in np.unique(groups):
        own = groups == group
        np.testing.assert_allclose(shared.heads[own], np.tile(fits.heads[own].mean(axis=0), (own.sum(), 1)))
        others = sharing.at_strength(fits, groups, 1.0)
        count = own.sum()
        if count > 1:  # the mean of the others, at (n - 1) / n, is the mean of all
            np.testing.assert_allclose(
                sharing.at_strength(fits, groups, (count - 1) / count).heads[own], shared.heads[own]
            )
        else:
            np.testing.assert_array_equal(others.heads[own], fits.heads[own])


@given(st.integers(0, 500))
def test_strengths_are_shares(seed):
    _, fits = fitted(seed % 20)
    groups = sharing.labels_of(fits.heads)
    for shared in (sharing.adaptive(fits, groups), sharing.euclidean(fits, groups)):
        assert ((shared.strength >= 0) & (shared.strength <= 1)).all()
    wrong = sharing.wrong_groups(groups, generator("test", "gadaphead/wrong", seed))
    assert sorted(wrong.tolist()) == sorted(groups.tolist())


def test_the_value_metric_can_be_given():
    _, fits = fitted()
    groups = sharing.labels_of(fits.heads)
    own = sharing.adaptive(fits, groups, second_moment=fits.second_moment)
    np.testing.assert_array_equal(own.heads, sharing.adaptive(fits, groups).heads)


@pytest.fixture(scope="module")
def deep_cells():
    chosen = ("gadaphead", "fedper", "fedrep", "fedprox", "fedavg", "clustered", "centralised", "random", "local")
    return {arm: deep.run(cell("minigrid", arm)) for arm in chosen}


def test_learners_are_judged_alike(deep_cells):
    for arm, measured in deep_cells.items():
        found = measured.metrics
        assert found["return_worst"] <= found["return_mean"]
        assert 0.0 <= found["converged"] <= 1.0
        assert found["return_std"] >= 0.0
        assert measured.steps == (8 if arm == "random" else 24)
        assert ("ari" in found) == (arm in ("gadaphead", "clustered"))
    assert deep_cells["local"].metrics["uploaded"] == 0.0
    head_and_more = deep_cells["gadaphead"].metrics["uploaded"] - deep_cells["fedper"].metrics["uploaded"]
    assert 0 < head_and_more < 0.1 * deep_cells["fedper"].metrics["uploaded"]
    assert deep_cells["gadaphead"].traces["return"][0] == [2.0, 3.0]
    assert len(deep_cells["gadaphead"].traces["ari"][0]) == 3
    assert deep_cells["gadaphead"].diagrams[0].name == "sharing_minigrid"
    assert deep_cells["fedper"].diagrams == ()


def test_equal_seeds_train_equal_learners(deep_cells):
    again = deep.run(cell("minigrid", "gadaphead"))
    assert again.metrics == deep_cells["gadaphead"].metrics
    assert again.traces == deep_cells["gadaphead"].traces


def test_long_training_is_longer():
    measured = deep.run(cell("minigrid", "local_long", steps=8, rounds=1, every=1))
    assert measured.steps == deep.LONG * 8
    assert deep.run(cell("minigrid", "local", steps=8, rounds=1)).traces == {}  # a point is no curve


@pytest.mark.parametrize("arm", arms.CONTROL)
def test_pendulums_are_shares_of_their_reference(arm):
    found = deep.run(cell("pendulum", arm, rounds=1)).metrics
    assert 0.0 <= found["return_worst"] <= found["return_mean"] < 0.5
    if arm == "gadaphead":
        assert found["uploaded"] > 0


def test_the_sign_is_the_planted_group():
    suite = deep.SUITES["pendulum"](cell("pendulum", "local"))
    assert suite.planted.tolist() == [0] * 4 + [1] * 4
    assert suite.kinds.tolist() == list(range(8))
    assert [name[-1] for name in suite.names] == ["+"] * 4 + ["-"] * 4


def test_converged_needs_the_last_two_evaluations():
    given = cell("minigrid", "local")
    suite = deep.SUITES["minigrid"](given)
    reference = np.array(deep.REFERENCES["minigrid"])
    returns = np.stack([0.5 * reference, 0.95 * reference, 0.95 * reference])
    returns[1, 0] = 0.0  # this client was there only at the end
    found = deep.outcome(given, deep.Curve([1, 2, 3], returns, []), suite)
    assert found["converged"] == 7 / 8
    assert found["return_mean"] == pytest.approx(0.95 * reference.mean())
    assert found["auc"] == pytest.approx(returns.mean())
    assert found["return_std"] == pytest.approx(0.0, abs=1e-12)  # over shares of the reference, which are all .95


def test_returns_can_be_shares_of_the_reference():
    given = cell("minigrid", "local")
    relative = CellInput("minigrid", "local", {}, TINY, {}, 0, {**given.data, "relative": np.array(True)}, "tuning")
    reference = np.array(deep.REFERENCES["minigrid"])
    found = deep.outcome(
        relative, deep.Curve([1, 2], np.stack([reference, reference / 2]), []), deep.SUITES["minigrid"](given)
    )
    assert found["return_mean"] == pytest.approx(0.5)
    assert found["return_std"] == pytest.approx(0.0)


def test_references_are_there_for_every_client():
    for task in deep.SUITES:
        suite = deep.SUITES[task](cell(task, "local"))
        assert len(deep.REFERENCES[task]) == len(suite.names)
        assert min(deep.REFERENCES[task]) > 0


def test_twelve_clients_play_six_levels_with_the_settings_of_eight():
    suite = deep.SUITES["minigrid_12"](cell("minigrid_12", "local"))
    assert suite.planted.tolist() == np.repeat(np.arange(6), 2).tolist()
    assert bench.BENCH.tuned["minigrid_12"] == bench.BENCH.tuned["minigrid"]
    assert deep.REFERENCES["minigrid_12"][:8] == deep.REFERENCES["minigrid"]


def test_tuned_settings_name_their_seeds_and_all_arms_had_as_many():
    for rows in bench.TUNED.values():
        assert len({len(row["tried"]) for row in rows.values()}) == 1
        for row in rows.values():
            assert row["seeds"]
            assert row["config"] in [one["config"] for one in row["tried"]]


def test_the_card_is_whole():
    assert {f"d{number}" for number in range(1, 15)} == {decision.id for decision in card.CARD.decisions}
    ids = [claim.id for claim in card.CARD.claims]
    assert len(set(ids)) == len(ids)
    known = {task.name for task in tasks.TASKS} | {user.TASK}
    for claim in card.CARD.claims:
        assert claim.paper
        assert claim.tasks is None or set(claim.tasks) <= known
