"""Sources of uncertainty that are known because they were planted, before any training.

Reconstruction: four groups of nodes of degree 2 to 5 whose neighbours are mostly of their own class. One gets extra
words, one gets edges to nodes of other classes, one loses most labels of its class, and one is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.graphs.graphuat.core import SOURCES

Arrays = dict[str, NDArray[Any]]
Nodes = NDArray[np.int64]

GROUPS = (*SOURCES, "clean")


@dataclass(frozen=True)
class Planted:
    """A graph with planted sources.

    Attributes:
        arrays: ``x``, ``edge_index``, ``y`` and masks, as :func:`steelyard.data.graph_arrays` gives them.
        groups: Group -> its nodes, ascending: "feature", "structure", "coverage", "clean".
        words: Node of the group "feature" -> the words that it got.
        ends: Node of the group "structure" -> the other ends of the edges that it got.
        cut_class: The class that lost labels, and whose nodes are in no other group.
    """

    arrays: Arrays
    groups: dict[str, Nodes]
    words: dict[int, Nodes]
    ends: dict[int, Nodes]
    cut_class: int

    @property
    def nodes(self) -> Nodes:
        """All nodes of the four groups, group by group."""
        return np.concatenate([self.groups[name] for name in GROUPS])

    @property
    def sources(self) -> list[str]:
        """The group of every node of :attr:`nodes`."""
        return [name for name in GROUPS for _ in self.groups[name]]


def plantable(arrays: Arrays) -> NDArray[np.bool_]:
    """Return the mask (N,) of nodes of degree 2 to 5 with more than 80 % of neighbours of their own class."""
    y, (source, target) = arrays["y"], arrays["edge_index"]
    degree = np.bincount(target, minlength=len(y))
    same = np.bincount(target, weights=y[source] == y[target], minlength=len(y))
    return np.asarray((degree >= 2) & (degree <= 5) & (same > 0.8 * degree))


def plant(
    arrays: Arrays,
    generator: np.random.Generator,
    *,
    per_group: int = 40,
    extra_words: int = 60,
    extra_edges: int = 4,
    labels_left: int = 2,
    sources: Sequence[str] = SOURCES,
) -> Planted:
    """Plant sources of uncertainty and choose clean nodes beside them.

    Only test nodes are chosen, so that no planted node trains the network or serves as a reference. The other ends of
    added edges are nodes of other classes outside all groups; the class that loses labels gives nodes to its own group
    only.

    Args:
        arrays: A graph with word features (0 and above), labels and masks; it is not changed.
        generator: Source of every draw.
        per_group: Nodes of each group.
        extra_words: Words added to each node of the group "feature", of those that it does not have.
        extra_edges: Edges added to each node of the group "structure".
        labels_left: Labelled nodes that the cut class keeps.
        sources: Which are planted; the groups of the others are empty.

    Raises:
        InputError: The graph has too few nodes that can be planted, or words, or there is no such source.
    """
    if not sources or not set(sources) <= set(SOURCES):
        raise InputError(f"sources must be some of {', '.join(SOURCES)}, not {tuple(sources)}")
    y, fits = arrays["y"], plantable(arrays) & arrays["test_mask"]
    counts = np.bincount(y[fits], minlength=int(y.max()) + 1)
    labelled = np.bincount(y[arrays["train_mask"]], minlength=len(counts))
    possible = np.flatnonzero((counts >= per_group) & (labelled > labels_left) & (fits.sum() - counts >= 3 * per_group))
    if not len(possible):
        raise InputError(
            f"graph: {int(fits.sum())} test nodes can be planted (degree 2 to 5, more than 80 % of neighbours of their "
            f"class), {counts.tolist()} by class; groups of {per_group} need {per_group} of a class with more than "
            f"{labels_left} labels and {3 * per_group} of the others"
        )
    cut = int(generator.choice(possible))
    others = generator.permutation(np.flatnonzero(fits & (y != cut)))
    members = generator.permutation(np.flatnonzero(fits & (y == cut)))[:per_group]
    groups = {
        "feature": np.sort(others[:per_group]),
        "structure": np.sort(others[per_group : 2 * per_group]),
        "coverage": np.sort(members),
        "clean": np.sort(others[2 * per_group : 3 * per_group]),
    }
    groups |= {name: members[:0] for name in SOURCES if name not in sources}
    x, words = _with_words(arrays["x"], groups["feature"], extra_words, generator)
    taken = np.concatenate(list(groups.values()))
    edge_index, ends = _with_edges(arrays["edge_index"], y, groups["structure"], taken, extra_edges, generator)
    changed = {"x": x, "edge_index": edge_index}
    if "coverage" in sources:
        changed["train_mask"] = _cut(arrays, cut, labels_left, generator)
    return Planted({**arrays, **changed}, groups, words, ends, cut)


def with_lookalikes(made: Planted, generator: np.random.Generator) -> tuple[Planted, dict[int, str]]:
    """Give the clean nodes as much more as planted ones have, of what does no harm: a control against counting.

    Every second clean node gets the words most typical of its class, the others get edges to nodes of their own class
    outside all groups; as many words or edges as were planted elsewhere.

    Args:
        made: A graph with all three sources planted; it is not changed.
        generator: Source of every draw.

    Returns:
        The changed graph, and for each clean node what counting takes it for: "feature" or "structure".

    Raises:
        InputError: Too few nodes of a class are left.
    """
    x, y, edge_index = made.arrays["x"].copy(), made.arrays["y"], made.arrays["edge_index"]
    more_words, more_edges = (len(next(iter(some.values()))) for some in (made.words, made.ends))
    clean = made.groups["clean"].tolist()
    for node in clean[::2]:
        own = y == y[node]
        typical = np.argsort(x[~own].mean(axis=0) - x[own].mean(axis=0), kind="stable")
        x[node, typical[:more_words]] = 1.0
    free = np.setdiff1d(np.arange(len(y)), made.nodes)
    ends = {
        node: _drawn_ends(edge_index, node, free[y[free] == y[node]], more_edges, generator, "its own class")
        for node in clean[1::2]
    }
    arrays = {**made.arrays, "x": x, "edge_index": _joined(edge_index, ends, len(y))}
    return replace(made, arrays=arrays), {node: SOURCES[place % 2] for place, node in enumerate(clean)}


def _with_words(
    x: NDArray[Any], nodes: Nodes, count: int, generator: np.random.Generator
) -> tuple[NDArray[Any], dict[int, Nodes]]:
    x, words = x.copy(), {}
    for node in nodes.tolist():
        absent = np.flatnonzero(x[node] == 0)
        if len(absent) < count:
            raise InputError(f"graph: node {node} lacks {len(absent)} words only, {count} were to be added")
        words[node] = np.sort(generator.choice(absent, count, replace=False))
        x[node, words[node]] = 1.0
    return x, words


def _with_edges(
    edge_index: NDArray[Any], y: NDArray[Any], nodes: Nodes, taken: Nodes, count: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], dict[int, Nodes]]:
    free = np.setdiff1d(np.arange(len(y)), taken)
    ends = {
        node: _drawn_ends(edge_index, node, free[y[free] != y[node]], count, generator, "another class")
        for node in nodes.tolist()
    }
    return _joined(edge_index, ends, len(y)), ends


def _drawn_ends(
    edge_index: NDArray[Any], node: int, allowed: Nodes, count: int, generator: np.random.Generator, what: str
) -> Nodes:
    """Return ``count`` of the ``allowed`` nodes that are no neighbours of ``node``, ascending."""
    candidates = np.setdiff1d(allowed, edge_index[1][edge_index[0] == node])
    if len(candidates) < count:
        raise InputError(f"graph: {len(candidates)} nodes of {what} are left for {count} edges of {node}")
    return np.sort(generator.choice(candidates, count, replace=False))


def _joined(edge_index: NDArray[Any], ends: dict[int, Nodes], size: int) -> NDArray[np.int64]:
    """Return the edges with those of each node to its ``ends``, both directions, sorted."""
    new = np.array([(node, int(end)) for node, some in ends.items() for end in some], dtype=np.int64).reshape(-1, 2).T
    both = np.concatenate([edge_index, new, new[::-1]], axis=1).astype(np.int64)
    keys = np.unique(both[0] * size + both[1])
    return np.stack([keys // size, keys % size])


def _cut(arrays: Arrays, kind: int, left: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    train = arrays["train_mask"].copy()
    labelled = generator.permutation(np.flatnonzero(train & (arrays["y"] == kind)))
    train[labelled[left:]] = False
    return train
