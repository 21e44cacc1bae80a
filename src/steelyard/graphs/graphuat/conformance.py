"""Probes for the checks that every method passes; the acceptance test takes whatever names sources."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.graphs.graph import Graph, check_graph
from steelyard.graphs.graphuat import user
from steelyard.graphs.graphuat.attribution import attribute_uncertainty, reference_nodes
from steelyard.graphs.graphuat.core import SOURCES, coverage_strength, dirichlet_uncertainty, uce_loss
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.faithfulness import removal_faithfulness
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.planting import Planted, plant, with_lookalikes
from steelyard.graphs.graphuat.sources import accuracy, counted
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.studies import trained_teacher
from steelyard.graphs.graphuat.tasks import as_graph
from steelyard.rng import derive_seed, generator

Namer = Callable[[nn.Module, Graph, NDArray[np.int64], int], Sequence[str | None]]
"""From a teacher, its graph, nodes and a seed to the source of uncertainty of each node."""

_SEEDS = (7, 8, 9)
_RIGHT = 0.7
_TAKEN_IN = 0.5
_SIZES = {"nodes": 240, "classes": 3, "words": 120, "topic_words": 30, "train_per_class": 10, "val": 40}


def name_sources(teacher: nn.Module, graph: Graph, nodes: NDArray[np.int64], seed: int) -> list[str | None]:
    """Name the sources by GraphUAT as it comes."""
    found = attribute_uncertainty(teacher, graph, nodes, seed=seed)
    return [item.dominant_source for item in found]


class _Small(NamedTuple):
    graph: Graph
    teacher: nn.Module
    student: GraphUATStudent


@functools.lru_cache(maxsize=4)
def _small(seed: int) -> _Small:
    """Return a small graph with a teacher and a student, both trained for an instant."""
    graph = as_graph(generate_csbm(generator("conformance", "graphuat/graph", seed), **_SIZES), words=True)
    teacher, _ = trained_teacher(graph, "gcn", seed, epochs=40)
    return _Small(graph, teacher, GraphUATStudent(teacher, hidden=16, epochs=120, seed=seed).fit(graph))


def _scores(made: _Small, seed: int = 0, **settings: Any) -> Arrays:
    nodes = np.arange(20)
    found = attribute_uncertainty(
        made.teacher, made.graph, nodes, student=made.student, reference=made.graph.val_mask, seed=seed, **settings
    )
    return {name: np.array([item.scores.get(name, 0.0) for item in found]) for name in SOURCES}


def _run(seed: int, dtype: str) -> Arrays:
    """Split Dirichlets and attribute a few nodes; scores are float64 whatever the networks are."""
    alpha = 1.0 + 9.0 * generator("conformance", "graphuat/alpha", seed).random((4, 3))
    parts = dirichlet_uncertainty(torch.from_numpy(alpha.astype(dtype)))
    split = {name: getattr(parts, name).numpy() for name in ("total", "aleatoric", "epistemic", "vacuity")}
    return {**split, **{f"score_{name}": values.astype(dtype) for name, values in _scores(_small(seed)).items()}}


def _noop() -> tuple[Arrays, Arrays]:
    """Where no edge counts as harmful, removing the harmful ones changes nothing."""
    still = _scores(_small(0), threshold=1e9)
    return {"structure": still["structure"]}, {"structure": np.zeros(20)}


def _effect() -> tuple[Arrays, Arrays]:
    return {"structure": _scores(_small(0))["structure"]}, {"structure": np.zeros(20)}


def _resumed() -> tuple[Arrays, Arrays]:
    """A student, and the same one stored and read again."""
    made = _small(1)
    with tempfile.TemporaryDirectory() as folder:
        made.student.save(Path(folder) / "student.safetensors")
        loaded = GraphUATStudent.load(Path(folder) / "student.safetensors", made.teacher)
    return _scores(made), _scores(made._replace(student=loaded))


def _untouched() -> tuple[Arrays, Arrays]:
    made = _small(2)
    before = {name: values.copy() for name, values in _inputs(made).items()}
    found = attribute_uncertainty(made.teacher, made.graph, [0, 1], student=made.student)
    removal_faithfulness(made.teacher, made.graph, found, (1,), ("random", "saliency"))
    GraphUATStudent(made.teacher, epochs=1).fit(made.graph).uncertainty(made.graph)
    return before, _inputs(made)


def _inputs(made: _Small) -> dict[str, NDArray[Any]]:
    tensors = {name: getattr(made.graph, name) for name in ("x", "edge_index", "y", "train_mask")}
    tensors |= {f"teacher {name}": value for name, value in made.teacher.state_dict().items()}
    found = {name: value.detach().numpy() for name, value in tensors.items()}
    return {**found, "training": np.array(made.teacher.training)}


@functools.cache
def _planted(seed: int) -> tuple[Planted, Graph, nn.Module, dict[int, str]]:
    """Return a generated graph with planted sources, a teacher trained on it, and what counting takes clean nodes for.

    The streams are drawn by no bench and no tuning.
    """
    arrays = generate_csbm(generator("conformance", "graphuat/acceptance", seed))
    bare = plant(arrays, generator("conformance", "graphuat/planting", seed))
    made, alike = with_lookalikes(bare, generator("conformance", "graphuat/lookalikes", seed))
    graph = as_graph(made.arrays, words=True)
    teacher, _ = trained_teacher(graph, "gcn", derive_seed("conformance", "graphuat/teacher", seed))
    return made, graph, teacher, alike


def acceptance(implementation: Namer) -> None:
    """Demand that the planted source of uncertainty is named at 70 % of the nodes or more.

    On three generated graphs that no bench and no tuning draws, with words added to 40 nodes, wrong edges to 40, and
    labels cut of the class of 40; chance is one in three. Since that could be had by counting words and edges, clean
    nodes have as many more, but of their own class: at most half of them may be named for it (tuning streams: a
    quarter, and nine of ten by counting).

    Raises:
        AssertionError: It is not so.
    """
    shares, taken_in = [], []
    for seed in _SEEDS:
        made, graph, teacher, alike = _planted(seed)
        named = implementation(teacher, graph, made.nodes, seed)
        assert len(named) == len(made.nodes), f"{len(made.nodes)} nodes got {len(named)} sources"
        shares.append(accuracy(list(named), made.sources))
        by_node = dict(zip(np.asarray(made.nodes).tolist(), named, strict=True))
        taken_in += [by_node[node] == source for node, source in alike.items()]
    right = float(np.mean(shares))
    assert right >= _RIGHT, f"the planted source is named at {right:.0%} of the nodes; {_RIGHT:.0%} are demanded"
    wrong = float(np.mean(taken_in))
    assert wrong <= _TAKEN_IN, f"{wrong:.0%} of the nodes that only look planted are taken for it: that is counting"


def _drawn(teacher: nn.Module, graph: Graph, nodes: NDArray[np.int64], seed: int) -> list[str]:
    names: list[str] = generator("conformance", "graphuat/random", seed).choice(SOURCES, len(nodes)).tolist()
    return names


def _unedited(teacher: nn.Module, graph: Graph, nodes: NDArray[np.int64], seed: int) -> list[str | None]:
    """Probe with edits that change nothing: no edge and no feature ever counts, so the epistemic part alone is left."""
    found = attribute_uncertainty(
        teacher, check_graph(graph), nodes, probes=("coverage",), coverage="epistemic", seed=seed
    )
    return [item.dominant_source for item in found]


def _counting(teacher: nn.Module, graph: Graph, nodes: NDArray[np.int64], seed: int) -> list[str | None]:
    """Count words, edges and labels near, and learn nothing."""
    return counted(graph, nodes, reference_nodes(graph, seed)).named()


DUMMIES: dict[str, Namer] = {
    "counting": _counting,
    "constant": lambda teacher, graph, nodes, seed: ["structure"] * len(nodes),
    "random": _drawn,
    "identity": _unedited,
}


def _bad_inputs() -> tuple[BadInput, ...]:
    made = _small(0)
    graph, teacher, student = made
    x, edges = graph.x, graph.edge_index
    spoilt = x.clone()
    spoilt[3, 0] = float("nan")

    def changed(**changes: Any) -> Callable[[], object]:
        return lambda: check_graph(_fields(graph, **changes))

    def asked(nodes: Any = (0,), **settings: Any) -> Callable[[], object]:
        return lambda: attribute_uncertainty(teacher, graph, nodes, **{"student": student, **settings})

    softmax = nn.Softmax(dim=-1)
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("NaN features", changed(x=spoilt), "node 3"),
        ("an edge to nowhere", changed(edge_index=torch.tensor([[0], [999]])), "999"),
        ("a self loop", changed(edge_index=torch.tensor([[1], [1]])), "self loops"),
        ("edges as a list of pairs", changed(edge_index=edges.T), "edge_index"),
        ("a mask of numbers", changed(train_mask=torch.zeros(len(x))), "train_mask"),
        ("an alpha of 0", lambda: dirichlet_uncertainty(torch.tensor([1.0, 0.0])), "alpha"),
        ("a negative weight", lambda: uce_loss(torch.ones(1, 2), torch.ones(1, 2), -1.0), "lambda_h"),
        ("no labelled nodes", lambda: coverage_strength(x, x[:0], torch.zeros(0, dtype=torch.long)), "h_train"),
        ("one convolution", lambda: SparseGCN(2, 2, layers=1), "layers"),
        ("an unknown strength", lambda: GraphUATStudent(teacher, strength="flow"), "strength"),
        ("a negative tau", lambda: GraphUATStudent(teacher, tau=-1.0), "tau"),
        ("a student before fit", lambda: GraphUATStudent(teacher).uncertainty(graph), "fit"),
        ("a node outside", asked([10_000]), "node_idx"),
        ("an unknown probe", asked(probes=("weather",)), "probes"),
        ("an empty reference", asked(reference=[]), "reference"),
        ("an unknown feature probe", asked(feature_method="lime"), "feature_method"),
        ("three hops", asked(hops=3), "hops"),
        ("probabilities", lambda: GraphUATStudent(_Wrapped(teacher, softmax)).fit(graph), "probabilities"),
        ("k of 0", lambda: removal_faithfulness(teacher, graph, asked()(), (0,)), "ks"),
        ("an unknown baseline", lambda: removal_faithfulness(teacher, graph, asked()(), (1,), ("lime",)), "lime"),
        ("a graph without labels", lambda: user.user_task(_fields(graph, y=None)), "labels"),
        ("a graph too small to plant", lambda: plant(_arrays(graph), np.random.default_rng(0)), "40"),
        ("a generated graph too small", lambda: generate_csbm(np.random.default_rng(0), nodes=3), "nodes"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


class _Wrapped(nn.Module):
    """A network with something behind it."""

    def __init__(self, network: nn.Module, behind: nn.Module) -> None:
        super().__init__()
        self.network, self.behind = network, behind

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.behind(self.network(x, edge_index))


class _Fields:
    """An object with a graph's fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _fields(graph: Graph, **changes: Any) -> _Fields:
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    return _Fields(**{**{name: getattr(graph, name) for name in names}, **changes})


def _arrays(graph: Graph) -> dict[str, Any]:
    return {name: value.numpy() for name, value in vars(_fields(graph)).items()}


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64", "float32"),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=name_sources,
    acceptance=acceptance,
    dummies=DUMMIES,
)
