"""What every detector here shares: thresholds, and the two signs that scikit-learn and PyOD give a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array
from steelyard.guard.discrepancy.thresholds import Method, find_threshold


class Scorer(ABC):
    """A detector with ``score(questions, responses, contexts)``, higher = more likely hallucinated.

    Attributes:
        threshold: Scores above it count as hallucinated; None until :meth:`fit_threshold`. It holds for one model and
            one layer only.
    """

    threshold: float | None = None

    @abstractmethod
    def score(self, questions: Any, responses: Any, contexts: Any = None) -> Array:
        """Return the score of each answer, shape (n,): higher = more likely hallucinated."""

    def fit_threshold(
        self, scores: Any, method: Method = "quantile", labels: Any = None, quantile: float = 0.9
    ) -> float:
        """Set and return the threshold above which :meth:`predict` says hallucinated.

        Args:
            scores: Scores of a reference pool, shape (n,).
            method: "quantile", "gmm", "otsu" (no labels), or "youden" (with labels).
            labels: 1 where an answer is hallucinated, shape (n,); for "youden" only.
            quantile: Share of the pool that lies below the threshold, for "quantile".

        Raises:
            InputError: Texts in the place of scores, or an argument that cannot be used.
        """
        _check_scores("fit_threshold", scores, more=not isinstance(method, str))
        self.threshold = find_threshold(scores, method, labels=labels, quantile=quantile)
        return self.threshold

    def predict(self, scores: Any, *rest: Any) -> NDArray[np.int64]:
        """Return 1 for hallucinated (score above the threshold) and 0 otherwise, shape (n,), from scores (n,).

        Raises:
            InputError: Texts in the place of scores; no threshold was fitted; a score is NaN.
        """
        _check_scores("predict", scores, more=bool(rest))
        if self.threshold is None:
            raise InputError("no threshold yet; call fit_threshold(scores) on a reference pool first")
        s = np.asarray(scores, dtype=np.float64)
        if np.isnan(s).any():
            raise InputError(
                f"scores[{int(np.argmax(np.isnan(s)))}] is NaN, of an answer without a token; leave it out"
            )
        return (s > self.threshold).astype(np.int64)

    def decision_function(self, X: Sequence[Any]) -> Array:
        """Return the score S of each row, shape (n,): **higher = more abnormal**, PyOD's convention.

        Args:
            X: Rows (question, response) or (question, response, context), or mappings with these keys.
        """
        return self.score(*columns(X))

    def score_samples(self, X: Sequence[Any]) -> Array:
        """Return the discrepancy D = -S of each row, shape (n,): **lower = more abnormal**, scikit-learn's convention.

        Args:
            X: Rows (question, response) or (question, response, context), or mappings with these keys.
        """
        return -self.decision_function(X)


def _check_scores(method: str, scores: Any, more: bool) -> None:
    """Raise InputError for texts, rows of texts, or further arguments (``more``) where scores alone are wanted."""
    first = scores[0] if isinstance(scores, list | tuple | np.ndarray) and np.size(scores) else scores
    rows = isinstance(first, list | tuple) and any(isinstance(one, str) for one in first)
    if more or rows or isinstance(first, str | Mapping):
        raise InputError(f"{method} takes scores, not texts; write {method}(detector.score(questions, responses))")


def columns(X: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any] | None]:
    """Return questions, responses and contexts (None where no row has one) of rows.

    Raises:
        InputError: A row is no (question, response[, context]) and no mapping with these keys.
    """
    if isinstance(X, str):
        raise InputError("X must be a list of (question, response) rows, got one string")
    rows = [_row(place, row) for place, row in enumerate(X)]
    contexts = [row[2] for row in rows]
    used = contexts if any(context is not None for context in contexts) else None
    return [row[0] for row in rows], [row[1] for row in rows], used


def _row(place: int, row: Any) -> tuple[Any, Any, Any]:
    if isinstance(row, Mapping):
        unknown = set(row) - {"question", "response", "context"}
        if unknown or "question" not in row or "response" not in row:
            raise InputError(f"X[{place}] must have the keys question, response and, if there is one, context")
        return row["question"], row["response"], row.get("context")
    if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray) or len(row) not in (2, 3):
        raise InputError(f"X[{place}] must be (question, response) or (question, response, context)")
    return row[0], row[1], row[2] if len(row) == 3 else None
