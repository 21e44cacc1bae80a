"""One node's attribution as an ``Explanation`` of torch-geometric, with the dense masks that its metrics read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.explain import Explanation

from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.explanation import Edge, Feature, NodeAttribution


class UncertaintyExplanation(Explanation):  # type: ignore[misc]  # torch-geometric is not typed
    """An ``Explanation`` that also says why the node is uncertain.

    Besides ``node_mask`` (N, F), ``edge_mask`` (E,), ``x`` and ``edge_index`` it carries ``uncertainty`` {total,
    aleatoric, epistemic}, ``source_scores``, ``source_z``, ``dominant_source``, ``shares`` and ``evidence``. Masks hold
    falls of uncertainty in nats, 0 where there is none.
    """

    def top_edges(self, k: int) -> list[Edge]:
        """Return the ``k`` edges (u, v, fall) whose removal lowers the uncertainty most."""
        return list(self.ranked_edges[:k])

    def top_features(self, k: int) -> list[Feature]:
        """Return the ``k`` features (index, attribution) with the largest positive attribution."""
        return list(self.ranked_features[:k])


def from_attribution(item: NodeAttribution, graph: Graph) -> UncertaintyExplanation:
    """Return ``item`` with dense masks over ``graph``: only positive falls, both directions of an edge alike."""
    node_mask = torch.zeros_like(graph.x)
    for index, score in item.features:
        node_mask[item.node, index] = max(score, 0.0)
    return UncertaintyExplanation(
        x=graph.x,
        edge_index=graph.edge_index,
        node_mask=node_mask,
        edge_mask=edge_mask(item, graph.edge_index).to(graph.x.dtype),
        index=item.node,
        uncertainty={"total": item.total, "aleatoric": item.aleatoric, "epistemic": item.epistemic},
        source_scores=dict(item.scores),
        source_z=dict(item.z),
        dominant_source=item.dominant_source,
        shares=dict(item.shares),
        evidence=dict(item.evidence),
        ranked_edges=item.top_edges(len(item.edges)),
        ranked_features=item.top_features(len(item.features)),
    )


def edge_mask(item: NodeAttribution, edge_index: Tensor) -> Tensor:
    """Return the positive falls as a mask (E,) over ``edge_index``; both directions of an edge get its fall."""
    mask = torch.zeros(edge_index.shape[1], device=edge_index.device)
    low, high = edge_index.min(0).values, edge_index.max(0).values
    for u, v, score in item.edges:
        if score > 0:
            mask[(low == min(u, v)) & (high == max(u, v))] = score
    return mask
