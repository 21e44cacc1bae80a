"""When softmax collapses and how fast the inflation grows: thresholds, drift and the two-vector recursion."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.errors import InputError

Vector = NDArray[np.float64]


class Threshold(NamedTuple):
    """Margin (true logit minus each wrong one, all equal) above which the true-class gradient is rounded to 0."""

    low: float
    high: float


class Simulation(NamedTuple):
    """Course of the two-vector recursion; entry t is the state after t + 1 steps."""

    growth: Vector  # factor of ||mu_G|| in each step
    cosine: Vector  # cos(W_G, mu_G)
    norm_ratio: Vector  # ||W_G|| / ||mu_G||
    predicted_growth: Vector  # 1 + eta eps / sqrt(K)


def mantissa_digits(dtype: torch.dtype) -> int:
    """Return p, the mantissa digits of ``dtype`` with the hidden bit (float32: 24)."""
    if not dtype.is_floating_point:
        raise InputError(f"dtype must be a floating dtype, not {dtype}.")
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def paper_threshold(dtype: torch.dtype) -> float:
    """Return the paper's collapse margin (p - 1) ln 2 (section 3.1); the real one is at least ln 2 larger."""
    return (mantissa_digits(dtype) - 1) * math.log(2)


def collapse_threshold(dtype: torch.dtype, K: int) -> Threshold:
    """Return the margin at which ``F.cross_entropy`` in ``dtype`` loses the true-class gradient.

    p ln 2 for two classes, by round-to-nearest. With more classes, half precision sums in float32 and rounds once, so
    the total wrong mass decides: p ln 2 + ln(K - 1). float32 and float64 lie between the two, depending on the order
    in which the processor adds. A guide, never a detector: read the gradient instead (:class:`NFIMonitor` does).
    Measured on the CPU for this library; the paper gives (p - 1) ln 2.

    Args:
        dtype: Floating dtype of the logits that the loss sees (float32 under autocast).
        K: Number of classes, at least 2.

    Returns:
        (low, high); equal where the threshold is one number.

    Raises:
        InputError: Fewer than 2 classes, or a dtype that is not floating.
    """
    _check_classes(K)
    single = mantissa_digits(dtype) * math.log(2)
    all_equal = single + math.log(K - 1)
    half = dtype in (torch.bfloat16, torch.float16)
    return Threshold(all_equal if half else single, all_equal)


def neural_collapse_eps(K: int, class_norm: float, feature_norm: float) -> float:
    """Return the wrong-class mass (K - 1) exp(-K/(K-1) ||w|| ||mu||) of a collapsed classifier (theorem 3.4).

    Args:
        K: Number of classes.
        class_norm: Norm of a centred class row w_k - W_G.
        feature_norm: Norm of a centred class mean feature.
    """
    _check_classes(K)
    return (K - 1) * math.exp(-K / (K - 1) * class_norm * feature_norm)


def wrong_mass(gradient: Tensor) -> Tensor:
    """Return each row's wrong-class probability mass from its logit gradient: the sum of its positive entries.

    Args:
        gradient: Gradient of the summed loss by the logits, shape (B, K); needs no labels, since only the true class's
            entry is ever negative.

    Returns:
        Shape (B,). Under a mean reduction these are 1/B of the masses.
    """
    return gradient.clamp_min(0).sum(-1)


def mean_row_drift(features: Tensor, mass: Tensor, eta: float, K: int) -> Tensor:
    """Return the step of the classifier's mean row in a collapsed batch: -(eta / (K B)) sum_i eps_i h_i.

    Args:
        features: Penultimate features h, shape (B, d).
        mass: Wrong-class masses eps_i of the collapsed samples (0 for the others), shape (B,).
        eta: Learning rate of plain gradient descent on the mean loss.
        K: Number of classes.

    Returns:
        Shape (d,). Exact per batch (theorem 3.4 takes its expectation).
    """
    _check_classes(K)
    if mass.shape != features.shape[:1]:
        raise InputError(f"mass has shape {tuple(mass.shape)}, but there are {features.shape[0]} rows of features.")
    return -(eta / (K * features.shape[0])) * (mass @ features)


def simulate_nfi(
    K: int,
    eta: float,
    eps: float | Vector,
    steps: int = 1000,
    w_mean: Vector | None = None,
    mu_mean: Vector | None = None,
) -> Simulation:
    """Iterate W_G <- W_G - (eta eps / K) mu_G, mu_G <- mu_G - eta eps W_G (theorem 3.7).

    With constant ``eps`` the growth tends to 1 + eta eps / sqrt(K), the cosine to -1 and the norm ratio to 1/sqrt(K).
    With eps falling like 1/t the norms grow like a power of t only. The pair is rescaled as it grows, so nothing
    overflows.

    Args:
        K: Number of classes.
        eta: Learning rate, above 0.
        eps: Wrong-class mass, one number or one per step.
        steps: Number of steps, at least 1.
        w_mean: Initial classifier mean, shape (d,). Default: orthogonal to ``mu_mean``, of norm 1/sqrt(K).
        mu_mean: Initial feature mean, shape (d,), not zero. Default: a unit vector.

    Raises:
        InputError: A size or value out of range.
    """
    _check_classes(K)
    if steps < 1:
        raise InputError(f"steps must be at least 1, not {steps}.")
    if not (math.isfinite(eta) and eta > 0):
        raise InputError(f"eta must be a finite number above 0, not {eta}.")
    masses = np.broadcast_to(np.asarray(eps, dtype=np.float64), (steps,)) if np.size(eps) in (1, steps) else None
    if masses is None or not np.all(np.isfinite(masses) & (masses >= 0)):
        raise InputError(f"eps must be a finite number of at least 0, or {steps} of them, one per step.")
    w, mu = _start_pair(K, w_mean, mu_mean)
    growth, cosine, ratio = np.empty(steps), np.empty(steps), np.empty(steps)
    for t, mass in enumerate(masses):
        before = np.linalg.norm(mu)
        w, mu = w - (eta * mass / K) * mu, mu - eta * mass * w
        w_norm, mu_norm = np.linalg.norm(w), np.linalg.norm(mu)
        growth[t] = mu_norm / before
        ratio[t] = w_norm / mu_norm
        cosine[t] = (w @ mu) / (w_norm * mu_norm) if w_norm > 0 else 0.0
        w, mu = w / mu_norm, mu / mu_norm
    return Simulation(growth, cosine, ratio, 1.0 + eta * masses / math.sqrt(K))


def _start_pair(K: int, w_mean: Vector | None, mu_mean: Vector | None) -> tuple[Vector, Vector]:
    mu = np.array([1.0, 0.0]) if mu_mean is None else np.asarray(mu_mean, dtype=np.float64)
    if w_mean is None and mu.shape != (2,):
        raise InputError(f"w_mean must be given with mu_mean, both of shape ({mu.size},).")
    w = np.array([-mu[1], mu[0]]) / math.sqrt(K) if w_mean is None else np.asarray(w_mean, dtype=np.float64)
    if w.shape != mu.shape or w.ndim != 1:
        raise InputError(f"w_mean has shape {w.shape} and mu_mean {mu.shape}; both must be the same (d,).")
    if not (np.all(np.isfinite(w)) and np.all(np.isfinite(mu)) and np.linalg.norm(mu) > 0):
        raise InputError("mu_mean must be finite and not zero, and w_mean finite.")
    return w, mu


def _check_classes(K: int) -> None:
    if K < 2:
        raise InputError(f"K must be at least 2 classes, not {K}.")
