"""Sampled neighbourhoods: exact where nothing is left out, unbiased and of bounded size where something is."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import k_hop_subgraph

from steelyard.errors import InputError
from steelyard.graphs.graphuat.teachers import build_teacher
from steelyard.graphs.sampling import NeighbourSampler


def edges_of(seed, nodes, count, directed=False):
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, nodes, (2, count))
    ends = ends[:, ends[0] != ends[1]]
    return np.unique(ends if directed else np.concatenate([ends, ends[::-1]], axis=1), axis=1)


graphs = st.builds(
    edges_of, st.integers(0, 10**6), st.integers(3, 30), st.integers(1, 90), directed=st.booleans()
).filter(lambda edges: edges.shape[1] > 0)


@given(graphs, st.integers(0, 29), st.integers(1, 3))
def test_the_whole_neighbourhood_is_pygs_k_hop_subgraph(edges, node, hops):
    size = int(edges.max()) + 1
    node %= size
    graph = NeighbourSampler(edges, size).subgraph(node, hops)
    subset, *_ = k_hop_subgraph(node, hops + 1, torch.from_numpy(edges), num_nodes=size)
    assert graph.nodes.tolist() == sorted(subset.tolist())
    assert graph.nodes[graph.center] == node
    # Every edge that ends within ``hops`` is there, once, and nothing else.
    inner, *_ = k_hop_subgraph(node, hops, torch.from_numpy(edges), num_nodes=size)
    expected = np.flatnonzero(np.isin(edges[1], inner.numpy()))
    assert sorted(graph.edge_ids.tolist()) == expected.tolist()
    assert np.array_equal(graph.nodes[graph.edge_index], edges[:, graph.edge_ids])
    assert np.array_equal(graph.weight, np.ones(len(expected)))


@given(graphs, st.integers(0, 29), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_sampled_neighbourhood_has_the_whole_graphs_degrees_and_a_bounded_size(edges, node, hops, fanout, random):
    size = int(edges.max()) + 1
    node %= size
    weights = np.random.default_rng(0).uniform(0.5, 2, edges.shape[1]) if random else None
    sampler = NeighbourSampler(edges, size, weights)
    graph = sampler.subgraph(node, hops, (fanout,), np.random.default_rng(1))
    degree = np.bincount(edges[1], weights, minlength=size)[graph.nodes]
    assert np.allclose(np.bincount(graph.edge_index[1], graph.weight, minlength=len(degree)), degree)
    real = graph.edge_ids >= 0
    assert np.array_equal(graph.nodes[graph.edge_index[:, real]], edges[:, graph.edge_ids[real]])
    assert len(set(graph.edge_ids[real].tolist())) == real.sum()
    assert (graph.weight >= graph.unit - 1e-12).all() or random
    assert graph.num_nodes <= 1 + sum(fanout * (2 * fanout) ** hop for hop in range(hops))


@given(graphs, st.integers(0, 29))
def test_kept_edges_are_surely_in_and_stand_for_themselves(edges, node):
    size = int(edges.max()) + 1
    node %= size
    sampler = NeighbourSampler(edges, size)
    columns = sampler.incoming(node)[1]
    keep = columns[::2]
    graph = sampler.subgraph(node, 2, (1, 1), np.random.default_rng(2), keep=keep)
    for column in keep:
        (place,) = np.flatnonzero(graph.edge_ids == column)
        assert graph.weight[place] == 1.0
    assert len(keep) <= np.sum(graph.edge_index[1] == graph.center) <= len(keep) + 1


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_the_networks_value_on_the_whole_neighbourhood_is_the_whole_graphs(kind):
    edges = edges_of(3, 60, 150)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 6))).float()
    teacher = build_teacher(kind, 6, 3, hidden=8, seed=1, **({"heads": 2} if kind == "gat" else {})).eval()
    sampler = NeighbourSampler(edges, 60)
    with torch.no_grad():
        whole = teacher(x, torch.from_numpy(edges))
        for node in range(60):
            graph = sampler.subgraph(node, 2)
            part = teacher(x[graph.nodes], torch.from_numpy(graph.edge_index))
            assert torch.allclose(part[graph.center], whole[node], atol=1e-5)


def test_a_weighted_network_is_exact_on_a_rim_that_only_carries_degrees():
    edges = edges_of(4, 50, 120)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, edges.shape[1])
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 6))).double()
    teacher = build_teacher("gcn", 6, 3, hidden=8, seed=1).eval().double()
    sampler = NeighbourSampler(edges, 50, weights)
    with torch.no_grad():
        whole = teacher(x, torch.from_numpy(edges), torch.from_numpy(weights))
        for node in range(50):
            graph = sampler.subgraph(node, 2, (50, 50))
            weight = torch.from_numpy(graph.weight)
            part = teacher(x[graph.nodes], torch.from_numpy(graph.edge_index), weight)
            assert torch.allclose(part[graph.center], whole[node], atol=1e-10)


def test_a_sampled_sum_is_unbiased():
    """A star: the weighted sum over 4 drawn of 40 leaves has the whole sum as its mean."""
    leaves = 40
    edges = np.stack([np.arange(1, leaves + 1), np.zeros(leaves, dtype=np.int64)])
    values = np.random.default_rng(0).normal(size=leaves + 1)
    sampler = NeighbourSampler(edges, leaves + 1)
    sums = []
    for seed in range(4000):
        graph = sampler.subgraph(0, 1, (4,), np.random.default_rng(seed))
        inward = graph.edge_index[1] == graph.center
        sums.append((values[graph.nodes[graph.edge_index[0]]] * graph.weight)[inward].sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - values[1:].sum()) < 4 * error


def test_the_cost_does_not_grow_with_the_graph():
    """Same degrees, a hundred times the nodes: equally many edges are cut out."""
    sizes = []
    for nodes in (1_000, 100_000):
        ring = np.arange(nodes)
        ends = np.concatenate([np.stack([ring, (ring + step) % nodes]) for step in range(1, 41)], axis=1)
        sampler = NeighbourSampler(np.concatenate([ends, ends[::-1]], axis=1), nodes)
        graph = sampler.subgraph(500, 2, (8, 4), np.random.default_rng(0))
        sizes.append((graph.num_nodes, graph.edge_index.shape[1]))
    assert max(sizes[1]) < 8 * (4 + 4) * 3
    assert abs(sizes[0][1] - sizes[1][1]) < 20


def test_equal_draws_equal_neighbourhoods():
    sampler = NeighbourSampler(edges_of(0, 30, 200), 30)
    one, two = (sampler.subgraph(3, 2, (3, 2), np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one.edge_ids, two.edge_ids)
    assert np.array_equal(one.weight, two.weight)


def test_isolated_nodes_and_weightless_edges():
    sampler = NeighbourSampler(np.array([[0, 1, 2], [1, 0, 0]]), 5, np.zeros(3))
    alone = sampler.subgraph(4, 2, (2,))
    assert alone.nodes.tolist() == [4]
    assert alone.edge_index.shape == (2, 0)
    thin = sampler.subgraph(0, 2, (1,))
    assert thin.weight.tolist() == [0.0] * len(thin.weight)
    assert NeighbourSampler(np.zeros((2, 0), dtype=np.int64), 2).subgraph(1, 2, (4, 4)).nodes.tolist() == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NeighbourSampler(np.zeros((3, 2), dtype=int), 4), "shape"),
        (lambda: NeighbourSampler(np.zeros((2, 2)), 4), "integer"),
        (lambda: NeighbourSampler(np.array([[0], [4]]), 4), "outside 0 … 3"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4, np.ones(2)), "one value per edge"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4).subgraph(4, 2), "node 4"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4).subgraph(-1, 2), "node -1"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4).subgraph(0, 0), "hops"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4).subgraph(0, 1, ()), "fanout"),
        (lambda: NeighbourSampler(np.array([[0], [1]]), 4).subgraph(0, 1, (0,)), "fanout"),
    ],
)
def test_what_cannot_be_cut(call, message):
    with pytest.raises(InputError, match=message):
        call()
