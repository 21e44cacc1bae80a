"""The baseline that erases structure: one overwritable fact per key, without speakers and without reply links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from steelyard.agents.bm25 import BM25Index, tokenize
from steelyard.agents.groupmembench.columns import Ints
from steelyard.agents.groupmembench.memory import Found, RankedMemory, Request
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.phrases import FastIndex
from steelyard.agents.groupmembench.table import NEVER, Mask
from steelyard.agents.ranking import top_k
from steelyard.errors import InputError

OPERATIONS = ("ADD", "UPDATE", "DELETE", "NOOP")
_FIRST_PERSON = re.compile(r"\b(?:i(?!\.\s?e\b)|me|my|mine|myself)\b", re.IGNORECASE)
_KEY_TOKENS = 4

Extract = Callable[[Message], Sequence[str]]
Decide = Callable[[str, Sequence["Fact"]], tuple[str, int | None]]


class Fact(NamedTuple):
    """A fact as a ``decide`` callable sees it: a number to name it by, and its text."""

    number: int
    text: str


class _Version(NamedTuple):
    """A fact, the row it came from, and from when on it counts; a text of None is a deletion."""

    row: int
    instant: int
    text: str | None


class FlatFactMemory(RankedMemory):
    """Facts instead of messages, as memories for one user keep them (a reconstruction of the mem0-like flow).

    Without callables: one fact per key (phase, first four tokens of the content); a later message overwrites an
    earlier one; first-person words become "user"; speakers and reply links are dropped; BM25 over the surviving
    facts. The asker does not matter beyond the audience: facts of different audiences never overwrite each other, so
    that what the asker may not see replaces nothing. A hit's message is the source with the fact as its content.

    Args:
        extract: From a message to its facts, e.g. by a language model; replaces the offline form of a fact.
        decide: From (new fact, up to ten similar facts) to (operation, number of the fact it is about or None);
            operations are ADD, UPDATE, DELETE and NOOP. Replaces the key.
        seed: See :class:`RankedMemory`.
        allow_unknown_asker: See :class:`RankedMemory`.

    Raises:
        InputError: When adding: a callable returned something else.
    """

    def __init__(
        self,
        extract: Extract | None = None,
        decide: Decide | None = None,
        *,
        seed: int = 0,
        allow_unknown_asker: bool = False,
    ) -> None:
        super().__init__(seed=seed, allow_unknown_asker=allow_unknown_asker)
        for name, call in (("extract", extract), ("decide", decide)):
            if call is not None and not callable(call):
                raise InputError(f"{name} must be a callable or None, got {type(call).__name__}.")
        self.extract, self.decide = extract, decide
        self._facts: dict[Any, list[_Version]] = {}
        self._index_at: tuple[int, int | None, BM25Index, list[_Version], Ints] | None = None
        self._numbers = 0

    def _prepare(self, messages: Sequence[Message]) -> list[list[str]]:
        return [self._extracted(message) for message in messages]

    def _extracted(self, message: Message) -> list[str]:
        if not message.content.strip():
            return []
        if self.extract is None:
            return [_FIRST_PERSON.sub("user", message.content)]
        facts = self.extract(message)
        if isinstance(facts, str) or not isinstance(facts, Sequence) or not all(isinstance(one, str) for one in facts):
            raise InputError(f"extract must return a list of texts, and gave {facts!r:.80} for message {message.id!r}.")
        return [fact for fact in facts if fact.strip()]

    def _index(self, messages: Sequence[Message], prepared: list[list[str]]) -> None:
        first = len(self._table) - len(messages)
        for place in sorted(range(len(messages)), key=lambda place: int(self._table.instants[first + place])):
            for fact in prepared[place]:
                self._take(first + place, messages[place], fact)

    def _take(self, row: int, message: Message, fact: str) -> None:
        readers = None if message.audience is None else message.audience | {message.author}
        version = _Version(row, int(self._table.instants[row]), fact)
        if self.decide is None:
            key = (readers, message.phase, tuple(tokenize(fact)[:_KEY_TOKENS]))
            self._facts.setdefault(key, []).append(version)
            return
        similar = self._similar(fact, readers)
        operation, number = _decision(self.decide(fact, [Fact(*one) for one in similar]), similar)
        if operation == "ADD":
            self._numbers += 1
            self._facts[(readers, self._numbers)] = [version]
        elif operation in ("UPDATE", "DELETE"):
            deleted = version._replace(text=None)
            self._facts[(readers, number)].append(version if operation == "UPDATE" else deleted)

    def _similar(self, fact: str, readers: frozenset[str] | None) -> list[tuple[int, str]]:
        """Return (number, text) of up to ten living facts of the same audience that share a word with ``fact``."""
        alive = [(key[1], last.text) for key, (*_, last) in self._facts.items() if key[0] == readers and last.text]
        index = BM25Index()
        index.add_many(tokenize(text) for _, text in alive)
        words = set(tokenize(fact))
        best = top_k(index.scores(tokenize(fact)), 10) if alive else np.zeros(0, np.int64)
        return [alive[place] for place in best.tolist() if words & set(tokenize(alive[place][1]))]

    def _keep(self, rows: Ints) -> None:
        new = {int(row): place for place, row in enumerate(rows)}
        facts = {
            key: [version._replace(row=new[version.row]) for version in versions if version.row in new]
            for key, versions in self._facts.items()
        }
        self._facts = {key: versions for key, versions in facts.items() if versions}
        self._index_at = None

    def _alive(self, instant: int | None) -> Iterator[_Version]:
        """Yield the version of each fact that counts at ``instant`` (None = now)."""
        keys = self._table.keys
        for versions in self._facts.values():
            past = [one for one in versions if instant is None or NEVER < one.instant <= instant]
            if past:
                # Messages of one instant: their keys decide; without timestamps the last to arrive is the latest.
                # Of one message's facts the last one counts, which max() finds among equals when it looks backwards.
                last = max(
                    reversed(past), key=lambda one: (one.instant, one.row if one.instant == NEVER else keys[one.row])
                )
                if last.text is not None:
                    yield last

    def _indexed(self, instant: int | None) -> tuple[BM25Index, list[_Version], Ints]:
        if self._index_at is None or self._index_at[:2] != (self._table.version, instant):
            alive = sorted(self._alive(instant), key=lambda one: (int(self._table.keys[one.row]), one.text))
            index = FastIndex()
            index.add_many(tokenize(one.text or "") for one in alive)
            rows = np.array([one.row for one in alive], np.int64)
            self._index_at = (self._table.version, instant, index, alive, rows)
        return self._index_at[2:]

    def _rank(self, request: Request) -> list[Found]:
        index, alive, rows = self._indexed(request.instant)
        if not alive:
            return []
        allowed = None if request.allowed is None else request.allowed[rows]
        scores = index.scores(tokenize(request.query))
        best: dict[int, Found] = {}
        wanted = request.k
        while True:  # a message with several facts is found once, by its best
            ordered = top_k(scores, wanted, np.arange(len(alive)), allowed=allowed).tolist()
            for place in ordered:
                score, text = float(scores[place]), alive[place].text
                best.setdefault(alive[place].row, Found(alive[place].row, score, {"bm25": score, "fact": text}))
            if len(best) >= request.k or len(ordered) < wanted:
                return list(best.values())[: request.k]
            best, wanted = {}, 4 * wanted

    def _hit(self, found: Found, seen: Mask | None) -> Hit:
        source = self._table.message(found.row)
        erased = replace(source, content=found.why["fact"], author="user", role=None, reply_to=None)
        return Hit(source.id, found.score, erased, found.why)


def _decision(answer: Any, similar: Sequence[tuple[int, str]]) -> tuple[str, int | None]:
    """Return a checked (operation, number)."""
    known = {number for number, _ in similar}
    if isinstance(answer, tuple | list) and len(answer) == 2:
        operation, number = answer
        if operation in ("ADD", "NOOP"):
            return operation, None
        if operation in ("UPDATE", "DELETE") and isinstance(number, int) and number in known:
            return operation, number
    raise InputError(
        f"decide must return (operation, number): one of {', '.join(OPERATIONS)}, and for UPDATE and DELETE the "
        f"number of one of the facts it was shown; it gave {answer!r:.80}."
    )
