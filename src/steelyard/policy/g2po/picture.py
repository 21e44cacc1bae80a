"""The graph of a task's rollouts as a picture: states coloured by value, the steps that decide drawn thick."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from steelyard.contracts import Diagram, Edge, Node
from steelyard.policy.g2po.graph import END, TransitionGraph
from steelyard.policy.groups import Ints

MOST_NODES, MOST_EDGES, CRITICAL = 40, 90, 8
_LONGEST = 60


def graph_picture(graph: TransitionGraph, name: str = "graph", title: str = "States and steps of one task") -> Diagram:
    """Return the picture; columns are steps from the start, and the most visited states come first.

    Args:
        graph: Of one task.
        name: Of the diagram.
        title: Its heading.
    """
    depth = graph.depths()
    shown = {int(node) for node in np.lexsort((np.arange(len(depth)), -graph.size))[:MOST_NODES]}
    edges, left = _edges(graph, shown)
    return Diagram(
        name=name,
        title=title,
        caption=f"{len(graph.value)} states of {len(graph.batch)} steps; columns count steps from the start. "
        f"{len(graph.value) - len(shown)} states and {left} steps are not drawn.",
        nodes=_nodes(graph, shown, depth),
        edges=edges,
        legend={
            "good": "states of the highest third of values; thick: steps of the largest credit, upwards",
            "bad": "states of the lowest third; thick: downwards",
            "dashed": "other steps",
        },
    )


def _nodes(graph: TransitionGraph, shown: set[int], depth: Ints) -> tuple[Node, ...]:
    """Return the states, coloured by value, those of a column with the highest value first."""
    low, high = np.quantile(graph.value, (1 / 3, 2 / 3))
    rows: dict[int, int] = {}
    nodes = []
    for node in sorted(shown, key=lambda node: (int(depth[node]), -float(graph.value[node]), node)):
        column, value = int(depth[node]), float(graph.value[node])
        rows[column] = rows.get(column, -1) + 1
        told = f"value {value:.3f}, {graph.size[node]} visits by {graph.trajectories[node]} rollouts"
        nodes.append(
            Node(
                id=f"n{node}", label=f"{value:.2f}", x=column, y=rows[column],
                kind="good" if value > high else ("bad" if value <= low < high else "plain"),
                note=f"{words(graph.anchors[node])}: {told}",
            )
        )  # fmt: skip
    if any(int(source) in shown for source, target in graph.edges.tolist() if target == END):
        last = max(int(depth[node]) for node in shown) + 1
        nodes.append(Node(id="end", label="end", x=last, y=0, kind="muted", note="where rollouts ended"))
    return tuple(nodes)


def _edges(graph: TransitionGraph, shown: set[int]) -> tuple[tuple[Edge, ...], int]:
    """Return the steps among the states that are shown, the decisive ones marked, and how many are left out."""
    critical = set(graph.critical_edges(CRITICAL))
    among = [
        place
        for place, (source, target) in enumerate(graph.edges.tolist())
        if source in shown and (target in shown or target == END)
    ]
    kept = sorted(among, key=lambda place: (place not in critical, -int(graph.counts[place]), place))[:MOST_EDGES]
    edges = []
    for place in sorted(kept):
        (source, target), credit = graph.edges[place].tolist(), float(graph.credit[place])
        decisive = place in critical
        edges.append(
            Edge(
                source=f"n{source}", target="end" if target == END else f"n{target}",
                kind=("good" if credit > 0 else "bad") if decisive else "dashed",
                label=f"{credit:+.1f}" if decisive else "", strong=decisive,
            )
        )  # fmt: skip
    return tuple(edges), len(graph.counts) - len(kept)


def words(anchor: Hashable) -> str:
    """Return an anchor in a few words."""
    text = " ".join(str(anchor[0] if isinstance(anchor, tuple) and anchor else anchor).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
