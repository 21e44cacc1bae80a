"""The greedy steps by hand: which groups a plan takes, when it stops, which payloads are kept; and their switches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from steelyard.agents.goskills.core import Weights
from steelyard.agents.goskills.groups import GROUP_WEIGHTS, Group, GroupGraph, GroupRows, Member
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.selection import grow_plan, squeeze
from steelyard.agents.goskills.skill import Skill

W = Weights()
CHAIN = (
    Skill("gauge-import", "Import gauge levels. Load gauge levels from tide stations.",
          "Then use the skill `level-smoothing`."),
    Skill("level-smoothing", "Smooth noisy levels.", "Then use the skill `coast-maps`."),
    Skill("coast-maps", "Draw coast maps."),
    Skill("bread-recipes", "Bake bread."),
)  # fmt: skip
TASK = "Load gauge levels.\nSmooth noisy levels.\nDraw coast maps."


def links(size, **pairs):
    """Return a graph of groups with edges both ways, by kind ("_" for "-")."""
    tables = {}
    for kind in GROUP_WEIGHTS:
        table = np.zeros((size, size), dtype=bool)
        for one, other in pairs.get(kind.replace("-", "_"), ()):
            table[one, other] = table[other, one] = True
        tables[kind] = sparse.csr_array(table)
    return GroupGraph(tables)


def alone(size):
    return GroupRows([Group(place) for place in range(size)])


def test_a_plan_takes_the_group_of_the_largest_gain():
    cover = np.array([[1.0, 0, 0, 0], [0, 1.0, 1.0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])
    scores = np.array([0.9, 0.1, 0.1, 0.1])
    # gains of the first step: .5 * (2/4) = .25, .5 / 4 = .125 (+ .3 for its link), .5 / 4, each + .02
    assert grow_plan(0, alone(4), links(4), cover, scores, W, 1) == [0, 1]
    assert grow_plan(0, alone(4), links(4, support=[(0, 2)]), cover, scores, W, 1) == [0, 2]
    assert grow_plan(0, alone(4), links(4, incompatibility=[(0, 1)]), cover, scores, W, 1) == [0, 2]
    assert grow_plan(0, alone(4), links(4), cover, scores, W, 2) == [0, 1, 3]
    assert grow_plan(0, alone(4), links(4), cover, scores, W, 0) == [0]
    assert grow_plan(0, alone(4), links(4), cover, scores, W, 9) == [0, 1, 3], "group 2 adds nothing any more"


@pytest.mark.parametrize(("required", "grown"), [(19, [0, 1]), (20, [0, 1]), (21, [0])])
def test_growth_stops_below_a_twentieth_of_what_is_required(required, grown):
    cover = np.zeros((2, required))
    cover[1, 0] = 1.0
    scores = np.array([0.9, 0.8])
    assert grow_plan(0, alone(2), links(2), cover, scores, W, 2) == grown
    assert grow_plan(0, alone(2), links(2), cover, scores, W, 2, stop="whole score") == [0, 1]


def test_a_group_covers_what_its_members_cover():
    rows = GroupRows([Group(0), Group(1, (Member(2, "parser"),)), Group(2), Group(3)])
    cover = np.array([[1.0, 0, 0], [0, 0.2, 0], [0, 0, 1.0], [0, 0.6, 0]])
    assert grow_plan(0, rows, links(4), cover, np.zeros(4), W, 1) == [0, 1]
    assert grow_plan(0, alone(4), links(4), cover, np.zeros(4), W, 1) == [0, 2]


def test_payloads_by_hand():
    cover = np.array([[1.0, 0, 0, 0], [0, 0.4, 0.4, 0], [0, 0, 0, 1.0], [0, 0.9, 0, 0]])
    literal = np.array([False, False, False, True])
    scores = np.array([0.5, 0.2, 0.0, 0.1])
    steps = squeeze(0, [1, 2, 3], cover, literal, scores, W, 4, 0.5)
    # a name is worth 1 + 1/4; then .9 / 4 + .03 = .255 < .8 / 4 + .06 = .26; then (.9 - .4) / 4 + .03
    assert [(step.skill, step.why) for step in steps] == [
        (0, "anchor"), (2, "literal requirement"), (1, "coverage"), (3, "coverage")
    ]  # fmt: skip
    assert [step.gain for step in steps] == pytest.approx([0.5, 1.25, 0.26, 0.155])
    assert [step.skill for step in squeeze(0, [1, 2, 3], cover, literal, scores, W, 2, 0.5)] == [0, 2]
    dear = squeeze(0, [1, 3], cover, literal, scores, W, 2, 0.5, np.array([1.0, 1.0, 1.0, 0.5]))
    assert [step.skill for step in dear] == [0, 3], "gain per cost"
    same = squeeze(0, [3, 2, 1], np.zeros((4, 0)), np.zeros(0, dtype=bool), np.zeros(4), W, 4, 0.5)
    assert [(step.skill, step.why) for step in same][1:] == [(1, "score"), (2, "score"), (3, "score")], "ties by place"


@given(arrays.arrays(np.float64, (6, 3), elements=st.floats(0, 1)), st.integers(1, 7), st.data())
def test_payloads_are_distinct_within_budget_and_of_the_pool(cover, budget, data):
    pool = data.draw(st.sets(st.integers(0, 5)))
    literal = np.array(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    chosen = [step.skill for step in squeeze(2, pool, cover, literal, cover.mean(axis=1), W, budget, 0.5)]
    assert chosen[0] == 2
    assert len(set(chosen)) == len(chosen) == min(budget, len(pool | {2}))
    assert set(chosen) <= pool | {2}


def read(expand, backfill):
    retriever = GoSkillsRetriever(SkillLibrary.from_skills(CHAIN), expand=expand, backfill=backfill)
    return retriever.read(TASK), retriever.retrieve(TASK)


def test_support_groups_add_skills_without_backfill_and_roles_with_it():
    """The switch is alive: what it changes is the selection, or, where backfill finds the same skills, the roles."""
    for backfill in (False, True):
        grown, kept = read(True, backfill)[0].plan, read(False, backfill)[0].plan
        assert (len(grown), len(kept)) == (2, 1)
    assert read(True, False)[1].names == ("level-smoothing", "coast-maps", "gauge-import")
    assert read(False, False)[1].names == ("level-smoothing", "coast-maps")
    for expand, role in ((True, "support"), (False, "backfill")):
        roles = {one.skill: one.role for one in read(expand, True)[1].support}
        assert roles == {"coast-maps": "formatter", "gauge-import": role}


def test_the_anchors_score_counts_what_its_whole_group_covers():
    """A(g|q) term by term: .30 words + .30 cosine + .20 cov(g) + .10 role + .05 centrality + .05 group - .30 unfit."""
    library = SkillLibrary.from_skills(CHAIN).build_graph().build_groups()
    retriever = GoSkillsRetriever(library)
    reading = retriever.read(TASK)
    for place, group in enumerate(library.groups):
        whole = np.mean([max(reading.cover[one, f] for one in group.skills) for f in range(reading.cover.shape[1])])
        terms = {name: float(values[place]) for name, values in reading.terms.items()}
        assert terms["cov"] == pytest.approx(whole)
        score = 0.3 * terms["lex"] + 0.3 * terms["cos"] + 0.2 * whole + 0.1 * terms["role_fit"]
        score += 0.05 * terms["centrality"] + 0.05 * terms["group_bonus"] - 0.3 * terms["incompat"]
        assert reading.scores[place] == pytest.approx(score)
    start = library.index("level-smoothing")
    assert reading.terms["cov"][start] > reading.cover[start].mean(), "the member's cover counts too"
