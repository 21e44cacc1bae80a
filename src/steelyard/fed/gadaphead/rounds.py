"""Rounds of federated learning in one process: clients are callables, no server, no framework.

A client is ``client(trunk, head, round, generator) -> ClientUpdate``; it may answer None for a round that it sits out.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard import rng
from steelyard.errors import InputError
from steelyard.fed.gadaphead import checkpoints
from steelyard.fed.gadaphead.core import second_moment
from steelyard.fed.gadaphead.rows import can_be_averaged

_MOST_STEPS = 2**53  # a whole number beyond it has no exact weight

Array = NDArray[Any]
Trunk = Mapping[str, Array]


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends after a round.

    Attributes:
        trunk: Shared parameters by name.
        head: The decision layer, shape (d,) or (d, k).
        update: What the head has moved by in this round, shape of ``head``; None: the server, which knows what it sent,
            takes the difference, and nothing is uploaded for it.
        variance: Estimate of E|head - best head|^2, in values if ``feature_second_moment`` is given.
        n_steps: Weight of this client in averages of the trunk, e.g. environment steps.
        feature_second_moment: Mean of phi phi^T over the client's features, shape (d, d), or None.
        metrics: Numbers for the history.
    """

    trunk: Trunk
    head: Array
    update: Array | None
    variance: float
    n_steps: int
    feature_second_moment: Array | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Broadcast(NamedTuple):
    """What a client gets for its next round."""

    trunk: Trunk
    head: Array


Client = Callable[[Trunk, Array, int, np.random.Generator], ClientUpdate | None]


class Strategy(Protocol):
    """What the server does with a round's updates.

    Attributes:
        uploads: What it needs of a client: some of "trunk", "head", "update", "variance", "second_moment".
        groups: Group of each client, as far as the strategy groups.
        lam: Share of the prototype in each client's head in this round, as far as the strategy mixes.
    """

    uploads: frozenset[str]
    groups: dict[int, int]
    lam: dict[int, float]

    def begin(self, starts: Mapping[int, Broadcast]) -> None:
        """Meet clients, each with what it starts from; may be called again for clients that come later."""

    def aggregate(self, round: int, updates: Mapping[int, ClientUpdate]) -> Mapping[int, Broadcast]:
        """Return what each known client gets next, also those that are not in ``updates``."""

    def state_dict(self) -> dict[str, Array]:
        """Return all that it remembers, as arrays by name."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what ``state_dict`` returned."""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round.

    Attributes:
        round: Number, from 1.
        groups: Group by client.
        lam: Share of the prototype by client, of those that reported.
        metrics: What clients measured, by client.
        uploaded_bytes: Of all that the strategy needs from the clients.
        failures: Why a client's update was not used, by client.
    """

    round: int
    groups: dict[int, int]
    lam: dict[int, float]
    metrics: dict[int, dict[str, float]]
    uploaded_bytes: int
    failures: dict[int, str]


@dataclass(frozen=True)
class History:
    """All rounds, and what each client would get next."""

    rounds: tuple[RoundRecord, ...]
    final: dict[int, Broadcast]

    def to_json(self) -> str:
        """Return the rounds as JSON."""
        return json.dumps([dataclasses.asdict(record) for record in self.rounds])


def rounds_from_json(text: str) -> tuple[RoundRecord, ...]:
    """Return the rounds that :meth:`History.to_json` wrote.

    Raises:
        InputError: The text is no such JSON.
    """
    try:
        return tuple(
            RoundRecord(
                int(record["round"]),
                {int(client): int(value) for client, value in record["groups"].items()},
                {int(client): float(value) for client, value in record["lam"].items()},
                {int(c): {str(k): float(v) for k, v in own.items()} for c, own in record["metrics"].items()},
                int(record["uploaded_bytes"]),
                {int(client): str(value) for client, value in record["failures"].items()},
            )
            for record in json.loads(text)
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"history cannot be read: {error}") from None


def federated_rounds(
    clients: Sequence[Client],
    rounds: int,
    strategy: Strategy,
    seed: int,
    *,
    initial: Broadcast | tuple[Trunk, Array] | Sequence[Broadcast | tuple[Trunk, Array]],
    on_round: Callable[[RoundRecord], None] | None = None,
    checkpoint: str | Path | None = None,
    skip_failures: bool = True,
) -> History:
    """Run rounds of federated learning in this process.

    Each client gets copies of its arrays and a generator of its own that depends on seed, client and round alone, so
    results do not depend on the order of clients or on a resumption. A client that raises, or sends what cannot be used
    (values that are not finite, other shapes than it got), is skipped in that round, named in the record, and keeps
    what it was sent last. One that never reports keeps the head that it started from.

    Args:
        clients: Callables; one that has ``state_dict`` (arrays by name) and ``load_state_dict`` is checkpointed too.
        rounds: How many in all, at least 1.
        strategy: What the server does.
        seed: Of all clients' generators.
        initial: (trunk, head) for all clients, or one for each.
        on_round: Called with each round's record.
        checkpoint: File (.npz) written after each round; if it is there, its run is continued.
        skip_failures: False: an exception of a client, or an unusable update, ends the run.

    Raises:
        InputError: Settings out of range, a checkpoint of another run, or no client that ever sent a usable update.
    """
    if rounds < 1 or not clients:
        raise InputError(f"rounds and clients must be at least 1, got {rounds} and {len(clients)}")
    sent = _starts(initial, len(clients))
    strategy.begin(sent)
    records: list[RoundRecord] = []
    path = None if checkpoint is None else Path(checkpoint)
    run = f"{type(strategy).__name__}, {len(clients)} clients, seed {int(seed)}"
    if path is not None and path.exists():
        sent, records = _resume(path, run, clients, strategy, sent)
    for number in range(len(records) + 1, rounds + 1):
        updates, failures, sizes = _train(clients, sent, number, seed, skip_failures, strategy.uploads)
        if updates:
            sent = {**sent, **strategy.aggregate(number, updates)}
        elif failures:
            _warn_all_failed(number, records, failures)
        record = RoundRecord(
            number,
            dict(strategy.groups),
            {client: lam for client, lam in strategy.lam.items() if client in updates},
            {client: dict(update.metrics) for client, update in updates.items()},
            sizes,
            failures,
        )
        records.append(record)
        if path is not None:
            _save(path, run, clients, strategy, sent, records)
        if on_round is not None:
            on_round(record)
    return History(tuple(records), sent)


def uploaded_bytes(update: ClientUpdate, uploads: frozenset[str]) -> int:
    """Return the bytes of what a strategy needs of an update; the number of steps is not counted."""
    total = 8 if "variance" in uploads else 0
    if "trunk" in uploads:
        total += sum(np.asarray(values).nbytes for values in update.trunk.values())
    if "head" in uploads:
        total += np.asarray(update.head).nbytes
    if "update" in uploads and update.update is not None:
        total += np.asarray(update.update).nbytes
    if "second_moment" in uploads and update.feature_second_moment is not None:
        total += np.asarray(update.feature_second_moment).nbytes
    return total


def checked_update(client: int, update: Any, sent: Broadcast) -> ClientUpdate:
    """Return a copy of a client's update that shares no memory with it, its ``update`` filled in.

    Raises:
        InputError: It cannot be used; the message names the client and what is wrong.
    """
    who = f"client {client}"
    if not isinstance(update, ClientUpdate):
        raise InputError(f"{who} must answer a ClientUpdate or None, got {type(update).__name__}")
    if set(update.trunk) != set(sent.trunk):
        odd = sorted(set(update.trunk) ^ set(sent.trunk))[0]
        raise InputError(f"{who} must send the trunk's parameters that it got; {odd!r} is missing or new")
    trunk = {name: _copied(f"{who}: trunk {name!r}", update.trunk[name], sent.trunk[name]) for name in sent.trunk}
    head = _copied(f"{who}: head", update.head, sent.head)
    moved = head - np.asarray(sent.head) if update.update is None else _copied(f"{who}: update", update.update, head)
    moment = update.feature_second_moment
    if moment is not None:
        moment = _copied(f"{who}: feature_second_moment", moment, np.empty((len(head), len(head))))
        second_moment(moment, len(head), f"{who}: feature_second_moment")
    variance, steps = float(update.variance), int(update.n_steps)
    if not (np.isfinite(variance) and variance >= 0):
        raise InputError(f"{who}: variance must be a finite number of at least 0, got {variance}")
    if not 0 <= steps < _MOST_STEPS:
        raise InputError(f"{who}: n_steps must be at least 0 and below {_MOST_STEPS:.0e}, got {steps}")
    try:
        metrics = {str(name): float(value) for name, value in update.metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{who}: metrics must be numbers by name: {error}") from None
    return ClientUpdate(trunk, head, moved, variance, steps, moment, metrics)


def _copied(what: str, values: Any, like: Any) -> Array:
    """Return a copy of ``values`` in the shape and dtype of ``like``, which no client may change for the others."""
    array, meant = np.array(values), np.asarray(like)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} must be an array of numbers, got dtype {array.dtype}")
    if array.shape != meant.shape:
        raise InputError(f"{what} must have shape {meant.shape}, got {array.shape}")
    if not np.can_cast(array.dtype, meant.dtype, "same_kind"):
        raise InputError(f"{what} must be {meant.dtype} as it was sent, got {array.dtype}")
    with np.errstate(over="ignore"):  # what overflows is refused below
        array = array.astype(meant.dtype, copy=False)
    if array.dtype.kind == "f" and not can_be_averaged(array):
        raise InputError(f"{what} holds values that are not finite, or too large for {array.dtype} to be averaged")
    return array


def _train(
    clients: Sequence[Client],
    sent: Mapping[int, Broadcast],
    number: int,
    seed: int,
    skip_failures: bool,
    uploads: frozenset[str],
) -> tuple[dict[int, ClientUpdate], dict[int, str], int]:
    """Return the usable updates and the failures by client, and the bytes of the former."""
    updates: dict[int, ClientUpdate] = {}
    failures: dict[int, str] = {}
    sizes = 0
    for index, client in enumerate(clients):
        trunk = {name: np.array(values) for name, values in sent[index].trunk.items()}
        own = rng.generator("federated_rounds", f"client {index} round {number}", seed)
        try:
            answer = client(trunk, np.array(sent[index].head), number, own)
            if answer is not None:
                updates[index] = checked_update(index, answer, sent[index])
                sizes += uploaded_bytes(answer, uploads)
        except Exception as error:
            if not skip_failures:
                raise
            failures[index] = f"{type(error).__name__}: {error}"
    return updates, failures, sizes


def _warn_all_failed(number: int, records: Sequence[RoundRecord], failures: Mapping[int, str]) -> None:
    client, reason = min(failures.items())
    if not any(record.uploaded_bytes or record.metrics for record in records):
        raise InputError(f"no client has sent a usable update by round {number}; client {client}: {reason}")
    warnings.warn(
        f"round {number}: all {len(failures)} clients failed, nothing changes; client {client}: {reason}",
        RuntimeWarning,
        stacklevel=3,
    )


def _starts(initial: Any, count: int) -> dict[int, Broadcast]:
    one = isinstance(initial, tuple) and len(initial) == 2 and isinstance(initial[0], Mapping)
    given = [initial] * count if one else list(initial)
    if len(given) != count:
        raise InputError(f"initial must be one (trunk, head), or one for each of {count} clients, got {len(given)}")
    starts = {}
    for client, pair in enumerate(given):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Mapping)):
            raise InputError(f"initial of client {client} must be (trunk, head), the trunk a mapping of arrays")
        trunk, head = pair
        if np.ndim(head) not in (1, 2) or not np.size(head):
            raise InputError(f"initial head of client {client} must have shape (d,) or (d, k), got {np.shape(head)}")
        copied = {
            name: _copied(f"initial trunk {name!r} of client {client}", values, values)
            for name, values in trunk.items()
        }
        # a head is learned and mixed: whole numbers as a start are meant as the numbers they are
        kind = np.asarray(head).dtype if np.asarray(head).dtype.kind not in "iub" else np.dtype(np.float64)
        like = np.empty(np.shape(head), kind)
        starts[client] = Broadcast(copied, _copied(f"initial head of client {client}", head, like))
    return starts


def _save(
    path: Path,
    run: str,
    clients: Sequence[Client],
    strategy: Strategy,
    sent: Mapping[int, Broadcast],
    records: Sequence[RoundRecord],
) -> None:
    parts = {"strategy": strategy.state_dict()}
    for index, client in enumerate(clients):
        parts[f"trunk {index}"] = dict(sent[index].trunk)
        parts[f"head {index}"] = {"": sent[index].head}
        if hasattr(client, "state_dict"):
            parts[f"client {index}"] = client.state_dict()
    checkpoints.write(path, run, parts, History(tuple(records), {}).to_json())


def _resume(
    path: Path, run: str, clients: Sequence[Client], strategy: Strategy, starts: Mapping[int, Broadcast]
) -> tuple[dict[int, Broadcast], list[RoundRecord]]:
    parts, text = checkpoints.read(path, run)
    try:
        sent = {
            index: Broadcast(parts.get(f"trunk {index}", {}), parts[f"head {index}"][""])
            for index in range(len(clients))
        }
    except KeyError as error:
        raise InputError(f"checkpoint {path} lacks {error}; remove it to begin anew") from None
    for index, start in starts.items():
        same_model(f"checkpoint {path}, client {index}", sent[index], start)
    records = list(rounds_from_json(text))
    if [record.round for record in records] != list(range(1, len(records) + 1)):
        raise InputError(f"checkpoint {path} does not hold the rounds from 1 on; remove it to begin anew")
    strategy.load_state_dict(parts.get("strategy", {}))
    for index, client in enumerate(clients):
        if hasattr(client, "load_state_dict"):
            client.load_state_dict(parts.get(f"client {index}", {}))
    return sent, records


def same_model(what: str, given: Broadcast, start: Broadcast) -> None:
    """Raise InputError unless ``given`` has the names, shapes and kinds of ``start``, and finite numbers."""
    pairs = [("head", given.head, start.head)]
    pairs += [(repr(name), given.trunk.get(name, np.empty(0)), values) for name, values in start.trunk.items()]
    if set(given.trunk) != set(start.trunk) or any(own.dtype.kind != one.dtype.kind for _, own, one in pairs):
        raise InputError(f"{what} is of another model; remove it or name another file")
    for name, own, one in pairs:
        _copied(f"{what}: {name}", own, one)
