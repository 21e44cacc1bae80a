"""The graph of states that a task's rollouts visited, to look at."""

from __future__ import annotations

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

END = -1
"""Where the last step of a rollout leads, whether it won or not."""


@dataclass(frozen=True)
class TransitionGraph:
    """States as nodes and steps as edges, of one task.

    Attributes:
        batch: The steps of the task.
        anchors: Anchor of each node, (K,).
        value: Value of each node, (K,).
        size: Visits of each node, (K,).
        trajectories: Different rollouts that visited each node, (K,).
        edges: Ends of each edge, (E, 2); `END` where rollouts ended.
        counts: Steps along each edge, (E,).
        credit: Mean credit A_nc + A_ec of an edge's steps, (E,).
        successes: Steps of an edge with which a rollout won, (E,).
    """

    batch: StepBatch
    anchors: tuple[Hashable, ...]
    value: Floats
    size: Ints
    trajectories: Ints
    edges: Ints
    counts: Ints
    credit: Floats
    successes: Ints

    @classmethod
    def from_batch(cls, batch: StepBatch, *, gamma: float = GAMMA, task: Hashable = None) -> TransitionGraph:
        """Return the graph of one task.

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
        info = g2po_advantage(part, gamma=gamma, return_info=True)
        count = len(info.value) + 1
        codes, total = factorise(info.node * count + info.next_node + 1)
        first = np.zeros(total, np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        visits = np.bincount(codes, minlength=total)
        won = np.zeros(len(part)) if part.success is None else part.success & (info.next_node == END)
        anchors = list(part.anchor)
        rows = {int(node): row for row, node in reversed(list(enumerate(info.node.tolist())))}
        return cls(
            part,
            tuple(anchors[rows[node]] for node in range(len(info.value))),
            info.value,
            info.size,
            info.trajectories,
            np.column_stack([info.node[first], info.next_node[first]]),
            visits,
            np.bincount(codes, info.nc + info.ec, total) / visits,
            np.bincount(codes, won, total).astype(np.int64),
        )

    def critical_edges(self, k: int = 5) -> list[int]:
        """Return the ``k`` edges with the largest credit, in either direction; ties by the edge's ends."""
        order = np.lexsort((self.edges[:, 1], self.edges[:, 0], -np.abs(self.credit)))
        return [int(edge) for edge in order[:k]]

    def depths(self) -> Ints:
        """Return the fewest steps after which a rollout was seen at each node, (K,)."""
        codes = self.batch.nodes[0][self.batch.layout.place]
        found = np.full(len(self.value), np.iinfo(np.int64).max)
        np.minimum.at(found, codes, self.batch.t - int(self.batch.t.min()))
        return found

    def alias_report(self, admissible_sets: Any = None) -> AliasReport:
        """Return how well the anchors serve as states; see :func:`steelyard.policy.alias_report`."""
        return alias_report(self.batch, admissible_sets)

    def to_networkx(self) -> Any:
        """Return a ``networkx.DiGraph`` with anchor, value and size of nodes, count and credit of edges."""
        graph = require("networkx", "policy").DiGraph()
        for node, anchor in enumerate(self.anchors):
            graph.add_node(node, anchor=anchor, value=float(self.value[node]), size=int(self.size[node]))
        for place, (source, target) in enumerate(self.edges.tolist()):
            graph.add_edge(source, target, count=int(self.counts[place]), credit=float(self.credit[place]))
        return graph

    def to_json(self) -> dict[str, Any]:
        """Return nodes and edges as plain values."""
        nodes = [
            {"anchor": str(anchor), "value": float(value), "visits": int(size), "rollouts": int(rollouts)}
            for anchor, value, size, rollouts in zip(
                self.anchors, self.value, self.size, self.trajectories, strict=True
            )
        ]
        edges = [
            {"from": source, "to": None if target == END else target, "steps": int(count), "credit": float(credit)}
            for (source, target), count, credit in zip(self.edges.tolist(), self.counts, self.credit, strict=True)
        ]
        return {"nodes": nodes, "edges": edges}
