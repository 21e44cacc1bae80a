"""A node's neighbourhood as a picture: every node in the class of what makes it uncertain, harmful edges apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from steelyard.contracts import Diagram, Edge, Node
from steelyard.graphs.graphuat.core import SOURCES
from steelyard.graphs.graphuat.explanation import NodeAttribution

MOST = 12
"""Neighbours that a picture shows: those of the most harmful edges first."""
KINDS = dict(zip(SOURCES, ("first", "second", "third"), strict=True))
WORDS = {"feature": "its own features", "structure": "its neighbours", "coverage": "thin labels around it"}
"""Source -> what makes the node uncertain, in words."""
CALM = "nothing stands out"
"""Said of a node none of whose scores is above that of the reference nodes."""
_RADIUS = (2.0, 4.0)  # columns and rows


def neighbourhood(
    item: NodeAttribution,
    around: Mapping[int, NodeAttribution],
    name: Callable[[int], str] = str,
) -> Diagram:
    """Return the picture of one attributed node and the neighbours whose edges were tested.

    Args:
        item: The node's attribution.
        around: Attributions of neighbours; one that is not there is drawn without a source.
        name: What to call a node, from its number.
    """
    edges = item.neighbours()[:MOST]
    nodes = [_node(item, 0.0, 0.0, name(item.node) + " (asked)")]
    for place, (other, _) in enumerate(edges):
        angle = 2 * math.pi * place / len(edges) - math.pi / 2
        x, y = _RADIUS[0] * math.cos(angle), _RADIUS[1] * math.sin(angle)
        found = around.get(other)
        if found is None:
            nodes.append(Node(id=str(other), label=name(other)[:80], x=x, y=y, kind="muted"))
        else:
            nodes.append(_node(found, x, y, name(other)))
    arrows = [
        Edge(
            source=str(other),
            target=str(item.node),
            kind="bad" if score > 0 else "solid",
            label=f"without it the uncertainty falls by {score:.3f} nats",
        )
        for other, score in edges
    ]
    legend = {**{kind: WORDS[name] for name, kind in KINDS.items()}, "plain": CALM}
    return Diagram(
        name=f"node-{item.node}",
        title=f"Around node {name(item.node)[:80]}",
        caption=_caption(item, len(edges)),
        nodes=tuple(nodes),
        edges=tuple(arrows),
        legend={**legend, "muted": "not attributed", "bad": "raises the uncertainty", "solid": "does not"},
    )


def source(item: NodeAttribution) -> str | None:
    """Return what makes a node more uncertain than the reference nodes are; None where nothing does."""
    return item.dominant_source if any(value > 0 for value in item.z.values()) else None


def _node(item: NodeAttribution, x: float, y: float, label: str) -> Node:
    found = source(item)
    z = ", ".join(f"{name} {value:+.1f}" for name, value in item.z.items())
    note = f"{_words(found)}; total {item.total:.2f}, the model's entropy {item.teacher_entropy:.2f} nats; z: {z}"
    return Node(id=str(item.node), label=label[:80], x=x, y=y, kind=KINDS.get(found or "", "plain"), note=note)


def _words(found: str | None) -> str:
    return CALM if found is None else f"unsure by {WORDS[found]}"


def _caption(item: NodeAttribution, shown: int) -> str:
    tested = len(item.edges)
    more = f"; {tested - shown} more were tested" if tested > shown else ""
    left = f"; {item.edges_left_out} were not" if item.edges_left_out else ""
    alone = "It has no edges. " if item.isolated else ""
    return f"{alone}{_words(source(item)).capitalize()}. Edges shown: {shown}{more}{left}."
