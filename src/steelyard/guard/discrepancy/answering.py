"""The answers that a cell judges: given just now by the model under test, or handed over; and which of them are wrong.

Every score of a cell is computed from the same answers. Labels are looked at before any score exists, and only to see
whether both classes are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.guard.discrepancy.labels import label_answers
from steelyard.guard.discrepancy.prompts import answer_ids, build_prompts
from steelyard.guard.discrepancy.tasks import Pair, Question, questions_of, wanted
from steelyard.models.default import load_default_lm
from steelyard.models.transformers_lm import TransformersLM

MOST = 8  # times the wanted number of answers are given when a class is rare
Flags = NDArray[np.bool_]


class Answers(NamedTuple):
    """Answers with their questions; ``states`` are those of the detector's layers, kept from generation (or None).

    Attributes:
        questions: What was asked.
        contexts: The text that it was asked about, or None.
        prompts: What the model was given.
        responses: The answers, none empty.
        tokens: Token ids of each answer.
        groups: Number of each answer's question.
        wrong: True where the gold text is not in the answer.
        wrong_rouge: True where ROUGE-L with every gold text is .5 or less; None where there are no gold texts.
        states: For each answer (layers, T, d).
        unanswered: Questions that got an empty answer and were left out.
        rates: Share of wrong answers by either rule, among all that were given.
        asked: Questions that the model was asked, also those whose answers were not kept.
    """

    questions: list[str]
    contexts: list[str | None]
    prompts: list[Any]
    responses: list[str]
    tokens: list[list[int]]
    groups: NDArray[np.int64]
    wrong: Flags
    wrong_rouge: Flags | None
    states: list[Any] | None
    unanswered: int = 0
    rates: tuple[float, float] | None = None
    asked: int = 0


def open_model(cell: CellInput) -> TransformersLM:
    """Return the model under test: the user's own, or SmolLM2."""
    folder = str(cell.data["folder"]) if "folder" in cell.data else ""
    if not folder:
        return load_default_lm(batch_size=int(cell.params.get("batch_size", 16)))
    path = Path(folder)
    return (
        TransformersLM.from_pretrained(path.parent, path.name)
        if path.is_file()
        else TransformersLM.from_pretrained(path)
    )


def live_answers(cell: CellInput, lm: TransformersLM, layers: Sequence[int]) -> Answers:
    """Let the model answer the cell's questions greedily, as many as wanted and until both classes are there.

    Where one class is rare more questions are answered; then all answers of that class are kept, and of the other the
    first, so that as many are judged as wanted. That uses labels, no score, and leaves the area under the curve alone.

    Raises:
        InputError: Fewer than ``least`` answers of one class after all questions of the part, or ``MOST`` times
            the wanted ones.
    """
    asked, (count, least) = questions_of(cell), wanted(cell)
    end = min(count, len(asked))
    done = _answer(cell, lm, layers, asked[:end])
    most = min(len(asked), MOST * count)
    while min(int(done.wrong.sum()), int((~done.wrong).sum())) < least:
        if end >= most:
            raise InputError(
                f"task '{cell.task}', seed {cell.seed}: {int(done.wrong.sum())} of {len(done.wrong)} answers wrong; "
                f"at least {least} of each class are needed, so give more questions"
            )
        start, end = end, min(most, end + max(1, count // 2))
        done = _joined(done, _answer(cell, lm, layers, asked[start:end]))
    assert done.wrong_rouge is not None
    rates = float(done.wrong.mean()), float(done.wrong_rouge.mean())
    return _kept(done, count)._replace(rates=rates, asked=end)


def _kept(done: Answers, count: int) -> Answers:
    """Return ``count`` answers: all of the rarer class, and the first of the other."""
    assert done.wrong_rouge is not None
    assert done.states is not None
    rare = done.wrong if done.wrong.sum() * 2 < len(done.wrong) else ~done.wrong
    spare = max(0, len(rare) - count)
    common = np.flatnonzero(~rare)
    rows = np.setdiff1d(np.arange(len(rare)), common[len(common) - spare :])
    return Answers(
        [done.questions[row] for row in rows],
        [done.contexts[row] for row in rows],
        [done.prompts[row] for row in rows],
        [done.responses[row] for row in rows],
        [done.tokens[row] for row in rows],
        done.groups[rows],
        done.wrong[rows],
        done.wrong_rouge[rows],
        [done.states[row] for row in rows],
        done.unanswered,
    )


def _answer(cell: CellInput, lm: TransformersLM, layers: Sequence[int], asked: Sequence[Question]) -> Answers:
    prompts = build_prompts([one.question for one in asked], [one.context for one in asked], is_chat=lm.is_chat)
    written = lm.generations(
        prompts, layers=layers, max_new_tokens=new_tokens(cell), stop=None if lm.is_chat else ["\n"]
    )
    kept = [row for row, one in enumerate(written) if one.text.strip() and one.tokens]
    texts = [written[row].text for row in kept]
    labels = label_answers(texts, [asked[row].golds for row in kept])
    return Answers(
        [asked[row].question for row in kept],
        [asked[row].context for row in kept],
        [prompts[row] for row in kept],
        texts,
        [written[row].tokens for row in kept],
        np.array([asked[row].number for row in kept], dtype=np.int64),
        ~labels.contains,
        ~labels.rouge_l,
        [written[row].states for row in kept],
        len(asked) - len(kept),
    )


def new_tokens(cell: CellInput) -> int:
    """Return how long an answer may be, in tokens."""
    return int(cell.options.get("max_new_tokens") or cell.params["max_new_tokens"])


def _joined(one: Answers, other: Answers) -> Answers:
    """Return the answers of both."""
    assert one.wrong_rouge is not None
    assert other.wrong_rouge is not None
    assert one.states is not None
    assert other.states is not None
    return Answers(
        one.questions + other.questions,
        one.contexts + other.contexts,
        one.prompts + other.prompts,
        one.responses + other.responses,
        one.tokens + other.tokens,
        np.concatenate((one.groups, other.groups)),
        np.concatenate((one.wrong, other.wrong)),
        np.concatenate((one.wrong_rouge, other.wrong_rouge)),
        one.states + other.states,
        one.unanswered + other.unanswered,
    )


def given_answers(pairs: Sequence[Pair], lm: TransformersLM) -> Answers:
    """Return answers that were handed over with their labels."""
    questions, contexts = [pair.question for pair in pairs], [pair.context for pair in pairs]
    return Answers(
        questions,
        contexts,
        build_prompts(questions, contexts, is_chat=lm.is_chat),
        [pair.response for pair in pairs],
        answer_ids(lm, [pair.response for pair in pairs]),
        np.array([pair.group for pair in pairs], dtype=np.int64),
        np.array([pair.wrong for pair in pairs], dtype=bool),
        None,
        None,
    )
