import copy
import math
import types
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch_geometric.data import HeteroData

from steelyard.errors import DataMissingError, InputError
from steelyard.graphs.graph import Graph, load_graph
from steelyard.graphs.graphuat import core
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.student import AgreementWarning, GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher, train_teacher
from steelyard.rng import torch_generator

CLASSES = 3
ISOLATED = [5, 16]


def planted(seed=0, per_class=16, dtype=torch.float32):
    """Three communities with features of their own, two isolated nodes, four labels a class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(per_class)
    nodes = len(y)
    same = y[:, None] == y[None, :]
    linked = torch.rand(nodes, nodes, generator=generator) < torch.where(same, 0.3, 0.03)
    linked[ISOLATED] = linked[:, ISOLATED] = False
    edge_index = linked.triu(1).nonzero().T
    x = torch.randn(nodes, 10, generator=generator, dtype=dtype) + 2 * functional.one_hot(y, 10)
    train = torch.zeros(nodes, dtype=torch.bool)
    train[torch.cat([torch.arange(4) + c * per_class for c in range(CLASSES)])] = True
    return Graph(x, torch.cat([edge_index, edge_index.flip(0)], 1), y, train)


def a_teacher(dtype=torch.float32):
    """A convolution that knows the classes."""
    made = SparseGCN(10, CLASSES, hidden=10, dropout=0.0)
    made.weights[0].data = torch.eye(10)
    made.weights[1].data = 3 * torch.eye(10)[:, :CLASSES]
    return made.to(dtype)


class Plain(nn.Module):
    """A teacher without edge weights, with parts that behave otherwise in training."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(10), nn.Dropout(0.5)
        self.head = nn.Linear(10, CLASSES)
        self.head.weight.data = scale * torch.eye(CLASSES, 10)
        self.head.bias.data.zero_()

    def forward(self, x, edge_index):
        mean = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.head(self.drop(self.norm(x + 0.3 * mean)))


class Own(nn.Module):
    """A backbone that shows a representation of its own."""

    def __init__(self):
        super().__init__()
        self.inner = SparseGCN(10, CLASSES, hidden=6, generator=torch.Generator().manual_seed(5))

    def forward(self, x, edge_index, edge_weight=None):
        return self.inner(x, edge_index, edge_weight)

    def represent(self, x, edge_index, edge_weight=None):
        return self.inner.represent(x, edge_index, edge_weight)


def student_of(teacher=None, data=None, **settings):
    return GraphUATStudent(teacher or a_teacher(), **({"hidden": 12, "epochs": 150} | settings)).fit(data or planted())


@pytest.fixture(scope="module")
def fitted():
    return student_of()


def test_the_student_imitates_its_teacher(fitted):
    data = planted()
    assert fitted.final_loss < 0.02
    assert fitted.fit_agreement == fitted.agreement(data) >= 0.97
    with torch.no_grad():
        own = core.logit_entropy(fitted.teacher(data.x, data.edge_index))
    total = fitted.uncertainty(data).total
    assert float(total.mean()) > float(own.mean())  # one is added to every class


def test_the_uncertainty_is_composed_as_it_says(fitted):
    data = planted()
    h, logits = fitted.backbone.represent(data.x, data.edge_index)
    s = core.coverage_strength(h, h[data.train_mask], data.y[data.train_mask], tau=8.0, n_budget=20.0)
    alpha = 1 + s[:, None] * torch.softmax(logits, -1)
    found = fitted.uncertainty(data)
    assert found.alpha.shape == (48, CLASSES)
    assert torch.allclose(found.alpha, alpha, rtol=1e-5)
    assert torch.allclose(found.epistemic, core.dirichlet_uncertainty(alpha).epistemic, atol=1e-6)


def test_the_loss_is_the_divergence_from_the_teacher_on_all_nodes():
    data, teacher = planted(), a_teacher()
    target = torch.softmax(teacher(data.x, data.edge_index), -1).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgreementWarning)
        divergence = student_of(teacher, data, epochs=1, dropout=0.0, seed=4).final_loss
        evidential = student_of(teacher, data, epochs=1, dropout=0.0, seed=4, loss="uce", lambda_h=0.1).final_loss
    first = SparseGCN(10, CLASSES, hidden=12, generator=torch_generator("graphuat", "student weights", 4))
    mean = torch.softmax(first(data.x, data.edge_index), -1).detach()
    assert divergence == pytest.approx(float((target * (target / mean).log()).sum(1).mean()), rel=1e-5)
    assert evidential == pytest.approx(float(core.uce_loss(1 + 20 * mean, target, 0.1)), rel=1e-5)


def test_the_evidential_loss_trains_too():
    assert student_of(loss="uce").fit_agreement > 0.95


@pytest.mark.parametrize("strength", ["gaussian", "knn"])
def test_a_region_without_labels_is_where_the_student_knows_least(strength):
    data = planted(per_class=30)
    labelled = data.train_mask & (data.y != 2)
    with pytest.warns(UserWarning, match=r"\[2\]"):
        student = GraphUATStudent(a_teacher(), hidden=12, epochs=150, strength=strength).fit(data, labelled)
    epistemic = student.uncertainty(data).epistemic
    assert float(epistemic[data.y == 2].mean()) > 1.5 * float(epistemic[data.y != 2].mean())


def test_labels_by_index_are_labels_by_mask():
    data = planted()
    by_mask, by_index = student_of(data=data), GraphUATStudent(a_teacher(), hidden=12, epochs=150)
    bare = Graph(data.x, data.edge_index, data.y)
    by_index.fit(bare, data.train_mask.nonzero().flatten().flip(0))
    assert torch.equal(by_mask.uncertainty(data).alpha, by_index.uncertainty(bare).alpha)


def test_seeds():
    one, again, other = (student_of(seed=seed, epochs=60) for seed in (1, 1, 2))
    data = planted()
    assert torch.equal(one.uncertainty(data).alpha, again.uncertainty(data).alpha)
    assert not torch.equal(one.uncertainty(data).alpha, other.uncertainty(data).alpha)
    assert torch.equal(one.uncertainty(data).alpha, one.fit(data).uncertainty(data).alpha)


@pytest.mark.parametrize("backbone", ["gcn", Plain()])
@pytest.mark.filterwarnings("ignore::steelyard.graphs.graphuat.student.AgreementWarning")
def test_teacher_data_modes_and_global_states_are_as_before(backbone):
    data, teacher = planted(), Plain(5.0).train()
    teacher.norm.eval()
    kept = copy.deepcopy((data, teacher.state_dict()))
    random, grad = torch.get_rng_state(), torch.is_grad_enabled()
    student = GraphUATStudent(teacher, backbone=backbone, hidden=12, epochs=5).fit(data)
    student.uncertainty(data)
    student.agreement(data)
    assert (teacher.training, teacher.drop.training, teacher.norm.training) == (True, True, False)
    assert all(torch.equal(tensor, kept[1][name]) for name, tensor in teacher.state_dict().items())
    assert torch.equal(data.x, kept[0].x)
    assert torch.equal(data.edge_index, kept[0].edge_index)
    assert torch.equal(random, torch.get_rng_state())
    assert torch.is_grad_enabled() == grad


def test_fitting_works_where_gradients_are_off():
    with torch.no_grad():
        assert student_of(epochs=60).final_loss < 0.3


def test_evaluate_on_chosen_nodes_and_under_many_weightings(fitted):
    data = planted()
    weights = torch.ones(3, data.num_edges)
    weights[1, 0], weights[2, :20] = 0, 0.5
    nodes = torch.tensor([7, 30, 5])
    whole = fitted.uncertainty(data)
    some = fitted.evaluate(data.x, data.edge_index, nodes=nodes)
    assert torch.allclose(some.total, whole.total[nodes], atol=1e-6)
    many = fitted.evaluate(data.x, data.edge_index, weights, nodes=nodes)
    assert many.alpha.shape == (3, 3, CLASSES)
    for row, weight in enumerate(weights):
        alone = fitted.evaluate(data.x, data.edge_index, weight, nodes=nodes)
        assert torch.allclose(many.epistemic[row], alone.epistemic, atol=1e-6)
    assert fitted.evaluate(data.x, data.edge_index, weights, nodes=7).total.shape == (3,)
    assert fitted.evaluate(data.x.double(), data.edge_index).total.dtype == torch.float32


@settings(max_examples=25)
@given(st.integers(0, 1000))
def test_weight_zero_is_removal_and_names_do_not_matter(fitted, seed):
    data = planted()
    generator = torch.Generator().manual_seed(seed)
    gone = torch.rand(data.num_edges, generator=generator) < 0.3
    zero = fitted.evaluate(data.x, data.edge_index, (~gone).float())
    removed = fitted.evaluate(data.x, data.edge_index[:, ~gone])
    assert all(torch.equal(one, other) for one, other in zip(zero, removed, strict=True))
    order = torch.randperm(data.num_nodes, generator=generator)
    new_name = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    renamed = fitted.evaluate(data.x[order], new_name[data.edge_index])
    usual = fitted.evaluate(data.x, data.edge_index)
    assert torch.allclose(renamed.alpha, usual.alpha[order], rtol=1e-4)


def test_gradients_in_features_and_edge_weights():
    data = planted(per_class=6, dtype=torch.float64)
    student = student_of(a_teacher(torch.float64), data, epochs=80, tau=1.0)
    x, weight = data.x.clone().requires_grad_(), torch.ones(data.num_edges, dtype=torch.float64, requires_grad=True)

    def total_and_epistemic(x, weight):
        found = student.evaluate(x, data.edge_index, weight, nodes=torch.tensor([8, 13]))
        return found.total, found.epistemic, found.aleatoric

    assert torch.autograd.gradcheck(total_and_epistemic, (x, weight))
    assert all(not parameter.requires_grad for parameter in student.backbone.parameters())


def test_an_isolated_node_has_finite_uncertainty(fitted):
    data = planted()
    assert all(bool(torch.isfinite(part[ISOLATED]).all()) for part in fitted.uncertainty(data))
    alone = Graph(data.x[:1], torch.zeros(2, 0, dtype=torch.long))
    assert float(fitted.uncertainty(alone).total) > 0


def test_weights_of_the_graph_reach_teacher_and_student():
    data = planted()
    weighted = Graph(data.x, data.edge_index, data.y, data.train_mask, edge_weight=torch.full((data.num_edges,), 0.2))
    teacher = a_teacher()
    student = student_of(teacher, weighted)
    assert student.agreement(weighted) >= 0.95
    own = student.evaluate(data.x, data.edge_index, weighted.edge_weight)
    assert torch.equal(own.alpha, student.uncertainty(weighted).alpha)
    target = torch.softmax(teacher(data.x, data.edge_index, weighted.edge_weight), -1)
    mean = torch.softmax(student.backbone(data.x, data.edge_index, weighted.edge_weight), -1)
    assert float((target - mean).abs().mean().detach()) < 0.05


def test_a_module_without_edge_weights_gets_columns_instead():
    data, teacher = planted(), Plain(5.0).eval()
    student = student_of(teacher, data, backbone=Plain(1.0), epochs=200)
    kept = torch.ones(data.num_edges)
    kept[:30] = 0
    dropped = student.evaluate(data.x, data.edge_index[:, 30:]).alpha
    assert torch.equal(student.evaluate(data.x, data.edge_index, kept).alpha, dropped)
    assert torch.equal(student.evaluate(data.x, data.edge_index, torch.stack([kept, kept])).alpha[1], dropped)
    with pytest.raises(InputError, match="Plain takes no edge weights"):
        student.evaluate(data.x, data.edge_index, 0.5 * kept)


def test_a_backbone_of_ones_own():
    own = Own()
    before = copy.deepcopy(own.state_dict())
    student = student_of(backbone=own, epochs=200)
    assert student.fit_agreement > 0.9
    assert len(student.coverage.centre) == 6
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())
    assert len(student_of(backbone=copy.deepcopy(own.inner)).coverage.centre) == 6


def test_a_student_that_learned_something_else_warns():
    with pytest.warns(AgreementWarning, match="the attribution is about the student"):
        student = student_of(epochs=1)
    assert student.fit_agreement < 0.9


def test_classes_that_tie_at_the_teacher_all_count_as_agreement(fitted):
    class Tied(nn.Module):
        def forward(self, x, edge_index):
            return torch.zeros(len(x), CLASSES)

    student = copy.copy(fitted)
    student.teacher = Tied()
    assert student.agreement(planted()) == 1.0


def test_progress():
    told = []
    GraphUATStudent(a_teacher(), hidden=4, epochs=3).fit(planted(seed=1), progress=lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]


test_progress = pytest.mark.filterwarnings("ignore::UserWarning")(test_progress)


@pytest.mark.parametrize("labels", [[0, 1, 2], [0], [0, 16, 17, 32]])
@pytest.mark.filterwarnings("ignore:classes without")
def test_few_labels(labels):
    found = GraphUATStudent(a_teacher(), hidden=12, epochs=150).fit(planted(), torch.tensor(labels))
    assert all(bool(torch.isfinite(part).all()) for part in found.uncertainty(planted()))


class Returns(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.out = out

    def forward(self, x, edge_index):
        return self.out


def changed(**fields):
    data = planted()
    return types.SimpleNamespace(
        **({name: getattr(data, name) for name in ("x", "edge_index", "y", "train_mask")} | fields)
    )


@pytest.mark.parametrize(
    ("data", "mask", "said"),
    [
        (changed(y=None), None, "no labelled nodes"),
        (changed(train_mask=None), None, "no labelled nodes"),
        (changed(), torch.zeros(48, dtype=torch.bool), "selects no node"),
        (changed(), torch.zeros(0, dtype=torch.long), "selects no node"),
        (changed(), torch.ones(9, dtype=torch.bool), r"shape \(48,\)"),
        (changed(), torch.ones(9), "bool mask or node indices"),
        (changed(), torch.tensor([3, 48]), "outside 0 to 47"),
        (changed(), [-1], "outside 0 to 47"),
        (changed(y=torch.full((48,), -1)), None, "y is -1 at the labelled node 0"),
        (changed(y=torch.full((48,), 3)), None, "the teacher knows classes 0 to 2"),
        (changed(x=torch.full((48, 10), math.nan)), None, "x is nan at node 0"),
        (HeteroData(), None, "heterogeneous"),
    ],
)
def test_graphs_that_cannot_be_learned_from(data, mask, said):
    with pytest.raises(InputError, match=said):
        GraphUATStudent(a_teacher(), epochs=1).fit(data, mask)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (torch.full((48, 3), 1 / 3), "probabilities"),
        (torch.zeros(48, 1), "at least two"),
        (torch.zeros(47, 3), "one row"),
        (torch.full((48, 3), math.nan), "not finite"),
    ],
)
def test_teachers_that_return_something_else(out, said):
    with pytest.raises(InputError, match=said):
        GraphUATStudent(Returns(out), epochs=1).fit(planted())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"teacher": len}, "teacher must be a torch module"),
        ({"backbone": "gat"}, "backbone must be"),
        ({"strength": "gpn"}, "strength must be one of gaussian, knn"),
        ({"loss": "mse"}, "loss must be"),
        ({"tau": 0.0}, "tau"),
        ({"budget": math.nan}, "budget"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"hidden": 0}, "hidden"),
        ({"layers": 1}, "layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"lambda_h": -1.0}, "lambda_h"),
    ],
)
def test_settings_that_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        GraphUATStudent(**({"teacher": a_teacher()} | settings))


def test_divergence_is_told():
    with pytest.raises(InputError, match="diverged at epoch"):
        student_of(learning_rate=1e30, layers=4)


def test_before_fitting():
    student = GraphUATStudent(a_teacher())
    with pytest.raises(InputError, match="not fitted yet"):
        student.uncertainty(planted())
    with pytest.raises(InputError, match="nothing to save"):
        student.state_dict()


@pytest.mark.parametrize("settings", [{}, {"strength": "knn", "layers": 3, "tau": 3.0}])
def test_saved_and_read_back(tmp_path, settings):
    data, student = planted(), student_of(**settings)
    student.save(tmp_path / "student.safetensors")
    back = GraphUATStudent.load(tmp_path / "student.safetensors", student.teacher)
    assert torch.equal(back.uncertainty(data).alpha, student.uncertainty(data).alpha)
    assert back.agreement(data) == student.agreement(data)
    state = load_file(tmp_path / "student.safetensors")
    assert sorted(state) == sorted(student.state_dict())


def test_a_saved_backbone_of_ones_own(tmp_path):
    student = student_of(backbone=Own(), epochs=200)
    student.save(tmp_path / "own.safetensors")
    back = GraphUATStudent.load(tmp_path / "own.safetensors", a_teacher(), backbone=Own())
    assert torch.equal(back.uncertainty(planted()).alpha, student.uncertainty(planted()).alpha)
    with pytest.raises(InputError, match="no GCN of 2 layers"):
        GraphUATStudent.load(tmp_path / "own.safetensors", a_teacher())
    with pytest.raises(InputError, match="does not fit the backbone"):
        GraphUATStudent.load(tmp_path / "own.safetensors", a_teacher(), backbone=Plain())


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("coverage.median", None, "lacks 'coverage.median'"),
        ("coverage.centre", torch.ones(3), "'coverage.centre' has shape"),
        ("coverage.anchors", torch.ones(3), "does not fit the rest"),
        ("coverage.anchors", torch.ones(0, 12), "does not fit the rest"),
        ("coverage.whitening", torch.full((12, 12), math.nan), "finite"),
        ("coverage.extra", torch.ones(1), "belongs to no student"),
        ("elsewhere", torch.ones(1), "belongs to no student"),
        ("backbone.weights.0", None, "no GCN of 2 layers"),
        ("backbone.weights.0", torch.ones(3), "no GCN of 2 layers"),
        ("backbone.weights.1", torch.ones(11, 3), "does not fit a GCN"),
        ("backbone.weights.2", torch.ones(3, 3), "does not fit a GCN"),
        ("backbone.biases.0", torch.ones(12, dtype=torch.long), "floating-point"),
    ],
)
def test_a_state_that_does_not_fit_leaves_the_student_as_it_was(fitted, name, tensor, said):
    state = fitted.state_dict()
    if tensor is None:
        del state[name]
    else:
        state[name] = tensor
    before = fitted.uncertainty(planted()).alpha
    with pytest.raises(InputError, match=said):
        fitted.load_state_dict(state)
    assert torch.equal(fitted.uncertainty(planted()).alpha, before)


def test_a_coverage_of_another_width(fitted):
    state = fitted.state_dict() | {
        "coverage.centre": torch.zeros(2), "coverage.whitening": torch.eye(2), "coverage.anchors": torch.ones(3, 2)
    }  # fmt: skip
    with pytest.raises(InputError, match="width 2, the backbone 12"):
        fitted.load_state_dict(state)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "holds no student"),
        ({"format": "steelyard.graphs.student"}, "metadata must hold"),
        ({"hidden": "many"}, "metadata must hold"),
        ({"layers": "999999999"}, "speaks of 999999999 layers"),
        ({"hidden": "999999999"}, "does not fit a GCN"),
        ({"tau": "nan"}, "tau"),
        ({"strength": "gpn"}, "strength must be"),
    ],
)
def test_hostile_files(fitted, tmp_path, metadata, said):
    good = {"format": "steelyard.graphs.student", "hidden": "12", "layers": "2", "strength": "gaussian"}
    good |= {"tau": "8.0", "budget": "20.0"}
    if metadata is not None and "format" not in metadata:
        metadata = good | metadata
    state = {name: tensor.contiguous() for name, tensor in fitted.state_dict().items()}
    save_file(state, tmp_path / "bad.safetensors", metadata)
    with pytest.raises(InputError, match=said):
        GraphUATStudent.load(tmp_path / "bad.safetensors", a_teacher())


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "cut").write_bytes(b"\x00" * 40)
    with pytest.raises(InputError):
        GraphUATStudent.load(tmp_path / "cut", a_teacher())
    with pytest.raises(InputError, match="cannot be read"):
        GraphUATStudent.load(tmp_path / "absent", a_teacher())


@pytest.mark.acceptance
def test_a_student_of_a_torch_geometric_teacher_on_cora():
    try:
        cora = load_graph("cora")
    except DataMissingError as error:
        pytest.skip(str(error))
    assert (cora.num_nodes, cora.num_edges, cora.num_classes, int(cora.train_mask.sum())) == (2708, 10556, 7, 140)
    teacher = train_teacher(build_teacher("gcn", 1433, 7, seed=2), cora, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        student = GraphUATStudent(teacher, seed=2).fit(cora)
    assert student.agreement(cora) > 0.97
    assert student.final_loss < 0.01
    found = student.uncertainty(cora)
    assert float(found.epistemic[cora.train_mask].mean()) < 0.7 * float(found.epistemic[cora.test_mask].mean())
    reference = SparseGCN(1433, 7)
    reference.load_state_dict(
        {"weights.0": teacher.convs[0].lin.weight.T, "weights.1": teacher.convs[1].lin.weight.T}
        | {f"biases.{i}": teacher.convs[i].bias for i in range(2)}
    )
    with torch.no_grad():
        gap = reference(cora.x, cora.edge_index) - teacher(cora.x, cora.edge_index)
    assert float(gap.abs().max()) < 1e-5
