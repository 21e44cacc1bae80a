"""Pictures of sharing: groups as columns, clients coloured by the group they belong to, edges as strong as sharing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.contracts import Diagram, Edge, Node
from steelyard.fed.gadaphead.linear import Floats, Ints

_COLOURS = ("first", "second", "third", "muted")
_MOST_CLIENTS, _MOST_GROUPS = 40, 20
_LEGEND = {"solid": "takes half or more from the others", "dashed": "takes less than half"}


def sharing_diagram(
    names: Sequence[str], groups: Ints, strength: Floats, planted: Ints | None = None, name: str = "sharing"
) -> Diagram:
    """Return the picture of who shares with whom, and how strongly.

    Args:
        names: Of the clients, N of them; past forty only the first ones in order of their groups are shown.
        groups: The groups that were found, shape (N,); each is a column.
        strength: Of each client's sharing, from 0 to 1, shape (N,).
        planted: The groups that were planted, if known, shape (N,); they are the colours. Else the found ones are.
        name: Of the diagram.
    """
    found = _by_first_member(groups)
    colours = found if planted is None else _by_first_member(planted)
    order = [int(client) for client in np.argsort(found, kind="stable") if found[client] < _MOST_GROUPS]
    shown = order[:_MOST_CLIENTS]
    nodes, edges = list[Node](), list[Edge]()
    for group in sorted({int(found[client]) for client in shown}):
        members = [client for client in shown if found[client] == group]
        if len(members) > 1:
            nodes.append(
                Node(
                    id=f"mean-{group}",
                    label="mean",
                    x=group,
                    y=0,
                    note=f"of the others in group {group + 1}, for each member",
                )
            )
        for row, client in enumerate(members, 1):
            share = float(strength[client])
            nodes.append(
                Node(
                    id=f"client-{client}",
                    label=names[client],
                    x=group,
                    y=row,
                    kind=_COLOURS[int(colours[client]) % len(_COLOURS)],
                    note=f"{names[client]}: {share:.0%} of the mean of the others, {1 - share:.0%} of its own head",
                )
            )
            if len(members) > 1:
                kind = "solid" if share >= 0.5 else "dashed"
                edges.append(Edge(source=f"mean-{group}", target=f"client-{client}", kind=kind, label=f"{share:.2f}"))
    left_out = len(groups) - len(shown)
    known = "planted" if planted is not None else "found"
    return Diagram(
        name=name,
        title="Who shares with whom, and how strongly",
        caption=f"A column is a group that was found, a colour one that was {known}; a number is the strength of "
        f"sharing.{f' {left_out} further clients are not shown.' if left_out else ''}",
        nodes=tuple(nodes),
        edges=tuple(edges),
        columns=tuple(f"group {group + 1}" for group in sorted({int(found[client]) for client in shown})),
        legend=_LEGEND,
    )


def _by_first_member(groups: Ints) -> Ints:
    """Return groups numbered in the order of their first members."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse.reshape(-1)])
