"""Taking the length of an answer out of its score: mean-pooled D falls with the number of tokens (reconstruction)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array, as_float


class LengthAdjustment(NamedTuple):
    """A straight line of scores on the log of the answer's length, and the spread round it."""

    intercept: float
    slope: float
    spread: float

    def apply(self, scores: Any, lengths: Any) -> Array:
        """Return (score - line) / spread: how unusual a score is for an answer of that many tokens, shape (n,)."""
        line = self.intercept + self.slope * np.log(as_float(lengths))
        adjusted: Array = (as_float(scores) - line) / self.spread
        return adjusted


def fit_length_adjustment(scores: Any, lengths: Any) -> LengthAdjustment:
    """Fit the line on a reference pool of scores, shape (n,), and lengths in tokens, shape (n,); no labels needed.

    Raises:
        InputError: Fewer than three answers, all of one length, lengths below 1, or scores on one line.
    """
    s, T = as_float(scores), as_float(lengths)
    if s.ndim != 1 or s.shape != T.shape or len(s) < 3:
        raise InputError("scores and lengths must be two lists of the same length, at least 3")
    if not np.isfinite(s).all() or not (T >= 1).all():
        raise InputError("scores must be finite and lengths at least 1")
    x = np.log(T)
    if np.ptp(x) == 0:
        raise InputError("lengths are all equal: nothing to adjust for; leave length_adjust out")
    slope, intercept = np.polyfit(x, s, 1)
    spread = float(np.std(s - intercept - slope * x))
    if spread <= 1e-12 * max(1.0, float(np.abs(s).max())):
        raise InputError("scores are a function of the length alone: nothing is left once it is taken out")
    return LengthAdjustment(float(intercept), float(slope), spread)
