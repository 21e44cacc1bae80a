"""How many characters of an attack's suffix a disruption hits and changes, as exact probabilities."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

Floats: TypeAlias = NDArray[np.float64]


def break_at(m: int, m_suffix: int, k: int, count: int, v: int, kind: str, start: int) -> float:
    """Return the break probability with exactly ``count`` redrawn characters."""
    most = min(count, m_suffix)
    if k > most:
        return 0.0
    redrawn = np.arange(k, most + 1)  # suffix characters redrawn; fewer than k cannot break it
    changed = betainc(k, redrawn - k + 1, (v - 1) / v)  # P[Bin(redrawn, (v-1)/v) >= k]
    weights = hypergeometric(m, m_suffix, count) if kind == "swap" else overlaps(m, m_suffix, count, start)
    return min(1.0, float(weights[k : most + 1] @ changed))


def hypergeometric(m: int, m_suffix: int, count: int) -> Floats:
    """Return the probabilities of 0, 1, … suffix characters among ``count`` of ``m``.

    Shape (min(count, m_suffix) + 1,). Ratios of neighbours, summed as logarithms and normalised: more exact than
    differences of large log-factorials.
    """
    low, high = max(0, count - (m - m_suffix)), min(count, m_suffix)
    i = np.arange(low, high, dtype=np.float64)
    ratios = (m_suffix - i) * (count - i) / ((i + 1) * (m - m_suffix - count + i + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights = np.exp(logs - logs.max())
    return np.concatenate([np.zeros(low), weights / weights.sum()])


def overlaps(m: int, m_suffix: int, count: int, start: int) -> Floats:
    """Return how probable each overlap of window and suffix is; shape (min(count, m_suffix) + 1,)."""
    windows = np.arange(m - count + 1)
    overlap = np.minimum(windows + count, start + m_suffix) - np.maximum(windows, start)
    most = min(count, m_suffix)
    return np.bincount(np.maximum(overlap, 0), minlength=most + 1) / windows.size
