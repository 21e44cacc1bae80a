"""What a forward pass and GridProbe's passes cost, in floating-point operations, from a language model's sizes.

A multiplication with its addition counts 2; attention is counted in full, the vision encoder not at all (the released
code's formula, with two generalisations that other models need).
"""

from __future__ import annotations

import math
from typing import Literal

from steelyard.errors import InputError
from steelyard.models.vision.protocols import LMDims


def forward_flops(n_tokens: float, dims: LMDims, *, head: Literal["all", "last"] = "all") -> float:
    """Return the operations of one pass over ``n_tokens``.

    Args:
        n_tokens: At least 0; a mean may be a fraction.
        dims: Sizes of the language model.
        head: Whether the output matrix is applied at all positions (the released formula) or at the last one.

    Raises:
        InputError: A negative number of tokens, or an unknown ``head``.
    """
    if not (math.isfinite(n_tokens) and n_tokens >= 0):
        raise InputError(f"n_tokens must be a finite number of at least 0, got {n_tokens}")
    if head not in ("all", "last"):
        raise InputError(f"head must be all or last, got {head!r}")
    linear, quadratic = _rates(dims)
    at = n_tokens if head == "all" else min(n_tokens, 1.0)
    return linear * n_tokens + quadratic * n_tokens**2 + 2 * dims.d * dims.vocab * at


def _rates(dims: LMDims) -> tuple[float, float]:
    """Return the operations of all blocks a token and a pair of tokens."""
    queries = dims.d if dims.d_q is None else dims.d_q
    projections = 2 * (dims.d * queries + 2 * dims.d * dims.d_kv) + 2 * queries * dims.d
    return dims.layers * (projections + 2.0 * dims.ffn_matrices * dims.d * dims.d_ffn), 4.0 * dims.layers * queries


def probe_flops(n_tokens: float, dims: LMDims, *, k: int, rho: float, text_tokens: float = 0.0) -> float:
    """Return the operations of the 2K probes, each of ``rho * n_tokens / k`` frame tokens and the text."""
    _check(k, rho, text_tokens)
    return 2 * k * forward_flops(rho * n_tokens / k + text_tokens, dims)


def gridprobe_flops(
    n_tokens: float, dims: LMDims, *, k: int, fraction: float, rho: float, text_tokens: float = 0.0
) -> float:
    """Return the operations of the probes and of the pass on the frames that were selected.

    Args:
        n_tokens: Frame tokens of all K^2 frames at the focus resolution.
        dims: Sizes of the language model.
        k: Side of the grid.
        fraction: Share of the frames that is selected, in [0, 1].
        rho: Tokens of a frame in a probe over those in the focus pass; 1 without a lower resolution.
        text_tokens: Of each pass.

    Raises:
        InputError: A number is out of its range.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"fraction must lie in [0, 1], got {fraction}")
    probes = probe_flops(n_tokens, dims, k=k, rho=rho, text_tokens=text_tokens)
    return probes + forward_flops(fraction * n_tokens + text_tokens, dims)


def compute_ratio(
    n_tokens: float, dims: LMDims, *, k: int, fraction: float, rho: float, text_tokens: float = 0.0
) -> float:
    """Return how many times as much one pass over all frames costs as GridProbe does; below 1 GridProbe costs more."""
    whole = forward_flops(n_tokens + text_tokens, dims)
    return whole / gridprobe_flops(n_tokens, dims, k=k, fraction=fraction, rho=rho, text_tokens=text_tokens)


def break_even_fraction(n_tokens: float, dims: LMDims, *, k: int, rho: float, text_tokens: float = 0.0) -> float:
    """Return the share of frames at which GridProbe costs what one pass over all of them does.

    0 where the probes alone cost as much already; arguments as in :func:`gridprobe_flops`.
    """
    left = forward_flops(n_tokens + text_tokens, dims) - probe_flops(
        n_tokens, dims, k=k, rho=rho, text_tokens=text_tokens
    )
    linear, quadratic = _rates(dims)
    linear += 2 * dims.d * dims.vocab
    if left <= 0 or n_tokens == 0:
        return 0.0
    tokens = (math.sqrt(linear**2 + 4 * quadratic * left) - linear) / (2 * quadratic)
    return max(0.0, (tokens - text_tokens) / n_tokens)


def _check(k: int, rho: float, text_tokens: float) -> None:
    if not isinstance(k, int) or k < 2:
        raise InputError(f"k must be a whole number of at least 2, got {k!r}")
    if not 0 < rho <= 1:
        raise InputError(f"rho must lie in (0, 1], got {rho}")
    if not text_tokens >= 0:
        raise InputError(f"text_tokens must be at least 0, got {text_tokens}")
