"""One graph with node features and labels: the checked form that every part of this room works on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from steelyard.errors import InputError

MOST_CLASSES = 8192
"""Classes that a graph may have: a network has an output for each."""
_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph of one kind of nodes and edges.

    Attributes:
        x: Node features (N, F), float32 or float64, dense.
        edge_index: Directed edges (2, E), int64: row 0 sends to row 1. An undirected edge is there in both directions.
        y: Classes (N,), int64, -1 for unlabelled; or None.
        train_mask: Labelled nodes for training (N,), bool; or None.
        val_mask: Validation nodes, likewise.
        test_mask: Test nodes, likewise.
        edge_weight: Weights (E,), not negative, in the dtype of ``x``; None means 1.
        name: For messages and reports.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    edge_weight: Tensor | None = None
    name: str = ""

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return len(self.x)

    @property
    def num_edges(self) -> int:
        """Number of directed edges E."""
        return int(self.edge_index.shape[1])

    @property
    def num_classes(self) -> int:
        """Largest class + 1; 0 without labels."""
        return int(self.y.max()) + 1 if self.y is not None and len(self.y) else 0

    def to_pyg(self) -> Any:
        """Return a ``torch_geometric.data.Data`` that shares the tensors.

        Raises:
            MissingExtraError: torch-geometric is not installed.
        """
        from steelyard.extras import require

        fields = {name: getattr(self, name) for name in ("x", "edge_index", "y", *_MASKS, "edge_weight")}
        present = {name: value for name, value in fields.items() if value is not None}
        return require("torch_geometric.data", "graphs").Data(**present)


def check_graph(data: Any, *, self_loops: Literal["error", "remove"] = "error") -> Graph:
    """Check a user's graph and return it as a :class:`Graph`; the input is left as it is.

    Edges keep their order. Of edges that occur more than once the first stays, with a warning; weights are summed onto
    it. Edge attributes are ignored: a node classifier is called with ``(x, edge_index[, edge_weight])``.

    Args:
        data: Anything with ``x`` and ``edge_index``: a PyG ``Data``, a :class:`Graph`, an object of your own. ``y``,
            ``train_mask``, ``val_mask``, ``test_mask`` and ``edge_weight`` are taken where they exist.
        self_loops: ``"error"``, or ``"remove"`` to drop them: graph convolutions add their own.

    Raises:
        InputError: A heterogeneous graph, no nodes, NaN or infinite features, a node index out of range, shapes or
            dtypes that do not fit, negative weights, or self loops that are not to be removed.
    """
    _refuse_heterogeneous(data)
    x = _features(getattr(data, "x", None))
    edge_index = _edges(getattr(data, "edge_index", None), len(x))
    weight = _weights(getattr(data, "edge_weight", None), edge_index, x)
    edge_index, weight = _without_self_loops(edge_index, weight, self_loops)
    edge_index, weight = _without_duplicates(edge_index, weight, len(x))
    masks = {name: _mask(getattr(data, name, None), name, len(x)) for name in _MASKS}
    name = getattr(data, "name", "")
    y = _classes(getattr(data, "y", None), len(x))
    return Graph(x, edge_index, y, edge_weight=weight, name=name if isinstance(name, str) else "", **masks)


def _refuse_heterogeneous(data: Any) -> None:
    if type(data).__name__ == "HeteroData" or hasattr(data, "edge_index_dict"):
        raise InputError(
            "heterogeneous graphs are not supported: give one kind of nodes and edges (data.to_homogeneous())"
        )
    for name in ("x", "edge_index"):
        if getattr(data, name, None) is None:
            raise InputError(f"data of type {type(data).__name__} has no {name}; give a graph with x and edge_index")


def _tensor(given: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a tensor or an array of numbers, not {type(given).__name__}") from None


def _features(given: Any) -> Tensor:
    x = _tensor(given, "x")
    x = x.detach() if x.requires_grad else x
    x = x.to_dense() if x.layout != torch.strided else x
    if x.ndim != 2 or x.is_complex():
        raise InputError(f"x must be a matrix (nodes, features), but it has shape {tuple(x.shape)}, dtype {x.dtype}")
    if 0 in x.shape:
        raise InputError(f"x is empty: its shape is {tuple(x.shape)}; give at least one node and one feature")
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        node, feature = (int(i) for i in bad.nonzero()[0])
        raise InputError(f"x is {x[node, feature].item()} at node {node}, feature {feature}; features must be finite")
    return x


def _edges(given: Any, nodes: int) -> Tensor:
    edge_index = _tensor(given, "edge_index")
    if edge_index.layout != torch.strided or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise InputError(f"edge_index must have shape (2, edges), but it has {tuple(edge_index.shape)}")
    if edge_index.numel() == 0:
        return edge_index.long()
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise InputError(f"edge_index must hold integers, but its dtype is {edge_index.dtype}")
    bad = (edge_index < 0) | (edge_index >= nodes)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        node = int(edge_index[row, column])
        raise InputError(f"edge_index holds node {node} in column {column}, but x has nodes 0 to {nodes - 1}")
    return edge_index.long()


def _weights(given: Any, edge_index: Tensor, x: Tensor) -> Tensor | None:
    if given is None:
        return None
    weight = _tensor(given, "edge_weight")
    edges = edge_index.shape[1]
    if weight.numel() != edges or weight.ndim not in (1, 2):
        raise InputError(
            f"edge_weight must have one number for each of the {edges} edges, but its shape is {tuple(weight.shape)}"
        )
    weight = weight.reshape(edges).to(x.dtype)
    bad = ~(torch.isfinite(weight) & (weight >= 0))
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise InputError(f"edge_weight is {weight[at].item()} at edge {at}; weights must be finite and not negative")
    return weight


def _without_self_loops(edge_index: Tensor, weight: Tensor | None, rule: str) -> tuple[Tensor, Tensor | None]:
    if rule not in ("error", "remove"):
        raise InputError(f"self_loops must be 'error' or 'remove', not {rule!r}")
    loops = edge_index[0] == edge_index[1]
    if not bool(loops.any()):
        return edge_index, weight
    if rule == "error":
        node = int(edge_index[0, loops][0])
        raise InputError(
            f"edge_index holds {int(loops.sum())} self loops, the first at node {node}; "
            "pass the graph through check_graph(data, self_loops='remove') first"
        )
    return edge_index[:, ~loops], None if weight is None else weight[~loops]


def _without_duplicates(edge_index: Tensor, weight: Tensor | None, nodes: int) -> tuple[Tensor, Tensor | None]:
    _, group, counts = torch.unique(edge_index[0] * nodes + edge_index[1], return_inverse=True, return_counts=True)
    extra = edge_index.shape[1] - len(counts)
    if extra == 0:
        return edge_index, weight
    warnings.warn(f"edge_index holds {extra} repeated edges, which are merged into one each", UserWarning, stacklevel=3)
    position = torch.arange(len(group), device=group.device)
    first = torch.full_like(counts, len(group)).scatter_reduce(0, group, position, "amin")
    order = first.argsort()
    if weight is not None:
        weight = torch.zeros(len(counts), dtype=weight.dtype, device=weight.device).index_add(0, group, weight)[order]
    return edge_index[:, first[order]], weight


def _classes(given: Any, nodes: int) -> Tensor | None:
    if given is None:
        return None
    y = _tensor(given, "y")
    if y.numel() != nodes or y.is_floating_point() or y.is_complex():
        raise InputError(
            f"y must hold one integer class for each of the {nodes} nodes, not {y.dtype} of {tuple(y.shape)}"
        )
    y = y.reshape(nodes).long()
    if bool((y < -1).any()):
        node = int((y < -1).nonzero()[0])
        raise InputError(f"y is {int(y[node])} at node {node}; classes count from 0, and -1 means unlabelled")
    if bool((y >= MOST_CLASSES).any()):
        node = int((y >= MOST_CLASSES).nonzero()[0])
        raise InputError(
            f"y is {int(y[node])} at node {node}; number the classes from 0, at most {MOST_CLASSES} of them"
        )
    return y


def _mask(given: Any, name: str, nodes: int) -> Tensor | None:
    if given is None:
        return None
    mask = _tensor(given, name)
    if mask.dtype != torch.bool or mask.shape != (nodes,):
        several = f"; choose one split: {name}[:, 0]" if mask.ndim == 2 else ""
        raise InputError(f"{name} must be bool of shape ({nodes},), not {mask.dtype} of {tuple(mask.shape)}{several}")
    return mask


class EdgePairs(NamedTuple):
    """Edges without direction.

    Attributes:
        edge_pairs: (P, 2) int64, the smaller end first, sorted.
        pair_of_edge: (E,) int64, the pair that each directed edge belongs to.
    """

    edge_pairs: Tensor
    pair_of_edge: Tensor


def undirected(graph: Any) -> EdgePairs:
    """Return the unordered pairs of a graph's edges, so that both directions of an edge are removed together.

    Args:
        graph: Anything with a valid ``edge_index`` (2, E).
    """
    ends = graph.edge_index.sort(0).values
    pairs, of_edge = torch.unique(ends, dim=1, return_inverse=True)
    return EdgePairs(pairs.T.contiguous(), of_edge)


def load_graph(name: str, split: int = 0) -> Graph:
    """Return one of the public graphs, from the cache, a mirror or its source.

    Args:
        name: E.g. ``"cora"``, ``"citeseer"``, ``"minesweeper"``, ``"tolokers"``, ``"actor"``, ``"wisconsin"``.
        split: Which of the data set's splits; Cora and CiteSeer have one.

    Raises:
        InputError: No such graph or split.
        DataMissingError: The data are neither cached, nor mirrored, nor reachable.
    """
    from steelyard.data.graphs import graph_arrays

    return from_arrays(graph_arrays(name, split), name)


def from_arrays(arrays: Mapping[str, Any], name: str = "") -> Graph:
    """Return arrays as :func:`steelyard.data.read_graph` gives them as a graph that shares them, unchecked.

    What a graph has no field for (names of nodes, of features) is left out.
    """
    tensors = {key: torch.from_numpy(value) for key, value in arrays.items() if key in Graph.__dataclass_fields__}
    return Graph(name=name, **tensors)
