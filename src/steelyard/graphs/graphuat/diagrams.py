"""A picture of one node: its edges, what removing each does to its uncertainty, and which of them were planted."""

from __future__ import annotations

from steelyard.contracts import Diagram, Edge, Node
from steelyard.graphs.graphuat.explanation import NodeAttribution, UncertaintyAttribution
from steelyard.graphs.graphuat.planting import Planted

_LEGEND = {
    "main": "the explained node",
    "bad": "planted neighbour (another class); edge that raises the uncertainty",
    "good": "edge that lowers the uncertainty",
    "plain": "neighbour of the graph",
}
_MOST, _VISIBLE = 12, 1e-3


def node_diagram(made: Planted, inside: UncertaintyAttribution) -> tuple[Diagram, ...]:
    """Return the picture of the node with planted edges whose structure score is the largest."""
    items = [inside.node(int(node)) for node in made.groups["structure"]]
    best = max(items, key=lambda item: (item.scores["structure"], -item.node))
    return (picture(best, set(made.ends[best.node].tolist())),)


def picture(item: NodeAttribution, planted: set[int]) -> Diagram:
    """Return one node with up to twelve tested edges, the most harmful first."""
    edges = item.neighbours()[:_MOST]
    middle = (len(edges) - 1) / 2
    nodes = [Node(id="v", label=str(item.node), x=0, y=max(middle, 0), kind="main",
                  note=f"total {item.total:.2f}, teacher's entropy {item.teacher_entropy:.2f} nats")]  # fmt: skip
    lines = []
    for row, (other, fall) in enumerate(edges):
        kind = "bad" if other in planted else "plain"
        nodes.append(Node(id=f"n{row}", label=str(other), x=1, y=row, kind=kind, note=f"{fall:+.3f} nats"))
        lines.append(
            Edge(
                source="v", target=f"n{row}", label=f"{fall:+.2f}",
                kind="bad" if fall > _VISIBLE else "good" if fall < -_VISIBLE else "solid",
            )
        )  # fmt: skip
    source = item.dominant_source or "no single source"
    return Diagram(
        name="structure", title="A node with planted edges: fall of its uncertainty when an edge is removed",
        caption=f"Named source: {source}. {len(planted)} of its edges were planted; labels are nats.",
        nodes=tuple(nodes), edges=tuple(lines), columns=("node", "neighbours"), legend=_LEGEND,
    )  # fmt: skip
