"""Probes for the checks that every method passes; the acceptance test takes any rule that shares heads once."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.errors import InputError
from steelyard.fed.gadaphead import sharing, user
from steelyard.fed.gadaphead.core import optimal_sharing_strength
from steelyard.fed.gadaphead.grouping import UpdateCosine, group_clients
from steelyard.fed.gadaphead.linear import Fits, fit_clients, make_world, sample
from steelyard.fed.gadaphead.mixing import AdaptiveMix, mix_heads
from steelyard.fed.gadaphead.rounds import Client, ClientUpdate, federated_rounds
from steelyard.fed.gadaphead.sharing import Shared
from steelyard.fed.gadaphead.strategies import GAdapHead, SharedTrunk
from steelyard.rng import generator

Sharer = Callable[[Fits, np.random.Generator], Shared]
"""From what clients send, and a source of chance, to their heads after sharing and the groups found."""

_SIZES: tuple[tuple[int, ...], ...] = ((150,), (1500,), (60, 1500))  # transitions, of clients in turn
_SEEDS, _WIDTH, _CLIENTS = 8, 6, 6
_GAIN, _WRONG, _FOUND, _HARM = np.log(1.05), 0.03, 0.75, np.log(1.03)


def adaptive(fits: Fits, draws: np.random.Generator) -> Shared:
    """Share in groups found from the heads, as strongly as the closed form says; no chance is needed."""
    return sharing.adaptive(fits, sharing.labels_of(fits.heads))


def _heads(seed: int, dtype: str) -> np.ndarray:
    """Return heads of two kinds, shape (6, 6)."""
    draws = generator("conformance", "gadaphead/heads", seed)
    kinds = np.repeat(draws.normal(size=(2, _WIDTH)), _CLIENTS // 2, axis=0)
    return np.asarray(kinds + 0.3 * draws.normal(size=kinds.shape), dtype=dtype)


def _run(seed: int, dtype: str) -> Arrays:
    """Group heads and mix them; shares are float64 whatever is asked."""
    heads = _heads(seed, dtype)
    groups = group_clients(heads, threshold=0.6)
    mixed = mix_heads(heads, groups, np.full(_CLIENTS, 0.5))
    return {"heads": mixed.heads, "proto": mixed.proto, "labels": groups.labels}


def _client(target: np.ndarray) -> Client:
    """Return a client that walks towards its own head under noise."""

    def train(trunk: Mapping[str, Any], head: Any, round: int, draws: np.random.Generator) -> ClientUpdate:
        after = head + 0.3 * (target - head) + 0.2 * draws.normal(size=head.shape)
        moved = {name: values + 0.1 * draws.normal(size=values.shape) for name, values in trunk.items()}
        return ClientUpdate(moved, after, after - head, 0.2, 10)

    return train


def _trained(strategy: Any, rounds: int = 6, checkpoint: Path | None = None) -> Arrays:
    clients = [_client(target) for target in _heads(0, "float64")]
    start = {"weight": np.zeros((2, 3))}, np.zeros(_WIDTH)
    history = federated_rounds(clients, rounds, strategy, 0, initial=start, checkpoint=checkpoint)
    sent = [history.final[client] for client in range(len(clients))]
    return {"heads": np.stack([one.head for one in sent]), "trunk": np.stack([one.trunk["weight"] for one in sent])}


def _noop() -> tuple[Arrays, Arrays]:
    """A strength of 0 is FedPer."""
    return _trained(GAdapHead(mixing=AdaptiveMix(strength=0.0))), _trained(SharedTrunk())


def _effect() -> tuple[Arrays, Arrays]:
    return _trained(GAdapHead()), _trained(SharedTrunk())


def _resumed() -> tuple[Arrays, Arrays]:
    """Six rounds, and three rounds whose checkpoint a new strategy takes up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rounds.npz"
        _trained(GAdapHead(), 3, path)
        return _trained(GAdapHead()), _trained(GAdapHead(), 6, path)


def _untouched() -> tuple[Arrays, Arrays]:
    inputs = {"heads": _heads(0, "float64"), "variances": np.full(_CLIENTS, 0.5), "sigma": np.eye(_WIDTH)}
    before = {name: values.copy() for name, values in inputs.items()}
    groups = group_clients(inputs["heads"], threshold=0.6)
    mix_heads(inputs["heads"], groups, inputs["variances"], inputs["sigma"])
    return before, inputs


def acceptance(share: Sharer) -> None:
    """Share the heads of linear clients with few and with many transitions, and of clients without groups.

    It must be better than each client's own head, than one mean and than the method's rule in groups drawn at random,
    find the planted groups, whose clients come in any order, and do no harm where no two clients have a task in common.
    A rule of one strength cannot: what helps with few transitions harms with many. Where clients with few and with many
    meet, it must be better than the mean of its own strengths for all.

    Raises:
        AssertionError: It is not so.
    """
    for sizes in _SIZES:
        rounds = [_compared(share, sizes, seed) for seed in range(_SEEDS)]
        told = f"{' and '.join(map(str, sizes))} transitions"
        for name in rounds[0]:
            value = float(np.mean([one[name] for one in rounds]))
            if name == "found":
                assert value >= _FOUND, f"{told}: groups found with an index of {value:.2f}"
                continue
            least = _GAIN if name in ("its own head", "one mean") else _WRONG
            said = f"{told}: log of the error's ratio to {name} is {value:.3f}, at least {least:.3f} was asked for"
            assert value >= least, said
    harm = [_harm(share, seed) for seed in range(_SEEDS)]
    assert np.mean(harm) <= _HARM, f"clients without groups lose: log of the error's ratio is {np.mean(harm):.3f}"


def _compared(share: Sharer, sizes: Sequence[int], seed: int) -> dict[str, float]:
    """Return log-ratios of rivals' errors to the rule's, and how well it found the groups, "found"."""
    draws = generator("conformance", f"gadaphead/linear {sizes}", seed)
    made = make_world(draws)
    order = draws.permutation(len(made.heads))
    world = dataclasses.replace(made, heads=made.heads[order], groups=made.groups[order])
    turns = [sizes[client % len(sizes)] for client in range(len(order))]
    fits = fit_clients([sample(world, client, size, draws) for client, size in enumerate(turns)])
    ours = share(fits, draws)
    rivals = {
        "its own head": fits.heads,
        "one mean": np.tile(fits.heads.mean(axis=0), (len(order), 1)),
        "random groups": sharing.adaptive(fits, sharing.wrong_groups(ours.groups, draws)).heads,
    }
    if len(sizes) > 1:
        rivals["one strength"] = sharing.at_strength(fits, ours.groups, float(ours.strength.mean())).heads
    error = world.errors(ours.heads).mean()
    ratios = {name: float(np.log(world.errors(heads).mean() / error)) for name, heads in rivals.items()}
    return {**ratios, "found": float(adjusted_rand_score(world.groups, ours.groups))}


def _harm(share: Sharer, seed: int) -> float:
    """Return the log-ratio of the error after and before sharing where every client has a task of its own."""
    draws = generator("conformance", "gadaphead/alone", seed)
    world = make_world(draws, groups=12, members=1)
    fits = fit_clients([sample(world, client, 400, draws) for client in range(12)])
    after, before = (world.errors(heads).mean() for heads in (share(fits, draws).heads, fits.heads))
    return float(np.log(after / before))


def _constant(fits: Fits, draws: np.random.Generator) -> Shared:
    return sharing.at_strength(fits, sharing.labels_of(fits.heads), 0.5)


def _random(fits: Fits, draws: np.random.Generator) -> Shared:
    return sharing.adaptive(fits, np.asarray(draws.integers(0, 3, size=len(fits.heads))))


def _identity(fits: Fits, draws: np.random.Generator) -> Shared:
    return Shared(fits.heads, np.zeros(len(fits.heads)), sharing.labels_of(fits.heads))


DUMMIES: dict[str, Sharer] = {"constant": _constant, "random": _random, "identity": _identity}


def _bad_inputs() -> tuple[BadInput, ...]:
    heads = _heads(0, "float64")
    broken = heads.copy()
    broken[2, 1] = np.nan
    groups = group_clients(heads, threshold=0.6)
    table = {"ward": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0], "y": [1.0, 2.0, 3.0, 5.0]}
    start: Any = {}, np.zeros(2)

    def raises(trunk: Any, head: Any, round: int, draws: Any) -> ClientUpdate:
        raise InputError("the disk is full")

    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("a threshold of 0", lambda: group_clients(heads, threshold=0.0), "threshold"),
        ("a threshold above 2", lambda: group_clients(heads, threshold=2.5), "threshold"),
        ("an unknown linkage", lambda: group_clients(heads, linkage=_any("ward")), "linkage"),
        ("an update that is not finite", lambda: group_clients(broken), "client 2"),
        ("updates of two shapes", lambda: group_clients([np.ones(2), np.ones(3)]), "client 1"),
        ("a negative variance", lambda: mix_heads(heads, groups, np.full(_CLIENTS, -1.0)), "variance"),
        ("a head that is not finite", lambda: mix_heads(broken, groups, np.ones(_CLIENTS)), "client 2"),
        ("a negative variance of a head", lambda: optimal_sharing_strength(-1.0, 1.0, 1.0), "V_i"),
        ("a negative warm-up", lambda: AdaptiveMix(warmup=-1), "warmup"),
        ("a strength above 1", lambda: AdaptiveMix(strength=1.5), "strength"),
        ("a past that counts in full", lambda: UpdateCosine(ema=1.0), "ema"),
        ("no rounds", lambda: federated_rounds([raises], 0, GAdapHead(), 0, initial=start), "rounds"),
        ("clients that all fail", lambda: federated_rounds([raises], 1, GAdapHead(), 0, initial=start), "disk is full"),
        ("a table without the column", lambda: user.user_task(table, client="wrd", target="y"), "ward"),
        ("clients with too few rows", lambda: user.user_task(table, client="ward", target="y"), "client 'a'"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


def _any(value: Any) -> Any:
    return value


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64", "float32"),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=adaptive,
    acceptance=acceptance,
    dummies=DUMMIES,
)
