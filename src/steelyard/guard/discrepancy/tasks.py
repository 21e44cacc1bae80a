"""The bench's questions: the project's own, data sets, made-up pairs, planted answers, and the user's own.

Arrays of a task: ``question`` and ``answers`` (those that count as right, one a line) for every row, ``contexts`` and
``context_of`` (index of the row's context, -1 for none), ``model`` (checksum of the model that answers). Tasks whose
answers are given hold ``response`` and ``wrong`` and ``group`` (rows of one question) as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from steelyard import data, rng
from steelyard.card import Frozen
from steelyard.contracts import Arrays, CellInput, Task
from steelyard.data.cache import file_sha256
from steelyard.data.jsonl import QARow, read_questions
from steelyard.errors import InputError
from steelyard.guard.discrepancy.labels import contains_gold
from steelyard.guard.discrepancy.questions import PASSAGES
from steelyard.models import smollm2

SEEDS = {"questions": 6, "planted": 6, "own": 8, "own_answers": 8}
"""How many seeds a task's questions are enough for; ``_SEEDS`` elsewhere."""

_SEEDS, _OWN_SEEDS = 10, SEEDS["own"]
_LEAST_PER_PART = 4
_LONGEST_PARAGRAPH = 700
_MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # what a model's answers depend on
_TEXT_LIMIT = 200_000  # letters of a user's text; far above what a model reads


class Question(NamedTuple):
    """What is asked: ``golds`` are the texts that count as right; ``number`` is the row in the task."""

    number: int
    question: str
    context: str | None
    golds: tuple[str, ...]


class Pair(NamedTuple):
    """An answer that was given with its question; ``group`` is the same for all answers to one question."""

    question: str
    context: str | None
    response: str
    wrong: bool
    group: int


def own_questions() -> Arrays:
    """Return the 96 questions that come with the package."""
    rows = ((passage.context, *asked) for passage in PASSAGES for asked in passage.questions)
    return arrays_of((context, question, (gold,)) for context, question, gold in rows)


def xquad() -> Arrays:
    """Return XQuAD's English questions on paragraphs of 700 letters or less, the median: longer ones take longer."""
    return arrays_of(row for row in data.xquad() if len(row[0]) <= _LONGEST_PARAGRAPH)


def halueval() -> Arrays:
    """Return HaluEval's questions with the knowledge that answers them; its answers are not used."""
    return arrays_of((row.knowledge, row.question, (row.right,)) for row in data.halueval("one"))


def nq_open() -> Arrays:
    """Return NQ-open's questions, which come without a context."""
    return arrays_of((None, row.question, row.answers) for row in data.nq_open())


def halueval_pairs() -> Arrays:
    """Return HaluEval's right and made-up answers, with the knowledge as context."""
    rows = data.halueval("one")
    return _pairs(
        (row.knowledge, row.question, answer, wrong, number)
        for number, row in enumerate(rows)
        for answer, wrong in ((row.right, False), (row.hallucinated, True))
    )


def truthfulqa_pairs() -> Arrays:
    """Return TruthfulQA's best and first incorrect answers."""
    return _pairs(
        (None, row.question, answer, wrong, number)
        for number, row in enumerate(data.truthfulqa())
        if row.incorrect
        for answer, wrong in ((row.best, False), (row.incorrect[0], True))
    )


def arrays_of(rows: Any) -> Arrays:
    """Return the arrays of a live task from (context or None, question, golds) tuples, keyed by the default model."""
    found = [(context, question, golds) for context, question, golds in rows]
    contexts, context_of = _numbered([context for context, *_ in found])
    return {
        "question": np.array([question for _, question, _ in found]),
        "answers": np.array(["\n".join(" ".join(gold.split()) for gold in golds) for *_, golds in found]),
        "contexts": contexts,
        "context_of": context_of,
        "model": np.array(smollm2.check()),
    }


def _pairs(rows: Any) -> Arrays:
    found = [Pair(question, context, response, wrong, group) for context, question, response, wrong, group in rows]
    contexts, context_of = _numbered([pair.context for pair in found])
    return {
        "question": np.array([pair.question for pair in found]),
        "response": np.array([pair.response for pair in found]),
        "wrong": np.array([pair.wrong for pair in found]),
        "group": np.array([pair.group for pair in found]),
        "contexts": contexts,
        "context_of": context_of,
        "model": np.array(smollm2.check()),
    }


def _numbered(contexts: Sequence[str | None]) -> tuple[Any, Any]:
    """Return every context once, and for each row which one it has (-1: none)."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for text in contexts if text is not None))}
    return np.array(list(places) or [""]), np.array([-1 if text is None else places[text] for text in contexts])


def part_of(cell: CellInput, items: int) -> list[int]:
    """Return which of ``items`` questions are the cell's, in the order in which they are drawn.

    The questions are split into disjoint parts, one for each seed and one more that only tuning sees; the user's own
    questions are not tuned on and leave none out.

    Raises:
        InputError: The seed is beyond the parts that the data are enough for.
    """
    seeds = SEEDS.get(cell.task, _SEEDS)
    parts = seeds if cell.task.startswith("own") else seeds + 1
    part = cell.seed if cell.root != "tuning" else parts - 1
    if cell.seed >= seeds:
        raise InputError(f"the data of task '{cell.task}' are split for {seeds} seeds; there is no seed {cell.seed}")
    mixed = rng.generator("discrepancy", f"{cell.task}/parts", 0).permutation(items)
    own: list[int] = mixed[part::parts].tolist()
    return own


def wanted(cell: CellInput) -> tuple[int, int]:
    """Return how many answers a cell judges, and how many of each class it needs at least."""
    own = "own_" if cell.task.startswith("own") else ""
    return int(cell.params[f"{own}answers"]), int(cell.params[f"{own}least"])


def questions_of(cell: CellInput) -> list[Question]:
    """Return the cell's part of the questions, in the order in which they are drawn."""
    every = all_questions(cell.data)
    return [every[row] for row in part_of(cell, len(every))]


def all_questions(arrays: Arrays) -> list[Question]:
    """Return the questions of a live task."""
    return [
        Question(number, str(question), _context(arrays, number), tuple(str(answers).split("\n")))
        for number, (question, answers) in enumerate(zip(arrays["question"], arrays["answers"], strict=True))
    ]


def pairs_of(cell: CellInput, count: int) -> list[Pair]:
    """Return the answers to the first ``count`` questions of the cell's part."""
    rows = cell.data
    groups = np.unique(rows["group"])
    chosen = {int(groups[place]) for place in part_of(cell, len(groups))[:count]}
    return [
        Pair(
            str(rows["question"][row]), _context(rows, row), str(rows["response"][row]), bool(rows["wrong"][row]), group
        )
        for row, group in enumerate(rows["group"].tolist())
        if group in chosen
    ]


def _context(arrays: Arrays, row: int) -> str | None:
    place = int(arrays["context_of"][row])
    return None if place < 0 else str(arrays["contexts"][place])


def planted_pairs(
    asked: Sequence[Question], every: Sequence[Question], lengths: Sequence[int], generator: np.random.Generator
) -> list[Pair]:
    """Return for each question the answer copied from its passage and one of as many tokens from another passage.

    Args:
        asked: The questions.
        every: All questions of the task.
        lengths: Tokens of the first gold text of every question.
        generator: Chooses the others. Questions without an answer of equal length elsewhere are left out.
    """
    found = []
    for item in asked:
        text = (item.context or "").lower()
        others = [
            other.golds[0]
            for other in every
            if other.context != item.context
            and lengths[other.number] == lengths[item.number]
            and other.golds[0].lower() not in text
        ]
        if others:
            planted = others[int(generator.integers(len(others)))]
            found += [
                Pair(item.question, item.context, answer, wrong, item.number)
                for answer, wrong in ((item.golds[0], False), (planted, True))
            ]
    return found


class Options(Frozen):
    """What a weighing on the user's own questions takes beside them."""

    model: str | None = Field(
        default=None, description="Hugging Face folder or GGUF file of the model that answers; SmolLM2-135M when absent"
    )
    samples: int | None = Field(
        default=None, ge=0, le=20, description="answers drawn per question for methods that need several; 0: none"
    )
    temperature: float = Field(default=1.0, gt=0, le=2, description="of those answers")
    max_new_tokens: int = Field(default=16, ge=1, le=512, description="longest answer, in tokens")
    layer: str = Field(default="0.75", description="layer of D: an index, or a fraction of the depth")
    pool: Literal["mean", "last", "token"] = Field(default="mean", description="how D pools over tokens")
    dist: Literal["cosine", "l2", "rel_l2"] = Field(default="cosine", description="distance of D")


def user_task(source: Any, **options: Any) -> Task:
    """Return the task of a user's questions.

    Args:
        source: JSON Lines file, or rows: ``question``, ``context`` if any, ``answer`` (text or a list). With
            ``response`` in every row these answers are judged instead of the model's; ``label`` then says whether they
            are made up, else ``answer`` decides.
        options: Fields of :class:`Options`.

    Raises:
        InputError: The rows cannot be read or used, or are too few.
    """
    chosen = Options(**options)
    rows = read_questions(source)
    _check_rows(rows)
    given = rows[0].response is not None
    arrays = dict(_given(rows) if given else _asked(rows))
    arrays |= {"model": np.array(_checksum(chosen.model)), "folder": np.array(_folder(chosen.model))}
    kind = "questions and answers" if given else "questions"
    model = "SmolLM2-135M" if chosen.model is None else Path(chosen.model).name
    return Task("own_answers" if given else "own", f"your {kind}, {model}", lambda: arrays, "your own")


def _check_rows(rows: Sequence[QARow]) -> None:
    if len(rows) < _OWN_SEEDS * _LEAST_PER_PART:
        raise InputError(f"data has {len(rows)} rows; at least {_OWN_SEEDS * _LEAST_PER_PART} are needed")
    given = rows[0].response is not None
    for number, row in enumerate(rows, 1):
        where = f"data, row {number}"
        if (row.response is not None) != given:
            raise InputError(f"{where}: 'response' must be in every row or in none")
        if not row.answers and (not given or row.hallucinated is None):
            raise InputError(f"{where}: 'answer' is missing" + (", and so is 'label'" if given else ""))
        if max(len(text or "") for text in (row.question, row.context, row.response)) > _TEXT_LIMIT:
            raise InputError(f"{where}: a text has more than {_TEXT_LIMIT} letters")


def _asked(rows: Sequence[QARow]) -> Arrays:
    return arrays_of((row.context, row.question, row.answers) for row in rows)


def _given(rows: Sequence[QARow]) -> Arrays:
    wrong = [
        not contains_gold(row.response or "", row.answers) if row.hallucinated is None else row.hallucinated
        for row in rows
    ]
    if min(wrong.count(True), wrong.count(False)) < _OWN_SEEDS:
        raise InputError(
            f"data has {wrong.count(True)} made-up and {wrong.count(False)} right answers; "
            f"at least {_OWN_SEEDS} of each are needed"
        )
    numbers = {question: number for number, question in enumerate(dict.fromkeys(row.question for row in rows))}
    return _pairs(
        (row.context, row.question, row.response, label, numbers[row.question])
        for row, label in zip(rows, wrong, strict=True)
    )


def _folder(model: str | None) -> str:
    return "" if model is None else str(Path(model).expanduser().resolve())


def _checksum(model: str | None) -> str:
    """Return a SHA-256 over the model's weights, configuration, tokenizer and chat template.

    Another model is another cell, and so is the same one with another template.
    """
    if model is None:
        return smollm2.check()
    path = Path(_folder(model))
    if not path.exists():
        raise InputError(f"model {path} is neither a folder nor a file; give a Hugging Face folder or a GGUF file")
    files = {path}
    if path.is_dir():
        if not any(path.glob("*.safetensors")):
            raise InputError(f"model {path} holds no .safetensors file; other formats are not loaded")
        files = {path / "config.json", *(file for end in _MODEL_FILES for file in path.glob(end))}
    digest = hashlib.sha256()
    for file in sorted(files):
        try:
            digest.update(file_sha256(file).encode())
        except OSError as error:
            raise InputError(f"model {file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()
