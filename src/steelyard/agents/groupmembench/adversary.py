"""Adversarial search: of several wordings and askers, keep the one that the reference attackers fail on.

The attackers are retrievers without structure, BM25 and embeddings; no structured memory ever takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from steelyard.agents.bm25 import BM25Index, tokenize
from steelyard.agents.groupmembench.asking import Asked
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.reading import correct, read
from steelyard.models.embedders import HashingEmbedder
from steelyard.models.protocols import Embedder

Attacker = Callable[[str], Sequence[int]]
"""From a query to positions of messages, best first."""

TOP = 10


def bm25_attacker(messages: Sequence[Message]) -> Attacker:
    """Return Okapi BM25 on contents."""
    index = BM25Index()
    index.add_many(tokenize(message.content) for message in messages)
    return lambda query: [int(place) for place in index.top(tokenize(query), TOP)[0]]


def dense_attacker(messages: Sequence[Message], embedder: Embedder | None = None) -> Attacker:
    """Return cosine similarity of embeddings; hashed n-grams when there is no embedder."""
    encoder = HashingEmbedder() if embedder is None else embedder
    rows = encoder.encode([message.content for message in messages])

    def attack(query: str) -> Sequence[int]:
        near = rows @ encoder.encode([query])[0]
        return [int(place) for place in np.argsort(-near, kind="stable")[:TOP]]

    return attack


def default_attackers() -> tuple[Callable[[Sequence[Message]], Attacker], ...]:
    """Return what attacks when nothing else is asked for: BM25 and hashed n-grams."""
    return bm25_attacker, dense_attacker


def hardest(
    asked: Sequence[Sequence[Asked]],
    messages: Sequence[Message],
    makers: Sequence[Callable[[Sequence[Message]], Attacker]],
    iterations: int,
) -> Iterator[Asked]:
    """Yield for each question the wording that the fewest attackers answer right.

    Args:
        asked: Variants of each question, all of them solvable; the first is the one to start from.
        messages: The chat.
        makers: Functions from messages to an attacker.
        iterations: Variants tried beside the first. 0: the first is kept, no attacker is built.
    """
    attackers = [maker(messages) for maker in makers] if iterations else []
    for variants in asked:
        tried = list(variants[: iterations + 1])
        yield min(tried, key=lambda one: strength(one, messages, attackers)) if len(tried) > 1 else tried[0]


def strength(one: Asked, messages: Sequence[Message], attackers: Sequence[Attacker]) -> tuple[int, float]:
    """Return how many attackers lead the reader to the answer, then the mean reciprocal rank of the gold evidence."""
    right, ranks = 0, 0.0
    for attack in attackers:
        places = attack(f"{one.asker} {one.question}")
        right += correct(read(one.question, [messages[place].content for place in places]), one.answer)
        names = [messages[place].id for place in places]
        ranks += max((1 / (1 + names.index(name)) for name in one.gold if name in names), default=0.0)
    return right, ranks / max(1, len(attackers))
