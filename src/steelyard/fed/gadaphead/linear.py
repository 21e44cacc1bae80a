"""Linear federated policy evaluation: clients whose heads, groups and errors are known exactly.

Clients walk at random on a grid and evaluate that walk under rewards of their own. Their value functions are linear in
features that all share, so a client is its head alone; clients of a group have heads near a common one. What sharing
should do can therefore be computed beside what it does. A client whose next features count for nothing (discount 0)
is a ridge regression, which is how tables of one's own are weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.fed.gadaphead.core import fit_head, head_variance_iterates, head_variance_refit, head_variance_split

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGE, NOISE, DISCOUNT = 0.1, 0.5, 0.9  # of a second-hand recipe of this experiment
_SIDE, _WIDTH = 7, 16
_ITERATES = 8  # heads of a growing batch, for the proxy that looks at iterates


class Transitions(NamedTuple):
    """What a client has seen: features (n, d), those of the next states (n, d), and rewards (n,)."""

    features: Floats
    following: Floats
    rewards: Floats


class Fits(NamedTuple):
    """What clients send: heads (N, d), variances by proxy (N,), the mean second moment (d, d), sample sizes (N,)."""

    heads: Floats
    variances: dict[str, Floats]
    second_moment: Floats
    counts: Ints


@dataclass(frozen=True)
class LinearWorld:
    """Clients with known heads.

    Attributes:
        features: Of every state, shape (S, d).
        heads: True heads, shape (N, d); values are ``features @ head``.
        groups: The planted group of each client, shape (N,).
        steps: Chances of the walk from state to state, shape (S, S).
        discount: Of the rewards.
    """

    features: Floats
    heads: Floats
    groups: Ints
    steps: Floats
    discount: float = DISCOUNT

    def errors(self, heads: Floats) -> Floats:
        """Return the mean squared error of each client's values over all states, shape (N,)."""
        return np.asarray((((heads - self.heads) @ self.features.T) ** 2).mean(axis=1), dtype=np.float64)


def grid_walk(side: int = _SIDE) -> Floats:
    """Return the chances of a walk in four directions alike on a ``side`` x ``side`` grid; walls keep it in place."""
    states = np.arange(side * side)
    row, column = np.divmod(states, side)
    steps = np.zeros((side * side, side * side))
    for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        target = np.clip(row + down, 0, side - 1) * side + np.clip(column + right, 0, side - 1)
        np.add.at(steps, (states, target), 0.25)
    return steps


def make_world(
    generator: np.random.Generator, groups: int = 3, members: int = 4, spread: float = 0.3, width: int = _WIDTH
) -> LinearWorld:
    """Draw clients in groups: a head is its group's, N(0, 1) in each direction, plus ``spread`` times as much.

    Args:
        generator: Source of the features and the heads.
        groups: Planted groups.
        members: Clients of each.
        spread: Of the heads of a group around their common one.
        width: Features d of a state, N(0, 1/16) each.

    Raises:
        InputError: A count is below 1, or the spread is negative or not finite.
    """
    for name, count in (("groups", groups), ("members", members), ("width", width)):
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}")
    if not 0 <= spread < np.inf:
        raise InputError(f"spread must be a finite number of at least 0, got {spread}")
    features = generator.normal(size=(_SIDE * _SIDE, width)) / 4.0
    base = generator.normal(size=(groups, width))
    planted = np.repeat(np.arange(groups), members)
    heads = base[planted] + spread * generator.normal(size=(len(planted), width))
    return LinearWorld(features, heads, planted, grid_walk())


def sample(
    world: LinearWorld, client: int, n: int, generator: np.random.Generator, noise: float = NOISE
) -> Transitions:
    """Draw ``n`` transitions of a client from states that are all alike likely.

    The reward of a state is V - discount * P V, so that the client's values are exactly linear, plus N(0, noise^2).

    Raises:
        InputError: ``n`` is below 1.
    """
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    values = world.features @ world.heads[client]
    rewards = values - world.discount * (world.steps @ values)
    states = generator.integers(len(values), size=n)
    reach = world.steps.cumsum(axis=1)[states]
    reach[:, -1] = 1.0  # rounding leaves a little less
    following = (reach <= generator.random(n)[:, None]).sum(axis=1)
    seen = rewards[states] + noise * generator.normal(size=n)
    return Transitions(world.features[states], world.features[following], seen)


def fit_clients(batches: Sequence[Transitions], discount: float = DISCOUNT, ridge: float = RIDGE) -> Fits:
    """Fit every client's head, and estimate its variance in value space by each proxy.

    Values are compared through the mean of the clients' second moments, which is what a server can know. ``refit`` is
    the sandwich's trace; ``split`` a quarter of the squared distance of two halves' heads; ``iterates`` the spread of
    the heads of a growing batch. ``weights`` is the sandwich's trace without that metric.

    Raises:
        InputError: No client, or one with fewer than two transitions or with shapes that do not fit.
    """
    if not batches:
        raise InputError("batches must hold at least one client's transitions")
    for client, batch in enumerate(batches):
        if len(batch.rewards) < 2:
            raise InputError(f"client {client} has {len(batch.rewards)} transitions; at least 2 are needed")
    metric = np.mean([batch.features.T @ batch.features / len(batch.rewards) for batch in batches], axis=0)

    def head(batch: Transitions) -> Floats:
        return fit_head(batch.features, batch.rewards, batch.following, gamma=discount, ridge=ridge).head

    def refit(batch: Transitions, sigma: Floats | None) -> float:
        return head_variance_refit(
            batch.features, batch.rewards, batch.following, gamma=discount, ridge=ridge, sigma=sigma
        )

    def split(batch: Transitions) -> float:
        first, second = (head(Transitions(*(part[start::2] for part in batch))) for start in (0, 1))
        return head_variance_split(first, second, metric)

    variances = {
        "refit": np.array([refit(batch, metric) for batch in batches]),
        "weights": np.array([refit(batch, None) for batch in batches]),
        "split": np.array([split(batch) for batch in batches]),
        "iterates": np.array([head_variance_iterates([head(part) for part in _growing(b)], metric) for b in batches]),
    }
    counts = np.array([len(batch.rewards) for batch in batches])
    return Fits(np.array([head(batch) for batch in batches]), variances, metric, counts)


def _growing(batch: Transitions) -> list[Transitions]:
    """Return beginnings of a batch, from a half of it to all."""
    ends = np.linspace(len(batch.rewards) / 2, len(batch.rewards), _ITERATES).astype(int).tolist()
    return [Transitions(*(part[:end] for part in batch)) for end in ends]
