"""What is known about the variance of an edge's credit."""

from __future__ import annotations

from typing import NamedTuple

from steelyard.errors import InputError


class VarianceBound(NamedTuple):
    """A bound of a variance, and whether it promises less than a single sample's."""

    bound: float
    reduces: bool


def edge_variance_bound(sigma2: float, n_src: int, n_dst: int) -> VarianceBound:
    """Return ``sigma2 / n_dst + sigma2 / n_src``, which the variance of an edge's rise in value does not exceed.

    Holds for independent visits, gamma = 1 and a covariance of the two node values of at least 0 (second hand, appendix
    B). The further claim that it is at most ``sigma2`` holds only where 1/n_src + 1/n_dst is at most 1, so where both
    nodes have at least two visits; ``reduces`` says so. Visits by one rollout are not independent: count rollouts.

    Args:
        sigma2: Variance of a single visit's discounted return, at least 0.
        n_src: Visits of the node that the edge leaves, at least 1.
        n_dst: Visits of the node that it enters, at least 1.

    Raises:
        InputError: A negative variance or a node without visits.
    """
    if not 0 <= sigma2 < float("inf"):
        raise InputError(f"sigma2 must be a finite number of at least 0, got {sigma2}")
    for name, count in (("n_src", n_src), ("n_dst", n_dst)):
        if count < 1 or count != int(count):
            raise InputError(f"{name} must be a whole number of at least 1, got {count}")
    # In whole numbers: 1/2 + 1/2 must not lose the promise to rounding.
    return VarianceBound(sigma2 / n_dst + sigma2 / n_src, n_src + n_dst <= n_src * n_dst)
