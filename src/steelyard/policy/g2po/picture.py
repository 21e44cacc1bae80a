"""The graph of a task's rollouts as a picture: states coloured by value, the steps that decide drawn thick."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from steelyard.contracts import Diagram, Edge, Node
from steelyard.policy.g2po.graph import END, TransitionGraph

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
    order = np.lexsort((np.arange(len(depth)), -graph.size))[:MOST_NODES]
    shown = {int(node) for node in order}
    rows: dict[int, int] = {}
    nodes = []
    low, high = np.quantile(graph.value, (1 / 3, 2 / 3)) if len(graph.value) else (0.0, 0.0)
    for node in sorted(shown, key=lambda node: (int(depth[node]), -float(graph.value[node]), node)):
        column = int(depth[node])
        rows[column] = rows.get(column, -1) + 1
        value = float(graph.value[node])
        kind = "good" if value > high else ("bad" if value <= low and low < high else "plain")
        nodes.append(
            Node(
                id=f"n{node}", label=f"{value:.2f}", x=column, y=rows[column], kind=kind,
                note=f"{words(graph.anchors[node])}: value {value:.3f}, {graph.size[node]} visits by "
                f"{graph.trajectories[node]} rollouts",
            )
        )  # fmt: skip
    last = max((int(depth[node]) for node in shown), default=0) + 1
    ends = {int(source) for source, target in graph.edges.tolist() if target == END and int(source) in shown}
    if ends:
        nodes.append(Node(id="end", label="end", x=last, y=0, kind="muted", note="where rollouts ended"))
    critical = set(graph.critical_edges(CRITICAL))
    among = [
        place for place, (source, target) in enumerate(graph.edges.tolist())
        if source in shown and (target in shown or target == END)
    ]  # fmt: skip
    kept = sorted(among, key=lambda place: (place not in critical, -int(graph.counts[place]), place))[:MOST_EDGES]
    edges = []
    for place in sorted(kept):
        source, target = graph.edges[place].tolist()
        credit = float(graph.credit[place])
        edges.append(
            Edge(
                source=f"n{source}", target="end" if target == END else f"n{target}",
                kind=("good" if credit > 0 else "bad") if place in critical else "dashed",
                label=f"{credit:+.1f}" if place in critical else "",
            )
        )  # fmt: skip
    left = f"{len(graph.value) - len(shown)} states and {len(graph.counts) - len(kept)} steps are not drawn."
    return Diagram(
        name=name,
        title=title,
        caption=f"{len(graph.value)} states of {len(graph.batch)} steps; columns count steps from the start. {left}",
        nodes=tuple(nodes),
        edges=tuple(edges),
        legend={
            "good": "states of the highest third of values; steps of the largest credit, upwards",
            "bad": "states of the lowest third; steps of the largest credit, downwards",
            "dashed": "other steps",
        },
    )


def words(anchor: Hashable) -> str:
    """Return an anchor in a few words."""
    text = " ".join(str(anchor[0] if isinstance(anchor, tuple) and anchor else anchor).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
