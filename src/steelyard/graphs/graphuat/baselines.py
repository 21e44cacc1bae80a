"""Baselines that rank a node's edges and features: what explainers of predictions and of entropies would remove first.

All share one form: ``rank(method, scenes[node], generator)``. Each works on the node's whole neighbourhood, one hop
deeper than the teacher sees, where the teacher's value is that of the whole graph. Candidates are the pairs of nodes
that the node takes part in (both directions of an edge are one) and its features that are not 0. Equal scores are
put in an order drawn at random, never in that of the data.

GNNExplainer (Ying et al. 2019) and the attention explainer are torch-geometric's own; integrated gradients
(Sundararajan et al. 2017) and saliency are written here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require
from steelyard.graphs.graphuat.models import TeacherEntropy, message_hops
from steelyard.graphs.graphuat.probes import Pairs, Union, View, candidate_pairs, deletion_views, join, read
from steelyard.graphs.graphuat.teachers import check_teacher, refuse_cached, seeded
from steelyard.graphs.sampling import NeighbourSampler, Subgraph

Array = NDArray[Any]
STEPS = 16
"""Points of the path of integrated gradients, the midpoints of equal parts."""
MAX_EDGES = 32
"""Pairs that ``teacher_entropy`` deletes one by one: those with the largest |gradient| where a node has more."""
GNNEXPLAINER_EPOCHS = 200


class Scores(NamedTuple):
    """What a method thinks of the candidates; larger is removed earlier.

    Attributes:
        edges: Score of each candidate pair, shape (P,); None: the method ranks no edges.
        features: Score of each candidate feature, shape (f,); None: the method ranks no features.
        signed: Whether a score above 0 says that removal lowers uncertainty, one below 0 that it raises it.
    """

    edges: Array | None
    features: Array | None
    signed: bool = False


class Ranking(NamedTuple):
    """Candidates of one node in the order in which a method removes them.

    Attributes:
        edges: Places of all candidate pairs in ``scene.pairs``, shape (P,); None: the method ranks no edges.
        features: Indices of all candidate features, shape (f,); None: the method ranks no features.
        edges_above_zero: How many of the first edges the method expects to lower uncertainty; None: it does not say.
        features_above_zero: The same of features.
    """

    edges: Array | None
    features: Array | None
    edges_above_zero: int | None = None
    features_above_zero: int | None = None


@dataclass(frozen=True)
class Scene:
    """One node with what can be removed around it.

    Attributes:
        node: Its number in the whole graph.
        graph: Its whole neighbourhood.
        pairs: Candidate pairs.
        features: Indices of the node's features that are not 0, ascending, shape (f,).
        model: The teacher's entropy.
        x: Features of the whole graph (N, F).
    """

    node: int
    graph: Subgraph
    pairs: Pairs
    features: Array
    model: TeacherEntropy
    x: Tensor

    @cached_property
    def union(self) -> Union:
        """The neighbourhood as tensors."""
        return join(self.model, self.x, [View(self.graph)])

    @property
    def own(self) -> Tensor:
        """Features of the node, shape (F,)."""
        return self.x[self.node]

    def per_pair(self, values: Tensor) -> Array:
        """Return per candidate pair the sum of ``values`` (e,) over its edges, float64."""
        found = values.detach().double().cpu().numpy()
        return np.array([found[edges].sum() for edges in self.pairs.edges], dtype=np.float64)


class Scenes:
    """Scenes of a graph's nodes for one teacher; the graph's edges are sorted once.

    Works on a frozen copy of the teacher in eval mode: explainers write masks and gradients into modules.

    Args:
        teacher: Module ``(x, edge_index[, edge_weight])`` that returns logits.
        graph: A :class:`steelyard.graphs.Graph`.

    Raises:
        InputError: The teacher does not fit the graph, keeps normalised edges of a graph between calls, or cannot be
            copied.
    """

    def __init__(self, teacher: nn.Module, graph: Any) -> None:
        check_teacher(teacher, graph)
        refuse_cached(teacher, "teacher")
        try:
            self.teacher = copy.deepcopy(teacher).eval().requires_grad_(False)
        except (RuntimeError, TypeError) as error:
            raise InputError(f"teacher cannot be copied ({str(error)[:80]}); detach the tensors it keeps") from None
        self.graph = graph
        self.model = TeacherEntropy(self.teacher)
        self._hops = message_hops(self.teacher) or graph.num_nodes  # unknown depth: all that can reach the node
        self._sampler = NeighbourSampler(graph.edge_index.cpu(), graph.num_nodes, graph.edge_weight)

    def __getitem__(self, node: int) -> Scene:
        """Return the scene of ``node``.

        Raises:
            InputError: There is no such node.
        """
        around = self._sampler.subgraph(node, self._hops)
        features = np.flatnonzero(self.graph.x[node].detach().cpu().numpy())
        return Scene(node, around, candidate_pairs(around), features, self.model, self.graph.x)


Scorer = Callable[[Scene, np.random.Generator], Scores]


def rank(method: str | Scorer, scene: Scene, generator: np.random.Generator) -> Ranking:
    """Rank the candidates of a scene.

    Args:
        method: A name of :data:`BASELINES`, or a scorer of your own.
        scene: Of the node.
        generator: Of draws and of the order of equal scores.

    Raises:
        InputError: There is no such method, or it cannot work on this teacher.
    """
    scores = scorer(method)(scene, generator)
    edges, features = scores.edges, scores.features
    return Ranking(
        None if edges is None else in_order(edges, generator),
        None if features is None else scene.features[in_order(features, generator)],
        int((edges > 0).sum()) if scores.signed and edges is not None else None,
        int((features > 0).sum()) if scores.signed and features is not None else None,
    )


def scorer(method: str | Scorer) -> Scorer:
    """Return the scorer of a name.

    Raises:
        InputError: There is none of that name.
    """
    if not isinstance(method, str):
        return method
    if method not in BASELINES:
        raise InputError(f"no baseline '{method}'; there are {', '.join(BASELINES)}.{did_you_mean(method, BASELINES)}")
    return BASELINES[method]


def in_order(scores: Array, generator: np.random.Generator) -> Array:
    """Return places by falling score, equal scores in random order."""
    return np.lexsort((generator.random(len(scores)), -scores))


def random_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Draw all scores uniformly: the floor."""
    return Scores(generator.random(len(scene.pairs)), generator.random(len(scene.features)))


def degree_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score an edge by the (weighted) in-degree of the other node; features are not ranked."""
    into, weight = scene.graph.edge_index[1], scene.graph.weight
    degrees = np.bincount(into, weights=weight, minlength=scene.graph.num_nodes)
    others = np.searchsorted(scene.graph.nodes, scene.pairs.nodes[:, 1])
    return Scores(degrees[others], None)


def saliency_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score by |gradient| of the predicted class's log-probability."""
    edges, features = _gradients(scene, _prediction(scene))
    return Scores(scene.per_pair(edges.abs()), _of(features.abs(), scene))


def integrated_gradients_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score by integrated gradients of the predicted class's log-probability; baseline: no such edges, features 0."""
    edges, features = _integrated(scene, _prediction(scene))
    return Scores(edges, features)


def entropy_gradient_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score by gradient x value of the teacher's entropy: to first order the fall after removal."""
    edges, features = _gradients(scene, _entropy)
    weight = scene.union.edge_weight
    return Scores(
        scene.per_pair(edges if weight is None else edges * weight), _of(features * scene.own, scene), signed=True
    )


def entropy_integrated_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score by integrated gradients of the teacher's entropy."""
    edges, features = _integrated(scene, _entropy)
    return Scores(edges, features, signed=True)


def teacher_entropy_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score as GraphUAT's probes do, on the teacher's entropy and without a student: the strongest direct baseline.

    Edges by the fall of entropy when the pair is deleted (of more than :data:`MAX_EDGES`, those with the largest
    |gradient|; the others come last), features by gradient x value.
    """
    first_order = entropy_gradient_scores(scene, generator)
    assert first_order.edges is not None
    tested = in_order(np.abs(first_order.edges), generator)[:MAX_EDGES]
    views = [View(scene.graph), *deletion_views(scene.graph, scene.pairs.only(tested))]
    entropies = read(scene.model, scene.x, views)
    edges = np.full(len(scene.pairs), -np.inf)
    edges[tested] = entropies[0] - entropies[1:]
    return Scores(edges, first_order.features, signed=True)


def gnnexplainer_scores(scene: Scene, generator: np.random.Generator, epochs: int = GNNEXPLAINER_EPOCHS) -> Scores:
    """Score by the masks of torch-geometric's ``GNNExplainer``, trained on the prediction for ``epochs`` steps."""
    explain = require("torch_geometric.explain", "graphs")
    masks = _explained(scene, generator, explain.GNNExplainer(epochs=epochs), node_mask_type="attributes")
    return Scores(scene.per_pair(masks.edge_mask), _of(masks.node_mask[scene.graph.center], scene))


def attention_scores(scene: Scene, generator: np.random.Generator) -> Scores:
    """Score edges by attention, the largest over layers and heads; for teachers that attend. Ranks no features."""
    if not any(hasattr(part, "att_src") or hasattr(part, "att") for part in scene.model.teacher.modules()):
        raise InputError("baseline 'attention' needs a teacher with attention (kind='gat'); leave it out of against")
    algorithm = require("torch_geometric.explain", "graphs").AttentionExplainer()
    return Scores(scene.per_pair(_explained(scene, generator, algorithm).edge_mask), None)


def planted(edges: Iterable[tuple[int, int]], features: Mapping[int, Iterable[int]]) -> Scorer:
    """Return the oracle that removes what was planted, and then the rest at random: the ceiling.

    Args:
        edges: Planted pairs of nodes, either way round.
        features: Node -> its planted features.
    """
    pairs = {frozenset(pair) for pair in edges}
    words = {node: np.array(sorted(own), dtype=np.int64) for node, own in features.items()}

    def scores(scene: Scene, generator: np.random.Generator) -> Scores:
        known = [frozenset(pair) in pairs for pair in scene.pairs.nodes.tolist()]
        mine = np.isin(scene.features, words.get(scene.node, np.zeros(0, dtype=np.int64)))
        return Scores(np.array(known, dtype=np.float64), mine.astype(np.float64), signed=True)

    return scores


BASELINES: dict[str, Scorer] = {
    "random": random_scores,
    "degree": degree_scores,
    "saliency": saliency_scores,
    "integrated_gradients": integrated_gradients_scores,
    "gnnexplainer": gnnexplainer_scores,
    "attention": attention_scores,
    "entropy_gradient": entropy_gradient_scores,
    "entropy_integrated": entropy_integrated_scores,
    "teacher_entropy": teacher_entropy_scores,
}
"""Name -> scorer. The first six explain the prediction or look at the graph, the others the teacher's entropy."""


def _of(features: Tensor, scene: Scene) -> Array:
    found: Array = features.detach().double().cpu().numpy()[scene.features]
    return found


Objective = Callable[[Tensor], Tensor]  # log-probabilities (C,) -> number


def _entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum()


def _prediction(scene: Scene) -> Objective:
    union = scene.union
    with torch.no_grad():
        out = _log_probabilities(scene, union.x, union.edge_weight)
    best = int(out.argmax())
    return lambda log_p: log_p[best]


def _log_probabilities(scene: Scene, x: Tensor, weight: Tensor | None) -> Tensor:
    weights = {} if weight is None else {"edge_weight": weight}
    out = scene.model.teacher(x, scene.union.edge_index, **weights)
    return torch.log_softmax(out[scene.graph.center].double(), -1)


def _gradients(
    scene: Scene, objective: Objective, edge_scale: float = 1.0, feature_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the derivatives by each edge's weight (e,) and by the node's features (F,).

    The candidates' edges and the node's features are scaled first. A teacher without edge weights has its messages
    scaled instead (torch-geometric's explanation masks), and one that is not torch-geometric's gets, for its edges,
    what the sender's features contribute to first order.
    """
    union = scene.union
    x = union.x.clone()
    x[scene.graph.center] *= feature_scale
    x.requires_grad_()
    scale = torch.ones(union.edge_index.shape[1], dtype=x.dtype)
    if len(scene.pairs):
        scale[np.concatenate(scene.pairs.edges)] = edge_scale
    with torch.enable_grad():
        if union.edge_weight is not None:
            knob = (union.edge_weight.detach() * scale).requires_grad_()
            value = objective(_log_probabilities(scene, x, knob))
        else:
            knob = nn.Parameter(scale)
            value = _masked(scene, x, knob, objective)
        by_edge, by_x = cast(Any, torch.autograd.grad(value, [knob, x], allow_unused=True))
    by_x = torch.zeros_like(x) if by_x is None else by_x
    if by_edge is None:
        by_edge = (x.detach() * by_x).sum(-1)[union.edge_index[0]]
    return by_edge, by_x[scene.graph.center]


def _masked(scene: Scene, x: Tensor, mask: nn.Parameter, objective: Objective) -> Tensor:
    masks = require("torch_geometric.explain.algorithm.utils", "graphs")
    teacher = scene.model.teacher
    masks.set_masks(teacher, mask, scene.union.edge_index, apply_sigmoid=False)
    try:
        return objective(_log_probabilities(scene, x, None))
    finally:
        masks.clear_masks(teacher)


def _integrated(scene: Scene, objective: Objective) -> tuple[Array, Array]:
    """Return integrated gradients of the candidate pairs and, along a path of their own, of the features."""
    path = [(step + 0.5) / STEPS for step in range(STEPS)]
    by_edge = torch.stack([_gradients(scene, objective, edge_scale=at)[0] for at in path]).mean(0)
    by_feature = torch.stack([_gradients(scene, objective, feature_scale=at)[1] for at in path]).mean(0)
    weight = scene.union.edge_weight
    return scene.per_pair(by_edge if weight is None else by_edge * weight), _of(by_feature * scene.own, scene)


def _explained(scene: Scene, generator: np.random.Generator, algorithm: Any, node_mask_type: str | None = None) -> Any:
    """Return the explanation of the prediction by an algorithm of torch-geometric, on the scene's neighbourhood."""
    explain = require("torch_geometric.explain", "graphs")
    union = scene.union
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = explain.Explainer(
        scene.model.teacher, algorithm=algorithm, explanation_type="model", model_config=settings,
        node_mask_type=node_mask_type, edge_mask_type="object",
    )  # fmt: skip
    weights = {} if union.edge_weight is None else {"edge_weight": union.edge_weight}
    try:
        with seeded(torch.Generator().manual_seed(int(generator.integers(1 << 62)))), torch.enable_grad():
            return explainer(union.x, union.edge_index, index=scene.graph.center, **weights)
    except ValueError as error:  # its words for a network whose messages it cannot mask
        name = type(algorithm).__name__
        raise InputError(f"baseline {name} cannot explain this teacher: {str(error)[:160]}") from None
