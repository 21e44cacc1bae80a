"""With whom a client shares: groups of clients whose head updates point the same way.

The paper's abstract settles the idea, grouping by the geometry of local updates. Average linkage, the smoothing and
the hysteresis are a reconstruction; the bipartition follows Sattler et al., "Clustered Federated Learning" (2020).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from steelyard.errors import InputError
from steelyard.fed.gadaphead.rows import Row, as_row, gram, is_finite

Linkage = Literal["average", "sattler"]
Signal = Literal["update", "head"]
Floats = NDArray[np.float64]

LINKAGES = ("average", "sattler")
SIGNALS = ("update", "head")


class GroupAssignment(NamedTuple):
    """Who is with whom.

    Attributes:
        labels: Group of each client, shape (N,).
        cosine: Of each pair's updates, shape (N, N); 1 on the diagonal, 0 beside an update of norm 0 and between
            updates of different lengths.
        clients: The client of each row, ascending.
    """

    labels: NDArray[np.int64]
    cosine: Floats
    clients: tuple[int, ...]


def group_clients(
    updates: Any,
    *,
    threshold: float = 1.0,
    linkage: Linkage = "average",
    stationary: float = 0.75,
    moving: float = 0.0,
    clients: Sequence[int] | None = None,
) -> GroupAssignment:
    """Group clients by the cosine of their updates.

    ``average`` merges groups while the mean of 1 - cos between them is below ``threshold``. ``sattler`` starts from one
    group and splits a group in two where the largest cosine across is smallest, as long as 1 minus that cosine is at
    least ``threshold`` (Sattler's gamma_max is sqrt(threshold / 2)) and its clients want to move but not together. A
    client whose update is zero is a group of its own. Groups are numbered by their first client; of pairs that are
    equally close, the one with the lower clients comes first, so order the rows by client.

    Args:
        updates: Shape (N, d), or N arrays of one shape; more dimensions are flattened.
        threshold: In (0, 2].
        linkage: "average" or "sattler".
        stationary: For ``sattler``: a group may split if its mean update is below this share of its largest one.
            Sattler et al. use an absolute bound that depends on the model; this default is a reconstruction.
        moving: For ``sattler``: and if its largest update is longer than this.
        clients: Name of each row in messages and in the result; default 0..N-1.

    Raises:
        InputError: Settings outside their range, updates of different shapes, or an update that is not finite.
    """
    check_grouping(threshold, linkage)
    named = tuple(range(len(updates))) if clients is None else tuple(clients)
    if not named or len(named) != len(updates):
        raise InputError(f"updates must be one for each of at least one client, got {len(updates)}")
    shapes = {np.shape(update): client for client, update in zip(named, updates, strict=True)}
    if len(shapes) > 1:
        told = ", ".join(f"{shape} (client {client})" for shape, client in list(shapes.items())[:3])
        raise InputError(f"updates must have one shape, got {told}: group the clients of each shape apart")
    products, cosine, moved = _products(_as_rows(updates), named)
    labels = np.full(len(named), -1, dtype=np.int64)
    awake = np.flatnonzero(moved)
    if linkage == "average":
        parts = _average(cosine, awake, threshold)
    else:
        parts = _bipartition(products, cosine, awake, threshold, stationary, moving)
    alone = [np.array([i]) for i in np.flatnonzero(~moved)]
    for number, part in enumerate([*parts, *alone]):
        labels[part] = number
    return GroupAssignment(_numbered(labels), cosine, named)


def check_grouping(threshold: float, linkage: str) -> None:
    """Raise InputError for a threshold outside (0, 2] or an unknown linkage."""
    if not 0 < threshold <= 2:
        raise InputError(f"threshold must lie in (0, 2], the range of 1 - cosine, got {threshold}")
    if linkage not in LINKAGES:
        raise InputError(f"linkage must be one of {', '.join(LINKAGES)}, got {linkage!r}")


def _as_rows(updates: Any) -> Sequence[Row]:
    if isinstance(updates, np.ndarray) and updates.ndim == 2 and updates.dtype in (np.float32, np.float64):
        return cast(Sequence[Row], updates)
    rows = [as_row(update, "updates") for update in updates]
    common = np.result_type(*rows)
    return [row.astype(common, copy=False) for row in rows]


def _products(rows: Sequence[Row], clients: Sequence[int]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the Gram matrix, the cosines, and which rows are not zero; rows of any length have a direction."""
    products = gram(rows)
    norms = np.diag(products)
    tiny = np.finfo(rows[0].dtype).tiny * 1e6
    for client, row, norm in zip(clients, rows, norms, strict=True):
        if not np.isfinite(norm) and not is_finite(row):
            raise InputError(f"update of client {client} holds values that are not finite; leave the client out")
    odd = ~np.isfinite(norms) | (norms < tiny)
    if not any(row.any() for row, is_odd in zip(rows, odd, strict=True) if is_odd):
        return products, *_cosine(products)
    largest = np.array([float(np.abs(row).max(initial=0.0)) for row in rows])
    scaled = gram([row.astype(np.float64) / (top or 1.0) for row, top in zip(rows, largest, strict=True)])
    with np.errstate(over="ignore", under="ignore"):
        return scaled * largest[:, None] * largest, *_cosine(scaled)


def _cosine(products: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    norms = np.sqrt(np.diag(products))
    length = np.where(norms > 0, norms, 1.0)
    cosine: Floats = np.clip(products / length[:, None] / length[None, :], -1.0, 1.0)
    np.fill_diagonal(cosine, 1.0)
    return cosine, norms > 0


def _average(cosine: Floats, members: NDArray[np.int64], threshold: float) -> list[NDArray[np.int64]]:
    if len(members) < 2:
        return [members] if len(members) else []
    apart = 1.0 - cosine[np.ix_(members, members)]
    tree = hierarchy.average(squareform((apart + apart.T) / 2, checks=False))
    cut = hierarchy.fcluster(tree, np.nextafter(threshold, 0), criterion="distance")
    return [members[cut == label] for label in np.unique(cut)]


def _bipartition(
    products: Floats, cosine: Floats, members: NDArray[np.int64], threshold: float, stationary: float, moving: float
) -> list[NDArray[np.int64]]:
    if len(members) < 2:
        return [members] if len(members) else []
    block = products[np.ix_(members, members)]
    together, largest = math.sqrt(max(0.0, float(block.mean()))), math.sqrt(float(np.diag(block).max()))
    if together >= stationary * largest or largest <= moving:
        return [members]
    # The split with the smallest largest cosine across cuts the last link of single linkage.
    apart = 1.0 - cosine[np.ix_(members, members)]
    tree = hierarchy.single(squareform((apart + apart.T) / 2, checks=False))
    if tree[-1, 2] < threshold:
        return [members]
    side = hierarchy.cut_tree(tree, n_clusters=2)[:, 0]
    halves = [members[side == label] for label in (0, 1)]
    return [part for half in halves for part in _bipartition(products, cosine, half, threshold, stationary, moving)]


def _numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number groups by their first client."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int64)[inverse]


class UpdateCosine:
    """Groups that last: smoothed updates, new groups every few rounds, and no change of group on a whim.

    Args:
        threshold: See :func:`group_clients`.
        ema: Weight in [0, 1) of the past in the smoothed signal.
        linkage: See :func:`group_clients`.
        every: Rounds between groupings; clients that appear in between are alone.
        hysteresis: A client changes its group once this many groupings in a row put it there; 1: at once.
        signal: What is compared, "update" (of the head in this round) or "head".

    Raises:
        InputError: A setting outside its range.
    """

    def __init__(
        self,
        threshold: float = 1.0,
        ema: float = 0.7,
        linkage: Linkage = "average",
        every: int = 1,
        hysteresis: int = 2,
        signal: Signal = "update",
    ) -> None:
        check_grouping(threshold, linkage)
        if not 0 <= ema < 1:
            raise InputError(f"ema must lie in [0, 1), got {ema}")
        if every < 1 or hysteresis < 1:
            raise InputError(f"every and hysteresis must be at least 1, got {every} and {hysteresis}")
        if signal not in SIGNALS:
            raise InputError(f"signal must be one of {', '.join(SIGNALS)}, got {signal!r}")
        self.threshold, self.ema, self.linkage = threshold, ema, linkage
        self.every, self.hysteresis, self.signal = every, hysteresis, signal
        self._smoothed: dict[int, Row] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._labels: dict[int, int] = {}
        self._proposed: dict[int, int] = {}
        self._streak: dict[int, int] = {}
        self._calls = 0

    def assign(self, signals: Mapping[int, Any]) -> GroupAssignment:
        """Take this round's signals, by client, and return the groups of all clients seen so far.

        A signal that is all zero (the client did not train) leaves the past of its client as it is. Clients whose
        signals differ in shape are never together.

        Raises:
            InputError: A signal that is not finite or has another shape than the client's before; nothing is changed.
        """
        rows = {client: as_row(signals[client], "signals") for client in sorted(signals)}
        for client, row in rows.items():
            shape = np.shape(signals[client])
            if not is_finite(row):
                raise InputError(f"update of client {client} holds values that are not finite; leave the client out")
            if self._shapes.get(client, shape) != shape:
                raise InputError(f"update of client {client} has shape {shape}, before it had {self._shapes[client]}")
        for client, row in rows.items():
            self._shapes[client] = np.shape(signals[client])
            self._smooth(client, row)
        clients = tuple(sorted(self._smoothed))
        if not clients:
            raise InputError("signals hold no client")
        raw, cosine = self._raw(clients)
        if self._calls % self.every == 0:
            self._settle(clients, raw)
        self._calls += 1
        for client in clients:
            if client not in self._labels:
                self._labels[client] = self._proposed[client] = self._free()
                self._streak[client] = 0
        return GroupAssignment(np.array([self._labels[client] for client in clients]), cosine, clients)

    def _smooth(self, client: int, row: Row) -> None:
        if client not in self._smoothed or not self._smoothed[client].any():
            self._smoothed[client] = row.copy()
        elif row.any():
            past = self._smoothed[client]
            past *= self.ema
            past += (1 - self.ema) * row

    def _raw(self, clients: tuple[int, ...]) -> tuple[NDArray[np.int64], Floats]:
        """Group the smoothed signals anew, the clients of each shape apart."""
        labels = np.zeros(len(clients), dtype=np.int64)
        cosine = np.eye(len(clients))
        for shape in sorted({self._shapes[client] for client in clients}):
            where = np.array([i for i, client in enumerate(clients) if self._shapes[client] == shape])
            own = [clients[i] for i in where]
            found = group_clients(
                [self._smoothed[client] for client in own],
                threshold=self.threshold,
                linkage=self.linkage,
                clients=own,
            )
            labels[where] = found.labels + len(clients) * (1 + int(labels.max()))
            cosine[np.ix_(where, where)] = found.cosine
        return labels, cosine

    def _settle(self, clients: tuple[int, ...], raw: NDArray[np.int64]) -> None:
        """Name the new groups after the last ones that they share most clients with, and move who stays put."""
        members = {label: [c for c, own in zip(clients, raw, strict=True) if own == label] for label in np.unique(raw)}
        overlaps = Counter(
            (label, self._proposed[client])
            for label, own in members.items()
            for client in own
            if client in self._proposed
        )
        names: dict[int, int] = {}
        for (label, old), _ in sorted(
            overlaps.items(), key=lambda item: (-item[1], item[0][1], members[item[0][0]][0])
        ):
            if label not in names and old not in names.values():
                names[label] = old
        free = self._free()
        for label in sorted(members, key=lambda label: members[label][0]):
            if label not in names:
                names[label], free = free, free + 1
            for client in members[label]:
                self._propose(client, names[label])

    def _propose(self, client: int, label: int) -> None:
        again = self._proposed.get(client) == label
        self._streak[client] = self._streak[client] + 1 if again else 1
        self._proposed[client] = label
        if client not in self._labels or self._streak[client] >= self.hysteresis:
            self._labels[client] = label

    def _free(self) -> int:
        return 1 + max([-1, *self._labels.values(), *self._proposed.values()])

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that it remembers, as arrays by name."""
        clients = sorted(self._smoothed)
        table = [[c, self._labels[c], self._proposed[c], self._streak[c]] for c in clients]
        state: dict[str, NDArray[Any]] = {
            "clients": np.array(table, dtype=np.int64).reshape(-1, 4),
            "calls": np.array(self._calls),
        }
        for client in clients:
            state[f"smoothed/{client}"] = self._smoothed[client].reshape(self._shapes[client])
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: The state lacks a part, or its parts do not fit one another.
        """
        try:
            table = np.asarray(state["clients"], dtype=np.int64).reshape(-1, 4).tolist()
            signals = {client: np.asarray(state[f"smoothed/{client}"]) for client, *_ in table}
            calls = int(state["calls"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise InputError(f"state of the grouping cannot be read: {error}") from None
        smoothed = {client: as_row(signal, "state").copy() for client, signal in signals.items()}
        kinds = {(label, signals[client].shape) for client, label, _, _ in table}
        if not all(map(is_finite, smoothed.values())) or len(kinds) > len({label for label, _ in kinds}):
            raise InputError(
                "state of the grouping cannot be read: its updates are not finite or of two shapes a group"
            )
        self._calls, self._smoothed = calls, smoothed
        self._shapes = {client: signal.shape for client, signal in signals.items()}
        self._labels = {client: label for client, label, _, _ in table}
        self._proposed = {client: label for client, _, label, _ in table}
        self._streak = {client: streak for client, _, _, streak in table}


def members_of(labels: Iterable[int]) -> list[NDArray[np.int64]]:
    """Return the rows of each group, by label."""
    array = np.asarray(list(labels))
    return [np.flatnonzero(array == label) for label in np.unique(array)]
