"""What a server does with a round's updates: nothing, one average, a shared trunk, or heads mixed within groups."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.fed.gadaphead.core import second_moment
from steelyard.fed.gadaphead.grouping import Linkage, UpdateCosine
from steelyard.fed.gadaphead.mixing import AdaptiveMix
from steelyard.fed.gadaphead.rounds import Broadcast, ClientUpdate, Trunk
from steelyard.fed.gadaphead.rows import as_row, is_finite

Array = NDArray[Any]
Scope = Literal["all", "group"]


def average(arrays: Mapping[int, Array], weights: Mapping[int, float]) -> Array:
    """Return the weighted mean of arrays of one shape, summed by ascending client; equal weights if all are 0.

    Equal arrays come out unchanged, and a single one bit for bit. Integers are rounded back to theirs.
    """
    clients = sorted(arrays)
    total = sum(weights[client] for client in clients)
    first = np.asarray(arrays[clients[0]])
    kind = first.dtype if first.dtype.kind == "f" else np.dtype(np.float64)
    mean = first.astype(kind)
    for client in clients[1:]:
        share = weights[client] / total if total > 0 else 1.0 / len(clients)
        mean += kind.type(share) * (np.asarray(arrays[client]).astype(kind, copy=False) - first)
    return np.asarray(mean if first.dtype.kind == "f" else np.rint(mean).astype(first.dtype))  # 0-d stays an array


class Local:
    """No communication: each client keeps its own trunk and head."""

    uploads: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self.lam: dict[int, float] = {}
        self.sent: dict[int, Broadcast] = {}

    def begin(self, starts: Mapping[int, Broadcast]) -> None:
        """Meet clients, each with what it starts from."""
        self.sent.update({client: starts[client] for client in sorted(starts)})

    def aggregate(self, round: int, updates: Mapping[int, ClientUpdate]) -> dict[int, Broadcast]:
        """Return what each known client gets next.

        Args:
            round: Number of the round, from 1.
            updates: By client; those that failed or sat out are not in it.

        Raises:
            InputError: Updates that cannot be combined.
        """
        self.sent.update({client: Broadcast(updates[client].trunk, updates[client].head) for client in sorted(updates)})
        return dict(self.sent)

    def state_dict(self) -> dict[str, Array]:
        """Return all that it remembers, as arrays by name."""
        state: dict[str, Array] = {"clients": np.array(sorted(self.sent), dtype=np.int64)}
        for client, (trunk, head) in self.sent.items():
            state[f"head/{client}"] = head
            state.update({f"trunk/{client}/{name}": values for name, values in trunk.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: The state lacks a part.
        """
        try:
            clients = [int(client) for client in state["clients"]]
            self.sent = {
                client: Broadcast(part(state, f"trunk/{client}/"), state[f"head/{client}"]) for client in clients
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"state of {type(self).__name__} cannot be read: {error}") from None


def part(state: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the entries of a state whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}


class SharedTrunk(Local):
    """The trunk is the average over all clients that reported, by steps; each client keeps its head (FedPer).

    With clients that train head and trunk in turns it is FedRep.
    """

    uploads = frozenset({"trunk"})

    def aggregate(self, round: int, updates: Mapping[int, ClientUpdate]) -> dict[int, Broadcast]:
        """Return the shared trunk with each client's own head."""
        super().aggregate(round, updates)
        if updates:
            trunk = average_trunk(updates)
            self.sent = {client: Broadcast(trunk, sent.head) for client, sent in self.sent.items()}
        return dict(self.sent)


class FedAvg(SharedTrunk):
    """One model for all, the average by steps. With clients that pull towards it while they train it is FedProx."""

    uploads = frozenset({"trunk", "head"})

    def aggregate(self, round: int, updates: Mapping[int, ClientUpdate]) -> dict[int, Broadcast]:
        """Return the average for every client; heads must have one shape."""
        shapes = {np.shape(sent.head): client for client, sent in self.sent.items()}
        shapes.update({np.shape(update.head): client for client, update in updates.items()})
        if len(shapes) > 1:
            told = ", ".join(f"{shape} (client {client})" for shape, client in shapes.items())
            raise InputError(f"heads of different shapes have no average: {told}; use SharedTrunk or GAdapHead")
        super().aggregate(round, updates)
        if updates:
            weights = {client: float(update.n_steps) for client, update in updates.items()}
            head = average({client: update.head for client, update in updates.items()}, weights)
            self.sent = {client: Broadcast(sent.trunk, head) for client, sent in self.sent.items()}
        return dict(self.sent)


def average_trunk(updates: Mapping[int, ClientUpdate]) -> Trunk:
    """Return the average of the trunks by steps.

    Raises:
        InputError: Trunks of different names or shapes.
    """
    clients = sorted(updates)
    first = updates[clients[0]].trunk
    weights = {client: float(updates[client].n_steps) for client in clients}
    for client in clients[1:]:
        theirs = updates[client].trunk
        odd = set(first) ^ set(theirs)
        odd |= {name for name in set(first) & set(theirs) if np.shape(first[name]) != np.shape(theirs[name])}
        if odd:
            raise InputError(f"trunks of clients {clients[0]} and {client} differ in name or shape at {min(odd)!r}")
    return {name: average({client: updates[client].trunk[name] for client in clients}, weights) for name in first}


class GAdapHead(SharedTrunk):
    """A shared trunk, and heads mixed with the prototype of their group as strongly as their uncertainty asks for.

    Heads of different shapes are never in one group. Prototypes are of the heads as they were last uploaded, those of
    absent clients with less weight; a client's own head is mixed in the rounds in which it reports.

    Args:
        grouping: Finds the groups; default :class:`UpdateCosine` as it comes.
        mixing: Finds the shares; default :class:`AdaptiveMix` as it comes.
        trunk: Average the trunk over "all" clients or over each "group"; clients of different groups then stop sharing.
    """

    def __init__(
        self, grouping: UpdateCosine | None = None, mixing: AdaptiveMix | None = None, trunk: Scope = "all"
    ) -> None:
        super().__init__()
        if trunk not in ("all", "group"):
            raise InputError(f"trunk must be 'all' or 'group', got {trunk!r}")
        self.grouping = UpdateCosine() if grouping is None else grouping
        self.mixing = AdaptiveMix() if mixing is None else mixing
        self.trunk = trunk
        self.mismatch: dict[int, float] = {}
        needs_variance = {"variance"} if self.mixing.strength is None else set()
        needs_moment = {"second_moment"} if self.mixing.sigma and self.mixing.strength is None else set()
        self.uploads = frozenset({"trunk", "head", "update"} | needs_variance | needs_moment)
        self._heads: dict[int, Array] = {}
        self._moments: dict[int, Array | None] = {}
        self._seen: dict[int, int] = {}

    def begin(self, starts: Mapping[int, Broadcast]) -> None:
        """Meet clients; warns if they start from different trunks, whose heads mean different things."""
        super().begin(starts)
        trunks = [self.sent[client].trunk for client in sorted(self.sent)]
        apart = (name for trunk in trunks[1:] for name in trunk if not _same(trunk[name], trunks[0].get(name)))
        if next(apart, None) is not None:
            warnings.warn(
                "clients start from different trunks, so their first heads cannot be compared: start them from one, or "
                "leave the first round to the warm-up",
                RuntimeWarning,
                stacklevel=3,
            )

    def aggregate(self, round: int, updates: Mapping[int, ClientUpdate]) -> dict[int, Broadcast]:
        """Return the shared trunk with each client's mixed head; absent clients keep the head that they were sent."""
        if not updates:
            return dict(self.sent)
        reported = sorted(updates)
        signals = {client: self._signal(client, updates[client]) for client in reported}
        assigned = self.grouping.assign(signals)
        self.groups = dict(zip(assigned.clients, assigned.labels.tolist(), strict=True))
        for client in reported:
            self._heads[client], self._seen[client] = updates[client].head, round
            self._moments[client] = updates[client].feature_second_moment
        self.mixing.smooth({client: updates[client].variance for client in reported})
        ages = {client: max(0, round - seen) for client, seen in self._seen.items()}
        mixed, lam, mismatch = self.mixing.mix(round, self._heads, self.groups, self._moments, ages)
        self.lam = {client: lam[client] for client in reported}
        self.mismatch = {client: mismatch[client] for client in reported}
        before = dict(self.sent)
        super().aggregate(round, updates)
        if self.trunk == "group":
            self._share_within_groups(updates, before)
        for client in reported:
            self.sent[client] = Broadcast(self.sent[client].trunk, mixed[client])
        return dict(self.sent)

    def _signal(self, client: int, update: ClientUpdate) -> Array:
        if self.grouping.signal == "head":
            return update.head
        if update.update is not None:
            return update.update
        if client not in self.sent:
            raise InputError(f"client {client} sent no update and is not known: call begin with what it started from")
        return update.head - self.sent[client].head

    def _share_within_groups(self, updates: Mapping[int, ClientUpdate], before: Mapping[int, Broadcast]) -> None:
        """Replace the trunk of each client that has a group by its group's; it stays if nobody of it reported."""
        for label in sorted(set(self.groups.values())):
            members = [client for client, group in self.groups.items() if group == label]
            own = {client: updates[client] for client in members if client in updates}
            trunk = average_trunk(own) if own else None
            for client in members:
                kept = before[client].trunk if trunk is None else trunk
                self.sent[client] = Broadcast(kept, self.sent[client].head)

    def state_dict(self) -> dict[str, Array]:
        """Return all that it remembers, as arrays by name."""
        state = super().state_dict()
        state["seen"] = np.array(sorted(self._seen.items()), dtype=np.int64).reshape(-1, 2)
        state["groups"] = np.array(sorted(self.groups.items()), dtype=np.int64).reshape(-1, 2)
        for client, head in self._heads.items():
            state[f"last/{client}"] = head
            moment = self._moments[client]
            if moment is not None:
                state[f"moment/{client}"] = moment
        state.update({f"grouping/{name}": values for name, values in self.grouping.state_dict().items()})
        state.update({f"mixing/{name}": values for name, values in self.mixing.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: The state lacks a part, or its parts do not fit one another.
        """
        super().load_state_dict(state)
        grouping, mixing = part(state, "grouping/"), part(state, "mixing/")
        try:
            self._seen = {int(client): int(seen) for client, seen in state["seen"]}
            self.groups = {int(client): int(label) for client, label in state["groups"]}
            self._heads = {client: state[f"last/{client}"] for client in self._seen}
            given = {client: state.get(f"moment/{client}") for client in self._seen}
            known = [sorted(map(int, table)) for table in (grouping["clients"][:, 0], mixing["clients"])]
            shapes = [np.shape(grouping[f"smoothed/{client}"]) for client in self._heads]
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(f"state of {type(self).__name__} cannot be read: {error}") from None
        heads = self._heads.values()
        if known != [sorted(self._seen)] * 2 or shapes != [head.shape for head in heads]:
            raise InputError(f"state of {type(self).__name__} cannot be read: its parts are not of the same clients")
        if not all(is_finite(as_row(head, "state")) for head in heads):
            raise InputError(f"state of {type(self).__name__} cannot be read: a head is not finite")
        self._moments = {
            client: None if moment is None else second_moment(moment, len(self._heads[client]))
            for client, moment in given.items()
        }
        self.grouping.load_state_dict(grouping)
        self.mixing.load_state_dict(mixing)


def _same(first: Array, second: Array | None) -> bool:
    return second is not None and (first is second or np.array_equal(first, second))


class Clustered(GAdapHead):
    """Each group has one head, the mean of its clients' (clustered federated learning); the trunk is shared by all.

    Args:
        grouping: Finds the groups; default a :class:`UpdateCosine` with ``linkage``.
        linkage: "average", or "sattler" for the recursive bipartition of Sattler et al. (2020).
        trunk: Average the trunk over "all" clients or over each "group".
    """

    def __init__(
        self, grouping: UpdateCosine | None = None, linkage: Linkage = "sattler", trunk: Scope = "all"
    ) -> None:
        own = UpdateCosine(linkage=linkage) if grouping is None else grouping
        super().__init__(own, AdaptiveMix(warmup=0, leave_one_out=False, strength=1.0), trunk)
