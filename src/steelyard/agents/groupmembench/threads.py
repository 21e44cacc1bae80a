"""Thread mode: how well every message fits into the thread of a known one, from links, position, words and speaker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.groupmembench.columns import Ints
from steelyard.agents.groupmembench.core import thread_scores
from steelyard.agents.groupmembench.memory import Request
from steelyard.agents.groupmembench.replies import Links
from steelyard.agents.groupmembench.table import NEVER, MessageTable


class ThreadWeights(NamedTuple):
    """Weights of :func:`core.thread_scores`, and how many links are followed; give recency=0 for certain links."""

    link: float = 3.0
    decay: float = 0.8
    recency: float = 0.3
    lexical: float = 0.05
    speaker: float = 0.5
    depth: int = 6


THREAD_WEIGHTS = ThreadWeights()


def anchored_scores(
    table: MessageTable,
    links: Links | None,
    extra: Sequence[tuple[int, int]],
    words: NDArray[np.float64],
    request: Request,
    weights: ThreadWeights,
) -> NDArray[np.float64]:
    """Return the thread score of every row against the request's anchor, shape (N,).

    Args:
        table: The messages.
        links: Reply links, or None to use none.
        extra: Further links, as pairs of rows; -1 = a message that is not here.
        words: BM25 scores of the query, shape (N,).
        request: What is asked; rows that it does not see neither link nor count as lines in between.
        weights: The weights.
    """
    anchor, depth = request.anchor, weights.depth
    distances = np.full(len(table), -1, np.int64)
    distances[anchor] = 0
    if links is not None:
        neighbours: dict[int, list[int]] = {}
        for one, two in extra:
            if one >= 0 and two >= 0:
                neighbours.setdefault(one, []).append(two)
                neighbours.setdefault(two, []).append(one)
        front = np.array([anchor])
        for distance in range(1, depth + 1):
            further = [near for row in front.tolist() for near in neighbours.get(row, ())] if neighbours else []
            near = np.concatenate([links.parents[front], links.children(front)[0], np.array(further, np.int64)])
            near = np.unique(near[near >= 0])
            near = near[distances[near] < 0]
            front = near if request.seen is None else near[request.seen[near]]
            if not len(front):
                break
            distances[front] = distance
    known = words if request.allowed is None else np.where(request.allowed, words, 0.0)
    return thread_scores(
        distances,
        _offsets(table, request),
        np.maximum(known, 0.0),
        table.authors.codes == table.authors.codes[anchor],
        link=weights.link,
        decay=weights.decay,
        recency=weights.recency,
        lexical=weights.lexical,
        speaker=weights.speaker,
    )


def _offsets(table: MessageTable, request: Request) -> Ints:
    """Return line minus line of the anchor, shape (N,), for its channel; 0, which is outside the window, elsewhere.

    Where messages have no line, their number among those of the channel that are seen takes its place: by time, and
    by arrival where they have no timestamp.
    """
    offsets = np.zeros(len(table), np.int64)
    inside = table.channels.codes == table.channels.codes[request.anchor]
    if request.seen is not None:
        inside &= request.seen
    rows = np.flatnonzero(inside)
    lines = table.positions[rows]
    if (lines < 0).any():
        instants = table.instants[rows]
        order = np.lexsort((np.where(instants == NEVER, rows, table.keys[rows]), instants))
        lines = np.empty(len(rows), np.int64)
        lines[order] = np.arange(len(rows))
    offsets[rows] = lines - lines[np.searchsorted(rows, request.anchor)]
    return offsets
