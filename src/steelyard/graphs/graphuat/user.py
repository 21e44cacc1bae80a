"""The user's own graph: removal is judged on it, with the user's own teacher where there is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.data.cache import file_sha256
from steelyard.data.graphs import read_graph
from steelyard.errors import InputError
from steelyard.graphs.graph import Graph, check_graph, from_arrays
from steelyard.graphs.graphuat.cells import measured
from steelyard.graphs.graphuat.studies import study
from steelyard.graphs.graphuat.tasks import as_graph
from steelyard.graphs.graphuat.teachers import load_teacher

TASK = "user"
_MASKS = ("train_mask", "val_mask", "test_mask")
_PARTS = (0.6, 0.2)  # of the labelled nodes: training, validation; the rest are test nodes
_LEAST = 20


class Options(Frozen):
    """What the bench takes beside a graph of your own."""

    features: str | None = Field(default=None, description="table of node features, where data is a table of edges")
    label: str = Field(default="label", description="column of the class in that table")
    teacher: str | None = Field(default=None, description=".safetensors file of a trained GCN, GAT or GraphSAGE")
    kind: Literal["gcn", "gat", "sage"] = Field(default="gcn", description="teacher to train where none is given")
    words: bool = Field(default=False, description="divide each node's features by their sum, for counts of words")
    split: int = Field(default=0, ge=0, description="which split, where the file has several")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's graph; each of the seeds trains networks anew and judges other test nodes.

    Args:
        data: A PyG ``Data``, a :class:`steelyard.graphs.Graph`, or what :func:`steelyard.data.read_graph` reads: an
            .npz file, a table of edges, a folder.
        options: Fields of :class:`Options`.

    Raises:
        InputError: The graph or the teacher cannot be used, or too few nodes have a label.
    """
    chosen = Options(**options)
    graph, name = _read(data, chosen)
    if graph.y is None:
        raise InputError("data has no labels (y), which the student needs to know where the evidence is")
    if int((graph.y >= 0).sum()) < _LEAST:
        raise InputError(f"data has {int((graph.y >= 0).sum())} nodes with a label (y); at least {_LEAST} are needed")
    if not graph.num_edges:
        raise InputError("data has no edges, so there is none to remove")
    if len(np.unique(graph.y[graph.y >= 0].numpy())) < 2:
        raise InputError("data has labels (y) of one class only; at least two are needed")
    arrays = {key: getattr(graph, key).numpy() for key in ("x", "edge_index", "y")}
    arrays |= {mask: getattr(graph, mask).numpy() for mask in _MASKS if getattr(graph, mask) is not None}
    arrays["settings"] = np.array([chosen.kind, "words" if chosen.words else "", *_teacher(chosen, graph)])
    label = "your graph" if name is None else f"your graph {name}"
    return Task(TASK, label, lambda: arrays, "your own")


def _read(data: Any, chosen: Options) -> tuple[Graph, str | None]:
    if not isinstance(data, str | os.PathLike):
        return check_graph(data, self_loops="remove"), None
    arrays = read_graph(data, chosen.features, label=chosen.label, split=chosen.split)
    return check_graph(from_arrays(arrays), self_loops="remove"), Path(data).name


def _teacher(chosen: Options, graph: Graph) -> tuple[str, str]:
    """Return path and checksum of the user's teacher, once it is known to fit; empty where there is none."""
    if chosen.teacher is None:
        return "", ""
    load_teacher(chosen.teacher, graph)
    path = Path(chosen.teacher).expanduser().resolve()
    return str(path), file_sha256(path)


def run(cell: CellInput) -> Measured:
    """Train (or read) the teacher, distil the student and judge removal on test nodes of this seed."""
    arrays = {name: cell.data[name] for name in ("x", "edge_index", "y")}
    kind, words, path, _ = cell.data["settings"].tolist()
    graph = as_graph({**arrays, **_masks(cell)}, words=bool(words), name=TASK)
    return measured(cell, study(cell, graph, kind=kind, path=path, judged=int(cell.params["judged"])))


def _masks(cell: CellInput) -> dict[str, Any]:
    """Return the user's masks, or parts of the labelled nodes drawn for this seed where one is missing."""
    given = {name: cell.data[name] for name in _MASKS if name in cell.data}
    if len(given) == len(_MASKS):
        return given
    labelled = cell.rng("parts").permutation(np.flatnonzero(cell.data["y"] >= 0))
    cuts = np.cumsum([int(part * len(labelled)) for part in _PARTS])
    masks = {}
    for name, nodes in zip(_MASKS, np.split(labelled, cuts), strict=True):
        masks[name] = np.zeros(len(cell.data["y"]), dtype=bool)
        masks[name][nodes] = True
    return masks
