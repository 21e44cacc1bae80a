"""Reading weighings back."""

import contextlib
import sqlite3

import pytest

from steelyard import catalog
from steelyard.bench import open_source, runner
from steelyard.bench.results import Row
from steelyard.bench.source import read_results, with_derived
from steelyard.bench.store import Store
from steelyard.contracts import Arm
from steelyard.errors import InputError, MissingExtraError, StoreError
from toys.tools import planned


@pytest.fixture
def path(tmp_path):
    planned(tmp_path / "s.db", "bad", seeds=1)
    with Store(tmp_path / "s.db") as store:
        runner.run(store, store.weighing_ids(), 2)
    return tmp_path / "s.db"


def read(path):
    with Store(path) as store:
        return read_results(store, store.weighing_ids()[-1])


def test_rows_hold_what_cells_measured(path):
    results = read(path)
    rows = {row.arm: row for row in results.rows}
    assert list(rows) == ["biased", "fair", "raise", "nan", "oracle"]
    assert (rows["biased"].state, rows["biased"].steps, rows["biased"].config) == ("done", 1, {"bias": 1.0})
    assert rows["biased"].traces["walk"] == (
        (0.0, 1.0),
        (rows["biased"].traces["walk"][1][0], rows["biased"].metrics["score"]),
    )
    assert rows["biased"].notes["pid"] != rows["fair"].notes["pid"]
    assert rows["biased"].cpu_s <= rows["biased"].wall_s + 0.1
    assert rows["biased"].rss_mb > 1
    assert (rows["raise"].state, rows["raise"].metrics) == ("failed", {})
    assert (rows["oracle"].key, rows["oracle"].state) == ("", "done")
    assert results.finished
    assert results.environment["steelyard"]


def test_an_unfinished_weighing_has_rows_and_no_verdicts(tmp_path):
    planned(tmp_path / "s.db")
    results = read(tmp_path / "s.db")
    assert (results.finished, results.verdicts) == (False, ())
    assert {row.state for row in results.rows} == {"waiting"}
    assert [arm.name for arm in results.arms] == ["biased", "fair"]


@pytest.mark.parametrize("error", [MissingExtraError("no torch"), SyntaxError("a bench that was edited badly")])
def test_where_the_bench_cannot_be_loaded_results_can_still_be_read(path, monkeypatch, error):
    def missing(_):
        raise error

    monkeypatch.setattr(catalog, "load_bench", missing)
    results = read(path)
    assert [row.arm for row in results.rows] == ["biased", "fair", "raise", "nan"]
    assert results.verdicts


def rows(**metrics):
    return [Row(key=arm, task="t", arm=arm, seed=0, state="done", metrics=values) for arm, values in metrics.items()]


ARMS = tuple(Arm(name=name, label=name, role="baseline", derived=name == "best") for name in ("a", "b", "best"))


def test_derived_metrics_are_added_to_arms_and_as_arms():
    def derive(arms):
        return {"a": {"rank": 1.0}, "best": {"x": max(v["x"] for v in arms.values())}, "stranger": {"x": 0.0}}

    found = {row.arm: row.metrics for row in with_derived(rows(a={"x": 1.0}, b={"x": 2.0}), ARMS, derive)}
    assert found == {"a": {"x": 1.0, "rank": 1.0}, "b": {"x": 2.0}, "best": {"x": 2.0}}


def test_derive_sees_finished_cells_and_numbers_only():
    seen = []
    failed = Row(key="b", task="t", arm="b", seed=0, state="failed", metrics={"x": 5.0})
    half = Row(key="a", task="t", arm="a", seed=0, state="done", metrics={"x": None, "y": 1.0})
    with_derived([half, failed], ARMS, lambda arms: seen.append(arms) or {"b": {"z": 1.0}})
    assert seen == [{"a": {"y": 1.0}}]
    (row,) = [row for row in with_derived([half, failed], ARMS, lambda _: {"b": {"z": 1.0}}) if row.arm == "b"]
    assert row.metrics == {"x": 5.0}
    assert with_derived([half], ARMS, None) == [half]


def test_open_source(path):
    newest = planned(path, seeds=1)
    source = open_source(path)
    found = source.weighings()
    assert [row["finished"] for row in found] == [False, True]
    assert found[0]["id"] == newest
    assert (found[1]["done"], found[1]["failed"], found[1]["total"]) == (2, 2, 4)
    assert source.results(newest).id == newest
    with pytest.raises(InputError, match="no weighing 'x'"):
        source.results("x")
    with pytest.raises(StoreError, match="there is no store at"):
        open_source(path.with_name("other.db"))


def test_the_public_names_of_bench():
    import steelyard.bench as bench

    assert set(bench.__all__) >= {
        "paired_interval",
        "sign_flip_p",
        "holm",
        "verdict",
        "iqm",
        "seeds_needed",
        "open_source",
    }
    for name in bench.__all__:
        assert getattr(bench, name) is not None
    assert dir(bench) == bench.__all__
    with pytest.raises(AttributeError, match=r"module 'steelyard.bench' has no attribute 'nothing'"):
        _ = bench.nothing


def test_a_row_that_is_no_longer_json_is_damage(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE cell SET result = 'x' || result WHERE state = 'done'")
        db.commit()
    with pytest.raises(StoreError, match="is damaged"):
        read(path)


def test_a_plan_that_is_no_longer_json_is_damage(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE weighing SET plan = substr(plan, 1, 100)")
        db.commit()
    with pytest.raises(StoreError, match="is damaged"):
        read(path)
