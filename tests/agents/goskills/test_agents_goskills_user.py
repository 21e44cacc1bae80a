"""A skills folder of one's own: tasks with gold skills, and held-out sentences."""

from __future__ import annotations

import json

import pytest

from steelyard.agents.goskills import tasks, user
from steelyard.agents.goskills.bench import BENCH
from steelyard.agents.goskills.queries import MASK
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.toy import toy_skills
from steelyard.contracts import CellInput
from steelyard.errors import InputError


@pytest.fixture
def folder(tmp_path):
    for skill in toy_skills():
        home = tmp_path / "skills" / skill.name
        home.mkdir(parents=True)
        text = f"---\nname: {skill.name}\ndescription: {skill.description}\n---\n{skill.body}"
        (home / "SKILL.md").write_text(text)
    return tmp_path / "skills"


def write(tmp_path, rows):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_tasks_with_gold_are_weighed_end_to_end(folder, tmp_path):
    rows = [{"task": f"Use tide-reader for job {n}", "gold": ["tide-reader", "tide-cleaner"]} for n in range(8)]
    task = user.user_task(str(folder), tasks=write(tmp_path, rows), embedder="tfidf")
    assert task.label == "8 your tasks on 60 skills of yours"
    data = {**task.load(), **task.prepare(task.load())}
    measured = BENCH.run(CellInput("user", "goskills", {}, {}, {}, 7, data))
    assert measured.metrics["must_hit"] == 1.0
    assert 0.5 <= measured.metrics["gold_recall"] <= 1.0


def test_without_tasks_held_out_sentences_find_their_skill(folder):
    task = user.user_task(folder, embedder="tfidf")
    skills, queries = tasks.everything(task.load())
    assert len(skills) == 60
    assert len(queries) >= 24
    described = {skill.name: skill.description for skill in skills}
    for query in queries:
        (name,) = query.gold
        assert query.text not in described[name]  # no text is searched for itself
        assert name not in query.text


def test_what_says_when_to_use_a_skill_leaves_description_and_body():
    skills = [
        Skill("tile-maker", "Cuts maps into square tiles. Use tile-maker when maps are large. Use other-one instead.",
              "# T\nIntro\n## When to Use This Skill\n- big maps\n## Steps\ncut"),
        Skill("one-liner", "Use this when nothing else is left."),
        Skill("silent", "Says nothing of its use. Really."),
    ]  # fmt: skip
    rest, queries = user.hold_out(skills)
    assert [(query.text, query.gold) for query in queries] == [(f"Use {MASK} when maps are large.", ("tile-maker",))]
    assert rest[0].description == "Cuts maps into square tiles. Use other-one instead."
    assert rest[0].body == "# T\nIntro\n## Steps\ncut"
    assert [skill.description for skill in rest[1:]] == [skill.description for skill in skills[1:]]


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"gold": ["tide-reader"]}, "'task'"),
        ({"task": "x"}, "'gold'"),
        ({"task": "x", "gold": []}, "'gold'"),
        ({"task": "x", "gold": [3]}, "'gold'"),
        ({"task": "x", "gold": ["no\x1b-such"]}, r"no\\x1b-such"),
        ({"task": "x" * 20_001, "gold": ["tide-reader"]}, "20001 letters"),
    ],
)
def test_bad_rows_are_named(folder, tmp_path, row, names):
    rows = [{"task": "fine", "gold": "tide-reader"}, row]
    with pytest.raises(InputError, match=f"row 2.*{names}"):
        user.user_task(folder, tasks=write(tmp_path, rows), embedder="tfidf")


def test_too_few_or_too_many_tasks_and_no_folder(folder, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="gives 2 tasks"):
        user.user_task(folder, tasks=write(tmp_path, [{"task": "a", "gold": "tide-reader"}] * 2), embedder="tfidf")
    monkeypatch.setattr(user, "_MAX_TASKS", 1)
    with pytest.raises(InputError, match="more than 1"):
        user.user_task(folder, tasks=write(tmp_path, [{"task": "a", "gold": "tide-reader"}] * 2), embedder="tfidf")
    with pytest.raises(InputError, match="data must be a folder"):
        user.user_task([1], embedder="tfidf")
    with pytest.raises(InputError, match="folder"):
        user.user_task(tmp_path / "nowhere", embedder="tfidf")
