"""GoSkills' running time: reading and linking a library, a retrieval, and PageRank and BM25 against their peers.

Run: ``python benchmarks/bench_skills.py``. Libraries of 330 and 2,000 made-up skills with bodies of 900 words that name
each other. CPU time (process_time), median of rounds in which arms take turns; vectors of texts are at hand, as the
targets leave encoding out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import bm25s
import numpy as np
import receipt
from rank_bm25 import BM25Okapi

from steelyard import rng
from steelyard.agents.bm25 import BM25Index
from steelyard.agents.goskills.baselines import GraphOfSkillsRetriever
from steelyard.agents.goskills.core import personalised_pagerank
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.shelf import Shelf
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.stopwords import content_words
from steelyard.timing import interleaved

SIZES = (330, 2000)
WIDTH = 384
NAMES_A_BODY = 3
BODY_WORDS = 900  # real bodies of the shared collections have about 1,200 words
TARGETS = {
    "index 330 skills, s": 5, "index 2,000 skills, s": 30, "retrieve at 330, ms": 10, "retrieve at 2,000, ms": 50,
    "dense PPR / sparse PPR at 2,000": 5,
}  # fmt: skip


def skills(count: int) -> list[Skill]:
    """Return made-up skills whose bodies name others and are as long as real ones."""
    draws = rng.generator("bench", "skills", count)
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("lin", "mar", "tor", "ves", "nok")]
    verbs = ("reads", "cleans", "plots", "validates", "exports", "combines")
    names = [f"{words[draws.integers(len(words))]}-{words[draws.integers(len(words))]}-{n}" for n in range(count)]
    found = []
    for name in names:
        others = [names[place] for place in draws.integers(count, size=NAMES_A_BODY)]
        body = " ".join(words[place] for place in draws.integers(len(words), size=BODY_WORDS))
        cues = ("requires", "combine with", "instead of")
        links = "\n".join(f"{cue.capitalize()} {other}. {body[:200]}" for cue, other in zip(cues, others, strict=True))
        verb = verbs[draws.integers(len(verbs))]
        found.append(Skill(name, f"{verb.capitalize()} {name.replace('-', ' ')} tables as csv. Use for {body[:80]}.",
                           f"# {name}\n{links}.\n{body}"))  # fmt: skip
    return found


class Vectors:
    """Means of a random vector per word, so that cards that share words are near; kept once a text has been seen."""

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    def __call__(self, texts: list[str]) -> Any:
        """Return unit rows, float32 of shape (texts, 384)."""
        for text in texts:
            if text not in self.kept:
                row = np.sum([self._word(word) for word in content_words(text) or [text]], axis=0)
                self.kept[text] = (row / np.linalg.norm(row)).astype(np.float32)
        return np.array([self.kept[text] for text in texts])

    def _word(self, word: str) -> Any:
        if word not in self.words:
            self.words[word] = rng.generator("bench", word, 0).standard_normal(WIDTH)
        return self.words[word]


def dense_pagerank(matrix: Any, restart: Any, alpha: float = 0.2, iters: int = 50, tol: float = 1e-6) -> Any:
    """PageRank as Graph of Skills has it: a dense (N, N) transition, normalised for each query."""
    weights = matrix.copy()
    sums = weights.sum(axis=1)
    empty = sums == 0
    weights[empty, empty] = 1.0
    transition = weights / np.where(empty, 1.0, sums)[:, None]
    visits = restart.copy()
    for _ in range(iters):
        following = alpha * restart + (1 - alpha) * (transition.T @ visits)
        if np.abs(following - visits).sum() < tol:
            return following
        visits = following
    return visits


def median(arms: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of a call of each arm."""
    seconds = interleaved(arms, repeats=repeats, clock=time.process_time)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def at_size(count: int, repeats: int) -> dict[str, Any]:
    """Return the figures of one size."""
    made, encode = skills(count), Vectors()
    encode([skill.card for skill in made])
    task = "\n".join(
        f"Read the csv of {skill.name} and plot its {skill.description[:60]}" for skill in made[:: count // 8]
    )
    start = time.process_time()
    library = SkillLibrary(made).build_graph().build_groups()
    retriever = GoSkillsRetriever(library)
    indexed = time.process_time() - start
    start = time.process_time()
    near = SkillLibrary(made).build_graph(embedder=encode).build_groups()
    dense_retriever = GoSkillsRetriever(near, embedder=encode)
    indexed_vectors = time.process_time() - start
    shelf = Shelf(near, encode)
    words = [content_words(f"{skill.name} {skill.description} {skill.body[:4000]}") for skill in near.skills]
    query = content_words(task)
    ours, okapi, other = BM25Index(), BM25Okapi(words), bm25s.BM25()
    ours.add_many(words)
    other.index(words, show_progress=False)
    matrix = near.graph.matrix()
    dense = matrix.toarray()
    restart = np.zeros(count)
    restart[[0, 5, 9, 11, 17]] = 1 / np.arange(1, 6)
    restart /= restart.sum()
    gap = float(np.abs(personalised_pagerank(matrix, restart) - dense_pagerank(dense, restart)).max())
    ranker = GraphOfSkillsRetriever(shelf)
    calls: dict[str, Callable[[], object]] = {
        "GoSkills, TF-IDF": lambda: retriever.retrieve(task),
        "GoSkills, vectors at hand": lambda: dense_retriever.retrieve(task),
        "Graph of Skills retriever, sparse": lambda: ranker.retrieve(task),
        "PPR, sparse": lambda: personalised_pagerank(matrix, restart),
        "PPR, dense (Graph of Skills)": lambda: dense_pagerank(dense, restart),
        "BM25 scores, ours": lambda: ours.scores(query),
        "BM25 scores, rank_bm25": lambda: okapi.get_scores(query),
        "BM25 scores, bm25s": lambda: other.get_scores(query),
    }
    found = median(calls, repeats)
    return {
        "index without vectors, s": indexed,
        "index with vectors at hand, s": indexed_vectors,
        "edges": near.graph.counts(),
        "query words": len(query),
        "ms": found,
        "dense PPR / sparse PPR": found["PPR, dense (Graph of Skills)"] / found["PPR, sparse"],
        "largest difference of the two PPRs": gap,
        "contract, characters": len(dense_retriever.retrieve(task).render("markdown")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # circles of made-up dependencies
    figures: dict[str, Any] = {
        "clock": "process_time, median of the rounds",
        **{f"{count} skills": at_size(count, arguments.repeats) for count in SIZES},
        "targets": TARGETS,
    }
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_skills", figures))


if __name__ == "__main__":
    main()
