"""What one cell trains and attributes: a teacher, its student, and the nodes that all explainers work on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.attribution import reference_nodes
from steelyard.graphs.graphuat.planting import Planted
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher, load_teacher, train_teacher
from steelyard.rng import derive_seed

Nodes = NDArray[np.int64]


@dataclass(frozen=True)
class Study:
    """A trained pair on one graph.

    Attributes:
        graph: The graph, planted where ``planted`` is given.
        teacher: In eval mode.
        student: Fitted.
        planted: What was planted, or None.
        judged: Nodes that removal is judged on, (n,).
        reference: Validation nodes that scores are compared with.
        seed: Of every draw.
        teacher_cpu: Processor time of the teacher's training in seconds, 0 where it was given.
        student_cpu: The same of the student.
    """

    graph: Graph
    teacher: nn.Module
    student: GraphUATStudent
    planted: Planted | None
    judged: Nodes
    reference: Nodes
    seed: int
    teacher_cpu: float
    student_cpu: float


def trained_teacher(
    graph: Graph, kind: str, seed: int, *, epochs: int = 200, classes: int | None = None
) -> tuple[nn.Module, float]:
    """Return a teacher trained on a graph, and the processor time of its training in seconds."""
    teacher = build_teacher(kind, graph.x.shape[1], classes or graph.num_classes, seed=seed)
    start = time.process_time()
    train_teacher(teacher, graph, epochs=epochs, seed=seed)
    return teacher, time.process_time() - start


def study(
    cell: CellInput, graph: Graph, *, kind: str, planted: Planted | None = None, path: str = "", judged: int = 60
) -> Study:
    """Train (or read, where ``path`` names a file) the teacher of a cell, distil its student and draw its nodes."""
    seed = derive_seed(cell.root, f"{cell.task}/networks", cell.seed)
    if path:
        teacher, teacher_cpu = load_teacher(path, graph), 0.0
    else:
        teacher, teacher_cpu = trained_teacher(graph, kind, seed, epochs=int(cell.params["teacher_epochs"]))
    start = time.process_time()
    student = GraphUATStudent(teacher, epochs=int(cell.params["epochs"]), seed=seed).fit(graph)
    student_cpu = time.process_time() - start
    taken = np.zeros(0, dtype=np.int64) if planted is None else planted.nodes
    nodes = drawn_nodes(graph, cell.rng("judged nodes"), judged, taken)
    return Study(
        graph, teacher, student, planted, nodes, reference_nodes(graph, seed), seed, teacher_cpu, student_cpu
    )  # fmt: skip


def drawn_nodes(graph: Graph, rng: np.random.Generator, count: int, taken: Nodes) -> Nodes:
    """Return up to ``count`` test nodes with an edge, none of them ``taken``, ascending.

    Raises:
        InputError: There is none.
    """
    assert graph.test_mask is not None
    degree = np.bincount(graph.edge_index[1].numpy(), minlength=graph.num_nodes)
    free = np.setdiff1d(np.flatnonzero(graph.test_mask.numpy() & (degree > 0)), taken)
    if not len(free):
        raise InputError("graph has no test node with an edge, so there is nothing to remove; mark test nodes")
    return np.sort(rng.permutation(free)[:count])


def mean_of(values: Any) -> float | None:
    """Return the mean of what is not NaN, or None if nothing is left."""
    kept = np.asarray(values, dtype=np.float64)
    kept = kept[~np.isnan(kept)]
    return float(kept.mean()) if len(kept) else None
