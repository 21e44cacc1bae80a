"""Rankings of edges and features beside GraphUAT's: each against a closed form, finite differences or a peer."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GCN, GCNConv

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat import baselines
from steelyard.graphs.graphuat.baselines import BASELINES, Scenes, Scores, in_order, planted, rank, scorer
from steelyard.graphs.graphuat.probes import View, read
from steelyard.graphs.graphuat.teachers import build_teacher
from steelyard.rng import generator

# A star around 0 with a tail: 0-1, 0-2, 0-3, 3-4, 4-5, and 6 alone.
EDGES = torch.tensor([[0, 0, 0, 3, 4], [1, 2, 3, 4, 5]])
X = torch.from_numpy(generator("test", "baselines", 0).normal(size=(7, 5))).float()
X[:, 4] = 0.0
GRAPH = Graph(X, torch.cat([EDGES, EDGES.flip(0)], dim=1))
TEACHERS = {kind: build_teacher(kind, 5, 3, hidden=8, heads=2, seed=3).eval() for kind in ("gcn", "gat", "sage")}

FEW_STEPS = partial(baselines.gnnexplainer_scores, epochs=3)
STAR = Scenes(TEACHERS["gcn"], GRAPH)[0]


class MeanOfNeighbours(nn.Module):
    """Logits = own features @ A + mean of the neighbours' @ B, without torch-geometric or edge weights."""

    def __init__(self):
        super().__init__()
        rng = generator("test", "own teacher", 0)
        self.own, self.near = (torch.from_numpy(rng.normal(size=(5, 3))).float() for _ in range(2))

    def forward(self, x, edge_index):
        source, target = edge_index
        total = torch.zeros(len(x), x.shape[1]).index_add(0, target, x[source])
        count = torch.zeros(len(x)).index_add(0, target, torch.ones(len(source))).clamp(min=1)
        return x @ self.own + (total / count[:, None]) @ self.near


def rng(seed=0):
    return generator("test", "ranking", seed)


def entropy(teacher, graph, node, weights=()):
    with torch.no_grad():
        p = teacher(graph.x.double(), graph.edge_index, *weights).softmax(-1)[node]
    return float(-(p * p.log()).sum())


@pytest.mark.parametrize("kind", list(TEACHERS))
def test_a_scene_has_the_teachers_value_of_the_whole_graph(kind):
    scenes = Scenes(TEACHERS[kind], GRAPH)
    whole = scenes.model.evaluate(GRAPH.x, GRAPH.edge_index).total.detach()
    for node in range(7):
        scene = scenes[node]
        assert read(scene.model, GRAPH.x, [View(scene.graph)])[0] == pytest.approx(float(whole[node]), abs=1e-5)
        assert scene.pairs.nodes[:, 1].tolist() == {0: [1, 2, 3], 3: [0, 4], 4: [3, 5], 6: []}.get(
            node, [0, 0, 0, 0, 0, 4][node : node + 1]
        )
        assert scene.features.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, kind) for method in BASELINES for kind in TEACHERS if method != "attention" or kind == "gat"],
)
@pytest.mark.parametrize("node", [0, 6])
def test_every_baseline_ranks_every_candidate_once_and_repeats_itself(method, kind, node):
    scene = Scenes(TEACHERS[kind], GRAPH)[node]
    method = FEW_STEPS if method == "gnnexplainer" else method
    before = torch.random.get_rng_state()
    first, again = (rank(method, scene, rng(1)) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    if first.edges is not None:
        assert sorted(first.edges.tolist()) == list(range(len(scene.pairs)))
        assert first.edges.tolist() == again.edges.tolist()
    if first.features is not None:
        assert sorted(first.features.tolist()) == scene.features.tolist()
        assert first.features.tolist() == again.features.tolist()


def test_attention_asks_for_attention():
    with pytest.raises(InputError, match="needs a teacher with attention"):
        rank("attention", Scenes(TEACHERS["gcn"], GRAPH)[0], rng())


def test_attention_is_torch_geometrics():
    from torch_geometric.explain import AttentionExplainer, Explainer

    peer = Explainer(
        TEACHERS["gat"], AttentionExplainer(), explanation_type="model", edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )(GRAPH.x, GRAPH.edge_index, index=0).edge_mask  # fmt: skip
    wanted = [float(peer[place] + peer[place + 5]) for place in range(3)]
    found = baselines.attention_scores(Scenes(TEACHERS["gat"], GRAPH)[0], rng())
    assert found.features is None
    np.testing.assert_allclose(found.edges, wanted, rtol=1e-5)


def test_degree_counts_the_other_nodes_edges():
    scene = Scenes(TEACHERS["gcn"], GRAPH)[0]
    assert baselines.degree_scores(scene, rng()).edges.tolist() == [1.0, 1.0, 2.0]
    assert rank("degree", scene, rng()).features is None


def test_gradients_of_a_gcn_are_those_of_finite_differences():
    teacher = build_teacher("gcn", 5, 3, hidden=8, seed=3).double().eval()
    graph = Graph(X.double(), GRAPH.edge_index)
    scene = Scenes(teacher, graph)[0]
    found = baselines.entropy_gradient_scores(scene, rng())
    assert found.signed
    step = 1e-5
    for place, (_, other) in enumerate(scene.pairs.nodes.tolist()):
        both = ((graph.edge_index[0] == other) & (graph.edge_index[1] == 0)) | (
            (graph.edge_index[1] == other) & (graph.edge_index[0] == 0)
        )
        high, low = (entropy(teacher, graph, 0, (torch.ones(10).double() + sign * step * both,)) for sign in (1, -1))
        assert found.edges[place] == pytest.approx((high - low) / (2 * step), abs=1e-6)
    for place, feature in enumerate(scene.features.tolist()):
        values = []
        for sign in (1, -1):
            x = X.double().clone()
            x[0, feature] += sign * step
            values.append(entropy(teacher, Graph(x, graph.edge_index), 0))
        slope = (values[0] - values[1]) / (2 * step)
        assert found.features[place] == pytest.approx(slope * float(X[0, feature]), abs=1e-6)


def test_masked_messages_of_a_sum_are_its_weights():
    """For a network that sums neighbours unnormalised, scaling messages and weighting edges are one thing."""
    weighted = GCNConv(5, 3, normalize=False, add_self_loops=False)

    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = weighted

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    class Hearing(Deaf):
        def forward(self, x, edge_index, edge_weight=None):
            return self.conv(x, edge_index, edge_weight)

    for method in ("saliency", "entropy_gradient", "integrated_gradients", "entropy_integrated"):
        by_mask, by_weight = (scorer(method)(Scenes(made(), GRAPH)[0], rng()) for made in (Deaf, Hearing))
        np.testing.assert_allclose(by_mask.edges, by_weight.edges, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(by_mask.features, by_weight.features, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", list(TEACHERS))
def test_integrated_gradients_of_entropy_add_up_to_its_change(kind):
    """Completeness (Sundararajan et al. 2017) over the features: the scores sum to value minus baseline."""
    teacher = TEACHERS[kind]
    found = baselines.entropy_integrated_scores(Scenes(teacher, GRAPH)[0], rng())
    x = X.clone()
    x[0] = 0.0
    change = entropy(teacher.double(), GRAPH, 0) - entropy(teacher, Graph(x, GRAPH.edge_index), 0)
    teacher.float()
    assert found.features.sum() == pytest.approx(change, abs=2e-3)


def test_integrated_gradients_of_entropy_add_up_over_edges():
    """16 midpoints of a path with kinks (ReLU): the sum misses the change by a few per cent."""
    teacher = TEACHERS["gcn"]
    scene = Scenes(teacher, GRAPH)[0]
    found = baselines.entropy_integrated_scores(scene, rng())
    alone = read(scene.model, GRAPH.x, [View(scene.graph), View(scene.graph, np.concatenate(scene.pairs.edges))])
    assert found.edges.sum() == pytest.approx(alone[0] - alone[1], rel=0.05)


def test_a_module_of_ones_own_gets_first_order_contributions_of_the_senders():
    teacher = MeanOfNeighbours()
    scene = Scenes(teacher, GRAPH)[0]
    found = baselines.entropy_gradient_scores(scene, rng())
    x = X.clone().requires_grad_()
    p = teacher(x, GRAPH.edge_index).softmax(-1)[0]
    (slope,) = torch.autograd.grad(-(p * p.log()).sum(), x)
    back = float((slope[0] * X[0]).sum())  # the reverse direction has the node itself as its sender
    wanted = [float((slope[other] * X[other]).sum()) + back for other in (1, 2, 3)]
    np.testing.assert_allclose(found.edges, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="GNNExplainer cannot explain this teacher"):
        rank("gnnexplainer", scene, rng())


@pytest.mark.parametrize("kind", list(TEACHERS))
def test_teacher_entropy_is_the_fall_after_deleting_columns(kind):
    teacher = TEACHERS[kind]
    found = baselines.teacher_entropy_scores(Scenes(teacher, GRAPH)[0], rng())
    teacher.double()
    for place, other in enumerate((1, 2, 3)):
        ends = GRAPH.edge_index.sort(0).values
        kept = ~((ends[0] == 0) & (ends[1] == other))
        fall = entropy(teacher, GRAPH, 0) - entropy(teacher, Graph(X, GRAPH.edge_index[:, kept]), 0)
        assert found.edges[place] == pytest.approx(fall, abs=1e-5)
    teacher.float()


def test_teacher_entropy_tests_only_so_many_edges(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_EDGES", 2)
    scene = Scenes(TEACHERS["gcn"], GRAPH)[0]
    found = baselines.teacher_entropy_scores(scene, rng())
    slopes = np.abs(baselines.entropy_gradient_scores(scene, rng()).edges)
    assert np.isneginf(found.edges).tolist() == (slopes == slopes.min()).tolist()


def test_gnnexplainer_is_torch_geometrics_and_finds_the_edge_that_decides():
    """A teacher that reads one neighbour alone: with enough steps the mask points at that edge."""
    x = torch.zeros(7, 5)
    x[1, 0] = 1.0
    teacher = GCN(5, 3, 1, 3).eval()
    with torch.no_grad():
        teacher.convs[0].lin.weight.zero_()
        teacher.convs[0].lin.weight[0, 0] = 5.0
    scene = Scenes(teacher, Graph(x, GRAPH.edge_index))[0]
    assert scene.pairs.nodes[rank("gnnexplainer", scene, rng()).edges[0]].tolist() == [0, 1]


def test_explainers_leave_the_teacher_as_it_was():
    teacher = build_teacher("gcn", 5, 3, hidden=8).train()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    scene = Scenes(teacher, GRAPH)[0]
    for method in (FEW_STEPS, "saliency", "entropy_integrated"):
        rank(method, scene, rng())
    assert teacher.training
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(conv._edge_mask is None and not conv.explain for conv in teacher.convs)


def test_weighted_graphs_keep_their_weights():
    weight = torch.linspace(0.5, 2.0, 5).repeat(2)
    graph = Graph(X, GRAPH.edge_index, edge_weight=weight)
    scene = Scenes(TEACHERS["gcn"], graph)[0]
    whole = TEACHERS["gcn"](X, GRAPH.edge_index, weight).detach().double().softmax(-1)[0]
    value = read(scene.model, X, [View(scene.graph)])[0]
    assert value == pytest.approx(float(-(whole * whole.log()).sum()), abs=1e-5)
    assert baselines.degree_scores(scene, rng()).edges == pytest.approx([0.5, 0.875, 1.25 + 1.625])
    for method in ("entropy_gradient", "entropy_integrated", FEW_STEPS):
        assert len(rank(method, scene, rng()).edges) == 3


def test_what_scenes_refuse():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(5, 3)

        def forward(self, x, edge_index):
            self.hidden = self.lin(x.requires_grad_(False)) * 1.0
            return self.hidden

    kept = Keeps()
    kept(X, GRAPH.edge_index)
    kept.hidden.requires_grad_(True)
    with pytest.raises(InputError, match="cached=False"):
        Scenes(GCN(5, 8, 2, 3, cached=True), GRAPH)
    with pytest.raises(InputError, match="nodes are 0"):
        Scenes(TEACHERS["gcn"], GRAPH)[7]
    with pytest.raises(InputError, match="Did you mean 'saliency'"):
        rank("salience", Scenes(TEACHERS["gcn"], GRAPH)[0], rng())
    with pytest.raises(InputError, match="on this graph"):
        Scenes(build_teacher("gcn", 4, 3), GRAPH)


def test_a_teacher_that_cannot_be_copied():
    class Whole(MeanOfNeighbours):
        def __deepcopy__(self, memo):
            raise TypeError("bound to a device")

    with pytest.raises(InputError, match="cannot be copied \\(bound to a device\\)"):
        Scenes(Whole(), GRAPH)


def test_the_oracle_removes_what_was_planted():
    scene = Scenes(TEACHERS["gcn"], GRAPH)[0]
    found = rank(planted([(3, 0), (4, 5)], {0: [2], 1: [3]}), scene, rng())
    assert scene.pairs.nodes[found.edges[0]].tolist() == [0, 3]
    assert found.features[0] == 2
    assert (found.edges_above_zero, found.features_above_zero) == (1, 1)
    assert rank(planted([], {}), scene, rng()).features_above_zero == 0


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=12), st.integers(0, 5))
def test_an_order_is_a_falling_permutation(scores, seed):
    values = np.array(scores)
    order = in_order(values, rng(seed))
    assert sorted(order.tolist()) == list(range(len(scores)))
    assert (np.diff(values[order]) <= 0).all()


def test_equal_scores_come_in_every_order():
    """First places of four equal scores over 4000 draws: binomial with p = 1/4, five deviations allowed."""
    draws = rng(3)
    first = np.bincount([in_order(np.zeros(4), draws)[0] for _ in range(4000)], minlength=4)
    assert (np.abs(first - 1000) < 5 * np.sqrt(4000 * 3 / 16)).all()


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.booleans())
def test_only_signed_scores_tell_how_many_help(scores, signed):
    found = rank(lambda *_: Scores(np.array(scores), None, signed), STAR, rng())
    assert found.edges_above_zero == (sum(score > 0 for score in scores) if signed else None)
    assert found.features_above_zero is None


@settings(max_examples=20)
@given(st.permutations(range(7)))
def test_numbers_of_the_nodes_do_not_matter(order):
    """Renaming the nodes renames the scores, in methods that draw nothing."""
    new = np.argsort(order)
    renamed = Scenes(TEACHERS["gcn"], Graph(X[list(order)], torch.from_numpy(new)[GRAPH.edge_index]))[int(new[0])]
    for method in ("degree", "saliency", "teacher_entropy"):
        found = dict(zip(renamed.pairs.nodes[:, 1].tolist(), scorer(method)(renamed, rng()).edges, strict=True))
        wanted = scorer(method)(STAR, rng()).edges
        np.testing.assert_allclose([found[int(new[other])] for other in (1, 2, 3)], wanted, rtol=1e-4, atol=1e-6)
