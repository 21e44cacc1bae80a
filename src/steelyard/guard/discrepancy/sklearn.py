"""A detector as a scikit-learn estimator: clone, pipelines and grid searches take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from steelyard.guard.discrepancy.core import Array
from steelyard.guard.discrepancy.thresholds import Method, find_threshold


class DiscrepancyEstimator(BaseEstimator):  # type: ignore[misc]
    """Scores (question, response[, context]) rows; mind the signs.

    ``decision_function`` is the score S, **higher = more abnormal** (PyOD). ``score_samples`` is D = -S, **lower = more
    abnormal** (scikit-learn). ``predict`` gives **1 for hallucinated**, 0 otherwise (PyOD; scikit-learn's own detectors
    give -1).

    Args:
        detector: An :class:`EmbeddingDiscrepancy` or a :class:`BlackBoxDiscrepancy`.
        method: How :meth:`fit` finds the threshold: "quantile", "gmm", "otsu", or "youden", which needs labels.
        quantile: Share of the reference pool below the threshold, for "quantile".

    Attributes:
        threshold_: Scores above it count as hallucinated.
        decision_scores_: Scores of the reference pool, shape (n,).
        labels_: What :meth:`predict` says of it, shape (n,).
    """

    def __init__(self, detector: Any = None, method: Method = "quantile", quantile: float = 0.9) -> None:
        self.detector = detector
        self.method = method
        self.quantile = quantile

    def fit(self, X: Sequence[Any], y: Any = None) -> DiscrepancyEstimator:
        """Find the threshold on a reference pool; ``y`` (1 = hallucinated) is read by "youden" only."""
        self.decision_scores_ = self.decision_function(X)
        labels = y if self.method == "youden" else None
        self.threshold_ = find_threshold(self.decision_scores_, self.method, labels=labels, quantile=self.quantile)
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(np.int64)
        return self

    def decision_function(self, X: Sequence[Any]) -> Array:
        """Return S of each row, shape (n,): higher = more abnormal."""
        scores: Array = self.detector.decision_function(X)
        return scores

    def score_samples(self, X: Sequence[Any]) -> Array:
        """Return D = -S of each row, shape (n,): lower = more abnormal."""
        return -self.decision_function(X)

    def predict(self, X: Sequence[Any]) -> NDArray[np.int64]:
        """Return 1 for hallucinated and 0 otherwise, shape (n,)."""
        check_is_fitted(self, "threshold_")
        return (self.decision_function(X) > self.threshold_).astype(np.int64)
