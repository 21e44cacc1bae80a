"""Measures of a contract, the simulated agent, and means over clusters."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.goskills import measure
from steelyard.agents.goskills.contract import ExecutionContract, Start, Support
from steelyard.agents.goskills.queries import Query
from steelyard.agents.goskills.simulator import simulated_success
from steelyard.agents.goskills.skill import Skill
from steelyard.errors import InputError

SKILLS = tuple(Skill(name, f"{name} does it") for name in "abcd")
CONTRACT = ExecutionContract(Start("a", "why"), (Support("b", "checker", "w"), Support("c", "backfill", "w")),
                             payloads=SKILLS)  # fmt: skip
QUERY = Query("do it", ("a", "b", "x"), "one")


def test_selection_by_hand():
    found = measure.selection(["a", "c", "b"], QUERY, ["b"], 2)
    assert found == {"gold_recall": 0.5, "must_hit": 0.0}
    assert measure.selection(["a", "c", "b"], QUERY, ["b"], 3) == {"gold_recall": 2 / 3, "must_hit": 1.0}
    assert math.isnan(measure.selection(["a"], QUERY, [], 3)["must_hit"])


def test_presentation_by_hand():
    found = measure.presentation(CONTRACT, QUERY, 8)
    assert found["tokens"] == math.ceil(len(CONTRACT.render("markdown")) / 4)
    assert (found["fields"], found["roles"], found["simulated"]) == (1.0, 0.5, 0.0)
    empty = measure.presentation(ExecutionContract(None), QUERY, 8)
    assert (empty["fields"], empty["roles"], empty["simulated"]) == (1.0, 0.0, 0.0)


def test_fields_are_those_of_both_renderings(monkeypatch):
    assert measure.has_fields(CONTRACT, 4)
    assert not measure.has_fields(CONTRACT, 3)  # more skills than the budget
    real = ExecutionContract.render
    monkeypatch.setattr(ExecutionContract, "render", lambda self, f="markdown": real(self, f).replace("## CHECK", "##"))
    assert not measure.has_fields(CONTRACT, 4)


def test_means_are_over_clusters_of_means_within():
    rows = [{"x": 1.0}, {"x": 0.0}, {"x": 1.0}, {"x": math.nan}]
    assert measure.over_clusters(rows, ["a", "a", "b", "b"]) == {"x": 0.75}
    assert measure.over_clusters([{"x": math.nan}], ["a"]) == {}
    with pytest.raises(InputError, match="clusters"):
        measure.over_clusters([], [])


def test_the_simulated_agent_by_hand():
    assert simulated_success(["a", "b", "z"], "a", ["a", "b"], 8) == pytest.approx(0.97)
    assert simulated_success(["a", "b"], "b", ["a", "b"], 8) == 1.0
    assert simulated_success(["a", "z"], "z", ["a"], 8) == 0.0  # begins with what is not required
    assert simulated_success(["a"], "a", ["a", "b"], 8) == 0.0
    assert simulated_success(["a"], "a", ["a", "b"], 1) == 1.0  # no more could be handed over
    assert simulated_success([], None, ["a"], 8) == 0.0
    for arguments in ((["a"], "a", [], 8), (["a"], "a", ["a"], 0), (["a"], "a", ["a"], 8, 1.5)):
        with pytest.raises(InputError):
            simulated_success(*arguments)


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_another_unneeded_skill_never_helps_the_simulated_agent(required, chosen):
    start = chosen[0] if chosen else None
    before = simulated_success(chosen, start, sorted(required), 8)
    assert 0 <= simulated_success([*chosen, "extra"], start, sorted(required), 8) <= before <= 1


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abc")), min_size=1, max_size=20))
def test_a_mean_does_not_depend_on_the_order(rows):
    pairs = [({"x": value}, cluster) for value, cluster in rows]
    one = measure.over_clusters(*map(list, zip(*pairs, strict=True)))
    other = measure.over_clusters(*map(list, zip(*pairs[::-1], strict=True)))
    assert one["x"] == pytest.approx(other["x"])
    assert min(v for v, _ in rows) - 1e-9 <= one["x"] <= max(v for v, _ in rows) + 1e-9


def test_contracts_are_values():
    assert dataclasses.replace(CONTRACT) == CONTRACT
