"""One cell: a teacher and its student on one graph, and all explainers on the same nodes."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from steelyard.contracts import CellInput, Measured
from steelyard.graphs.graphuat import sources
from steelyard.graphs.graphuat.arms import KS, flat
from steelyard.graphs.graphuat.attribution import Attributor, Settings
from steelyard.graphs.graphuat.baselines import BASELINES, Ranking, Scenes, Scorer, gnnexplainer_scores, planted, rank
from steelyard.graphs.graphuat.core import SOURCES
from steelyard.graphs.graphuat.diagrams import node_diagram
from steelyard.graphs.graphuat.explanation import UncertaintyAttribution
from steelyard.graphs.graphuat.faithfulness import OURS, RemovalCurve, removal_faithfulness
from steelyard.graphs.graphuat.planting import Planted
from steelyard.graphs.graphuat.sources import Scored
from steelyard.graphs.graphuat.studies import Study, mean_of, study
from steelyard.graphs.graphuat.tasks import NO_WORDS, arrays_of, as_graph, planted_of, teacher_of

RANKERS = ("teacher_entropy", "entropy_gradient", "saliency", "degree", "random")
"""Baselines that run on every node."""
WORD_RANKERS = ("entropy_gradient", "saliency", "random")
"""Those that rank words by a rule of their own: the probes without a student rank them by the entropy's gradient."""
FIRST_EDGES, FIRST_WORDS = 4, 20

Figures = dict[str, dict[str, float]]


def run_planted_or_removal(cell: CellInput) -> Measured:
    """Compute the cell of a named task."""
    made = planted_of(cell)
    arrays = arrays_of(cell) if made is None else made.arrays
    graph = as_graph(arrays, words=cell.task not in NO_WORDS, name=cell.task)
    kind = teacher_of(cell.task)
    return measured(cell, study(cell, graph, kind=kind, planted=made, judged=int(cell.params["judged"])))


def measured(cell: CellInput, work: Study) -> Measured:
    """Attribute the cell's nodes and return the figures of all arms."""
    settings = Settings(seed=work.seed)
    made = Attributor(work.teacher, work.graph, student=work.student, reference=work.reference, settings=settings)
    reference = made.attribute(work.reference)
    start = time.process_time()
    found = made.attribute(work.judged)
    cpu = time.process_time() - start
    figures, curve = removals(cell, work, found)
    figures.setdefault(OURS, {}).update(
        cpu_node=1e3 * cpu / len(work.judged), agreement=float(made.agreement or 0.0), **about(work)
    )
    pictures: tuple[Any, ...] = ()
    if work.planted is not None:
        inside = made.attribute(work.planted.nodes)
        for part in (
            recovery(cell, work, work.planted, made, inside, reference),
            firsts(work, work.planted, inside),
            planted_falls(work, work.planted, inside),
        ):
            merge(figures, part)
        figures[OURS] |= confounding(work, work.planted, inside)
        pictures = node_diagram(work.planted, inside) if cell.seed == 0 else ()
    metrics: dict[str, float] = {}
    for arm, values in figures.items():
        metrics |= flat(arm, values)
    steps = (len(work.judged) + (0 if work.planted is None else len(work.planted.nodes))) * len(figures)
    return Measured(metrics, steps=steps, traces=traces(curve), diagrams=pictures)


def merge(figures: Figures, more: Mapping[str, Mapping[str, float]]) -> None:
    """Add figures of arms to those there are."""
    for arm, values in more.items():
        figures.setdefault(arm, {}).update(values)


def about(work: Study) -> dict[str, float]:
    """Return what is said of the networks themselves."""
    graph = work.graph
    assert graph.y is not None
    assert graph.test_mask is not None
    with torch.no_grad():
        right = work.teacher(graph.x, graph.edge_index).argmax(-1) == graph.y
    values = {"teacher_accuracy": float(right[graph.test_mask].double().mean()), "student_cpu": work.student_cpu}
    if work.teacher_cpu:
        values["teacher_cpu"] = work.teacher_cpu
    if work.planted is not None:
        values["cut_accuracy"] = float(right[torch.from_numpy(work.planted.groups["coverage"])].double().mean())
    return values


def removals(cell: CellInput, work: Study, found: UncertaintyAttribution) -> tuple[Figures, RemovalCurve]:
    """Return how far the teacher's entropy falls at the judged nodes, by every method and by the one that may stop."""
    against = [*RANKERS, *(("attention",) if teacher_of(cell.task) == "gat" else ())]
    curve = removal_faithfulness(work.teacher, work.graph, found, KS, against, seed=work.seed)
    figures = {method: falls(curve, method) for method in curve.methods}
    for method, seconds in curve.seconds.items():
        figures[method]["cpu_node"] = 1e3 * seconds / len(work.judged)
    stopping = removal_faithfulness(work.teacher, work.graph, found, KS, (), equal_counts=False, seed=work.seed)
    figures["positive_only"] = falls(stopping, OURS)
    merge(figures, dear_methods(cell, work, found))
    return figures, curve


def dear_methods(cell: CellInput, work: Study, found: UncertaintyAttribution) -> Figures:
    """Return the falls by methods that are too dear for all nodes, on a few of them, and the other methods' there."""
    few = int(cell.params["few"])
    if not few:
        return {}
    against: dict[str, str | Scorer] = {
        "gnnexplainer": functools.partial(gnnexplainer_scores, epochs=int(cell.params["gnnexplainer_epochs"])),
        "entropy_integrated": "entropy_integrated",
        "teacher_entropy": "teacher_entropy",
    }
    curve = removal_faithfulness(work.teacher, work.graph, found[:few], KS, against, seed=work.seed)
    figures = {method: {"few_drop": float(np.nanmean(curve.auc[method]))} for method in curve.methods}
    for method in ("gnnexplainer", "entropy_integrated"):
        figures[method]["cpu_node"] = 1e3 * curve.seconds[method] / len(found[:few])
    return figures


def falls(curve: RemovalCurve, method: str) -> dict[str, float]:
    """Return a method's mean falls by k, of the nodes that have so many edges, and the mean height of its curve."""
    values = {f"drop_{k}": mean_of(row) for k, row in zip(curve.ks, curve.drops[method], strict=True)}
    values["drop_auc"] = mean_of(curve.auc[method])
    return {name: value for name, value in values.items() if value is not None}


def traces(curve: RemovalCurve) -> dict[str, tuple[list[float], list[float]]]:
    """Return the curves of the method, the probes without a student, saliency and random edges."""
    drawn = {}
    for method in (OURS, "teacher_entropy", "saliency", "random"):
        points = [(float(k), mean_of(row)) for k, row in zip(curve.ks, curve.drops[method], strict=True)]
        kept = [(k, value) for k, value in points if value is not None]
        drawn[f"removal_{method}"] = ([0.0, *(k for k, _ in kept)], [0.0, *(value for _, value in kept)])
    return drawn


def recovery(
    cell: CellInput,
    work: Study,
    made: Planted,
    ours: Attributor,
    inside: UncertaintyAttribution,
    reference: UncertaintyAttribution,
) -> Figures:
    """Return how often each contestant names the planted source, and how well its scores tell the groups apart."""
    truth, nodes = made.sources, made.nodes
    own = sources.scored(ours, inside, reference)
    confident = np.array([item.teacher_entropy for item in reference])
    contestants = {
        OURS: own,
        "confident_reference": own.against(own.reference[confident <= np.median(confident)]),
        "clean_reference": own.against(own.nodes[np.array(truth) == "clean"]),
        "counting": sources.counted(work.graph, nodes, work.reference),
        "teacher_entropy": _without_student(work, nodes),
        "plain_epistemic": own.with_column("coverage", *(sources.epistemic(some) for some in (inside, reference))),
    }
    for method in ("neighbour_mean", "integrated") if cell.params["integrated"] else ("neighbour_mean",):
        columns = sources.feature_column(work, nodes.tolist(), method)
        contestants[method] = own.with_column("feature", *columns)
    figures: Figures = {}
    for name, scores in contestants.items():
        figures[name] = {"source_accuracy": sources.accuracy(scores.named(), truth)}
        if not name.endswith("_reference"):  # a reference changes no ranking
            figures[name] |= sources.areas(scores.nodes, truth)
    unscaled = sources.names_of(torch.from_numpy(own.nodes))
    figures["raw_scores"] = {"source_accuracy": sources.accuracy(unscaled, truth)}
    draws = cell.rng("sources at random")
    planted_only = [(name, source) for name, source in zip(own.named(), truth, strict=True) if source in SOURCES]
    mixed = draws.permutation([source for _, source in planted_only]).tolist()
    figures["shuffled"] = {"source_accuracy": sources.accuracy([name for name, _ in planted_only], mixed)}
    figures["random"] = {"source_accuracy": sources.accuracy(draws.choice(SOURCES, len(truth)).tolist(), truth)}
    return figures


def _without_student(work: Study, nodes: Any) -> Scored:
    """Score by the same probes on the teacher's entropy, which itself stands for coverage."""
    settings = Settings(probes=SOURCES[:2], seed=work.seed)
    made = Attributor(work.teacher, work.graph, reference=work.reference, on="teacher", settings=settings)
    return sources.scored(made, made.attribute(nodes), made.attribute(work.reference))


def firsts(work: Study, made: Planted, inside: UncertaintyAttribution) -> Figures:
    """Return how many of the first edges and words of each contestant were planted."""
    scenes = Scenes(work.teacher, work.graph)
    own_edges = [
        _share([other for other, _ in inside.node(node).neighbours()], ends) for node, ends in made.ends.items()
    ]
    own_words = [_share([word for word, _ in inside.node(node).features], words, FIRST_WORDS)
                 for node, words in made.words.items()]  # fmt: skip
    figures = {OURS: {"edge_precision": float(np.mean(own_edges)), "feature_precision": float(np.mean(own_words))}}
    for name in RANKERS:
        edges = [_share(_ranked(name, scenes, node, work.seed)[0], ends) for node, ends in made.ends.items()]
        figures[name] = {"edge_precision": float(np.mean(edges))}
    for name in WORD_RANKERS:
        words = [
            _share(_ranked(name, scenes, node, work.seed)[1], own, FIRST_WORDS) for node, own in made.words.items()
        ]
        figures[name]["feature_precision"] = float(np.mean(words))
    return figures


def _ranked(name: str, scenes: Scenes, node: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the other ends of a node's edges and its features in a baseline's order; empty where it ranks none."""
    scene = scenes[node]
    found: Ranking = rank(name, scene, np.random.default_rng([seed, node]))
    ends = [] if found.edges is None else scene.pairs.nodes[found.edges, 1].tolist()
    return ends, [] if found.features is None else found.features.tolist()


def _share(ranked: Sequence[int], planted_ones: Any, first: int = FIRST_EDGES) -> float:
    return float(np.isin(ranked[:first], planted_ones).mean()) if len(ranked) else 0.0


def planted_falls(work: Study, made: Planted, inside: UncertaintyAttribution) -> Figures:
    """Return how far the entropy falls at nodes with planted edges when as many edges are removed as were added."""
    pairs = [(node, int(end)) for node, ends in made.ends.items() for end in ends]
    oracle: dict[str, str | Scorer] = {name: BASELINES[name] for name in RANKERS}
    oracle["planted_first"] = planted(pairs, {})
    items = [inside.node(int(node)) for node in made.groups["structure"]]
    count = len(next(iter(made.ends.values())))
    curve = removal_faithfulness(work.teacher, work.graph, items, (count,), oracle, seed=work.seed)
    return {name: {"planted_drop": float(np.nanmean(curve.drops[name]))} for name in curve.methods}


def confounding(work: Study, made: Planted, inside: UncertaintyAttribution) -> dict[str, float]:
    """Return the epistemic uncertainty at nodes of the cut class and at clean ones."""
    values = {}
    for group in ("coverage", "clean"):
        parts = [inside.node(int(node)).epistemic for node in made.groups[group]]
        values[f"eu_{group}"] = float(np.mean([part for part in parts if part is not None]))
    return values
