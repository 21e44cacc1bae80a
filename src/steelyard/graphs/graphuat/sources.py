"""Which source each contestant names, and how well scores tell planted sources apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.attribution import Attributor, Settings
from steelyard.graphs.graphuat.core import SOURCES, dominant_source, standardise
from steelyard.graphs.graphuat.explanation import UncertaintyAttribution
from steelyard.graphs.graphuat.probes import FeatureMethod
from steelyard.graphs.graphuat.studies import Study

Array = NDArray[Any]


@dataclass(frozen=True)
class Scored:
    """Raw scores of feature, structure and coverage, of nodes (n, 3) and of the reference (m, 3)."""

    nodes: Array
    reference: Array

    def with_column(self, source: str, nodes: Array, reference: Array) -> Scored:
        """Return these scores with another probe's for one source, of nodes (n,) and of the reference (m,)."""
        other = Scored(self.nodes.copy(), self.reference.copy())
        place = SOURCES.index(source)
        other.nodes[:, place], other.reference[:, place] = nodes, reference
        return other

    def against(self, reference: Array) -> Scored:
        """Return these scores with other reference scores."""
        return Scored(self.nodes, reference)

    def named(self) -> list[str | None]:
        """Return the source of each node by the largest z-score."""
        return names_of(standardise(torch.from_numpy(self.nodes), torch.from_numpy(self.reference)))


def names_of(scores: torch.Tensor) -> list[str | None]:
    """Return the source with the largest score of each row; None where two tie."""
    return [SOURCES[place] if place >= 0 else None for place in dominant_source(scores).tolist()]


def raw(items: UncertaintyAttribution, coverage: str = "") -> Array:
    """Return raw scores (n, 3); ``coverage`` names the attribute that stands for a missing coverage probe."""
    rows = [[item.scores.get(name, getattr(item, coverage or "node")) for name in SOURCES] for item in items]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(SOURCES))


def scored(made: Attributor, found: UncertaintyAttribution, reference: UncertaintyAttribution) -> Scored:
    """Return the raw scores of an attribution; without a student the teacher's entropy stands for coverage."""
    coverage = "teacher_entropy" if made.on == "teacher" else ""
    return Scored(raw(found, coverage), raw(reference, coverage))


def epistemic(items: UncertaintyAttribution) -> Array:
    """Return the epistemic parts (n,) as they are, with what hostile edges add to them."""
    return np.array([item.epistemic for item in items], dtype=np.float64)


def feature_column(work: Study, nodes: Sequence[int], method: FeatureMethod) -> tuple[Array, Array]:
    """Return the feature scores of nodes and of the reference by another feature probe."""
    settings = Settings(probes=("feature",), feature_method=method, seed=work.seed)
    made = Attributor(work.teacher, work.graph, student=work.student, reference=work.reference, settings=settings)
    found = made.attribute(list(nodes))
    return np.array([item.scores["feature"] for item in found]), made.reference_scores()[:, 0].numpy()


def counted(graph: Graph, nodes: Array, reference: Array) -> Scored:
    """Return what counting says: words of a node, its edges, and how few labelled nodes are within two steps."""
    source, target = graph.edge_index.numpy()
    assert graph.train_mask is not None
    size = graph.num_nodes
    labelled = graph.train_mask.numpy().astype(np.float64)
    near = np.bincount(target, weights=labelled[source], minlength=size) + labelled
    within = np.bincount(target, weights=near[source], minlength=size) + near
    words = (graph.x != 0).sum(1).double().numpy()
    columns = np.column_stack([words, np.bincount(target, minlength=size), -within])
    return Scored(columns[nodes], columns[reference])


def accuracy(named: Sequence[str | None], sources: Sequence[str]) -> float:
    """Return the share of right names among nodes that have a planted source."""
    right = [name == source for name, source in zip(named, sources, strict=True) if source in SOURCES]
    return float(np.mean(right))


def auroc(scores: Array, positive: Array) -> float:
    """Return the area under the curve: how often a positive's score (n,) is above another's, ties counting half."""
    ranks = rankdata(scores)
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


def areas(scores: Array, sources: Sequence[str]) -> dict[str, float]:
    """Return the area of each source's score (n, 3) for its group among all planted and clean nodes."""
    groups = np.array(sources)
    return {f"auroc_{name}": auroc(scores[:, column], groups == name) for column, name in enumerate(SOURCES)}
