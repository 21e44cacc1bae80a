"""Every way to share heads once, on the same fits: what the weighing of linear clients and of tables compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from steelyard.fed.gadaphead.grouping import Linkage, group_clients
from steelyard.fed.gadaphead.linear import Fits, Floats, Ints
from steelyard.fed.gadaphead.mixing import head_prototypes, mix_heads

LINEAR_THRESHOLD = 0.6  # on the heads themselves, of which a second-hand trial had groups found best
PROXIES = ("refit", "split", "iterates")


class Shared(NamedTuple):
    """Heads after sharing (N, d), the strength of each client (N,), and the groups (N,) that it was shared in."""

    heads: Floats
    strength: Floats
    groups: Ints


def labels_of(heads: Floats, threshold: float = LINEAR_THRESHOLD, linkage: Linkage = "average") -> Ints:
    """Return the group of every client by the cosine of the heads, shape (N,)."""
    return np.asarray(group_clients(heads, threshold=threshold, linkage=linkage).labels)


def adaptive(fits: Fits, groups: Ints, proxy: str = "refit", second_moment: Floats | None = None) -> Shared:
    """Mix each head with the mean of the others of its group, as strongly as the closed form says.

    The mismatch in it is debiased: see :func:`steelyard.fed.gadaphead.mixing.mix_heads`.

    Args:
        fits: Of the clients.
        groups: Of the clients, shape (N,).
        proxy: Whose variances are taken.
        second_moment: Metric of the distances (d, d); None: that of the fits.
    """
    metric = fits.second_moment if second_moment is None else second_moment
    mixed = mix_heads(fits.heads, groups, fits.variances[proxy], sigma=metric, mode="debiased")
    return Shared(mixed.heads, mixed.lam, groups)


def plain_plugin(fits: Fits, groups: Ints) -> Shared:
    """Mix as `adaptive` does, at the variance's share of the squared distance, which has no bound below 1."""
    mixed = mix_heads(fits.heads, groups, fits.variances["refit"], sigma=fits.second_moment)
    return Shared(mixed.heads, mixed.lam, groups)


def euclidean(fits: Fits, groups: Ints) -> Shared:
    """Mix as `adaptive` does, with distances and variances of the weights and not of values."""
    mixed = mix_heads(fits.heads, groups, fits.variances["weights"], mode="debiased")
    return Shared(mixed.heads, mixed.lam, groups)


def at_strength(fits: Fits, groups: Ints, strength: float) -> Shared:
    """Mix each head with the others' mean at one strength for all; who is alone in a group keeps its own."""
    return _mixed(fits, groups, np.full(len(fits.heads), strength))


def group_mean(fits: Fits, groups: Ints) -> Shared:
    """Give every client the mean of its group, itself included, as clustered learning does."""
    heads = head_prototypes(fits.heads, groups, leave_one_out=False)
    return Shared(heads, np.ones(len(heads)), groups)


def oracle(fits: Fits, groups: Ints, loss: Callable[[Floats], Floats]) -> Shared:
    """Mix at the strength that was best in hindsight: ``loss`` of (N, d) is quadratic in it for every client.

    The exact minimum between 0 and 1 is taken, which no point of a grid can beat.
    """
    ends = [_mixed(fits, groups, np.full(len(fits.heads), strength)).heads for strength in (0.0, 0.5, 1.0)]
    own, middle, other = (loss(heads) for heads in ends)
    bend = 2.0 * own - 4.0 * middle + 2.0 * other
    slope = 4.0 * middle - 3.0 * own - other
    inner = np.clip(-slope / np.where(bend > 0, 2.0 * bend, 1.0), 0.0, 1.0)
    best = np.where(bend > 1e-12 * (own + other), inner, np.where(other < own, 1.0, 0.0))
    return _mixed(fits, groups, best)


def wrong_groups(groups: Ints, generator: np.random.Generator) -> Ints:
    """Return groups of the same sizes, drawn at random."""
    return np.asarray(generator.permutation(groups))


def _mixed(fits: Fits, groups: Ints, strength: Floats) -> Shared:
    """Return heads at the strengths given, shape (N,); a client alone in its group keeps its own."""
    mixed = mix_heads(fits.heads, groups, mode="fixed", strength=strength)
    return Shared(mixed.heads, mixed.lam, groups)
