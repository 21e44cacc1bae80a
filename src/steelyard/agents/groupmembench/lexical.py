"""Lexical memory: Okapi BM25 over the messages' contents, or over a header and the content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import tokenize
from steelyard.agents.groupmembench.columns import Column, Ints
from steelyard.agents.groupmembench.memory import Found, RankedMemory, Request
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.phrases import FastIndex
from steelyard.agents.groupmembench.table import MessageTable
from steelyard.agents.ranking import top_k
from steelyard.errors import InputError

Floats = NDArray[np.float64]
Tokenizer = Callable[[str], Sequence[str]]
Index = TypeVar("Index", bound=FastIndex)


class TextIndex(Generic[Index]):
    """BM25 scores per row of a table, in which some rows (those without content) are not indexed.

    Args:
        bm25: The index, empty.
    """

    def __init__(self, bm25: Index) -> None:
        self.bm25 = bm25
        self._rows = Column(np.int64)
        self._size = 0

    @property
    def rows(self) -> Ints:
        """The row of each indexed document."""
        return self._rows.values

    def extend(self, documents: Iterable[Sequence[str] | None]) -> None:
        """Append one row per document; None is a row that is not indexed."""
        rows: list[int] = []

        def indexed() -> Iterable[Sequence[str]]:
            for document in documents:
                if document is not None:
                    rows.append(self._size)
                    yield document
                self._size += 1

        self.bm25.add_many(indexed())
        self._rows.extend(rows)

    def scores(self, query: Sequence[str]) -> Floats:
        """Return the score of every row, shape (N,); 0 for a row that is not indexed."""
        scores = self.bm25.scores(query)
        if len(scores) == self._size:
            return scores
        spread = np.zeros(self._size)
        spread[self.rows] = scores
        return spread


class BM25Memory(RankedMemory):
    """BM25 over the messages: the protocol's baseline (rank_bm25's Okapi, content only).

    Args:
        fields: "content" (the release's index text), "header" (author, role, channel and phase before it), or
            "speaker" (the author before it).
        k1: Saturation of the term frequency.
        b: Strength of the length normalisation.
        epsilon: Share of the average idf that replaces a negative idf.
        tokenizer: From a text to its tokens, used for messages and queries alike.
        seed: See :class:`RankedMemory`.
        allow_unknown_asker: See :class:`RankedMemory`.

    Raises:
        InputError: An argument that cannot be used.
    """

    def __init__(
        self,
        fields: Literal["content", "header", "speaker"] = "content",
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
        *,
        tokenizer: Tokenizer = tokenize,
        seed: int = 0,
        allow_unknown_asker: bool = False,
    ) -> None:
        super().__init__(seed=seed, allow_unknown_asker=allow_unknown_asker)
        if fields not in ("content", "header", "speaker"):
            raise InputError(f"fields must be 'content', 'header' or 'speaker', got {fields!r}.")
        self.fields, self.tokenizer = fields, tokenizer
        self._parameters = (k1, b, epsilon)
        self._texts = TextIndex(FastIndex(*self._parameters))

    def _text(self, row: int) -> str:
        table = self._table
        if self.fields == "content":
            return table.content(row)
        if self.fields == "speaker":
            return f"{table.authors[row]} {table.content(row)}"
        parts = (table.authors[row], table.roles[row], table.channels[row], table.phases[row], table.content(row))
        return " ".join(part for part in parts if part)

    def _index(self, messages: Sequence[Message], prepared: Any) -> None:
        self._add_rows(len(self._table) - len(messages))

    def _keep(self, rows: Ints) -> None:
        self._texts = TextIndex(FastIndex(*self._parameters))
        self._add_rows(0)

    def _add_rows(self, first: int) -> None:
        written = self._table.written
        self._texts.extend(
            self.tokenizer(self._text(row)) if written[row] else None for row in range(first, len(self._table))
        )

    def _rank(self, request: Request) -> list[Found]:
        scores = self._texts.scores(self.tokenizer(request.query))
        return ranked(self._table, scores, request, "bm25")


def ranked(table: MessageTable, scores: Floats, request: Request, name: str) -> list[Found]:
    """Return the best allowed rows by ``scores`` (N,), ties by the table's keys; ``why`` has the score as ``name``."""
    best = top_k(scores, request.k, table.keys, allowed=request.allowed)
    return [Found(row, score, {name: score}) for row, score in zip(best.tolist(), scores[best].tolist(), strict=True)]
