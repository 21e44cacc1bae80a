"""The bench's tasks as arrays: a library of skills, queries with gold skills, and the fold of each query.

Arrays of a task: ``skills`` and ``queries`` (JSON as bytes), ``fold`` int64 (queries,), ``folds``, ``must_hit``
(whether every fold has a query that names a gold skill) and ``vectors_by``; :func:`prepare` adds MiniLM's vectors,
encoded once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from steelyard.agents.embedding import Encoder
from steelyard.agents.goskills import encoded
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.queries import (
    Query,
    assign_folds,
    example_queries,
    pack,
    plugin_queries,
    step_queries,
    unpack,
)
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.shelf import Shelf, clauses
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.toy import toy_queries, toy_skills
from steelyard.contracts import Arrays, CellInput
from steelyard.data.skills import SKILL_SETS, skill_library_folder, skill_plugins, skill_tasks
from steelyard.errors import InputError
from steelyard.models import minilm

FOLDS = 10
Vectors = Literal["tfidf", "minilm"]


class Fold(NamedTuple):
    """What a cell works on: all skills, and the queries of its fold."""

    skills: list[Skill]
    queries: list[Query]
    must_hit: bool


def toy() -> Arrays:
    """Return the generated toy library and its tasks; TF-IDF vectors, so that no model is needed."""
    return arrays_of(toy_skills(), toy_queries(), FOLDS, "toy", "tfidf")


def kdense_full() -> Arrays:
    """Return 23 worked examples with the whole text of their steps."""
    return _real("kdense_full", example_queries(skill_tasks(), whole=True))


def kdense_first() -> Arrays:
    """Return the same examples with the first lines of their steps only."""
    return _real("kdense_first", example_queries(skill_tasks(), whole=False))


def kdense_steps() -> Arrays:
    """Return the examples' steps that name gold skills, every name masked."""
    return _real("kdense_steps", step_queries(skill_tasks(), [skill.name for skill in real_skills()]))


def wshobson() -> Arrays:
    """Return commands and agents of plugins, whose skills are their gold."""
    return _real("wshobson", plugin_queries(skill_plugins(), {skill.name for skill in real_skills()}))


@functools.cache
def real_skills() -> tuple[Skill, ...]:
    """Return the skills of the three public collections, by name.

    Raises:
        DataMissingError: A collection is not here.
    """
    folders = {name.partition("_")[0]: skill_library_folder(name) for name in SKILL_SETS}
    return SkillLibrary.join(SkillLibrary.from_dir(path, namespace=name) for name, path in folders.items()).skills


def _real(name: str, queries: Sequence[Query]) -> Arrays:
    return arrays_of(real_skills(), queries, FOLDS, name, "minilm")


def arrays_of(
    skills: Sequence[Skill], queries: Sequence[Query], folds: int, stream: str, vectors_by: Vectors
) -> Arrays:
    """Return the arrays of a task.

    Clusters with a query that names a gold skill are dealt out to the folds before the others, so that must-hit is
    defined in as many folds as can be; no score has a part in it.
    """
    names = NameIndex(skills)
    naming = {query.cluster for query in queries if named_gold(query, skills, names)}
    fold = assign_folds([query.cluster for query in queries], naming, folds, stream)
    defined = {int(place) for place, query in zip(fold, queries, strict=True) if query.cluster in naming}
    found: dict[str, Any] = {
        "skills": pack([dataclasses.asdict(skill) for skill in skills]),
        "queries": pack(list(queries)),
        "fold": fold,
        "folds": np.array(folds),
        "must_hit": np.array(len(defined) == folds),
        "vectors_by": np.array(vectors_by),
    }
    return found | ({"model": np.array(minilm.check())} if vectors_by == "minilm" else {})


def named_gold(query: Query, skills: Sequence[Skill], names: NameIndex) -> list[str]:
    """Return the gold skills that a query names, by the detector of GoSkills' backfill."""
    named = {skills[place].name for place in names.literal(query.text)}
    return [name for name in query.gold if name in named]


def fold_of(cell: CellInput) -> Fold:
    """Return what a cell works on.

    Raises:
        InputError: The seed is beyond the folds that the data are split into.
    """
    folds = int(cell.data["folds"])
    if cell.seed >= folds:
        raise InputError(f"the tasks of '{cell.task}' are split into {folds} folds; there is no seed {cell.seed}")
    skills, queries = everything(cell.data)
    own = [query for query, fold in zip(queries, cell.data["fold"].tolist(), strict=True) if fold == cell.seed]
    return Fold(skills, own, bool(cell.data["must_hit"]))


def everything(arrays: Mapping[str, Any]) -> tuple[list[Skill], list[Query]]:
    """Return all skills and queries of a task."""
    skills = [_skill(row) for row in unpack(arrays["skills"])]
    return skills, [Query(text, tuple(gold), cluster) for text, gold, cluster in unpack(arrays["queries"])]


def prepare(arrays: Arrays) -> Arrays:
    """Return MiniLM's vectors of every text that the retrievers ask for; nothing where no model is used."""
    if str(arrays["vectors_by"]) != "minilm":
        return {}
    skills, queries = everything(arrays)

    def use(encoder: Encoder) -> None:
        library = linked(skills, encoder)
        shelf, retriever = Shelf(library, encoder), GoSkillsRetriever(library, embedder=encoder)
        for query in queries:
            shelf.cosines([query.text, *clauses(query.text)])
            retriever.retrieve(query.text)

    return encoded.recorded(encoded.minilm_encoder(), use)


def embedder_of(arrays: Mapping[str, Any]) -> Encoder | None:
    """Return the encoder of a task with its prepared vectors; None: TF-IDF."""
    return encoded.lookup(arrays) if "vectors" in arrays else None


def linked(skills: Sequence[Skill], embedder: Encoder | None, max_members: int = 2) -> SkillLibrary:
    """Return a library of the skills with its graph and groups."""
    return SkillLibrary(skills).build_graph(embedder=embedder).build_groups(max_members)


def _skill(row: dict[str, Any]) -> Skill:
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return Skill(**{**row, **lists})
