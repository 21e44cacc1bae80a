"""The contestants and what is measured on them.

The cell of ``structured`` builds its chat once and runs every memory on it; :func:`derive` takes the other arms'
figures out of it, so that all arms see the same chat and the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from steelyard.agents.groupmembench.asking import TYPES
from steelyard.agents.groupmembench.dense import DenseMemory, HybridMemory
from steelyard.agents.groupmembench.flat import FlatFactMemory
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.contracts import Arm, Metric, carried, carried_arms
from steelyard.models.embedders import HashingEmbedder


class RandomMemory:
    """Returns messages that the asker may see, drawn at random: what chance gives."""

    def __init__(self, draws: np.random.Generator) -> None:
        self._draws, self._messages = draws, list[Message]()

    def __len__(self) -> int:
        return len(self._messages)

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages."""
        before = len(self._messages)
        self._messages += messages
        return len(self._messages) - before

    def search(self, query: str, *, asker: str | None = None, k: int = 10) -> list[Hit]:
        """Return ``k`` random messages."""
        public = asker is None
        seen = [one for one in self._messages if (one.audience is None if public else one.visible_to(asker or ""))]
        order = self._draws.permutation(len(seen))[:k].tolist()
        return [Hit(seen[place].id, 0.0, seen[place], {}) for place in order]


class GoldMemory:
    """Returns the gold evidence of a question that it knows: the ceiling of any memory for the same reader."""

    def __init__(self, evidence: Mapping[str, tuple[str, ...]]) -> None:
        self._evidence, self._messages = evidence, dict[str, Message]()

    def __len__(self) -> int:
        return len(self._messages)

    def add_many(self, messages: Iterable[Message]) -> int:
        """Take in messages."""
        added = {message.id: message for message in messages}
        self._messages |= added
        return len(added)

    def search(self, query: str, *, asker: str | None = None, k: int = 10) -> list[Hit]:
        """Return the evidence of ``query``, nothing when there is none."""
        found = [self._messages[name] for name in self._evidence.get(query, ())[:k]]
        return [Hit(message.id, 1.0, message, {}) for message in found]


MEMORIES: dict[str, Callable[[], Any]] = {
    "bm25": BM25Memory,
    "bm25_header": lambda: BM25Memory(fields="header"),
    "dense": lambda: DenseMemory(HashingEmbedder()),
    "hybrid": lambda: HybridMemory(BM25Memory(), DenseMemory(HashingEmbedder())),
    "flat": FlatFactMemory,
    "structured": StructuredGroupMemory,
    "no_alias": lambda: StructuredGroupMemory(use_alias=False),
    "no_scope": lambda: StructuredGroupMemory(use_scope=False),
    "no_speaker": lambda: StructuredGroupMemory(use_speaker=False),
    "no_reply": lambda: StructuredGroupMemory(use_reply=False),
    "no_supersession": lambda: StructuredGroupMemory(use_supersession=False),
}
"""Every memory that questions are put to, in its default settings; ablations turn one part off."""

WITHOUT_STRUCTURE = ("bm25", "bm25_header", "dense", "hybrid", "flat")
ABLATIONS = ("no_alias", "no_scope", "no_speaker", "no_reply", "no_supersession")
THREAD_ABLATIONS = ("no_recency", "no_same_speaker", "no_links")


def _arm(name: str, label: str, role: Any, derived: bool = True) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived)


ARMS = (
    _arm("structured", "Structured memory (predicted reply links in threads)", "method", derived=False),
    _arm("random", "Random messages", "floor", derived=False),
    _arm("gold_evidence", "Oracle: the gold evidence, same reader", "ceiling", derived=False),
    _arm("bm25", "BM25", "baseline"),
    _arm("bm25_header", "BM25 with header (threads: with speaker)", "baseline"),
    _arm("recency", "The next ten messages (threads only)", "baseline"),
    _arm("dense", "Dense (hashed n-grams)", "baseline"),
    _arm("hybrid", "BM25 and dense, fused", "baseline"),
    _arm("flat", "Flat facts (mem0-like)", "baseline"),
    _arm("no_alias", "Structured without aliases", "ablation"),
    _arm("no_scope", "Structured without scope", "ablation"),
    _arm("no_speaker", "Structured without speaker", "ablation"),
    _arm("no_reply", "Structured without reply links", "ablation"),
    _arm("no_supersession", "Structured without supersession", "ablation"),
    _arm("no_recency", "Threads: structured without recency", "ablation"),
    _arm("no_same_speaker", "Threads: structured without same speaker", "ablation"),
    _arm("no_links", "Threads: structured without links", "ablation"),
    _arm("gold_links", "Oracle: structured with people's reply links", "ceiling"),
)
RUN_ARMS = ("structured", "random", "gold_evidence")

METRICS = (
    Metric(name="recall", label="Recall@10 of the thread, or of the gold evidence", better="higher", worst=0.0),
    Metric(name="micro", label="Answers right, all questions (micro)", better="higher", worst=0.0),
    Metric(name="macro", label="Answers right, mean of the types (macro)", better="higher", worst=0.0),
    *(
        Metric(name=kind, label=f"Answers right: {kind.replace('_', ' ')}", better="higher", worst=0.0)
        for kind in TYPES
    ),
    Metric(name="others_above", label="Lowest other type minus the higher of knowledge update and term ambiguity",
           better="higher"),
    Metric(name="link_precision", label="Predicted reply links that people drew too", better="higher"),
    Metric(name="link_recall", label="People's reply links that are predicted", better="higher"),
    Metric(name="query_ms", label="Processor time of a query", better="lower", unit="ms"),
    Metric(name="queries", label="Threads or questions asked", better="higher"),
)  # fmt: skip


def flat_names(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``structured``."""
    return carried("structured", arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``structured`` ran, of one task and seed."""
    return carried_arms("structured", arms)
