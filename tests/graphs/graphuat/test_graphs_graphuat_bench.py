"""The bench's cells: planted sources, removal, the user's own graph; figures are the contestants', and pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from steelyard import data as steelyard_data
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat import bench, cells, sources, studies, tasks, user
from steelyard.graphs.graphuat.arms import ARMS, derive
from steelyard.graphs.graphuat.attribution import Attributor, Settings, reference_nodes
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.diagrams import picture
from steelyard.graphs.graphuat.explanation import NodeAttribution
from steelyard.graphs.graphuat.sources import Scored
from steelyard.graphs.graphuat.teachers import build_teacher, save_teacher

BENCH = bench.BENCH
PARAMS = {"judged": 8, "epochs": 40, "teacher_epochs": 40, "few": 2, "gnnexplainer_epochs": 2, "integrated": True}


def cell(task, arm="graphuat", seed=0, data=None, **params):
    data = dict(BENCH.task(task).load()) if data is None else data
    return CellInput(task, arm, {}, {**PARAMS, **params}, {}, seed, data, root="tuning")


def small_graph(seed=0, **changes):
    sizes = {"nodes": 200, "classes": 3, "words": 90, "topic_words": 20, "train_per_class": 8, "val": 40}
    return generate_csbm(np.random.default_rng(seed), **{**sizes, **changes})


@pytest.fixture(scope="module")
def planted_cell():
    return bench.run(cell("csbm"))


def test_a_planted_cell_has_every_arms_figures(planted_cell):
    found = derive({"graphuat": planted_cell.metrics})
    derived = {arm.name for arm in ARMS if arm.derived}
    assert derived - set(found) == {"attention"}  # the teacher is a GCN
    known = {metric.name for metric in BENCH.metrics}
    assert all(set(values) <= known for values in found.values())
    assert all(math.isfinite(value) for value in planted_cell.metrics.values())
    for name in ("teacher_entropy", "neighbour_mean", "counting", "integrated", "plain_epistemic"):
        assert {"source_accuracy", "auroc_feature", "auroc_structure", "auroc_coverage"} <= set(found[name])
    for name in ("saliency", "random", "degree", "entropy_gradient"):
        assert {"drop_1", "drop_5", "drop_auc", "edge_precision", "planted_drop"} <= set(found[name])
    assert set(found["gnnexplainer"]) == {"few_drop", "cpu_node"}
    assert found["planted_first"]["planted_drop"] > found["random"]["planted_drop"]
    assert found["counting"]["auroc_feature"] == 1.0  # sixty words more are easy to count


def test_a_planted_cell_draws_a_node_and_curves(planted_cell):
    (diagram,) = planted_cell.diagrams
    assert diagram.nodes[0].kind == "main"
    assert sum(node.kind == "bad" for node in diagram.nodes) <= 4
    assert {trace.name for trace in BENCH.traces} == set(planted_cell.traces)
    assert all(x[0] == y[0] == 0.0 and x[-1] == 5.0 for x, y in planted_cell.traces.values())
    assert planted_cell.steps > 0


def test_equal_seeds_give_equal_cells(planted_cell):
    again = bench.run(cell("csbm"))
    timed = ("cpu", "cpu_node")
    same = {name: value for name, value in planted_cell.metrics.items() if not name.endswith(timed)}
    assert same == {name: again.metrics[name] for name in same}
    other = bench.run(cell("csbm", seed=1, few=0, integrated=False))
    assert other.metrics["drop_1"] != planted_cell.metrics["drop_1"]
    assert "few_drop" not in other.metrics
    assert "integrated" not in derive({"graphuat": other.metrics})
    assert other.diagrams == ()


def test_lines_to_compare_with():
    chance, ceiling = (bench.run(cell("csbm", arm)).metrics for arm in ("chance", "planted"))
    assert chance["source_accuracy"] == pytest.approx(1 / 3)
    assert chance["auroc_structure"] == 0.5
    assert set(ceiling.values()) == {1.0}


def test_removal_alone_and_attention():
    arrays = small_graph()
    found = bench.run(cell("texas", data=arrays))
    assert "source_accuracy" not in found.metrics
    assert found.diagrams == ()
    graph = tasks.as_graph(arrays, words=True)
    work = studies.study(cell("cora_gat", data=arrays), graph, kind=tasks.teacher_of("cora_gat"), judged=4)
    attending = cells.measured(cell("cora_gat", data=arrays, few=0), work)
    assert "drop_1" in derive({"graphuat": attending.metrics})["attention"]


def test_tasks_and_their_teachers():
    assert [tasks.teacher_of(name) for name in ("cora", "cora_gat", "citeseer_sage", "texas")] == [
        "gcn", "gat", "sage", "gcn",
    ]  # fmt: skip
    assert {task.name for task in BENCH.tasks} == {*tasks.PLANTED, *tasks.REMOVAL}


def test_a_seed_takes_its_own_split(mirror_or_skip):
    data = dict(tasks.public("texas")())
    assert data["train_mask"].shape == (10, 183)
    taken = [tasks.arrays_of(cell("texas", seed=seed, data=data))["train_mask"] for seed in (3, 13)]
    assert np.array_equal(taken[0], taken[1])
    assert np.array_equal(taken[0], steelyard_data.graph_arrays("texas", 3)["train_mask"])
    assert tasks.public("cora")()["train_mask"].shape == (2708,)


@pytest.fixture
def mirror_or_skip():
    try:
        steelyard_data.locate("cora")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_words_are_divided_by_their_sum():
    arrays = small_graph()
    graph = tasks.as_graph(arrays, words=True)
    sums = graph.x.sum(1)
    assert torch.allclose(sums[sums > 0], torch.ones(()))
    assert torch.equal(graph.x != 0, torch.from_numpy(arrays["x"] != 0))
    assert torch.equal(tasks.as_graph(arrays, words=False).x, torch.from_numpy(arrays["x"]))


# --- drawing nodes ---------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), count=st.integers(1, 250))
def test_judged_nodes_are_test_nodes_with_an_edge(seed, count):
    arrays = small_graph(seed % 5)
    graph = tasks.as_graph(arrays, words=False)
    taken = np.flatnonzero(arrays["test_mask"])[:20]
    nodes = studies.drawn_nodes(graph, np.random.default_rng(seed), count, taken)
    degree = np.bincount(arrays["edge_index"][1], minlength=200)
    assert arrays["test_mask"][nodes].all()
    assert (degree[nodes] > 0).all()
    assert not set(nodes) & set(taken)
    assert (np.diff(nodes) > 0).all()
    assert len(nodes) == min(count, int(((degree > 0) & arrays["test_mask"]).sum()) - int((degree[taken] > 0).sum()))


def test_the_bench_takes_the_reference_that_users_get():
    graph = tasks.as_graph(small_graph(val=120, train_per_class=4), words=False)
    work = studies.study(cell("csbm", epochs=1, teacher_epochs=1), graph, kind="gcn")
    made = Attributor(work.teacher, graph, student=work.student, settings=Settings(seed=work.seed))
    assert made._reference == work.reference.tolist()
    some = reference_nodes(graph, 0, 10)
    assert len(some) == 10
    assert graph.val_mask.numpy()[some].all()


def test_no_edges_to_remove():
    graph = tasks.as_graph({**small_graph(), "edge_index": np.zeros((2, 0), dtype=np.int64)}, words=False)
    with pytest.raises(InputError, match="no test node with an edge"):
        studies.drawn_nodes(graph, np.random.default_rng(0), 5, np.zeros(0, dtype=np.int64))


def test_means_leave_out_what_is_missing():
    assert studies.mean_of([1.0, math.nan, 3.0]) == 2.0
    assert studies.mean_of([math.nan]) is None


# --- naming sources --------------------------------------------------------------------------------------------------


@given(
    scores=st.lists(st.integers(0, 5), min_size=4, max_size=30),
    flips=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_the_area_is_that_of_the_peer(scores, flips):
    positive = np.array(flips[: len(scores)])
    if positive.all() or not positive.any():
        positive[:2] = True, False
    found = sources.auroc(np.array(scores, dtype=float), positive)
    assert found == pytest.approx(roc_auc_score(positive, scores))


@given(shift=st.floats(-5, 5), scale=st.floats(0.1, 10), seed=st.integers(0, 100))
def test_names_do_not_depend_on_units(shift, scale, seed):
    rng = np.random.default_rng(seed)
    nodes, reference = rng.normal(size=(12, 3)), rng.normal(size=(20, 3))
    factors = np.array([scale, 1.0, 1.0])
    moved = Scored(nodes * factors + shift, reference * factors + shift)
    assert moved.named() == Scored(nodes, reference).named()


def test_names_ties_and_accuracy():
    flat = Scored(np.array([[1.0, 0, 0], [0, 0, 2.0], [1.0, 1.0, 0]]), np.array([[0.0, 0, 0], [1.0, 1, 1]]))
    assert flat.named() == ["feature", "coverage", None]
    assert sources.accuracy(["feature", None, "coverage"], ["feature", "structure", "clean"]) == 0.5
    other = flat.with_column("feature", np.array([0.0, 9.0, 9.0]), np.array([0.0, 1.0]))
    assert other.named() == [None, "feature", "feature"]
    assert flat.nodes[0, 0] == 1.0  # a copy was changed


def test_counting_counts():
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    train = np.array([True, False, False, False])
    arrays = {"x": np.eye(4, 5), "edge_index": edges, "y": np.zeros(4, int), "train_mask": train}
    graph = tasks.as_graph({**arrays, "val_mask": ~train, "test_mask": ~train}, words=False)
    # labelled nodes within two steps, by walks: node 0 itself and back from 1, node 1 through 0, node 2 over 1, 3 none
    assert sources.counted(graph, np.arange(4), np.array([3])).nodes.tolist() == [
        [1, 1, -2],
        [1, 2, -2],
        [1, 1, -1],
        [1, 0, 0],
    ]


def test_a_picture_without_edges():
    item = NodeAttribution(3, 1.0, None, None, 0.5, {}, {}, {}, None, [], [])
    drawn = picture(item, set())
    assert [node.label for node in drawn.nodes] == ["3"]
    assert "no single source" in drawn.caption


# --- the user's own graph --------------------------------------------------------------------------------------------


def graph_of(arrays, **changes):
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    return Graph(**{**tensors, **changes})


def test_a_users_graph(tmp_path):
    task = BENCH.user_task(graph_of(small_graph()), words=True)
    found = bench.run(cell("user", data=dict(task.load())))
    assert {"drop_1", "drop_auc", "few_drop"} <= set(found.metrics)
    assert "source_accuracy" not in found.metrics


def test_a_users_file_and_teacher(tmp_path):
    arrays = small_graph()
    np.savez(tmp_path / "mine.npz", **{name: arrays[name] for name in ("x", "edge_index", "y")})
    save_teacher(build_teacher("sage", 90, 3, seed=1), tmp_path / "teacher.safetensors")
    task = BENCH.user_task(tmp_path / "mine.npz", teacher=str(tmp_path / "teacher.safetensors"))
    assert task.label == "your graph mine.npz"
    data = dict(task.load())
    assert len(data["settings"][3]) == 64
    parts = user._masks(cell("user", data=data))
    assert np.sum([parts[name] for name in sorted(parts)], axis=0).tolist() == [1] * 200
    assert parts["train_mask"].sum() == 120
    found = bench.run(cell("user", data=data, few=0))
    assert "teacher_cpu" not in found.metrics


def test_what_a_user_cannot_bring(tmp_path):
    arrays = small_graph()
    with pytest.raises(InputError, match="data has no labels"):
        user.user_task(graph_of(arrays, y=None))
    with pytest.raises(InputError, match="data has 3 nodes with a label"):
        user.user_task(graph_of(arrays, y=torch.cat([torch.zeros(3), -torch.ones(197)]).long()))
    save_teacher(build_teacher("gcn", 7, 3), tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="takes 7 features a node, the graph has 90"):
        user.user_task(graph_of(arrays), teacher=str(tmp_path / "other.safetensors"))
    with pytest.raises(ValueError, match="kind"):
        user.user_task(graph_of(arrays), kind="mlp")
