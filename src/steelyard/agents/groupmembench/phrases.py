"""BM25 over canonicalised text without writing the text anew: all names of one thing are one term at query time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import BM25Index
from steelyard.agents.groupmembench.columns import Ints

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_KEPT = 4096  # phrases whose postings are remembered
_KEPT_POSTINGS = 4_000_000  # of words that queries named: 16 bytes each


class FastIndex(BM25Index):
    """A BM25 index that remembers the weighted postings of the words that queries name; same scores, to the bit."""

    def __init__(self, k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25) -> None:
        super().__init__(k1, b, epsilon)
        self._impacts: dict[int, tuple[Ints, Floats]] = {}
        self._impacts_of: object = None
        self._remembered = 0

    def scores(self, query: Sequence[str]) -> Floats:
        """Return the score of every document, shape (N,), as :meth:`BM25Index.scores` does.

        Raises:
            InputError: ``query`` is a string instead of tokens.
        """
        if isinstance(query, str):
            return super().scores(query)
        statistics, scores = self._settle(), np.zeros(len(self))
        for word, times in Counter(query).items():
            term = self._vocabulary.get(word)
            if term is not None:
                documents, impact = self._impact(term)
                np.add.at(scores, documents, times * statistics.idf[term] * impact)
        return scores

    def postings(self, word: str) -> Ints:
        """Return the documents that contain ``word``, rising."""
        self._settle()
        term = self._vocabulary.get(word)
        return np.zeros(0, np.int64) if term is None else self._impact(term)[0]

    def _impact(self, term: int) -> tuple[Ints, Floats]:
        """Return the documents of a term, rising, and its score in each but for the idf."""
        statistics = self._settle()
        if self._impacts_of is not statistics or self._remembered > _KEPT_POSTINGS:
            self._impacts, self._impacts_of, self._remembered = {}, statistics, 0
        if term not in self._impacts:
            segments = [one for one in self._segments if term < len(one.start) - 1]
            parts = [slice(one.start[term], one.start[term + 1]) for one in segments]
            documents = np.concatenate([one.documents[part] for one, part in zip(segments, parts, strict=True)])
            count = np.concatenate([one.counts[part] for one, part in zip(segments, parts, strict=True)])
            impact = count * (self.k1 + 1) / (count + statistics.norm[documents])
            self._impacts[term] = (documents.astype(np.int64), impact)
            self._remembered += len(documents)
        return self._impacts[term]


class PhraseIndex(FastIndex):
    """A BM25 index that also scores groups of phrases, each group counted as one term.

    Aliases may be learned late and differ between askers, so documents keep their own words, and a group's postings
    are put together when a query names it.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25) -> None:
        super().__init__(k1, b, epsilon)
        self._phrases: dict[str, tuple[int, Ints, Ints]] = {}

    def phrase(self, phrase: str, text: Callable[[int], str]) -> tuple[Ints, Ints]:
        """Return the documents that contain ``phrase`` (tokens joined by spaces) and how often; ``text`` reads one."""
        known, documents, counts = self._phrases.get(phrase, (0, np.zeros(0, np.int64), np.zeros(0, np.int64)))
        if known < len(self):
            words = phrase.split(" ")
            found = self.postings(words[0])
            for word in words[1:]:
                found = np.intersect1d(found, self.postings(word), assume_unique=True)
            found = found[found >= known]
            pattern = re.compile(r"(?<![a-z0-9_])" + r"[^a-z0-9_]+".join(map(re.escape, words)) + r"(?![a-z0-9_])")
            times = np.array([len(pattern.findall(text(row).lower())) for row in found.tolist()], np.int64)
            documents = np.concatenate([documents, found[times > 0]])
            counts = np.concatenate([counts, times[times > 0]])
            if len(self._phrases) >= _KEPT:
                self._phrases.clear()
            self._phrases[phrase] = (len(self), documents, counts)
        return documents, counts

    def group_scores(self, names: Sequence[str], text: Callable[[int], str], seen: Mask | None) -> tuple[Ints, Floats]:
        """Return (documents, scores) of the names of one thing, taken as one term; only seen documents count for it."""
        parts = [self.phrase(name, text) for name in names]
        documents = np.unique(np.concatenate([rows for rows, _ in parts]))
        count = np.zeros(len(documents))
        for rows, times in parts:
            at = np.searchsorted(documents, rows)
            count[at] = np.maximum(count[at], times)
        if seen is not None:
            documents, count = documents[seen[documents]], count[seen[documents]]
        if not len(documents):
            return documents, count
        statistics = self._settle()
        idf = math.log(len(self) - len(documents) + 0.5) - math.log(len(documents) + 0.5)
        if idf < 0:  # Okapi's floor
            idf = statistics.floor
        return documents, idf * count * (self.k1 + 1) / (count + statistics.norm[documents])
