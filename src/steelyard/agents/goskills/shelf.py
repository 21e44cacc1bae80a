"""What the baselines read of a library: the words and the vectors of its cards, and the clauses of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import BM25Index, tokenize
from steelyard.agents.ranking import rrf, top_k

if TYPE_CHECKING:
    from steelyard.agents.goskills.library import SkillLibrary

Floats = NDArray[np.float64]
Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""From texts to unit rows, float32 of shape (texts, width)."""

BODY = 4000  # characters of a body that BM25 reads
POOL = 40  # places of each ranking that the hybrid fuses
CLAUSE_POOL = 10
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_STOP_WORDS = frozenset(
    "a about above after again all also am an and any are as at be because been before being below between both but by "
    "can could did do does doing down during each few for from further had has have having he her here hers him his how "
    "i if in into is it its itself just me more most my no nor not now of off on once only or other our ours out over "
    "own same she should so some such than that the their theirs them then there these they this those through to too "
    "under until up us very was we were what when where which while who whom why will with would you your yours".split()
)


def content_words(text: str) -> list[str]:
    """Return the lower-cased words of ``text`` without English stop words."""
    return [word for word in tokenize(text) if word not in _STOP_WORDS]


def clauses(query: str) -> list[str]:
    """Return the parts of a query that are searched on their own: its lines; a single line's sentences."""
    lines = [line.strip() for line in query.splitlines() if line.strip()]
    return [part for part in _SENTENCE.split(lines[0]) if part] if len(lines) == 1 else lines


class Shelf:
    """The cards of a library, by name, in a form that can be searched by words and by vectors.

    Args:
        library: Skills; they are sorted by name, so that ties go by name.
        encoder: From texts to unit rows.
    """

    def __init__(self, library: SkillLibrary, encoder: Encoder) -> None:
        self.library = library
        self.skills = sorted(library.skills, key=lambda skill: skill.name)
        self.names = tuple(skill.name for skill in self.skills)
        self._encode = encoder
        self.vectors = encoder([skill.card for skill in self.skills])
        self._words = BM25Index()
        self._words.add_many(
            content_words(
                f"{' '.join([skill.name] * 4)} {skill.description} {skill.description} {skill.body[:BODY]}"
            )
            for skill in self.skills
        )  # fmt: skip

    def bm25(self, text: str) -> Floats:
        """Return the Okapi score of every skill, shape (skills,): name x 4, description x 2, 4,000 letters of body."""
        return self._words.scores(content_words(text))

    def cosines(self, texts: Sequence[str]) -> Floats:
        """Return the cosine of every text with every card, shape (texts, skills)."""
        found: Floats = np.asarray(self._encode(texts) @ self.vectors.T, dtype=np.float64)
        return found

    def best(self, scores: Floats, count: int) -> list[int]:
        """Return the ``count`` best positions, ties by name."""
        found: list[int] = top_k(scores, count).tolist()
        return found

    def hybrid(self, text: str, pool: int = POOL) -> dict[int, float]:
        """Return position -> reciprocal rank fusion (k = 60) over the first ``pool`` by words and by vector."""
        return rrf([self.best(self.bm25(text), pool), self.best(self.cosines([text])[0], pool)])

    def ordered(self, scores: dict[int, float]) -> list[int]:
        """Return positions by falling score, ties by name, and then all others by name."""
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        return ranked + [place for place in range(len(self.names)) if place not in scores]
