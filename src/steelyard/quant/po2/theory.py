"""What a choice of grid per group is worth: the exact gain, its normal approximation, its law in g, its price.

The paper states that small groups gain and that the gain vanishes for very large ones. The formulas are a
reconstruction, each checked numerically.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from steelyard.errors import InputError

Vector = NDArray[np.float64]
Result = float | Vector  # a float for scalars, else an array of the broadcast shape


def expected_gain(e0: ArrayLike, e1: ArrayLike) -> float:
    """Return min_i E e_i - E min_i e_i: what choosing per group saves over the better of two fixed grids.

    With D = e0 - e1 it equals (E|D| - |E D|) / 2, so it lies between 0 and sd(D) / 2. It is computed as the mean of
    what the better grid leaves on the table, a sum without cancellation that is never negative.

    Args:
        e0: Squared error of every group under the first grid; any shape, any unit.
        e1: The same under the second grid; the same shape.

    Returns:
        The gain, in the unit of the errors.

    Raises:
        InputError: No groups, different shapes, or a negative or non-finite error.
    """
    first, second = _errors("e0", e0), _errors("e1", e1)
    if first.shape != second.shape:
        raise InputError(f"e0 and e1 must hold the same groups, but their shapes are {first.shape} and {second.shape}.")
    difference = first - second
    left = difference if difference.mean() <= 0 else -difference  # error of the better grid minus the other's
    return float(np.maximum(left, 0.0).mean())


def clark_min(m0: ArrayLike, m1: ArrayLike, theta: ArrayLike) -> Result:
    """Return E min(X, Y) of two jointly normal variables (Clark 1961), a prediction of the error with a choice.

    m0 Phi(a) + m1 Phi(-a) - theta phi(a) with a = (m1 - m0) / theta, written as the smaller mean minus the gain of
    :func:`gain_law`, so that nothing cancels.

    Args:
        m0: Mean error under the first grid.
        m1: Mean error under the second grid.
        theta: Standard deviation of the difference of the two, >= 0; 0 gives min(m0, m1).

    Returns:
        The expectation; a float for scalars, else the broadcast shape.

    Raises:
        InputError: A value that is not finite, or theta < 0.
    """
    first, second, spread = _finite("m0", m0), _finite("m1", m1), _finite("theta", theta)
    if (spread < 0).any():
        raise InputError("theta is a standard deviation and must not be negative.")
    return _result(np.minimum(first, second) - _normal_gain(np.abs(first - second), spread))


def gain_law(group_size: ArrayLike, sd: ArrayLike, mean: ArrayLike = 0.0) -> Result:
    """Return the gain of choosing between two grids when D, an average of g terms, is normal.

    With theta = sd / sqrt(g) it is theta phi(a) - |mean| Phi(-a), a = |mean| / theta. Grids that tie (mean 0) gain
    sd / sqrt(2 pi g), the g^-1/2 law; otherwise the gain ends as exp(-g mean^2 / (2 sd^2)): one grid is then as good.
    The law takes the terms of D as nearly independent. They share their group's scale, though, and the largest
    magnitude fluctuates by more than g^-1/2: measured on Gaussian groups, the gain of a learned pair times sqrt(g) is
    about level for g = 8 ... 1024, but at 4096 a pair that tells groups by their maximum gains 1.6 times what the
    mirror pair does.

    Args:
        group_size: g, elements that share a scale, >= 1.
        sd: sqrt(g) times the standard deviation of D, the groups' difference of mean squared errors, >= 0.
        mean: Expectation of D.

    Returns:
        The gain in the unit of ``sd``; a float for scalars, else the broadcast shape.

    Raises:
        InputError: A value that is not finite, group_size < 1 or sd < 0.
    """
    g, spread, mu = _group_sizes(group_size), _finite("sd", sd), _finite("mean", mean)
    if (spread < 0).any():
        raise InputError("sd is a standard deviation and must not be negative.")
    return _result(_normal_gain(np.abs(mu), spread / np.sqrt(g)))


def breakeven_gain(group_size: ArrayLike) -> Result:
    """Return 1 - 2^(-2/g), the relative gain in squared error that pays for one selector bit a group.

    A bit a group is 1/g bits an element, and a bit an element quarters the squared error (6.02 dB). Where the bit
    hides in an unused sign bit of the scale nothing has to be paid.

    Args:
        group_size: g, elements that share a scale, >= 1.

    Raises:
        InputError: group_size is not finite or below 1.
    """
    return _result(-np.expm1(-2.0 * math.log(2.0) / _group_sizes(group_size)))


def _normal_gain(distance: Vector, theta: Vector) -> Vector:
    """Return theta (phi(a) - a Phi(-a)) for a = distance / theta, by erfcx so that the far tail keeps its digits."""
    distance, theta = np.broadcast_arrays(distance, theta)
    positive = theta > 0
    with np.errstate(over="ignore"):
        a = np.divide(distance, theta, out=np.full(theta.shape, np.inf), where=positive)
    a = np.minimum(a, 50.0)  # exp(-a^2 / 2) is zero in float64 from there on
    density = np.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    mills = math.sqrt(math.pi / 2.0) * special.erfcx(a / math.sqrt(2.0))
    return np.asarray(theta * density * (1.0 - a * mills), dtype=np.float64)


def _group_sizes(group_size: ArrayLike) -> Vector:
    g = _finite("group_size", group_size)
    if (g < 1).any():
        raise InputError("group_size must be at least 1.")
    return g


def _errors(name: str, values: ArrayLike) -> Vector:
    array = _finite(name, values)
    if array.size == 0:
        raise InputError(f"{name} holds no groups; pass the squared error of at least one.")
    if (array < 0).any():
        raise InputError(f"{name} holds squared errors and must not be negative.")
    return array


def _finite(name: str, values: ArrayLike) -> Vector:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a number or an array of numbers: {error}.") from None
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite.")
    return array


def _result(values: Vector) -> Result:
    return float(values) if values.ndim == 0 else values
