"""The probes against the plain way: one edit at a time, on the whole graph."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.attribution import edge_deletion_scores, feature_scores
from steelyard.graphs.graphuat.core import fit_coverage
from steelyard.graphs.graphuat.models import TeacherEntropy, message_hops, uses_weights
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.prober import NodeProber
from steelyard.graphs.graphuat.probes import View, candidate_pairs, chunks, join, neighbour_mean, read, slopes
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
            after = [base]
            gone = []
            for u, v, fall in result.edges:
                if fall > 1e-3:
                    gone.append({u, v})
                    keep = [set(pair) not in gone for pair in graph.edge_index.T.tolist()]
                    with torch.no_grad():
                        reading = model.evaluate(graph.x, graph.edge_index[:, keep], None, None)
                    after.append(float(reading.total[node]))
            assert result.structure == pytest.approx(base - min(after), abs=1e-9)
            assert result.structure >= max([0.0, *(fall for *_, fall in result.edges if fall > 1e-3)]) - 1e-9


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


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_views_side_by_side_are_read_as_alone(seed, fanout):
    """Any mixture of edits, in any number, in one union: each view's value is its own."""
    graph = random_graph(seed, edges=60)
    draw = np.random.default_rng(seed)
    sampler = NeighbourSampler(graph.edge_index.numpy(), NODES)
    model = a_student(graph)
    views = []
    for node in draw.choice(NODES, 5, replace=False).tolist():
        part = sampler.subgraph(node, 2, (fanout,), np.random.default_rng(seed))
        pairs = candidate_pairs(part)
        views.append(View(part))
        views += [View(part, edges) for edges in pairs.edges]
        views.append(View(part, features=torch.from_numpy(draw.normal(size=FEATURES))))
    together = read(model, graph.x, views)
    alone = np.concatenate([read(model, graph.x, [view]) for view in views])
    assert np.allclose(together, alone, atol=1e-12)
    slope = slopes(model, graph.x, views)
    assert np.allclose([one.total for one in slope], alone, atol=1e-12)
    (single,) = slopes(model, graph.x, views[1:2])
    assert torch.allclose(single.features, slope[1].features, atol=1e-12)
    assert np.allclose(single.edges, slope[1].edges, atol=1e-12)


def test_unions_stay_within_their_memory(monkeypatch):
    graph = random_graph(0)
    part = NeighbourSampler(graph.edge_index.numpy(), NODES).subgraph(0, 2)
    monkeypatch.setattr("steelyard.graphs.graphuat.probes._FLOATS", 3 * part.num_nodes * FEATURES)
    runs = list(chunks([View(part)] * 8, FEATURES))
    assert [len(run) for run in runs] == [3, 3, 2]
    assert list(chunks([], FEATURES)) == []
    monkeypatch.setattr("steelyard.graphs.graphuat.probes._FLOATS", 1)
    assert [len(run) for run in chunks([View(part)] * 2, FEATURES)] == [1, 1]


def test_a_directed_edge_is_removed_in_the_directions_it_has():
    graph = random_graph(0)
    one_way = Graph(graph.x, graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]], graph.y, graph.train_mask)
    model = TeacherEntropy(a_teacher("gcn"))
    node = int(one_way.edge_index[1].max())
    for u, v, fall in edge_deletion_scores(model, one_way, node):
        expected = total(model, one_way, node) - total(model, one_way, node, drop=(u, v))
        assert fall == pytest.approx(expected, abs=1e-9)


def test_a_drawn_edge_loses_one_of_those_it_stands_for():
    """A star of like leaves: the fall by one drawn edge, itself standing for many, is that of one edge."""
    leaves = 30
    spokes = np.stack([np.zeros(leaves, dtype=np.int64), np.arange(1, leaves + 1)])
    both = np.concatenate([spokes, spokes[::-1]], axis=1)
    x = torch.ones(leaves + 1, FEATURES).double()
    x[0] = torch.arange(FEATURES)
    model = TeacherEntropy(a_teacher("gcn"))
    part = NeighbourSampler(both, leaves + 1).subgraph(0, 2, (3, 3), np.random.default_rng(0))
    inward = np.flatnonzero(part.edge_index[1] == part.center)
    assert part.weight[inward].tolist() == [10.0] * 3
    pair = np.flatnonzero((part.edge_index == part.edge_index[0, inward[0]]).any(0) & (part.edge_ids >= 0))
    graph = Graph(x, torch.from_numpy(both))
    base, after = read(model, x, [View(part), View(part, pair)])
    assert base == pytest.approx(total(model, graph, 0), abs=1e-9)
    # The leaf that is drawn stands for ten: taking one edge off it leaves nine and a leaf of degree 0 where ten were.
    union = join(model, x, [View(part, pair)])
    into = union.edge_index[1] == union.centers[0]
    assert sorted(union.edge_weight[into].tolist()) == [9.0, 10.0, 10.0]
    assert abs(after - base) < 0.2


def test_how_far_a_model_sees():
    from torch_geometric.nn import APPNP, ARMAConv, GCNConv

    assert message_hops(SparseGCN(2, 2, layers=3)) == 3
    assert message_hops(build_teacher("gat", 4, 3, layers=4)) == 4
    assert message_hops(nn.Sequential(GCNConv(2, 2), APPNP(10, 0.1))) == 11
    assert message_hops(nn.Sequential(ARMAConv(2, 2, num_layers=3), GCNConv(2, 2))) == 4
    sloppy = nn.Sequential(GCNConv(2, 2), GCNConv(2, 2), GCNConv(2, 2))
    sloppy.num_layers = 2  # of something else
    assert message_hops(sloppy) == 3
    assert message_hops(nn.Linear(2, 2)) is None
    assert message_hops(object()) is None
    assert message_hops(a_student(random_graph(0))) == 2
    assert uses_weights(a_student(random_graph(0)))
    assert not uses_weights(TeacherEntropy(build_teacher("sage", 4, 3)))
    assert uses_weights(object())


def test_a_teachers_entropy_is_that_of_its_softmax():
    graph = random_graph(0)
    teacher = a_teacher("gcn")
    reading = TeacherEntropy(teacher).evaluate(graph.x, graph.edge_index, nodes=torch.tensor([4, 2]))
    p = teacher.eval()(graph.x, graph.edge_index).softmax(-1)[[4, 2]]
    assert torch.allclose(reading.total, torch.distributions.Categorical(p).entropy())
    assert reading.epistemic is None
