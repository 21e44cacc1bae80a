"""Graphs for node classification: the pinned sets, and npz or CSV files that users bring."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.data.binary import read_arrays
from steelyard.data.cache import locate
from steelyard.data.columns import MAX_TABLE_BYTES
from steelyard.data.graph_pins import GRAPH_SETS
from steelyard.data.registry import Progress
from steelyard.data.table import Table
from steelyard.data.tables import read_table
from steelyard.errors import InputError, did_you_mean

Arrays = dict[str, npt.NDArray[Any]]

GRAPHS: tuple[str, ...] = tuple(dataset.name for dataset in GRAPH_SETS)
"""Names of the sets that :func:`graph_arrays` knows."""

_PARTS = ("train", "val", "test")
_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
_EXACT = 2.0**53


def graph_arrays(name: str, split: int = 0, progress: Progress | None = None) -> Arrays:
    """Return a pinned graph as arrays.

    Args:
        name: One of :data:`GRAPHS`.
        split: 0 to 9; of cora and citeseer only 0.
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Returns:
        ``x`` float32 (N, F), ``edge_index`` int64 (2, E) with both directions of every edge, sorted, ``y`` int64 (N,),
        and ``train_mask``, ``val_mask``, ``test_mask`` bool (N,). Nodes without a label (15 in citeseer) have class 0
        in ``y`` and are in no mask.

    Raises:
        InputError: Another name or split.
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    if name not in GRAPHS:
        raise InputError(f"unknown graph '{name}'; known are {', '.join(GRAPHS)}.{did_you_mean(name, GRAPHS)}")
    (path,) = locate(name, progress).paths
    return read_graph(path, split=split)


def read_graph(
    source: str | os.PathLike[str],
    features: str | os.PathLike[str] | None = None,
    *,
    split: int = 0,
    label: str = "label",
    part: str = "split",
    directed: bool = False,
    max_bytes: int = MAX_TABLE_BYTES,
) -> Arrays:
    """Read a user's graph.

    Three kinds of ``.npz``: ``x`` with ``edge_index`` (2, E) and optionally ``y`` and ``train_mask``, ``val_mask``,
    ``test_mask`` or ``train_index``, …; ``x_data``, ``x_indices``, ``x_indptr``, ``x_shape`` (CSR) in the place of
    ``x``; or ``node_features``, ``node_labels``, ``edges`` (E, 2) and ``train_masks``, … (splits, N). Or a table of
    edges, of which the first two columns are the ends, with a table of features, of which the first column is the
    node, ``label`` the class, ``part`` one of train, val, test or nothing, and every other column a number; both may
    lie as ``edges.csv`` and ``features.csv`` in a folder.

    Args:
        source: A .npz file, a table of edges, or a folder that holds ``graph.npz`` or both tables.
        features: The table of features where ``source`` is a table of edges.
        split: Row of the masks where a file has several splits.
        label: Column of the class in the table of features; classes are numbered in sorted order.
        part: Column that says to which part a node belongs.
        directed: Keep the edges of tables, ``edges`` and ``edge_index`` as they are instead of adding the reverse.
        max_bytes: Most bytes that a file once unpacked, and the dense features, may take.

    Returns:
        As :func:`graph_arrays`; without what the source does not say. A node without a label has class -1. Of tables
        also ``ids`` (N,), the names of the nodes as text, and ``feature_names`` (F,) and ``classes`` (C,).

    Raises:
        InputError: Anything that is wrong with the source, with file and place.
    """
    path = Path(source)
    if path.is_dir():
        path, features = _in_folder(path, features)
    if path.suffix.lower() == ".npz":
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        return _from_npz(read_arrays(path, max_bytes), str(path), split, directed, max_bytes)
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}")
    if features is None:
        raise InputError(f"{path} is read as a table of edges; name the table of features of its nodes as well")
    return _from_tables(
        read_table(path, max_bytes=max_bytes), read_table(features, max_bytes=max_bytes), label, part, directed
    )


def _in_folder(folder: Path, features: str | os.PathLike[str] | None) -> tuple[Path, str | os.PathLike[str] | None]:
    if (folder / "graph.npz").is_file():
        return folder / "graph.npz", None
    if not (folder / "edges.csv").is_file():
        raise InputError(f"{folder} holds neither graph.npz nor edges.csv with features.csv; name a file")
    return folder / "edges.csv", folder / "features.csv" if features is None else features


def _from_npz(arrays: Arrays, where: str, split: int, directed: bool, max_bytes: int) -> Arrays:
    if "node_features" in arrays:
        _require(arrays, ("edges",), where)
        x, edges = arrays["node_features"], arrays["edges"]
        labels = arrays.get("node_labels")
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise InputError(f"{where}, array 'edges': its shape is {edges.shape}, where (edges, 2) is meant")
        ends = edges.T
    else:
        sparse = "x_data" in arrays
        _require(arrays, (*(_CSR if sparse else ("x",)), "edge_index"), where)
        x = _dense(arrays, where, max_bytes) if sparse else arrays["x"]
        ends, labels = arrays["edge_index"], arrays.get("y")
        if ends.ndim != 2 or ends.shape[0] != 2:
            raise InputError(f"{where}, array 'edge_index': its shape is {ends.shape}, where (2, edges) is meant")
    if x.ndim != 2 or x.dtype.kind not in "biuf" or not x.shape[0]:
        raise InputError(f"{where}: features of shape {x.shape} and type {x.dtype} are no numbers (nodes, features)")
    nodes = x.shape[0]
    graph: Arrays = {"x": x.astype(np.float32), "edge_index": _edge_index(ends, nodes, where, directed)}
    if labels is not None:
        graph["y"] = _labels(labels, nodes, where)
    return graph | _masks(arrays, nodes, where, split)


def _require(arrays: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in arrays:
            raise InputError(f"{where} has no array '{name}'; it holds {', '.join(sorted(arrays))}")


def _dense(arrays: Arrays, where: str, max_bytes: int) -> npt.NDArray[np.float32]:
    """Unpack CSR features, whose index arrays may be anything in a file that somebody brought."""
    values, columns, starts, shape = (arrays[name] for name in _CSR)
    sound = shape.shape == (2,) and all(part.ndim == 1 and part.dtype.kind in "iu" for part in (columns, starts, shape))
    if not sound or values.ndim != 1 or values.dtype.kind not in "biuf":
        raise InputError(f"{where}: {', '.join(_CSR)} are not the parts of a sparse matrix of numbers")
    rows, width = (int(n) for n in shape)
    if rows < 1 or width < 1 or 4 * rows * width > max_bytes:
        raise InputError(f"{where}, array 'x_shape': {rows} x {width} features take no or more than {max_bytes} bytes")
    lengths = starts[1:].astype(np.int64) - starts[:-1].astype(np.int64)
    fits = len(starts) == rows + 1 and starts[0] == 0 and starts[-1] == len(values) == len(columns)
    if not fits or (lengths < 0).any() or (len(columns) and not 0 <= columns.min() <= columns.max() < width):
        raise InputError(
            f"{where}: x_indptr and x_indices do not fit {len(values)} values in {rows} x {width} features"
        )
    dense = np.zeros((rows, width), dtype=np.float32)
    np.add.at(dense, (np.repeat(np.arange(rows), lengths), columns), values)
    return dense


def _edge_index(ends: npt.NDArray[Any], nodes: int, where: str, directed: bool) -> npt.NDArray[np.int64]:
    if ends.dtype.kind not in "iu":
        raise InputError(f"{where}: the ends of edges are {ends.dtype}, where whole numbers are needed")
    outside = np.argwhere((ends < 0) | (ends >= nodes))
    if outside.size:
        side, edge = (int(i) for i in outside[0])
        raise InputError(
            f"{where}, edge {edge}: node {ends[side, edge]} is none of the {nodes} nodes (0 to {nodes - 1})"
        )
    source, target = ends.astype(np.int64)
    if not directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    keys = np.unique(source * nodes + target)  # sorted, and every edge once
    return np.stack([keys // nodes, keys % nodes])


def _labels(labels: npt.NDArray[Any], nodes: int, where: str) -> npt.NDArray[np.int64]:
    if labels.shape != (nodes,) or labels.dtype.kind not in "biu":
        raise InputError(
            f"{where}: labels of shape {labels.shape} and type {labels.dtype} are not {nodes} whole numbers, one a node"
        )
    if labels.dtype.kind != "b" and labels.min() < -1:
        raise InputError(f"{where}: label {labels.min()} is below -1, which stands for a node without a label")
    return labels.astype(np.int64)


def _masks(arrays: Arrays, nodes: int, where: str, split: int) -> Arrays:
    masks: Arrays = {}
    for part in _PARTS:
        for name in (f"{part}_masks", f"{part}_mask", f"{part}_index"):
            if name in arrays:
                masks[f"{part}_mask"] = _mask(arrays[name], name, nodes, where, split)
                break
    if isinstance(arrays.get("no_label_index"), np.ndarray) and masks:
        without = _mask(arrays["no_label_index"], "no_label_index", nodes, where, 0)
        masks = {name: mask & ~without for name, mask in masks.items()}
    return masks


def _mask(values: npt.NDArray[Any], name: str, nodes: int, where: str, split: int) -> npt.NDArray[np.bool_]:
    place = f"{where}, array '{name}'"
    several = values.ndim == 2
    count = values.shape[0] if several else 1
    if not 0 <= split < count:
        raise InputError(f"split must be 0 to {count - 1}, the splits of {place}, got {split}")
    chosen = values[split] if several else values
    if name.endswith("_index"):
        inside = not chosen.size or 0 <= chosen.min() <= chosen.max() < nodes
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not inside:
            raise InputError(f"{place}: it does not hold numbers of nodes from 0 to {nodes - 1}")
        mask = np.zeros(nodes, dtype=bool)
        mask[chosen] = True
        return mask
    if chosen.shape != (nodes,) or chosen.dtype.kind != "b":
        raise InputError(f"{place}: shape {values.shape} of {values.dtype} is no mask of {nodes} nodes (true or false)")
    return chosen


def _from_tables(edges: Table, features: Table, label: str, part: str, directed: bool) -> Arrays:
    if len(edges.columns) < 2:
        raise InputError(f"{edges.source} has one column; a table of edges needs two, the ends")
    id_column, *names = features.columns
    ids = _ids(features, id_column)
    number = {name: i for i, name in enumerate(ids)}
    if len(number) < len(ids):
        twice = next(name for i, name in enumerate(ids) if number[name] != i)
        raise InputError(f"{features.source}, column '{id_column}': node '{twice}' stands there twice")
    ends = np.stack([_numbered(edges, column, number, features.source) for column in list(edges.columns)[:2]])
    columns = [name for name in names if name not in (label, part)]
    graph: Arrays = {
        "x": _feature_matrix(features, columns),
        "edge_index": _edge_index(ends, len(ids), edges.source, directed),
        "ids": np.array(ids),
        "feature_names": np.array(columns),
    }
    if label in names:
        graph |= _classes(features, label)
    if part in names:
        graph |= _parts(features, part)
    return graph


def _ids(table: Table, column: str) -> list[str]:
    """The names of nodes as text; a whole number is written without a decimal point in every table."""
    values = table.columns[column]
    if table.is_numeric(column):
        if np.isnan(values).any() or (np.abs(values) >= _EXACT).any():
            raise InputError(
                f"{table.source}, column '{column}': a node has no name, or a number of more than 15 digits; use text"
            )
        return [str(int(value)) if float(value).is_integer() else str(value) for value in values]
    names = [str(value) for value in values]
    if "" in names:
        raise InputError(f"{table.source}, column '{column}': a node has no name")
    return names


def _numbered(edges: Table, column: str, number: Mapping[str, int], features: str) -> npt.NDArray[np.int64]:
    names = _ids(edges, column)
    unknown = next((name for name in names if name not in number), None)
    if unknown is not None:
        raise InputError(f"{edges.source}, column '{column}': node '{unknown}' is not in {features}")
    return np.array([number[name] for name in names], dtype=np.int64)


def _feature_matrix(table: Table, columns: list[str]) -> npt.NDArray[np.float32]:
    if not columns:
        raise InputError(f"{table.source} has no column of features beside the node, its label and its part")
    for column in columns:
        values = table.columns[column]
        if not table.is_numeric(column):
            raise InputError(f"{table.source}, column '{column}': text is no feature; encode it as numbers or drop it")
        if np.isnan(values).any():
            row = int(np.flatnonzero(np.isnan(values))[0])
            raise InputError(f"{table.source}, column '{column}': row {row + 1} of the data has no value; fill it in")
    return np.stack([table.columns[column] for column in columns], axis=1).astype(np.float32)


def _classes(table: Table, label: str) -> Arrays:
    values = table.columns[label]
    numeric = table.is_numeric(label)
    absent = np.isnan(values) if numeric else values == ""
    kinds = np.unique(values[~absent])
    if not len(kinds):
        raise InputError(f"{table.source}, column '{label}': no node has a label")
    y = np.where(absent, -1, np.searchsorted(kinds, np.where(absent, kinds[0], values)))
    named = [str(int(kind)) if numeric and float(kind).is_integer() else str(kind) for kind in kinds]
    return {"y": y.astype(np.int64), "classes": np.array(named)}


def _parts(table: Table, part: str) -> Arrays:
    values = table.columns[part]
    if table.is_numeric(part) or not set(values.tolist()) <= {*_PARTS, ""}:
        raise InputError(f"{table.source}, column '{part}': a cell is none of train, val, test or empty")
    return {f"{name}_mask": values == name for name in _PARTS}
