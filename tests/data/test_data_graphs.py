"""Graphs: the pinned sets are what their sources say, and a user's file is read or refused with its place."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import data
from steelyard.data.graphs import GRAPHS
from steelyard.data.registry import DATASETS, Pin, lookup
from steelyard.errors import DataMissingError, InputError

MIRROR_ONLY_GRAPHS = ("citeseer", "cora")
COUNTED = {  # nodes, features, directed edges, training nodes of split 0, classes
    "cora": (2708, 1433, 10_556, 140, 7),
    "citeseer": (3327, 3703, 9_104, 120, 6),
    "minesweeper": (10_000, 7, 78_804, 5_000, 2),
    "tolokers": (11_758, 10, 1_038_000, 5_879, 2),
    "actor": (7_600, 932, 53_318, 3_648, 5),
    "texas": (183, 1_703, 558, 87, 5),
    "cornell": (183, 1_703, 554, 87, 5),
    "wisconsin": (251, 1_703, 900, 120, 5),
    "chameleon_filtered": (890, 2_325, 17_708, 409, 5),
    "squirrel_filtered": (2_223, 2_089, 93_996, 1_053, 5),
}


@pytest.fixture
def mirrored(mirror, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(mirror))


def test_which_graphs_only_a_mirror_has():
    graphs = [dataset for dataset in DATASETS.values() if dataset.room == "graphs"]
    assert sorted(dataset.name for dataset in graphs) == sorted(GRAPHS) == sorted(COUNTED)
    assert sorted(dataset.name for dataset in graphs if dataset.mirror_only) == list(MIRROR_ONLY_GRAPHS)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_what_a_graph_holds(mirrored, name):
    graph = data.graph_arrays(name)
    nodes, width, edges, train, classes = COUNTED[name]
    assert (graph["x"].shape, graph["x"].dtype) == ((nodes, width), np.float32)
    assert (graph["edge_index"].shape, graph["edge_index"].dtype) == ((2, edges), np.int64)
    source, target = graph["edge_index"]
    assert (np.diff(source * nodes + target) > 0).all()
    assert (source != target).all()
    np.testing.assert_array_equal(np.sort(source * nodes + target), np.sort(target * nodes + source))
    assert (graph["y"].min(), graph["y"].max()) == (0, classes - 1)
    masks = [graph[f"{part}_mask"] for part in ("train", "val", "test")]
    assert masks[0].sum() == train
    assert np.sum(masks, axis=0).max() == 1


def test_nodes_without_a_label_are_in_no_mask(mirrored, mirror):
    with np.load(mirror / "graphs" / "citeseer" / "citeseer.npz") as file:
        without = file["no_label_index"]
    graph = data.graph_arrays("citeseer")
    assert len(without) == 15
    assert not any(graph[f"{part}_mask"][without].any() for part in ("train", "val", "test"))
    degrees = np.bincount(graph["edge_index"][0], minlength=len(graph["y"]))
    assert (degrees == 0).sum() == 48


def test_the_web_pages_are_no_copies_of_each_other(mirrored):
    texas, cornell = (data.graph_arrays(name) for name in ("texas", "cornell"))
    assert np.bincount(texas["y"]).tolist() == [33, 1, 18, 101, 30]
    assert np.bincount(cornell["y"]).tolist() == [38, 16, 30, 82, 17]
    lonely = texas["y"] == 1
    assert not (texas["train_mask"] | texas["test_mask"])[lonely].any()


def test_splits_differ(mirrored):
    masks = [data.graph_arrays("texas", split)["train_mask"] for split in range(10)]
    assert len({mask.tobytes() for mask in masks}) == 10
    with pytest.raises(InputError, match=r"split must be 0 to 9, the splits of .*texas.*, got 10"):
        data.graph_arrays("texas", 10)
    with pytest.raises(InputError, match=r"split must be 0 to 0, the splits of .*cora.*, got 1"):
        data.graph_arrays("cora", 1)


def test_a_name_is_corrected():
    with pytest.raises(InputError, match=r"unknown graph 'coral'.*Did you mean 'cora'\?"):
        data.graph_arrays("coral")


@pytest.mark.parametrize("name", MIRROR_ONLY_GRAPHS)
def test_pickled_sources_are_not_fetched(cache, name):
    with pytest.raises(DataMissingError, match=rf"'{name}' is not here, .* in a mirror folder only.*pickles"):
        data.graph_arrays(name)


def test_a_fetched_graph_is_the_mirrored_one(mirror, cache, source, monkeypatch):
    for name in GRAPHS:
        real = lookup(name)
        for file, copy in zip(real.files, real.mirror, strict=bool(real.files)):
            body = (mirror / copy.path).read_bytes()
            assert (Pin(hashlib.sha256(body).hexdigest(), len(body)),) == file.pins
    real = lookup("texas")
    body = (mirror / real.mirror[0].path).read_bytes()
    local = dataclasses.replace(real.files[0], url=source.body("/texas.npz", body))
    monkeypatch.setitem(DATASETS, "texas", dataclasses.replace(real, files=(local,)))
    fetched = data.graph_arrays("texas", 3)
    assert source.asked == ["/texas.npz"]
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(mirror))
    for key, value in data.graph_arrays("texas", 3).items():
        np.testing.assert_array_equal(fetched[key], value)


# --- a user's npz ----------------------------------------------------------------------------------------------------


def plain(**changes):
    return {"x": np.eye(3), "edge_index": np.array([[0, 1], [1, 2]]), **changes}


def csr(**changes):
    parts = {"x_data": [1.0, 2.0], "x_indices": [1, 0], "x_indptr": [0, 1, 1, 2], "x_shape": [3, 2]}
    return {
        **{name: np.array(values) for name, values in parts.items()},
        "edge_index": np.array([[0], [2]]),
        **{name: np.array(values) for name, values in changes.items()},
    }


@pytest.fixture
def npz(tmp_path):
    def write(arrays, name="graph.npz"):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return write


def test_a_plain_npz(npz):
    graph = data.read_graph(npz(plain()))
    assert sorted(graph) == ["edge_index", "x"]
    assert graph["x"].dtype == np.float32
    assert graph["edge_index"].tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    kept = data.read_graph(npz(plain(y=np.array([0, -1, 1]), train_index=np.array([2]))), directed=True)
    assert kept["edge_index"].tolist() == [[0, 1], [1, 2]]
    assert kept["y"].tolist() == [0, -1, 1]
    assert kept["train_mask"].tolist() == [False, False, True]


def test_masks_and_nodes_without_label(npz):
    mask = np.array([True, True, False])
    graph = data.read_graph(npz(plain(val_mask=mask, no_label_index=np.array([1]))))
    assert graph["val_mask"].tolist() == [True, False, False]


def test_a_sparse_npz(npz):
    assert data.read_graph(npz(csr()))["x"].tolist() == [[0, 1], [0, 0], [2, 0]]


def test_the_layout_with_edges(npz):
    masks = np.array([[True, False], [False, True]])
    arrays = {"node_features": np.eye(2), "edges": np.array([[1, 0]]), "train_masks": masks}
    graph = data.read_graph(npz(arrays), split=1)
    assert graph["edge_index"].tolist() == [[0, 1], [1, 0]]
    assert graph["train_mask"].tolist() == [False, True]
    assert "y" not in graph


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_edges_come_sorted_once_and_both_ways(tmp_path_factory, pairs):
    path = tmp_path_factory.getbasetemp() / "edges.npz"
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    np.savez(path, x=np.eye(6), edge_index=ends.T)
    found = list(zip(*data.read_graph(path)["edge_index"].tolist(), strict=True))
    assert found == sorted({*pairs, *((b, a) for a, b in pairs)})
    kept = list(zip(*data.read_graph(path, directed=True)["edge_index"].tolist(), strict=True))
    assert kept == sorted(set(pairs))


@given(dense=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5))
def test_sparse_features_are_the_dense_ones(tmp_path_factory, dense):
    path = tmp_path_factory.getbasetemp() / "sparse.npz"
    x = np.array(dense, dtype=np.float32)
    rows, columns = np.nonzero(x)
    np.savez(
        path,
        x_data=x[rows, columns],
        x_indices=columns,
        x_indptr=np.searchsorted(rows, np.arange(len(x) + 1)),
        x_shape=np.array(x.shape),
        edge_index=np.zeros((2, 0), dtype=np.int64),
    )
    np.testing.assert_array_equal(data.read_graph(path)["x"], x)


BAD = [
    ({"y": np.eye(2)}, r"no array 'x'; it holds y"),
    ({"node_features": np.eye(2)}, r"no array 'edges'"),
    ({"node_features": np.eye(2), "edges": np.zeros((2, 3), int)}, r"array 'edges': its shape is \(2, 3\)"),
    (plain(edge_index=np.zeros((3, 2), int)), r"'edge_index': its shape is \(3, 2\)"),
    (plain(edge_index=np.array([[0.0], [1.0]])), r"the ends of edges are float64"),
    (plain(edge_index=np.array([[0, 0], [1, 3]])), r"edge 1: node 3 is none of the 3 nodes \(0 to 2\)"),
    (plain(edge_index=np.array([[-1], [1]])), r"edge 0: node -1 is none of"),
    (plain(x=np.zeros(3)), r"features of shape \(3,\)"),
    (plain(x=np.array([["a"]])), r"are no numbers"),
    (plain(y=np.zeros(2, int)), r"labels of shape \(2,\) and type int64 are not 3 whole numbers"),
    (plain(y=np.array([0, -2, 0])), r"label -2 is below -1"),
    (plain(train_mask=np.zeros(2, bool)), r"'train_mask': shape \(2,\) of bool is no mask of 3 nodes"),
    (plain(train_mask=np.zeros(3)), r"'train_mask': shape \(3,\) of float64 is no mask"),
    (plain(test_index=np.array([3])), r"'test_index': it does not hold numbers of nodes from 0 to 2"),
    (csr(x_shape=[3]), r"are not the parts of a sparse matrix"),
    (csr(x_data=["a", "b"]), r"are not the parts of a sparse matrix"),
    (csr(x_shape=[10**6, 10**6]), r"'x_shape': 1000000 x 1000000 features"),
    (csr(x_shape=[-3, 2]), r"'x_shape': -3 x 2 features"),
    (csr(x_indptr=[0, 2, 1, 2]), r"x_indptr and x_indices do not fit"),
    (csr(x_indptr=[0, 2]), r"x_indptr and x_indices do not fit"),
    (csr(x_indices=[0, 2]), r"x_indptr and x_indices do not fit"),
]


@pytest.mark.parametrize(("arrays", "message"), BAD)
def test_a_bad_npz_is_refused(npz, arrays, message):
    with pytest.raises(InputError, match=message):
        data.read_graph(npz(arrays))


def test_pickled_arrays_are_refused(npz):
    with pytest.raises(InputError, match=r"Python objects \(a pickle\), which are never loaded"):
        data.read_graph(npz(plain(y=np.array([None, 1, {}], dtype=object))))


def test_no_file(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*none\.npz"):
        data.read_graph(tmp_path / "none.npz")


# --- a user's tables -------------------------------------------------------------------------------------------------

EDGES = "source,target\nb,a\na,c\n"
FEATURES = "node,height,label,weight,split\na,1,x,0.5,train\nb,2,y,1.5,\nc,3,,2.5,test\n"


def tables(folder, edges=EDGES, features=FEATURES):
    (folder / "edges.csv").write_text(edges)
    (folder / "features.csv").write_text(features)
    return folder


def test_tables_in_a_folder(tmp_path):
    graph = data.read_graph(tables(tmp_path))
    assert graph["edge_index"].tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert graph["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert graph["y"].tolist() == [0, 1, -1]
    assert graph["train_mask"].tolist() == [True, False, False]
    assert graph["test_mask"].tolist() == [False, False, True]
    assert graph["ids"].tolist() == ["a", "b", "c"]
    assert graph["feature_names"].tolist() == ["height", "weight"]
    assert graph["classes"].tolist() == ["x", "y"]
    kept = data.read_graph(tmp_path / "edges.csv", tmp_path / "features.csv", directed=True)
    assert kept["edge_index"].tolist() == [[0, 1], [2, 0]]


def test_numbers_as_names(tmp_path):
    graph = data.read_graph(tables(tmp_path, "u,v\n7,12\n", "node,f,label\n12,1,30\n7,2,4\n0.5,0,\n"))
    assert graph["edge_index"].tolist() == [[0, 1], [1, 0]]
    assert graph["ids"].tolist() == ["12", "7", "0.5"]
    assert graph["y"].tolist() == [1, 0, -1]
    assert graph["classes"].tolist() == ["4", "30"]
    assert "train_mask" not in graph


def test_an_npz_in_a_folder(npz):
    assert data.read_graph(npz(plain()).parent)["x"].shape == (3, 3)


BAD_TABLES = [
    ("source\na\n", FEATURES, r"has one column; a table of edges needs two"),
    ("s,t\na,d\n", FEATURES, r"column 't': node 'd' is not in .*features\.csv"),
    ("s,t\na,\nb,c\n", FEATURES, r"column 't': a node has no name"),
    ("s,t\n1,\n2,1\n", "n,f\n1,0\n2,0\n", r"column 't': a node has no name, or a number of more than"),
    ("s,t\n12345678901234567,1\n", "n,f\n1,0\n", r"number of more than 15 digits; use text"),
    (EDGES, "n,f\na,1\nb,1\na,2\n", r"column 'n': node 'a' stands there twice"),
    (EDGES, "n,label\na,1\nb,1\nc,2\n", r"no column of features beside"),
    (EDGES, "n,f\na,1\nb,hot\nc,2\n", r"column 'f': text is no feature"),
    (EDGES, "n,f\na,1\nb,\nc,2\n", r"column 'f': row 2 of the data has no value"),
    (EDGES, "n,f,label\na,1,\nb,1,\nc,2,\n", r"column 'label': no node has a label"),
    (EDGES, "n,f,split\na,1,train\nb,1,dev\nc,2,\n", r"column 'split': a cell is none of train, val, test"),
    (EDGES, "n,f,split\na,1,0\nb,1,1\nc,2,\n", r"column 'split': a cell is none of train, val, test"),
]


@pytest.mark.parametrize(("edges", "features", "message"), BAD_TABLES)
def test_bad_tables_are_refused(tmp_path, edges, features, message):
    with pytest.raises(InputError, match=message):
        data.read_graph(tables(tmp_path, edges, features))


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"holds neither graph\.npz nor edges\.csv"):
        data.read_graph(tmp_path)
    (tmp_path / "edges.csv").write_text(EDGES)
    with pytest.raises(InputError, match=r"there is no file .*features\.csv"):
        data.read_graph(tmp_path)
    with pytest.raises(InputError, match=r"name the table of features of its nodes"):
        data.read_graph(tmp_path / "edges.csv")
