"""Tuning: the best setting of every arm, on seeds that no verdict is read from."""

import dataclasses
import json

import pytest

from steelyard import catalog
from steelyard.bench.store import Store
from steelyard.bench.tune import TUNING_SEEDS, tune
from steelyard.errors import InputError
from toys.tuned.bench import BENCH


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.db") as opened:
        yield opened


def test_the_best_setting_wins(store, tmp_path):
    seen = []
    path = tune("toys.tuned", store, tmp_path / "tuned.json", 2, seen.append)
    found = json.loads(path.read_text())["noise"]
    assert found["biased"]["config"] == {"bias": 3.0}
    assert [point["config"]["bias"] for point in found["biased"]["tried"]] == [1.0, 3.0, 2.0]
    assert found["biased"]["score"] == max(point["score"] for point in found["biased"]["tried"])
    assert found["biased"]["seeds"] == list(TUNING_SEEDS)
    assert found["fair"]["config"] == {}
    assert seen[-1].done == 4 * len(TUNING_SEEDS)
    roots = {json.loads(cell["spec"])["root"] for cell in store.cells(store.weighing_ids()[0])}
    assert roots == {"tuning"}


def test_what_is_tuned_already_is_not_run_again(store, tmp_path):
    tune("toys.tuned", store, tmp_path / "one.json", 2)
    before = [(cell["key"], cell["attempts"]) for cell in store.cells(store.weighing_ids()[0])]
    tune("toys.tuned", store, tmp_path / "two.json", 2)
    assert [(cell["key"], cell["attempts"]) for cell in store.cells(store.weighing_ids()[1])] == before
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def test_lower_is_better_where_the_metric_says_so(store, tmp_path, monkeypatch):
    lower = BENCH.metrics[0].model_copy(update={"better": "lower"})
    bench = dataclasses.replace(BENCH, metrics=(lower,))
    monkeypatch.setattr(catalog, "load_bench", lambda _: bench)
    path = tune("toys.tuned", store, tmp_path / "tuned.json", 1)
    assert json.loads(path.read_text())["noise"]["biased"]["config"] == {"bias": 1.0}


def test_of_settings_alike_to_the_last_bit_the_first_wins(store, tmp_path, monkeypatch):
    scores = iter((0.7, 0.9, 0.9000000000000001, 0.5))
    monkeypatch.setattr("steelyard.bench.tune._mean", lambda *_: next(scores))
    found = json.loads(tune("toys.tuned", store, tmp_path / "tuned.json", 2).read_text())
    assert found["noise"]["biased"]["config"] == {"bias": 3.0}


def test_a_setting_that_fails_cannot_win(store, tmp_path, monkeypatch):
    grid = {"biased": [{"bias": 1.0}, {"bias": 9.0, "fate": "nan"}]}
    bench = dataclasses.replace(BENCH, grid=grid)
    monkeypatch.setattr(catalog, "load_bench", lambda _: bench)
    found = json.loads(tune("toys.tuned", store, tmp_path / "tuned.json", 2).read_text())
    assert found["noise"]["biased"]["config"] == {"bias": 1.0}
    assert found["noise"]["biased"]["tried"][1]["score"] is None


def test_no_setting_that_finished(store, tmp_path, monkeypatch):
    bench = dataclasses.replace(BENCH, grid={"biased": [{"fate": "nan"}]})
    monkeypatch.setattr(catalog, "load_bench", lambda _: bench)
    with pytest.raises(InputError, match=r"no setting of biased on noise finished all its cells"):
        tune("toys.tuned", store, tmp_path / "tuned.json", 2)
    assert not (tmp_path / "tuned.json").exists()


def test_nothing_to_tune(store):
    with pytest.raises(InputError, match=r"toys.coin has no grid to tune"):
        tune("toys.coin", store)


def test_the_default_place_is_beside_the_bench(store, monkeypatch):
    from toys import tuned

    written = []
    monkeypatch.setattr("pathlib.Path.write_text", lambda self, text: written.append(self))
    tune("toys.tuned", store, jobs=2)
    assert [str(path) for path in written] == [f"{tuned.__path__[0]}/tuned.json"]
