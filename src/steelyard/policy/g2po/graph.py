"""The graph of states that a task's rollouts visited, to look at."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.policy.advantages import GAMMA
from steelyard.policy.anchors import AliasReport, alias_report
from steelyard.policy.g2po.core import g2po_advantage
from steelyard.policy.groups import Floats, Ints, factorise
from steelyard.policy.steps import StepBatch

END, WON = -1, -2
"""Where the last step of a rollout leads: `WON` where the steps say that it succeeded, else `END`."""
_NAMES = {END: "end", WON: "won"}


@dataclass(frozen=True)
class TransitionGraph:
    """States as nodes and steps as edges, of one task.

    Attributes:
        batch: The steps of the task.
        anchors: Anchor of each node, (K,).
        value: Value of each node, (K,).
        size: Visits of each node, (K,).
        trajectories: Different rollouts that visited each node, (K,).
        edges: Ends of each edge, (E, 2); `WON` or `END` where rollouts ended.
        counts: Steps along each edge, (E,).
        credit: Mean credit A_nc + A_ec of an edge's steps, (E,).
    """

    batch: StepBatch
    anchors: tuple[Hashable, ...]
    value: Floats
    size: Ints
    trajectories: Ints
    edges: Ints
    counts: Ints
    credit: Floats

    @classmethod
    def from_batch(cls, batch: StepBatch, *, gamma: float = GAMMA, task: Hashable = None) -> TransitionGraph:
        """Return the graph of one task, without the warnings that :meth:`alias_report` gives.

        Args:
            batch: The steps.
            gamma: Discount a step.
            task: Which task; may be left out where there is one.

        Raises:
            InputError: No such task, or several and none named.
        """
        tasks = batch.task.tolist() if isinstance(batch.task, np.ndarray) else list(batch.task)
        known = dict.fromkeys(tasks)
        if task is None and len(known) == 1:
            task = next(iter(known))
        if task not in known:
            raise InputError(
                f"task: name one of the {len(known)} tasks, such as {next(iter(known), None)!r}; got {task!r}"
            )
        part = batch.select(np.array([name == task for name in tasks]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            info = g2po_advantage(part, gamma=gamma, return_info=True)
        won = False if part.success is None else part.success
        target = np.where((info.next_node == END) & won, WON, info.next_node)
        codes, total = factorise(info.node * (len(info.value) + 2) + target + 2)
        first = np.zeros(total, np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        visits = np.bincount(codes, minlength=total)
        anchors = list(part.anchor)
        rows = {int(node): row for row, node in reversed(list(enumerate(info.node.tolist())))}
        return cls(
            part,
            tuple(anchors[rows[node]] for node in range(len(info.value))),
            info.value,
            info.size,
            info.trajectories,
            np.column_stack([info.node[first], target[first]]),
            visits,
            np.bincount(codes, info.nc + info.ec, total) / visits,
        )

    def critical_edges(self, k: int = 5) -> list[int]:
        """Return the ``k`` edges with the largest credit, in either direction; ties by the edge's ends."""
        order = np.lexsort((self.edges[:, 1], self.edges[:, 0], -np.abs(self.credit)))
        return [int(edge) for edge in order[:k]]

    def depths(self) -> Ints:
        """Return the fewest edges that lead to each node from where rollouts began, (K,)."""
        nodes = self.batch.nodes[0]
        found = np.full(len(self.value), -1)
        found[nodes[self.batch.layout.starts]] = 0
        source, target = self.edges[self.edges[:, 1] >= 0].T
        for depth in range(1, len(found)):
            reached = target[(found[source] == depth - 1) & (found[target] < 0)]
            if not len(reached):
                break
            found[reached] = depth
        return found

    def alias_report(self, admissible_sets: Any = None) -> AliasReport:
        """Return how well the anchors serve as states; see :func:`steelyard.policy.alias_report`."""
        return alias_report(self.batch, admissible_sets)

    def to_networkx(self) -> Any:
        """Return a ``networkx.DiGraph`` with anchor, value and size of nodes, count and credit of edges.

        The nodes `END` and `WON`, where rollouts ended, have no value.
        """
        graph = require("networkx", "policy").DiGraph()
        for node, anchor in enumerate(self.anchors):
            graph.add_node(node, anchor=anchor, value=float(self.value[node]), size=int(self.size[node]))
        for place, (source, target) in enumerate(self.edges.tolist()):
            if target < 0:
                graph.add_node(target, anchor=_NAMES[target])
            graph.add_edge(source, target, count=int(self.counts[place]), credit=float(self.credit[place]))
        return graph

    def to_json(self) -> dict[str, Any]:
        """Return nodes and edges as plain values; ``to`` is the number of a node, "end" or "won"."""
        nodes = [
            {"anchor": str(anchor), "value": float(value), "visits": int(size), "rollouts": int(rollouts)}
            for anchor, value, size, rollouts in zip(
                self.anchors, self.value, self.size, self.trajectories, strict=True
            )
        ]
        edges = [
            {"from": source, "to": _NAMES.get(target, target), "steps": int(count), "credit": float(credit)}
            for (source, target), count, credit in zip(self.edges.tolist(), self.counts, self.credit, strict=True)
        ]
        return {"nodes": nodes, "edges": edges}
