"""What GraphUAT is weighed on: graphs with planted sources, and graphs where removal alone is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard.contracts import Arrays, CellInput
from steelyard.data.graphs import graph_arrays
from steelyard.graphs.graph import Graph, from_arrays
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.planting import Planted, plant

PLANTED = ("csbm", "cora", "citeseer", "cora_gat", "cora_sage", "citeseer_gat", "citeseer_sage")
"""Tasks with planted sources."""

REMOVAL = ("texas", "cornell", "wisconsin", "actor", "minesweeper")
"""Tasks where nothing can be planted, or nothing alike."""

NO_WORDS = ("minesweeper", "tolokers")
"""Graphs whose features are no words."""

SPLITS = 10


def teacher_of(task: str) -> str:
    """Return the kind of teacher that a task trains."""
    kind = task.rpartition("_")[2]
    return kind if kind in ("gat", "sage") else "gcn"


def generated() -> Arrays:
    """Return nothing to speak of: every seed generates a graph of its own."""
    return {"generated": np.array(["contextual block model"])}


def public(name: str) -> Callable[[], Arrays]:
    """Return the loader of a public graph; of ten splits all masks are kept, and a seed takes its own."""

    def load() -> Arrays:
        first = graph_arrays(name)
        if name in ("cora", "citeseer"):
            return first
        masks = ("train_mask", "val_mask", "test_mask")
        splits = [graph_arrays(name, split) for split in range(SPLITS)]
        return {**first, **{mask: np.stack([arrays[mask] for arrays in splits]) for mask in masks}}

    return load


def arrays_of(cell: CellInput) -> dict[str, Any]:
    """Return the graph of a cell as arrays: generated for its seed, or the public one in its split."""
    if "generated" in cell.data:
        return generate_csbm(cell.rng("graph"))
    arrays = {name: cell.data[name] for name in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")}
    for name in ("train_mask", "val_mask", "test_mask"):
        if arrays[name].ndim == 2:
            arrays[name] = arrays[name][cell.seed % len(arrays[name])]
    return arrays


def planted_of(cell: CellInput) -> Planted | None:
    """Return the cell's graph with planted sources, or None where the task plants nothing."""
    return plant(arrays_of(cell), cell.rng("planting")) if cell.task in PLANTED else None


def as_graph(arrays: dict[str, Any], *, words: bool, name: str = "") -> Graph:
    """Return arrays as a graph.

    Args:
        arrays: ``x``, ``edge_index``, ``y`` and masks.
        words: Whether each node's features are divided by their sum, which keeps what is 0 at 0.
        name: Of the graph.
    """
    x = np.asarray(arrays["x"], dtype=np.float32)
    if words:
        x = x / np.maximum(np.abs(x).sum(axis=1, keepdims=True), 1e-12)
    rest = {key: arrays[key] for key in ("edge_index", "y", "train_mask", "val_mask", "test_mask")}
    return from_arrays({key: np.array(value) for key, value in {"x": x, **rest}.items()}, name)
