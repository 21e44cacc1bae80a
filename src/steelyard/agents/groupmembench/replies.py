"""Reply links at query time: scores lent to replies and changes that supersede decisions, around the best hits only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.groupmembench.columns import Ints
from steelyard.agents.groupmembench.core import on_cycle
from steelyard.agents.groupmembench.table import Mask, MessageTable

Floats = NDArray[np.float64]
_DEPTH = 32  # how far a change is traced back to what it changes


class Links:
    """Parents and children of all rows, without circles of replies, and the pairs of an ancestor and a change.

    Args:
        table: The messages.
        changes: Which rows are changes, shape (N,).
        seen: Rows that link at all, shape (N,); None = all.

    Attributes:
        circular: Whether replies ran in a circle, which has been cut.
    """

    def __init__(self, table: MessageTable, changes: Mask, seen: Mask | None = None) -> None:
        parents = table.parents.astype(np.int64)
        if seen is not None:
            parents[~seen | ~seen[parents]] = -1
        self.circular = False
        if (parents >= np.arange(len(parents))).any():  # only then can there be a circle
            circle = on_cycle(parents)
            self.circular = bool(circle.any())
            parents[circle] = -1
        self.parents = parents
        replies = np.flatnonzero(parents >= 0)
        self.rows = replies[np.argsort(parents[replies], kind="stable")]
        self.starts = np.zeros(len(parents) + 1, np.int64)
        np.cumsum(np.bincount(parents[replies], minlength=len(parents)), out=self.starts[1:])
        change = np.flatnonzero(changes)
        above, pairs = parents[change], []
        for _ in range(_DEPTH):
            change, above = change[above >= 0], above[above >= 0]
            if not len(change):
                break
            pairs.append((above, change))
            above = parents[above]
        ancestors = np.concatenate([one for one, _ in pairs]) if pairs else np.zeros(0, np.int64)
        order = np.argsort(ancestors, kind="stable")
        self._ancestors = ancestors[order]
        self._changes = np.concatenate([two for _, two in pairs])[order] if pairs else np.zeros(0, np.int64)

    def children(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return (replies to ``rows``, for each the place in ``rows`` of what it replies to)."""
        first, count = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        place = np.repeat(np.arange(len(rows)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return self.rows[first[place] + within], place

    def changes_below(self, rows: Ints, seen: Mask | None = None) -> Ints:
        """Return the changes that reply, directly or not, to one of ``rows`` (rising); each once, rising.

        Only seen rows are on the way, and only seen changes come back.
        """
        low, high = np.searchsorted(self._ancestors, rows, "left"), np.searchsorted(self._ancestors, rows, "right")
        count = high - low
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        changes = np.unique(self._changes[np.repeat(low, count) + within])
        return changes if seen is None else changes[seen[changes] & self._reach(changes, rows, seen)]

    def _reach(self, changes: Ints, rows: Ints, seen: Mask) -> Mask:
        """Return which of ``changes`` have one of ``rows`` (rising, not none) above them by seen rows alone."""
        reached = np.zeros(len(changes), np.bool_)
        active, above = np.arange(len(changes)), self.parents[changes]
        for _ in range(_DEPTH):
            on = (above >= 0) & seen[above]
            active, above = active[on], above[on]
            if not len(active):
                break
            hit = rows[np.minimum(np.searchsorted(rows, above), len(rows) - 1)] == above
            reached[active[hit]] = True
            active, above = active[~hit], self.parents[above[~hit]]
        return reached

    def decision_of(self, changes: Ints, decisions: Mask, noise: Mask, seen: Mask | None) -> Ints:
        """Return the row that each of ``changes`` changes, or -1: the nearest decision above it, else its parent.

        Only seen rows lead upwards, and noise is passed by.
        """
        found, parent = np.full(len(changes), -1), np.full(len(changes), -1)
        active, above = np.arange(len(changes)), self.parents[changes]
        for _ in range(_DEPTH):
            on = above >= 0 if seen is None else (above >= 0) & seen[above]
            active, above = active[on], above[on]
            if not len(active):
                break
            real = ~noise[above]
            first = real & (parent[active] < 0)
            parent[active[first]] = above[first]
            hit = real & decisions[above]
            found[active[hit]] = above[hit]
            active, above = active[~hit], self.parents[above[~hit]]
        return np.where(found >= 0, found, parent)


class Lent(NamedTuple):
    """Rows (rising) with their scores, and from which row a score was lent (-1: it is the row's own)."""

    rows: Ints
    scores: Floats
    origin: Ints

    def origin_of(self, row: int) -> int:
        """Return from which row the score of ``row`` was lent, or -1."""
        place = int(np.searchsorted(self.rows, row))
        return int(self.origin[place]) if place < len(self.rows) and self.rows[place] == row else -1


def lend(links: Links, rows: Ints, scores: Floats, *, noise: Mask, seen: Mask | None, decay: float, hops: int) -> Lent:
    """Let the hits ``rows`` lend their scores to the replies below them, as ``core.reply_propagation`` does.

    Args:
        links: The reply links.
        rows: The hits, shape (M,).
        scores: Scores of all rows, shape (N,).
        noise: Rows that neither lend nor gain, shape (N,); the way leads through them.
        seen: Rows that may be used, shape (N,); the way does not lead through others. None = all.
        decay: Factor per reply.
        hops: Longest reply distance.
    """
    levels, front, origins = [], rows, rows
    for _ in range(hops):
        front, place = links.children(front)
        origins = origins[place]
        if seen is not None:
            kept = seen[front]
            front, origins = front[kept], origins[kept]
        if not len(front):
            break
        levels.append((front, origins))
    union = np.unique(np.concatenate([rows, *(front for front, _ in levels)]))
    best, origin = scores[union], np.full(len(union), -1)
    factor = 1.0
    for front, origins in levels:
        factor *= decay
        gain, at = factor * scores[origins], np.searchsorted(union, front)
        better = (gain > best[at]) & ~noise[front] & ~noise[origins]
        best[at[better]], origin[at[better]] = gain[better], origins[better]
    return Lent(union, best, origin)


class Acts(NamedTuple):
    """Which rows change something, and which decide something (changes do), shape (N,) each."""

    changes: Mask
    decisions: Mask


class Changed(NamedTuple):
    """Rows (rising) with their scores; what each superseded row was changed by, and what each change changed."""

    rows: Ints
    scores: Floats
    change_of: dict[int, int]
    decision_of: dict[int, int]


def supersede(
    links: Links,
    table: MessageTable,
    lent: Lent,
    scores: Floats,
    acts: Acts,
    *,
    seen: Mask | None,
    boost: float,
    factor: float,
) -> Changed:
    """Let every change below a hit take over the score of what it changes, times ``boost``; scale that by ``factor``.

    A change of a change takes over from both; whether the middle one is boosted does not depend on any order.

    Args:
        links: The reply links.
        table: The messages.
        lent: The hits and their relatives.
        scores: Scores of all rows, shape (N,), for rows beyond those.
        acts: What the rows do.
        seen: Rows that may be used; None = all.
        boost: Factor of a change, at least 1.
        factor: Factor of what was changed, at most 1.
    """
    changes = links.changes_below(lent.rows[lent.scores > 0], seen)
    noise = table.noise
    changes = changes[~noise[changes]]
    decisions = links.decision_of(changes, acts.decisions, noise, seen)
    changes, decisions = changes[decisions >= 0], decisions[decisions >= 0]
    rows = np.unique(np.concatenate([lent.rows, changes, decisions]))
    taken = scores[rows]
    taken[np.searchsorted(rows, lent.rows)] = lent.scores
    final = taken.copy()
    at, of = np.searchsorted(rows, changes), np.searchsorted(rows, decisions)
    for _ in range(_DEPTH):
        above = np.maximum(taken[at], taken[of])
        if np.array_equal(above, taken[at]):
            break
        taken[at] = above
    final[at] = boost * taken[at]
    final[np.unique(of)] *= factor
    by_time = np.lexsort((table.keys[changes], table.instants[changes]))
    newest = dict(zip(decisions[by_time].tolist(), changes[by_time].tolist(), strict=True))
    return Changed(rows, final, newest, dict(zip(changes.tolist(), decisions.tolist(), strict=True)))
