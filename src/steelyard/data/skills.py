"""Collections of SKILL.md files, worked examples of tasks that need several skills, and the plugins of a collection."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from steelyard.data.cache import locate
from steelyard.data.records import parse_json, read_text
from steelyard.data.registry import Progress
from steelyard.errors import InputError

SkillSet = Literal["kdense_skills", "wshobson_skills", "anthropic_skills"]
SKILL_SETS: tuple[SkillSet, ...] = ("kdense_skills", "wshobson_skills", "anthropic_skills")


class SkillStep(NamedTuple):
    """A step of a worked example: its first line, and its details."""

    text: str
    details: tuple[str, ...]


class SkillTask(NamedTuple):
    """A worked example.

    Attributes:
        id: Its number.
        domain: Its field.
        title: Its title.
        objective: What is wanted.
        steps: The workflow.
        gold: Skills of the collection, as shared, that it uses: the label, never a part of a query.
    """

    id: int
    domain: str
    title: str
    objective: str
    steps: tuple[SkillStep, ...]
    gold: tuple[str, ...]

    def query(self, form: Literal["full", "first lines"] = "full") -> str:
        """Return the task as text, without its label: title, objective, then the steps, with their details or not."""
        lines = [f"Title: {self.title}", f"Objective: {self.objective}"]
        for step in self.steps:
            lines.append(step.text)
            lines += step.details if form == "full" else ()
        return "\n".join(lines)


class SkillPlugin(NamedTuple):
    """A plugin: names of its skills, and (title, description) of its commands and agents; weak labels."""

    name: str
    skills: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    agents: tuple[tuple[str, str], ...]


def skill_library_folder(name: SkillSet, progress: Progress | None = None) -> Path:
    """Return the checked folder of a collection, one SKILL.md a folder below it.

    Args:
        name: ``kdense_skills`` (94 skills), ``wshobson_skills`` (181) or ``anthropic_skills`` (12).
        progress: Not used: the collections are in a mirror only.

    Raises:
        InputError: No such collection.
        DataMissingError: It is not in a mirror here.
        ChecksumError: Its bytes are not those of the mirror's index.
    """
    return _folder(name, progress) / "skills"


def skill_tasks(progress: Progress | None = None) -> list[SkillTask]:
    """Return the 23 worked examples of ``kdense_skills``, with 6.00 gold skills each on average.

    Raises:
        DataMissingError: Not in a mirror here.
        ChecksumError: Its bytes are not those of the mirror's index.
    """
    path = _folder("kdense_skills", progress) / "tasks.json"
    return [
        SkillTask(
            row["id"], row["domain"], row["title"], row["objective"],
            tuple(SkillStep(step["text"], tuple(step["details"])) for step in row["steps"]),
            tuple(row["skills_included"]),
        )
        for row in parse_json(read_text(path), str(path))
    ]  # fmt: skip


def skill_plugins(progress: Progress | None = None) -> list[SkillPlugin]:
    """Return the 91 plugins of ``wshobson_skills``, 50 of them with skills.

    Raises:
        DataMissingError: Not in a mirror here.
        ChecksumError: Its bytes are not those of the mirror's index.
    """
    path = _folder("wshobson_skills", progress) / "plugins.json"

    def pairs(rows: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
        return tuple((row["title"] or row["name"], row["description"]) for row in rows)

    return [
        SkillPlugin(row["plugin"], tuple(row["skills"]), pairs(row["commands"]), pairs(row["agents"]))
        for row in parse_json(read_text(path), str(path))
    ]


def _folder(name: str, progress: Progress | None) -> Path:
    if name not in SKILL_SETS:
        raise InputError(f"name must be one of {', '.join(SKILL_SETS)}, got {name!r}")
    paths = locate(name, progress).paths
    return Path(os.path.commonpath([path.parent for path in paths]))
