"""The query schema, the words of the rules, the cues of a skill, and cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.goskills.cover import CueIndex
from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.profile import MAX_SENTENCE, profile
from steelyard.agents.goskills.schema import (
    DIMENSIONS,
    MAX_CLAUSES,
    Confidences,
    Feature,
    clauses_of,
    query_schema,
    steps_of,
)
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.words import canonical_formats, formats, grams, stem

NAMES = NameIndex([Skill("rdkit", "d"), Skill("report-writing", "d")])
TASK = """Title: Drug screen
Objective: Find new inhibitors
Domain: chemistry
1. Load compounds with RDKit from CSV files
2. Write a clinical report (PDF), at most 3 pages
- Rank them"""


def test_seven_dimensions():
    schema = query_schema(TASK, NAMES)
    assert all(hasattr(schema, name) for name in DIMENSIONS)
    assert (schema.task_name, schema.goal, schema.domain) == ("Drug screen", "Find new inhibitors", "chemistry")
    assert schema.operations == (
        "find new inhibitors",
        "load compounds rdkit csv files",
        "write clinical report pdf 3",
    )
    assert schema.artifacts[:2] == ("csv", "pdf")
    assert "clinical report" in schema.artifacts
    assert schema.constraints == ("Write a clinical report (PDF), at most 3 pages",)
    assert "compounds" in schema.keywords
    named = [feature for feature in schema.features if feature.skills]
    assert named == [Feature("keywords", "rdkit", 0.95, (), (0,))]
    assert {feature.conf for feature in schema.features} == {0.95, 0.7, 0.4}
    assert all(feature.conf >= 0.7 for feature in schema.features if feature.dimension in ("operations", "artifacts"))


def test_confidences_are_a_knob():
    schema = query_schema(TASK, NAMES, Confidences(0.9, 0.6, 0.1, 0.6))
    assert {feature.conf for feature in schema.features} == {0.9, 0.6, 0.1}


def test_a_plain_sentence_and_one_without_a_verb():
    schema = query_schema("Plot", NAMES)
    assert (schema.goal, schema.operations) == ("Plot", ())
    assert query_schema("...", NAMES).goal == "..."
    assert query_schema("cluster", NAMES).features[0].dimension == "goal"


def test_an_operation_that_names_a_skill_is_covered_by_it():
    skills = [Skill("rdkit", "d"), Skill("other", "d")]
    operation = next(
        one for one in query_schema("Load compounds with RDKit", NAMES).features if one.dimension == "operations"
    )
    cover = CueIndex([profile(skill) for skill in skills]).cover([operation], None)
    assert cover.tolist() == [[1.0], [0.0]]


def test_clauses_are_lines_and_sentences_without_marks():
    assert clauses_of("1) One. Two!\n\n* three\nStep 4: four") == ["One.", "Two!", "three", "four"]
    assert len(clauses_of("a\n" * 500)) == MAX_CLAUSES


@given(st.text(min_size=1, max_size=300).filter(lambda text: text.strip()))
def test_any_task_has_a_schema_of_one_line_values(task):
    schema = query_schema(task, NAMES)
    assert schema == query_schema(task, NAMES)
    assert all(feature.value and "\n" not in feature.value and len(feature.value) <= 240 for feature in schema.features)
    assert len({(one.dimension, one.value) for one in schema.features if one.dimension == "operations"}) == len(
        schema.operations
    )


def test_words():
    assert [stem(word) for word in ("tables", "studies", "class", "virus", "analysis", "bus", "is")] == [
        "table", "study", "class", "virus", "analysis", "bus", "is",
    ]  # fmt: skip
    assert grams("Clean the tables, plot a curve") == ["clean table", "plot curve"]
    assert formats("Read .CSV, Excel or csv; not a csvx") == ["csv", "xlsx"]
    assert canonical_formats([".CSV", "csv", " Data  Frame ", ""]) == {"csv", "data frame"}


def test_cues_of_a_skill():
    body = (
        "## When to export json\n```python\n# never read this\n```\nNever skip the header.\n- Verify **every** row. "
        + "Check " + "x" * 400
    )  # fmt: skip
    cues = profile(Skill("csv-checker",
                         "Load csv and write json. Validates tables. Not for image work. Use when dirty.",
                         body,
                         tags=("clean rows",)))  # fmt: skip
    assert (cues.reads, cues.writes >= {"json"}, cues.checker, cues.entry) == (
        frozenset({"csv", "json"}),
        True,
        True,
        False,
    )
    assert {"csv checker", "clean row", "csv", "checker", "`csv-checker`"} <= cues.phrases
    assert cues.use_when == "Use when dirty."
    assert cues.avoid == ("Not for image work.", "Never skip the header.")
    assert cues.check[:2] == ("Validates tables.", "Verify every row.")
    assert len(cues.check[2]) == MAX_SENTENCE
    assert cues.unfit == {"image work"}
    assert profile(Skill("a", "An end-to-end pipeline")).entry


def test_cover_by_hand():
    index = CueIndex(
        [profile(Skill("alpha-beta", "Does a thing")), profile(Skill("gamma", "Other. Not for alpha beta."))]
    )
    features = [
        Feature("operations", "x", 0.7, ("alpha beta",)),
        Feature("goal", "y", 0.4),
        Feature("keywords", "gamma", 0.95, (), (1,)),
    ]
    cosines = np.array([[0.1, 0.4], [0.9, 0.55], [0.99, 0.2]])
    assert np.allclose(index.cover(features, cosines), [[1.0, 1.0, 0.0], [1.0, 0.5, 1.0]])
    assert index.cover(features, None).tolist() == [[1, 0, 0], [1, 0, 1]]
    assert index.unfit(features).tolist() == [False, True]


@pytest.mark.parametrize("cosine", [-1.0, 0.3, 0.55, 0.8, 1.0])
def test_cover_is_linear_between_its_ends(cosine):
    index = CueIndex([profile(Skill("a", "b"))])
    cover = index.cover([Feature("goal", "y", 0.4)], np.array([[cosine]]))[0, 0]
    assert cover == pytest.approx(min(max((cosine - 0.3) / 0.5, 0.0), 1.0))


@pytest.mark.parametrize(
    ("clause", "steps"),
    [
        ("plot a CSV file and send it as PDF", ["plot a CSV file", "send it as PDF"]),
        ("Read a table, then draw charts", ["Read a table", "draw charts"]),
        ("align, sort and filter the reads", ["align", "sort", "filter the reads"]),
        ("a report and a plot of it", ["a report and a plot of it"]),
        ("build a clinical report", ["build a clinical report"]),
        (", and plot", ["plot"]),
    ],
)
def test_a_clause_is_parted_where_the_next_thing_is_done(clause, steps):
    assert steps_of(clause) == steps


@pytest.mark.parametrize(
    ("task", "inputs"),
    [
        ("Read sales.csv and write a report as PDF", {"csv"}),
        ("Write a report as PDF from the CSV", {"csv"}),
        ("Write the CSV", set()),
        ("Read a CSV and save it as CSV", set()),
        ("Load the clinical table into a dashboard", {"clinical table"}),
    ],
)
def test_inputs_are_what_every_mention_takes_in(task, inputs):
    assert set(query_schema(task, NAMES).inputs) == inputs
