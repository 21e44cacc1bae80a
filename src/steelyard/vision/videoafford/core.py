"""Metrics of the field, the readings of a spatial loss, and clouds brought to one scale.

Metrics and mask loss are those of public code of the field (PIAD); the spatial loss has three readings, as its equation
was not at hand.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mode = Literal["smooth", "residual", "density"]
MODES = ("smooth", "residual", "density")
THRESHOLDS = 20
NEIGHBOURS = 16
_EPS = 1e-12
_DENSITY = 0.5  # keeps the weight of a far outlier finite
_LEAST_SIGMA = 1e-6
_DIRECT = 4096  # points up to which all distances are computed at once


class AffordanceMetrics(NamedTuple):
    """Means over the samples that have a value; NaN where none has.

    Attributes:
        auc: Area under the ROC curve of the scores against ``target >= threshold``.
        aiou: Mean intersection over union at 20 thresholds from 0 to 1.
        sim: Sum of the smaller of both shares.
        mae: Mean absolute error.
        skipped: Metric -> samples without a value: no positive point, or for ``auc`` none that is not.
    """

    auc: float
    aiou: float
    sim: float
    mae: float
    skipped: dict[str, int]


def affordance_metrics(pred: ArrayLike, target: ArrayLike, *, threshold: float = 0.5) -> AffordanceMetrics:
    """Return the four metrics of the field, computed a sample at a time and averaged.

    Args:
        pred: Scores of points in [0, 1], (N,) or (B, N).
        target: Labels in [0, 1], of the same shape.
        threshold: From which on a label is positive.

    Raises:
        InputError: Shapes differ, or a value is not in [0, 1].
    """
    scores, labels = _unit_rows("pred", pred), _unit_rows("target", target)
    if scores.shape != labels.shape:
        raise InputError(f"target: its shape is {labels.shape}, that of pred {scores.shape}")
    if not 0 < threshold <= 1:
        raise InputError(f"threshold must lie in (0, 1], got {threshold}")
    positive = labels >= threshold
    auc, aiou = area_under_roc(scores, positive), average_iou(scores, positive)
    sim, mae = similarity(scores, labels), np.abs(scores - labels).mean(1)
    found = {"auc": auc, "aiou": aiou, "sim": sim, "mae": mae}
    means = {
        name: float(np.mean(of[~np.isnan(of)])) if (~np.isnan(of)).any() else math.nan for name, of in found.items()
    }
    return AffordanceMetrics(**means, skipped={name: int(np.isnan(of).sum()) for name, of in found.items()})


def _unit_rows(name: str, values: ArrayLike) -> Floats:
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: it must hold numbers") from None
    rows = array[None] if array.ndim == 1 else array
    if rows.ndim != 2 or not rows.size:
        raise InputError(f"{name}: it must be (points,) or (samples, points), got shape {array.shape}")
    bad = np.flatnonzero(~((rows >= 0) & (rows <= 1)).all(1))
    if len(bad):
        raise InputError(f"{name}: sample {int(bad[0])} has a value outside [0, 1]; logits need a sigmoid first")
    return rows


def area_under_roc(scores: Floats, positive: NDArray[np.bool_]) -> Floats:
    """Return the area of each row, (B,), ties counted half; NaN without a positive or without a negative point."""
    size = scores.shape[1]
    order = np.argsort(scores, axis=1, kind="stable")
    ranked = np.take_along_axis(scores, order, 1)
    # The rank of equal scores is the mean of their places.
    new = np.concatenate([np.ones((len(ranked), 1), bool), np.diff(ranked, axis=1) != 0], 1)
    place = np.arange(1, size + 1, dtype=np.float64)[None]
    first = np.maximum.accumulate(np.where(new, place, 0.0), 1)
    ends = np.concatenate([new[:, 1:], np.ones((len(ranked), 1), bool)], 1)
    last = np.minimum.accumulate(np.where(ends, place, np.inf)[:, ::-1], 1)[:, ::-1]
    rank = (first + last) / 2
    hits = np.take_along_axis(positive, order, 1)
    yes = hits.sum(1)
    no = size - yes
    total = np.where(hits, rank, 0.0).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((yes > 0) & (no > 0), (total - yes * (yes + 1) / 2) / (yes * no), np.nan)


def average_iou(scores: Floats, positive: NDArray[np.bool_], thresholds: int = THRESHOLDS) -> Floats:
    """Return the mean overlap (IoU) at ``linspace(0, 1, thresholds)`` of each row, (B,); NaN without a positive.

    A score counts at all thresholds up to it: one pass puts it into its bin, and sums from the top count the rest.
    """
    steps = np.linspace(0, 1, thresholds)
    bins = np.searchsorted(steps, scores, side="right") - 1  # the last threshold that the score reaches
    rows = np.repeat(np.arange(len(scores)), scores.shape[1])
    flat = (rows * thresholds + bins.ravel()).astype(np.int64)
    shape = (len(scores), thresholds)

    def reached(weights: Any) -> Floats:
        counts = np.bincount(flat, weights, len(scores) * thresholds).reshape(shape)
        return np.asarray(np.cumsum(counts[:, ::-1], 1)[:, ::-1], np.float64)

    both = reached(positive.ravel().astype(np.float64))
    marked, yes = reached(None), positive.sum(1)[:, None]
    union = marked + yes - both
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(yes[:, 0] > 0, (both / np.maximum(union, 1)).mean(1), np.nan)


def similarity(scores: Floats, labels: Floats) -> Floats:
    """Return the sum of the smaller of both shares of each row, (B,); 0 where one of them is 0 everywhere."""
    one, two = (rows / np.maximum(rows.sum(1, keepdims=True), _EPS) for rows in (scores, labels))
    return np.asarray(np.minimum(one, two).sum(1))


class Neighbours(NamedTuple):
    """The nearest points of each point of a cloud, itself left out.

    Attributes:
        nearest: Their rows, (N, k).
        weight: exp(-d^2 / (2 sigma^2)), (N, k).
        sigma: The scale that was used.
    """

    nearest: Ints
    weight: Floats
    sigma: float


def knn_weights(points: ArrayLike, k: int = NEIGHBOURS, sigma: float | None = None) -> Neighbours:
    """Return the ``k`` nearest neighbours of each point and their Gaussian weights; compute it once a cloud.

    Args:
        points: (N, 3).
        k: Fewer than N.
        sigma: Scale of the weights; None: the mean distance to the neighbours, so that clouds of any size are alike.

    Raises:
        InputError: Coordinates are not finite, or there are not more points than ``k``.
    """
    cloud = checked_cloud(points)
    if not 1 <= k < len(cloud):
        raise InputError(f"k must be from 1 to {len(cloud) - 1}, fewer than the {len(cloud)} points, got {k}")
    if sigma is not None and not (math.isfinite(sigma) and sigma > 0):
        raise InputError(f"sigma must be a finite number above 0, got {sigma}")
    squares, index = _nearest(cloud, k)
    scale = float(np.sqrt(squares).mean()) if sigma is None else sigma
    scale = max(scale, _LEAST_SIGMA)  # of points that all lie at one place
    return Neighbours(index, np.exp(-squares / (2 * scale**2)), scale)


def _nearest(cloud: Floats, k: int) -> tuple[Floats, Ints]:
    """Return squared distances and rows of the nearest others, (N, k) each."""
    size = len(cloud)
    if size > _DIRECT:
        from scipy.spatial import cKDTree

        away, index = cKDTree(cloud).query(cloud, k + 1)
        # A point that others share a place with need not find itself first.
        own = index == np.arange(size)[:, None]
        own[~own.any(1), -1] = True
        return (away**2)[~own].reshape(size, k), index[~own].reshape(size, k).astype(np.int64)
    squares = ((cloud[:, None] - cloud[None]) ** 2).sum(-1) if size <= 512 else _squares(cloud)
    np.fill_diagonal(squares, np.inf)
    part = np.argpartition(squares, k - 1, axis=1)[:, :k]
    found = np.take_along_axis(squares, part, 1)
    order = np.lexsort((part, found), axis=1)
    return np.take_along_axis(found, order, 1), np.take_along_axis(part, order, 1).astype(np.int64)


def _squares(cloud: Floats) -> Floats:
    norms = (cloud**2).sum(1)
    return np.asarray(np.maximum(norms[:, None] + norms[None] - 2 * cloud @ cloud.T, 0.0))


def checked_cloud(points: ArrayLike, name: str = "points") -> Floats:
    """Return a cloud as an array (N, 3); raises InputError for another shape or coordinates that are not finite."""
    try:
        cloud = np.asarray(points.detach().cpu() if hasattr(points, "detach") else points, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: they must be numbers, (points, 3)") from None
    if cloud.ndim != 2 or cloud.shape[1] != 3 or not len(cloud):
        raise InputError(f"{name}: they must have the shape (points, 3), got {cloud.shape}")
    bad = np.flatnonzero(~np.isfinite(cloud).all(1))
    if len(bad):
        raise InputError(f"{name}: point {int(bad[0])} has a coordinate that is not finite")
    return cloud


class Normalised(NamedTuple):
    """A cloud at the origin, and what brings it back: ``points * scale + centre``."""

    points: Floats
    centre: Floats
    scale: float


def normalize_cloud(points: ArrayLike, mode: Literal["unit_sphere", "unit_cube"] = "unit_sphere") -> Normalised:
    """Return a cloud whose mean is 0 and whose farthest point (``"unit_sphere"``) or coordinate is at 1.

    A cloud whose points all lie at one place keeps the scale 1.
    """
    cloud = checked_cloud(points)
    if mode not in ("unit_sphere", "unit_cube"):
        raise InputError(f"mode must be unit_sphere or unit_cube, got {mode!r}")
    centre = cloud.mean(0)
    away = cloud - centre
    largest = float(np.linalg.norm(away, axis=1).max() if mode == "unit_sphere" else np.abs(away).max())
    scale = largest if largest > _EPS else 1.0
    return Normalised(away / scale, centre, scale)


def soft_labels(points: ArrayLike, part: ArrayLike, sigma: float = 0.06) -> Floats:
    """Return labels that fall off softly from a part of the cloud, (N,): a Gaussian average of the part's mask."""
    cloud, mask = checked_cloud(points), np.asarray(part, np.float64)
    if mask.shape != (len(cloud),) or not ((mask >= 0) & (mask <= 1)).all():
        raise InputError("part: it must lie in [0, 1], one a point")
    weight = np.exp(-_squares(cloud) / (2 * sigma**2))
    return np.asarray(weight @ mask / weight.sum(1))


def spatial_loss(
    scores: Tensor, index: Tensor, weight: Tensor, target: Tensor | None = None, *, mode: Mode = "smooth"
) -> Tensor:
    """Return a spatial loss in one of three readings, a scalar; which of them is the paper's is not known.

    Args:
        scores: In [0, 1], (B, N).
        index: Neighbours, (B, N, k).
        weight: Their weights, (B, N, k).
        target: Labels, (B, N), for ``"residual"`` and ``"density"``.
        mode: ``"smooth"``: squared differences of neighbours' scores; a constant mask has none. ``"residual"``: the
            squared error after averaging over neighbours and the point itself, which punishes errors that hang
            together. ``"density"``: cross-entropy in which points of sparse places weigh more.

    Raises:
        InputError: Shapes differ, or a reading lacks its labels.
    """
    if mode not in MODES:
        raise InputError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if scores.ndim != 2 or index.shape[:2] != scores.shape or weight.shape != index.shape:
        raise InputError(
            f"index: neighbours must be (B, N, k) for scores {tuple(scores.shape)}, got {tuple(index.shape)}"
        )
    if mode == "smooth":
        rise = (scores[..., None] - _gathered(scores, index)) ** 2
        return ((weight * rise).sum(-1) / (weight.sum(-1) + _EPS)).mean()
    if target is None or target.shape != scores.shape:
        raise InputError(f"target: the reading '{mode}' needs labels of shape {tuple(scores.shape)}")
    if mode == "residual":
        error = scores - target
        smoothed = (error + (weight * _gathered(error, index)).sum(-1)) / (1 + weight.sum(-1))
        return (smoothed**2).mean()
    sparse = 1 / (weight.sum(-1) + _DENSITY)
    share = sparse / sparse.mean(-1, keepdim=True)
    entropy = torch.nn.functional.binary_cross_entropy(scores.clamp(1e-6, 1 - 1e-6), target, reduction="none")
    return (share * entropy).mean()


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    """Return the values of neighbours, (B, N, k)."""
    rows, points, near = index.shape
    return values.gather(1, index.reshape(rows, points * near)).view(rows, points, near)


def mask_loss(scores: Tensor, target: Tensor, *, gamma: float = 2.0, alpha: float = 0.25) -> Tensor:
    """Return focal loss plus dice on both sides, a scalar (public code of the field).

    The dice part is .5, not 0, for a perfect mask: it has no factor of 2.
    """
    p = scores.clamp(1e-6, 1 - 1e-6)
    focal = -(1 - alpha) * p**gamma * (1 - target) * (1 - p).log() - alpha * (1 - p) ** gamma * target * p.log()

    def dice(one: Tensor, two: Tensor) -> Tensor:
        return ((one * two).sum(-1) + 1e-6) / (one.sum(-1) + two.sum(-1) + 1e-6)

    return focal.mean() + (1.5 - dice(scores, target) - dice(1 - scores, 1 - target)).mean()
