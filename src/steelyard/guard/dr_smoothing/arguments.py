"""Checks of single arguments, shares of a whole as whole numbers, and the limit of a probability that was counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from steelyard.errors import InputError, did_you_mean

_ROUNDING = 1e-12  # relative to max(1, share * total): 0.29 * 100 is 28.999999999999996


def share_of(total: int, share: float) -> int:
    """Return ``floor(share * total)``, without losing one to the rounding of the product.

    The tolerance grows with the product, because one unit in the last place exceeds a fixed 1e-12 from 8192 on:
    0.282 of 100,000 would be 28,199.
    """
    product = share * total
    return min(total, math.floor(product + _ROUNDING * max(1.0, product)))


def shares_of(totals: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Return :func:`share_of` of every total."""
    product = share * totals
    floors: NDArray[np.float64] = np.floor(product + _ROUNDING * np.maximum(1.0, product))
    return np.minimum(totals, floors.astype(np.int64))


def upper_limit(count: int, total: int, level: float) -> float:
    """Return Clopper and Pearson's one-sided upper limit of a probability after ``count`` of ``total`` trials.

    The lower limit is one minus the upper limit of the other trials.
    """
    return 1.0 if count == total else float(betaincinv(count + 1, total - count, level))


def fractions(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return ``values`` as float64 of the same shape; raise InputError unless all are numbers in [0, 1]."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is no number and no array of numbers") from None
    if array.size and not (array.min() >= 0 and array.max() <= 1):  # written so that nan fails
        worst = float(array.min() if array.min() < 0 else array.max())
        check_fraction(name, worst)
    return array


def check_fraction(name: str, value: float) -> None:
    """Raise InputError unless ``value`` is a number in [0, 1]."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and 0 <= value <= 1:
        return
    hint = f" (for {value:g} percent say {value / 100:g})" if number and 1 < value <= 100 else ""
    raise InputError(f"{name} is a fraction between 0 and 1, not {value!r}{hint}")


def check_gamma(gamma: float) -> None:
    """Raise InputError unless ``gamma`` is a number in [0, 1)."""
    check_fraction("gamma", gamma)
    if gamma == 1:
        raise InputError("gamma is a fraction below 1, not 1: no count exceeds all copies")


def check_count(name: str, value: int, *, least: int) -> None:
    """Raise InputError unless ``value`` is an integer of at least ``least``."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is an integer of at least {least}, not {value!r}")


def check_one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise InputError unless ``value`` is one of ``known``."""
    if value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise InputError(f"{name} is one of {', '.join(known)}, not {value!r}.{hint}")


def check_open_fraction(name: str, value: float) -> None:
    """Raise InputError unless ``value`` is a number strictly between 0 and 1."""
    check_fraction(name, value)
    if value in (0, 1):
        raise InputError(f"{name} is a fraction strictly between 0 and 1, not {value!r}")
