"""The retriever: budgets, the floor, named skills, ablations, determinism, and what it refuses."""

from __future__ import annotations

import asyncio
import random
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.agents.goskills.contract import count_tokens
from steelyard.agents.goskills.core import Weights
from steelyard.agents.goskills.langchain import SkillDocument, SkillsRetriever
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.schema import Schema
from steelyard.agents.goskills.skill import Skill
from steelyard.errors import InputError
from steelyard.models.embedders import HashingEmbedder

SKILLS = (
    Skill("csv-cleaning", "Clean csv tables: remove duplicate rows. Use when a table is dirty.",
          "Then use the skill `survival-analysis`. Never delete the source file.", inputs=("csv",), outputs=("csv",)),
    Skill("survival-analysis", "Fit survival curves and Cox models to csv tables. Not for image segmentation.",
          "Requires `csv-cleaning` first. Afterwards pair it with `report-writing`.", inputs=("csv",),
          outputs=("json",)),
    Skill("report-writing", "Write a clinical report as pdf from json results.", "## Layout\nA page.", inputs=("json",),
          outputs=("pdf",)),
    Skill("result-checks", "Validate json results and check their units.",
          "Verify that every number has a unit. Works after `survival-analysis`.", inputs=("json",)),
    Skill("image-segmentation", "Segment cells in tiff images.", "Do not use with `survival-analysis`."),
    Skill("quick-report", "A simpler report.", "A simpler alternative to `report-writing`."),
    Skill("orbit", "Simulate orbital mechanics of satellites.", "orbits"),
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:skills depend on each other")
TASK = (
    "Clean the csv table of patients.\nFit survival curves.\n"
    "Write a clinical report as PDF. It must have a unit everywhere."
)


def library(skills=SKILLS):
    return SkillLibrary.from_skills(skills)


def test_a_contract_for_a_plain_task():
    contract = GoSkillsRetriever(library(), budget=4).retrieve(TASK)
    assert set(contract.names) == {"csv-cleaning", "survival-analysis", "report-writing", "result-checks"}
    assert contract.start.skill == contract.names[0]
    assert {one.skill for one in contract.support} == set(contract.names[1:])
    assert contract.check[0].text == "It must have a unit everywhere."
    assert any("Never delete the source file" in note.text for note in contract.avoid)
    assert any(note == ("do not use survival-analysis together with image-segmentation", "image-segmentation")
               for note in GoSkillsRetriever(library()).retrieve(TASK + " Segment cells.").avoid)  # fmt: skip


def test_the_order_of_files_changes_nothing():
    texts = set()
    for seed in range(6):
        shuffled = list(SKILLS)
        random.Random(seed).shuffle(shuffled)
        contract = GoSkillsRetriever(library(shuffled)).retrieve(TASK)
        texts.add((contract.render(), contract.render("json")))
    assert len(texts) == 1


def test_a_named_skill_is_always_in():
    for budget in (1, 2, 3):
        retriever = GoSkillsRetriever(library(), budget=budget)
        contract = retriever.retrieve("Use image-segmentation on tiff images, then result checks and quick-report.")
        assert len(contract.names) == budget
        assert set(contract.names) <= {"image-segmentation", "result-checks", "quick-report"}
        assert len([one for one in contract.debt if one.conf == 0.95]) == 3 - budget


def test_budget_one_is_the_anchor_alone():
    retriever = GoSkillsRetriever(library(), budget=1)
    explained = retriever.explain(TASK)
    assert [one["skill"] for one in explained["chosen"]] == [explained["plan"][0]["anchor"]]
    assert explained["scores"][0]["skill"] == explained["chosen"][0]["skill"]


def test_no_match_gives_an_empty_contract_that_owes_everything():
    retriever = GoSkillsRetriever(library())
    contract = retriever.retrieve("Bake bread loaves with zzz.docx")
    assert contract.empty
    assert contract.payloads == ()
    explained = retriever.explain("Bake bread loaves with zzz.docx")
    assert [one["value"] for one in explained["debt"]] == [one["value"] for one in explained["schema"]["required"]]
    assert explained["schema"]["required"]
    assert explained["coverage"] == {"value": 0.0, "vacuous": False}
    assert [one[:2] for one in retriever.retrieve("zzz").debt] == [("goal", "zzz")]  # nothing required: the task itself
    assert GoSkillsRetriever(library(), floor=0.0).retrieve("Bake bread").start is not None


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_word_in_common_is_a_match_in_a_small_library(size):
    skills = [Skill("aa-a", "Clean tables."), Skill("bb-b", "Paint walls."), Skill("cc-c", "Bake bread.")][:size]
    task = "We would like, among many other wholly unrelated chores in town, tables"
    assert GoSkillsRetriever(library(skills)).retrieve(task).names == ("aa-a",)


def test_explain_tells_all_that_a_contract_rests_on():
    explained = GoSkillsRetriever(library()).explain(TASK)
    assert set(explained) == {"schema", "scores", "plan", "chosen", "debt", "coverage", "contract"}
    assert set(explained["schema"]) >= {
        "goal",
        "task_name",
        "domain",
        "operations",
        "artifacts",
        "constraints",
        "keywords",
    }
    assert set(explained["scores"][0]) == {
        "skill", "score", "lex", "cos", "cov", "role_fit", "centrality", "group_bonus", "incompat"
    }  # fmt: skip
    assert {one["why"] for one in explained["chosen"]} <= {"anchor", "literal requirement", "coverage", "score"}
    assert explained["plan"][0]["kind"] == "anchor"
    owed, needed = len(explained["debt"]), len(explained["schema"]["required"])
    assert explained["coverage"]["value"] == pytest.approx(1 - owed / needed)


def test_what_a_skill_says_it_is_not_for_counts_against_it():
    terms = {
        one["skill"]: one
        for one in GoSkillsRetriever(library()).explain("Segment images: image segmentation")["scores"]
    }
    assert terms["survival-analysis"]["incompat"] == 1.0
    assert terms["image-segmentation"]["incompat"] == 0.0
    named = GoSkillsRetriever(library()).explain("Use survival-analysis")
    assert {one["skill"]: one["incompat"] for one in named["scores"]}["image-segmentation"] == 1.0


def test_ablations_only_take_away():
    whole = GoSkillsRetriever(library()).read(TASK)
    no_backfill = GoSkillsRetriever(library(), backfill=False).read(TASK)
    no_growth = GoSkillsRetriever(library(), expand=False).read(TASK)
    alone = GoSkillsRetriever(library().build_graph().build_groups(0), expand=False, backfill=False).read(TASK)
    assert len(no_growth.plan) == len(alone.plan) == len(alone.steps) == 1
    assert 1 <= len(whole.plan) <= 3
    inside = {skill for group in no_backfill.plan for skill in group.skills}
    assert {step.skill for step in no_backfill.steps} <= inside
    assert len(GoSkillsRetriever(library(), max_support=0).read(TASK).plan) == 1


def test_every_knob_is_heard():
    base = GoSkillsRetriever(library()).read(TASK)
    assert GoSkillsRetriever(library(), weights={"anchor_lex": 0.9}).read(TASK).scores.tolist() != base.scores.tolist()
    assert GoSkillsRetriever(library(), weights=Weights()).read(TASK).scores.tolist() == base.scores.tolist()
    assert (GoSkillsRetriever(library(), cover="literal").read(TASK).cover <= base.cover).all()
    assert len(GoSkillsRetriever(library(), stop="whole score").read(TASK).plan) >= len(base.plan)
    assert GoSkillsRetriever(library(), cost="tokens").read(TASK).steps[0] == base.steps[0]
    assert len(GoSkillsRetriever(library(), theta_cov=1.0).read(TASK).debt) >= len(base.debt)
    schema = Schema("g", "t", "", (), (), (), (), ())
    read = GoSkillsRetriever(library(), schema=lambda task: schema).read(TASK)
    assert (read.schema, read.debt, read.cover.shape) == (schema, (), (len(SKILLS), 0))
    explained = GoSkillsRetriever(library(), schema=lambda task: schema).explain(TASK)
    assert explained["coverage"] == {"value": 1.0, "vacuous": True}


def test_with_an_embedder():
    built = library().build_graph(embedder=HashingEmbedder(64))
    retriever = GoSkillsRetriever(built, embedder=HashingEmbedder(256))
    contract = retriever.retrieve(TASK)
    assert contract.start is not None
    assert retriever.retrieve(TASK) == contract
    auto = GoSkillsRetriever(library(), embedder=lambda texts: np.ones((len(texts), 3)))
    assert auto.library.graph.counts()["semantic"] == len(SKILLS) * 5


@pytest.mark.parametrize(
    ("embedder", "part"),
    [
        (lambda texts: np.zeros((1, 3)), "shape (1, 3)"),
        (lambda texts: np.full((len(texts), 3), np.nan), "texts[0] ('csv-cleaning. Clean csv tables"),
        (7, "embedder must be"),
    ],
)
def test_an_unusable_embedder_is_named(embedder, part):
    with pytest.raises(InputError) as caught:
        GoSkillsRetriever(library().build_graph(), embedder=embedder)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"budget": 0}, "budget"),
        ({"budget": True}, "budget"),
        ({"max_support": -1}, "max_support"),
        ({"theta_cov": 0}, "theta_cov"),
        ({"floor": 2}, "floor"),
        ({"max_chars": 0}, "max_chars"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"chars_per_skill": 0}, "chars_per_skill"),
        ({"weights": {"nonsense": 1.0}}, "no field 'nonsense'"),
        ({"weights": {"anchor_lex": -1.0}}, "weights.anchor_lex"),
        ({"cover": "x"}, "cover"),
        ({"stop": "x"}, "stop"),
        ({"cost": "x"}, "cost"),
    ],
)
def test_bad_options(options, part):
    with pytest.raises(InputError, match=part):
        GoSkillsRetriever(library(), **options)


def test_bad_tasks_and_an_empty_library():
    retriever = GoSkillsRetriever(library())
    for task, part in (("", "empty"), (" \n", "empty"), (7, "text"), ("x" * 100_001, "100001")):
        with pytest.raises(InputError, match=part):
            retriever.retrieve(task)
    with pytest.raises(InputError, match="library is empty"):
        GoSkillsRetriever(SkillLibrary([]))
    with pytest.raises(InputError, match="schema must return a Schema"):
        GoSkillsRetriever(library(), schema=lambda task: {}).retrieve("x")
    with pytest.raises(InputError, match=r"max_chars is 50, the smallest possible"):
        GoSkillsRetriever(library(), max_chars=50).retrieve(TASK)
    with pytest.raises(InputError, match=r"max_tokens is 5, the smallest possible"):
        GoSkillsRetriever(library(), max_tokens=5).retrieve(TASK)


WORDS = (
    "csv table clean survival report pdf check validate never avoid use skill alpha beta gamma `alpha` requires "
    "instead not for image json write load ## ``` - must"
)
NAMES = ("alpha", "beta", "gamma", "alpha-two", "beta-check", "d", "e-f")
words = st.sampled_from([*WORDS.split(), "\n"])
texts = st.lists(words, min_size=1, max_size=25).map(" ".join)


@st.composite
def libraries(draw):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return [
        Skill(
            name, draw(texts.filter(str.strip)), draw(texts), inputs=tuple(draw(st.lists(st.just("csv"), max_size=1)))
        )
        for name in names
    ]


@given(libraries(), texts, st.integers(1, 9), st.integers(300, 4000), st.integers(150, 900) | st.none())
@settings(max_examples=80)
def test_any_contract_is_within_its_budget_and_starts_with_a_payload(skills, task, budget, max_chars, max_tokens):
    retriever = GoSkillsRetriever(library(skills), budget=budget, max_chars=max_chars, max_tokens=max_tokens)
    if not task.strip():
        with pytest.raises(InputError, match="task is empty"):
            retriever.retrieve(task)
        return
    try:
        contract = retriever.retrieve(task)
    except InputError as error:
        assert "smallest possible" in str(error)  # noqa: PT017 - either is right
        return
    reading = retriever.read(task)
    assert len(contract.payloads) <= budget
    assert len(set(contract.names)) == len(contract.names)
    if contract.empty:
        assert len(contract.debt) == max(1, len(reading.required))
        assert not contract.payloads
    else:
        assert contract.start.skill == contract.names[0]
        assert {one.skill for one in contract.support} == set(contract.names[1:])
    for format in ("markdown", "json"):
        text = contract.render(format)
        assert len(text) <= max_chars
        assert max_tokens is None or count_tokens(text) <= max_tokens
    again = GoSkillsRetriever(library(skills[::-1]), budget=budget, max_chars=max_chars, max_tokens=max_tokens)
    assert again.retrieve(task).render("json") == contract.render("json")


def test_the_real_library_within_budget(skill_folders):
    parts = [SkillLibrary.from_dir(folder, namespace=name) for name, folder in skill_folders.items()]
    retriever = GoSkillsRetriever(SkillLibrary.join(parts))
    contract = retriever.retrieve(
        "Load an h5ad file with anndata, cluster the cells, and write a clinical report as PDF."
    )
    assert "anndata" in contract.names
    assert len(contract.render()) <= 12_000
    assert len(contract.render("json")) <= 12_000


def test_as_a_langchain_retriever(monkeypatch):
    retriever = GoSkillsRetriever(library(), budget=2, chars_per_skill=20)
    monkeypatch.setitem(sys.modules, "langchain_core.documents", None)
    (document,) = SkillsRetriever(retriever).invoke(TASK, {"tags": []})
    assert isinstance(document, SkillDocument)
    assert document.page_content == retriever.retrieve(TASK).render()
    assert document.metadata["skills"] == list(retriever.retrieve(TASK).names)
    kind = types.SimpleNamespace(Document=lambda page_content, metadata: (page_content, metadata))
    monkeypatch.setitem(sys.modules, "langchain_core.documents", kind)
    found = asyncio.run(SkillsRetriever(retriever, "skills").ainvoke(TASK))
    assert [metadata["place"] for _, metadata in found] == [0, 1]
    assert found[0][1]["role"] == "start"
    assert all(len(text) <= 20 for text, _ in found)
    with pytest.raises(InputError, match="documents"):
        SkillsRetriever(retriever, "other")


def test_a_bare_verb_or_a_word_of_most_skills_is_no_match():
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
    skills = [Skill(name, f"Make {name} requests.", "Use for requests.") for name in names]
    retriever = GoSkillsRetriever(library(skills))
    assert retriever.retrieve("make requests of kubernetes").empty
    assert retriever.retrieve("make gamma requests").start.skill == "gamma"


def test_what_is_read_is_not_to_be_produced():
    shelf = [Skill("csv-reader", "Read csv tables."), Skill("chart-maker", "Draw charts as pdf.")]
    contract = GoSkillsRetriever(library(shelf)).retrieve("Read sales.csv and draw charts as PDF")
    assert [note.text for note in contract.check if note.text.startswith("produce")] == ["produce: pdf"]
