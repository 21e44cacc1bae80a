"""Queries with gold skills: worked examples in two forms, their steps with every name masked, plugins, and folds.

A query is one string, and its lines are its clauses; whatever a retriever makes of it, it makes of that string alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard import rng

if TYPE_CHECKING:
    from steelyard.data.skills import SkillPlugin, SkillStep, SkillTask

MASK = "the tool"
_SHORTEST_NAME = 4  # "pdf" or "r" in a sentence is no skill's name
_SHORTEST_SPACED = 6


class Query(NamedTuple):
    """What is asked, and the skills that should be found; queries of one ``cluster`` are not independent."""

    text: str
    gold: tuple[str, ...]
    cluster: str


def pack(value: Any) -> NDArray[np.uint8]:
    """Return a value of JSON as bytes, uint8 of shape (length,): a fixed-width text array would be far larger."""
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8).copy()


def unpack(packed: NDArray[np.uint8]) -> Any:
    """Return what :func:`pack` was given."""
    return json.loads(packed.tobytes().decode())


def example_queries(tasks: Sequence[SkillTask], whole: bool) -> list[Query]:
    """Return one query per worked example: title and objective, then a line per step; its gold is no part of it.

    Args:
        tasks: The examples.
        whole: Steps with their details; else their first lines only.
    """
    found = []
    for task in tasks:
        lines = [f"{task.title}. {task.objective}", *(step_text(step, whole) for step in task.steps)]
        found.append(Query("\n".join(lines), task.gold, f"example {task.id}"))
    return found


def step_text(step: SkillStep, whole: bool = True) -> str:
    """Return a step as one line."""
    details = "; ".join(step.details) if whole else ""
    return " ".join(f"{step.text}: {details}".split()) if details else " ".join(step.text.split())


def step_queries(tasks: Sequence[SkillTask], names: Collection[str]) -> list[Query]:
    """Return the steps that name gold skills, these being their gold, with every name of the library masked.

    What is left is whether a skill is found by what it is for.
    """
    pattern = names_pattern(names)
    found = []
    for task in tasks:
        for step in task.steps:
            text = step_text(step)
            named = {_canonical(match) for match in pattern.findall(text)}
            gold = tuple(sorted(name for name in task.gold if _canonical(name) in named))
            if gold:
                found.append(Query(pattern.sub(MASK, text), gold, f"example {task.id}"))
    return found


def names_pattern(names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of skill names as text writes them: with hyphens, spaces or neither, longer ones first."""
    forms = set()
    for name in names:
        if len(name) >= _SHORTEST_NAME:
            forms.add(re.escape(name))
        if "-" in name and len(name) >= _SHORTEST_SPACED:
            forms.add(r"[\s_-]?".join(re.escape(part) for part in name.split("-")))
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile(rf"(?<![\w-])(?:{'|'.join(longest_first) or '(?!)'})(?![\w-])", re.IGNORECASE)


def _canonical(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


def plugin_queries(plugins: Sequence[SkillPlugin], known: Collection[str]) -> list[Query]:
    """Return a query per command and per agent of a plugin with known skills, these being its gold: a weak label."""
    found = []
    for plugin in plugins:
        gold = tuple(name for name in plugin.skills if name in known)
        texts = [" ".join(f"{title}. {text}".split()) for title, text in (*plugin.commands, *plugin.agents)]
        found += [Query(text, gold, f"plugin {plugin.name}") for text in texts if gold]
    return found


def assign_folds(clusters: Sequence[str], first: Collection[str], folds: int, stream: str) -> NDArray[np.int64]:
    """Return the fold of every query, int64 of shape (queries,): whole clusters, so that folds share none.

    Args:
        clusters: The cluster of every query.
        first: Clusters that are dealt out before the others, so that every fold gets its share of them.
        folds: How many folds.
        stream: Name of the stream that shuffles the clusters; scores have no part in it.
    """  # fmt: skip
    draws = rng.generator("goskills", f"{stream}/folds", 0)
    every = sorted(set(clusters))
    dealt = []
    for wanted in (True, False):
        group = [cluster for cluster in every if (cluster in first) == wanted]
        dealt += [group[place] for place in draws.permutation(len(group))]
    fold_of = {cluster: place % folds for place, cluster in enumerate(dealt)}
    return np.array([fold_of[cluster] for cluster in clusters], dtype=np.int64)
