"""The user's own skills folder: tasks with gold skills, or held-out sentences that must find their skill."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.queries import MASK, Query, names_pattern
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.tasks import Vectors, arrays_of, prepare
from steelyard.card import Frozen
from steelyard.contracts import Arrays, Task
from steelyard.data.records import read_json_lines
from steelyard.errors import InputError
from steelyard.models.paths import printable

FOLDS = 8  # of a weighing of one's own data: each has tasks that no other seed has
_MAX_TASKS, _MAX_TEXT = 2000, 20_000
_LEAST_LEFT = 20  # letters of a description that must remain when a sentence is held out
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WHEN = (
    r"\b(?:use|used|useful|invoke|apply)(?: this| it| {name})?(?: skill)?,? "
    r"(?:when|whenever|for|to|if|in|proactively)\b"
)
_WHEN_SECTION = re.compile(
    r"^#+ *(?:when to (?:use|apply)\b|use (?:this|when)\b)[^\n]*\n.*?(?=^#|\Z)", re.I | re.M | re.S
)


class Options(Frozen):
    """What a weighing on a skills folder of your own takes beside it."""

    tasks: str | None = Field(
        default=None,
        description="JSON Lines of {task, gold: [skill names]}; without it, the sentence of a description that says "
        "when to use the skill is held out, its names masked, and must find the skill",
    )
    embedder: Vectors = Field(
        default="minilm", description="vectors by MiniLM (a package of 88 MB), or tfidf, which needs no model"
    )


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's skills folder.

    Args:
        data: Folder with SKILL.md files at any depth; files that cannot be used are left out and listed by
            ``SkillLibrary.problems``.
        options: Fields of :class:`Options`.

    Raises:
        InputError: The folder or the tasks cannot be read, a gold skill is not in the library, or there are fewer than
            eight tasks.
    """
    chosen = Options(**options)
    if not isinstance(data, str | Path):
        raise InputError(f"data must be a folder of skills, got {type(data).__name__}")
    skills = list(SkillLibrary.from_dir(data).skills)
    if chosen.tasks is None:
        skills, queries = hold_out(skills)
        kind = "held-out sentences"
    else:
        queries, kind = read_tasks(Path(chosen.tasks), skills), "your tasks"
    if len(queries) < FOLDS:
        raise InputError(
            f"data gives {len(queries)} tasks ({kind}); at least {FOLDS} are needed, one for each of {FOLDS} seeds"
        )
    arrays: Arrays = arrays_of(skills, queries, FOLDS, "user", chosen.embedder)
    label = f"{len(queries)} {kind} on {len(skills)} skills of yours"
    return Task("user", label, lambda: arrays, "your own", prepare=prepare)


def read_tasks(path: Path, skills: Sequence[Skill]) -> list[Query]:
    """Return the tasks of a JSON Lines file.

    Raises:
        InputError: A row, with its number, has no ``task`` or ``gold``, names an unknown skill or is too long.
    """
    names = {skill.name for skill in skills}
    rows = read_json_lines(path)
    if len(rows) > _MAX_TASKS:
        raise InputError(f"{path} has {len(rows)} tasks, more than {_MAX_TASKS}; split it")
    return [_read_row(row, where, names, f"task {number}") for number, (where, row) in enumerate(rows, 1)]


def _read_row(row: Any, where: str, names: set[str], cluster: str) -> Query:
    text, gold = row.get("task"), row.get("gold")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: 'task' must be text")
    if len(text) > _MAX_TEXT:
        raise InputError(f"{where}: 'task' has {len(text)} letters, more than {_MAX_TEXT}; shorten it")
    gold = [gold] if isinstance(gold, str) else gold
    if not isinstance(gold, list) or not gold or not all(isinstance(name, str) for name in gold):
        raise InputError(f"{where}: 'gold' must be a list of skill names; a recall needs to know what to find")
    unknown = [name for name in gold if name not in names]
    if unknown:
        raise InputError(f"{where}: 'gold' names '{printable(unknown[0])[:80]}', which is no skill of the folder")
    return Query(text.strip(), tuple(dict.fromkeys(gold)), cluster)


def hold_out(skills: Sequence[Skill]) -> tuple[list[Skill], list[Query]]:
    """Return the skills without what says when to use them, and one query from what was taken out of each.

    The sentences about use leave the description, and the section about use the body, of every skill, so that no text
    is searched for itself; all names of skills are masked in the queries. Skills whose description would be left
    without a sentence keep it and are asked for by nothing.
    """
    pattern = names_pattern([skill.name for skill in skills] + [skill.plain_name for skill in skills])
    rest, queries = [], []
    for skill in skills:
        sentences = [part for part in _SENTENCE.split(skill.description) if part]
        when = re.compile(_WHEN.format(name=re.escape(skill.plain_name)), re.IGNORECASE)
        about_use = [part for part in sentences if when.search(part)]
        left = " ".join(part for part in sentences if part not in about_use)
        body = _WHEN_SECTION.sub("", skill.body)
        if about_use and len(left) >= _LEAST_LEFT:
            rest.append(dataclasses.replace(skill, description=left, body=body))
            queries.append(Query(pattern.sub(MASK, " ".join(about_use)), (skill.name,), skill.name))
        else:
            rest.append(dataclasses.replace(skill, body=body))
    return rest, queries
