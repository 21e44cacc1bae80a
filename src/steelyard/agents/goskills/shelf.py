"""What the baselines read of a library: the words and the vectors of its cards, and the clauses of a query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import BM25Index
from steelyard.agents.goskills.stopwords import content_words
from steelyard.agents.goskills.vectors import CardVectors
from steelyard.agents.ranking import rrf, top_k
from steelyard.errors import InputError

if TYPE_CHECKING:
    from steelyard.agents.goskills.library import SkillLibrary

Floats = NDArray[np.float64]
BODY = 4000  # characters of a body that BM25 reads
POOL = 40  # places of each ranking that the hybrid fuses
CLAUSE_POOL = 10
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")


def clauses(query: str) -> list[str]:
    """Return the parts of a query that are searched on their own: its lines; a single line's sentences."""
    lines = [line.strip() for line in query.splitlines() if line.strip()]
    return [part for part in _SENTENCE.split(lines[0]) if part] if len(lines) == 1 else lines


class Shelf:
    """The cards of a library, by name, in a form that can be searched by words and by vectors.

    Args:
        library: Skills in the order of their names, so that ties go by name, and their graph.
        embedder: An Embedder or a function from texts to vectors; None: TF-IDF.

    Raises:
        InputError: The library is empty or has no graph.
    """

    def __init__(self, library: SkillLibrary, embedder: Any = None) -> None:
        if not library.skills or library.graph is None:
            raise InputError("library is empty or has no graph; read skills and call build_graph()")
        self.library, self.graph, self.skills = library, library.graph, library.skills
        self.names = tuple(skill.name for skill in self.skills)
        self.cards = CardVectors(self.skills, embedder)
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
        return self.cards.cosines(texts)

    def named(self, text: str) -> list[int]:
        """Return the positions of the skills that ``text`` names, by the detector of GoSkills' backfill."""
        return self.graph.names.literal(text)

    def best(self, scores: Floats, count: int) -> list[int]:
        """Return the ``count`` best positions, ties by name."""
        found: list[int] = top_k(scores, count).tolist()
        return found

    def found(self, scores: Floats, count: int) -> list[int]:
        """Return the ``count`` best positions with a score above 0: a fusion would take the others for hits."""
        return [place for place in self.best(scores, count) if scores[place] > 0]

    def hybrid(self, text: str, pool: int = POOL) -> dict[int, float]:
        """Return position -> reciprocal rank fusion (k = 60) over the first ``pool`` by words and by vector."""
        return rrf([self.found(self.bm25(text), pool), self.found(self.cosines([text])[0], pool)])

    def ordered(self, scores: dict[int, float]) -> list[int]:
        """Return positions by falling score, ties by name, and then all others by name."""
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        return ranked + [place for place in range(len(self.names)) if place not in scores]
