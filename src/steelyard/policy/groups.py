"""Numbers of one group against each other: group labels, means, and values in standard deviations from their group.

All functions are linear in the number of rows and have no loop over them, except for the hashing of keys.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Norm = Literal["std", "mean"]
EPS = 1e-6
"""Added to every standard deviation (second hand: the value of the paper's code)."""
ROUNDING = 1e-12
"""A spread below this part of (1 + the mean's size) is that of rounded sums, and counts as none."""


class Moments(NamedTuple):
    """Mean, standard deviation with n - 1 and number of rows of each group, each of shape (groups,)."""

    mean: Floats
    std: Floats
    size: Ints


def plain(value: Any) -> Any:
    """Return a tensor as an array of the processor, without its gradient; everything else as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # numpy has no bfloat16


def alike(values: Floats, model: Any) -> Any:
    """Return ``values`` as ``model`` came: a tensor of its kind and device, an array of its precision, else as is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.Tensor):
        dtype = model.dtype if model.is_floating_point() else torch.float64
        return torch.as_tensor(values, dtype=dtype, device=model.device)
    kind = getattr(model, "dtype", None)
    return values.astype(kind) if kind in (np.float32, np.float16) else values


def factorise(keys: Sequence[Hashable] | NDArray[np.generic]) -> tuple[Ints, int]:
    """Return a number from 0 for every key, equal for equal keys, and how many different ones there are.

    Args:
        keys: One key a row. Whole numbers are taken as they are, arrays inside a list by their bytes, other keys by
            their hash.

    Raises:
        TypeError: A key cannot be hashed.
    """
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iub":
        return _factorise_ints(keys)
    if isinstance(keys, np.ndarray):
        keys = keys.tolist()
    codes: defaultdict[Hashable, int] = defaultdict()
    codes.default_factory = codes.__len__
    numbers = np.fromiter(map(codes.__getitem__, keys), np.int64, len(keys))
    return numbers, len(codes)


def _factorise_ints(keys: NDArray[np.generic]) -> tuple[Ints, int]:
    if not len(keys):
        return np.zeros(0, np.int64), 0
    low, high = int(keys.min()), int(keys.max())
    span = high - low + 1
    if span > 4 * len(keys) + 1024:  # sparse: sorting is cheaper than a table
        found, codes = np.unique(keys, return_inverse=True)
        return codes.astype(np.int64), len(found)
    offset = (keys.astype(np.int64) if keys.dtype != np.int64 else keys) - low
    seen = np.zeros(span, bool)
    seen[offset] = True
    number = np.cumsum(seen) - 1
    return number[offset], int(number[-1]) + 1


def group_moments(values: Floats, groups: Ints, count: int) -> Moments:
    """Return mean and spread of each group's values; NaN are left out.

    Args:
        values: Shape (rows,).
        groups: Group of each row, from 0 to ``count`` - 1.
        count: Number of groups.

    Returns:
        Moments; an empty group has mean 0, and a group of fewer than two values or of equal values has spread exactly
        0, whatever rounding does.
    """
    masked = np.isnan(values)
    if masked.any():
        values, groups = values[~masked], groups[~masked]
    return _moments(values, groups, count)[0]


def _moments(values: Floats, groups: Ints, count: int) -> tuple[Moments, Floats]:
    """Return the moments of values without NaN, and the values less their group's mean, (rows,)."""
    size = np.bincount(groups, minlength=count)
    mean = np.bincount(groups, values, count) / np.maximum(size, 1)
    first = np.zeros(count)
    first[groups] = values  # any of the group's: it is used where all are equal
    differing = np.zeros(count, bool)
    differing[groups[values != first[groups]]] = True
    mean = np.where(differing, mean, first)  # exact where all are equal
    centred = mean[groups]
    np.subtract(values, centred, out=centred)  # in place: fresh memory is what large batches wait for
    squares = np.bincount(groups, np.square(centred), count)
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    return Moments(mean, np.where(differing, std, 0.0), size), centred


def standardise(
    values: Floats, groups: Ints, count: int, *, norm: Norm = "std", eps: float = EPS, min_std: float = 0.0
) -> Floats:
    """Return every value less its group's mean, in that group's standard deviations (``norm="std"``) or as it is.

    Args:
        values: Shape (rows,); NaN marks what is not scored: it is left out of the statistics and returned as 0.
        groups: Group of each row.
        count: Number of groups.
        norm: ``"std"`` divides by the standard deviation (n - 1) plus ``eps``, ``"mean"`` does not divide.
        eps: Keeps the division finite.
        min_std: Standard deviations below it count as it, so that a group of near-equal values is not blown up.

    Returns:
        Shape (rows,); 0 in a group of one or of equal values, also where only rounding tells them apart: divided by
        ``eps`` alone, it would come to 1e-9 and more.
    """
    left_out = np.isnan(values)
    if left_out.any():
        moments = group_moments(values, groups, count)
        result = values - moments.mean[groups]
    else:
        moments, result = _moments(values, groups, count)
    if norm == "std":
        result /= (np.maximum(moments.std, min_std) + eps)[groups]
    noise = (moments.std > 0) & (moments.std <= ROUNDING * (1 + np.abs(moments.mean)))
    if noise.any():
        left_out |= noise[groups]
    if left_out.any():
        result[left_out] = 0.0
    return result


def decoupled(
    rewards: Mapping[str, object], group: Sequence[Hashable] | NDArray[np.generic], weights: Mapping[str, float]
) -> Any:
    """Return the weighted sum of rewards each of which was normalised by itself within its group.

    Whatever the scale and spread of a reward, it enters with the weight given to it (ARC, reconstruction; the same idea
    as GDPO's). A weight of 0 leaves its reward out altogether.

    Args:
        rewards: Name -> values of shape (rows,); NaN marks rows that are not scored, which count 0.
        group: Group of each row, any hashable keys.
        weights: Name -> weight, at least 0, for every reward.

    Returns:
        Shape (rows,); a tensor when a reward is one, on its device.

    Raises:
        InputError: Names, lengths or weights do not fit.
    """
    values, (codes, count) = _checked(rewards, group, weights)
    total = np.zeros(len(codes))
    for name, weight in weights.items():
        if weight:
            total += weight * standardise(values[name], codes, count)
    return alike(total, _model(rewards))


def coupled(
    rewards: Mapping[str, object], group: Sequence[Hashable] | NDArray[np.generic], weights: Mapping[str, float]
) -> Any:
    """Return the weighted sum of rewards, normalised once within each group: what :func:`decoupled` is compared with.

    Takes and raises what :func:`decoupled` does; a row that one reward does not score is not scored at all.
    """
    values, (codes, count) = _checked(rewards, group, weights)
    total = np.zeros(len(codes))
    for name, weight in weights.items():
        if weight:
            total += weight * values[name]
    return alike(standardise(total, codes, count), _model(rewards))


def _model(rewards: Mapping[str, object]) -> object:
    return next((value for value in rewards.values() if hasattr(value, "detach")), None)


def _checked(
    rewards: Mapping[str, object], group: Sequence[Hashable] | NDArray[np.generic], weights: Mapping[str, float]
) -> tuple[dict[str, Floats], tuple[Ints, int]]:
    if set(rewards) != set(weights):
        raise InputError(f"weights must name the rewards {sorted(rewards)}, got {sorted(weights)}")
    for name, weight in weights.items():
        if not (isinstance(weight, int | float | np.number) and np.isfinite(weight) and weight >= 0):
            raise InputError(f"weights: that of '{name}' must be a finite number of at least 0, got {weight}")
    try:
        codes, count = factorise(plain(group))
    except TypeError:
        raise InputError("group: every key must be hashable, such as a number, a text or a tuple") from None
    try:
        values = {name: np.asarray(plain(value), dtype=np.float64) for name, value in rewards.items()}
    except (TypeError, ValueError):
        raise InputError("rewards: each must be one number a row") from None
    for name, value in values.items():
        if value.shape != codes.shape:
            raise InputError(f"rewards: '{name}' has shape {value.shape}, group has {codes.shape}")
        if np.isinf(value).any():
            raise InputError(f"rewards: '{name}' is infinite at row {int(np.flatnonzero(np.isinf(value))[0])}")
    return values, (codes, count)
