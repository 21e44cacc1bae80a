"""Removal faithfulness: take away what a method names, and see how far the teacher's own entropy falls.

The test is the paper's; that every method removes the same number of elements is part of the reconstruction. At ``k``
only nodes count that have at least ``k`` candidates, the same nodes for every method, and each method removes exactly
``k`` of them. An edge goes in both directions, which also changes the degrees that a convolution divides by: that is
part of the effect. A feature is set to 0. Removal leaves the distribution that the teacher was trained on, a limit of
all such tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.graphs.graph import check_graph
from steelyard.graphs.graphuat.baselines import BASELINES, Ranking, Scene, Scenes, Scorer, in_order, rank, scorer
from steelyard.graphs.graphuat.models import TeacherEntropy
from steelyard.graphs.graphuat.probes import View, read
from steelyard.rng import generator

Array = NDArray[Any]
DEFAULT_AGAINST = ("random", "degree", "saliency", "gnnexplainer", "teacher_entropy")
RANDOM_DRAWS = 8
"""Orders that the random baseline's drops are the mean of."""
BOOTSTRAP = 2000
_SAME = 1e-3  # nats: float32 rounding stays far below
OURS = "graphuat"


class Interval(NamedTuple):
    """A mean over nodes with the 95 % percentile interval of a bootstrap over nodes."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class RemovalCurve:
    """How far the teacher's entropy falls, in nats, after removing k elements.

    Attributes:
        ks: Numbers of removed elements.
        remove: ``"edges"`` or ``"features"``.
        target: What falls: ``"teacher_entropy"``, or ``"teacher_margin"`` (see :func:`removal_faithfulness`).
        equal_counts: Whether every method removed exactly k at every node.
        nodes: The nodes, (n,).
        candidates: How many elements each node has, (n,).
        drops: Method -> fall per k and node, (K, n), NaN where a node has fewer than k candidates; the judged method
            comes first.
        auc: Method -> per node the mean height of its curve from 0 to the largest k that it has candidates for, (n,).
        seconds: Method -> CPU seconds that its rankings took, all nodes together; the judged method's are not known.
        left_out: Methods that rank no such elements.
        seed: Of the draws and of the bootstrap.
    """

    ks: tuple[int, ...]
    remove: str
    target: str
    equal_counts: bool
    nodes: Array
    candidates: Array
    drops: Mapping[str, Array]
    auc: Mapping[str, Array]
    seconds: Mapping[str, float]
    left_out: tuple[str, ...]
    seed: int

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, the judged one first."""
        return tuple(self.drops)

    def counts(self) -> Array:
        """Return how many nodes count at each k, (K,)."""
        found: Array = (self.candidates[None, :] >= np.array(self.ks)[:, None]).sum(axis=1)
        return found

    def interval(self, method: str, k: int | None = None, versus: str | None = None) -> Interval:
        """Return the mean fall of a method at ``k`` (None: the area), or how much more it falls than ``versus``.

        Differences are paired: both methods at the same node. NaN where no node counts.

        Raises:
            InputError: There is no such method or k.
        """
        values = self._values(method, k)
        if versus is not None:
            values = values - self._values(versus, k)
        return bootstrap(values[~np.isnan(values)], self.seed)

    def _values(self, method: str, k: int | None) -> Array:
        if method not in self.drops:
            raise InputError(f"no method '{method}' in this curve; there are {', '.join(self.drops)}")
        if k is None:
            return self.auc[method]
        if k not in self.ks:
            raise InputError(f"k={k} was not measured; there are {', '.join(map(str, self.ks))}")
        found: Array = self.drops[method][self.ks.index(k)]
        return found

    def to_json(self) -> str:
        """Return every figure as JSON: per method the curve, the area and the paired differences; NaN is null."""
        ours = self.methods[0]
        about = {
            "remove": self.remove, "target": self.target, "equal_counts": self.equal_counts, "ks": list(self.ks),
            "nodes": self.nodes.tolist(), "candidates": self.candidates.tolist(), "counts": self.counts().tolist(),
            "left_out": list(self.left_out), "seed": self.seed,
        }  # fmt: skip
        methods = {
            name: {
                "drops": [[_number(value) for value in row] for row in self.drops[name].tolist()],
                "curve": [_figures(self.interval(name, k)) for k in self.ks],
                "auc": _figures(self.interval(name)),
                "more_than_it": None if name == ours else [_figures(self.interval(ours, k, name)) for k in self.ks],
                "auc_more_than_it": None if name == ours else _figures(self.interval(ours, versus=name)),
                "seconds": self.seconds.get(name),
            }
            for name in self.methods
        }
        return json.dumps({**about, "methods": methods})

    def table(self) -> str:
        """Return plain text: per method the mean fall at each k and the area, then the paired differences."""
        ours, columns = self.methods[0], (*self.ks, None)
        heads = [f"k={k}" for k in self.ks] + ["area"]
        rows = [["nodes", *map(str, self.counts().tolist()), str(int((~np.isnan(self.auc[ours])).sum()))]]
        rows += [[name, *(f"{self.interval(name, k).mean:+.4f}" for k in columns)] for name in self.methods]
        for other in self.methods[1:]:
            found = (self.interval(ours, k, other) for k in columns)
            rows.append([f"{ours} - {other}", *(f"{i.mean:+.4f} [{i.low:+.4f}, {i.high:+.4f}]" for i in found)])
        title = f"fall of the {self.target.replace('_', chr(39) + 's ')} after removing k {self.remove}"
        if not self.equal_counts:
            title += " (numbers removed differ between methods: not a fair comparison)"
        rows = [["", *heads], *rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([title, *lines])


def bootstrap(values: Array, seed: int, draws: int = BOOTSTRAP) -> Interval:
    """Return the mean of ``values`` (n,) with the 95 % percentile interval over resamples of its entries.

    An empty ``values`` gives NaN; a single one gives an interval of no width, which says nothing.
    """
    if not len(values):
        return Interval(np.nan, np.nan, np.nan)
    rng = generator("graphuat", "removal bootstrap", seed)
    means = np.concatenate([rng.choice(values, (50, len(values))).mean(axis=1) for _ in range(max(1, draws // 50))])
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))


class _TeacherMargin(TeacherEntropy):
    """Minus the distance of the two largest probabilities, in the place of the entropy."""

    def evaluate(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, nodes: Tensor | None = None
    ) -> Any:
        weights = {"edge_weight": edge_weight} if edge_weight is not None and self.takes_edge_weight else {}
        out = self.teacher(x, edge_index, **weights)
        top = torch.softmax((out if nodes is None else out[nodes]).double(), -1).topk(2, dim=-1).values
        return _Margin(top[:, 1] - top[:, 0])


class _Margin(NamedTuple):
    total: Tensor
    epistemic: None = None


_TARGETS: dict[str, Callable[[nn.Module], TeacherEntropy]] = {
    "teacher_entropy": TeacherEntropy,
    "teacher_margin": _TeacherMargin,
}


def removal_faithfulness(
    teacher: nn.Module,
    data: Any,
    attribution: Any,
    ks: Sequence[int] = (1, 2, 3, 5),
    against: Sequence[str] | Mapping[str, str | Scorer] = DEFAULT_AGAINST,
    equal_counts: bool = True,
    target: str = "teacher_entropy",
    *,
    remove: Literal["edges", "features"] = "edges",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> RemovalCurve:
    """Measure how far the teacher's entropy falls when what an attribution names is removed, beside other methods.

    Values are those of the whole graph: they come from the node's neighbourhood, one hop deeper than the teacher sees.

    Args:
        teacher: Module ``(x, edge_index[, edge_weight])`` that returns logits.
        data: The graph: anything with ``x`` and ``edge_index``.
        attribution: What :func:`attribute_uncertainty` returned, or a sequence with ``node``, ``edges`` [(u, v,
            score)] and ``features`` [(index, score)]. Candidates that it does not score come last, at random; what it
            scores and is no candidate (an edge that the node is no end of) is passed over.
        ks: Numbers of removed elements, rising.
        against: Names of :data:`~steelyard.graphs.graphuat.baselines.BASELINES`, or label -> name or scorer of your
            own. Those that do not rank what is removed are left out and listed.
        equal_counts: False: methods whose scores say what helps remove only that, at most k; others remove k. The
            numbers then differ, which flatters the former.
        target: ``"teacher_entropy"``, or ``"teacher_margin"``: how far the two largest probabilities move apart.
        remove: ``"edges"``, in both directions, or ``"features"`` of the node itself, set to 0.
        seed: Of draws, of the order of equal scores and of the bootstrap.
        progress: Called with (nodes done, nodes in all).

    Raises:
        InputError: An argument is out of range, the attribution does not fit the graph, or the teacher is more than
            message passing of as many layers as it shows.
    """
    ks = _checked(ks, target, remove)
    graph = check_graph(data)
    scorers = _named(against)
    scenes = Scenes(teacher, graph)
    model = _TARGETS[target](scenes.teacher)
    items = _items(attribution, graph.num_nodes)
    with torch.no_grad():
        whole = model.evaluate(graph.x, graph.edge_index, graph.edge_weight).total.tolist()
    found = [
        _Node(scenes[item.node], item, remove, max(ks), whole[item.node]).measured(
            model, scorers, ks, equal_counts, seed
        )
        for item in _told(items, progress)
    ]
    methods = [OURS, *(name for name in scorers if all(name in node.drops for node in found))]
    drops = {name: np.stack([node.drops[name] for node in found], axis=1) for name in methods}
    return RemovalCurve(
        ks=ks,
        remove=remove,
        target=target,
        equal_counts=equal_counts,
        nodes=np.array([item.node for item in items]),
        candidates=np.array([node.candidates for node in found]),
        drops=drops,
        auc={name: area(values, ks) for name, values in drops.items()},
        seconds={name: sum(node.seconds[name] for node in found) for name in methods[1:]},
        left_out=tuple(name for name in scorers if name not in methods),
        seed=seed,
    )


def area(drops: Array, ks: Sequence[int]) -> Array:
    """Return the mean height of each node's curve, through 0 at k = 0, up to its largest measured k.

    Args:
        drops: Fall per k and node, (K, n), NaN from some k on.
        ks: Rising numbers of removed elements, (K,).

    Returns:
        Areas of the trapezia over the largest k, (n,); NaN where nothing was measured.
    """
    steps = np.diff(np.array([0, *ks], dtype=np.float64))[:, None]
    heights = np.concatenate([np.zeros((1, drops.shape[1])), drops])
    pieces = steps * (heights[1:] + heights[:-1]) / 2
    seen = ~np.isnan(drops)
    width = (steps * seen).sum(axis=0)
    found: Array = np.where(width > 0, np.where(seen, pieces, 0).sum(axis=0) / np.maximum(width, 1), np.nan)
    return found


class _Measured(NamedTuple):
    drops: dict[str, Array]  # method -> (K,)
    seconds: dict[str, float]
    candidates: int


class _Node:
    """One node's removals; equal sets of elements are measured once, whoever names them."""

    def __init__(self, scene: Scene, item: Any, remove: str, most: int, whole: float) -> None:
        self.scene, self.item, self.remove, self.most, self.whole = scene, item, remove, most, whole
        self.candidates = len(scene.pairs) if remove == "edges" else len(scene.features)

    def measured(
        self, model: TeacherEntropy, scorers: Mapping[str, Scorer], ks: Sequence[int], equal: bool, seed: int
    ) -> _Measured:
        """Return the falls of all methods that rank such elements."""
        orders: dict[str, list[Array]] = {OURS: [self._cut(self._own(seed), equal)]}
        seconds: dict[str, float] = {}
        for name, score in scorers.items():
            start = time.process_time()
            rankings = [
                rank(score, self.scene, generator("graphuat", f"removal {name} {self.scene.node} {draw}", seed))
                for draw in range(RANDOM_DRAWS if score is BASELINES["random"] else 1)
            ]
            seconds[name] = time.process_time() - start
            if getattr(rankings[0], self.remove) is not None:
                orders[name] = [self._cut(one, equal) for one in rankings]
        sets = {name: [[frozenset(order[:k].tolist()) for k in ks] for order in some] for name, some in orders.items()}
        falls = self._falls(model, {one for some in sets.values() for row in some for one in row})
        enough = np.array(ks) <= self.candidates
        drops = {
            name: np.where(enough, np.mean([[falls[one] for one in row] for row in some], axis=0), np.nan)
            for name, some in sets.items()
        }
        return _Measured(drops, seconds, self.candidates)

    def _own(self, seed: int) -> Ranking:
        """Rank the candidates by the attribution's scores; those without one come last."""
        rng = generator("graphuat", f"removal {OURS} {self.scene.node}", seed)
        if self.remove == "edges":
            scores: dict[Any, float] = {frozenset((int(u), int(v))): float(score) for u, v, score in self.item.edges}
            keys: list[Any] = [frozenset(pair) for pair in self.scene.pairs.nodes.tolist()]
        else:
            scores = {int(index): float(score) for index, score in self.item.features}
            keys = self.scene.features.tolist()
        values = np.array([scores.get(key, -np.inf) for key in keys], dtype=np.float64)
        order, positive = in_order(values, rng), int((values > 0).sum())
        if self.remove == "edges":
            return Ranking(order, None, positive)
        return Ranking(None, self.scene.features[order], None, positive)

    def _cut(self, ranking: Ranking, equal: bool) -> Array:
        order: Array = getattr(ranking, self.remove)[: self.most]
        positive = getattr(ranking, f"{self.remove}_above_zero")
        return order if equal or positive is None else order[:positive]

    def _falls(self, model: TeacherEntropy, sets: set[frozenset[int]]) -> dict[frozenset[int], float]:
        ordered = sorted(sets, key=sorted)
        values = read(model, self.scene.x, [View(self.scene.graph), *(self._without(one) for one in ordered)])
        if abs(values[0] - self.whole) > _SAME:
            raise InputError(
                f"teacher: the value at node {self.scene.node} is {self.whole:.4f} in the whole graph and "
                f"{values[0]:.4f} in its neighbourhood, so it sees further than its layers tell (give it an attribute "
                "hops) or mixes nodes in other ways than by messages (GraphNorm, pooling), which is not supported"
            )
        return dict(zip(ordered, (values[0] - values[1:]).tolist(), strict=True))

    def _without(self, elements: frozenset[int]) -> View:
        places = sorted(elements)
        if self.remove == "features":
            own = self.scene.own.clone()
            own[places] = 0
            return View(self.scene.graph, features=own)
        edges = [self.scene.pairs.edges[place] for place in places]
        return View(self.scene.graph, np.concatenate(edges) if edges else None)


def _checked(ks: Sequence[int], target: str, remove: str) -> tuple[int, ...]:
    found = tuple(ks)
    if not found or not all(isinstance(k, int) and k >= 1 for k in found) or list(found) != sorted(set(found)):
        raise InputError(f"ks must be rising integers from 1 on, got {found}")
    if target not in _TARGETS:
        raise InputError(f"target must be one of {', '.join(_TARGETS)}, got '{target}'")
    if remove not in ("edges", "features"):
        raise InputError(f"remove must be 'edges' or 'features', got '{remove}'")
    return found


def _named(against: Sequence[str] | Mapping[str, str | Scorer]) -> dict[str, Scorer]:
    if isinstance(against, str):
        raise InputError(f"against must be a sequence of names such as ('{against}',), not one name")
    pairs = against.items() if isinstance(against, Mapping) else [(name, name) for name in against]
    found = {label: scorer(method) for label, method in pairs}
    if OURS in found:
        raise InputError(f"against must not hold '{OURS}', which is the attribution itself")
    return found


def _items(attribution: Any, num_nodes: int) -> list[Any]:
    try:
        items = list(attribution)
        nodes = [int(item.node) for item in items]
    except (TypeError, AttributeError):
        raise InputError(
            "attribution must be what attribute_uncertainty returned: items with node, edges, features"
        ) from None
    if not items:
        raise InputError("attribution holds no node; attribute at least one")
    if len(set(nodes)) != len(nodes):
        raise InputError("attribution holds a node twice; every node counts once")
    if not 0 <= min(nodes) <= max(nodes) < num_nodes:
        raise InputError(f"attribution holds node {max(nodes)}, the graph has nodes 0 … {num_nodes - 1}")
    return items


def _told(items: list[Any], progress: Callable[[int, int], None] | None) -> Iterator[Any]:
    for done, item in enumerate(items):
        yield item
        if progress is not None:
            progress(done + 1, len(items))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _figures(interval: Interval) -> dict[str, float | None]:
    return {name: _number(value) for name, value in interval._asdict().items()}
