"""Evidence-ablated negatives: what an image tells, which examples to train on, what to mask, and the bounded term.

Only the paper's abstract was at hand: every formula here is a reconstruction, or a neighbouring work's where said.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scale = Literal["blind_nll", "std", "none"]
Form = Literal["prob", "clip", "hinge", "unbounded"]
SCALES, FORMS = ("blind_nll", "std", "none"), ("prob", "clip", "hinge", "unbounded")
C0, MIX, KEEP, RATIO = 0.1, 0.5, 0.5, 0.25
ALPHA, EPS, DUAL_CLIP = 0.5, 0.2, 3.0


class InformationGain(NamedTuple):
    """How much an image tells about answers, (N,) each.

    Attributes:
        raw: Mean rise of a token's log-probability from the blank image to the image.
        scaled: The same on a scale that is alike for easy and hard answers; below 1 by ``"blind_nll"``.
        blind_nll: Mean negative log-probability of a token without the image.
    """

    raw: Floats
    scaled: Floats
    blind_nll: Floats


def image_information_gain(
    logp_image: ArrayLike,
    logp_blank: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    scale: Scale = "blind_nll",
    c0: float = C0,
    groups: Sequence[Hashable] | None = None,
) -> InformationGain:
    """Return how much an image tells about given answers.

    Args:
        logp_image: Log-probabilities of the answers' tokens with the image, (N, T).
        logp_blank: With a blank image of the same number of tokens, (N, T).
        mask: 1 where a token belongs to the answer, (N, T); None: all do.
        scale: ``"blind_nll"`` divides by the blind negative log-probability plus ``c0``; ``"std"`` takes standard
            deviations from the mean of the answer's group; ``"none"`` does not scale.
        c0: Keeps the division finite.
        groups: Of the answers, (N,), for ``scale="std"``; None: one.

    Raises:
        InputError: Shapes differ, an answer has no token, or a number is not finite or a log-probability above 0.
    """
    if scale not in SCALES:
        raise InputError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if not (math.isfinite(c0) and c0 > 0):
        raise InputError(f"c0 must be a finite number above 0, got {c0}")
    seen, blind = _log_probabilities("logp_image", logp_image), _log_probabilities("logp_blank", logp_blank)
    if seen.shape != blind.shape:
        raise InputError(f"logp_blank: its shape is {blind.shape}, that of logp_image {seen.shape}")
    real = np.ones(seen.shape, bool) if mask is None else _mask(mask, seen.shape)
    length = real.sum(1)
    if (length == 0).any():
        raise InputError(f"mask: answer {int(np.argmin(length))} has no token, so that its gain is not defined")
    for name, values in (("logp_image", seen), ("logp_blank", blind)):
        bad = np.flatnonzero((~np.isfinite(values) & real).any(1))
        if len(bad):
            raise InputError(f"{name}: answer {int(bad[0])} has a token without a finite log-probability")
    raw = np.where(real, seen - blind, 0.0).sum(1) / length
    blind_nll = -np.where(real, blind, 0.0).sum(1) / length
    if scale == "none":
        return InformationGain(raw, raw, blind_nll)
    if scale == "blind_nll":
        return InformationGain(raw, raw / (blind_nll + c0), blind_nll)
    codes = _codes(groups, len(raw))
    mean = np.bincount(codes, raw) / np.bincount(codes)
    spread = np.sqrt(np.bincount(codes, (raw - mean[codes]) ** 2) / np.bincount(codes))
    return InformationGain(raw, (raw - mean[codes]) / np.where(spread > 0, spread, 1.0)[codes], blind_nll)


def _log_probabilities(name: str, values: ArrayLike) -> Floats:
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: it must hold numbers") from None
    if array.ndim != 2:
        raise InputError(f"{name}: it must be (answers, tokens), got shape {array.shape}")
    if (array > 1e-6).any():
        raise InputError(f"{name}: answer {int(np.argwhere(array > 1e-6)[0, 0])} has a log-probability above 0")
    return array


def _mask(mask: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    found = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask) != 0
    if found.shape != shape:
        raise InputError(f"mask: its shape is {found.shape}, that of the log-probabilities {shape}")
    return np.asarray(found)


def _codes(groups: Sequence[Hashable] | None, size: int) -> Ints:
    if groups is None:
        return np.zeros(size, np.int64)
    if len(groups) != size:
        raise InputError(f"groups: there are {len(groups)}, one for each of {size} is needed")
    known: dict[Hashable, int] = {}
    try:
        return np.array([known.setdefault(group, len(known)) for group in groups], np.int64)
    except TypeError:
        raise InputError("groups: every group must be hashable, such as a text or a number") from None


class MixedRanking(NamedTuple):
    """Which examples a mixed ranking keeps.

    Attributes:
        kept: Their rows, the best first.
        score: Of every row, (N,); NaN where it was dropped before.
        group_share: Group -> share of its rows that are kept.
    """

    kept: Ints
    score: Floats
    group_share: dict[Hashable, float]


def mixed_ranking(
    scores: ArrayLike,
    groups: Sequence[Hashable],
    *,
    mix: float = MIX,
    keep: float = KEEP,
    drop_below: float | None = 0.0,
) -> MixedRanking:
    """Keep examples with a high rank among all and a high rank within their group.

    A rank goes evenly from 0 (lowest) to 1 (highest), so that small and large groups share one range; the only one of a
    group has 1. Equal scores rank by row.

    Args:
        scores: Such as the scaled gain, (N,).
        groups: Source, kind of question or class of answer of each, (N,).
        mix: Weight of the rank among all, in [0, 1]; 1 ranks by score alone, 0 within groups alone.
        keep: Share of all rows that is kept, in (0, 1]; at most those that are not dropped.
        drop_below: Rows with scores of at most this are dropped first; None: none are.

    Raises:
        InputError: Lengths differ, a score is not finite, or a share is out of its range.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError("scores: they must be finite numbers, one an example")
    if not 0 <= mix <= 1:
        raise InputError(f"mix must lie in [0, 1], got {mix}")
    if not 0 < keep <= 1:
        raise InputError(f"keep must lie in (0, 1], got {keep}")
    codes = _codes(groups, len(values))
    rows = np.arange(len(values)) if drop_below is None else np.flatnonzero(values > drop_below)
    score = np.full(len(values), np.nan)
    if len(rows):
        score[rows] = mix * percentile_ranks(values[rows], np.zeros(len(rows), np.int64))
        score[rows] += (1 - mix) * percentile_ranks(values[rows], codes[rows])
    order = rows[np.argsort(-score[rows], kind="stable")]
    kept = order[: min(math.ceil(keep * len(values)), len(order))]
    share: dict[Hashable, float] = dict.fromkeys(groups, 0.0)
    sizes, held = np.bincount(codes), np.bincount(codes[kept], minlength=codes.max(initial=-1) + 1)
    for group, code in zip(groups, codes.tolist(), strict=True):
        share[group] = float(held[code] / sizes[code])
    return MixedRanking(kept, score, share)


def percentile_ranks(values: Floats, groups: Ints) -> Floats:
    """Return the rank of each value in its group, evenly from 0 to 1, (N,); ties by row, the only one of a group 1."""
    order = np.lexsort((np.arange(len(values)), values, groups))
    size = np.bincount(groups)
    starts = np.cumsum(size) - size
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values)) - starts[groups[order]]
    last = size[groups] - 1
    return np.where(last > 0, place / np.maximum(last, 1), 1.0)


def ablate_evidence(
    image: Any, saliency: ArrayLike, *, ratio: float = RATIO, patch: int = 14, fill: Any = "mean"
) -> tuple[Any, Ints]:
    """Return an image whose most salient patches are filled, and which they are; size and tokens stay.

    Args:
        image: (height, width) or (height, width, channels), an array or a tensor; sides are multiples of ``patch``.
        saliency: Of the patches, row by row, (P,).
        ratio: Share of the patches that is filled, in (0, 1]; it must come to at least one.
        patch: Side of a patch in pixels.
        fill: ``"mean"``, each channel's mean; or a number, or one a channel.

    Raises:
        InputError: Sides that patches do not divide, a saliency of 0 or not finite, or no patch to fill.
    """
    height, width = image.shape[:2]
    if patch < 1 or height % patch or width % patch:
        raise InputError(f"image: its sides {height} x {width} are no multiples of patch ({patch})")
    across = width // patch
    count = height // patch * across
    masked = salient_patches(saliency, ratio, count)
    tensor = isinstance(image, Tensor)
    channels = image.reshape(height * width, -1)
    value: Any = channels.mean(0) if isinstance(fill, str) and fill == "mean" else fill
    if isinstance(value, str):
        raise InputError(f"fill must be 'mean', a number, or one a channel, got {value!r}")
    result = image.clone() if tensor else np.array(image)
    for place in masked.tolist():
        top, left = place // across * patch, place % across * patch
        result[top : top + patch, left : left + patch] = value if image.ndim == 3 or np.ndim(value) == 0 else value[0]
    return result, masked


def salient_patches(saliency: ArrayLike, ratio: float, count: int) -> Ints:
    """Return the ``ratio`` of ``count`` patches with the highest saliency, in order; of equal ones the first.

    Raises:
        InputError: Another number of values, none above 0, one that is not finite, or a ratio that comes to no patch.
    """
    if not 0 < ratio <= 1:
        raise InputError(f"ratio must lie in (0, 1], got {ratio}")
    number = round(ratio * count)
    if number < 1:
        raise InputError(f"ratio: mask_ratio {ratio} of {count} patches is less than one; raise it")
    values = np.asarray(saliency.detach().cpu() if hasattr(saliency, "detach") else saliency, np.float64).ravel()
    if len(values) != count:
        raise InputError(f"saliency: it has {len(values)} values, the image {count} patches")
    if not np.isfinite(values).all():
        raise InputError("saliency: every value must be finite")
    if not values.any():
        raise InputError(
            "saliency: it is 0 everywhere, so that the image does not influence the answer; check its path"
        )
    return np.sort(np.argsort(-values, kind="stable")[:number])


def bounded_negative_loss(
    logp_clean: Tensor,
    mask: Tensor,
    *,
    form: Form = "prob",
    weights: Tensor | None = None,
    logp_old: Tensor | None = None,
    logp_ablated: Tensor | None = None,
    alpha: float = ALPHA,
    eps: float = EPS,
    dual_clip: float = DUAL_CLIP,
    cap: float | None = None,
    margin: float | None = None,
    normalizer: Literal["kept", "drawn"] = "kept",
) -> Tensor:
    """Return the term that pushes negatives down with the clean image in sight, a scalar; 0 where none is kept.

    Args:
        logp_clean: Log-probabilities of the negatives' tokens given the clean image, (N, T), with gradient.
        mask: 1 where a token belongs to a negative, (N, T).
        form: ``"prob"``: the geometric mean of the tokens' probabilities, in [0, 1]; ``"clip"``: the surrogate of PPO
            with advantage ``-alpha`` and a dual clip, in [alpha (1 - eps), alpha dual_clip] a token; ``"hinge"``:
            ``min(cap, max(0, log p - log p_ablated + margin))`` of token means; ``"unbounded"``: ``-log(1 - p)``, for
            ablations only.
        weights: Of the negatives, in [0, 1], (N,): 0 leaves one out; None: all count.
        logp_old: Under the policy that drew them, given the clean image, (N, T), for ``"clip"``.
        logp_ablated: Under that policy given the ablated image, (N, T), for ``"hinge"``.
        alpha: Size of the constant negative advantage.
        eps: Clip of the ratio.
        dual_clip: Largest ratio that still counts.
        cap: Largest value of the hinge; it has no default.
        margin: Of the hinge; it has no default.
        normalizer: Divide by the negatives of weight above 0, or by all that were drawn.

    Raises:
        InputError: Shapes, an unknown form, a weight out of range, or what a form needs is missing.
    """
    if form not in FORMS:
        raise InputError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if normalizer not in ("kept", "drawn"):
        raise InputError(f"normalizer must be kept or drawn, got {normalizer!r}")
    if logp_clean.ndim != 2 or mask.shape != logp_clean.shape:
        raise InputError(f"mask: its shape is {tuple(mask.shape)}, that of logp_clean {tuple(logp_clean.shape)}")
    real = mask != 0
    share = torch.ones(len(logp_clean)) if weights is None else weights.to(logp_clean)
    share = share.to(logp_clean)
    if share.shape != (len(logp_clean),) or not bool(((share >= 0) & (share <= 1)).all()):
        raise InputError("weights: they must lie in [0, 1], one a negative")
    if bool((real.sum(1) == 0)[share > 0].any()):
        raise InputError("mask: a negative that counts has no token")
    kept = share > 0
    if not bool(kept.any()):
        return (logp_clean * 0.0).nan_to_num().sum()
    if not bool(torch.isfinite(logp_clean.detach()[real & kept[:, None]]).all()):
        raise InputError("logp_clean: a token of a negative has no finite log-probability")
    terms = _terms(logp_clean, real, form, logp_old, logp_ablated, alpha, eps, dual_clip, cap, margin)
    total = torch.where(kept, terms, torch.zeros_like(terms)) * share
    return total.sum() / (int(kept.sum()) if normalizer == "kept" else len(share))


def _terms(
    logp: Tensor, real: Tensor, form: Form, logp_old: Tensor | None, logp_ablated: Tensor | None, alpha: float,
    eps: float, dual_clip: float, cap: float | None, margin: float | None,
) -> Tensor:  # fmt: skip
    """Return the term of each negative, (N,)."""
    mean = _token_mean(logp, real)
    if form == "prob":
        return mean.exp()
    if form == "unbounded":
        return -torch.log1p(-mean.exp().clamp(max=1 - 1e-6))
    if form == "clip":
        if logp_old is None or logp_old.shape != logp.shape:
            raise InputError("logp_old: the form clip needs it, of the shape of logp_clean")
        if not (alpha > 0 and 0 < eps < 1 and dual_clip > 1):
            raise InputError("alpha must be above 0, eps in (0, 1), dual_clip above 1")
        ratio = (logp - logp_old.detach()).where(real, torch.zeros_like(logp)).exp()
        surrogate = torch.minimum(-alpha * ratio, -alpha * ratio.clamp(1 - eps, 1 + eps))
        return -_token_mean(torch.clamp(surrogate, min=-alpha * dual_clip), real)
    if logp_ablated is None or logp_ablated.shape != logp.shape:
        raise InputError("logp_ablated: the form hinge needs it, of the shape of logp_clean")
    if cap is None or margin is None:
        raise InputError("cap and margin: the form hinge needs both; no source gives them a value")
    return (mean - _token_mean(logp_ablated.detach(), real) + margin).clamp(min=0.0, max=cap)


def _token_mean(values: Tensor, real: Tensor) -> Tensor:
    return values.where(real, torch.zeros_like(values)).sum(1) / real.sum(1).clamp(min=1)
