"""Queries, masks and folds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.goskills.queries import (
    MASK,
    assign_folds,
    example_queries,
    names_pattern,
    pack,
    plugin_queries,
    step_queries,
    unpack,
)
from steelyard.data.skills import SkillPlugin, SkillStep, SkillTask

EXAMPLE = SkillTask(
    7, "chemistry", "Find ligands", "Dock what fits.",
    (SkillStep("Load with RDKit", ("Read SMILES", "Use scikit learn")), SkillStep("Write it up", ())),
    ("rdkit", "scikit-learn", "clinical-reports"),
)  # fmt: skip


def test_a_query_holds_title_objective_and_steps_and_no_label():
    whole, first = (example_queries([EXAMPLE], whole)[0] for whole in (True, False))
    assert whole.text == "Find ligands. Dock what fits.\nLoad with RDKit: Read SMILES; Use scikit learn\nWrite it up"
    assert first.text == "Find ligands. Dock what fits.\nLoad with RDKit\nWrite it up"
    assert whole.gold == EXAMPLE.gold
    assert "clinical-reports" not in whole.text


def test_steps_are_masked_and_their_gold_is_what_they_named():
    (query,) = step_queries([EXAMPLE], ["rdkit", "scikit-learn", "clinical-reports", "other"])
    assert query.text == f"Load with {MASK}: Read SMILES; Use {MASK}"
    assert query.gold == ("rdkit", "scikit-learn")
    assert query.cluster == "example 7"


def test_names_are_found_as_words_only():
    pattern = names_pattern(["rdkit", "pytorch-lightning", "pdf", "a-b"])
    assert pattern.findall("RDKit, rdkits, my-rdkit; PyTorch Lightning; pytorchlightning pdf a-b a b") == [
        "RDKit", "PyTorch Lightning", "pytorchlightning"]  # fmt: skip
    assert names_pattern([]).findall("anything") == []


def test_plugins_give_a_query_per_command_and_agent():
    plugins = [
        SkillPlugin("p", ("known", "unknown"), (("Title", "does  it"),), (("agent", "helps"),)),
        SkillPlugin("q", ("unknown",), (("Title", "x"),), ()),
    ]
    found = plugin_queries(plugins, {"known"})
    assert [(query.text, query.gold, query.cluster) for query in found] == [
        ("Title. does it", ("known",), "plugin p"), ("agent. helps", ("known",), "plugin p")]  # fmt: skip


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=2), min_size=1, max_size=60), st.integers(1, 12))
def test_folds_never_split_a_cluster_and_are_even(clusters, folds):
    first = set(sorted(set(clusters))[::2])
    found = assign_folds(clusters, first, folds, "any")
    by_cluster = {
        cluster: {int(f) for c, f in zip(clusters, found, strict=True) if c == cluster} for cluster in clusters
    }
    assert all(len(places) == 1 for places in by_cluster.values())
    for group in (set(clusters), first):
        sizes = np.bincount([min(by_cluster[cluster]) for cluster in group], minlength=folds)
        assert sizes.max() - sizes.min() <= 1


@given(st.recursive(st.text() | st.integers(-9, 9), st.lists, max_leaves=8))
def test_pack_keeps_values(value):
    packed = pack(value)
    assert packed.dtype == np.uint8
    assert unpack(packed) == value
