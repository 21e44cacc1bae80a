"""Neighbourhoods of one node, cut out of a large graph at a cost that its size does not change.

Own code, since PyG's ``NeighborLoader`` needs compiled add-ons that the package index has no wheels of, and its
``k_hop_subgraph`` looks at every edge of the graph on every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Subgraph:
    """A node's neighbourhood with its own numbering.

    Attributes:
        nodes: Ascending node numbers of the whole graph, int64, shape (n,).
        center: Position of the node in ``nodes``.
        edge_index: Edges between positions, int64, shape (2, e); row 0 is the source, row 1 the target.
        edge_ids: Column of the whole graph that each edge is, int64, shape (e,); -1 for an edge that only carries a
            degree (see :meth:`NeighbourSampler.subgraph`).
        weight: float64, shape (e,): the edge's own weight times how many edges it stands for; 1 in an unweighted
            graph where nothing was left out.
        unit: float64, shape (e,): the edge's own weight, which is what its removal takes off ``weight``.
    """

    nodes: Array
    center: int
    edge_index: Array
    edge_ids: Array
    weight: Array
    unit: Array

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.nodes)


class NeighbourSampler:
    """Cuts neighbourhoods out of a graph whose incoming edges are sorted once, in O(E log E) time and O(E) memory.

    Args:
        edge_index: Integer array or tensor of shape (2, E), sources over targets, without duplicates.
        num_nodes: Number of nodes N.
        edge_weight: Weights of shape (E,), or None for ones.

    Raises:
        InputError: ``edge_index`` is not an integer (2, E), or names a node outside 0 … N-1.
    """

    def __init__(self, edge_index: Any, num_nodes: int, edge_weight: Any = None) -> None:
        edges = np.asarray(edge_index)
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
            raise InputError(f"edge_index must be an integer array of shape (2, E), not {edges.dtype} {edges.shape}")
        if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
            raise InputError(f"edge_index names a node outside 0 … {num_nodes - 1}; the graph has {num_nodes} nodes")
        self.num_nodes = int(num_nodes)
        weight = np.ones(edges.shape[1]) if edge_weight is None else np.asarray(edge_weight, dtype=np.float64)
        if weight.shape != (edges.shape[1],):
            raise InputError(f"edge_weight must have one value per edge ({edges.shape[1]}), not shape {weight.shape}")
        order = np.lexsort((edges[0], edges[1]))
        self._ids = order.astype(np.int64)
        self._source = edges[0][order].astype(np.int64)
        self._key = edges[1][order].astype(np.int64) * num_nodes + self._source  # ascending: target, then source
        self._place: Array | None = None
        self._weight = weight[order]
        counts = np.bincount(edges[1], minlength=num_nodes)
        self._start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._degree = np.bincount(edges[1], weights=weight, minlength=num_nodes)

    def incoming(self, node: int) -> tuple[Array, Array]:
        """Return the sources (ascending) and the columns of ``edge_index`` of the edges that end at ``node``."""
        rows = slice(self._start[node], self._start[node + 1])
        return self._source[rows], self._ids[rows]

    def subgraph(
        self,
        node: int,
        hops: int,
        fanout: Sequence[int] | None = None,
        generator: np.random.Generator | None = None,
        *,
        keep: Array | None = None,
    ) -> Subgraph:
        """Return the incoming neighbourhood that a network of ``hops`` layers sees from ``node``.

        With ``fanout=None`` it is whole, and one hop deeper than the network sees, so that all degrees are the whole
        graph's: the network's value at ``node`` then equals the whole graph's. With a fanout, each node of hop h
        keeps at most ``fanout[h]`` of its incoming edges, drawn without replacement, besides the other directions of
        the edges that led to it. A drawn edge's weight is the number of edges it stands for, so that weighted sums
        are estimated without bias and weighted degrees are exact. A node at the rim, whose incoming edges are not
        followed, gets one more edge that carries the rest of its degree (from ``node``; the rim's own hidden values
        never reach ``node``). A network that ignores weights sees the drawn edges alone: right for means and
        attention, biased for sums.

        Args:
            node: Number of the node, 0 … N-1.
            hops: Message passing layers of the network, at least 1.
            fanout: Edges drawn per node and hop, the last repeated for deeper hops; None for the whole.
            generator: Source of the draws; needed only where something is left out.
            keep: Columns of ``edge_index`` ending at ``node`` that are surely in; ``fanout[0]`` then counts the rest.

        Returns:
            The subgraph. Its cost depends on ``fanout`` and the number of kept edges, not on N or E.

        Raises:
            InputError: ``node`` is outside the graph, ``hops`` < 1, or ``fanout`` is empty or not positive.
        """
        _check_call(node, self.num_nodes, hops, fanout)
        rng = np.random.default_rng(0) if generator is None else generator
        found = frontier = np.array([node], dtype=np.int64)
        sure = np.sort(self._row_of(keep)) if keep is not None else self._ids[:0]
        rows: list[Array] = []
        stands: list[Array] = []
        for hop in range(hops + 1 if fanout is None else hops):
            size = None if fanout is None else fanout[min(hop, len(fanout) - 1)]
            drawn, each = self._draw_all(frontier, size, sure, rng)
            rows.append(drawn)
            stands.append(each)
            reached = np.unique(self._source[drawn])
            frontier = np.setdiff1d(reached, found, assume_unique=True)
            found = np.union1d(found, frontier)
            sure = self._reverse(drawn[np.isin(self._source[drawn], frontier)])
            if not len(frontier):
                break
        rim = frontier if fanout is not None else frontier[:0]
        if len(rim):
            rows.append(sure)
            stands.append(np.ones(len(sure)))
        return self._assemble(node, found, np.concatenate(rows), np.concatenate(stands), rim)

    def _row_of(self, columns: Array) -> Array:
        """Return the rows of the sorted edges that hold these columns of ``edge_index``."""
        if self._place is None:
            self._place = np.empty(len(self._ids), dtype=np.int64)
            self._place[self._ids] = np.arange(len(self._ids))
        rows: Array = self._place[columns]
        return rows

    def _reverse(self, rows: Array) -> Array:
        """Return the rows, ascending, of the edges that run the other way, where the graph has them."""
        if not len(rows):
            return rows
        wanted = np.sort(self._source[rows] * self.num_nodes + self._key[rows] // self.num_nodes)
        place = np.minimum(np.searchsorted(self._key, wanted), len(self._key) - 1)
        found: Array = place[self._key[place] == wanted]
        return found

    def _draw_all(
        self, frontier: Array, size: int | None, sure: Array, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return rows of edges that end in ``frontier``, the ``sure`` ones among them, and what each stands for."""
        rows, stands = [], []
        for target in frontier.tolist():
            start, stop = int(self._start[target]), int(self._start[target + 1])
            own = sure[np.searchsorted(sure, start) : np.searchsorted(sure, stop)] - start
            others = stop - start - len(own)
            if size is None or others <= size:
                rows.append(np.arange(start, stop))
                stands.append(np.ones(stop - start))
                continue
            picked = np.sort(rng.choice(others, size, replace=False))
            picked += np.searchsorted(own - np.arange(len(own)), picked, side="right")  # step over the sure ones
            chosen = start + np.concatenate([own, picked])
            mine, drawn = self._weight[start + own].sum(), self._weight[start + picked].sum()
            each = (self._degree[target] - mine) / drawn if drawn > 0 else others / size
            rows.append(chosen)
            stands.append(np.concatenate([np.ones(len(own)), np.full(size, each)]))
        return np.concatenate(rows), np.concatenate(stands)

    def _assemble(self, node: int, nodes: Array, rows: Array, stands: Array, rim: Array) -> Subgraph:
        """Number the nodes anew and give the rim the part of its degrees that no edge of the subgraph carries."""
        source, target = self._source[rows], self._key[rows] // self.num_nodes
        present = np.bincount(np.searchsorted(nodes, target), self._weight[rows] * stands, minlength=len(nodes))
        missing = self._degree[rim] - present[np.searchsorted(nodes, rim)]
        rim, missing = rim[missing > 1e-9], missing[missing > 1e-9]
        edges = np.stack([np.append(source, np.full(len(rim), node)), np.append(target, rim)])
        unit = np.append(self._weight[rows], missing)
        return Subgraph(
            nodes=nodes,
            center=int(np.searchsorted(nodes, node)),
            edge_index=np.searchsorted(nodes, edges),
            edge_ids=np.append(self._ids[rows], np.full(len(rim), -1)),
            weight=unit * np.append(stands, np.ones(len(rim))),
            unit=unit,
        )


def _check_call(node: int, num_nodes: int, hops: int, fanout: Sequence[int] | None) -> None:
    if not 0 <= node < num_nodes:
        raise InputError(f"node {node} is not in the graph, whose nodes are 0 … {num_nodes - 1}")
    if hops < 1:
        raise InputError(f"hops must be at least 1, not {hops}")
    if fanout is not None and (not len(fanout) or min(fanout) < 1):
        raise InputError(f"fanout must name at least one positive number of neighbours per hop, not {tuple(fanout)}")
