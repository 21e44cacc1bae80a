"""The query schema: seven dimensions and the features of a task, read from its text alone by rules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.stopwords import content_words
from steelyard.agents.goskills.words import ARTIFACTS, TAKING, VERBS, formats, name_phrase, stem, stems
from steelyard.errors import InputError

Dimension = Literal["goal", "task_name", "domain", "operations", "artifacts", "constraints", "keywords"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

MAX_TASK = 100_000  # characters
MAX_CLAUSES = 96
MAX_KEYWORDS = 12
MAX_VALUE = 80
_OBJECT_WORDS = 4
_CLAUSE = re.compile(r"\n+|(?<=[.!?;])\s+")
_NEXT_STEP = re.compile(rf"(?:\s*[,;]\s*|\s+)(?:and\s+)?(?:then\s+)?(?=(?:{'|'.join(sorted(VERBS))})\b)", re.I)
_JOINED = re.compile(r"[,;]|\band\b|\bthen\b", re.I)
_FROM = re.compile(r"\b(?:from|given|using)\b(.*)", re.I)
_OUT = re.compile(r"\b(?:as|to|into)\b", re.I)
_MARK = re.compile(r"^\s*(?:[-*+•>#]+|\(?\d{1,3}[.):]|step\s+\d+\s*[:.)-]?)\s*", re.I)
_LABEL = re.compile(r"^\s*(title|task|objective|goal|domain|field|area)\s*:\s*(\S.*)$", re.I)
_CONSTRAINT = re.compile(
    r"\b(?:must|only|at (?:most|least)|no more than|without|should not|do not|don't|never|ensure|exactly|required?)\b",
    re.I,
)
_LABELS: Mapping[str, Dimension] = {
    "title": "task_name", "task": "task_name", "objective": "goal", "goal": "goal", "domain": "domain",
    "field": "domain", "area": "domain",
}  # fmt: skip


class Confidences(NamedTuple):
    """How sure a feature is, by how it was found, and from where on it is required (reconstruction)."""

    literal: float = 0.95
    phrase: float = 0.7
    embedded: float = 0.4
    required: float = 0.7


DEFAULT_CONFIDENCES = Confidences()


class Feature(NamedTuple):
    """Something the task asks for.

    Attributes:
        dimension: One of the seven.
        value: Its words, on one line.
        conf: Confidence in [0, 1].
        phrases: Pairs of stems, formats or single stems, one of which in a skill's cues is a literal hit.
        skills: Places of the skills that it names; empty unless it is a skill's name.
    """

    dimension: Dimension
    value: str
    conf: float
    phrases: tuple[str, ...] = ()
    skills: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schema:
    """The seven dimensions of a task in words, its features, and which of the artifacts it starts from."""

    goal: str
    task_name: str
    domain: str
    operations: tuple[str, ...]
    artifacts: tuple[str, ...]
    constraints: tuple[str, ...]
    keywords: tuple[str, ...]
    features: tuple[Feature, ...]
    clauses: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


SchemaReader = Callable[[str], Schema]


def clauses_of(task: str) -> list[str]:
    """Return the lines and sentences of a task without list marks, at most 96."""
    parts = (_MARK.sub("", part).strip() for part in _CLAUSE.split(task))
    return [part for part in parts if part][:MAX_CLAUSES]


def query_schema(task: str, names: NameIndex, sure: Confidences = DEFAULT_CONFIDENCES) -> Schema:
    """Return the schema of a task.

    Features: skills that it names and file formats (literal); a verb with the words after it in each step of each
    clause, and products such as "clinical report" (phrase); the goal, the title, the domain and frequent words
    (embedded).

    Args:
        task: The task; nothing else is looked at but the names of the library's skills.
        names: The index of those names.
        sure: Confidences of the three ways.

    Raises:
        InputError: The task is empty, or longer than 100,000 characters.
    """
    check_task(task)
    clauses = clauses_of(task) or [task.strip()]
    labels = {key: value for clause in reversed(clauses) for key, value in _labelled(clause)}
    unlabelled = [match[2] if (match := _LABEL.match(clause)) else clause for clause in clauses]
    title = _short(labels.get("task_name", unlabelled[0]))
    goal = _short(labels.get("goal", unlabelled[0]), 240)
    domain = _short(labels.get("domain", ""))
    named = [Feature("keywords", name, sure.literal, (), places) for name, places in _named(task, names)]
    wanted = [Feature("artifacts", name, sure.literal, (name,)) for name in formats(task)]
    steps = [step for clause in unlabelled for step in steps_of(clause)]
    found = [_operation(step, content_words(step), names, sure) for step in steps]
    operations = _distinct([one for one in found if one is not None])
    products = _distinct([one for clause in unlabelled for one in _products(content_words(clause), sure)])
    constraints = [_short(clause, 240) for clause in unlabelled if _CONSTRAINT.search(clause)]
    keywords = _keywords(task)
    soft: list[tuple[Dimension, str]] = [("goal", goal), ("task_name", title), ("domain", domain)]
    soft += [("keywords", word) for word in keywords]
    embedded = [Feature(kind, value, sure.embedded, tuple(stems(value)[:1])) for kind, value in soft if value]
    return Schema(
        goal, title, domain, tuple(one.value for one in operations), tuple(one.value for one in wanted + products),
        tuple(dict.fromkeys(constraints)), tuple(keywords), (*named, *wanted, *operations, *products, *embedded),
        tuple(unlabelled), _inputs(steps, [one.value for one in wanted + products]),
    )  # fmt: skip


def steps_of(clause: str) -> list[str]:
    """Return the parts of a clause that begin with a verb after a comma, "and" or "then"; one where there is none.

    "plot a CSV file and send it as PDF" is two steps; "a report and plot" is one, as nothing is done between.
    """
    cuts = [match for match in _NEXT_STEP.finditer(clause) if _JOINED.search(match[0])]
    starts = [0, *(match.end() for match in cuts)]
    ends = [*(match.start() for match in cuts), len(clause)]
    parts = [clause[start:end].strip(" ,;") for start, end in zip(starts, ends, strict=True)]
    return [part for part in parts if part]


def _inputs(steps: Sequence[str], artifacts: Sequence[str]) -> tuple[str, ...]:
    """Return the artifacts that every mention of them takes in: "read a CSV", "from the CSV", but not "as CSV"."""
    taken, made = [], []
    for step in steps:
        words = content_words(step)
        whole = step if words and words[0] in TAKING else (match[1] if (match := _FROM.search(step)) else "")
        before = _OUT.split(whole, maxsplit=1)[0]
        taken.append(before)
        made.append(step.replace(before, " ", 1) if before else step)

    def named(name: str, texts: Sequence[str]) -> bool:
        return any(name in formats(text) or name in " ".join(content_words(text)) for text in texts)

    return tuple(name for name in artifacts if named(name, taken) and not named(name, made))


def check_task(task: object) -> None:
    """Raise InputError unless ``task`` is text that says something and is not too long."""
    if not isinstance(task, str):
        raise InputError(f"task must be text, got {type(task).__name__}")
    if not task.strip():
        raise InputError("task is empty; say what is to be done")
    if len(task) > MAX_TASK:
        raise InputError(f"task has {len(task)} characters, more than {MAX_TASK}; shorten it")


def _labelled(clause: str) -> list[tuple[Dimension, str]]:
    match = _LABEL.match(clause)
    return [(_LABELS[match[1].lower()], match[2])] if match else []


def _named(task: str, names: NameIndex) -> list[tuple[str, tuple[int, ...]]]:
    """Return name -> skills in order of the first mention; skills of several sources share a name."""
    found: dict[str, list[int]] = {}
    for place in names.literal(task):
        found.setdefault(names.plain[place], []).append(place)
    return [(name, tuple(places)) for name, places in found.items()]


def _operation(clause: str, words: Sequence[str], names: NameIndex, sure: Confidences) -> Feature | None:
    """Return the first verb of a clause with up to four words after it; phrases are their pairs and named skills."""
    at = next((place for place, word in enumerate(words) if word in VERBS or stem(word) in VERBS), None)
    if at is None:
        return None
    things = words[at + 1 : at + 1 + _OBJECT_WORDS]
    if not things:
        return None
    chain = [stem(word) for word in (things if len(things) > 1 else words[at : at + 2])]
    pairs = tuple(f"{one} {other}" for one, other in itertools.pairwise(chain))
    pairs += tuple(name_phrase(names.plain[place]) for place in names.literal(clause))
    return Feature("operations", _short(" ".join([words[at], *things])), sure.phrase, pairs)


def _products(words: Sequence[str], sure: Confidences) -> list[Feature]:
    """Return every product noun of a clause with the word before it."""
    return [
        Feature("artifacts", _short(f"{one} {other}"), sure.phrase, (f"{stem(one)} {stem(other)}",))
        for one, other in itertools.pairwise(words)
        if stem(other) in ARTIFACTS and one not in VERBS
    ]


def _distinct(features: Sequence[Feature]) -> list[Feature]:
    return list({feature.value: feature for feature in reversed(features)}.values())[::-1]


def _keywords(task: str) -> list[str]:
    counts: dict[str, int] = {}
    for word in content_words(task):
        if len(word) > 2 and not word.isdigit() and word not in VERBS:
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))[:MAX_KEYWORDS]


def _short(text: str, limit: int = MAX_VALUE) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"{joined[: limit - 1]}…"
