"""The probes: how much a node's uncertainty falls when features or edges are taken away (the paper's abstract).

Every probe of a node runs on its sampled neighbourhood, and many edits are read in one pass: copies of the
neighbourhoods, one edit each, side by side in one graph without edges between them. A model that mixes nodes beyond
message passing (GraphNorm, PairNorm, virtual nodes, pooling) cannot be read that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.graphs.graphuat.models import UncertaintyModel, uses_weights
from steelyard.graphs.sampling import Subgraph

Array = NDArray[Any]
FeatureMethod = Literal["gradient", "integrated", "neighbour_mean"]
FEATURE_METHODS: tuple[FeatureMethod, ...] = ("gradient", "integrated", "neighbour_mean")
INTEGRATION_STEPS = 16
_FLOATS = 1 << 22  # features copied at a time: 16 MiB of float32
_EDGES = 1 << 19


@dataclass(frozen=True)
class View:
    """One edited neighbourhood: edges without their removed share, and perhaps other features of its node.

    Attributes:
        graph: The neighbourhood before the edit.
        removed: Positions of the removed edges, shape (r,), or None.
        features: The node's features after the edit, shape (F,), or None for its own.
    """

    graph: Subgraph
    removed: Array | None = None
    features: Tensor | None = None


@dataclass(frozen=True)
class Union:
    """Views side by side: one graph of all their nodes."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    centers: Tensor
    edges_of_view: list[Array]  # positions of each view's remaining edges within that view


def join(model: UncertaintyModel, x: Tensor, views: Sequence[View]) -> Union:
    """Put ``views`` side by side.

    A removed edge loses its own weight: its column goes when nothing is left, else (a drawn edge that stands for
    several) the rest stays. A model without edge weights loses the column in any case.

    Args:
        model: The model that will read the union.
        x: Features of the whole graph, shape (N, F).
        views: The views.
    """
    rows, edges, weights, kept, centers = [], [], [], [], []
    offset = 0
    for view in views:
        graph, weight = view.graph, view.graph.weight
        alive = np.arange(graph.edge_index.shape[1])
        if view.removed is not None and len(view.removed):
            weight = weight.copy()
            weight[view.removed] -= graph.unit[view.removed]
            gone = weight[view.removed] <= 1e-9 if uses_weights(model) else np.ones(len(view.removed), dtype=bool)
            alive = np.delete(alive, view.removed[gone])
        rows.append(graph.nodes)
        edges.append(graph.edge_index[:, alive] + offset)
        weights.append(weight[alive])
        kept.append(alive)
        centers.append(graph.center + offset)
        offset += graph.num_nodes
    device = x.device
    features = x[torch.from_numpy(np.concatenate(rows)).to(device)]
    middle = torch.tensor(centers, device=device)
    edited = [(place, view.features) for place, view in zip(centers, views, strict=True) if view.features is not None]
    if edited:
        features[[place for place, _ in edited]] = torch.stack([row for _, row in edited])
    edge_index = torch.from_numpy(np.concatenate(edges, axis=1)).to(device)
    mass = torch.from_numpy(np.concatenate(weights)).to(device, x.dtype) if uses_weights(model) else None
    return Union(features, edge_index, mass, middle, kept)


def read(model: UncertaintyModel, x: Tensor, views: Sequence[View]) -> Array:
    """Return the total uncertainty of every view's node, float64, shape (views,), in passes of bounded memory."""
    return read_parts(model, x, views)[:, 0]


def read_parts(model: UncertaintyModel, x: Tensor, views: Sequence[View]) -> Array:
    """Return total and epistemic uncertainty of every view's node, float64, shape (views, 2).

    A model without an epistemic part gives NaN there.
    """
    values = [np.zeros((0, 2))]
    for some in chunks(views, x.shape[1]):
        union = join(model, x, some)
        with torch.no_grad():
            reading = model.evaluate(union.x, union.edge_index, union.edge_weight, union.centers)
        epistemic = torch.full_like(reading.total, torch.nan) if reading.epistemic is None else reading.epistemic
        values.append(torch.stack([reading.total, epistemic], 1).double().cpu().numpy())
    return np.concatenate(values)


def chunks(views: Sequence[View], num_features: int) -> Iterator[Sequence[View]]:
    """Cut ``views`` into runs whose copied features and edges stay within a fixed memory; a run has one at least."""
    first, floats, edges = 0, 0, 0
    for place, view in enumerate(views):
        floats += view.graph.num_nodes * num_features
        edges += view.graph.edge_index.shape[1]
        if place > first and (floats > _FLOATS or edges > _EDGES):
            yield views[first:place]
            first, floats, edges = place, view.graph.num_nodes * num_features, view.graph.edge_index.shape[1]
    if len(views):
        yield views[first:]


@dataclass(frozen=True)
class Slopes:
    """Total uncertainty of one view's node and its derivatives.

    Attributes:
        total: Total uncertainty in nats.
        features: Its derivative by the node's own features, shape (F,).
        edges: Its derivative by the weight of each edge of the view, shape (e,), or, for a model without edge
            weights, |sum_j x_uj dTU/dx_uj| of each edge's source u: to first order what its features contribute.
    """

    total: float
    features: Tensor
    edges: Array


def slopes(model: UncertaintyModel, x: Tensor, views: Sequence[View]) -> list[Slopes]:
    """Return values and derivatives of all ``views``: one forward and one backward pass per bounded run of views."""
    found: list[Slopes] = []
    for some in chunks(views, x.shape[1]):
        union = join(model, x, some)
        leaf = union.x.detach().requires_grad_()
        mass = None if union.edge_weight is None else union.edge_weight.requires_grad_()
        wanted = [leaf] if mass is None else [leaf, mass]
        with torch.enable_grad():  # a caller may have switched it off
            reading = model.evaluate(leaf, union.edge_index, mass, union.centers)
            # Views share no edge, so the derivative of the sum holds each view's own.
            by_x, *by_mass = torch.autograd.grad(reading.total.sum(), wanted, allow_unused=True)
        by_x = torch.zeros_like(leaf) if by_x is None else by_x
        if by_mass and by_mass[0] is not None:
            per_edge = by_mass[0]
        else:
            per_edge = (leaf.detach() * by_x).sum(-1).abs()[union.edge_index[0]]
        totals = reading.total.detach().double().cpu().numpy()
        values = per_edge.detach().double().cpu().numpy()
        at = 0
        for total, center, kept, view in zip(totals, union.centers.tolist(), union.edges_of_view, some, strict=True):
            edges = np.zeros(view.graph.edge_index.shape[1])
            edges[kept] = values[at : at + len(kept)]
            at += len(kept)
            found.append(Slopes(float(total), by_x[center].detach(), edges))
    return found


@dataclass(frozen=True)
class Pairs:
    """The unordered node pairs around a node whose edges a probe removes, both directions together.

    Attributes:
        nodes: Pairs of whole-graph numbers, the explained node first where it takes part, else ascending, (P, 2).
        edges: For each pair the positions of its edges in the neighbourhood.
    """

    nodes: Array
    edges: list[Array]

    def __len__(self) -> int:
        return len(self.edges)

    def only(self, places: Array) -> Pairs:
        """Return these pairs, in this order."""
        return Pairs(self.nodes[places], [self.edges[place] for place in places])


def candidate_pairs(graph: Subgraph, hops: int = 1) -> Pairs:
    """Return the pairs that the neighbourhood's node takes part in and, with ``hops=2``, those of its neighbours too.

    Sorted: the node's own first, then by the numbers of both ends. An edge that was drawn to stand for others of the
    node's own is none of them: those that the rule for large degrees chose stand for themselves.
    """
    inside = {graph.center}
    source, target = graph.edge_index
    drawn = source[(target == graph.center) & (graph.weight > graph.unit * (1 + 1e-9))]
    of_drawn = ((source == graph.center) & np.isin(target, drawn)) | ((target == graph.center) & np.isin(source, drawn))
    real = np.flatnonzero((graph.edge_ids >= 0) & (source != target) & ~of_drawn)
    source, target = source[real], target[real]
    for _ in range(hops - 1):
        inside |= set(source[np.isin(target, list(inside))].tolist())
    near = np.isin(source, list(inside)) | np.isin(target, list(inside))
    real, source, target = real[near], source[near], target[near]
    low, high = np.minimum(source, target), np.maximum(source, target)
    keys, group = np.unique(low * graph.num_nodes + high, return_inverse=True)
    ends = np.stack([keys // graph.num_nodes, keys % graph.num_nodes], axis=1)
    swap = ends[:, 1] == graph.center
    ends[swap] = ends[swap][:, ::-1]
    order = np.argsort(group, kind="stable")
    cuts = np.cumsum(np.bincount(group, minlength=len(keys)))[:-1]
    members = [real[part] for part in np.split(order, cuts)] if len(keys) else []
    rank = np.lexsort((graph.nodes[ends[:, 1]], graph.nodes[ends[:, 0]], ends[:, 0] != graph.center))
    return Pairs(graph.nodes[ends], members).only(rank)


def strongest(pairs: Pairs, slope: Slopes, limit: int) -> Pairs:
    """Return the ``limit`` pairs with the largest |summed derivative| of their edges, in their old order.

    This is the rule for large degrees; ties go to the pair that comes first.
    """
    if len(pairs) <= limit:
        return pairs
    size = np.array([abs(slope.edges[edges].sum()) for edges in pairs.edges])
    return pairs.only(np.sort(np.argsort(-size, kind="stable")[:limit]))


def deletion_views(graph: Subgraph, pairs: Pairs) -> list[View]:
    """Return one view per pair, without that pair."""
    return [View(graph, edges) for edges in pairs.edges]


def without(view: View, pairs: Pairs, places: Array) -> View:
    """Return ``view`` without all pairs at ``places``."""
    if not len(places):
        return view
    return replace(view, removed=np.unique(np.concatenate([pairs.edges[place] for place in places])))


def integrated_slopes(model: UncertaintyModel, x: Tensor, graphs: Sequence[Subgraph]) -> list[Tensor]:
    """Return the mean derivative by each node's features along the straight path from 0 to them (16 midpoints).

    Times the features it is integrated gradients with baseline 0 (Sundararajan et al. 2017).
    """
    found = []
    for graph in graphs:
        own = x[int(graph.nodes[graph.center])]
        steps = (np.arange(INTEGRATION_STEPS) + 0.5) / INTEGRATION_STEPS
        path = slopes(model, x, [View(graph, features=own * float(step)) for step in steps])
        found.append(torch.stack([slope.features for slope in path]).mean(0))
    return found


def neighbour_mean(x: Tensor, graph: Subgraph) -> Tensor:
    """Return the mean features, shape (F,), of the node's in-neighbours that the neighbourhood holds; 0 if it has none.

    Drawn edges count as often as the edges they stand for.
    """
    into = np.flatnonzero((graph.edge_index[1] == graph.center) & (graph.edge_ids >= 0))
    if not len(into):
        return torch.zeros_like(x[0])
    rows = torch.from_numpy(graph.nodes[graph.edge_index[0, into]]).to(x.device)
    share = torch.from_numpy(graph.weight[into] / graph.weight[into].sum()).to(x.device, x.dtype)
    return share @ x[rows]
