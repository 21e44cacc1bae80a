"""One cell of linear clients or of a user's table: fit every client, share the heads, measure them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.metrics import adjusted_rand_score

from steelyard.contracts import CellInput, Measured
from steelyard.errors import InputError
from steelyard.fed.gadaphead import sharing
from steelyard.fed.gadaphead.arms import METHOD, flat
from steelyard.fed.gadaphead.diagrams import sharing_diagram
from steelyard.fed.gadaphead.linear import Fits, Floats, Ints, fit_clients, make_world, sample
from steelyard.fed.gadaphead.sharing import Shared


class Clients(NamedTuple):
    """Fitted clients: what they send, how a cell judges heads, and what is known of them.

    ``errors`` gives the squared error of each client's head, shape (N,); ``planted`` is None where nothing is.
    """

    fits: Fits
    errors: Callable[[Floats], Floats]
    planted: Ints | None
    names: tuple[str, ...]


def linear_clients(cell: CellInput) -> Clients:
    """Return the cell's linear clients: their world and their transitions are functions of its seed alone."""
    world = make_world(cell.rng("world"), *(int(cell.data[name]) for name in ("groups", "members")))
    n = int(cell.data["transitions"])
    batches = [sample(world, client, n, cell.rng(f"client {client}")) for client in range(len(world.heads))]
    names = tuple(f"{chr(ord('A') + group)}{place}" for place, group in enumerate(world.groups.tolist()))
    return Clients(fit_clients(batches, world.discount), world.errors, world.groups, names)


def run_shared(cell: CellInput, clients: Clients, threshold: float = sharing.LINEAR_THRESHOLD) -> Measured:
    """Measure one arm; the cell of ``gadaphead`` measures every way to share.

    Raises:
        InputError: An arm that no linear client has.
    """
    fits = clients.fits
    count = len(fits.heads)
    groups = sharing.labels_of(fits.heads, threshold)
    if cell.arm == METHOD:
        return _every_way(cell, clients, groups, threshold)
    alone, nothing = np.arange(count), np.zeros(count)
    mean = np.average(fits.heads, axis=0, weights=fits.counts)
    ways: dict[str, Callable[[], Shared]] = {
        "local": lambda: Shared(fits.heads, nothing, alone),
        "fedavg": lambda: Shared(np.tile(mean, (count, 1)), nothing + 1.0, np.zeros(count, dtype=np.int64)),
        "zero": lambda: Shared(np.zeros_like(fits.heads), nothing, alone),
        "oracle_lambda": lambda: sharing.oracle(fits, groups, clients.errors),
    }
    if cell.arm not in ways:
        raise InputError(f"arm '{cell.arm}' is not measured on task '{cell.task}'")
    return Measured(figures(ways[cell.arm](), clients), steps=count)


def _every_way(cell: CellInput, clients: Clients, groups: Ints, threshold: float) -> Measured:
    fits = clients.fits
    ours = sharing.adaptive(fits, groups)
    everyone = np.zeros_like(groups)
    ways = {
        "group_loo": sharing.at_strength(fits, groups, 1.0),
        "group_mean": sharing.group_mean(fits, groups),
        "fixed_half": sharing.at_strength(fits, groups, 0.5),
        "wrong_groups": sharing.adaptive(fits, sharing.wrong_groups(groups, cell.rng("wrong groups"))),
        "one_group": sharing.adaptive(fits, everyone),
        "plain_plugin": sharing.plain_plugin(fits, groups),
        "split": sharing.adaptive(fits, groups, "split"),
        "iterates": sharing.adaptive(fits, groups, "iterates"),
        "euclidean": sharing.euclidean(fits, groups),
        "sattler": sharing.adaptive(fits, sharing.labels_of(fits.heads, threshold, "sattler")),
    }
    if clients.planted is not None:
        ways["oracle_groups"] = sharing.oracle(fits, clients.planted, clients.errors)
    metrics = figures(ours, clients)
    for name, way in ways.items():
        metrics |= flat(name, figures(way, clients))
    picture = sharing_diagram(clients.names, groups, ours.strength, clients.planted)
    return Measured(metrics, steps=len(groups) * (1 + len(ways)), diagrams=(picture,) if cell.seed == 0 else ())


def figures(shared: Shared, clients: Clients) -> dict[str, float]:
    """Return the figures of heads after sharing, by the names of the bench's metrics."""
    errors = clients.errors(shared.heads)
    found = {"mse": float(errors.mean()), "worst_mse": float(errors.max()), "strength": float(shared.strength.mean())}
    if clients.planted is not None:
        found["ari"] = float(adjusted_rand_score(clients.planted, shared.groups))
    return found
