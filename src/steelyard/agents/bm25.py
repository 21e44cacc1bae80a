"""Okapi BM25 over growing postings, equal to PyPI's rank_bm25 0.2.2 to the last digits.

Documents may be added at any time: postings are kept in a few segments that are merged as they grow, and the weights
are computed at query time from the collection as it then is, so a query costs the postings of its own terms only.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.ranking import top_k
from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WORD = re.compile(r"[A-Za-z0-9_]+")


def tokenize(text: str) -> list[str]:
    """Return the lower-cased matches of ``[A-Za-z0-9_]+`` in ``text``; no stop words (the release's tokeniser)."""
    if text.isascii():
        return _WORD.findall(text.lower())
    # Lower-casing first could turn a foreign letter into an ASCII one (the Kelvin sign becomes "k").
    return [match.lower() for match in _WORD.findall(text)]


def okapi_bm25(
    tokenised_docs: Sequence[Sequence[str]],
    tokenised_query: Sequence[str],
    k1: float = 1.5,
    b: float = 0.75,
    epsilon: float = 0.25,
) -> Floats:
    """Return the Okapi BM25 score of every document, shape (N,); an empty collection has no scores.

    score = sum over query tokens of idf(w) f (k1 + 1) / (f + k1 (1 - b + b |d| / avgdl)), with
    idf(w) = ln((N - n_w + 1/2) / (n_w + 1/2)); a negative idf is replaced by epsilon times the average idf of the
    distinct terms, taken before the replacement (Okapi as in rank_bm25 0.2.2).

    Raises:
        InputError: A parameter is out of range, or a document or the query is a string instead of tokens.
    """
    index = BM25Index(k1, b, epsilon)
    index.add_many(tokenised_docs)
    return index.scores(tokenised_query)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Postings of some consecutive documents: those of term t lie in ``start[t]:start[t + 1]``, documents rising."""

    start: Ints
    documents: NDArray[np.int32]
    counts: NDArray[np.unsignedinteger]

    @property
    def terms(self) -> NDArray[np.int32]:
        """Term of every posting."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))


@dataclass(frozen=True, slots=True)
class _Statistics:
    """What the weights of a query need of the whole collection."""

    idf: Floats  # (vocabulary,)
    floor: float  # what replaces a negative idf
    norm: Floats  # (N,): k1 (1 - b + b |d| / avgdl)


def _smallest_unsigned(values: Ints) -> NDArray[np.unsignedinteger]:
    kind = np.uint16 if values.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32
    return values.astype(kind)


def _starts(sorted_terms: NDArray[np.int32], vocabulary: int) -> Ints:
    counts = np.bincount(sorted_terms, minlength=vocabulary)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _segment(terms: NDArray[np.int32], documents: NDArray[np.int32], vocabulary: int) -> _Segment:
    """Return the postings of token occurrences that come in order of their documents."""
    order = np.argsort(terms, kind="stable")
    terms, documents = terms[order], documents[order]
    new = np.ones(len(terms), dtype=np.bool_)
    new[1:] = (terms[1:] != terms[:-1]) | (documents[1:] != documents[:-1])
    first = np.flatnonzero(new)
    counts = np.diff(first, append=len(terms))
    return _Segment(_starts(terms[first], vocabulary), documents[first], _smallest_unsigned(counts))


def _merged(older: _Segment, newer: _Segment) -> _Segment:
    """Return one segment out of two, of which the second holds the later documents and knows more terms."""
    terms = np.concatenate((older.terms, newer.terms))
    order = np.argsort(terms, kind="stable")
    return _Segment(
        _starts(terms, len(newer.start) - 1),
        np.concatenate((older.documents, newer.documents))[order],
        np.concatenate((older.counts, newer.counts))[order],
    )


class BM25Index:
    """A collection of tokenised documents that can grow and be searched by Okapi BM25.

    Args:
        k1: Saturation of the term frequency, at least 0.
        b: Strength of the length normalisation, from 0 to 1.
        epsilon: Share of the average idf that replaces a negative idf.

    Raises:
        InputError: A parameter is out of range.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25) -> None:
        if not (math.isfinite(k1) and k1 >= 0):
            raise InputError(f"k1 must be a finite number of at least 0, not {k1!r}.")
        if not 0 <= b <= 1:
            raise InputError(f"b must lie between 0 and 1, not {b!r}.")
        if not math.isfinite(epsilon):
            raise InputError(f"epsilon must be a finite number, not {epsilon!r}.")
        self.k1, self.b, self.epsilon = float(k1), float(b), float(epsilon)
        self._vocabulary: dict[str, int] = {}
        self._lengths = array("i")
        self._segments: list[_Segment] = []
        self._pending = array("i")  # term of every token occurrence that no segment holds yet
        self._settled = 0  # documents that the segments hold
        self._statistics: _Statistics | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    def add_many(self, documents: Iterable[Sequence[str]]) -> None:
        """Append documents, each a sequence of tokens (which may be empty); they are numbered as they come.

        Raises:
            InputError: A document is a string; those before it have been added.
        """
        vocabulary = self._vocabulary
        for document in documents:
            _refuse_string(document, f"document {len(self._lengths)}")
            self._pending.extend([vocabulary.setdefault(word, len(vocabulary)) for word in document])
            self._lengths.append(len(document))
            self._statistics = None

    def scores(self, query: Sequence[str]) -> Floats:
        """Return the score of every document, shape (N,); a repeated token counts each time, an unknown one not.

        Raises:
            InputError: ``query`` is a string instead of tokens.
        """
        _refuse_string(query, "query")
        scores = np.zeros(len(self), dtype=np.float64)
        statistics = self._settle()
        for word, times in Counter(query).items():
            term = self._vocabulary.get(word)
            if term is None:
                continue
            weight = times * statistics.idf[term]
            for segment in self._segments:
                if term < len(segment.start) - 1:
                    part = slice(segment.start[term], segment.start[term + 1])
                    documents, count = segment.documents[part], segment.counts[part]
                    # A term names a document once in its postings, so this adds without losing a summand.
                    scores[documents] += weight * (count * (self.k1 + 1) / (count + statistics.norm[documents]))
        return scores

    def top(
        self,
        query: Sequence[str],
        k: int,
        *,
        allowed: NDArray[np.bool_] | None = None,
        order: Ints | None = None,
    ) -> tuple[Ints, Floats]:
        """Return the ``k`` best documents and their scores, best first; fewer where fewer are allowed.

        Args:
            query: Tokens.
            k: How many, at least 1.
            allowed: Mask (N,): only these are ranked. The statistics stay those of the whole collection.
            order: A permutation (N,): of two equal scores, the document with the lower entry comes first.

        Raises:
            InputError: ``k`` is below 1, or ``allowed`` or ``order`` does not have one entry per document.
        """
        scores = self.scores(query)
        best = top_k(scores, k, order, allowed=allowed)
        return best, scores[best]

    def _settle(self) -> _Statistics:
        """Move pending documents into the segments and return the statistics of the whole collection."""
        if self._statistics is None:
            self._flush()
            self._statistics = self._measure()
        return self._statistics

    def _flush(self) -> None:
        if not self._pending:
            self._settled = len(self)
            return
        lengths = np.asarray(self._lengths[self._settled :], dtype=np.int64)
        documents = np.repeat(np.arange(self._settled, len(self), dtype=np.int32), lengths)
        terms = np.asarray(self._pending, dtype=np.int32)
        self._segments.append(_segment(terms, documents, len(self._vocabulary)))
        self._pending, self._settled = array("i"), len(self)
        # Merging only segments of like size keeps them few and an addition cheap (logarithmic, amortised).
        while len(self._segments) > 1 and 2 * len(self._segments[-1].counts) >= len(self._segments[-2].counts):
            newer, older = self._segments.pop(), self._segments.pop()
            self._segments.append(_merged(older, newer))

    def _measure(self) -> _Statistics:
        frequency = np.zeros(len(self._vocabulary), dtype=np.int64)
        for segment in self._segments:
            frequency[: len(segment.start) - 1] += np.diff(segment.start)
        lengths = np.asarray(self._lengths, dtype=np.float64)
        if not len(frequency):
            return _Statistics(np.zeros(0), 0.0, np.zeros(len(lengths)))
        norm = self.k1 * (1 - self.b + self.b * lengths / (lengths.sum() / len(lengths)))
        return _Statistics(*_okapi_idf(frequency, len(lengths), self.epsilon), norm)


def _okapi_idf(frequency: Ints, documents: int, epsilon: float) -> tuple[Floats, float]:
    """Return the idf of every term from its number of documents (same shape), and what replaces negative ones."""
    distinct, where = np.unique(frequency, return_inverse=True)
    table = [math.log(documents - n + 0.5) - math.log(n + 0.5) for n in distinct.tolist()]
    idf = np.array(table, dtype=np.float64)[where]
    floor = epsilon * (np.cumsum(idf)[-1] / len(idf))  # a running sum rounds as rank_bm25's loop does
    return np.where(idf < 0, floor, idf), float(floor)


def _refuse_string(tokens: Sequence[str], name: str) -> None:
    if isinstance(tokens, str):
        raise InputError(f"{name} is a string; give its tokens, e.g. tokenize(text).")
