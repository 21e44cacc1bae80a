"""How strongly a local head should lean on the prototype of its group, and what its uncertainty is, on plain arrays.

The paper's abstract settles the idea: a Bellman residual splits into a representation and a head error, and the best
strength of sharing follows from task mismatch and estimation uncertainty in closed form. The formulas here are a
reconstruction from standard theory.

Symbols: a local head w_i = w* + e with V_i = E|e|^2; a prototype p with sampling variance V_g = E|p - E p|^2 and
mismatch D2 = |E p - w*|^2; C = E<e, p - E p>, their covariance. |.| is the norm of values, |w|^2 = tr(w^T Sigma w) with
Sigma the second moment of the features, or the Euclidean one. A head is (d,), or (d, k) for k outputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]

_ROUNDING = 1e-9  # relative: what a covariance may exceed its bound by
_SINGLE = 1e-6  # relative, per feature: what rounding in single precision may do to a second moment


class Refit(NamedTuple):
    """A head fitted by least squares.

    Attributes:
        head: Shape (d,) or (d, k).
        residual: r + gamma phi' w - phi w of each row, shape (n,) or (n, k); 0 where a row does not train an output.
        inverses: A^-1 of each output, or of all outputs alike, shape (1 or k, d, d).
    """

    head: Floats
    residual: Floats
    inverses: Floats


class ResidualSplit(NamedTuple):
    """Root mean square parts of a head's Bellman residual on a batch.

    Attributes:
        residual: Of the head itself.
        representation: Of the head that least squares fits on the same features. Noise in the rewards and the next
            states is in it, and as the fit solves the projected equation, another head's residual may be smaller.
        head: Of the values, |Phi (w_refit - w)|.
        head_residual: Of what the head error does to the residual, |(Phi - gamma Phi') (w_refit - w)|. Always
            ``residual <= representation + head_residual``, and ``head_residual <= (1 + gamma) head`` where the norm of
            the batch is one in which the next states weigh like the states, as under a stationary distribution.
    """

    residual: float
    representation: float
    head: float
    head_residual: float


def optimal_sharing_strength(V_i: Any, V_g: Any, delta2: Any, cov: Any = 0.0) -> Any:
    """Return the share of the prototype that minimises :func:`mixing_risk`, in [0, 1].

    (V_i - C) / (V_i + V_g + D2 - 2 C), clipped. Where the denominator is 0 every share is as good and the local head is
    kept: 0. For the mean of the *other* heads of a group of n, C = 0 and V_g is the mean of their variances divided by
    n - 1. For the mean that includes the client, C = V_i / n, V_g = sum of V_j / n^2 and D2 shrinks by ((n-1)/n)^2;
    the share is then n/(n-1) times as large, for the same head at the same risk.

    Args:
        V_i: Variance of the local head, at least 0; number, array or torch tensor, as are the rest.
        V_g: Variance of the prototype.
        delta2: Squared mismatch.
        cov: Covariance C of the two errors, within sqrt(V_i V_g) of 0.

    Returns:
        A number for numbers, else an array or tensor of their common shape.

    Raises:
        InputError: A value that is negative or not finite, or a covariance that no two errors have.
    """
    v, g, d, c = _moments(V_i, V_g, delta2, cov)
    scale = np.maximum(np.maximum(v, g), d)  # so that no sum overflows
    scale = np.where(scale > 0, scale, 1.0)
    v, g, d, c = v / scale, g / scale, d / scale, c / scale
    below = v + g + d - 2 * c
    share = np.divide(v - c, below, out=np.zeros(np.broadcast_shapes(v.shape, below.shape)), where=below > 0)
    return _like(np.clip(share, 0.0, 1.0), V_i, V_g, delta2, cov)


def mixing_risk(lam: Any, V_i: Any, V_g: Any, delta2: Any, cov: Any = 0.0) -> Any:
    """Return E|(1-lam) w_i + lam p - w*|^2 = (1-lam)^2 V_i + lam^2 (V_g + D2) + 2 lam (1-lam) C.

    Args:
        lam: Share of the prototype; any finite number.
        V_i: See :func:`optimal_sharing_strength`, as for the rest.
        V_g: See there.
        delta2: See there.
        cov: See there.

    Raises:
        InputError: As there.
    """
    v, g, d, c = _moments(V_i, V_g, delta2, cov)
    share = _finite("lam", lam)
    return _like((1 - share) ** 2 * v + share**2 * (g + d) + 2 * share * (1 - share) * c, lam, V_i, V_g, delta2, cov)


def squared_distance(first: Any, second: Any, sigma: Any = None, name: str = "heads") -> float:
    """Return |first - second|^2 of two heads of one shape, in values if ``sigma`` (d, d) is given.

    Raises:
        InputError: Shapes that differ, values that are not finite, or a ``sigma`` that is no second moment.
    """
    a, b = _finite(name, first), _finite(name, second)
    if a.shape != b.shape or a.ndim not in (1, 2):
        raise InputError(f"{name} must have one shape, (d,) or (d, k), got {a.shape} and {b.shape}")
    return squared_norm(a - b, None if sigma is None else second_moment(sigma, len(a)))


def squared_norm(head: Floats, moment: Floats | None = None) -> float:
    """Return |head|^2 of (d,) or (d, k), summed over outputs, in values if a :func:`second_moment` (d, d) is given."""
    return max(0.0, float(np.vdot(head, head if moment is None else moment @ head)))


def second_moment(sigma: Any, width: int, name: str = "sigma") -> Floats:
    """Return ``sigma`` as a symmetric, positive semidefinite (width, width) array.

    Raises:
        InputError: Another shape, not finite, not symmetric, or not positive semidefinite, beyond rounding.
    """
    moment = _finite(name, sigma)
    if moment.shape != (width, width):
        raise InputError(f"{name} must be the ({width}, {width}) second moment of the features, got {moment.shape}")
    if not np.allclose(moment, moment.T, rtol=0, atol=1e-5 * float(np.abs(moment).max(initial=0.0))):
        raise InputError(f"{name} must be symmetric: give the mean of phi phi^T over a client's features")
    size = float(np.abs(moment).max(initial=0.0))
    if size > 0.0:
        try:  # features in single precision leave eigenvalues as far below 0 as this
            np.linalg.cholesky(moment / size + _SINGLE * width * np.eye(width))
        except np.linalg.LinAlgError:
            raise InputError(
                f"{name} must be positive semidefinite: give the mean of phi phi^T over a client's features"
            ) from None
    return moment


def plug_in_strength(w_i: Any, proto: Any, V_i: float, sigma: Any = None) -> float:
    """Return V_i / |w_i - proto|^2 in [0, 1], the estimate of the best share for a prototype without client i.

    E|w_i - p|^2 = V_i + V_g + D2, so the ratio estimates the closed form; it runs slightly high. At distance 0 it is 1
    if the heads are identical and V_i > 0, else 0 (heads that differ where the features never look).

    Args:
        w_i: The local head, shape (d,) or (d, k).
        proto: The prototype, same shape.
        V_i: Estimate of the local head's variance, in the norm of ``sigma``.
        sigma: Second moment of the features, (d, d); None: Euclidean.

    Raises:
        InputError: A negative variance, shapes that differ, values that are not finite.
    """
    apart = squared_distance(w_i, proto, sigma, "w_i and proto")
    identical = bool(np.array_equal(np.asarray(w_i), np.asarray(proto)))
    return float(shares(np.array([float(_variance("V_i", V_i))]), np.array([apart]), np.array([identical]))[0])


def shares(variances: Floats, distances: Floats, identical: NDArray[np.bool_]) -> Floats:
    """Return variance / squared distance in [0, 1], each shape (N,), by the rules of :func:`plug_in_strength`."""
    at_zero = np.where(identical & (variances > 0), 1.0, 0.0)
    seen = (distances > 0) & np.isfinite(distances)
    return np.minimum(np.divide(variances, distances, out=at_zero, where=seen), 1.0)


def debiased_mismatch(w_i: Any, proto: Any, V_i: float, V_g: float, sigma: Any = None) -> float:
    """Return max(0, |w_i - proto|^2 - V_i - V_g), an estimate of D2 for reports.

    Raises:
        InputError: As :func:`plug_in_strength`.
    """
    apart = squared_distance(w_i, proto, sigma, "w_i and proto")
    return max(0.0, apart - float(_variance("V_i", V_i)) - float(_variance("V_g", V_g)))


def fit_head(
    features: Any,
    targets: Any,
    next_features: Any = None,
    *,
    gamma: float = 0.9,
    ridge: float = 0.1,
    outputs: Any = None,
) -> Refit:
    """Fit a linear head: least squares temporal differences with ``next_features``, ridge regression without.

    A = sum of phi (phi - gamma phi')^T + ridge I, w = A^-1 (sum of phi r).

    Args:
        features: Rows phi, shape (n, d).
        targets: Rewards r, or what is regressed on; shape (n,), or (n, k) for k outputs.
        next_features: Rows phi', shape (n, d).
        gamma: Discount in [0, 1) of ``next_features``; unused without.
        ridge: At least 0.
        outputs: For targets (n,): the output 0..k-1 that each row trains, e.g. the action taken; the head is (d, k).

    Raises:
        InputError: Shapes that do not fit, values that are not finite, or a system that has no solution.
    """
    phi, r, step, masks = _batch(features, targets, next_features, gamma, ridge, outputs)
    eye = ridge * np.eye(phi.shape[1])
    systems = np.stack([(phi * mask[:, None]).T @ (phi - step) + eye for mask in masks])
    try:
        inverses = np.linalg.inv(systems)
    except np.linalg.LinAlgError:
        raise InputError("features do not determine the head: give more rows or ridge > 0") from None
    moments = phi.T @ r
    head = np.stack([inverses[k if len(inverses) > 1 else 0] @ moments[:, k] for k in range(r.shape[1])], axis=1)
    used = masks.T if outputs is not None else 1.0
    residual = (r + (step - phi) @ head) * used
    flat = np.ndim(targets) == 1 and outputs is None
    return Refit(head[:, 0] if flat else head, residual[:, 0] if flat else residual, inverses)


def head_variance_refit(
    features: Any,
    targets: Any,
    next_features: Any = None,
    *,
    gamma: float = 0.9,
    ridge: float = 0.1,
    outputs: Any = None,
    sigma: Any = None,
) -> float:
    """Return the sandwich variance of a refitted head, sum over outputs of tr(Sigma A^-1 S A^-T).

    S = sum of residual^2 phi phi^T. It measures scatter around the mean of the fit: the bias of ``ridge`` is not in it,
    and an output that no row trains adds nothing.

    Args:
        features: As :func:`fit_head`, as for the rest.
        targets: See there.
        next_features: See there.
        gamma: See there.
        ridge: See there.
        outputs: See there.
        sigma: Second moment that values are weighed by, (d, d); None: Euclidean, the identity.

    Raises:
        InputError: As there, or a ``sigma`` that is no second moment.
    """
    fit = fit_head(features, targets, next_features, gamma=gamma, ridge=ridge, outputs=outputs)
    phi = np.asarray(features, dtype=np.float64)
    moment = None if sigma is None else second_moment(sigma, phi.shape[1])
    total = 0.0
    squares = fit.residual.reshape(len(phi), -1) ** 2
    # the outputs that share A^-1 share |A^-1 phi|^2 too: one pass for all of them
    weights = squares.sum(axis=1, keepdims=True) if len(fit.inverses) == 1 else squares
    for weight, inverse in zip(weights.T, fit.inverses, strict=True):
        pulls = phi @ inverse.T
        total += float(weight @ np.einsum("nd,nd->n", pulls, pulls if moment is None else pulls @ moment))
    return total


def head_variance_split(first: Any, second: Any, sigma: Any = None) -> float:
    """Return |first - second|^2 / 4 of heads fitted on the two halves of a batch: the variance of a fit on all of it.

    Raises:
        InputError: Shapes that differ, or values that are not finite.
    """
    return squared_distance(first, second, sigma, "first and second") / 4.0


def head_variance_iterates(iterates: Any, sigma: Any = None) -> float:
    """Return the sample variance of a head's iterates within a round, shape (T, d) or (T, d, k), T >= 2.

    It measures how far the optimiser moved, not how sure the head is; under Adam the two have little in common.

    Raises:
        InputError: Fewer than two iterates, or values that are not finite.
    """
    seen = _finite("iterates", iterates)
    if seen.ndim not in (2, 3) or len(seen) < 2:
        raise InputError(f"iterates must be at least two heads, shape (T, d) or (T, d, k), got {seen.shape}")
    apart = seen - seen.mean(axis=0)
    moment = None if sigma is None else second_moment(sigma, seen.shape[1])
    return sum(squared_norm(row, moment) for row in apart) / (len(seen) - 1)


def bellman_residual_decomposition(
    features: Any, rewards: Any, next_features: Any, head: Any, *, gamma: float = 0.9, ridge: float = 0.1
) -> ResidualSplit:
    """Split the Bellman residual of ``head`` on a batch into what the features and what the head are to blame for.

    Args:
        features: Rows phi, shape (n, d).
        rewards: Shape (n,), or (n, k) for k outputs, whose squares are summed.
        next_features: Rows phi', shape (n, d).
        head: Shape (d,) or (d, k).
        gamma: Discount.
        ridge: Of the refit.

    Raises:
        InputError: As :func:`fit_head`, or a head of another shape.
    """
    fit = fit_head(features, rewards, next_features, gamma=gamma, ridge=ridge)
    phi, after = np.asarray(features, dtype=np.float64), np.asarray(next_features, dtype=np.float64)
    own = _finite("head", head)
    if own.shape != fit.head.shape:
        raise InputError(f"head must have shape {fit.head.shape} for these features and rewards, got {own.shape}")
    r, gap = np.asarray(rewards, dtype=np.float64), fit.head - own
    residual = r + gamma * (after @ own) - phi @ own
    return ResidualSplit(_rms(residual), _rms(fit.residual), _rms(phi @ gap), _rms((phi - gamma * after) @ gap))


def _rms(values: Floats) -> float:
    return math.sqrt(float(np.vdot(values, values)) / len(values))


def _batch(
    features: Any, targets: Any, next_features: Any, gamma: float, ridge: float, outputs: Any
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return phi (n, d), targets (n, k), gamma phi' (n, d), and the rows of each system, (1 or k, n)."""
    phi, r = _finite("features", features), _finite("targets", targets)
    if phi.ndim != 2 or not phi.size or r.ndim not in (1, 2) or len(r) != len(phi):
        raise InputError(f"features must be (n, d) and targets (n,) or (n, k), got {phi.shape} and {r.shape}")
    if not 0 <= gamma < 1:
        raise InputError(f"gamma must lie in [0, 1), got {gamma}")
    if not 0 <= ridge < math.inf:
        raise InputError(f"ridge must be a finite number of at least 0, got {ridge}")
    step = np.zeros_like(phi)
    if next_features is not None:
        step = gamma * _finite("next_features", next_features)
        if step.shape != phi.shape:
            raise InputError(f"next_features must have the shape of features, {phi.shape}, got {step.shape}")
    if outputs is None:
        return phi, r.reshape(len(r), -1), step, np.ones((1, len(phi)))
    which = np.asarray(outputs)
    if r.ndim != 1 or which.shape != r.shape or which.dtype.kind not in "iu" or int(which.min()) < 0:
        raise InputError("outputs must be integers from 0, shape (n,), beside targets of shape (n,)")
    masks = (which == np.arange(int(which.max()) + 1)[:, None]).astype(np.float64)
    return phi, masks.T * r[:, None], step, masks


def _moments(V_i: Any, V_g: Any, delta2: Any, cov: Any) -> tuple[Floats, Floats, Floats, Floats]:
    v, g, d = _variance("V_i", V_i), _variance("V_g", V_g), _variance("delta2", delta2)
    c = _finite("cov", cov)
    if np.any(np.abs(c) > np.sqrt(v) * np.sqrt(g) * (1 + _ROUNDING)):
        raise InputError("cov must lie within sqrt(V_i * V_g) of 0: no two errors of these variances covary more")
    return v, g, d, c


def _variance(name: str, value: Any) -> Floats:
    array = _finite(name, value)
    if np.any(array < 0):
        raise InputError(f"{name} must be at least 0, got {float(array.min())}")
    return array


def _finite(name: str, value: Any) -> Floats:
    detached = value.detach().cpu() if hasattr(value, "detach") else value
    try:
        array = np.asarray(detached, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers of one shape") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite numbers")
    return array


def _like(result: Floats, *inputs: Any) -> Any:
    """Return a tensor if an input is one, a number if all are."""
    for given in inputs:
        if hasattr(given, "new_tensor"):
            return given.new_tensor(result)
    return float(result) if result.ndim == 0 else result
