"""From a request to cells, and the keys that say when two cells are the same."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from steelyard import catalog
from steelyard.bench import plan as module
from steelyard.bench.plan import _few, is_stale, make_cell, make_plan, source_hash, validate
from steelyard.bench.store import Store
from steelyard.contracts import Block, Task
from steelyard.errors import InputError
from toys.coin.bench import BENCH, profile


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.db") as opened:
        yield opened


def keys(plan):
    return [cell["key"] for cell in plan.cells]


def replaced(monkeypatch, **changes):
    bench = dataclasses.replace(BENCH, **changes)
    monkeypatch.setattr(catalog, "load_bench", lambda _: bench)
    return bench


def test_cells_come_seed_by_seed(store):
    plan = make_plan("toys.coin", store, seeds=2)
    assert [(cell["seed"], cell["task"], cell["arm"]) for cell in plan.cells] == [
        (0, "noise", "biased"), (0, "noise", "fair"), (1, "noise", "biased"), (1, "noise", "fair"),
    ]  # fmt: skip
    assert plan.id.startswith("coin-quick-")
    spec = plan.cells[0]["spec"]
    assert (spec["config"], spec["params"], spec["root"]) == ({"bias": 1.0}, {"sleep": 0.0}, "evaluation")
    assert (spec["seconds"], spec["memory_mb"], plan.cells[0]["exclusive"]) == (60.0, 4096, 0)


def test_equal_requests_have_equal_keys_and_other_names(store):
    first, second = make_plan("toys.coin", store), make_plan("toys.coin", store)
    assert keys(first) == keys(second)
    assert len(set(keys(first))) == 12
    assert first.id != second.id
    assert keys(make_plan("toys.coin", store, seeds=[3, 4])) == keys(make_plan("toys.coin", store))[6:10]


def test_what_changes_a_result_changes_the_key(store, monkeypatch):
    base = set(keys(make_plan("toys.coin", store, seeds=1)))
    assert not base & set(keys(make_plan("toys.coin", store, profile="many", seeds=1)))
    other_data = dataclasses.replace(BENCH.tasks[0], load=lambda: {"x": np.ones(3)})
    replaced(monkeypatch, tasks=(other_data,))
    assert not base & set(keys(make_plan("toys.coin", store, seeds=1)))
    replaced(monkeypatch, tuned={"noise": {"biased": {"bias": 2.0}}})
    assert len(base & set(keys(make_plan("toys.coin", store, seeds=1)))) == 1
    replaced(monkeypatch)
    monkeypatch.setattr(module, "source_hash", lambda _: "changed")
    assert not base & set(keys(make_plan("toys.coin", store, seeds=1)))


CONTENT = {
    "task": "t",
    "arm": "a",
    "seed": 0,
    "config": {"b": 1, "a": [1.5]},
    "params": {},
    "options": {},
    "data": ["d"],
}


@given(st.permutations(list(CONTENT)))
def test_the_order_of_fields_does_not_change_the_key(order):
    quick = BENCH.profiles["quick"]
    wanted = make_cell("m", quick, "s", "evaluation", CONTENT)["key"]
    assert make_cell("m", quick, "s", "evaluation", {name: CONTENT[name] for name in order})["key"] == wanted


@given(st.sampled_from(list(CONTENT)))
def test_every_field_changes_the_key(name):
    quick = BENCH.profiles["quick"]
    other = make_cell("m", quick, "s", "evaluation", {**CONTENT, name: "other"})
    assert other["key"] != make_cell("m", quick, "s", "evaluation", CONTENT)["key"]


def test_limits_do_not_change_the_key():
    quick = BENCH.profiles["quick"]
    longer = quick.model_copy(update={"cell_seconds": 999.0})
    first, second = (make_cell("m", size, "s", "evaluation", CONTENT) for size in (quick, longer))
    assert first["key"] == second["key"]
    assert second["spec"]["seconds"] == 999.0


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, np.float32(1)])
def test_a_config_that_is_not_json_is_refused(value):
    with pytest.raises(InputError, match="arm a: its configuration is not plain JSON"):
        make_cell("m", BENCH.profiles["quick"], "s", "evaluation", {**CONTENT, "config": {"x": value}})


@pytest.mark.parametrize(
    ("given_seeds", "wanted"),
    [(None, 6), (2, 2), (np.int64(3), 3), ([4, 7], [4, 7]), (np.array([5]), [5]), (range(2), 2), (iter([1]), [1])],
)
def test_seeds(store, given_seeds, wanted):
    found = make_plan("toys.coin", store, seeds=given_seeds).record["seeds"]
    assert found == (list(range(wanted)) if isinstance(wanted, int) else wanted)
    json.dumps(found)


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], [-1], 2.5, "3", [0.5], ["a"], {}, object()])
def test_bad_seeds(store, seeds):
    with pytest.raises(InputError, match="seeds must be a number above 0 or a list of distinct seeds, got "):
        make_plan("toys.coin", store, seeds=seeds)


def test_blocks_with_their_own_seeds_and_params(store, monkeypatch):
    few = Block(tasks=("noise",), arms=("nan",), seeds=1, params={"sleep": 0.5, "extra": 1})
    quick = profile("quick", ("biased", "oracle"), seeds=2, sleep=0.1)
    replaced(monkeypatch, profiles={"quick": quick.model_copy(update={"blocks": (*quick.blocks, few)})})
    plan = make_plan("toys.coin", store)
    assert [(cell["arm"], cell["seed"]) for cell in plan.cells] == [("biased", 0), ("nan", 0), ("biased", 1)]
    assert [cell["spec"]["params"] for cell in plan.cells[:2]] == [{"sleep": 0.1}, {"sleep": 0.5, "extra": 1}]
    assert plan.record["without_verdict"] == [["noise", "nan"]]
    assert [arm["name"] for arm in plan.record["arms"]] == ["biased", "oracle", "nan"]


def test_an_arm_on_fewer_seeds_takes_no_verdict_from_the_others():
    blocks = (
        Block(tasks=("a", "b"), arms=("ours", "theirs")),
        Block(tasks=("a",), arms=("late",), seeds=1),
        Block(tasks=("a",), arms=("ours",), seeds=1, params={"extra": 1}),
        Block(tasks=("c",), arms=("ours", "theirs"), seeds=1),
    )
    assert _few(blocks) == ["c", ["a", "late"]]


def test_arms(store):
    plan = make_plan("toys.coin", store, seeds=1, arms=["fair"])
    assert [cell["arm"] for cell in plan.cells] == ["fair"]
    assert [arm["name"] for arm in plan.record["arms"]] == ["fair", "oracle"]
    with pytest.raises(InputError, match=r"unknown arm 'fare'. Did you mean 'fair'?"):
        make_plan("toys.coin", store, arms=["fare"])
    with pytest.raises(InputError, match="none of the arms die is part of the quick profile"):
        make_plan("toys.coin", store, arms=["die"])


def test_own_data(store):
    plan = make_plan("toys.coin", store, data=[1.0, 2.0], options={"label": "mine"})
    assert plan.record["seeds"] == list(range(8))
    assert plan.record["options"] == {"label": "mine"}
    (task,) = plan.record["tasks"]
    assert (task["name"], task["label"], task["shapes"]) == ("yours", "mine", {"x": [2]})
    assert plan.cells[0]["spec"]["options"] == {"label": "mine"}


def test_own_data_where_a_bench_takes_none_or_no_options(store, monkeypatch):
    replaced(monkeypatch, options=None, user_task=lambda data: Task("y", "y", lambda: {"x": np.asarray(data)}))
    assert make_plan("toys.coin", store, data=[1.0]).record["options"] == {}
    with pytest.raises(InputError, match=r"toys.coin takes no option beside the data, got: label"):
        make_plan("toys.coin", store, data=[1.0], options={"label": "x"})
    replaced(monkeypatch, user_task=None)
    with pytest.raises(InputError, match=r"toys.coin takes no data of your own"):
        make_plan("toys.coin", store, data=[1.0])
    with pytest.raises(InputError, match="label: only with data of your own"):
        make_plan("toys.coin", store, options={"label": "x"})


class Fields(BaseModel, extra="forbid"):
    two_words: int
    other: float = 1.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"two-words": "x"}, "here: option 'two_words': .*, got 'x'"),
        ({}, r"here: option 'two_words' is missing \(--two-words …\)"),
        ({"two_word": 1}, "here: unknown option 'two_word'. Did you mean 'two_words'. Options: two_words, other"),
        ({"two_words": 1, "zzz": 1}, "here: unknown option 'zzz'. Options: two_words, other"),
    ],
)
def test_validate(values, said):
    with pytest.raises(InputError, match=said) as caught:
        validate(Fields, values, "here")
    assert "\n" not in str(caught.value)


def test_validate_takes_dashes():
    assert validate(Fields, {"two-words": "3"}, "here").two_words == 3


def test_what_a_task_prepares_is_computed_once_per_data_and_source(store, monkeypatch):
    calls = []

    def prepare(arrays):
        calls.append(1)
        return {"twice": 2 * arrays["x"]}

    replaced(monkeypatch, tasks=(dataclasses.replace(BENCH.tasks[0], prepare=prepare),))
    first, second = make_plan("toys.coin", store), make_plan("toys.coin", store)
    assert len(calls) == 1
    assert first.blobs == second.blobs
    assert len(first.blobs) == 2
    assert first.cells[0]["spec"]["data"] == list(first.blobs)
    monkeypatch.setattr(module, "source_hash", lambda _: "f" * 64)
    make_plan("toys.coin", store)
    assert len(calls) == 2


def test_a_task_without_preparation(store, monkeypatch):
    replaced(monkeypatch, tasks=(dataclasses.replace(BENCH.tasks[0], prepare=None),))
    assert len(make_plan("toys.coin", store).blobs) == 1


def test_the_source_is_that_of_the_method_and_of_what_it_rests_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sourced", "sourced/one", "sourced/two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert source_hash("sourced.one") == source_hash("sourced.two")
    (tmp_path / "sourced" / "two" / "core.py").write_text("x = 1")
    assert source_hash("sourced.one") != source_hash("sourced.two")


def test_a_weighing_is_stale_when_its_code_has_changed_or_is_gone(store, monkeypatch):
    record = make_plan("toys.coin", store, seeds=1).record
    assert not is_stale(record)
    assert is_stale({**record, "source": "other"})
    assert is_stale({**record, "method": "unknown"})
    assert is_stale({**record, "method": "no.such"})
