"""How far the states of an answer's own tokens move when its question is put before it, on plain arrays.

The paper's abstract settles the idea and its sign (a small move = likely hallucinated). Layer, pooling, distance and
everything numeric here are a reconstruction, unless a line names another source.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Pool = Literal["mean", "last", "token"]
Distance = Literal["cosine", "l2", "rel_l2"]
Layer = int | float | str | tuple[int | float | str, int | float | str]
Array = NDArray[np.float64]

POOLS = ("mean", "last", "token")
DISTANCES = ("cosine", "l2", "rel_l2")


def resolve_layers(layer: Layer, num_layers: int) -> tuple[int, ...]:
    """Return the indices of the hidden states that ``layer`` names, 1..``num_layers``.

    Index 0 is the embedding of the tokens: with rotary positions it does not depend on the context, so the discrepancy
    there is 0 whatever the answer. The last index is taken after the model's final norm by transformers, the one before
    it is not: scores of the two are not alike.

    Args:
        layer: An index, a fraction in (0, 1] of ``num_layers`` (rounded down, 0.75 of 30 is 22), either as text, or a
            pair of them for all layers from the first to the second.
        num_layers: Blocks of the model, L.

    Raises:
        InputError: It names layer 0 or no layer.
    """
    if isinstance(layer, tuple | list):
        if len(layer) != 2:
            raise InputError("layer as a band must be a pair (lowest, highest)")
        low, high = (_one_layer(end, num_layers) for end in layer)
        if low > high:
            raise InputError(f"layer: the band ({low}, {high}) is empty; write the lower layer first")
        return tuple(range(low, high + 1))
    return (_one_layer(layer, num_layers),)


def _one_layer(layer: object, num_layers: int) -> int:
    value: object = layer
    if isinstance(layer, str):
        try:
            value = float(layer) if "." in layer else int(layer)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"layer must be an index 1..{num_layers} or a fraction in (0, 1], got {layer!r}")
    if not isinstance(value, numbers.Integral):
        if not 0 < float(value) <= 1:
            raise InputError(f"layer as a fraction must lie in (0, 1], got {layer!r}; an index has no decimal point")
        return max(1, math.floor(float(value) * num_layers + 1e-9))  # .29 * 100 is 28.999…
    if int(value) == 0:
        raise InputError("layer 0 holds the embeddings, which no context changes: choose a layer from 1 on")
    if not 1 <= int(value) <= num_layers:
        raise InputError(f"layer must lie in 1..{num_layers}, got {layer!r}")
    return int(value)


def distance(a: Any, b: Any, dist: Distance = "cosine") -> Array:
    """Return the distance of vectors along the last axis, shape (...,).

    ``cosine`` is 1 - cos in [0, 2], computed as half the squared distance of the unit vectors, which is exactly 0 for
    equal vectors where 1 - a.b/|a||b| leaves a residue that depends on the norm. ``l2`` is |a - b|, ``rel_l2`` is
    |a - b| / |b|. Where a norm that divides is zero the distance is 0, with a warning.

    Raises:
        InputError: Unknown distance, shapes that differ, or values that are not finite.
    """
    x, y = _vectors(a, "h_ctx"), _vectors(b, "h_alone")
    if x.shape != y.shape:
        raise InputError(f"h_ctx and h_alone must have one shape, got {x.shape} and {y.shape}")
    if dist not in DISTANCES:
        raise InputError(f"dist must be one of {', '.join(DISTANCES)}, got {dist!r}")
    difference: Array
    if dist == "l2":
        difference = np.linalg.norm(x - y, axis=-1)
        return difference
    norm_x, norm_y = np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)
    void = (norm_y == 0) | ((norm_x == 0) & (dist == "cosine"))
    if void.any():
        warnings.warn("a state of norm zero has no direction: its discrepancy is 0", RuntimeWarning, stacklevel=2)
    norm_x, norm_y = np.where(void | (norm_x == 0), 1.0, norm_x), np.where(void, 1.0, norm_y)
    if dist == "rel_l2":
        difference = np.linalg.norm(x - y, axis=-1) / norm_y
    else:
        gap = x / norm_x[..., None] - y / norm_y[..., None]
        difference = np.clip(0.5 * (gap * gap).sum(-1), 0.0, 2.0)
    return np.where(void, 0.0, difference)


def token_discrepancy(h_ctx: Any, h_alone: Any, mask: Any = None, dist: Distance = "cosine") -> Array:
    """Return the distance of every token's two states, shape (n, T), 0 where ``mask`` is off.

    Args:
        h_ctx: States of the answer's tokens after the question, shape (n, T, d).
        h_alone: States of the same tokens without it, shape (n, T, d).
        mask: True at the tokens that count, shape (n, T); None: all of them.
        dist: "cosine", "l2" or "rel_l2".
    """
    x, y, on = _checked(h_ctx, h_alone, mask)
    return np.where(on, distance(np.where(on[..., None], x, 1.0), np.where(on[..., None], y, 1.0), dist), 0.0)


def discrepancy_from_states(
    h_ctx: Any, h_alone: Any, mask: Any = None, pool: Pool = "mean", dist: Distance = "cosine"
) -> Array:
    """Return the discrepancy D of each answer, shape (n,): large = the question shaped the answer.

    Args:
        h_ctx: States of the answer's tokens after the question, shape (n, T, d); half precision is computed in float64.
        h_alone: States of the same tokens without it, shape (n, T, d).
        mask: True at the tokens that count, shape (n, T); None: all of them.
        pool: "mean" or "last" state of the answer, or "token": the mean over tokens of each token's own distance.
        dist: "cosine", "l2" or "rel_l2".

    Raises:
        InputError: Shapes or options that cannot be used, an answer without a token, states that are not finite.
    """
    if pool not in POOLS:
        raise InputError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
    x, y, on = _checked(h_ctx, h_alone, mask)
    if pool == "token":
        value: Array = token_discrepancy(x, y, on, dist).sum(1) / on.sum(1)
        return value
    return distance(pool_states(x, on, pool), pool_states(y, on, pool), dist)


def answer_discrepancy(
    h_ctx: Any, h_alone: Any, pool: Pool = "mean", dist: Distance = "cosine", drop_first: bool = False
) -> float:
    """Return D of one answer over several layers: the mean of theirs.

    Args:
        h_ctx: States of the answer's tokens after the question, shape (layers, T, d).
        h_alone: States of the same tokens without it, shape (layers, T, d).
        pool: See :func:`discrepancy_from_states`, also for ``dist``.
        dist: "cosine", "l2" or "rel_l2".
        drop_first: Leave out the first token where there is more than one.
    """
    if drop_first and h_ctx.shape[1] > 1:
        h_ctx, h_alone = h_ctx[:, 1:], h_alone[:, 1:]
    return float(discrepancy_from_states(h_ctx, h_alone, None, pool, dist).mean())


def score_from_states(
    h_ctx: Any, h_alone: Any, mask: Any = None, pool: Pool = "mean", dist: Distance = "cosine"
) -> Array:
    """Return S = -D of each answer, shape (n,): **higher = more likely hallucinated** (the paper's sign).

    Arguments and errors are those of :func:`discrepancy_from_states`. Scores of other models, layers, pools or
    distances are not comparable.
    """
    return -discrepancy_from_states(h_ctx, h_alone, mask, pool, dist)


def pool_states(states: Any, mask: Any, pool: Literal["mean", "last"] = "mean") -> Array:
    """Return one vector per answer, shape (n, d), from states (n, T, d) under ``mask`` (n, T)."""
    x, on = as_float(states), np.asarray(mask, dtype=bool)
    if pool == "last":
        last = on.shape[1] - 1 - np.argmax(on[:, ::-1], axis=1)
        chosen: Array = x[np.arange(len(x)), last]
        return chosen
    mean: Array = np.where(on[..., None], x, 0.0).sum(1) / on.sum(1)[:, None]
    return mean


def as_float(values: Any) -> Array:
    """Return an array or a tensor of any precision and device as float64."""
    if hasattr(values, "detach"):  # a torch tensor: numpy knows no bfloat16
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _vectors(values: Any, name: str) -> Array:
    x = as_float(values)
    if x.ndim < 1 or not x.shape[-1]:
        raise InputError(f"{name} must hold vectors along its last axis, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise InputError(f"{name} holds NaN or infinite values")
    return x


def _checked(h_ctx: Any, h_alone: Any, mask: Any) -> tuple[Array, Array, NDArray[np.bool_]]:
    x, y = as_float(h_ctx), as_float(h_alone)
    if x.ndim != 3 or x.shape != y.shape:
        raise InputError(f"h_ctx and h_alone must both be (answers, tokens, width), got {x.shape} and {y.shape}")
    on = np.ones(x.shape[:2], dtype=bool) if mask is None else np.asarray(as_float(mask) != 0)
    if on.shape != x.shape[:2]:
        raise InputError(f"mask must be (answers, tokens) = {x.shape[:2]}, got {on.shape}")
    empty = np.flatnonzero(~on.any(1))
    if len(empty):
        raise InputError(f"mask[{empty[0]}] leaves no token of that answer; every answer needs one")
    return x, y, on


def unbiased_hsic(K: Any, L: Any) -> float:
    """Return the unbiased estimate of HSIC from two kernel matrices of shape (n, n), n >= 4.

    With zeroed diagonals: [tr(KL) + (1'K1)(1'L1)/((n-1)(n-2)) - 2 1'KL1/(n-2)] / (n(n-3)) (Song et al. 2012).

    Raises:
        InputError: They are not square, differ in shape, or have fewer than 4 rows.
    """
    k, m = np.array(as_float(K)), np.array(as_float(L))
    n = len(k)
    if k.ndim != 2 or k.shape != m.shape or k.shape != (n, n) or n < 4:
        raise InputError(f"K and L must be square of one size, at least 4, got {k.shape} and {m.shape}")
    np.fill_diagonal(k, 0.0)
    np.fill_diagonal(m, 0.0)
    pairs = k.sum() * m.sum() / ((n - 1) * (n - 2))
    return float(((k * m.T).sum() + pairs - 2 * (k.sum(0) @ m.sum(1)) / (n - 2)) / (n * (n - 3)))


def rbf_kernel(X: Any, gamma: float = 1e-7) -> Array:
    """Return exp(-gamma |x_i - x_j|^2) - 1, shape (n, n), for the rows of ``X`` (n, d).

    The unbiased HSIC does not change when a constant is added to a kernel. Without the 1 the tiny gammas that HIDE
    uses keep all their digits.
    """
    x = as_float(X)
    gap = x[:, None] - x[None]
    kernel: Array = np.expm1(-gamma * (gap * gap).sum(-1))
    return kernel


def eigenscore(states: Any, alpha: float = 1e-3) -> float:
    """Return INSIDE's EigenScore of K answers to one question: mean log10 of the eigenvalues of their covariance.

    Each answer's vector is a variable and the features are the observations, so the covariance is (K, K); ``alpha`` is
    added to its diagonal. High = the answers disagree = likely hallucinated.

    Args:
        states: One state per sampled answer, shape (K, d), K >= 2, d >= 2.
        alpha: Regulariser, above 0.

    Raises:
        InputError: Too few answers or features, values that are not finite, alpha not above 0.
    """
    x = _vectors(states, "states")
    if x.ndim != 2 or min(x.shape) < 2:
        raise InputError(f"states must be (samples, width), both at least 2, got {x.shape}")
    if not alpha > 0:
        raise InputError(f"alpha must be above 0, got {alpha}")
    covariance = np.cov(x) + alpha * np.eye(len(x))
    return float(np.linalg.slogdet(covariance)[1] / (len(x) * math.log(10)))


def clip_features(states: Any, bank: Sequence[Any] | Any, low: float = 0.002, high: float = 0.998) -> Array:
    """Return ``states`` (..., d) with each feature cut at its quantiles in a memory ``bank`` (m, d), as INSIDE does."""
    bottom, top = np.quantile(as_float(bank), [low, high], axis=0)
    clipped: Array = np.clip(as_float(states), bottom, top)
    return clipped
