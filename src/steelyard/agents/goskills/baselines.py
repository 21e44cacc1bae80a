"""Retrievers to compare with, each with the method's own interface: ``retrieve(task) -> ExecutionContract``.

A flat list has no roles: its contract starts with the first skill and leaves SUPPORT, CHECK and AVOID empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from steelyard import rng
from steelyard.agents.goskills.contract import ExecutionContract, Start, Support
from steelyard.agents.goskills.core import personalised_pagerank
from steelyard.agents.goskills.shelf import CLAUSE_POOL, POOL, Shelf, clauses
from steelyard.agents.ranking import rrf
from steelyard.errors import InputError

SEED_POOL = 20  # of each ranking, from which Graph of Skills takes its seeds
SEEDS = 5
GROUPING = 0.5  # cosine from which naive grouping shows two skills together


class Retriever:
    """A ranking of skills, cut at a budget and rendered.

    Args:
        shelf: What is searched.
        budget: How many skills, at least 1.
        max_chars: Most characters of the rendered contract.

    Raises:
        InputError: ``budget`` is below 1.
    """

    name: ClassVar[str]

    def __init__(self, shelf: Shelf, *, budget: int = 8, max_chars: int = 12_000) -> None:
        if budget < 1:
            raise InputError(f"budget must be at least 1, got {budget}")
        self.shelf, self.budget, self.max_chars = shelf, budget, max_chars

    def rank(self, task: str) -> list[int]:
        """Return positions of skills, best first, ``budget`` of them or more where the library has as many."""
        raise AssertionError("a retriever defines its ranking")

    def retrieve(self, task: str) -> ExecutionContract:
        """Return the contract of the first ``budget`` skills.

        Raises:
            InputError: The task is empty.
        """
        return self._contract(self.chosen(task))

    def chosen(self, task: str) -> list[int]:
        """Return the positions of the first ``budget`` skills.

        Raises:
            InputError: The task is empty.
        """
        if not task.strip():
            raise InputError("task is empty; say what is to be done")
        return self.rank(task)[: self.budget]

    def _contract(self, places: Sequence[int], support: Sequence[int] = ()) -> ExecutionContract:
        skills = [self.shelf.skills[place] for place in places]
        return ExecutionContract(
            start=Start(skills[0].name, f"first of {self.name}"),
            support=tuple(Support(self.shelf.names[place], "support", self.shelf.skills[place].description)
                          for place in support),
            payloads=tuple(skills),
            max_chars=self.max_chars,
        )  # fmt: skip


class BM25Retriever(Retriever):
    """Okapi BM25 over name, description and the start of the body."""

    name = "bm25"

    def rank(self, task: str) -> list[int]:
        """Return positions by score."""
        return self.shelf.best(self.shelf.bm25(task), len(self.shelf.names))


class VectorRetriever(Retriever):
    """Cosine of the query, as one text, with name and description."""

    name = "vector"

    def rank(self, task: str) -> list[int]:
        """Return positions by cosine."""
        return self.shelf.best(self.shelf.cosines([task])[0], len(self.shelf.names))


class ChunkedVectorRetriever(Retriever):
    """The largest cosine over the clauses of the query, none of which an encoder has to cut."""

    name = "vector_chunked"

    def rank(self, task: str) -> list[int]:
        """Return positions by their best clause."""
        return self.shelf.best(self.shelf.cosines(clauses(task)).max(axis=0), len(self.shelf.names))


class HybridRetriever(Retriever):
    """Reciprocal rank fusion (k = 60) over the first 40 by words and by vector."""

    name = "rrf"

    def rank(self, task: str) -> list[int]:
        """Return positions by fused rank."""
        return self.shelf.ordered(self.shelf.hybrid(task))


class ClauseHybridRetriever(Retriever):
    """The sum over clauses of the fusion over the first 10 of each ranking."""

    name = "clause_rrf"

    def rank(self, task: str) -> list[int]:
        """Return positions by summed fused rank."""
        parts = clauses(task)
        rankings = []
        for part, row in zip(parts, self.shelf.cosines(parts), strict=True):
            rankings += [self.shelf.found(self.shelf.bm25(part), CLAUSE_POOL), self.shelf.found(row, CLAUSE_POOL)]
        return self.shelf.ordered(rrf(rankings))


class NamedFirstRetriever(HybridRetriever):
    """Skills that the task names, by hybrid rank, then the rest of the hybrid ranking: the strongest trivial one."""

    name = "hybrid_backfill"

    def rank(self, task: str) -> list[int]:
        """Return positions, named skills first."""
        order = super().rank(task)
        named = self.shelf.named(task)
        return [place for place in order if place in named] + [place for place in order if place not in named]


class ChunkedNamedFirstRetriever(NamedFirstRetriever):
    """The same on a hybrid whose vectors are those of the clauses, as GoSkills reads a query."""

    name = "chunked_backfill"

    def rank(self, task: str) -> list[int]:
        """Return positions, named skills first."""
        cosines = self.shelf.cosines(clauses(task)).max(axis=0)
        fused = rrf([self.shelf.found(self.shelf.bm25(task), POOL), self.shelf.found(cosines, POOL)])
        order, named = self.shelf.ordered(fused), self.shelf.named(task)
        return [place for place in order if place in named] + [place for place in order if place not in named]


class GraphOfSkillsRetriever(Retriever):
    """Graph of Skills (arXiv 2604.05333): personalised PageRank from the best of a hybrid, all edges and reverses.

    Restart .2 on the first 5 of the fusion over 20 + 20, weights 1 / rank; sparse, where the original is dense.
    """

    name = "gos_ppr"

    def __init__(self, shelf: Shelf, *, budget: int = 8, max_chars: int = 12_000) -> None:
        super().__init__(shelf, budget=budget, max_chars=max_chars)
        self._edges = shelf.graph.matrix()

    def rank(self, task: str) -> list[int]:
        """Return positions by visits."""
        seeds = self.shelf.ordered(self.shelf.hybrid(task, SEED_POOL))[:SEEDS]
        restart = np.zeros(len(self.shelf.names))
        restart[seeds] = 1 / np.arange(1, len(seeds) + 1)
        visits = personalised_pagerank(self._edges, restart / restart.sum())
        return self.shelf.best(visits, len(visits))


class NaiveGroupingRetriever(HybridRetriever):
    """The hybrid's list shown in groups: the first skill as entry, those with a cosine of .5 to it as support.

    Only the presentation differs; an open implementation of "grouped skills" did no more.
    """

    name = "naive_grouping"

    def retrieve(self, task: str) -> ExecutionContract:
        """Return the contract with the skills near the first one as SUPPORT."""
        places = self.chosen(task)
        cards = [self.shelf.skills[place].card for place in places]
        near = self.shelf.cosines(cards[:1])[0, places] >= GROUPING
        return self._contract(places, support=[place for place, close in zip(places, near, strict=True) if close][1:])


class RandomRetriever(Retriever):
    """Skills drawn at random, the same ones for the same task and seed.

    Args:
        shelf: What is drawn from.
        budget: How many skills.
        max_chars: Most characters of the rendered contract.
        seed: Of the draws.
    """

    name = "random"

    def __init__(self, shelf: Shelf, *, budget: int = 8, max_chars: int = 12_000, seed: int = 0) -> None:
        super().__init__(shelf, budget=budget, max_chars=max_chars)
        self.seed = seed

    def rank(self, task: str) -> list[int]:
        """Return a permutation."""
        digest = hashlib.sha256(task.encode("utf-8", "surrogatepass")).hexdigest()
        order: list[int] = (
            rng.generator("goskills", f"random/{digest}", self.seed).permutation(len(self.shelf.names)).tolist()
        )
        return order  # fmt: skip


class VanillaRetriever(Retriever):
    """All skills, whole: no selection and no limit."""

    name = "vanilla"

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf, budget=len(shelf.names))

    def rank(self, task: str) -> list[int]:
        """Return every position, by name."""
        return list(range(len(self.shelf.names)))

    def context(self) -> str:
        """Return what an agent reads when it is given everything."""
        return "\n\n".join(f"# {skill.name}\n{skill.description}\n{skill.body}" for skill in self.shelf.skills)

    def tokens(self) -> int:
        """Return the length of :meth:`context` in tokens, counted as a quarter of its characters, rounded up."""
        return -(-len(self.context()) // 4)


RETRIEVERS: tuple[type[Retriever], ...] = (
    BM25Retriever,
    VectorRetriever,
    ChunkedVectorRetriever,
    HybridRetriever,
    ClauseHybridRetriever,
    GraphOfSkillsRetriever,
    NaiveGroupingRetriever,
    NamedFirstRetriever,
    ChunkedNamedFirstRetriever,
)
"""The baselines that select by the task."""
