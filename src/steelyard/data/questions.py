"""Questions with reference answers, which detectors of made-up answers are tested with."""

from __future__ import annotations

from typing import Literal, NamedTuple

from steelyard.data.cache import locate
from steelyard.data.records import parse_json, read_json_lines, read_records, read_text, text_field
from steelyard.data.registry import Progress
from steelyard.errors import InputError


class TruthfulQuestion(NamedTuple):
    """A question that people often answer wrongly, with true and false answers; the best answer is a true one."""

    question: str
    best: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    category: str
    adversarial: bool


class KnowledgeQuestion(NamedTuple):
    """A question, the text that answers it, the right answer, and one that a model made up."""

    knowledge: str
    question: str
    right: str
    hallucinated: str


class OpenQuestion(NamedTuple):
    """A question without a text, and every answer that counts as right."""

    question: str
    answers: tuple[str, ...]


class ContextQuestion(NamedTuple):
    """A paragraph, a question about it, and every answer that counts as right."""

    context: str
    question: str
    answers: tuple[str, ...]


_TRUTHFUL_COLUMNS = ("Type", "Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers")


def truthfulqa(progress: Progress | None = None) -> list[TruthfulQuestion]:
    """Return the 817 questions of TruthfulQA.

    Args:
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    return [
        TruthfulQuestion(
            row["Question"].strip(),
            row["Best Answer"].strip(),
            _parts(row["Correct Answers"]),
            _parts(row["Incorrect Answers"]),
            row["Category"],
            row["Type"] == "Adversarial",
        )
        for path in locate("truthfulqa", progress).paths
        for row in read_records(path, _TRUTHFUL_COLUMNS)
    ]


def halueval(turn: Literal["one", "multi"] = "one", progress: Progress | None = None) -> list[KnowledgeQuestion]:
    """Return the 500 questions of HaluEval QA whose wrong answers were written in one turn or in several.

    Caution: the length of an answer alone tells right from made up almost perfectly.

    Args:
        turn: ``one`` or ``multi``; the questions are the same.
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another turn.
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    if turn not in ("one", "multi"):
        raise InputError(f"turn must be 'one' or 'multi', got {turn!r}")
    one, multi = locate("halueval_qa", progress).paths
    fields = ("knowledge", "question", "right_answer", "hallucinated_answer")
    return [
        KnowledgeQuestion(*(text_field(row, name, where) for name in fields))
        for where, row in read_json_lines(one if turn == "one" else multi)
    ]


def nq_open(progress: Progress | None = None) -> list[OpenQuestion]:
    """Return the 3,610 questions of the development set of NQ-open.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("nq_open", progress).paths
    return [
        OpenQuestion(text_field(row, "question", where), tuple(row["answer"])) for where, row in read_json_lines(path)
    ]


def xquad(progress: Progress | None = None) -> list[ContextQuestion]:
    """Return the 1,190 English questions of XQuAD on 240 paragraphs of SQuAD.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("xquad_en", progress).paths
    return [
        ContextQuestion(
            paragraph["context"], asked["question"], tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
        )
        for article in parse_json(read_text(path), str(path))["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _parts(cell: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in cell.split(";") if part.strip())
