"""The formulas of GraphUAT: uncertainty of a Dirichlet, evidential loss, strength from coverage, z-scored sources.

The paper states the teacher-student scheme, the split into aleatoric and epistemic uncertainty and the three sources.
The formulas of the split are the published standard ones; the strength from coverage and the rule that names a source
are reconstructions. All functions are pure; uncertainties are in nats.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.errors import InputError

SOURCES = ("feature", "structure", "coverage")
"""The three sources of uncertainty, in the order of the columns of scores."""

_SERIES_FROM = 32.0  # from here on the series of digamma(x + 1) - ln x is exact to 2e-14 relative
_PAIRS = 2**22  # numbers that the pairwise beliefs of dissonance may take at once
_LOG_STRENGTH = (-8.0, 3.0)  # clip of the log-likelihood above the training median


class Uncertainty(NamedTuple):
    """Uncertainties of Dirichlet distributions; every field but ``alpha`` has the shape of the batch.

    Attributes:
        total: Entropy of the mean, in nats.
        aleatoric: Expected entropy, in nats.
        epistemic: Mutual information ``total - aleatoric``, in nats, never negative.
        vacuity: Classes / total concentration; 1 means no evidence.
        dissonance: Conflict between the beliefs of subjective logic, in [0, 1].
        alpha: The concentrations, (..., K).
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    vacuity: Tensor
    dissonance: Tensor
    alpha: Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of probabilities (..., K) in nats, with 0 ln 0 = 0; shape (...)."""
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(-1)


def logit_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of ``softmax(logits)`` (..., K) in nats, with finite gradients where it saturates."""
    log_probabilities = torch.log_softmax(logits, -1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def dirichlet_uncertainty(alpha: Any) -> Uncertainty:
    """Split the uncertainty of Dirichlet distributions.

    ``TU = H[a/a0]``, ``AU = sum_c a_c/a0 (digamma(a0 + 1) - digamma(a_c + 1))``, ``EU = TU - AU``, vacuity ``K/a0``,
    and the dissonance of the beliefs ``b_k = (a_k - 1)/a0``. EU is computed as a sum of ``digamma(x + 1) - ln x``,
    which keeps its relative accuracy where ``TU - AU`` would cancel (large concentrations).

    Args:
        alpha: Concentrations (..., K), positive and finite: a tensor, or what makes one; integers become float64.

    Returns:
        The uncertainties in the dtype of ``alpha``, computed in float64, differentiable. A concentration below 1 counts
        as no belief in the dissonance, which subjective logic defines from 1 on.

    Raises:
        InputError: ``alpha`` is empty in its last dimension, not positive or not finite.
    """
    alpha = _concentrations(alpha)
    exact = alpha.double()
    strength = exact.sum(-1, keepdim=True)
    mean = exact / strength
    total = -(mean * mean.log()).sum(-1)
    epistemic = ((mean * _digamma_gap(exact)).sum(-1) - _digamma_gap(strength).squeeze(-1)).clamp(min=0.0)
    belief = ((exact - 1.0) / strength).clamp(min=0.0)
    dtype = alpha.dtype
    return Uncertainty(
        total=total.to(dtype),
        aleatoric=(total - epistemic).to(dtype),
        epistemic=epistemic.to(dtype),
        vacuity=(exact.shape[-1] / strength.squeeze(-1)).to(dtype),
        dissonance=_dissonance(belief).to(dtype),
        alpha=alpha,
    )


def _concentrations(given: Any) -> Tensor:
    alpha = torch.as_tensor(given)
    if not alpha.is_floating_point():
        alpha = alpha.double()
    if alpha.ndim == 0 or alpha.shape[-1] == 0:
        raise InputError(f"alpha must have one column per class, but its shape is {tuple(alpha.shape)}")
    good = torch.isfinite(alpha) & (alpha > 0)
    if not bool(good.all()):
        at = tuple(int(i) for i in (~good).nonzero()[0])
        raise InputError(f"alpha must be positive and finite, but it is {alpha[at].item():g} at index {at}")
    return alpha


def _digamma_gap(x: Tensor) -> Tensor:
    """Return ``digamma(x + 1) - ln x``, about 1/(2x); by its asymptotic series where the difference would cancel."""
    far = x.clamp(min=_SERIES_FROM)
    square = far**-2
    series = 0.5 / far - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    near = x.clamp(max=_SERIES_FROM)
    return torch.where(x < _SERIES_FROM, torch.digamma(near + 1.0) - near.log(), series)


def _dissonance(belief: Tensor) -> Tensor:
    classes = belief.shape[-1]
    flat = belief.reshape(-1, classes)
    rows = max(1, _PAIRS // classes**2)
    parts = [_dissonance_rows(part) for part in torch.split(flat, rows)]
    return torch.cat(parts).reshape(belief.shape[:-1])


def _dissonance_rows(belief: Tensor) -> Tensor:
    """Beliefs (n, K) -> dissonance (n,): each belief times the balance-weighted mean of the others."""
    pair_sum = belief[:, :, None] + belief[:, None, :]
    both = (belief[:, :, None] > 0) & (belief[:, None, :] > 0)
    difference = (belief[:, :, None] - belief[:, None, :]).abs()
    balance = torch.where(both, 1.0 - difference / torch.where(both, pair_sum, 1.0), 0.0)
    balance = balance - torch.diag_embed(torch.diagonal(balance, dim1=1, dim2=2))
    others = belief.sum(-1, keepdim=True) - belief
    weighted = (balance * belief[:, None, :]).sum(-1)
    alone = others <= 0
    return (belief * torch.where(alone, 0.0, weighted / torch.where(alone, 1.0, others))).sum(-1)


def differential_entropy(alpha: Any) -> Tensor:
    """Return the differential entropy of Dirichlet distributions (..., K) in nats; shape (...).

    Raises:
        InputError: ``alpha`` is not positive or not finite.
    """
    alpha = _concentrations(alpha)
    exact = alpha.double()
    strength = exact.sum(-1)
    log_beta: Tensor = torch.lgamma(exact).sum(-1) - torch.lgamma(strength)
    surplus: Tensor = (strength - exact.shape[-1]) * torch.digamma(strength)
    value: Tensor = log_beta + surplus - ((exact - 1.0) * torch.digamma(exact)).sum(-1)
    return value.to(alpha.dtype)


def uce_loss(alpha: Any, target: Tensor, lambda_h: float = 0.0) -> Tensor:
    """Return the uncertain cross-entropy, the mean of ``sum_c t_c (digamma(a0) - digamma(a_c)) - lambda_h H``.

    Args:
        alpha: Concentrations (..., K).
        target: Soft targets (..., K), or class indices (...) of an integer dtype.
        lambda_h: Weight of the Dirichlet's differential entropy H, which keeps the evidence small; published values are
            1e-5 to 1e-3.

    Raises:
        InputError: Shapes do not fit, ``alpha`` is not positive, or ``lambda_h`` is negative or not finite.
    """
    alpha = _concentrations(alpha)
    if not (math.isfinite(lambda_h) and lambda_h >= 0):
        raise InputError(f"lambda_h must be 0 or more, not {lambda_h}")
    exact = alpha.double()
    gap = torch.digamma(exact.sum(-1, keepdim=True)) - torch.digamma(exact)
    if target.is_floating_point():
        if target.shape != alpha.shape:
            raise InputError(f"target has shape {tuple(target.shape)}, alpha {tuple(alpha.shape)}: they must be equal")
        loss = (target.double() * gap).sum(-1)
    else:
        if target.shape != alpha.shape[:-1] or not bool(((target >= 0) & (target < alpha.shape[-1])).all()):
            raise InputError(f"target must hold one class from 0 to {alpha.shape[-1] - 1} for each row of alpha")
        loss = gap.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    if lambda_h:
        loss = loss - lambda_h * differential_entropy(exact)
    return loss.mean().to(alpha.dtype)


class Coverage(NamedTuple):
    """What the labelled nodes say about where the student has evidence.

    Attributes:
        centre: Mean of the labelled representations, (d,).
        whitening: (d, d): ``(h - centre) @ whitening`` has the shrunk covariance of unit size.
        anchors: (A, d), whitened: class means (Gaussian) or the labelled nodes themselves (nearest neighbours).
        log_weights: (A,) ln of the labels behind each anchor; used by the Gaussian.
        median: (), the median over the labelled nodes of the log-likelihood; of nearest neighbours, of the others.
        neighbours: 0 for the Gaussian, else how many nearest labelled nodes count.
    """

    centre: Tensor
    whitening: Tensor
    anchors: Tensor
    log_weights: Tensor
    median: Tensor
    neighbours: int


def fit_coverage(
    h_train: Tensor, y_train: Tensor, *, tau: float = 8.0, num_classes: int | None = None, neighbours: int = 0
) -> Coverage:
    """Fit the coverage of the labelled nodes; see :func:`coverage_strength`.

    The covariance is tied over classes and shrunk, 1/2 pooled + 1/2 (trace/d) identity, so that it exists for any
    number of labels. A class with one label lends its mean and nothing to the covariance; where no class spreads, the
    covariance is that of all labelled nodes around their mean, and the identity where that is zero too.

    Raises:
        InputError: No labelled nodes, shapes that do not fit, a class out of range, or values that are not finite.
    """
    _check_coverage(h_train, y_train, tau, num_classes)
    h = h_train.detach().double()
    classes, member, counts = torch.unique(y_train, return_inverse=True, return_counts=True)
    if num_classes is not None and len(classes) < num_classes:
        absent = sorted(set(range(num_classes)) - {int(c) for c in classes})
        warnings.warn(f"classes without a labelled node give no coverage: {absent}", UserWarning, stacklevel=3)
    means = torch.zeros(len(classes), h.shape[1], dtype=h.dtype, device=h.device)
    means = means.index_add(0, member, h) / counts[:, None]
    centre = h.mean(0)
    whitening = _whitening(h - means[member], h - centre)
    anchors = (h if neighbours else means) - centre
    log_weights = torch.zeros_like(h[:, 0]) if neighbours else counts.double().log()
    fitted = Coverage(centre, whitening, anchors @ whitening, log_weights, torch.zeros_like(h[0, 0]), neighbours)
    own = log_coverage(fitted, h, tau=tau) if not neighbours else _log_coverage_by_others(fitted, h, tau)
    return fitted._replace(median=own.quantile(0.5))


def _check_coverage(h_train: Tensor, y_train: Tensor, tau: float, num_classes: int | None) -> None:
    if h_train.ndim != 2 or h_train.shape[1] == 0:
        raise InputError(f"h_train must be a matrix (labelled nodes, width), but its shape is {tuple(h_train.shape)}")
    if len(h_train) == 0:
        raise InputError("h_train holds no labelled node, so there is no coverage to measure; label at least one node")
    if y_train.shape != h_train.shape[:1] or y_train.is_floating_point():
        raise InputError(f"y_train must hold one integer class for each of the {len(h_train)} rows of h_train")
    if not bool(torch.isfinite(h_train).all()):
        raise InputError("h_train holds values that are not finite")
    if num_classes is not None and not bool(((y_train >= 0) & (y_train < num_classes)).all()):
        raise InputError(f"y_train holds classes outside 0 to {num_classes - 1}")
    if not (math.isfinite(tau) and tau > 0):
        raise InputError(f"tau must be positive, not {tau}")


def _whitening(within: Tensor, around: Tensor) -> Tensor:
    """Return the inverse transposed Cholesky factor of the shrunk covariance of the first deviations that spread."""
    width = within.shape[1]
    identity = torch.eye(width, dtype=within.dtype, device=within.device)
    for deviations in (within, around):
        pooled = deviations.T @ deviations / len(deviations)
        size = pooled.trace() / width
        if float(size) > torch.finfo(torch.float32).tiny:
            factor = torch.linalg.cholesky(0.5 * pooled + 0.5 * size * identity)
            inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False).T
            return inverse
    return identity


def log_coverage(coverage: Coverage, h: Tensor, *, tau: float = 8.0) -> Tensor:
    """Return the tempered log-likelihood of representations (n, d) under the coverage, float64 (n,), differentiable."""
    width = coverage.whitening.shape[0]
    white = (h.double() - coverage.centre) @ coverage.whitening
    cross = white @ coverage.anchors.T
    squared = ((white**2).sum(-1, keepdim=True) + (coverage.anchors**2).sum(-1) - 2.0 * cross).clamp(min=0.0)
    if coverage.neighbours:
        count = min(coverage.neighbours, len(coverage.anchors))
        return -0.5 * tau / width * squared.topk(count, largest=False).values.mean(-1)
    return torch.logsumexp(coverage.log_weights - 0.5 * tau / width * squared, -1)


def _log_coverage_by_others(coverage: Coverage, h: Tensor, tau: float) -> Tensor:
    """As :func:`log_coverage` of the labelled nodes themselves, each seen from the others: its own distance is 0."""
    if len(h) == 1:
        return torch.zeros_like(h[:, 0])
    more = coverage._replace(neighbours=coverage.neighbours + 1)
    seen = min(more.neighbours, len(h))
    return log_coverage(more, h, tau=tau) * (seen / (seen - 1))


def strength_from(coverage: Coverage, h: Tensor, *, tau: float = 8.0, n_budget: float = 20.0) -> Tensor:
    """Return the evidence of representations (n, d) under a fitted coverage, (n,), in the dtype of ``h``."""
    above = log_coverage(coverage, h, tau=tau) - coverage.median
    return (n_budget * above.clamp(*_LOG_STRENGTH).exp()).to(h.dtype)


def coverage_strength(
    h: Tensor,
    h_train: Tensor,
    y_train: Tensor,
    *,
    tau: float = 8.0,
    n_budget: float = 20.0,
    num_classes: int | None = None,
) -> Tensor:
    """Return the evidence strength s of nodes from how well labelled nodes cover them (reconstruction).

    ``l(v) = logsumexp_c [ln n_c - d2_Mahalanobis(v, c) tau / (2d)]`` under class-conditional Gaussians with a tied,
    shrunk covariance fitted on the labelled nodes, and ``s = n_budget exp(clip(l - median of the labelled l, -8, 3))``.
    Where the clip holds the gradient is zero.

    Args:
        h: Representations (n, d) of the nodes to score.
        h_train: Representations (m, d) of the labelled nodes.
        y_train: Their classes (m,), integers.
        tau: Sharpness; ``tau/d`` tempers the density, which collapses in many dimensions.
        n_budget: Evidence of the median labelled node, about the labels per class.
        num_classes: When given, classes without a label raise a warning; they add no coverage.

    Returns:
        The strengths (n,), positive, in the dtype of ``h``.

    Raises:
        InputError: No labelled nodes, shapes that do not fit, a class out of range, values that are not finite.
    """
    if h.ndim != 2 or h_train.ndim != 2 or h.shape[1] != h_train.shape[1]:
        raise InputError(f"h {tuple(h.shape)} and h_train {tuple(h_train.shape)} must be matrices of one width")
    fitted = fit_coverage(h_train, y_train, tau=tau, num_classes=num_classes)
    return strength_from(fitted, h, tau=tau, n_budget=n_budget)


def standardise(scores: Tensor, reference: Tensor) -> Tensor:
    """Return z-scores of source scores (n, 3) against reference nodes (m, 3), column by column (reconstruction).

    A column in which the reference does not vary (one node, or all alike) is only centred.

    Raises:
        InputError: The reference is empty, of another width, or not finite.
    """
    if reference.ndim != 2 or len(reference) == 0:
        raise InputError("reference is empty: give at least one node to compare the scores with")
    if scores.shape[-1] != reference.shape[1]:
        raise InputError(f"scores have {scores.shape[-1]} columns, the reference {reference.shape[1]}")
    if not bool(torch.isfinite(reference).all()):
        raise InputError("reference holds scores that are not finite")
    spread = reference.double().std(0, correction=0)
    mean = reference.double().mean(0)
    flat = spread <= 1e-12 * mean.abs().clamp(min=1e-300)
    return ((scores.double() - mean) / torch.where(flat, 1.0, spread)).to(scores.dtype)


def source_shares(z: Tensor) -> Tensor:
    """Return the positive z-scores (n, 3) as shares that sum to 1; equal shares where none is above the reference."""
    positive = z.clamp(min=0.0)
    whole = positive.sum(-1, keepdim=True)
    return torch.where(whole > 0, positive / torch.where(whole > 0, whole, 1.0), 1.0 / z.shape[-1])


def dominant_source(z: Tensor) -> Tensor:
    """Return the column (n,) of the largest z-score, -1 where two or more tie for it."""
    top = z.max(-1, keepdim=True).values
    tied = (z == top).sum(-1) > 1
    return torch.where(tied, -1, z.argmax(-1))
