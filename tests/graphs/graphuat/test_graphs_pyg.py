"""GraphUAT within torch-geometric's own Explainer and its metrics."""

import pytest
import torch
from torch import nn
from torch_geometric.explain import Explainer, ExplainerAlgorithm, ModelConfig, fidelity, unfaithfulness

from steelyard.errors import InputError, UnsupportedError
from steelyard.graphs import attribute_uncertainty
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat import pyg
from steelyard.graphs.graphuat.pyg import UATExplainer, check_seam
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher, train_teacher
from steelyard.rng import generator

RNG = generator("test", "pyg", 0)
Y = torch.arange(24) % 2
X = torch.from_numpy(RNG.normal(size=(24, 6))).float() + Y[:, None]
ENDS = torch.tensor([list(range(24)) * 2, [(i + 2) % 24 for i in range(24)] + [(i + 5) % 24 for i in range(24)]])
MASK = torch.arange(24) < 8
GRAPH = Graph(X, torch.cat([ENDS, ENDS.flip(0)], dim=1), Y, MASK, ~MASK, ~MASK)
TEACHER = train_teacher(build_teacher("gcn", 6, 2, hidden=8), GRAPH, epochs=30)
STUDENT = GraphUATStudent(TEACHER, hidden=32, epochs=300).fit(GRAPH)
RAW = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


def explainer(model=TEACHER, algorithm=None, **changed):
    settings = {
        "explanation_type": "model", "node_mask_type": "attributes", "edge_mask_type": "object",
        "model_config": ModelConfig(**RAW), **changed,
    }  # fmt: skip
    return Explainer(model, algorithm=algorithm or UATExplainer(GRAPH, student=STUDENT), **settings)


def test_one_node_as_attribute_uncertainty_has_it():
    found = explainer()(X, GRAPH.edge_index, index=3)
    (item,) = attribute_uncertainty(TEACHER, GRAPH, 3, student=STUDENT)
    assert found.attribution[0] == item
    assert found.uncertainty == {"total": item.total, "aleatoric": item.aleatoric, "epistemic": item.epistemic}
    assert found.source_scores == item.scores
    assert found.dominant_source == item.dominant_source
    assert found.shares == item.shares
    assert found.top_edges(2) == item.top_edges(2)
    assert found.top_features(2) == item.top_features(2)
    assert found.validate()
    assert found.node_mask.shape == X.shape
    assert set(found.node_mask.nonzero()[:, 0].tolist()) <= {3}
    assert float(found.node_mask.max()) == 1.0
    best = found.node_mask[3].argmax()
    assert int(best) == item.top_features(1)[0][0]
    for u, v, _ in item.top_edges(1):
        both = (GRAPH.edge_index.sort(0).values == torch.tensor([[min(u, v)], [max(u, v)]])).all(0)
        assert both.sum() == 2
        assert (found.edge_mask[both] == 1.0).all()


@pytest.mark.parametrize("index", [3, torch.tensor([3, 4, 9]), torch.arange(24) < 2])
def test_metrics_run_and_extra_attributes_survive(index):
    made = explainer()
    found = made(X, GRAPH.edge_index, index=index)
    plus, minus = fidelity(made, found)
    assert 0 <= plus <= 1
    assert 0 <= minus <= 1
    assert 0 <= unfaithfulness(made, found) <= 1
    assert found.attribution
    found.get_explanation_subgraph()
    found.get_complement_subgraph()
    limited = explainer(threshold_config={"threshold_type": "topk", "value": 2})(X, GRAPH.edge_index, index=index)
    assert (limited.edge_mask > 0).sum() <= 2
    assert limited.dominant_source == found.dominant_source


def test_several_nodes_have_dictionaries_by_node():
    found = explainer()(X, GRAPH.edge_index, index=torch.tensor([4, 3]))
    assert list(found.dominant_source) == [4, 3]
    assert found.source_scores[3] == found.attribution.node(3).scores
    assert set(found.node_mask.nonzero()[:, 0].tolist()) <= {3, 4}
    alone = [explainer()(X, GRAPH.edge_index, index=node).attribution[0] for node in (4, 3)]
    assert list(found.attribution) == alone


def test_no_index_explains_all_nodes():
    found = explainer(algorithm=UATExplainer(on="teacher"))(X, GRAPH.edge_index)
    assert len(found.attribution) == 24
    assert found.get("index") is None


def test_masks_that_were_not_asked_for_are_not_made():
    found = explainer(node_mask_type=None)(X, GRAPH.edge_index, index=3)
    assert found.get("node_mask") is None
    assert found.edge_mask is not None
    found = explainer(edge_mask_type=None)(X, GRAPH.edge_index, index=3)
    assert found.get("edge_mask") is None


class LogProbabilities(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.teacher, self.end = TEACHER, end

    def forward(self, x, edge_index, edge_weight=None):
        return self.end(self.teacher(x, edge_index, edge_weight), -1)


def test_log_probabilities_are_the_same_teacher():
    settings = ModelConfig(**{**RAW, "return_type": "log_probs"})
    made = explainer(LogProbabilities(torch.log_softmax).eval(), UATExplainer(on="teacher"), model_config=settings)
    found = made(X, GRAPH.edge_index, index=5)
    raw = explainer(algorithm=UATExplainer(on="teacher"))(X, GRAPH.edge_index, index=5)
    assert found.uncertainty["total"] == pytest.approx(raw.uncertainty["total"], abs=1e-6)
    fidelity(made, found)


def test_edge_weights_reach_the_teacher():
    weight = torch.linspace(0.2, 2.0, 48).repeat(2)
    found = explainer(algorithm=UATExplainer(on="teacher"))(X, GRAPH.edge_index, index=5, edge_weight=weight)
    p = TEACHER(X, GRAPH.edge_index, weight).detach().double().softmax(-1)[5]
    assert found.uncertainty["total"] == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model_config": ModelConfig(**{**RAW, "task_level": "graph"})}, "task_level='graph' is not supported"),
        ({"model_config": ModelConfig(**{**RAW, "task_level": "edge"})}, "task_level='edge' is not supported"),
        ({"model_config": ModelConfig("regression", "node", "raw")}, "mode='regression' is not supported"),
        ({"model_config": ModelConfig("binary_classification", "node", "raw")}, "two logits for two"),
        ({"model_config": ModelConfig(**{**RAW, "return_type": "probs"})}, "return_type='probs' is not supported"),
        ({"explanation_type": "phenomenon"}, "'phenomenon' is not supported"),
        ({"node_mask_type": "object"}, "node_mask_type='object' is not supported"),
    ],
)
def test_settings_that_are_not_supported(changed, says):
    with pytest.raises(InputError, match=says):
        explainer(**changed)


def test_supports_answers_as_torch_geometric_asks():
    algorithm = UATExplainer(GRAPH, student=STUDENT)
    explainer(algorithm=algorithm)
    assert algorithm.supports()
    algorithm._model_config = ModelConfig(**{**RAW, "task_level": "graph"})
    assert not algorithm.supports()


def test_inputs_that_are_not_supported():
    algorithm = UATExplainer(GRAPH, student=STUDENT)
    made = explainer(algorithm=algorithm)
    with pytest.raises(InputError, match="heterogeneous"):
        algorithm(TEACHER, {"paper": X}, {("paper", "cites", "paper"): GRAPH.edge_index}, target=Y)
    with pytest.raises(InputError, match="'edge_attr' is not supported"):
        algorithm(TEACHER, X, GRAPH.edge_index, target=Y, edge_attr=torch.ones(96, 1))
    with pytest.raises(InputError, match="node 24"):
        made(X, GRAPH.edge_index, index=24)
    with pytest.raises(InputError, match="data has features of shape"):
        made(X[:23], GRAPH.edge_index[:, (GRAPH.edge_index < 23).all(0)], index=1)
    with pytest.raises(InputError, match="returns probabilities"):
        explainer(LogProbabilities(torch.softmax).eval(), UATExplainer(on="teacher"))(X, GRAPH.edge_index, index=1)
    with pytest.raises(InputError, match="needs data"):
        UATExplainer()
    with pytest.raises(InputError, match="probes"):
        UATExplainer(GRAPH, probes=("colour",))


def test_what_calls_share_is_made_once_and_again_after_a_change(monkeypatch):
    made = []
    real = pyg.Attributor
    monkeypatch.setattr(pyg, "Attributor", lambda *one, **two: made.append(1) or real(*one, **two))
    x = X.clone()
    algorithm = UATExplainer(GRAPH, student=STUDENT)
    explain = explainer(algorithm=algorithm)
    for _ in range(2):
        explain(x, GRAPH.edge_index, index=1)
    assert len(made) == 1
    x[0, 0] += 1.0
    explain(x, GRAPH.edge_index, index=1)
    assert len(made) == 2
    with torch.no_grad():
        TEACHER.convs[0].bias.add_(0.0)
    explain(x, GRAPH.edge_index, index=1)
    assert len(made) == 3


def test_a_student_is_fitted_when_none_is_given():
    found = explainer(algorithm=UATExplainer(GRAPH, seed=3))(X, GRAPH.edge_index, index=1)
    assert found.uncertainty["epistemic"] > 0


def test_the_seam_is_checked():
    class Other(ExplainerAlgorithm):
        def forward(self, model, batch, **kwargs):
            return None

        def supports(self):
            return True

    for algorithm in (Other, object):
        with pytest.raises(UnsupportedError, match="install torch-geometric"):
            check_seam(algorithm)
