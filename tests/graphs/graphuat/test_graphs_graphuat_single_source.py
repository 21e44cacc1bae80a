"""Graphs in which one source alone is planted: it is named, and against shuffled sources the names are worth nothing.

The graphs are generated, from streams that no bench, no tuning and no other check draws from.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from steelyard.graphs.graphuat.attribution import attribute_uncertainty
from steelyard.graphs.graphuat.core import SOURCES
from steelyard.graphs.graphuat.csbm import generate_csbm
from steelyard.graphs.graphuat.planting import plant
from steelyard.graphs.graphuat.studies import trained_teacher
from steelyard.graphs.graphuat.tasks import as_graph
from steelyard.rng import derive_seed, generator

ROOT = "single source acceptance"
GRAPHS = 5  # of each source, 40 planted nodes in each


@functools.cache
def named(source: str) -> tuple[str | None, ...]:
    """The sources that are named at the planted nodes of the graphs in which ``source`` alone is planted."""
    found: list[str | None] = []
    for seed in range(GRAPHS):
        arrays = generate_csbm(generator(ROOT, f"graph, {source}", seed))
        made = plant(arrays, generator(ROOT, f"planting, {source}", seed), sources=(source,))
        graph = as_graph(made.arrays, words=True)
        own = derive_seed(ROOT, f"networks, {source}", seed)
        teacher, _ = trained_teacher(graph, "gcn", own)
        items = attribute_uncertainty(teacher, graph, made.groups[source], seed=own)
        found += [item.dominant_source for item in items]
    assert len(found) == 40 * GRAPHS
    return tuple(found)


@pytest.mark.acceptance
@pytest.mark.parametrize("source", SOURCES)
def test_the_only_planted_source_is_named_at_seven_of_ten_nodes(source):
    share = np.mean([name == source for name in named(source)])
    print(f"{source}: named at {share:.1%} of {40 * GRAPHS} nodes")
    assert share >= 0.7


@pytest.mark.acceptance
def test_against_shuffled_sources_the_accuracy_is_chance():
    names = [name for source in SOURCES for name in named(source)]
    truth = np.repeat(SOURCES, 40 * GRAPHS)
    once = generator(ROOT, "shuffled", 0).permutation(truth)
    accuracy = np.mean([name == source for name, source in zip(names, once, strict=True)])
    error = np.sqrt(1 / 3 * 2 / 3 / len(names))
    print(f"shuffled: {accuracy:.1%} of {len(names)} nodes, standard error {error:.1%}")
    assert abs(accuracy - 1 / 3) < 3 * error
