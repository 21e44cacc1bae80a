"""A detector as an estimator of lm-polygraph, beside its many others."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.guard.discrepancy.core import Array


class PolygraphEstimator:
    """Sequence-level uncertainty: the detector's score of every greedy answer, higher = more uncertain.

    lm-polygraph need not be installed; where it is, this counts as one of its ``Estimator`` classes.

    Args:
        detector: An :class:`EmbeddingDiscrepancy`; its model should be the one that answers.
    """

    level = "sequence"

    def __init__(self, detector: Any) -> None:
        self.detector = detector
        self.stats_dependencies = ["input_texts", "greedy_texts"]
        if importlib.util.find_spec("lm_polygraph") is not None:
            base = require("lm_polygraph.estimators.estimator", "guard").Estimator
            check_seam(base)
            base.register(type(self))

    def __str__(self) -> str:
        layers = "-".join(str(layer) for layer in sorted({self.detector.layers[0], self.detector.layers[-1]}))
        return f"EmbeddingDiscrepancy(layer={layers}, pool={self.detector.pool}, dist={self.detector.dist})"

    def __call__(self, stats: Mapping[str, Sequence[str]]) -> Array:
        """Return the score of each answer, shape (n,).

        Args:
            stats: lm-polygraph's statistics; ``input_texts`` are the prompts as they are, ``greedy_texts`` the answers.

        Raises:
            InputError: One of the two is missing, or an answer is empty.
        """
        for name in self.stats_dependencies:
            if name not in stats:
                raise InputError(f"stats lacks '{name}'; let lm-polygraph calculate it")
        scores: Array = self.detector.score(None, list(stats["greedy_texts"]), condition=list(stats["input_texts"]))
        return scores


def check_seam(base: type) -> None:
    """Raise InputError unless an lm-polygraph estimator still is what this class looks like.

    Its ``__init__`` hides its arguments behind a decorator, so one is built and looked at.
    """
    parts = {"__call__": lambda self, stats: None, "__str__": lambda self: ""}
    known = getattr(base, "__abstractmethods__", None) == set(parts)
    try:
        made: Any = type("Probe", (base,), parts)(["input_texts"], "sequence")
        known = known and (made.stats_dependencies, made.level) == (["input_texts"], "sequence")
    except (TypeError, AttributeError):
        known = False
    if not known:
        raise InputError("this release of lm-polygraph has other estimators than PolygraphEstimator knows; use 0.7")
