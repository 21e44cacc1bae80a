"""Removal faithfulness: equal counts, the same nodes for all, falls of the whole graph's teacher, paired intervals."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.nn import GCNConv, GraphNorm

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat import faithfulness
from steelyard.graphs.graphuat.attribution import attribute_uncertainty
from steelyard.graphs.graphuat.baselines import Scores
from steelyard.graphs.graphuat.faithfulness import area, bootstrap, removal_faithfulness
from steelyard.graphs.graphuat.teachers import build_teacher, seeded
from steelyard.rng import generator

# A star around 0 (degree 4) with a tail, and 7 alone.
EDGES = torch.tensor([[0, 0, 0, 0, 4, 5], [1, 2, 3, 4, 5, 6]])
X = torch.from_numpy(generator("test", "faithfulness", 0).normal(size=(8, 5))).float()
X[1, 3:] = 0.0
GRAPH = Graph(X, torch.cat([EDGES, EDGES.flip(0)], dim=1))
TEACHER = build_teacher("gcn", 5, 3, hidden=8, seed=3).eval()


def item(node, edges=(), features=()):
    return SimpleNamespace(node=node, edges=list(edges), features=list(features))


STAR = item(0, [(0, 2, 0.5), (0, 4, 0.2), (3, 0, 0.1), (0, 1, -0.1)], [(1, 0.4), (0, 0.1)])


def probabilities(teacher, x, edge_index):
    with torch.no_grad():
        return teacher(x, edge_index).double().softmax(-1)


def fall(teacher, node, others=(), features=()):
    """The definition: entropy of the whole graph before, minus after."""
    ends = GRAPH.edge_index.sort(0).values
    kept = torch.ones(GRAPH.num_edges, dtype=torch.bool)
    for other in others:
        kept &= ~((ends[0] == min(node, other)) & (ends[1] == max(node, other)))
    x = X.clone()
    x[node, list(features)] = 0.0
    before, after = (
        probabilities(teacher, *graph)[node] for graph in ((X, GRAPH.edge_index), (x, GRAPH.edge_index[:, kept]))
    )
    return float(torch.special.entr(before).sum() - torch.special.entr(after).sum())


@pytest.mark.parametrize("kind", ["gcn", "gat", "sage"])
def test_falls_are_those_of_the_whole_graph(kind):
    teacher = build_teacher(kind, 5, 3, hidden=8, heads=2, seed=4).eval()
    edges = removal_faithfulness(teacher, GRAPH, [STAR], ks=(1, 2, 3), against=())
    wanted = [fall(teacher, 0, others) for others in ([2], [2, 4], [2, 4, 3])]
    np.testing.assert_allclose(edges.drops["graphuat"][:, 0], wanted, atol=1e-5)
    features = removal_faithfulness(teacher, GRAPH, [STAR], ks=(1, 2), against=(), remove="features")
    wanted = [fall(teacher, 0, features=chosen) for chosen in ([1], [1, 0])]
    np.testing.assert_allclose(features.drops["graphuat"][:, 0], wanted, atol=1e-5)


def test_every_method_removes_the_same_number_at_the_same_nodes():
    counted = {}

    def spy(name):
        def score(scene, rng):
            counted.setdefault(name, []).append(scene.node)
            return Scores(-np.arange(len(scene.pairs), dtype=float), None, signed=True)  # nothing helps, it says

        return score

    items = [STAR, item(4), item(1), item(7)]
    curve = removal_faithfulness(TEACHER, GRAPH, items, against={"spy": spy("spy"), "random": "random"})
    assert curve.candidates.tolist() == [4, 2, 1, 0]
    assert curve.counts().tolist() == [3, 2, 1, 0]
    for values in curve.drops.values():
        assert np.isnan(values).tolist() == [[False, False, False, True], [False, False, True, True],
                                             [False, True, True, True], [True] * 4]  # fmt: skip
    assert counted == {"spy": [0, 4, 1, 7]}
    assert curve.drops["spy"][0, 0] == pytest.approx(fall(TEACHER, 0, [1]), abs=1e-5)  # although it says it harms
    # where k is all a node has, every method removes the same
    for k, node in ((0, 2), (1, 1)):
        assert len({round(float(values[k, node]), 6) for values in curve.drops.values()}) == 1
    assert np.isnan(curve.auc["graphuat"][3])
    assert curve.methods == ("graphuat", "spy", "random")
    assert set(curve.seconds) == {"spy", "random"}


def test_unequal_counts_remove_only_what_helps_and_say_so():
    def nothing_helps(scene, rng):
        return Scores(-np.ones(len(scene.pairs)), None, signed=True)

    curve = removal_faithfulness(
        TEACHER, GRAPH, [item(0, [(0, 2, 0.5), (0, 1, -0.1)])], ks=(1, 3),
        against={"none": nothing_helps, "random": "random"}, equal_counts=False,
    )  # fmt: skip
    assert curve.drops["none"][:, 0].tolist() == [0.0, 0.0]
    assert curve.drops["graphuat"][:, 0] == pytest.approx([fall(TEACHER, 0, [2])] * 2, abs=1e-5)
    assert "not a fair comparison" in curve.table()


def test_random_is_the_mean_of_several_draws():
    curve = removal_faithfulness(TEACHER, GRAPH, [STAR], ks=(1, 3), against=("random",))
    singles = [fall(TEACHER, 0, [other]) for other in (1, 2, 3, 4)]
    eighths = curve.drops["random"][0, 0] * faithfulness.RANDOM_DRAWS
    # a mean of eight draws of four values: eight times it is a sum of eight of them
    sums = {0.0}
    for _ in range(8):
        sums = {round(total + single, 9) for total in sums for single in singles}
    assert min(abs(eighths - total) for total in sums) < 1e-4


def test_unscored_candidates_come_last_and_strangers_are_passed_over():
    known = [(5, 6, 9.0), (0, 3, -0.2)]
    curve = removal_faithfulness(TEACHER, GRAPH, [item(0, known, [(77, 1.0), (4, -1.0)])], ks=(1,), against=())
    assert curve.drops["graphuat"][0, 0] == pytest.approx(fall(TEACHER, 0, [3]), abs=1e-5)
    curve = removal_faithfulness(
        TEACHER, GRAPH, [item(0, known, [(77, 1.0), (4, -1.0)])], ks=(1,), against=(), remove="features"
    )
    assert curve.drops["graphuat"][0, 0] == pytest.approx(fall(TEACHER, 0, features=[4]), abs=1e-5)


def test_methods_that_rank_no_features_are_named():
    curve = removal_faithfulness(
        TEACHER, GRAPH, [STAR, item(1)], ks=(1, 4), against=("degree", "saliency"), remove="features"
    )
    assert curve.left_out == ("degree",)
    assert curve.methods == ("graphuat", "saliency")
    assert curve.candidates.tolist() == [5, 3]


def test_the_margin_is_another_target():
    curve = removal_faithfulness(TEACHER, GRAPH, [STAR], ks=(1,), against=(), target="teacher_margin")
    kept = torch.tensor([{0, 2} != set(pair) for pair in GRAPH.edge_index.T.tolist()])
    before, after = (
        probabilities(TEACHER, X, edges)[0].topk(2).values for edges in (GRAPH.edge_index, GRAPH.edge_index[:, kept])
    )
    wanted = float((after[0] - after[1]) - (before[0] - before[1]))
    assert curve.drops["graphuat"][0, 0] == pytest.approx(wanted, abs=1e-6)


def test_seeds_repeat_and_the_order_of_nodes_does_not_matter():
    items = [STAR, item(4), item(5)]
    made = [
        removal_faithfulness(TEACHER, GRAPH, some, ks=(1, 2), against=("random",), seed=seed)
        for some, seed in ((items, 1), (items, 1), (items[::-1], 1), (items, 2))
    ]
    first = made[0].drops["random"]
    assert np.array_equal(first, made[1].drops["random"])
    np.testing.assert_allclose(first, made[2].drops["random"][:, ::-1], atol=1e-7)
    assert not np.array_equal(first, made[3].drops["random"])


def test_a_whole_attribution_is_taken_and_told():
    graph = Graph(X, GRAPH.edge_index, torch.arange(8) % 3, torch.arange(8) < 4)
    found = attribute_uncertainty(TEACHER, graph, [0, 4], on="teacher", probes=("feature", "structure"), fanout=None)
    told = []
    curve = removal_faithfulness(
        TEACHER, graph, found, ks=(1, 2), against=("random", "teacher_entropy"), progress=lambda *at: told.append(at)
    )
    assert told == [(1, 2), (2, 2)]
    np.testing.assert_allclose(curve.drops["graphuat"], curve.drops["teacher_entropy"], atol=1e-6)
    assert curve.interval("graphuat", 1, "random").mean >= 0  # the best single edge by construction
    table = curve.table()
    assert "graphuat - teacher_entropy" in table
    assert "teacher's entropy" in table.splitlines()[0]
    whole = json.loads(curve.to_json())
    assert whole["counts"] == [2, 2]
    assert whole["methods"]["random"]["more_than_it"][0].keys() == {"mean", "low", "high"}
    assert whole["methods"]["graphuat"]["more_than_it"] is None


def test_nothing_to_count_is_null_in_json_and_nan_in_tables():
    curve = removal_faithfulness(TEACHER, GRAPH, [item(7)], ks=(1,), against=("random",))
    assert json.loads(curve.to_json())["methods"]["random"]["curve"][0]["mean"] is None
    assert "nan" in curve.table()
    for bad in ({"method": "graphuat", "k": 2}, {"method": "saliency"}, {"method": "graphuat", "versus": "x"}):
        with pytest.raises(InputError, match="there are"):
            curve.interval(**bad)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ks": ()}, "ks must be"),
        ({"ks": (2, 1)}, "rising"),
        ({"ks": (1.0,)}, "integers"),
        ({"target": "entropy"}, "target must be one of"),
        ({"remove": "nodes"}, "'edges' or 'features'"),
        ({"against": "random"}, "not one name"),
        ({"against": ("randon",)}, "Did you mean 'random'"),
        ({"against": {"graphuat": "random"}}, "the attribution itself"),
        ({"attribution": []}, "no node"),
        ({"attribution": None}, "attribute_uncertainty returned"),
        ({"attribution": [STAR, STAR]}, "twice"),
        ({"attribution": [item(8)]}, "node 8"),
    ],
)
def test_what_is_refused(changed, says):
    arguments = {"attribution": [STAR], "against": (), **changed}
    with pytest.raises(InputError, match=says):
        removal_faithfulness(TEACHER, GRAPH, **arguments)


def test_the_bootstrap_interval_is_that_of_a_mean():
    values = generator("test", "bootstrap", 0).normal(0.3, 2.0, 400)
    found = bootstrap(values, 0)
    half = stats.norm.ppf(0.975) * values.std() / np.sqrt(400)
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.integers(0, 3))
def test_a_bootstrap_interval_lies_within_the_values(values, seed):
    found = bootstrap(np.array(values), seed, draws=100)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found == bootstrap(np.array(values), seed, draws=100)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.floats(-3, 3),
)
def test_the_area_of_a_straight_line_is_half_its_end(gaps, slope):
    ks = np.cumsum(gaps)
    found = area((slope * ks[:, None]).astype(float), ks.tolist())
    assert found[0] == pytest.approx(slope * ks[-1] / 2)


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.integers(0, 4))
def test_an_area_ends_where_the_node_has_no_more(values, seen):
    drops = np.array(values)[:, None].copy()
    drops[seen:] = np.nan
    found = area(drops, (1, 2, 3, 5))[0]
    if not seen:
        assert np.isnan(found)
    else:
        wanted = np.trapezoid([0.0, *values[:seen]], [0, *(1, 2, 3, 5)[:seen]]) / (1, 2, 3, 5)[seen - 1]
        assert found == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", ["twice", "norm"])
def test_a_teacher_that_is_more_than_its_layers_is_refused(kind):
    draw = np.random.default_rng(0)
    ring = np.arange(30)
    edges = torch.from_numpy(np.stack([np.append(ring, (ring + 1) % 30), np.append((ring + 1) % 30, ring)]))
    graph = Graph(torch.from_numpy(draw.normal(size=(30, 3))).float(), edges)

    class More(torch.nn.Module):
        def __init__(self):
            super().__init__()
            with seeded(torch.Generator().manual_seed(0)):
                self.layer, self.norm = GCNConv(3, 3), GraphNorm(3)

        def forward(self, x, edge_index):
            h = self.layer(x, edge_index)
            return self.norm(h) if kind == "norm" else 5 * self.layer(self.layer(h, edge_index), edge_index)

    teacher = More()
    items = [SimpleNamespace(node=node, edges=[(node, (node + 1) % 30, 1.0)], features=[]) for node in range(5)]
    with pytest.raises(InputError, match="attribute hops"):
        removal_faithfulness(teacher, graph, items, (1,), ("random",))
    if kind == "twice":
        teacher.hops = 3
        assert removal_faithfulness(teacher, graph, items, (1,), ("random",)).counts().tolist() == [5]
