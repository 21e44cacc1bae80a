"""Runs the probes over many nodes: one pass of derivatives and two of edits per group of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.graphs.graphuat.models import UncertaintyModel
from steelyard.graphs.graphuat.probes import (
    FeatureMethod,
    Pairs,
    Slopes,
    View,
    candidate_pairs,
    deletion_views,
    integrated_slopes,
    neighbour_mean,
    read,
    read_parts,
    slopes,
    strongest,
    without,
)
from steelyard.graphs.sampling import NeighbourSampler, Subgraph
from steelyard.rng import generator

Array = NDArray[Any]
GROUP = 32
"""Nodes whose neighbourhoods are held at a time."""
SCREENED = 16
"""A node's edges beyond this many times ``max_edges`` are thinned at random before the derivatives rank them."""


@dataclass(frozen=True)
class ProbeResult:
    """What the probes of one node found.

    Attributes:
        node: The node.
        feature: Fall of total uncertainty after the feature edit, nats.
        structure: Largest fall while the harmful edges go one after the other, the worst first, nats.
        epistemic: Change of the epistemic part with the edges removed that gave this fall, nats; 0 without any.
        edges: (u, v, fall) per tested pair, largest first.
        features: (index, attribution) of nonzero attributions, largest first.
        left_out: Incident edges that were not tested.
        isolated: No edge ends at the node.
    """

    node: int
    feature: float
    structure: float
    epistemic: float
    edges: list[tuple[int, int, float]]
    features: list[tuple[int, float]]
    left_out: int
    isolated: bool


@dataclass(frozen=True)
class NodeProber:
    """The feature and structure probes on one model and graph.

    Attributes:
        model: What is probed.
        x: Features (N, F).
        sampler: The graph's neighbourhoods.
        depth: Hops that the model sees.
        hops: Edges to test: 1 the node's own, 2 also its neighbours'.
        fanout: Neighbours drawn per hop, or None for all.
        max_edges: Edges tested at most per node.
        feature_method: How features are attributed and edited.
        threshold: Fall in nats from which an edge counts as harmful.
        seed: Of the draws, which depend on the node's number and on nothing else.
    """

    model: UncertaintyModel
    x: Tensor
    sampler: NeighbourSampler
    depth: int
    hops: int
    fanout: tuple[int, ...] | None
    max_edges: int
    feature_method: FeatureMethod
    threshold: float
    seed: int

    def probe(
        self, nodes: Sequence[int], probes: Sequence[str], *, progress: Callable[[int, int], None] | None = None
    ) -> list[ProbeResult]:
        """Return the results of ``nodes`` in order; a probe that is not named scores 0 and lists nothing."""
        found: list[ProbeResult] = []
        for first in range(0, len(nodes), GROUP):
            found += self._group(nodes[first : first + GROUP], probes)
            if progress is not None:
                progress(len(found), len(nodes))
        return found

    def _group(self, nodes: Sequence[int], probes: Sequence[str]) -> list[ProbeResult]:
        graphs = [self.neighbourhood(node) for node in nodes]
        base = slopes(self.model, self.x, [View(graph) for graph in graphs])
        pairs = [self._pairs(graph, slope) for graph, slope in zip(graphs, base, strict=True)]
        edges_wanted = "structure" in probes
        if not edges_wanted:
            pairs = [some.only(np.zeros(0, dtype=np.int64)) for some in pairs]
        features, edited = self._features(graphs, base) if "feature" in probes else ([], [])
        cuts = [view for graph, some in zip(graphs, pairs, strict=True) for view in deletion_views(graph, some)]
        values = read(self.model, self.x, cuts + edited)
        falls = _split(values[: len(cuts)], [len(some) for some in pairs], base)
        after = values[len(cuts) :]
        structure = self._structure(graphs, pairs, falls)
        results = []
        for row, node in enumerate(nodes):
            results.append(
                ProbeResult(
                    node=node,
                    feature=base[row].total - float(after[row]) if edited else 0.0,
                    structure=structure[row][0],
                    epistemic=structure[row][1],
                    edges=_ranked_edges(pairs[row], falls[row]),
                    features=_ranked_features(features[row]) if edited else [],
                    left_out=self._left_out(node, graphs[row], pairs[row]) if edges_wanted else 0,
                    isolated=self._degree(node) == 0,
                )
            )
        return results

    def _structure(
        self, graphs: Sequence[Subgraph], pairs: Sequence[Pairs], falls: Sequence[Array]
    ) -> list[tuple[float, float]]:
        """Return the largest fall while the harmful edges go one by one, and the change of the epistemic part by then.

        Both are 0 without harmful edges. The worst goes first. The last edges may undo the first ones' effect (a node
        without neighbours can be as uncertain as one with hostile ones), so the fall after all of them may be below
        that of one alone.
        """
        views: list[View] = []
        counts: list[int] = []
        for graph, some, fall in zip(graphs, pairs, falls, strict=True):
            order = np.argsort(-fall, kind="stable")
            worst = order[fall[order] > self.threshold]
            views += [without(View(graph), some, worst[:count]) for count in range(len(worst) + 1)]
            counts.append(len(worst) + 1)
        found = []
        for after in np.split(read_parts(self.model, self.x, views), np.cumsum(counts)[:-1]):
            best = int(after[:, 0].argmin())  # the first row is the graph as it is
            found.append((float(after[0, 0] - after[best, 0]), float(after[best, 1] - after[0, 1])))
        return found

    def neighbourhood(self, node: int) -> Subgraph:
        """Return the neighbourhood that ``node`` is probed in; all edges that will be tested are surely in it."""
        draw = generator("graphuat", f"neighbourhood of {node}", self.seed)
        if self.fanout is None:
            return self.sampler.subgraph(node, self.depth)
        columns = self.sampler.incoming(node)[1]
        if len(columns) > self.max_edges:
            screened = columns
            if len(columns) > SCREENED * self.max_edges:
                screened = draw.choice(columns, SCREENED * self.max_edges, replace=False)
            graph = self.sampler.subgraph(node, self.depth, self.fanout, draw, keep=screened)
            best = strongest(candidate_pairs(graph), slopes(self.model, self.x, [View(graph)])[0], self.max_edges)
            ids = graph.edge_ids[np.concatenate(best.edges)]
            columns = columns[np.isin(columns, ids)]
        return self.sampler.subgraph(node, self.depth, self.fanout, draw, keep=columns)

    def _pairs(self, graph: Subgraph, slope: Slopes) -> Pairs:
        pairs = candidate_pairs(graph, self.hops)
        return strongest(pairs, slope, self.max_edges)

    def _degree(self, node: int) -> int:
        return len(self.sampler.incoming(node)[0])

    def _left_out(self, node: int, graph: Subgraph, pairs: Pairs) -> int:
        tested = len(
            set(pairs.nodes[pairs.nodes[:, 0] == node, 1].tolist()) & set(self.sampler.incoming(node)[0].tolist())
        )
        return self._degree(node) - tested

    def _features(self, graphs: Sequence[Subgraph], base: Sequence[Slopes]) -> tuple[list[Tensor], list[View]]:
        """Return each node's attributions (F,) and the view in which its features are edited."""
        own = [self.x[int(graph.nodes[graph.center])] for graph in graphs]
        if self.feature_method == "neighbour_mean":
            means = [neighbour_mean(self.x, graph) for graph in graphs]
            scores = [slope.features * (row - mean) for slope, row, mean in zip(base, own, means, strict=True)]
            return scores, [View(graph, features=mean) for graph, mean in zip(graphs, means, strict=True)]
        gradients = [slope.features for slope in base]
        if self.feature_method == "integrated":
            gradients = integrated_slopes(self.model, self.x, graphs)
        scores = [gradient * row for gradient, row in zip(gradients, own, strict=True)]
        edits = [torch.where(score > 0, 0.0, row) for score, row in zip(scores, own, strict=True)]
        return scores, [View(graph, features=row) for graph, row in zip(graphs, edits, strict=True)]


def _split(values: Array, counts: Sequence[int], base: Sequence[Slopes]) -> list[Array]:
    parts = np.split(values, np.cumsum(counts)[:-1])
    return [slope.total - part for slope, part in zip(base, parts, strict=True)]


def _ranked_edges(pairs: Pairs, falls: Array) -> list[tuple[int, int, float]]:
    order = np.lexsort((pairs.nodes[:, 1], pairs.nodes[:, 0], -falls))
    return [(int(pairs.nodes[at, 0]), int(pairs.nodes[at, 1]), float(falls[at])) for at in order]


def _ranked_features(scores: Tensor) -> list[tuple[int, float]]:
    values = scores.double().cpu().numpy()
    index = np.flatnonzero(values)
    order = index[np.argsort(-values[index], kind="stable")]
    return [(int(at), float(values[at])) for at in order]
