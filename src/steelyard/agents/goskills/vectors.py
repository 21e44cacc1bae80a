"""Cosines between texts and skill cards: by an embedder, or by TF-IDF over the cards, which needs no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from steelyard.agents.embedding import as_encoder
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.words import stems

Array = NDArray[np.float64]


class CardVectors:
    """The cards (name and description) of skills as unit vectors.

    Args:
        skills: The skills.
        embedder: An Embedder or a function from texts to vectors; None: TF-IDF weights of stems, idf =
            ln((1 + N) / (1 + df)) + 1, words that no card holds left out.
    """

    def __init__(self, skills: Sequence[Skill], embedder: Any = None) -> None:
        self._encode = None if embedder is None else as_encoder(embedder)
        cards = [skill.card for skill in skills]
        if self._encode is not None:
            self._dense = self._encode(cards).astype(np.float64)
            return
        words = [Counter(stems(card)) for card in cards]
        holders = Counter(word for counts in words for word in counts)
        self._places = {word: place for place, word in enumerate(sorted(holders))}
        self._idf = np.array([np.log((1 + len(cards)) / (1 + holders[word])) + 1 for word in self._places])
        self._sparse = self._weighed(words).T.tocsr()

    def cosines(self, texts: Sequence[str]) -> Array:
        """Return the cosine of every text with every card, shape (texts, skills)."""
        if not texts:
            return np.zeros((0, len(self)))
        if self._encode is not None:
            dense: Array = np.clip(self._encode(texts).astype(np.float64) @ self._dense.T, -1.0, 1.0)
            return dense
        product = self._weighed([Counter(stems(text)) for text in texts]) @ self._sparse
        found: Array = np.clip(product.toarray(), 0.0, 1.0)
        return found

    def neighbours(self, count: int, least: float) -> list[tuple[int, int, float]]:
        """Return (skill, other, cosine) of the nearest others with a cosine above ``least``, ties by place."""
        found: list[tuple[int, int, float]] = []
        for start in range(0, len(self), 512):
            block = self._dense[start : start + 512] @ self._dense.T
            for row, values in enumerate(block, start):
                values[row] = -2.0
                order = np.lexsort((np.arange(len(values)), -values))[:count]
                found += [(row, int(j), float(values[j])) for j in order if values[j] > least]
        return found

    def __len__(self) -> int:
        return len(self._dense) if self._encode is not None else int(self._sparse.shape[1])

    def _weighed(self, words: Sequence[Counter[str]]) -> sparse.csr_array:
        rows, columns, values = [], [], []
        for row, counts in enumerate(words):
            for word, count in sorted(counts.items()):
                place = self._places.get(word)
                if place is not None:
                    rows.append(row)
                    columns.append(place)
                    values.append(count * self._idf[place])
        shape = (len(words), len(self._places))
        table = sparse.csr_array((np.asarray(values, dtype=np.float64), (rows, columns)), shape=shape)
        lengths = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
        scaled: sparse.csr_array = sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)) @ table
        return scaled
