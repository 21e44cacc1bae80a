"""Baselines: closed forms, peers, ties by name, and one query string for all."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from steelyard.agents.goskills import baselines
from steelyard.agents.goskills.baselines import (
    RETRIEVERS,
    BM25Retriever,
    ChunkedNamedFirstRetriever,
    ChunkedVectorRetriever,
    ClauseHybridRetriever,
    GraphOfSkillsRetriever,
    HybridRetriever,
    NaiveGroupingRetriever,
    NamedFirstRetriever,
    RandomRetriever,
    VanillaRetriever,
    VectorRetriever,
)
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.shelf import Shelf, clauses
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.stopwords import content_words
from steelyard.agents.goskills.toy import toy_queries, toy_skills
from steelyard.errors import InputError

LIBRARY = SkillLibrary(toy_skills()).build_graph().build_groups()
SHELF = Shelf(LIBRARY)
TASK = toy_queries()[0].text
NAMES = [skill.name for skill in LIBRARY.skills]


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_every_baseline_has_the_methods_interface(kind):
    for budget in (1, 3, 8):
        contract = kind(SHELF, budget=budget).retrieve(TASK)
        assert len(set(contract.names)) == budget
        assert contract.start.skill == contract.names[0]
        assert contract.check == contract.avoid == contract.debt == ()
        assert len(contract.render("markdown")) <= 12_000
    assert kind(SHELF).retrieve(TASK) == kind(SHELF).retrieve(TASK)
    with pytest.raises(InputError, match="task is empty"):
        kind(SHELF).retrieve(" \n")
    with pytest.raises(InputError, match="budget"):
        kind(SHELF, budget=0)


@pytest.mark.parametrize("kind", [HybridRetriever, ClauseHybridRetriever, ChunkedNamedFirstRetriever])
def test_a_skill_without_a_word_in_common_gains_nothing_by_its_name(kind):
    skills = [Skill(f"aa-{number}", "Bake bread.", "Knead it.") for number in range(12)]
    skills += [Skill("zz-ice", "Measure melting glaciers."), Skill("yy-clay", "Fire hot kilns.")]
    shelf = Shelf(SkillLibrary(skills).build_graph())
    assert set(kind(shelf, budget=2).retrieve("See melting glaciers\nSee hot kilns").names) == {"zz-ice", "yy-clay"}


def test_groups_of_the_toy_stay_within_a_subject():
    """Its tables are those of a subject; one "table" for all would link every skill to the first names."""
    for group in LIBRARY.groups:
        assert len({NAMES[place].partition("-")[0] for place in group.skills}) == 1
        assert group.members


def test_a_smaller_budget_is_a_prefix():
    for kind in RETRIEVERS:
        long = kind(SHELF, budget=8).retrieve(TASK).names
        assert kind(SHELF, budget=3).retrieve(TASK).names == long[:3]


def test_bm25_ranks_as_rank_bm25_does():
    documents = [
        content_words(f"{' '.join([skill.name] * 4)} {skill.description} {skill.description} {skill.body[:4000]}")
        for skill in LIBRARY.skills
    ]
    theirs = BM25Okapi(documents).get_scores(content_words(TASK))
    assert SHELF.bm25(TASK) == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    order = sorted(range(len(theirs)), key=lambda place: (-theirs[place], place))[:8]
    assert list(BM25Retriever(SHELF).retrieve(TASK).names) == [NAMES[place] for place in order]


def test_vectors_whole_and_by_clause():
    table = {"alpha": [1, 0], "beta": [0, 1], "first line\nsecond line": [1, 0.1], "first line": [1, 0],
             "second line": [0, 1]}  # fmt: skip

    def encode(texts):
        return np.array([table[text.partition(".")[0]] for text in texts], dtype=np.float32)

    library = SkillLibrary([Skill("alpha", "a"), Skill("beta", "b")]).build_graph(embedder=encode)
    shelf = Shelf(library, encode)
    task = "first line\nsecond line"
    assert VectorRetriever(shelf, budget=2).retrieve(task).names == ("alpha", "beta")
    assert shelf.cosines(clauses(task)).max(axis=0) == pytest.approx([1, 1])
    assert ChunkedVectorRetriever(shelf, budget=1).retrieve(task).names == ("alpha",)  # a tie goes by name


def test_hybrid_is_the_sum_of_reciprocal_ranks():
    by_words, by_vector = SHELF.best(SHELF.bm25(TASK), 40), SHELF.best(SHELF.cosines([TASK])[0], 40)
    scores = dict.fromkeys(range(len(NAMES)), 0.0)
    for ranking in (by_words, by_vector):
        for rank, place in enumerate(ranking, 1):
            scores[place] += 1 / (60 + rank)
    order = sorted(scores, key=lambda place: (-scores[place], place))
    assert HybridRetriever(SHELF).rank(TASK) == order


def test_clause_hybrid_sums_over_clauses():
    one = clauses(TASK)[0]
    alone = ClauseHybridRetriever(SHELF).rank(f"{one}\n")
    parts = clauses(one) if len(clauses(one)) > 1 else [one]
    assert len(alone) == len(NAMES)
    doubled = ClauseHybridRetriever(SHELF).rank("\n".join(parts + parts))
    assert doubled[:5] == ClauseHybridRetriever(SHELF).rank("\n".join(parts))[:5]


def test_named_skills_come_first_in_hybrid_order():
    named = SHELF.named(TASK)
    assert len(named) == 3
    hybrid = HybridRetriever(SHELF).rank(TASK)
    for kind in (NamedFirstRetriever, ChunkedNamedFirstRetriever):
        ranked = kind(SHELF).rank(TASK)
        assert set(ranked[:3]) == set(named)
        assert sorted(ranked) == sorted(hybrid)
    ranked = NamedFirstRetriever(SHELF).rank(TASK)
    assert ranked == [p for p in hybrid if p in named] + [p for p in hybrid if p not in named]


def test_graph_of_skills_is_networkx_pagerank_from_its_seeds():
    seeds = SHELF.ordered(SHELF.hybrid(TASK, 20))[:5]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(NAMES)))
    edges = LIBRARY.graph.matrix().tocoo()
    graph.add_weighted_edges_from(zip(edges.row.tolist(), edges.col.tolist(), edges.data.tolist(), strict=True))
    for node in list(graph):
        if not graph.out_degree(node):
            graph.add_edge(node, node, weight=1.0)
    start = {place: 1 / rank for rank, place in enumerate(seeds, 1)}
    theirs = nx.pagerank(graph, alpha=0.8, personalization=start, weight="weight", tol=1e-12, max_iter=500)
    ours = GraphOfSkillsRetriever(SHELF, budget=5).retrieve(TASK).names
    assert list(ours) == [NAMES[place] for place in sorted(theirs, key=lambda place: (-theirs[place], place))[:5]]


def test_naive_grouping_selects_as_the_hybrid_and_only_shows_it_otherwise():
    grouped, flat = NaiveGroupingRetriever(SHELF).retrieve(TASK), HybridRetriever(SHELF).retrieve(TASK)
    assert grouped.names == flat.names
    assert flat.support == ()
    near = SHELF.cosines([LIBRARY[grouped.names[0]].card])[0]
    shown = {name for name in grouped.names[1:] if near[NAMES.index(name)] >= baselines.GROUPING}
    assert {one.skill for one in grouped.support} == shown


def test_random_depends_on_seed_and_task_only():
    first, again = (RandomRetriever(SHELF, seed=1).retrieve(TASK).names for _ in range(2))
    assert first == again
    assert RandomRetriever(SHELF, seed=2).retrieve(TASK).names != first
    assert RandomRetriever(SHELF, seed=1).retrieve("another").names != first


def test_vanilla_holds_every_skill_whole():
    vanilla = VanillaRetriever(SHELF)
    assert list(vanilla.retrieve(TASK).names) == NAMES
    assert all(skill.body in vanilla.context() for skill in LIBRARY.skills)
    assert vanilla.tokens() == -(-len(vanilla.context()) // 4)


def test_a_shelf_needs_skills_and_a_graph():
    with pytest.raises(InputError, match="build_graph"):
        Shelf(SkillLibrary(toy_skills()))


@given(st.lists(st.text(alphabet="ab .?!;\n", max_size=30), max_size=6).map("".join))
def test_clauses_lose_no_letter(text):
    assert sorted("".join(clauses(text)).replace(" ", "")) == sorted("".join(text.split()))


@given(st.dictionaries(st.integers(0, len(NAMES) - 1), st.floats(0, 1), max_size=20))
def test_ordered_is_a_permutation_sorted_by_score_then_name(scores):
    order = SHELF.ordered(scores)
    assert sorted(order) == list(range(len(NAMES)))
    head = order[: len(scores)]
    assert head == sorted(scores, key=lambda place: (-scores[place], place))


@given(st.text(max_size=200).filter(str.strip), st.integers(1, 70))
def test_any_text_gives_distinct_skills_within_the_budget(text, budget):
    contract = NamedFirstRetriever(SHELF, budget=budget).retrieve(text)
    assert len(set(contract.names)) == len(contract.names) == min(budget, len(NAMES))
