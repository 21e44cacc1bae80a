import math
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import coalesce

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph, check_graph, load_graph, undirected


def bag(**fields):
    given = {"x": torch.eye(4), "edge_index": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])}
    return types.SimpleNamespace(**(given | fields))


def test_a_pyg_graph_comes_in_and_goes_out():
    mask = torch.tensor([True, False, True, False])
    data = Data(
        x=torch.eye(4), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 2, 1, 0]), train_mask=mask,
        edge_weight=torch.tensor([0.5, 2.0]),
    )  # fmt: skip
    graph = check_graph(data)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (4, 2, 3)
    assert graph.x is data.x
    assert graph.val_mask is None
    back = graph.to_pyg()
    assert sorted(back.keys()) == ["edge_index", "edge_weight", "train_mask", "x", "y"]
    assert torch.equal(back.train_mask, mask)
    again = check_graph(graph)
    assert torch.equal(again.edge_index, data.edge_index)


def test_arrays_of_other_dtypes_are_read_and_nothing_is_changed():
    x = np.arange(8, dtype=np.int16).reshape(4, 2)
    given = bag(x=x, edge_index=np.array([[0, 1], [1, 2]], np.int32), y=np.array([[0], [1], [1], [-1]]), name="mine")
    before = x.copy()
    graph = check_graph(given)
    assert graph.x.dtype == torch.float32
    assert graph.edge_index.dtype == graph.y.dtype == torch.int64
    assert graph.y.tolist() == [0, 1, 1, -1]
    assert graph.name == "mine"
    assert (x == before).all()
    assert check_graph(bag(x=torch.eye(4).to_sparse())).x.layout == torch.strided
    assert check_graph(bag(x=torch.eye(4).double())).x.dtype == torch.float64
    assert check_graph(bag(edge_index=torch.zeros(2, 0))).num_edges == 0
    assert check_graph(bag(edge_weight=torch.ones(4, 1, dtype=torch.int32))).edge_weight.dtype == torch.float32
    assert Graph(torch.eye(2), torch.zeros(2, 0, dtype=torch.long)).num_classes == 0


class Nodes:
    """What torch_geometric calls a graph of several kinds."""

    edge_index_dict = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (HeteroData(), "heterogeneous graphs are not supported"),
        (Nodes(), "heterogeneous"),
        (Data(x=torch.eye(3)), "no edge_index"),
        (3, "type int has no x"),
        (bag(x="words"), "x must be a tensor"),
        (bag(x=torch.ones(4)), "x must be a matrix"),
        (bag(x=torch.ones(4, 2, dtype=torch.complex64)), "complex"),
        (bag(x=torch.ones(0, 3)), "x is empty"),
        (bag(x=torch.ones(4, 0)), "x is empty"),
        (bag(x=torch.tensor([[0.0, 1], [1, math.nan], [0, 0], [0, 0]])), "x is nan at node 1, feature 1"),
        (bag(x=torch.full((4, 1), math.inf)), "x is inf at node 0"),
        (bag(edge_index=torch.zeros(4, 2, dtype=torch.long)), r"\(2, edges\)"),
        (bag(edge_index=torch.eye(4).to_sparse()), r"\(2, edges\)"),
        (bag(edge_index=torch.tensor([[0.0], [1.0]])), "must hold integers"),
        (bag(edge_index=torch.tensor([[0, 1], [1, 4]])), "node 4 in column 1, but x has nodes 0 to 3"),
        (bag(edge_index=torch.tensor([[0, -1], [1, 2]])), "node -1"),
        (bag(edge_index=torch.tensor([[0, 2], [1, 2]])), "1 self loops, the first at node 2"),
        (bag(edge_weight=torch.ones(3)), "each of the 4 edges"),
        (bag(edge_weight=torch.tensor([1.0, 1, -1, 1])), "-1.0 at edge 2"),
        (bag(edge_weight=torch.tensor([1.0, math.nan, 1, 1])), "nan at edge 1"),
        (bag(y=torch.ones(4)), "integer class"),
        (bag(y=torch.ones(3, dtype=torch.long)), "each of the 4 nodes"),
        (bag(y=torch.tensor([0, 1, -2, 0])), "-2 at node 2"),
        (bag(train_mask=torch.ones(4, dtype=torch.long)), "train_mask must be bool"),
        (bag(val_mask=torch.ones(4, 10, dtype=torch.bool)), r"choose one split: val_mask\[:, 0\]"),
        (bag(test_mask=torch.ones(3, dtype=torch.bool)), r"shape \(4,\)"),
    ],
)  # fmt: skip
def test_graphs_that_are_refused_in_one_sentence(data, said):
    with pytest.raises(InputError, match=said) as caught:
        check_graph(data)
    assert "\n" not in str(caught.value)


def test_self_loops_go_when_asked():
    edges = torch.tensor([[0, 2, 1], [1, 2, 0]])
    graph = check_graph(bag(edge_index=edges, edge_weight=torch.tensor([1.0, 2, 3])), self_loops="remove")
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_weight.tolist() == [1.0, 3.0]
    assert check_graph(bag(edge_index=edges), self_loops="remove").num_edges == 2
    with pytest.raises(InputError, match="self_loops must be"):
        check_graph(bag(), self_loops="keep")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 5, width=32)), min_size=1))
@pytest.mark.filterwarnings("ignore:edge_index holds")
def test_repeated_edges_become_one_with_the_sum_of_weights_as_in_torch_geometric(rows):
    edges = torch.tensor([row[:2] for row in rows]).T
    weight = torch.tensor([row[2] for row in rows], dtype=torch.float64)
    given = bag(x=torch.eye(4, dtype=torch.float64), edge_index=edges, edge_weight=weight)
    graph = check_graph(given, self_loops="remove")
    keep = edges[0] != edges[1]
    wanted, sums = coalesce(edges[:, keep], weight[keep], num_nodes=4)
    order = (graph.edge_index[0] * 4 + graph.edge_index[1]).argsort()
    assert torch.equal(graph.edge_index[:, order], wanted)
    assert torch.allclose(graph.edge_weight[order], sums)


def test_the_first_of_repeated_edges_keeps_its_place():
    edges = torch.tensor([[3, 0, 3, 1, 0], [0, 1, 0, 2, 1]])
    with pytest.warns(UserWarning, match="2 repeated edges"):
        graph = check_graph(bag(edge_index=edges))
    assert graph.edge_index.tolist() == [[3, 0, 1], [0, 1, 2]]
    assert graph.edge_weight is None


def test_both_directions_are_one_pair():
    pairs = undirected(bag(edge_index=torch.tensor([[2, 0, 1, 3, 0], [1, 1, 2, 0, 3]])))
    assert pairs.edge_pairs.tolist() == [[0, 1], [0, 3], [1, 2]]
    assert pairs.pair_of_edge.tolist() == [2, 0, 2, 1, 1]
    assert undirected(bag(edge_index=torch.zeros(2, 0, dtype=torch.long))).edge_pairs.shape == (0, 2)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_every_edge_lies_in_the_pair_of_its_ends(edges):
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    pairs, of_edge = undirected(bag(edge_index=edge_index))
    assert torch.equal(pairs[of_edge].T, edge_index.sort(0).values)
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs)


def test_a_public_graph_is_made_of_its_arrays(monkeypatch):
    home = types.ModuleType("steelyard.data.graphs")
    asked = []

    def graph_arrays(name, split):
        asked.append((name, split))
        return {
            "x": np.eye(3, dtype=np.float32), "edge_index": np.array([[0, 1], [1, 0]]), "y": np.array([0, 1, 0]),
            "train_mask": np.array([True, False, False]), "classes": np.array(["a", "b"]),
        }  # fmt: skip

    home.graph_arrays = graph_arrays
    monkeypatch.setitem(sys.modules, "steelyard.data.graphs", home)
    graph = load_graph("cora", split=3)
    assert asked == [("cora", 3)]
    assert (graph.name, graph.num_classes, graph.num_nodes) == ("cora", 2, 3)
    assert graph.train_mask.tolist() == [True, False, False]
    check_graph(graph)


def test_labels_beyond_any_network_are_refused_and_features_lose_their_history():
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="at most 8192 of them"):
        check_graph(Graph(torch.ones(2, 2), edges, torch.tensor([0, 10**8])))
    x = torch.ones(2, 2, requires_grad=True)
    assert not check_graph(Graph(x, edges)).x.requires_grad
    assert x.requires_grad
