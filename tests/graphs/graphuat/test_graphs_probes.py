"""The probes against the plain way: one edit at a time, on the whole graph."""

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.attribution import edge_deletion_scores, feature_scores
from steelyard.graphs.graphuat.core import fit_coverage
from steelyard.graphs.graphuat.models import TeacherEntropy
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.prober import NodeProber
from steelyard.graphs.graphuat.probes import neighbour_mean
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher
from steelyard.graphs.sampling import NeighbourSampler

NODES, FEATURES, CLASSES = 24, 10, 3


def random_graph(seed, *, nodes=NODES, edges=40, isolated=2):
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, nodes - isolated, (2, edges))
    ends = ends[:, ends[0] != ends[1]]
    both = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    x = torch.from_numpy(draw.normal(size=(nodes, FEATURES))).double()
    y = torch.from_numpy(draw.integers(0, CLASSES, nodes))
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[:9] = True
    y[:CLASSES] = torch.arange(CLASSES)
    return Graph(x, torch.from_numpy(both), y, train_mask=mask, val_mask=~mask)


def a_student(graph, seed=0):
    """A student with random weights and a coverage fitted on them: no training needed to test probes."""
    network = SparseGCN(FEATURES, CLASSES, hidden=8, generator=torch.Generator().manual_seed(seed)).double()
    student = GraphUATStudent(nn.Linear(1, 1))
    student.backbone = network.eval()
    with torch.no_grad():
        h, _ = network.represent(graph.x, graph.edge_index)
    student.coverage = fit_coverage(h[graph.train_mask], graph.y[graph.train_mask])
    return student


def a_teacher(kind, seed=0):
    teacher = build_teacher(kind, FEATURES, CLASSES, hidden=8, seed=seed, **({"heads": 2} if kind == "gat" else {}))
    return teacher.double().train()


def total(model, graph, node, *, drop=None, row=None):
    """The plain way: the whole graph without the pair ``drop``, with ``row`` as the node's features."""
    edges = graph.edge_index
    if drop is not None:
        keep = [set(pair) != set(drop) for pair in edges.T.tolist()]
        edges = edges[:, keep]
    x = graph.x.clone()
    if row is not None:
        x[node] = row
    with torch.no_grad():
        return float(model.evaluate(x, edges, None, None).total[node])


def models(graph):
    yield a_student(graph)
    for kind in ("gcn", "sage", "gat"):
        yield TeacherEntropy(a_teacher(kind))


def test_deletion_scores_equal_one_by_one_deletion_on_the_whole_graph():
    graph = random_graph(0)
    for model in models(graph):
        for node in (0, 3, 7):
            found = edge_deletion_scores(model, graph, node)
            neighbours = set(graph.edge_index[0][graph.edge_index[1] == node].tolist())
            assert {v for _, v, _ in found} == neighbours
            for u, v, fall in found:
                assert u == node
                expected = total(model, graph, node) - total(model, graph, node, drop=(u, v))
                assert fall == pytest.approx(expected, abs=1e-9)
            assert [fall for *_, fall in found] == sorted((fall for *_, fall in found), reverse=True)


def test_the_sampled_neighbourhood_is_exact_where_the_fanout_leaves_nothing_out():
    """A rim that carries degrees replaces the extra hop: weighted models see no difference."""
    graph = random_graph(1)
    for model in models(graph):
        for node in range(NODES):
            exact = edge_deletion_scores(model, graph, node)
            wide = edge_deletion_scores(model, graph, node, fanout=(NODES, NODES))
            assert [(u, v) for u, v, _ in wide] == [(u, v) for u, v, _ in exact]
            assert np.allclose([s for *_, s in wide], [s for *_, s in exact], atol=1e-9)


def test_two_hops_also_test_the_neighbours_edges():
    graph = random_graph(2)
    model = a_student(graph)
    found = edge_deletion_scores(model, graph, 4, hops=2, max_edges=100)
    for u, v, fall in found:
        assert fall == pytest.approx(total(model, graph, 4) - total(model, graph, 4, drop=(u, v)), abs=1e-9)
    near = {4, *graph.edge_index[0][graph.edge_index[1] == 4].tolist()}
    expected = {frozenset(pair) for pair in graph.edge_index.T.tolist() if set(pair) & near}
    assert {frozenset((u, v)) for u, v, _ in found} == expected


def test_feature_gradient_equals_finite_differences():
    graph = random_graph(3)
    step = 1e-6
    for model in models(graph):
        scores = feature_scores(model, graph, 5)
        for j in range(FEATURES):
            up, down = graph.x[5].clone(), graph.x[5].clone()
            up[j] += step
            down[j] -= step
            slope = (total(model, graph, 5, row=up) - total(model, graph, 5, row=down)) / (2 * step)
            assert float(scores[j]) == pytest.approx(slope * float(graph.x[5, j]), abs=1e-6)


def test_integrated_gradients_add_up_to_the_fall_from_zero_features():
    """Completeness (Sundararajan et al. 2017); 16 midpoints leave a small error."""
    graph = random_graph(4)
    model = TeacherEntropy(a_teacher("sage"))
    scores = feature_scores(model, graph, 2, "integrated")
    expected = total(model, graph, 2) - total(model, graph, 2, row=torch.zeros(FEATURES).double())
    assert float(scores.sum()) == pytest.approx(expected, abs=2e-2)


def prober(model, graph, **changes):
    plain = {"depth": 2, "hops": 1, "fanout": None, "max_edges": 32, "feature_method": "gradient", "threshold": 1e-3}
    sampler = NeighbourSampler(graph.edge_index.numpy(), graph.num_nodes)
    return NodeProber(model, graph.x, sampler, seed=0, **(plain | changes))


def test_feature_and_structure_scores_are_the_falls_of_the_edits():
    graph = random_graph(5)
    for model in models(graph):
        for node in (1, 6):
            (result,) = prober(model, graph).probe([node], ("feature", "structure"))
            row = graph.x[node].clone()
            for index, score in result.features:
                if score > 0:
                    row[index] = 0.0
            base = total(model, graph, node)
            assert result.feature == pytest.approx(base - total(model, graph, node, row=row), abs=1e-9)
            harmful = [frozenset((u, v)) for u, v, fall in result.edges if fall > 1e-3]
            keep = [frozenset(pair) not in harmful for pair in graph.edge_index.T.tolist()]
            with torch.no_grad():
                after = float(model.evaluate(graph.x, graph.edge_index[:, keep], None, None).total[node])
            assert result.structure == pytest.approx(base - after if harmful else 0.0, abs=1e-9)


def test_the_neighbours_mean_replaces_the_features():
    graph = random_graph(6)
    model = a_student(graph)
    (result,) = prober(model, graph, feature_method="neighbour_mean").probe([3], ("feature",))
    mean = graph.x[graph.edge_index[0][graph.edge_index[1] == 3]].mean(0)
    assert result.feature == pytest.approx(total(model, graph, 3) - total(model, graph, 3, row=mean), abs=1e-9)
    assert result.structure == 0.0
    assert result.edges == []
    lonely = NeighbourSampler(graph.edge_index.numpy(), NODES).subgraph(NODES - 1, 2)
    assert torch.equal(neighbour_mean(graph.x, lonely), torch.zeros(FEATURES).double())
