"""What an attribution found, node by node: sparse, so that many nodes cost what they hold, not N x F each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

from steelyard.errors import InputError
from steelyard.graphs.graphuat.core import SOURCES

Edge = tuple[int, int, float]
Feature = tuple[int, float]


@dataclass(frozen=True)
class NodeAttribution:
    """Why one node is uncertain. Uncertainties are in nats.

    Attributes:
        node: Its number.
        total: Total uncertainty of the model that was probed (the student, or the teacher's entropy).
        aleatoric: Its aleatoric part; None if the model has no such split.
        epistemic: Its epistemic part; None likewise.
        teacher_entropy: Entropy of the teacher's prediction.
        scores: Per probe the raw score: the fall of ``total`` after the feature or edge edit, the epistemic part
            that stays without the harmful edges for coverage (or as it is, by the setting ``coverage``).
        z: The scores in standard deviations from the mean of the reference nodes.
        shares: The positive z-scores as shares of their sum.
        dominant_source: The probe with the largest z-score; None where two tie.
        edges: (u, v, fall of ``total`` when the edge is removed in both directions), largest first; u is the node
            itself where it takes part.
        features: (index, attribution) of the node's features with a nonzero one, largest first.
        edges_left_out: Edges that were not tested, since the node has more than ``max_edges``.
        isolated: The node has no edge that reaches it; its structure score is 0 by definition.
        evidence: What stands behind coverage: ``nearest_labelled``, ``distance`` and ``label_mass`` (see
            :class:`~steelyard.graphs.graphuat.evidence.CoverageEvidence`).
    """

    node: int
    total: float
    aleatoric: float | None
    epistemic: float | None
    teacher_entropy: float
    scores: Mapping[str, float]
    z: Mapping[str, float]
    shares: Mapping[str, float]
    dominant_source: str | None
    edges: Sequence[Edge]
    features: Sequence[Feature]
    edges_left_out: int = 0
    isolated: bool = False
    evidence: Mapping[str, float | int | None] = field(default_factory=dict)

    def neighbours(self) -> list[tuple[int, float]]:
        """Return the other end of each tested edge of the node itself, and its fall, largest first."""
        ends = ((u, v, fall) for u, v, fall in self.edges if self.node in (u, v))
        return [(v if u == self.node else u, fall) for u, v, fall in ends]

    def top_edges(self, k: int) -> list[Edge]:
        """Return the ``k`` edges whose removal lowers the uncertainty most, those that lower it at all."""
        return [edge for edge in self.edges[:k] if edge[2] > 0]

    def top_features(self, k: int) -> list[Feature]:
        """Return the ``k`` features with the largest attribution, the positive ones."""
        return [feature for feature in self.features[:k] if feature[1] > 0]

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self))


class UncertaintyAttribution(Sequence[NodeAttribution]):
    """Attributions of some nodes, in the order asked for.

    Args:
        nodes: The attributions.
        reference: Per probe the mean and standard deviation over the reference nodes.
        settings: How it was made: model probed, hops, fanout, agreement of student and teacher and so on.
        num_nodes: Nodes of the graph.
        data: The graph, for :meth:`explanation`.
    """

    def __init__(
        self,
        nodes: Sequence[NodeAttribution],
        *,
        reference: Mapping[str, tuple[float, float]],
        settings: Mapping[str, Any],
        num_nodes: int,
        data: Any = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.reference = dict(reference)
        self.settings = dict(settings)
        self.num_nodes = num_nodes
        self._data = data
        self._place = {item.node: place for place, item in enumerate(self.nodes)}

    @overload
    def __getitem__(self, place: int) -> NodeAttribution: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[NodeAttribution]: ...
    def __getitem__(self, place: int | slice) -> NodeAttribution | Sequence[NodeAttribution]:
        return self.nodes[place]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeAttribution]:
        return iter(self.nodes)

    def node(self, node: int) -> NodeAttribution:
        """Return the attribution of node number ``node``.

        Raises:
            InputError: It was not asked for.
        """
        if node not in self._place:
            raise InputError(f"node {node} was not attributed; attributed are {_some(list(self._place))}")
        return self.nodes[self._place[node]]

    def summary(self, edges: int = 10) -> dict[str, Any]:
        """Return the picture over all attributed nodes.

        Returns:
            ``nodes``; ``dominant`` (share of nodes per source; ``tie`` where none leads), ``uncertainty`` (per source
            the mean total, aleatoric, epistemic and teacher's entropy of its nodes) and ``harmful_edges``: the
            ``edges`` pairs (u < v) with the largest summed fall over all nodes, with how many nodes each was found at.
        """
        groups: dict[str, list[NodeAttribution]] = {}
        for item in self.nodes:
            groups.setdefault(item.dominant_source or "tie", []).append(item)
        kinds = [name for name in (*SOURCES, "tie") if name in groups]
        return {
            "nodes": len(self),
            "dominant": {kind: len(groups[kind]) / len(self) for kind in kinds},
            "uncertainty": {kind: _means(groups[kind]) for kind in kinds},
            "harmful_edges": _harmful(self.nodes, edges),
        }

    def to_json(self) -> str:
        """Return everything as JSON: settings, reference, summary and one object per node."""
        return json.dumps(
            {
                "settings": self.settings,
                "reference": {name: {"mean": mean, "std": std} for name, (mean, std) in self.reference.items()},
                "summary": self.summary(),
                "nodes": [asdict(item) for item in self.nodes],
            }
        )

    def table(self, edges: int = 3) -> str:
        """Return one line per node as plain text: uncertainties, source, z-scores and the most harmful ``edges``."""
        head = ("node", "total", "epistemic", "teacher", "source", "z feature", "z structure", "z coverage", "edges")
        rows: list[tuple[str, ...]] = [head]
        for item in self.nodes:
            z = [f"{item.z[name]:.2f}" if name in item.z else "-" for name in SOURCES]
            worst = ", ".join(f"{u}-{v} ({score:.3f})" for u, v, score in item.top_edges(edges)) or "-"
            epistemic = "-" if item.epistemic is None else f"{item.epistemic:.3f}"
            source = (item.dominant_source or "tie") + (" (isolated)" if item.isolated else "")
            numbers = (str(item.node), f"{item.total:.3f}", epistemic, f"{item.teacher_entropy:.3f}")
            rows.append((*numbers, source, *z, worst))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def explanation(self, node: int) -> Any:
        """Return one node's attribution as a :class:`UncertaintyExplanation`, with dense masks.

        Raises:
            InputError: The node was not attributed.
            MissingExtraError: torch-geometric is not installed.
        """
        from steelyard.extras import require

        home = require("steelyard.graphs.graphuat.pyg_explanation", "graphs")
        return home.from_attribution(self.node(node), self._data)

    def __repr__(self) -> str:
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in self.summary(0)["dominant"].items())
        return f"<UncertaintyAttribution of {len(self)} nodes: {shares or 'empty'}>"


def _means(items: Sequence[NodeAttribution]) -> dict[str, float | None]:
    found: dict[str, float | None] = {"nodes": len(items)}
    for name in ("total", "aleatoric", "epistemic", "teacher_entropy"):
        values = [getattr(item, name) for item in items]
        found[name] = None if None in values else sum(values) / len(values)
    return found


def _harmful(items: Sequence[NodeAttribution], count: int) -> list[dict[str, float | int]]:
    fall: Counter[tuple[int, int]] = Counter()
    seen: Counter[tuple[int, int]] = Counter()
    for item in items:
        for u, v, score in item.edges:
            if score > 0:
                pair = (min(u, v), max(u, v))
                fall[pair] += score  # type: ignore[assignment]  # Counter adds floats as well
                seen[pair] += 1
    worst = sorted(fall, key=lambda pair: (-fall[pair], pair))[:count]
    return [{"u": u, "v": v, "fall": fall[u, v], "nodes": seen[u, v]} for u, v in worst]


def _some(values: Sequence[int], count: int = 5) -> str:
    shown = ", ".join(str(value) for value in values[:count])
    return f"{shown}, … ({len(values)} nodes)" if len(values) > count else shown or "none"
