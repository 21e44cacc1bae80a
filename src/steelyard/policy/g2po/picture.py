"""The graph of a task's rollouts as a picture: states coloured by value, the steps that decide drawn thick."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import numpy as np

from steelyard.contracts import Diagram, Edge, Node
from steelyard.policy.g2po.graph import END, WON, TransitionGraph
from steelyard.policy.groups import Ints

MOST_NODES, MOST_EDGES, CRITICAL = 40, 90, 8
_LONGEST = 60
_APART = 0.6  # labels are short: columns of the report are wider than they need
_Kind = Literal["plain", "main", "good", "bad", "muted"]
_ENDS: dict[int, tuple[_Kind, str, str]] = {
    WON: ("main", "won", "where rollouts succeeded"),
    END: ("muted", "end", "where other rollouts ended"),
}


def graph_picture(graph: TransitionGraph, name: str = "graph", title: str = "States and steps of one task") -> Diagram:
    """Return the picture; columns are steps from the start.

    The states that the edges of the largest credit join are drawn first, then the most visited.

    Args:
        graph: Of one task.
        name: Of the diagram.
        title: Its heading.
    """
    depth = graph.depths()
    apart = [place for place in graph.critical_edges(len(graph.edges)) if not _stays(graph, place)]
    critical = set(apart[:CRITICAL])
    shown = _shown(graph, critical)
    drawn = _drawn(graph, apart, shown, critical)
    staying = len(graph.edges) - len(apart)
    return Diagram(
        name=name,
        title=title,
        caption=f"{len(graph.value)} states and {len(graph.edges)} different transitions in {len(graph.batch)} steps; "
        "columns count the fewest steps from the start, numbers are values. "
        f"Not drawn: {len(graph.value) - len(shown)} states, {len(apart) - len(drawn)} transitions between states, "
        f"{staying} from a state to itself.",
        nodes=_nodes(graph, shown, drawn, depth),
        edges=tuple(_edge(graph, place, place in critical) for place in drawn),
        legend={
            "good": "states of the highest third of values; thick: steps of the largest credit, upwards",
            "bad": "states of the lowest third; thick: downwards",
            "dashed": "other steps",
        },
    )


def _stays(graph: TransitionGraph, place: int) -> bool:
    source, target = graph.edges[place]
    return bool(source == target)


def _shown(graph: TransitionGraph, critical: set[int]) -> set[int]:
    """Return the states to draw: those that critical edges join, then the most visited; ties by number."""
    joined = {int(node) for place in critical for node in graph.edges[place] if node >= 0}
    order = sorted(range(len(graph.value)), key=lambda node: (node not in joined, -int(graph.size[node]), node))
    return set(order[:MOST_NODES])


def _drawn(graph: TransitionGraph, apart: list[int], shown: set[int], critical: set[int]) -> list[int]:
    """Return the edges among the states that are shown: the critical, then the most walked; ties by number."""
    among = [place for place in apart if all(int(node) in shown for node in graph.edges[place] if node >= 0)]
    kept = sorted(among, key=lambda place: (place not in critical, -int(graph.counts[place]), place))
    return sorted(kept[:MOST_EDGES])


def _nodes(graph: TransitionGraph, shown: set[int], drawn: list[int], depth: Ints) -> tuple[Node, ...]:
    """Return the states, coloured by value, those of a column with the highest value first; ends by their nearest."""
    low, high = np.quantile(graph.value, (1 / 3, 2 / 3))
    places = [(int(depth[node]), -float(graph.value[node]), node) for node in shown]
    for end, rank in ((WON, -np.inf), (END, np.inf)):
        sources = [int(depth[graph.edges[place, 0]]) for place in drawn if graph.edges[place, 1] == end]
        places += [(min(sources) + 1, rank, end)] if sources else []
    rows: dict[int, int] = {}
    nodes = []
    for column, _, node in sorted(places):
        rows[column] = rows.get(column, -1) + 1
        if node < 0:
            kind, label, note = _ENDS[node]
        else:
            value = float(graph.value[node])
            kind = "good" if value > high else ("bad" if value <= low < high else "plain")
            label = f"{value:.2f}"
            visits = f"{graph.size[node]} visits by {graph.trajectories[node]} rollouts"
            note = f"{words(graph.anchors[node])}: value {value:.3f}, {visits}"
        nodes.append(Node(id=_name(node), label=label, x=column * _APART, y=rows[column], kind=kind, note=note))
    return tuple(nodes)


def _edge(graph: TransitionGraph, place: int, decisive: bool) -> Edge:
    (source, target), credit = graph.edges[place].tolist(), float(graph.credit[place])
    return Edge(
        source=_name(source), target=_name(target), strong=decisive,
        kind=("good" if credit > 0 else "bad") if decisive else "dashed",
        label=f"{credit:+.1f}" if decisive else "",
    )  # fmt: skip


def _name(node: int) -> str:
    return f"n{node}" if node >= 0 else _ENDS[node][1]


def ends(graph: TransitionGraph, place: int) -> tuple[str, str]:
    """Return both ends of an edge in a few words."""
    source, target = graph.edges[place].tolist()
    return words(graph.anchors[source]), words(graph.anchors[target]) if target >= 0 else _ENDS[target][1]


def words(anchor: Hashable) -> str:
    """Return an anchor in a few words."""
    text = " ".join(str(anchor[0] if isinstance(anchor, tuple) and anchor else anchor).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
