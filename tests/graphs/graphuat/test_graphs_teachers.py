"""Teachers: built, trained, saved, and read from files that anybody may have made."""

import json
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch_geometric.nn import GAT, GCN, GraphSAGE

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat import teachers
from steelyard.graphs.graphuat.teachers import (
    KINDS,
    build_teacher,
    check_outputs,
    check_teacher,
    evaluating,
    load_teacher,
    save_teacher,
    seeded,
    takes_edge_weight,
    train_teacher,
)
from steelyard.rng import generator


def two_camps(nodes=40, features=6, seed=0):
    """Two classes whose features tell them apart, with edges inside the classes."""
    rng = generator("test", "two camps", seed)
    y = np.arange(nodes) % 2
    x = rng.normal(size=(nodes, features)) + 2.0 * y[:, None]
    source = rng.integers(nodes, size=3 * nodes)
    target = (source + 2 * rng.integers(1, nodes // 2, size=3 * nodes)) % nodes
    both = np.unique(np.concatenate([[source, target], [target, source]], axis=1), axis=1)
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[: nodes // 2] = True
    edges = torch.from_numpy(both[:, both[0] != both[1]])
    return Graph(torch.from_numpy(x).float(), edges, torch.from_numpy(y), mask, ~mask, ~mask)


GRAPH = two_camps()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_trained_teacher_tells_the_classes_apart_and_survives_a_file(kind, tmp_path):
    told = []
    teacher = build_teacher(kind, 6, 2, hidden=16, seed=1)
    teacher = train_teacher(teacher, GRAPH, epochs=40, seed=1, progress=lambda done, of: told.append((done, of)))
    assert told[0] == (1, 40)
    assert told[-1] == (40, 40)
    assert not teacher.training
    out = check_teacher(teacher, GRAPH)
    right = (out.argmax(1) == GRAPH.y)[GRAPH.test_mask].float().mean()
    assert right > 0.9
    save_teacher(teacher, tmp_path / "teacher.safetensors")
    again = load_teacher(tmp_path / "teacher.safetensors", GRAPH)
    assert type(again) is type(teacher)
    assert not again.training
    assert torch.equal(again(GRAPH.x, GRAPH.edge_index), out)
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("kind", list(KINDS))
def test_equal_seeds_give_equal_teachers_and_leave_the_global_state_alone(kind):
    before = torch.random.get_rng_state()

    def made(seed):
        teacher = train_teacher(build_teacher(kind, 6, 2, hidden=8, heads=2, seed=seed), GRAPH, epochs=3, seed=seed)
        return teacher(GRAPH.x, GRAPH.edge_index)

    first, again, other = made(1), made(1), made(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_fast_inputs_of_training_are_the_same_function(kind):
    x = torch.zeros(40, 30)
    x[torch.arange(40), torch.arange(40) % 30] = 1.0  # sparse enough for the sparse product
    graph = Graph(x, GRAPH.edge_index, GRAPH.y, GRAPH.train_mask)
    teacher = build_teacher(kind, 30, 2, hidden=8, heads=2).eval()
    fast = teacher(*teachers._fast_inputs(teacher, graph))
    torch.testing.assert_close(fast, teacher(graph.x, graph.edge_index), rtol=1e-5, atol=1e-6)


class Own(nn.Module):
    """A user's module without message passing of torch-geometric."""

    def __init__(self, shift=0.0, end=None):
        super().__init__()
        self.lin, self.drop, self.shift, self.end = nn.Linear(6, 2), nn.Dropout(0.3), shift, end

    def forward(self, x, edge_index):
        out = self.lin(self.drop(x)) + self.shift
        return out if self.end is None else self.end(out)


def test_a_users_module_trains_and_its_dropout_is_replaced_only_when_asked():
    module = train_teacher(Own(), GRAPH, epochs=2)
    assert module.drop.p == 0.3
    train_teacher(module, GRAPH, epochs=1, dropout=0.0)
    assert module.drop.p == 0.0
    attention = build_teacher("gat", 6, 2, hidden=8, heads=2, dropout=0.5)
    train_teacher(attention, GRAPH, epochs=1, dropout=0.1)
    assert [conv.dropout for conv in attention.convs] == [0.1, 0.1]
    numbers = SimpleNamespace(x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y, train_mask=torch.arange(5))
    train_teacher(module, numbers, epochs=1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"kind": "gnc"}, "Did you mean 'gcn'"),
        ({"num_features": 0}, "num_features"),
        ({"num_classes": True}, "num_classes"),
        ({"hidden": 1.5}, "hidden"),
        ({"layers": 0}, "layers"),
        ({"kind": "gat", "hidden": 9, "heads": 2}, "multiple of heads"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_what_cannot_be_built(changed, says):
    settings_ = {"kind": "gcn", "num_features": 6, "num_classes": 2, **changed}
    with pytest.raises(InputError, match=says):
        build_teacher(**settings_)


@pytest.mark.parametrize(
    ("graph", "changed", "says"),
    [
        (GRAPH, {"epochs": 0}, "epochs"),
        (GRAPH, {"learning_rate": 0}, "learning_rate"),
        (GRAPH, {"dropout": -0.1}, "dropout"),
        (GRAPH, {"learning_rate": 1e30, "epochs": 3}, "diverged"),
        (Graph(GRAPH.x, GRAPH.edge_index), {}, "y and train_mask"),
        (Graph(GRAPH.x, GRAPH.edge_index, GRAPH.y, ~(GRAPH.x[:, 0] < 1e9)), {}, "selects no node"),
    ],
)
def test_what_cannot_be_trained(graph, changed, says):
    with pytest.raises(InputError, match=says):
        train_teacher(build_teacher("gcn", 6, 2, hidden=4), graph, **changed)


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        ("gcn", "torch.nn.Module"),
        (Own(end=lambda out: out.softmax(-1)), "probabilities"),
        (Own(end=lambda out: out[:, :1]), "two logits"),
        (Own(end=lambda out: (out, out)), "tuple"),
        (Own(shift=float("nan")), "not finite for node 0"),
        (nn.Linear(6, 2), r"called as \(x, edge_index\)"),
        (build_teacher("gcn", 7, 2), "on this graph"),
    ],
)
def test_what_is_no_teacher(teacher, says):
    with pytest.raises(InputError, match=says):
        check_teacher(teacher, GRAPH)


def test_log_probabilities_are_fine_and_modes_come_back():
    teacher = Own(end=lambda out: out.log_softmax(-1)).train()
    teacher.drop.eval()
    check_teacher(teacher, GRAPH)
    assert teacher.training
    assert not teacher.drop.training
    with evaluating(teacher):
        assert not teacher.lin.training
    assert teacher.lin.training


def test_who_takes_edge_weights():
    class Weighted(Own):
        def forward(self, x, edge_index, edge_weight=None):
            return super().forward(x, edge_index)

    class Opaque(Own):
        forward = type  # a callable that tells no signature

    assert takes_edge_weight(build_teacher("gcn", 6, 2))
    assert not takes_edge_weight(build_teacher("gat", 6, 2))  # has the argument and ignores it
    assert not takes_edge_weight(build_teacher("sage", 6, 2))
    assert takes_edge_weight(Weighted())
    assert not takes_edge_weight(Own())
    assert not takes_edge_weight(Opaque())


def test_a_block_of_torchs_global_draws_follows_its_generator():
    generator_ = torch.Generator().manual_seed(5)
    wanted = torch.rand(3, generator=torch.Generator().manual_seed(5))
    with seeded(generator_):
        first = torch.rand(3)
    with seeded(generator_):
        second = torch.rand(3)
    assert torch.equal(first, wanted)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "network",
    [GCN(6, 8, 1, 3), GCN(6, 8, 3, 3), GAT(6, 8, 2, 3, heads=4), GAT(6, 8, 1, 3, heads=2), GraphSAGE(6, 8, 4, 3)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plain_state_dicts_are_recognised_by_their_tensors(network, dtype, tmp_path):
    state = {name: tensor.detach().to(dtype) for name, tensor in network.state_dict().items()}
    save_file(state, tmp_path / "plain.safetensors")
    found = load_teacher(tmp_path / "plain.safetensors", Graph(GRAPH.x, GRAPH.edge_index))
    assert type(found) is type(network)
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, state[name].float())


def test_only_networks_that_can_be_read_back_are_saved(tmp_path):
    for teacher in (Own(), GCN(6, 8, 2, 3, norm="batch_norm"), GCN(6, 8, 2, 3, jk="cat"), GAT(6, 8, 2, 3, v2=True)):
        with pytest.raises(InputError):
            save_teacher(teacher, tmp_path / "teacher.safetensors")
    assert not list(tmp_path.iterdir())


def good(kind="gcn"):
    return {name: tensor.detach().clone() for name, tensor in build_teacher(kind, 6, 2, hidden=8).state_dict().items()}


def without(state, name):
    return {key: tensor for key, tensor in state.items() if key != name}


@pytest.mark.parametrize(
    ("state", "metadata", "says"),
    [
        ({"weight": torch.ones(2, 2)}, {}, r"no tensor 'convs\.0"),
        (without(good(), "convs.1.bias"), {}, "'convs.1.bias' is missing"),
        (without(good(), "convs.0.lin.weight"), {}, "'convs.0.lin.weight' must be"),
        ({**good(), "convs.9.lin.weight": torch.ones(2, 8)}, {}, "is missing"),
        ({**good(), "convs.99.lin.weight": torch.ones(2, 8)}, {}, "100 layers"),
        ({**good(), "norms.0.weight": torch.ones(8)}, {}, "'norms.0.weight' does not belong"),
        ({**good(), "convs.1.lin.weight": torch.ones(2, 9)}, {}, r"'convs.1.lin.weight' is F32 \(2, 9\)"),
        ({**good(), "convs.0.lin.weight": torch.ones(8, 0)}, {}, "none of them 0"),
        ({**good(), "convs.0.lin.weight": torch.ones(9000, 1)}, {}, "9000 hidden"),
        ({**good(), "convs.1.bias": torch.ones(2, dtype=torch.int64)}, {}, "I64"),
        ({**good(), "convs.1.bias": torch.tensor([1.0, float("inf")])}, {}, "not finite"),
        ({**good("gat"), "convs.0.att_src": torch.ones(1, 3, 1)}, {}, "no multiple"),
        ({**good("gat"), "convs.0.att_src": torch.ones(1, 100, 1)}, {}, "0 classes|heads"),
        (good(), {"format": teachers.FORMAT, "hidden": "9"}, "metadata say hidden='9'"),
        (good(), {"format": teachers.FORMAT, "kind": "sage"}, "metadata say kind"),
    ],
)
def test_files_that_are_no_teacher(state, metadata, says, tmp_path):
    path = tmp_path / "bad.safetensors"
    save_file(state, path, metadata)
    with pytest.raises(InputError, match=says) as caught:
        load_teacher(path)
    assert "\n" not in str(caught.value)


def test_metadata_of_others_count_for_nothing(tmp_path):
    save_file(good(), tmp_path / "plain.safetensors", {"format": "pt", "hidden": "9"})
    load_teacher(tmp_path / "plain.safetensors", GRAPH)


def test_a_small_file_cannot_ask_for_much_memory(tmp_path):
    """Two thin matrices that name 16 layers of width 8192 (4 GB) are refused before anything of that is made."""
    state = {"convs.0.lin.weight": torch.ones(8192, 1), "convs.15.lin.weight": torch.ones(2, 1)}
    save_file(state, tmp_path / "thin.safetensors")
    with pytest.raises(InputError, match="is missing"):
        load_teacher(tmp_path / "thin.safetensors")


def test_paths_that_hold_no_teacher(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="not a file"):
        load_teacher(tmp_path)
    with pytest.raises(InputError, match="not a file"):
        load_teacher(tmp_path / "absent.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        load_teacher(tmp_path / "empty.safetensors")
    save_teacher(build_teacher("gcn", 6, 2), tmp_path / "good.safetensors")
    monkeypatch.setattr(teachers, "_MAX_FILE", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        load_teacher(tmp_path / "good.safetensors")


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (Graph(torch.zeros(4, 5), GRAPH.edge_index), "takes 6 features a node, the graph has 5"),
        (
            Graph(torch.zeros(2, 6), GRAPH.edge_index, torch.tensor([0, 2])),
            "2 classes apart, the graph has labels of 3",
        ),
    ],
)
def test_a_teacher_that_does_not_fit_the_graph(graph, says, tmp_path):
    save_teacher(build_teacher("gcn", 6, 2), tmp_path / "teacher.safetensors")
    with pytest.raises(InputError, match=says):
        load_teacher(tmp_path / "teacher.safetensors", graph)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(list(KINDS)),
    features=st.integers(1, 9),
    classes=st.integers(2, 5),
    width=st.integers(1, 4),
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
)
def test_every_architecture_is_read_back(kind, features, classes, width, layers, heads):
    built = build_teacher(kind, features, classes, hidden=width * heads, layers=layers, heads=heads)
    shapes = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    found = teachers._inferred(shapes, "here")
    assert (found.kind, found.features, found.classes, found.layers) == (kind, features, classes, layers)
    assert found.heads == (heads if kind == "gat" else 1)
    assert layers == 1 or found.hidden == width * heads


NAMES = st.sampled_from(
    [f"convs.{i}.{part}" for i in (0, 1, 15, 99) for part in ("lin.weight", "bias", "att_src", "lin_l.weight", "x")]
)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, SHAPES, max_size=6))
def test_any_table_of_tensors_is_a_teacher_or_one_clear_sentence(tmp_path_factory, table):
    header, at = {}, 0
    for name, shape in table.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    said = ""
    try:
        load_teacher(path)
    except InputError as error:
        said = str(error)
    assert "\n" not in said


@given(st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=1, max_size=5))
def test_softmax_outputs_are_refused_and_their_logarithms_are_not(rows):
    logits = torch.tensor(rows, dtype=torch.float64)
    with pytest.raises(InputError, match="probabilities"):
        check_outputs(logits.softmax(-1), len(rows))
    check_outputs(logits.log_softmax(-1), len(rows))


class _Weighted(torch.nn.Module):
    """Takes the weights by name, after another argument."""

    def __init__(self, spoil=False):
        super().__init__()
        self.spoil = spoil

    def forward(self, x, edge_index, edge_attr=None, edge_weight=None):
        assert edge_attr is None
        if self.spoil:
            x += 1
        out = torch.zeros(len(x), 2)
        out[:, 0] += torch.ones(len(x)) if edge_weight is None else edge_weight.sum()
        return out


def test_edge_weights_are_passed_by_name_and_a_teacher_that_spoils_its_input_is_refused():
    graph = Graph(torch.ones(3, 2), torch.tensor([[0, 1], [1, 2]]), edge_weight=torch.tensor([2.0, 3.0]))
    assert check_teacher(_Weighted(), graph)[0, 0] == 5
    with pytest.raises(InputError, match="teacher changes x or edge_index in place"):
        check_teacher(_Weighted(spoil=True), graph)
    assert bool((graph.x == 1).all())
