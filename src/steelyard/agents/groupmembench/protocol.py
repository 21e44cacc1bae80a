"""The benchmark's protocol: a memory is searched on behalf of the asker, a reader answers, a judge compares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.questions import (
    QUESTION_TYPES,
    Question,
    parse_final,
    parse_judgment,
    passages,
    read_questions,
)
from steelyard.agents.groupmembench.readers import DeterministicJudge, DeterministicReader
from steelyard.agents.groupmembench.report import GroupMemReport, QuestionRow
from steelyard.agents.ranking import recall_at_k
from steelyard.data.registry import Progress
from steelyard.errors import EndpointError, InputError, did_you_mean
from steelyard.models.paths import usable_path

__all__ = [
    "QUESTION_TYPES",
    "GroupMemBench",
    "GroupMemReport",
    "Judge",
    "Question",
    "QuestionRow",
    "Reader",
    "parse_final",
    "parse_judgment",
    "passages",
    "read_questions",
]

Reader = Callable[[Question, Sequence[Hit]], str]
"""Returns the answer as text; one with a method ``many(questions, hits)`` is asked for several at once."""

Judge = Callable[[Question, str], bool | None]
"""Says whether an answer is right, None if that is unclear; one with ``many(questions, answers)`` for several."""

_AT_ONCE = 8


class Searchable(Protocol):
    """What the protocol needs of a memory; one that has a length of 0 is filled first."""

    def add_many(self, messages: Iterable[Message]) -> Any:
        """Take in messages."""
        ...

    def search(self, query: str, *, asker: str | None = None, k: int = 10) -> list[Hit]:
        """Return at most ``k`` messages that ``asker`` may see, best first."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, what the memory found for it, and what reader and judge said."""

    question: Question
    hits: list[Hit]
    answer: str = ""
    verdict: bool | None = None
    error: str = ""


class GroupMemBench:
    """Questions about a chat, and how they are put to a memory.

    Args:
        chat: The messages.
        questions: What is asked; see :func:`read_questions`.
        k: Messages that the reader is given (10 in the release).
        reader: Answers from them; None: :class:`DeterministicReader`. Its ``Final:`` line is the answer.
        judge: Compares answer and gold answer; None: :class:`DeterministicJudge`.
        query_prefix_asker: Whether the query is ``"<asking_user_id> <question>"``, as in the release.
        filtered: Ids of the questions to keep (the paper's filtered set), None for all.

    Raises:
        InputError: ``k`` is below 1, there is no question, two have the same type and id, or an asker is nobody in
            the chat.
    """

    def __init__(
        self,
        chat: GroupChat,
        questions: Iterable[Question],
        *,
        k: int = 10,
        reader: Reader | None = None,
        judge: Judge | None = None,
        query_prefix_asker: bool = True,
        filtered: Collection[str] | None = None,
    ) -> None:
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}.")
        kept = [one for one in questions if filtered is None or one.id in filtered]
        if not kept:
            raise InputError("there is no question" + (" that 'filtered' names." if filtered is not None else "."))
        seen: set[tuple[str, str]] = set()
        for one in kept:
            if (one.type, one.id) in seen:
                raise InputError(f"two questions of type '{one.type}' have the id {one.id!r}.")
            seen.add((one.type, one.id))
            if one.asking_user_id not in chat.users:
                raise InputError(
                    f"question {one.id!r}: the asker {one.asking_user_id!r} neither wrote a message of the chat nor is "
                    "in an audience."
                )
        self.chat, self.questions, self.k = chat, tuple(kept), k
        self._reader: Reader = reader or DeterministicReader()
        self._judge: Judge = judge or DeterministicJudge()
        self._prefix = query_prefix_asker

    @classmethod
    def from_release(
        cls,
        root: str | Path,
        domain: str,
        *,
        types: Sequence[str] = QUESTION_TYPES,
        progress: Progress | None = None,
        **options: Any,
    ) -> GroupMemBench:
        """Read one domain of the release, which the user brings: its conversation and its question files.

        Args:
            root: The release's folder, which holds ``questions/<Domain>/<type>.jsonl`` and, below ``data/final`` or
                anywhere else, one conversation file whose name ends in ``<Domain>.json``.
            domain: E.g. ``"Finance"``.
            types: Question types to read.
            progress: Called with (file name, bytes done, bytes in all).
            **options: As for the class.

        Raises:
            InputError: The folder lacks the domain or its conversation, or a file cannot be used.
        """
        folder = usable_path(root)
        domains = sorted(entry.name for entry in (folder / "questions").glob("*") if entry.is_dir())
        if domain not in domains:
            known = ", ".join(domains) or "none"
            raise InputError(
                f"{folder / 'questions'} has no folder '{domain}'; there: {known}.{did_you_mean(domain, domains)}"
            )
        files = [folder / "questions" / domain / f"{kind}.jsonl" for kind in types]
        questions = [one for kind, file in zip(types, files, strict=True) for one in read_questions(file, kind)]
        chat = GroupChat.from_groupmembench(_conversation(folder, domain), progress=progress)
        return cls(chat, questions, **options)

    def query(self, question: Question) -> str:
        """Return what the memory is searched for."""
        return f"{question.asking_user_id} {question.question}" if self._prefix else question.question

    def run(self, memory: Searchable, *, progress: Callable[[int, int], None] | None = None) -> GroupMemReport:
        """Put every question to ``memory`` and return what came of it.

        Args:
            memory: An empty one is filled with the chat first; any other is taken to hold it.
            progress: Called with (questions done, questions in all).

        Raises:
            EndpointError: Every single question failed at the reader's or the judge's endpoint.
        """
        if not getattr(memory, "__len__", lambda: 0)():
            memory.add_many(self.chat.messages)
        rows: list[QuestionRow] = []
        for start in range(0, len(self.questions), _AT_ONCE):
            batch = self.questions[start : start + _AT_ONCE]
            found = [memory.search(self.query(one), asker=one.asking_user_id, k=self.k) for one in batch]
            rows += [self._row(asked) for asked in self._asked(batch, found)]
            if progress is not None:
                progress(len(rows), len(self.questions))
        if all(row.error for row in rows):
            raise EndpointError(f"all {len(rows)} questions failed; the first: {rows[0].error}")
        return GroupMemReport(rows, self.k)

    def _asked(self, questions: Sequence[Question], found: Sequence[list[Hit]]) -> list[_Asked]:
        """Return answers and verdicts; where an endpoint fails for a batch, its questions are asked one by one."""
        try:
            answers = [parse_final(text) for text in _each(self._reader, questions, found)]
            verdicts: Sequence[bool | None] = _each(self._judge, questions, answers)
        except EndpointError as error:
            if len(questions) > 1:
                return [self._asked([one], [hits])[0] for one, hits in zip(questions, found, strict=True)]
            return [_Asked(questions[0], found[0], error=str(error))]
        return [_Asked(*all_of) for all_of in zip(questions, found, answers, verdicts, strict=True)]

    def _row(self, asked: _Asked) -> QuestionRow:
        ids = tuple(hit.id for hit in asked.hits)
        gold = asked.question.gold_ids
        return QuestionRow(
            asked.question.id,
            asked.question.type,
            asked.verdict is True,
            asked.verdict is None and not asked.error,
            asked.answer,
            ids,
            recall_at_k(gold, ids, self.k) if gold else None,
            asked.error,
        )


def _each(call: Any, questions: Sequence[Question], given: Sequence[Any]) -> Any:
    """Return what a reader or a judge says to each question, in one call if it can."""
    many = getattr(call, "many", None)
    results = many(questions, given) if many else [call(one, part) for one, part in zip(questions, given, strict=True)]
    if len(results) != len(questions):
        raise InputError(f"{type(call).__name__}.many returned {len(results)} results for {len(questions)} questions.")
    return results


def _conversation(folder: Path, domain: str) -> Path:
    usual = sorted((folder / "data" / "final" / domain).glob(f"*{domain}.json"))
    found = usual or sorted(path for path in folder.rglob("*.json") if path.stem.endswith(domain))
    if len(found) != 1:
        what = "no conversation file" if not found else f"{len(found)} files"
        raise InputError(f"{folder} has {what} with a name that ends in {domain}.json; put exactly one there.")
    return found[0]
