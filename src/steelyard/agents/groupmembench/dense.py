"""Dense and hybrid memories: cosine of sentence vectors, and rankings of several memories fused by reciprocal rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime
from heapq import nlargest
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.embedding import as_encoder
from steelyard.agents.groupmembench.columns import Ints
from steelyard.agents.groupmembench.lexical import ranked
from steelyard.agents.groupmembench.memory import BLOCK, Found, RankedMemory, Request
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.errors import InputError


class Vectors:
    """Unit rows of an encoder for the messages of a table, shape (N, width); zeros for a message without content."""

    def __init__(self, embedder: Any) -> None:
        if isinstance(embedder, str | bytes):  # which have an encode() of another kind
            raise InputError(f"embedder must be an Embedder or a function, got the text {embedder!r:.40}.")
        self._encode = as_encoder(embedder)
        self._rows: NDArray[np.float32] = np.zeros((64, 0), np.float32)
        self._size = 0

    @property
    def rows(self) -> NDArray[np.float32]:
        """The vectors, shape (N, width)."""
        return self._rows[: self._size]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, those without content as zeros; InputError when the width changes."""
        written = [place for place, text in enumerate(texts) if text.strip()]
        if not written:
            return np.zeros((len(texts), self._rows.shape[1]), np.float32)
        vectors = self._encode([texts[place] for place in written])
        if self._rows.shape[1] not in (0, vectors.shape[1]):
            raise InputError(
                f"embedder gave vectors of width {vectors.shape[1]}, and of {self._rows.shape[1]} before; "
                "use one encoder for one memory."
            )
        rows = np.zeros((len(texts), vectors.shape[1]), np.float32)
        rows[written] = vectors
        return rows

    def extend(self, vectors: NDArray[np.float32]) -> None:
        """Append rows that :meth:`encode` returned."""
        end, width = self._size + len(vectors), max(self._rows.shape[1], vectors.shape[1])
        if end > len(self._rows) or width != self._rows.shape[1]:
            grown = np.zeros((max(end, 2 * len(self._rows)), width), np.float32)
            grown[: self._size, : self._rows.shape[1]] = self._rows[: self._size]
            self._rows = grown
        self._rows[self._size : end, : vectors.shape[1]] = vectors
        self._size = end

    def keep(self, rows: Ints) -> None:
        """Keep ``rows`` only."""
        self._rows, self._size = self.rows[rows], len(rows)

    def scores(self, query: str) -> NDArray[np.float64]:
        """Return the cosine of the query with every row, shape (N,)."""
        vector = self.encode([query])[0]
        if not self._rows.shape[1]:
            return np.zeros(self._size)
        return np.asarray(self.rows @ vector, np.float64)


class DenseMemory(RankedMemory):
    """Cosine similarity of sentence vectors of the contents.

    Args:
        embedder: An Embedder of ``steelyard.models``, or a function from a list of texts to vectors.
        seed: See :class:`RankedMemory`.
        allow_unknown_asker: See :class:`RankedMemory`.

    Raises:
        InputError: The embedder cannot be used; when adding or searching, what it gave cannot.
    """

    def __init__(self, embedder: Any, *, seed: int = 0, allow_unknown_asker: bool = False) -> None:
        super().__init__(seed=seed, allow_unknown_asker=allow_unknown_asker)
        self._vectors = Vectors(embedder)

    def _prepare(self, messages: Sequence[Message]) -> NDArray[np.float32]:
        return self._vectors.encode([message.content for message in messages])

    def _index(self, messages: Sequence[Message], prepared: Any) -> None:
        self._vectors.extend(prepared)

    def _keep(self, rows: Ints) -> None:
        self._vectors.keep(rows)

    def _rank(self, request: Request) -> list[Found]:
        # Equal texts must have equal scores whatever their place in a matrix product, whose rounding depends on it.
        return ranked(self._table, self._vectors.scores(request.query).round(6), request, "cosine")


class HybridMemory:
    """Several memories searched side by side, their rankings fused by reciprocal rank: sum of 1 / (rrf_k + rank).

    Args:
        *memories: At least two, of any kind; each takes in every message.
        rrf_k: The constant, above 0.
        depth: How far down each ranking is fused, or ``k`` where that is more.

    Raises:
        InputError: Fewer than two memories, or a number that cannot be used.
    """

    def __init__(self, *memories: RankedMemory, rrf_k: float = 60, depth: int = 200) -> None:
        if len(memories) < 2:
            raise InputError("HybridMemory fuses at least two memories, e.g. BM25Memory() and DenseMemory(embedder).")
        if not rrf_k > 0 or depth < 1:
            raise InputError(f"rrf_k must be above 0 and depth at least 1, got {rrf_k!r} and {depth!r}.")
        self.memories, self.rrf_k, self.depth = memories, rrf_k, depth

    def __len__(self) -> int:
        return len(self.memories[0])

    def add(self, message: Message) -> None:
        """Take in one message."""
        self.add_many((message,))

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages and return how many; all memories take in a block of them, or none does.

        Raises:
            InputError: As for :meth:`RankedMemory.add_many`, whichever memory cannot use a message.
        """
        source, added = iter(messages), 0
        while block := tuple(islice(source, BLOCK)):
            filled: list[RankedMemory] = []
            try:
                for memory in self.memories:
                    memory.add_many(block)
                    filled.append(memory)
            except BaseException:  # such as an embedder's endpoint that fails: the same messages may be added later
                for memory in filled:
                    memory.discard(message.id for message in block)
                raise
            added += len(block)
        return added

    def forget(self, author: str) -> int:
        """Remove every message of ``author`` and return how many there were."""
        return max([memory.forget(author) for memory in self.memories])

    def clear(self) -> None:
        """Remove every message."""
        for memory in self.memories:
            memory.clear()

    def search(
        self,
        query: str,
        *,
        asker: str | None = None,
        k: int = 10,
        at: datetime | str | None = None,
        anchor: str | None = None,
    ) -> list[Hit]:
        """Return the ``k`` best messages as :meth:`RankedMemory.search` does; ``why`` holds the rank in each memory."""
        RankedMemory.check_k(k)
        depth = max(k, self.depth)
        ranks: dict[str, dict[int, int]] = {}  # of an id: its rank by the number of the memory
        with ExitStack() as held:
            # Locks are taken in one order, whatever the order in which memories were given: nobody waits in a circle.
            order = sorted(range(len(self.memories)), key=lambda number: id(self.memories[number]))
            rankings = {
                number: held.enter_context(self.memories[number].ranking(query, asker, depth, at, anchor))
                for number in order
            }
            for number in range(len(self.memories)):
                for rank, id_ in enumerate(rankings[number][0], 1):
                    ranks.setdefault(id_, {})[number] = rank
            hits = []
            for id_, score in self._fused(ranks, k):
                number, rank = next(iter(ranks[id_].items()))
                message = rankings[number][1](rank - 1).message
                hits.append(Hit(id_, score, message, {"ranks": self._named(ranks[id_])}))
            return hits

    def _fused(self, ranks: dict[str, dict[int, int]], k: int) -> list[tuple[str, float]]:
        """Return the ``k`` best ids with their scores."""
        scores = {id_: sum(1 / (self.rrf_k + rank) for rank in sorted(found.values())) for id_, found in ranks.items()}
        last = min(nlargest(k, scores.values()), default=0.0)
        near = [id_ for id_, score in scores.items() if score >= last]  # only these need their ties broken
        near.sort(key=lambda id_: (-scores[id_], self.memories[0].tie_key(id_)))
        return [(id_, scores[id_]) for id_ in near[:k]]

    def _named(self, ranks: dict[int, int]) -> dict[str, int]:
        return {f"{type(self.memories[number]).__name__} {number}": rank for number, rank in ranks.items()}
