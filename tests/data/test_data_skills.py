"""The collections of skills: in a mirror only, checked, and with the counts that are written down."""

from __future__ import annotations

import pytest

from steelyard import data
from steelyard.data.registry import lookup
from steelyard.data.skills import SKILL_SETS
from steelyard.errors import DataMissingError, InputError


@pytest.fixture
def mirrored(mirror, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(mirror))


@pytest.mark.parametrize(
    ("name", "skills"), [("kdense_skills", 94), ("wshobson_skills", 181), ("anthropic_skills", 12)]
)
def test_every_file_of_a_collection_is_registered(mirrored, name, skills):
    folder = data.skill_library_folder(name)
    assert len(list(folder.rglob("SKILL.md"))) == lookup(name).rows == skills
    assert (folder.parent / "LICENSE.txt").is_file()
    assert data.path(name) == folder.parent
    assert lookup(name).mirror_only


def test_the_worked_tasks(mirrored):
    tasks = data.skill_tasks()
    assert len(tasks) == 23
    assert sum(len(task.gold) for task in tasks) == 138  # 6.00 each
    assert {len(task.gold) for task in tasks} <= set(range(2, 10))
    folder = data.skill_library_folder("kdense_skills")
    known = {path.parent.name for path in folder.rglob("SKILL.md")}
    assert all(set(task.gold) <= known for task in tasks)
    full, first = tasks[0].query(), tasks[0].query("first lines")
    assert full.startswith("Title: Discovery of Novel EGFR Inhibitors")
    assert set(first.split("\n")) < set(full.split("\n"))
    assert len(first.split("\n")) == 2 + len(tasks[0].steps)


def test_the_plugins(mirrored):
    plugins = data.skill_plugins()
    assert len(plugins) == 91
    assert sum(bool(plugin.skills) for plugin in plugins) == 50
    assert sum(bool(plugin.skills and plugin.commands) for plugin in plugins) == 26
    assert all(title for plugin in plugins for title, _ in plugin.commands + plugin.agents)


def test_without_a_mirror_one_sentence_says_so(cache):
    for name in SKILL_SETS:
        with pytest.raises(DataMissingError, match="in a mirror folder only"):
            data.skill_library_folder(name)
    with pytest.raises(InputError, match="name must be one of kdense_skills"):
        data.skill_library_folder("other")
