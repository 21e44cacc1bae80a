"""What stands behind a coverage score: which labelled node is nearest, and how much of the labels reaches a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.student import GraphUATStudent

RESTART, STEPS = 0.1, 10
"""Restart probability and steps of the random walk, as in APPNP (Gasteiger et al. 2019)."""


class CoverageEvidence:
    """Evidence for nodes of one graph; the walk and the representations are computed once, in O(E).

    Args:
        student: A fitted student.
        graph: The graph, whose ``train_mask`` names the labelled nodes.
    """

    def __init__(self, student: GraphUATStudent, graph: Graph) -> None:
        self.labelled = np.zeros(0, dtype=np.int64)
        if graph.train_mask is None or not bool(graph.train_mask.any()):
            return
        self.labelled = np.flatnonzero(graph.train_mask.cpu().numpy())
        self.walk = label_mass(graph)
        self._white = student.whitened(graph)

    def of(self, node: int) -> dict[str, float | int | None]:
        """Return the evidence of one node.

        Returns:
            ``nearest_labelled``: the other labelled node with the smallest Mahalanobis distance in the student's
            representation (the smallest number of those that tie), ``distance``: that distance, and ``label_mass``:
            the probability that a random walk from the node, which stops with probability .1 a step, is at a labelled
            node when it stops or after 10 steps. Empty without labelled nodes.
        """
        others = self.labelled[self.labelled != node]
        if not len(others):
            return {}
        distance = torch.linalg.vector_norm(self._white[torch.from_numpy(others)] - self._white[node], dim=1)
        place = int(distance.argmin())
        return {
            "nearest_labelled": int(others[place]),
            "distance": float(distance[place]),
            "label_mass": float(self.walk[node]),
        }


def label_mass(graph: Graph) -> NDArray[Any]:
    """Return for every node the probability that a walk against the edges, with restart, ends at a labelled node (N,).

    ``z <- (1 - RESTART) D^-1 A z + RESTART * labelled`` from ``z = labelled``; a node without edges stays where it is.
    """
    assert graph.train_mask is not None
    source, target = graph.edge_index.cpu().numpy()
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight.double().cpu().numpy()
    size = graph.num_nodes
    into = np.bincount(target, weight, minlength=size)
    alone = np.flatnonzero(into == 0)
    rows, columns = np.append(target, alone), np.append(source, alone)
    share = np.append(weight / np.where(into > 0, into, 1.0)[target], np.ones(len(alone)))
    step = sparse.csr_array((share, (rows, columns)), shape=(size, size))
    labelled = graph.train_mask.cpu().numpy().astype(np.float64)
    mass = labelled
    for _ in range(STEPS):
        mass = (1 - RESTART) * (step @ mass) + RESTART * labelled
    return np.asarray(mass)
