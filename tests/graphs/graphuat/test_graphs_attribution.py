"""Attributions of whole nodes: the planted source is named, and what cannot be attributed is refused."""

import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GCN

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.attribution import (
    REFERENCE_NODES,
    Attributor,
    Settings,
    attribute_uncertainty,
    edge_deletion_scores,
    feature_scores,
    node_numbers,
    reference_nodes,
)
from steelyard.graphs.graphuat.core import fit_coverage
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.evidence import label_mass
from steelyard.graphs.graphuat.facade import GraphUAT
from steelyard.graphs.graphuat.models import TeacherEntropy
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.planting import plant
from steelyard.graphs.graphuat.student import AgreementWarning, GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher, train_teacher
from steelyard.rng import generator

NODES, FEATURES, CLASSES = 30, 8, 3


def random_graph(seed, nodes=NODES, edges=45, isolated=3):
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, nodes - isolated, (2, edges))
    ends = ends[:, ends[0] != ends[1]]
    both = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    x = torch.from_numpy(draw.normal(size=(nodes, FEATURES)))
    y = torch.from_numpy(np.arange(nodes) % CLASSES)
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[:9] = True
    return Graph(x, torch.from_numpy(both), y, train_mask=mask, val_mask=~mask)


def copied_student(graph, teacher_seed=0):
    """A teacher, and a student with the teacher's own weights: full agreement without training."""
    network = SparseGCN(FEATURES, CLASSES, hidden=6, generator=torch.Generator().manual_seed(teacher_seed)).double()
    student = GraphUATStudent(network)
    student.backbone = network.eval()
    with torch.no_grad():
        h, _ = network.represent(graph.x, graph.edge_index)
    student.coverage = fit_coverage(h[graph.train_mask], graph.y[graph.train_mask])
    return network, student


def permuted(graph, order):
    """The same graph under other numbers: node i becomes ``order[i]``."""
    back = torch.argsort(order)
    masks = {name: getattr(graph, name)[back] for name in ("train_mask", "val_mask")}
    return Graph(graph.x[back], order[graph.edge_index], graph.y[back], **masks)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_new_node_numbers_give_the_same_attributions(seed):
    graph = random_graph(seed)
    order = torch.from_numpy(np.random.default_rng(seed + 1).permutation(NODES))
    teacher, student = copied_student(graph)
    nodes = torch.arange(12, 20)
    plain = attribute_uncertainty(teacher, graph, nodes, student=student, reference=torch.arange(20, 30), fanout=None)
    other = attribute_uncertainty(
        teacher, permuted(graph, order), order[nodes], student=student, reference=order[20:30], fanout=None
    )
    for one, two in zip(plain, other, strict=True):
        assert two.node == int(order[one.node])
        for name in one.scores:
            assert two.scores[name] == pytest.approx(one.scores[name], abs=1e-9)
        falls = {frozenset((int(order[u]), int(order[v]))): fall for u, v, fall in one.edges}
        assert {frozenset((u, v)) for u, v, _ in two.edges} == set(falls)
        for u, v, fall in two.edges:
            assert fall == pytest.approx(falls[frozenset((u, v))], abs=1e-9)
        assert dict(two.features) == pytest.approx(dict(one.features), abs=1e-9)


@settings(max_examples=6)
@given(st.integers(0, 10**6))
def test_far_components_do_not_matter(seed):
    """A disconnected second graph changes nothing but what is standardised over it."""
    graph = random_graph(seed)
    _, student = copied_student(graph)
    other = random_graph(seed + 1)
    joined = Graph(
        torch.cat([graph.x, other.x]),
        torch.cat([graph.edge_index, other.edge_index + NODES], dim=1),
        torch.cat([graph.y, other.y]),
        train_mask=torch.cat([graph.train_mask, other.train_mask]),
        val_mask=torch.cat([graph.val_mask, torch.zeros(NODES, dtype=torch.bool)]),
    )
    for node in (10, 11, NODES - 1):
        alone = edge_deletion_scores(student, graph, node)
        assert alone == edge_deletion_scores(student, joined, node)
        assert torch.equal(feature_scores(student, graph, node), feature_scores(student, joined, node))


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.lists(st.integers(0, NODES - 1), min_size=1, max_size=6))
def test_a_nodes_attribution_does_not_depend_on_the_others(seed, nodes):
    """Many nodes are read in one pass; each gets what it would get alone, thin fanout and all."""
    graph = random_graph(seed, edges=120)
    teacher, student = copied_student(graph)
    made = Attributor(teacher, graph, student=student, settings=Settings(fanout=(2, 1), max_edges=3, seed=4))
    together = made.attribute(nodes)
    for node, item in zip(nodes, together, strict=True):
        (alone,) = made.attribute(node)
        assert item.node == alone.node == node
        assert [edge[:2] for edge in item.edges] == [edge[:2] for edge in alone.edges]
        assert [fall for *_, fall in item.edges] == pytest.approx([fall for *_, fall in alone.edges], abs=1e-9)
        assert item.scores == pytest.approx(alone.scores, abs=1e-9)


def test_coverage_is_the_epistemic_part_without_the_edges_whose_removal_gives_the_largest_fall():
    graph = random_graph(5)
    teacher, student = copied_student(graph)
    plain = student.uncertainty(graph)
    found = attribute_uncertainty(teacher, graph, range(NODES), student=student, fanout=None)
    as_is = attribute_uncertainty(teacher, graph, range(NODES), student=student, fanout=None, coverage="epistemic")
    changed = 0
    for item, other in zip(found, as_is, strict=True):
        assert other.scores["coverage"] == pytest.approx(float(plain.epistemic[item.node]), abs=1e-9)
        assert item.epistemic == other.epistemic
        best, left = item.total, float(plain.epistemic[item.node])
        gone = torch.zeros(graph.num_edges, dtype=torch.bool)
        for u, v, fall in item.edges:
            if fall <= 1e-3:
                break
            ends = torch.tensor([u, v])
            gone |= torch.isin(graph.edge_index, ends).all(0)
            with torch.no_grad():
                after = student.evaluate(graph.x, graph.edge_index[:, ~gone], nodes=torch.tensor([item.node]))
            if float(after.total) < best:
                best, left = float(after.total), float(after.epistemic)
        assert item.scores["structure"] == pytest.approx(item.total - best, abs=1e-9)
        assert item.scores["coverage"] == pytest.approx(left, abs=1e-9)
        changed += abs(left - float(plain.epistemic[item.node])) > 1e-6
    assert changed > NODES // 4
    with pytest.raises(InputError, match="coverage must be one of left, epistemic"):
        Settings(coverage="lef")


def test_isolated_nodes_have_no_structure_score_and_say_so():
    graph = random_graph(0)
    teacher, student = copied_student(graph)
    lonely, joined = attribute_uncertainty(teacher, graph, [NODES - 1, 12], student=student)
    assert lonely.isolated
    assert not joined.isolated
    assert lonely.scores["structure"] == 0.0
    assert lonely.edges == []
    assert lonely.edges_left_out == 0


def test_of_many_edges_those_with_the_largest_derivative_are_tested():
    """A hub of 20 leaves: the five tested edges are the five largest |dTU/dw|, both directions summed."""
    leaves = 20
    spokes = np.stack([np.zeros(leaves, dtype=np.int64), np.arange(1, leaves + 1)])
    edges = torch.from_numpy(np.concatenate([spokes, spokes[::-1]], axis=1))
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(leaves + 1, FEATURES)))
    y = torch.from_numpy(np.arange(leaves + 1) % CLASSES)
    mask = torch.arange(leaves + 1) < 9
    graph = Graph(x, edges, y, train_mask=mask, val_mask=~mask)
    teacher, student = copied_student(graph)
    weight = torch.ones(edges.shape[1], dtype=torch.float64, requires_grad=True)
    student.evaluate(x, edges, weight).total[0].backward()
    size = (weight.grad[:leaves] + weight.grad[leaves:]).abs()
    expected = {int(v) + 1 for v in size.topk(5).indices}
    whole = {v: fall for _, v, fall in edge_deletion_scores(student, graph, 0)}
    for fanout in (None, (4, 4), (50, 50)):
        made = Attributor(teacher, graph, student=student, settings=Settings(fanout=fanout, max_edges=5))
        (item,) = made.attribute(0)
        assert {v for _, v, _ in item.edges} == expected
        assert item.edges_left_out == leaves - 5
        if fanout != (4, 4):
            assert [fall for *_, fall in item.edges] == pytest.approx([whole[v] for _, v, _ in item.edges], abs=1e-9)
    thinned = Attributor(teacher, graph, student=student, settings=Settings(fanout=(4, 4), max_edges=1)).attribute(0)[0]
    assert len(thinned.edges) == 1
    assert thinned.edges_left_out == leaves - 1


def test_a_teacher_without_edge_weights_ranks_its_edges_by_the_neighbours_features():
    leaves = 12
    spokes = np.stack([np.zeros(leaves, dtype=np.int64), np.arange(1, leaves + 1)])
    edges = torch.from_numpy(np.concatenate([spokes, spokes[::-1]], axis=1))
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(leaves + 1, FEATURES)))
    graph = Graph(x, edges, torch.zeros(leaves + 1, dtype=torch.long))
    teacher = build_teacher("sage", FEATURES, CLASSES, hidden=6).double()
    leaf = x.clone().requires_grad_()
    TeacherEntropy(teacher).evaluate(leaf, edges).total[0].backward()
    size = (leaf.grad * x).sum(1).abs()[1:]
    (item,) = attribute_uncertainty(
        teacher, graph, 0, on="teacher", probes=("structure",), max_edges=4, reference=[1, 2], fanout=None
    )
    assert {v for _, v, _ in item.edges} == {int(v) + 1 for v in size.topk(4).indices}
    assert item.aleatoric is None
    assert set(item.scores) == {"structure"}
    assert item.total == pytest.approx(item.teacher_entropy)


def test_the_teachers_modes_and_the_global_random_state_survive():
    graph = random_graph(1)

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.drop = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
            self.last = nn.Linear(6, CLASSES)

        def forward(self, x, edge_index):
            h = x.new_zeros(x.shape).index_add(0, edge_index[1], x[edge_index[0]]) + x
            return self.last(self.drop(self.norm(self.first(h))))

    teacher = Normed().double().train()
    teacher.norm.eval()
    means = teacher.norm.running_mean.clone()
    state = torch.get_rng_state()
    found = [attribute_uncertainty(teacher, graph, range(9, 30), on="teacher", fanout=f) for f in (None, (40,), (40,))]
    assert torch.equal(torch.get_rng_state(), state)
    assert teacher.training
    assert teacher.drop.training
    assert not teacher.norm.training
    assert torch.equal(teacher.norm.running_mean, means)
    assert found[1].to_json() == found[2].to_json()
    # Nobody can tell how deep a module without PyG layers sees: the whole component is read, exactly.
    assert found[0].nodes[0].scores == pytest.approx(found[1].nodes[0].scores, abs=1e-9)


def small(seed=0):
    graph = random_graph(seed)
    return graph, *copied_student(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_idx": NODES}, f"node_idx holds node {NODES}"),
        ({"node_idx": -1}, "node_idx holds node -1"),
        ({"node_idx": 1.5}, "node numbers or a mask"),
        ({"node_idx": torch.ones(4, dtype=torch.bool)}, "as a mask must have shape"),
        ({"reference": []}, "reference is empty"),
        ({"reference": torch.zeros(NODES, dtype=torch.bool)}, "reference is empty"),
        ({"reference": [99]}, "reference holds node 99"),
        ({"probes": ("feature", "structur")}, "Did you mean 'structure'"),
        ({"probes": ()}, "probes"),
        ({"probes": ("feature", "feature")}, "each once"),
        ({"feature_method": "gradients"}, "Did you mean 'gradient'"),
        ({"hops": 3}, "hops"),
        ({"max_edges": 0}, "max_edges"),
        ({"threshold": float("nan")}, "threshold"),
        ({"fanout": (0,)}, "fanout"),
        ({"on": "nobody"}, "'student' or 'teacher'"),
        ({"on": "teacher", "probes": ("coverage",)}, "coverage probe needs a student"),
        ({"teacher": len}, "torch.nn.Module"),
    ],
)
def test_what_is_refused(change, message):
    graph, teacher, student = small()
    arguments = {"teacher": teacher, "data": graph, "node_idx": 3, "student": student} | change
    with pytest.raises(InputError, match=message):
        attribute_uncertainty(arguments.pop("teacher"), arguments.pop("data"), arguments.pop("node_idx"), **arguments)


def test_probabilities_and_bad_graphs_are_refused():
    graph, teacher, _ = small()

    class Probabilities(nn.Module):
        def forward(self, x, edge_index):
            return teacher(x, edge_index).softmax(-1)

    with pytest.raises(InputError, match="probabilities"):
        attribute_uncertainty(Probabilities(), graph, 0)
    loops = Graph(graph.x, torch.cat([graph.edge_index, torch.tensor([[2], [2]])], dim=1), graph.y)
    with pytest.raises(InputError, match="self loops"):
        attribute_uncertainty(teacher, loops, 0, on="teacher")
    holes = Graph(graph.x.clone(), graph.edge_index, graph.y)
    holes.x[4, 2] = float("nan")
    with pytest.raises(InputError, match="node 4"):
        attribute_uncertainty(teacher, holes, 0, on="teacher")
    every = Graph(graph.x, graph.edge_index, graph.y, train_mask=torch.ones(NODES, dtype=torch.bool))
    with pytest.raises(InputError, match="validation node"):
        attribute_uncertainty(teacher, every, 0, on="teacher")


def test_a_student_of_another_teacher_is_warned_of():
    graph, teacher, _ = small()
    _, stranger = copied_student(graph, teacher_seed=5)
    with pytest.warns(AgreementWarning, match="agree on"):
        attribute_uncertainty(teacher, graph, 0, student=stranger)


def test_the_default_reference_are_validation_nodes():
    graph, teacher, student = small()
    made = Attributor(teacher, graph, student=student)
    assert made._reference == np.flatnonzero(graph.val_mask.numpy()).tolist()
    bare = Graph(graph.x, graph.edge_index, graph.y, train_mask=graph.train_mask)
    assert Attributor(teacher, bare, student=student)._reference == made._reference
    unlabelled = Attributor(teacher, Graph(graph.x, graph.edge_index), on="teacher")
    assert unlabelled._reference == list(range(NODES))
    wide = random_graph(3, nodes=400, edges=600)
    drawn = Attributor(teacher, wide, on="teacher")._reference
    assert len(drawn) == REFERENCE_NODES == 200
    assert wide.val_mask[drawn].all()
    assert drawn == sorted(set(drawn)) == reference_nodes(wide, 0).tolist()
    assert drawn != reference_nodes(wide, 1).tolist()


def test_the_reference_itself_has_mean_zero_and_deviation_one():
    graph, teacher, student = small()
    nodes = list(range(9, 30))
    found = attribute_uncertainty(teacher, graph, nodes, student=student, reference=nodes)
    z = [list(item.z.values()) for item in found]
    assert np.allclose(np.mean(z, axis=0), 0, atol=1e-9)
    assert np.allclose(np.std(z, axis=0), 1, atol=1e-9)


def test_evidence_names_the_nearest_other_labelled_node():
    graph, teacher, student = small()
    item = attribute_uncertainty(teacher, graph, 2, student=student)[0]
    with torch.no_grad():
        h, _ = teacher.represent(graph.x, graph.edge_index)
    white = (h - student.coverage.centre) @ student.coverage.whitening
    distance = (white[:9] - white[2]).norm(dim=1)
    distance[2] = torch.inf
    assert item.evidence["nearest_labelled"] == int(distance.argmin())
    assert item.evidence["distance"] == pytest.approx(float(distance.min()))
    mass = label_mass(graph)
    assert ((mass >= 0) & (mass <= 1)).all()
    assert mass[NODES - 1] == pytest.approx(0.0)
    every = Graph(graph.x, graph.edge_index, graph.y, train_mask=torch.ones(NODES, dtype=torch.bool))
    assert np.allclose(label_mass(every), 1.0)
    weighted = Graph(graph.x, graph.edge_index, graph.y, train_mask=graph.train_mask,
                     edge_weight=torch.full((graph.edge_index.shape[1],), 2.0))  # fmt: skip
    assert np.allclose(label_mass(weighted), mass)
    unlabelled = Attributor(teacher, Graph(graph.x, graph.edge_index), student=student)
    assert unlabelled.attribute(0)[0].evidence == {}
    assert attribute_uncertainty(teacher, graph, 2, student=student, probes=("feature",))[0].evidence == {}


def test_edge_weights_of_the_graph_are_removed_with_their_edges():
    graph = random_graph(2)
    low, high = graph.edge_index.min(0).values, graph.edge_index.max(0).values
    weight = 0.5 + ((low * 7 + high * 3) % 5).double()
    heavy = Graph(graph.x, graph.edge_index, graph.y, graph.train_mask, graph.val_mask, edge_weight=weight)
    _, student = copied_student(graph)
    for node in (3, 12):
        for u, v, fall in edge_deletion_scores(student, heavy, node, fanout=(40, 40)):
            keep = ~((low == min(u, v)) & (high == max(u, v)))
            with torch.no_grad():
                before = student.evaluate(graph.x, graph.edge_index, weight).total[node]
                after = student.evaluate(graph.x, graph.edge_index[:, keep], weight[keep]).total[node]
            assert fall == pytest.approx(float(before - after), abs=1e-9)


def test_node_numbers_of_every_kind():
    assert node_numbers(3, 5, "n") == [3]
    assert node_numbers(torch.tensor([4, 0]), 5, "n") == [4, 0]
    assert node_numbers(np.array([True, False, True]), 3, "n") == [0, 2]
    assert node_numbers([], 3, "n") == []


def test_progress_is_told_and_the_input_stays():
    graph, teacher, student = small()
    before = graph.x.clone(), graph.edge_index.clone()
    seen = []
    attribute_uncertainty(teacher, graph, range(30), student=student, progress=lambda *done: seen.append(done))
    assert seen == [(30, 30)]
    assert torch.equal(graph.x, before[0])
    assert torch.equal(graph.edge_index, before[1])


def test_the_facade_fits_and_attributes():
    graph = random_graph(0)
    single = Graph(graph.x.float(), graph.edge_index, graph.y, graph.train_mask, graph.val_mask)
    teacher = build_teacher("gcn", FEATURES, CLASSES, hidden=6)
    own = GraphUATStudent(teacher, hidden=6, epochs=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgreementWarning)
        found = GraphUAT(teacher, student=own).fit(single).attribute([12, 13], hops=2, probes=("structure", "coverage"))
        again = attribute_uncertainty(teacher, single, [12, 13], student=own, hops=2, probes=("structure", "coverage"))
    assert found.to_json() == again.to_json()
    assert json.loads(found.to_json())["settings"]["hops"] == 2
    bare = GraphUAT(teacher, student="none").fit(single).attribute(12)
    assert bare.settings["on"] == "teacher"
    assert GraphUAT(teacher).student is not None
    with pytest.raises(InputError, match="fit"):
        GraphUAT(teacher).attribute(0)
    with pytest.raises(InputError, match="'evidential'"):
        GraphUAT(teacher, student="gpn")


def test_planted_sources_are_named():
    """A generated graph in which each of 30 nodes has one known reason to be uncertain; chance is a third."""
    arrays = generate_csbm(generator("tests", "planted attribution", 0), nodes=900)
    planted = plant(arrays, generator("tests", "planting", 0), per_group=10)
    graph = Graph(**{name: torch.from_numpy(value) for name, value in planted.arrays.items()})
    teacher = build_teacher("gcn", graph.x.shape[1], graph.num_classes)
    train_teacher(teacher, graph, epochs=100)
    found = GraphUAT(teacher, student=GraphUATStudent(teacher, epochs=150)).fit(graph).attribute(planted.nodes)
    right = [item.dominant_source == source for item, source in zip(found, planted.sources, strict=True)][:30]
    assert np.mean(right) > 0.5
    structure = [item.z["structure"] for item in found]
    assert np.median(structure[10:20]) > 1 > np.median(structure[30:])
    added = {(node, int(end)) for node, ends in planted.ends.items() for end in ends}
    named = [edge[:2] for node in planted.groups["structure"] for edge in found.node(int(node)).top_edges(4)]
    assert np.mean([edge in added for edge in named]) > 0.75


def test_it_works_where_the_caller_has_switched_gradients_off():
    graph, teacher, student = small()
    plain = attribute_uncertainty(teacher, graph, [3, 12], student=student)
    with torch.no_grad():
        assert attribute_uncertainty(teacher, graph, [3, 12], student=student).to_json() == plain.to_json()


def test_a_teacher_that_keeps_its_first_graph_is_refused():
    graph, _, student = small()
    teacher = GCN(FEATURES, 6, 2, CLASSES, cached=True).double()
    with pytest.raises(InputError, match="cached=True"):
        attribute_uncertainty(teacher, graph, 0, on="teacher")
    with pytest.raises(InputError, match="cached=True"):
        TeacherEntropy(teacher)
    with pytest.raises(InputError, match="backbone keeps"):
        GraphUATStudent(student.teacher, backbone=teacher)


def test_logits_and_log_probabilities_are_one_teacher_and_probabilities_none():
    graph, teacher, student = small()

    class Answers(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.network, self.form = teacher, form

        def forward(self, x, edge_index, edge_weight=None):
            return self.form(self.network(x, edge_index, edge_weight), -1)

    plain = attribute_uncertainty(teacher, graph, [3, 12], on="teacher")
    logs = attribute_uncertainty(Answers(torch.log_softmax), graph, [3, 12], on="teacher", fanout=(500, 500))
    for one, two in zip(plain, logs, strict=True):
        assert two.z == pytest.approx(one.z, abs=1e-6)
    with pytest.raises(InputError, match=r"return_type 'probs'.*'raw'.*'log_probs'"):
        attribute_uncertainty(Answers(torch.softmax), graph, 3, student=student)


def test_teachers_of_another_dtype_or_width_are_refused_in_words():
    graph, _, _ = small()
    for teacher in (GCN(FEATURES, 6, 2, CLASSES), GCN(FEATURES + 1, 6, 2, CLASSES).double()):
        for on in ("student", "teacher"):
            with pytest.raises(InputError, match="teacher cannot be called"):
                attribute_uncertainty(teacher, graph, 0, on=on)


def test_evidence_of_a_backbone_that_takes_no_edge_weights():
    graph, _, _ = small()

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(FEATURES, CLASSES).double()

        def forward(self, x, edge_index):
            return self.last(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))

    ones = torch.ones(graph.num_edges, dtype=torch.float64)
    weighted = Graph(graph.x, graph.edge_index, graph.y, graph.train_mask, graph.val_mask, edge_weight=ones)
    teacher = Mean()
    student = GraphUATStudent(teacher, backbone=Mean(), epochs=1, learning_rate=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgreementWarning)
        student.fit(weighted)
        (item,) = attribute_uncertainty(teacher, weighted, 12, student=student)
    assert item.evidence["distance"] > 0
    with pytest.raises(InputError, match="not fitted"):
        GraphUATStudent(teacher).whitened(graph)


def test_the_plain_coverage_probe_tests_no_edge():
    graph, teacher, student = small()
    alone = attribute_uncertainty(teacher, graph, 12, student=student, probes=("coverage",), coverage="epistemic")[0]
    assert alone.edges == []
    assert alone.scores == {"coverage": pytest.approx(alone.epistemic)}
    left = attribute_uncertainty(teacher, graph, 12, student=student, probes=("coverage",))[0]
    assert left.edges
    assert left.scores["coverage"] == attribute_uncertainty(teacher, graph, 12, student=student)[0].scores["coverage"]
