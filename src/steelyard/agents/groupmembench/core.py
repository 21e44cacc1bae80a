"""Pure functions of group memory: replies that lend scores, thread scores, abstention, averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Averages(NamedTuple):
    """Share of right answers over all questions, and the mean of the shares of the types."""

    micro: float
    macro: float


def micro_macro(counts: Mapping[str, tuple[int, int]]) -> Averages:
    """Return both averages of ``{type: (correct, questions)}``: sum of correct / sum of n, and mean of correct / n.

    The paper's averages are micro ones over the union of its questions.

    Raises:
        InputError: No type, or not 0 <= correct <= n with n >= 1 in one.
    """
    if not counts:
        raise InputError("counts is empty: an average needs at least one type.")
    for name, (correct, n) in counts.items():
        if not 0 <= correct <= n or n < 1:
            raise InputError(f"counts of '{name}' must satisfy 0 <= correct <= n and n >= 1, not {correct} and {n}.")
    micro = sum(correct for correct, _ in counts.values()) / sum(n for _, n in counts.values())
    return Averages(micro, math.fsum(correct / n for correct, n in counts.values()) / len(counts))


def on_cycle(parents: Ints) -> Flags:
    """Return which messages lie on a circle of replies, shape (N,); ``parents`` is -1 where there is none."""
    n = len(parents)
    jump = np.append(np.where(parents < 0, n, parents), n)  # n is the place where all chains that end do end
    for _ in range(max(1, n).bit_length()):
        jump = jump[jump]
    # After at least N steps only circles are left, and every member of a circle is reached from another one.
    mask = np.zeros(n + 1, dtype=np.bool_)
    mask[jump] = True
    return mask[:n]


def reply_propagation(
    scores: ArrayLike, parents: ArrayLike, decay: float = 0.9, hops: int = 2, *, skip: ArrayLike | None = None
) -> Floats:
    """Let messages lend their scores to the replies below them.

    s'(m) = max(s(m), max over ancestors a at reply distance d <= hops of decay^d s(a)), so no score is lowered, and
    from hops >= depth on it is the fix-point of s(child) <- max(s(child), decay s(parent)) (of scores >= 0). Replies
    that run in a circle are cut: a message on one has no parent.

    Args:
        scores: Shape (N,), finite.
        parents: Shape (N,): index of the message that each one answers, -1 for none.
        decay: Factor per reply, from 0 to 1.
        hops: Longest reply distance, at least 0.
        skip: Mask (N,) of messages that neither lend nor gain (noise); they still count as a step of the way.

    Returns:
        Shape (N,).

    Raises:
        InputError: A shape, an index or a parameter is out of range, or a score is not finite.
    """
    given, above = np.asarray(scores, dtype=np.float64), np.asarray(parents, dtype=np.int64)
    if given.ndim != 1 or given.shape != above.shape:
        raise InputError(f"scores and parents must be equally long vectors, not {given.shape} and {above.shape}.")
    if not np.isfinite(given).all():
        raise InputError("scores holds a value that is not finite.")
    if len(above) and not (above.min() >= -1 and above.max() < len(above)):
        raise InputError(f"parents must hold -1 or an index below {len(above)}.")
    if not 0 <= decay <= 1 or hops < 0:
        raise InputError(f"decay must lie between 0 and 1 and hops be at least 0, not {decay} and {hops}.")
    muted = np.zeros(len(given), dtype=np.bool_) if skip is None else np.asarray(skip, dtype=np.bool_)
    if muted.shape != given.shape:
        raise InputError(f"skip has shape {muted.shape}; give one entry per score, {given.shape}.")
    above = np.where(on_cycle(above), -1, above)
    result, ancestor, factor = given.copy(), above, 1.0
    for _ in range(hops):
        factor *= decay
        below = np.flatnonzero(ancestor >= 0)
        if not len(below):
            break
        gaining = below[~muted[below] & ~muted[ancestor[below]]]
        result[gaining] = np.maximum(result[gaining], factor * given[ancestor[gaining]])
        ancestor = np.where(ancestor >= 0, above[ancestor], -1)
    return result


def conformal_abstain_threshold(scores_unanswerable: ArrayLike, alpha: float) -> float:
    """Return the top score above which a question is answered: the ceil((n + 1)(1 - alpha))-th smallest one.

    Split conformal: answering only when the top score exceeds it gives P(answer | unanswerable) <= alpha, if the
    questions at hand and the unanswerable ones given here are exchangeable.

    Args:
        scores_unanswerable: Top scores of n unanswerable questions that nothing else was fitted to.
        alpha: Share of unanswerable questions that may be answered, between 0 and 1.

    Raises:
        InputError: ``alpha`` is out of range, a score is not finite, or n is too small for ``alpha``.
    """
    scores = np.sort(np.asarray(scores_unanswerable, dtype=np.float64).ravel())
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie between 0 and 1, not {alpha!r}.")
    if not np.isfinite(scores).all():
        raise InputError("scores_unanswerable holds a value that is not finite.")
    share = Fraction(str(float(alpha)))  # as written: .05 is a twentieth, which a binary float misses
    rank = math.ceil((len(scores) + 1) * (1 - share))
    if rank > len(scores):
        least = math.ceil((1 - share) / share)
        raise InputError(
            f"{len(scores)} unanswerable questions are too few for alpha = {alpha}: give at least {least}, or a "
            "larger alpha."
        )
    return float(scores[rank - 1])


def link_distances(links: Iterable[tuple[int, int]], n: int, root: int, depth: int = 6) -> Ints:
    """Return how many links lie between ``root`` and every message, shape (n,); -1 where it takes more than ``depth``.

    Links are taken in both directions, breadth first.

    Raises:
        InputError: ``root`` or an end of a link is no message.
    """
    if not 0 <= root < n:
        raise InputError(f"root must be an index below {n}, not {root}.")
    neighbours: dict[int, list[int]] = {}
    for one, other in links:
        if not (0 <= one < n and 0 <= other < n):
            raise InputError(f"the link ({one}, {other}) must join indices below {n}.")
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    distances = np.full(n, -1, dtype=np.int64)
    distances[root] = 0
    front = [root]
    for distance in range(1, depth + 1):
        front = sorted({near for here in front for near in neighbours.get(here, ()) if distances[near] < 0})
        distances[front] = distance
    return distances


def recency_window(offsets: ArrayLike) -> Floats:
    """Return w = 1 / (1 + offset) for lines after the anchor (offset > 0), 0 for the anchor and those before it."""
    behind = np.asarray(offsets, dtype=np.float64)
    return np.where(behind > 0, 1.0 / (1.0 + np.maximum(behind, 0.0)), 0.0)


def thread_scores(
    distances: Ints,
    offsets: Ints,
    bm25: Floats,
    same_author: Flags,
    *,
    link: float = 3.0,
    decay: float = 0.8,
    recency: float = 0.3,
    lexical: float = 0.05,
    speaker: float = 0.5,
) -> Floats:
    """Return how well each message fits into the thread of an anchor message (reconstruction).

    score = link decay^distance (0 if unreachable) + recency w + lexical bm25 / max bm25 + speaker w [same author],
    with w of :func:`recency_window`. With links known for certain, ``recency`` is 0.

    Args:
        distances: Shape (N,): links to the anchor, -1 for unreachable; see :func:`link_distances`.
        offsets: Shape (N,): line of the message minus line of the anchor.
        bm25: Shape (N,): scores against the anchor's text; without a positive one the part is 0.
        same_author: Shape (N,): whether the anchor's author wrote it.
        link: Weight of the links.
        decay: Factor per link.
        recency: Weight of the window.
        lexical: Weight of the words.
        speaker: Weight of the same speaker within the window.

    Returns:
        Shape (N,); the anchor's own entry means nothing.

    Raises:
        InputError: The shapes differ.
    """
    shapes = {np.shape(part) for part in (distances, offsets, bm25, same_author)}
    if len(shapes) != 1:
        raise InputError(f"distances, offsets, bm25 and same_author must be equally long, not {sorted(shapes)}.")
    window = recency_window(offsets)
    top = bm25.max(initial=0.0)
    words = bm25 / top if top > 0 else np.zeros(len(bm25))
    linked = np.where(distances >= 0, decay ** np.maximum(distances, 0).astype(np.float64), 0.0)
    scores: Floats = link * linked + recency * window + lexical * words + speaker * window * same_author
    return scores
