"""Why a node is uncertain: probes on its features, its edges and the labels' coverage, compared with calm nodes.

The three sources and the removal of what is found are the paper's; the probes, the z-scores and the rule that names a
source are reconstructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.errors import InputError, did_you_mean
from steelyard.graphs.graph import Graph, check_graph
from steelyard.graphs.graphuat.core import SOURCES, dominant_source, logit_entropy, source_shares, standardise
from steelyard.graphs.graphuat.evidence import CoverageEvidence
from steelyard.graphs.graphuat.explanation import NodeAttribution, UncertaintyAttribution
from steelyard.graphs.graphuat.models import TeacherEntropy, message_hops
from steelyard.graphs.graphuat.prober import NodeProber, ProbeResult
from steelyard.graphs.graphuat.probes import FEATURE_METHODS, FeatureMethod
from steelyard.graphs.graphuat.student import GraphUATStudent, share_of_agreement, warn_unless_trusted
from steelyard.graphs.graphuat.teachers import check_teacher
from steelyard.graphs.sampling import NeighbourSampler
from steelyard.rng import generator

Array = NDArray[Any]
Progress = Callable[[int, int], None]
REFERENCE_NODES = 200
"""Validation nodes that the z-scores are taken against at most, unless the caller names others."""
CoverageMethod = Literal["left", "epistemic"]
COVERAGE_METHODS: tuple[str, ...] = get_args(CoverageMethod)


@dataclass(frozen=True)
class Settings:
    """How the probes work; see :func:`attribute_uncertainty`."""

    probes: tuple[str, ...] = SOURCES
    hops: int = 1
    fanout: tuple[int, ...] | None = (32, 16)
    max_edges: int = 32
    feature_method: FeatureMethod = "gradient"
    threshold: float = 1e-3
    seed: int = 0
    coverage: CoverageMethod = "left"

    def __post_init__(self) -> None:
        unknown = [name for name in self.probes if name not in SOURCES]
        if unknown or not self.probes or len(set(self.probes)) != len(self.probes):
            hint = did_you_mean(unknown[0], SOURCES) if unknown else ""
            raise InputError(f"probes must be some of {', '.join(SOURCES)}, each once, not {self.probes}.{hint}")
        if self.feature_method not in FEATURE_METHODS:
            hint = did_you_mean(str(self.feature_method), FEATURE_METHODS)
            raise InputError(
                f"feature_method must be one of {', '.join(FEATURE_METHODS)}, not {self.feature_method!r}.{hint}"
            )
        if self.coverage not in COVERAGE_METHODS:
            hint = did_you_mean(str(self.coverage), COVERAGE_METHODS)
            raise InputError(f"coverage must be one of {', '.join(COVERAGE_METHODS)}, not {self.coverage!r}.{hint}")
        if self.hops not in (1, 2):
            raise InputError(f"hops must be 1 (the node's own edges) or 2 (its neighbours' too), not {self.hops!r}")
        if self.max_edges < 1:
            raise InputError(f"max_edges must be at least 1, not {self.max_edges}")
        if not self.threshold >= 0:
            raise InputError(f"threshold must be a number of nats, 0 or more, not {self.threshold}")


def attribute_uncertainty(
    teacher: nn.Module,
    data: Any,
    node_idx: Any,
    *,
    student: GraphUATStudent | None = None,
    probes: Sequence[str] = SOURCES,
    reference: Any = None,
    hops: int = 1,
    fanout: Sequence[int] | None = (32, 16),
    max_edges: int = 32,
    feature_method: FeatureMethod = "gradient",
    threshold: float = 1e-3,
    coverage: CoverageMethod = "left",
    on: Literal["student", "teacher"] = "student",
    seed: int = 0,
    progress: Progress | None = None,
) -> UncertaintyAttribution:
    """Say why a trained node classifier is uncertain about some nodes.

    Three probes per node: *feature*, the fall of total uncertainty when the node's own features with a positive
    attribution are set to 0; *structure*, its largest fall while the edges go whose removal alone lowers it by more
    than ``threshold``, one after the other, the worst first; *coverage*, the epistemic part that stays without those
    edges. Each is compared, as a z-score, with reference nodes; the largest names the source. Removing an edge changes
    the degrees of both ends: that is part of its effect.

    Args:
        teacher: Trained module ``(x, edge_index[, edge_weight])`` that returns logits (N, C).
        data: The graph: a ``Graph`` or anything like PyG's ``Data``. It is not changed.
        node_idx: A node number, a sequence of them, or a mask.
        student: A fitted student; None trains one (seconds).
        probes: Which of feature, structure, coverage.
        reference: Nodes (numbers or mask) that the z-scores compare with. None takes the validation nodes, up to
            200 drawn at random; without any, the nodes that are not trained on. It should be nodes like those asked
            about but for what makes these unsure: confident nodes alone hardly spread, and all looks uncovered.
        hops: Edges to test: 1 the node's own, 2 also its neighbours'.
        fanout: Neighbours drawn per hop, so that a node's cost does not grow with the graph; None is exact.
        max_edges: Edges tested at most, those with the largest |dTU/d edge weight|. A model without edge weights ranks
            by |x_u . dTU/dx_u| of the neighbour instead. More than 16 times as many edges are thinned at random first.
        feature_method: ``"gradient"`` (x times gradient), ``"integrated"`` (integrated gradients from 0, 16 steps), or
            ``"neighbour_mean"`` (difference from the neighbours' mean, which replaces the features).
        threshold: Fall in nats from which an edge counts as harmful.
        coverage: ``"left"``: hostile edges carry a node away from the labelled ones of its class, which is conflict
            and no lack of labels, so what they add does not count; ``"epistemic"``: the epistemic part as it is.
        on: ``"teacher"`` probes the teacher's own entropy, without student; it has no coverage probe.
        seed: Of the draws, and of the student if one is trained.
        progress: Called with (nodes done, nodes).

    Returns:
        One :class:`NodeAttribution` per node, in the order asked for.

    Raises:
        InputError: A node outside the graph, an empty reference, an option that does not exist, a graph or teacher
            that cannot be used.
    """
    settings = Settings(
        tuple(probes),
        hops,
        None if fanout is None else tuple(fanout),
        max_edges,
        feature_method,
        threshold,
        seed,
        coverage,
    )
    made = Attributor(teacher, data, student=student, reference=reference, on=on, settings=settings)
    return made.attribute(node_idx, progress=progress)


class Attributor:
    """Attributions of one teacher on one graph; what they share (readings, reference) is computed once.

    Args:
        teacher: As in :func:`attribute_uncertainty`, and so are the others.
        data: The graph.
        student: A fitted student; None trains one.
        reference: Reference nodes or None.
        on: ``"student"`` or ``"teacher"``.
        settings: The probes' settings.
    """

    def __init__(
        self,
        teacher: nn.Module,
        data: Any,
        *,
        student: GraphUATStudent | None = None,
        reference: Any = None,
        on: Literal["student", "teacher"] = "student",
        settings: Settings | None = None,
    ) -> None:
        if on not in ("student", "teacher"):
            raise InputError(f"on must be 'student' or 'teacher', not {on!r}")
        self.graph = check_graph(data)
        self.settings = settings or Settings()
        self.on = on
        logits = check_teacher(teacher, self.graph)
        self.teacher_entropy = logit_entropy(logits.double()).cpu().numpy()
        self.student = student
        self.agreement: float | None = None
        model: Any
        if on == "teacher":
            model, self._reading = TeacherEntropy(teacher), None
            self.probes = tuple(name for name in self.settings.probes if name != "coverage")
            if not self.probes:
                raise InputError("the coverage probe needs a student: a teacher's entropy has no epistemic part")
        else:
            self.student = model = student or GraphUATStudent(teacher, seed=self.settings.seed).fit(self.graph)
            self._reading = self.student.uncertainty(self.graph)
            self.probes = self.settings.probes
            self.agreement = share_of_agreement(self._reading.alpha, logits)
            if student is not None:  # one that is trained here has been told of by its fit
                remedy = "fit it on this graph, longer (epochs) or with the teacher's architecture (backbone)"
                warn_unless_trusted(self.agreement, remedy, stacklevel=3)
        self._prober = _prober(model, self.graph, self.settings)
        self._reference = _reference(reference, self.graph, self.settings.seed)
        self._reference_scores: Tensor | None = None
        self._evidence: CoverageEvidence | None = None

    def attribute(self, node_idx: Any, *, progress: Progress | None = None) -> UncertaintyAttribution:
        """Return the attributions of some nodes; see :func:`attribute_uncertainty`."""
        nodes = node_numbers(node_idx, self.graph.num_nodes, "node_idx")
        reference = self.reference_scores()
        results = self._prober.probe(nodes, self._edits, progress=progress)
        scores = self._scores(results)
        z = standardise(scores, reference)
        shares, sources = source_shares(z), dominant_source(z)
        items = [
            self._item(result, scores[row], z[row], shares[row], int(sources[row]))
            for row, result in enumerate(results)
        ]
        spread = reference.std(0, correction=0)
        return UncertaintyAttribution(
            items,
            reference={
                name: (float(reference[:, column].mean()), float(spread[column]))
                for column, name in enumerate(self.probes)
            },
            settings=self._told(),
            num_nodes=self.graph.num_nodes,
            data=self.graph,
        )

    def reference_scores(self) -> Tensor:
        """Return the raw scores of the reference nodes, float64, shape (reference nodes, probes); computed once."""
        if self._reference_scores is None:
            self._reference_scores = self._scores(self._prober.probe(self._reference, self._edits))
        return self._reference_scores

    @property
    def _edits(self) -> tuple[str, ...]:
        """The probes that edit the graph; what hostile edges add to the epistemic part takes the structure probe."""
        left = "coverage" in self.probes and self.settings.coverage == "left"
        return (*self.probes, "structure") if left else self.probes

    def _scores(self, results: Sequence[ProbeResult]) -> Tensor:
        columns = []
        for name in self.probes:
            if name == "coverage":
                columns.append([self._coverage(result) for result in results])
            else:
                columns.append([result.feature if name == "feature" else result.structure for result in results])
        return torch.tensor(columns, dtype=torch.float64).T.reshape(len(results), len(self.probes))

    def _coverage(self, result: ProbeResult) -> float:
        epistemic = self._value("epistemic", result.node)
        assert epistemic is not None, "on a teacher the coverage probe is left out"
        return max(epistemic + result.epistemic, 0.0) if self.settings.coverage == "left" else epistemic

    def _value(self, name: str, node: int) -> float | None:
        return None if self._reading is None else float(getattr(self._reading, name)[node])

    def _item(self, result: ProbeResult, scores: Tensor, z: Tensor, shares: Tensor, source: int) -> NodeAttribution:
        node = result.node
        entropy = float(self.teacher_entropy[node])
        total = self._value("total", node)
        return NodeAttribution(
            node=node,
            total=entropy if total is None else total,
            aleatoric=self._value("aleatoric", node),
            epistemic=self._value("epistemic", node),
            teacher_entropy=entropy,
            scores=dict(zip(self.probes, scores.tolist(), strict=True)),
            z=dict(zip(self.probes, z.tolist(), strict=True)),
            shares=dict(zip(self.probes, shares.tolist(), strict=True)),
            dominant_source=self.probes[source] if source >= 0 else None,
            edges=result.edges,
            features=result.features,
            edges_left_out=result.left_out,
            isolated=result.isolated,
            evidence=self._behind(node),
        )

    def _behind(self, node: int) -> dict[str, float | int | None]:
        if self._reading is None or self.student is None or "coverage" not in self.probes:
            return {}
        if self._evidence is None:
            self._evidence = CoverageEvidence(self.student, self.graph)
        return self._evidence.of(node)

    def _told(self) -> dict[str, Any]:
        return {
            "on": self.on,
            "probes": list(self.probes),
            "hops": self.settings.hops,
            "fanout": None if self.settings.fanout is None else list(self.settings.fanout),
            "max_edges": self.settings.max_edges,
            "feature_method": self.settings.feature_method,
            "threshold": self.settings.threshold,
            "coverage": self.settings.coverage,
            "seed": self.settings.seed,
            "agreement": self.agreement,
            "reference_nodes": len(self._reference),
        }


def edge_deletion_scores(
    model: Any,
    data: Any,
    node: int,
    hops: int = 1,
    *,
    fanout: Sequence[int] | None = None,
    max_edges: int = 32,
    seed: int = 0,
) -> list[tuple[int, int, float]]:
    """Return how much one node's total uncertainty falls when an edge is removed, in both directions.

    Args:
        model: A student, a :class:`TeacherEntropy`, or anything with their ``evaluate``.
        data: The graph.
        node: The node.
        hops: 1 tests its own edges, 2 also its neighbours'.
        fanout: Neighbours drawn per hop; None is exact.
        max_edges: As in :func:`attribute_uncertainty`.
        seed: Of the draws.

    Returns:
        (u, v, fall in nats), largest first.

    Raises:
        InputError: The node is outside the graph, or an option is out of range.
    """
    graph = check_graph(data)
    settings = Settings(("structure",), hops, None if fanout is None else tuple(fanout), max_edges, seed=seed)
    (number,) = node_numbers(node, graph.num_nodes, "node")
    return _prober(model, graph, settings).probe([number], ("structure",))[0].edges


def feature_scores(
    model: Any,
    data: Any,
    node: int,
    method: FeatureMethod = "gradient",
    *,
    fanout: Sequence[int] | None = None,
    seed: int = 0,
) -> Tensor:
    """Return each of a node's own features' attribution to its total uncertainty, float64, shape (F,).

    Args:
        model: A student, a :class:`TeacherEntropy`, or anything with their ``evaluate``.
        data: The graph.
        node: The node.
        method: ``"gradient"``, ``"integrated"`` or ``"neighbour_mean"``; see :func:`attribute_uncertainty`.
        fanout: Neighbours drawn per hop; None is exact.
        seed: Of the draws.

    Raises:
        InputError: The node is outside the graph, or there is no such method.
    """
    graph = check_graph(data)
    settings = Settings(
        ("feature",), fanout=None if fanout is None else tuple(fanout), feature_method=method, seed=seed
    )
    (number,) = node_numbers(node, graph.num_nodes, "node")
    found = _prober(model, graph, settings).probe([number], ("feature",))[0].features
    dense = torch.zeros(graph.x.shape[1], dtype=torch.float64)
    for index, score in found:
        dense[index] = score
    return dense


def node_numbers(value: Any, num_nodes: int, name: str) -> list[int]:
    """Return ``value`` (a number, numbers or a mask) as node numbers in the order given.

    Raises:
        InputError: It is neither, or names a node outside 0 … ``num_nodes`` - 1.
    """
    array = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if array.dtype == np.bool_:
        if array.shape != (num_nodes,):
            raise InputError(f"{name} as a mask must have shape ({num_nodes},), not {array.shape}")
        return np.flatnonzero(array).tolist()
    if array.size and (array.dtype.kind not in "iu" or array.ndim > 1):
        raise InputError(f"{name} must be node numbers or a mask, not an array of {array.dtype} {array.shape}")
    numbers: list[int] = array.reshape(-1).tolist()
    for number in numbers:
        if not 0 <= number < num_nodes:
            raise InputError(f"{name} holds node {number}, but the graph's nodes are 0 … {num_nodes - 1}")
    return numbers


def _prober(model: Any, graph: Graph, settings: Settings) -> NodeProber:
    weight = None if graph.edge_weight is None else graph.edge_weight.detach().cpu().numpy()
    sampler = NeighbourSampler(graph.edge_index.cpu().numpy(), graph.num_nodes, weight)
    # Where nobody knows how far the model sees, the whole component is cut out, or as far as there is a fanout.
    depth = message_hops(model) or (graph.num_nodes if settings.fanout is None else len(settings.fanout))
    return NodeProber(
        model,
        graph.x,
        sampler,
        depth=depth,
        hops=settings.hops,
        fanout=settings.fanout,
        max_edges=settings.max_edges,
        feature_method=settings.feature_method,
        threshold=settings.threshold,
        seed=settings.seed,
    )


def _reference(reference: Any, graph: Graph, seed: int) -> list[int]:
    if reference is not None:
        nodes = node_numbers(reference, graph.num_nodes, "reference")
        if not nodes:
            raise InputError("reference is empty: name some nodes, or leave it out to take validation nodes")
        return nodes
    found: list[int] = reference_nodes(graph, seed).tolist()
    return found


def reference_nodes(graph: Graph, seed: int, count: int = REFERENCE_NODES) -> Array:
    """Return up to ``count`` validation nodes, drawn where there are more, ascending, int64.

    Without validation nodes they are the nodes that are not trained on, without a training mask all nodes.

    Raises:
        InputError: There is no such node.
    """
    mask = graph.val_mask
    if mask is None or not bool(mask.any()):
        mask = None if graph.train_mask is None else ~graph.train_mask
    nodes = np.arange(graph.num_nodes) if mask is None else np.flatnonzero(mask.cpu().numpy())
    if not len(nodes):
        raise InputError("there is no validation node to compare with; give reference=, the numbers of some nodes")
    if len(nodes) > count:
        nodes = np.sort(generator("graphuat", "validation nodes", seed).choice(nodes, count, replace=False))
    return nodes
