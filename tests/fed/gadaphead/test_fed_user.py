"""A table of one's own: which tables are refused and why, and that a seed's halves are apart."""

import numpy as np
import pytest

from steelyard.contracts import CellInput
from steelyard.data import read_table
from steelyard.errors import InputError
from steelyard.fed.gadaphead import arms, bench, user
from steelyard.fed.gadaphead.rounds import ClientUpdate
from steelyard.rng import generator


def table(clients=6, rows=20, kinds=2, seed=0):
    """Clients of two kinds with opposite slopes."""
    stream = generator("test", "gadaphead/table", seed)
    slopes = np.repeat(3.0 * stream.normal(size=(kinds, 2)), clients // kinds, axis=0)
    x = stream.normal(size=(clients, rows, 2))
    y = np.einsum("cij,cj->ci", x, slopes) + stream.normal(size=(clients, rows))
    names = np.repeat([f"ward {number}" for number in range(clients)], rows)
    return {"ward": names, "age": x[..., 0].ravel(), "dose": x[..., 1].ravel(), "days": y.ravel()}


def cell(task, arm="gadaphead", seed=0, **options):
    given = {"client": "ward", "target": "days", **options}
    return CellInput("user", arm, {}, {}, user.Options(**given).model_dump(), seed, task.load(), "tuning")


@pytest.fixture(scope="module")
def task():
    return user.user_task(table(), client="ward", target="days")


def test_a_table_becomes_clients(task):
    data = task.load()
    assert data["features"].shape == (120, 3)
    assert (data["features"][:, -1] == 1).all()
    assert data["names"].tolist() == [f"ward {number}" for number in range(6)]
    assert np.bincount(data["owner"]).tolist() == [20] * 6
    assert data["target"].std() == pytest.approx(1.0)
    assert "6 clients" in task.label


def test_heads_are_judged_on_rows_they_were_not_fitted_on(task):
    clients = user.clients_of(cell(task))
    assert clients.fits.counts.tolist() == [10] * 6
    assert clients.planted is None
    again, other = user.clients_of(cell(task)), user.clients_of(cell(task, seed=1))
    np.testing.assert_array_equal(clients.fits.heads, again.fits.heads)
    assert not np.array_equal(clients.fits.heads, other.fits.heads)
    strict = user.clients_of(cell(task, ridge=1e6))
    assert np.abs(strict.fits.heads).max() < 1e-2
    np.testing.assert_allclose(strict.errors(strict.fits.heads * 0), clients.errors(clients.fits.heads * 0))


def test_every_way_to_share_is_measured(task):
    found = bench.run(cell(task))
    derived = arms.derive({"gadaphead": found.metrics})
    assert set(derived) == {arm.name for arm in arms.SHARED} - {"oracle_groups"}  # nothing is planted
    assert "ari" not in found.metrics
    own = bench.run(cell(task, "local")).metrics["mse"]
    best = bench.run(cell(task, "oracle_lambda")).metrics["mse"]
    assert best <= found.metrics["mse"]
    assert best < own
    assert bench.run(cell(task, "fedavg")).metrics["mse"] > own  # two kinds with opposite slopes


def test_two_texts_are_a_target():
    data = table() | {"days": np.where(table()["days"] > 0, "ill", "well")}
    made = user.user_task(data, client="ward", target="days").load()["target"]
    assert len(np.unique(made)) == 2
    assert made.mean() == pytest.approx(0.0, abs=1e-9)


def test_numbers_are_clients_too():
    data = table() | {"ward": np.repeat(np.arange(6.0), 20)}
    assert len(user.user_task(data, client="ward", target="days").load()["names"]) == 6


def _changed(**columns):
    return table() | columns


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        (table(), {"client": "wrad", "target": "days"}, "ward"),
        (table(), {"client": "ward", "target": "day"}, "days"),
        (table(), {"client": "ward", "target": "ward"}, "both 'ward'"),
        (_changed(ward=np.repeat("one", 120)), {"client": "ward", "target": "days"}, "number of clients is 1"),
        (_changed(ward=np.array(["a"] * 118 + ["b"] * 2)), {"client": "ward", "target": "days"}, "client 'b'"),
        (_changed(days=np.repeat(["a", "b", "c"], 40)), {"client": "ward", "target": "days"}, "two different texts"),
        (_changed(days=np.ones(120)), {"client": "ward", "target": "days"}, "alike"),
        (_changed(days=np.r_[np.nan, np.arange(119.0)]), {"client": "ward", "target": "days"}, "row 1"),
        (_changed(days=1e308 * np.resize([1.0, -1.0, 1.0], 120)), {"client": "ward", "target": "days"}, "too large"),
        (
            _changed(ward=np.repeat(["a", "", "c"], 40)),
            {"client": "ward", "target": "days"},
            "row 41.*client is missing",
        ),
        (_changed(ward=np.r_[np.nan, np.ones(119)]), {"client": "ward", "target": "days"}, "row 1.*client is missing"),
        ("no_such_table.csv", {"client": "ward", "target": "days"}, "no_such_table.csv"),
    ],
)
def test_what_cannot_be_used_is_named(data, options, named):
    with pytest.raises(InputError, match=named):
        user.user_task(data, **options)


def test_too_many_features_are_refused(monkeypatch):
    monkeypatch.setattr(user, "_MOST_FEATURES", 1)
    with pytest.raises(InputError, match="2 features"):
        user.client_arrays(read_table(table()), user.Options(client="ward", target="days"))


def _walkers(targets):
    """Return clients that walk towards heads of their own under noise."""

    def walker(target):
        def train(trunk, head, round, draws):
            after = head + 0.5 * (target - head) + 0.4 * draws.normal(size=head.shape)
            return ClientUpdate(trunk, after, None, 0.16 * len(head), 1)

        return train

    return [walker(target) for target in targets]


def test_learners_of_ones_own_are_weighed():
    targets = np.repeat(3.0 * generator("test", "gadaphead/walkers", 0).normal(size=(2, 6)), 3, axis=0)
    found = user.weigh_clients(
        lambda: _walkers(targets),
        ({}, np.zeros(6)),
        lambda number, client, sent: float(((sent.head - targets[number]) ** 2).sum()),
        rounds=12,
        seeds=3,
    )
    assert {name: values.shape for name, values in found.items()} == dict.fromkeys(found, (3, 6))
    assert found["gadaphead"].mean() < found["local"].mean() < found["fedavg"].mean()
    np.testing.assert_array_equal(found["fedper"], found["local"])  # there is no trunk to share


def _weighed(make=lambda: _walkers(np.ones((2, 3))), evaluate=lambda *_: 0.0, **settings):
    return user.weigh_clients(make, ({}, np.zeros(3)), evaluate, rounds=1, **settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"arms": ("fedpr",)}, "Did you mean 'fedper'"),
        ({"arms": ("fedprox",)}, "'fedprox' is not known"),  # its pull is in clients that know of it
        ({"seeds": 0}, "seeds"),
        ({"evaluate": lambda *_: np.nan}, "evaluate: .* finite number, got nan for client 0"),
        ({"evaluate": lambda *_: "good"}, "evaluate: .* got 'good'"),
        ({"make": iter([_walkers(np.ones((2, 3))), _walkers(np.ones((3, 3)))]).__next__}, "equally many clients"),
    ],
)
def test_wrong_settings_of_a_weighing_are_named(settings, named):
    with pytest.raises(InputError, match=named):
        _weighed(**settings)


def test_a_client_that_fails_ends_a_weighing():
    def fails(trunk, head, round, draws):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        _weighed(lambda: [*_walkers(np.ones((2, 3))), fails])
