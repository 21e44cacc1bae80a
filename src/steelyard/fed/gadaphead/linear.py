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
    """What every client sends: heads (N, d), the variances of three proxies (N,), and the second moment (d, d)."""

    heads: Floats
    variances: dict[str, Floats]
    second_moment: Floats


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


def temporal_differences(batch: Transitions, discount: float, ridge: float = RIDGE) -> tuple[Floats, Floats]:
    """Return the head (d,) of least squares temporal differences and its sandwich covariance (d, d).

    With A = sum of phi (phi - discount phi')^T + ridge I and residuals delta, the covariance is
    A^-1 (sum of delta^2 phi phi^T) A^-T; with discount 0 it is ridge regression and White's estimator.

    Raises:
        InputError: No transition, or shapes that do not fit.
    """
    features, following, rewards = (np.asarray(part, dtype=np.float64) for part in batch)
    if features.ndim != 2 or following.shape != features.shape or rewards.shape != features.shape[:1]:
        raise InputError(
            f"batch must hold features (n, d), following (n, d) and rewards (n,), got {features.shape}, "
            f"{following.shape} and {rewards.shape}"
        )
    if not len(rewards):
        raise InputError("batch has no transition")
    system = features.T @ (features - discount * following) + ridge * np.eye(features.shape[1])
    inverse = np.linalg.inv(system)
    head = inverse @ (features.T @ rewards)
    residual = rewards + discount * (following @ head) - features @ head
    meat = (features * residual[:, None] ** 2).T @ features
    return np.asarray(head), np.asarray(inverse @ meat @ inverse.T)


def fit_clients(batches: Sequence[Transitions], discount: float = DISCOUNT, ridge: float = RIDGE) -> Fits:
    """Fit every client's head, and estimate its variance in value space by each proxy.

    Values are compared through the mean of the clients' second moments, which is what a server can know. ``refit`` is
    the sandwich's trace; ``split`` a quarter of the squared distance of two halves' heads; ``iterates`` the spread of
    the heads of a growing batch around their mean.

    Raises:
        InputError: A client with fewer than two transitions.
    """
    for client, batch in enumerate(batches):
        if len(batch.rewards) < 2:
            raise InputError(f"client {client} has {len(batch.rewards)} transitions; at least 2 are needed")
    moments = [batch.features.T @ batch.features / len(batch.rewards) for batch in batches]
    metric = np.mean(moments, axis=0)
    fitted = [temporal_differences(batch, discount, ridge) for batch in batches]
    variances = {
        "refit": np.array([np.trace(metric @ covariance) for _, covariance in fitted]),
        "split": np.array([_split(batch, discount, ridge, metric) for batch in batches]),
        "iterates": np.array([_iterates(batch, discount, ridge, metric) for batch in batches]),
    }
    return Fits(np.array([head for head, _ in fitted]), variances, metric)


def _split(batch: Transitions, discount: float, ridge: float, metric: Floats) -> float:
    halves = [Transitions(*(part[start::2] for part in batch)) for start in (0, 1)]
    first, second = (temporal_differences(half, discount, ridge)[0] for half in halves)
    return float((first - second) @ metric @ (first - second)) / 4.0


def _iterates(batch: Transitions, discount: float, ridge: float, metric: Floats) -> float:
    ends = np.unique(np.linspace(len(batch.rewards) / 2, len(batch.rewards), _ITERATES).astype(int))
    heads = np.array([temporal_differences(Transitions(*(p[:end] for p in batch)), discount, ridge)[0] for end in ends])
    apart = heads - heads.mean(axis=0)
    return float(np.einsum("ti,ij,tj->t", apart, metric, apart).mean())
