"""How well scores tell wrong from right answers: areas under the curve with ties, within lengths, pooled, and a probe.

Scores are "higher = more likely hallucinated" throughout; ``wrong`` is True for a hallucinated answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require

Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]
LIKE = 1.25  # answers are of like length when the longer has at most a quarter more tokens


class Pooled(NamedTuple):
    """An area under the curve over all subsets, with the limits of a bootstrap over questions."""

    auroc: float
    low: float
    high: float
    answers: int


def auroc(scores: Any, wrong: Any) -> float:
    """Return the probability that a wrong answer scores above a right one, ties counted half.

    Args:
        scores: Finite values, shape (n,).
        wrong: True for wrong answers, shape (n,); both classes are needed.

    Raises:
        InputError: Shapes differ, a score is not finite, or one class is missing.
    """
    s, w = _checked(scores, wrong)
    gap = s[w][:, None] - s[~w][None]
    return float((np.sign(gap) + 1).mean() / 2)


def auroc_within_lengths(scores: Any, wrong: Any, lengths: Any) -> float:
    """Return the same over the pairs of a wrong and a right answer that are of like length; .5 where there are none.

    Args:
        scores: Finite values, shape (n,).
        wrong: True for wrong answers, shape (n,).
        lengths: Tokens of each answer, shape (n,), at least 1.
    """
    s, w = _checked(scores, wrong)
    T = np.asarray(lengths, dtype=np.float64)
    if T.shape != s.shape or not (T >= 1).all():
        raise InputError(f"lengths must hold one number of tokens per score, at least 1, got shape {T.shape}")
    long, short = np.maximum.outer(T[w], T[~w]), np.minimum.outer(T[w], T[~w])
    pairs = long <= LIKE * short
    if not pairs.any():
        return 0.5
    gap = s[w][:, None] - s[~w][None]
    return float((np.sign(gap[pairs]) + 1).mean() / 2)


def pooled_auroc(
    scores: Any, wrong: Any, questions: Any, generator: np.random.Generator, draws: int = 2000, level: float = 0.95
) -> Pooled:
    """Return the area over all answers of all subsets with a bootstrap interval in which questions are drawn.

    Answers to one question stay together, as they are not independent.

    Args:
        scores: Finite values, shape (n,).
        wrong: True for wrong answers, shape (n,).
        questions: Number of each answer's question, shape (n,).
        generator: Draws the questions.
        draws: Bootstrap samples; those without both classes are left out.
        level: Confidence level.
    """
    s, w = _checked(scores, wrong)
    _, group = np.unique(np.asarray(questions), return_inverse=True)
    if group.shape != s.shape:
        raise InputError(f"questions must hold one number per score, got shape {group.shape}")
    rows = [np.flatnonzero(group == number) for number in range(group.max() + 1)]
    found = []
    for _ in range(draws):
        drawn = np.concatenate([rows[number] for number in generator.integers(len(rows), size=len(rows))])
        if w[drawn].any() and not w[drawn].all():
            found.append(auroc(s[drawn], w[drawn]))
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Pooled(auroc(s, w), float(low), float(high), len(s))


def probe_scores(states: Any, wrong: Any, questions: Any, folds: int = 5) -> Vector:
    """Return out-of-fold scores of a logistic probe on standardised states: a supervised reference, no rival.

    Answers to one question share a fold, so the probe never learns from the question that it is asked about.

    Args:
        states: One vector per answer, shape (n, d).
        wrong: True for wrong answers, shape (n,).
        questions: Number of each answer's question, shape (n,).
        folds: At most; fewer where a class has fewer answers.
    """
    linear_model, selection = require("sklearn.linear_model", "guard"), require("sklearn.model_selection", "guard")
    x = np.asarray(states, dtype=np.float64)
    w = np.asarray(wrong, dtype=bool)
    fewest = int(min(w.sum(), (~w).sum()))
    groups = np.asarray(questions)
    splits = min(folds, fewest, len(np.unique(groups)))
    if splits < 2:
        return np.zeros(len(w))  # nothing to learn from: no opinion
    scores = np.zeros(len(w))
    for train, test in selection.StratifiedGroupKFold(splits).split(x, w, groups):
        if w[train].all() or not w[train].any():
            continue
        mean, spread = x[train].mean(0), x[train].std(0) + 1e-6
        # Far fewer answers than features: a strong penalty, the same for all data sets.
        model = linear_model.LogisticRegression(C=0.01, max_iter=500, class_weight="balanced")
        model.fit((x[train] - mean) / spread, w[train])
        scores[test] = model.decision_function((x[test] - mean) / spread)
    return scores


def _checked(scores: Any, wrong: Any) -> tuple[Vector, Flags]:
    s, w = np.asarray(scores, dtype=np.float64), np.asarray(wrong)
    if s.ndim != 1 or w.shape != s.shape:
        raise InputError(f"scores and wrong must be two lists of one length, got shapes {s.shape} and {w.shape}")
    if w.dtype.kind not in "bui" or not np.isin(w, (0, 1)).all():
        raise InputError("wrong must hold True (hallucinated) or False for every score")
    if not np.isfinite(s).all():
        raise InputError(f"scores must be finite, got {s[~np.isfinite(s)][0]} at index {_first(~np.isfinite(s))}")
    w = w.astype(bool)
    if w.all() or not w.any():
        raise InputError("wrong needs both classes: the area under the curve compares wrong with right answers")
    return s, w


def _first(where: Flags) -> int:
    return int(np.flatnonzero(where)[0])
