"""GAdapHead as a strategy of Flower's current API (``flwr.serverapp.strategy.Strategy``).

Each node is sent the shared trunk and the head of its own client, never another's. Flower's node ids change when a
node restarts, so that all state is keyed by ``partition-id``; a node that is new is asked for it first.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError, MissingExtraError
from steelyard.fed.gadaphead import checkpoints
from steelyard.fed.gadaphead.core import second_moment
from steelyard.fed.gadaphead.flower_client import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    MOMENT,
    PARTITION,
    ROUND,
    VARIANCE,
    array_record,
)
from steelyard.fed.gadaphead.grouping import UpdateCosine
from steelyard.fed.gadaphead.layout import Arrays, HeadLayout, head_layout
from steelyard.fed.gadaphead.mixing import AdaptiveMix
from steelyard.fed.gadaphead.rounds import Broadcast, ClientUpdate
from steelyard.fed.gadaphead.strategies import GAdapHead
from steelyard.rng import generator

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ModuleNotFoundError as error:
    raise MissingExtraError("flwr is not installed; install it with: pip install 'steelyard[flower]'") from error

log = logging.getLogger("flwr")

_RUN = "GAdapHeadStrategy"


@dataclass
class FlowerRound:
    """What one round did.

    Attributes:
        groups: Group by client, of all that have reported so far.
        lam: Share of the prototype by client, of those that reported in this round.
        metrics: What the clients sent after training, by client.
        evaluation: What they sent after evaluation, by client.
        failures: Client or node, in words -> why its answer was not used.
    """

    groups: dict[int, int] = field(default_factory=dict)
    lam: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    evaluation: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class GAdapHeadStrategy(Strategy):  # type: ignore[misc]  # flwr is not installed where types are checked
    """Share the trunk with all clients and the head with those whose updates point the same way.

    Args:
        head_keys: Names of the arrays that are the head; or
        head_predicate: Says of a name whether it belongs to the head.
        features_last: Weights of the head are (outputs, features), as torch stores them; False for the other way.
        grouping: Who belongs together; ``UpdateCosine()`` when not given.
        mixing: How strongly heads are mixed; ``AdaptiveMix()`` when not given.
        fraction_train: Share of the connected nodes that train in a round.
        fraction_evaluate: Share of the connected nodes that evaluate in a round; 0 for none.
        min_available_nodes: A round waits until so many nodes are connected. Below the number of clients, so that
            rounds go on when one is lost.
        checkpoint: File (.npz) that the state is written to after every round, and read from when it is there.
        query_timeout: Seconds to wait for a new node's answer to who it is.
        seed: Of the sampling of nodes.

    Attributes:
        rounds: What each round of this process did.
        rounds_done: Rounds finished, those before a checkpoint included.

    Raises:
        InputError: An argument is out of range, or the checkpoint cannot be read.
    """

    def __init__(
        self,
        *,
        head_keys: Collection[str] | None = None,
        head_predicate: Callable[[str], bool] | None = None,
        features_last: bool = True,
        grouping: UpdateCosine | None = None,
        mixing: AdaptiveMix | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_available_nodes: int = 2,
        checkpoint: str | Path | None = None,
        query_timeout: float = 60.0,
        seed: int = 0,
    ) -> None:
        for name, value in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} must be in [0, 1], got {value}")
        if min_available_nodes < 1 or not query_timeout > 0:
            raise InputError(
                f"min_available_nodes must be at least 1 and query_timeout above 0 seconds, got {min_available_nodes} "
                f"and {query_timeout}"
            )
        if (head_keys is None) == (head_predicate is None):
            raise InputError("give either head_keys or head_predicate, to say which arrays are the head")
        self.head_keys, self.head_predicate, self.features_last = head_keys, head_predicate, features_last
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_available_nodes, self.query_timeout, self.seed = min_available_nodes, query_timeout, seed
        self.server = GAdapHead(grouping, mixing)
        self.rounds: list[FlowerRound] = []
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self._layout: HeadLayout | None = None
        self._trunk: Arrays = {}
        self._start: NDArray[Any] = np.empty(0)
        self._client_of: dict[int, int] = {}  # node id -> partition-id
        self._sent: dict[int, int | None] = {}  # node id -> whose head it was sent in this round
        self.rounds_done = 0
        self._saved: Mapping[str, Arrays] | None = None  # a checkpoint, until the model is known
        if self.checkpoint is not None and self.checkpoint.exists():
            self._saved, self.rounds_done = _read_checkpoint(self.checkpoint)

    def summary(self) -> None:
        """Log how the strategy is set."""
        log.info("\t├──> Head: %s", self.head_keys if self.head_keys is not None else "by predicate")
        log.info("\t├──> Grouping: %s", _settings(self.server.grouping))
        log.info("\t├──> Mixing: %s", _settings(self.server.mixing))
        log.info("\t├──> Fraction: train (%.2f) | evaluate (%.2f)", self.fraction_train, self.fraction_evaluate)
        log.info("\t├──> Minimum available nodes: %d", self.min_available_nodes)
        log.info("\t└──> Checkpoint: %s (%d rounds done)", self.checkpoint or "none", self.rounds_done)

    def client_arrays(self, client: int) -> Arrays:
        """Return the model of the client with this ``partition-id``: the shared trunk and its own head.

        Raises:
            InputError: The client has not reported yet.
        """
        if self._layout is None or client not in self.server.sent:
            raise InputError(f"client {client} has not reported yet; known are {sorted(self.server.sent)}")
        return {**self._trunk, **self._layout.unpack(self.server.sent[client].head)}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each sampled node: the trunk and its client's own head.

        Args:
            server_round: Flower's count of the rounds.
            arrays: The model; of the first round only, since the trunk and the heads are kept here.
            config: Sent along, with ``server-round`` and the client whose head the message holds.
            grid: The connected nodes.

        Raises:
            InputError: The head is nothing or everything, or the checkpoint is of another model.
        """
        layout = self._begin(arrays)
        self.rounds.append(FlowerRound())
        nodes = self._sample(grid, self.fraction_train, "train")
        if self.server.sent:
            self._ask(grid, [node for node in nodes if node not in self._client_of])
        self._sent = {node: self._client_of.get(node) for node in nodes}
        shared = {name: Array(values) for name, values in self._trunk.items()}
        return [self._message(layout, shared, node, config, MessageType.TRAIN) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Group the clients that answered, mix their heads and average the trunk; write the checkpoint.

        Args:
            server_round: Flower's count of the rounds.
            replies: Answers. Errors, numbers that are not finite and malformed answers are skipped and named.

        Returns:
            The trunk with the head that new clients start from, and the clients' metrics, averaged with their
            ``num-examples`` as weights; (None, None) when no answer could be used.

        Raises:
            InputError: No answer of the very first round could be used.
        """
        layout = self._known_layout()
        now = self.rounds[-1]
        updates = self._usable(layout, list(replies), now)
        self.rounds_done += 1
        for who, why in now.failures.items():
            log.warning("round %d: %s was skipped: %s", self.rounds_done, who, why)
        if not updates:
            return None, None
        self.server.begin({c: Broadcast(self._trunk, self._start) for c in updates if c not in self.server.sent})
        self.server.aggregate(self.rounds_done, updates)
        self._trunk = {name: np.asarray(values) for name, values in self.server.sent[min(updates)].trunk.items()}
        now.groups, now.lam = dict(self.server.groups), dict(self.server.lam)
        if self.checkpoint is not None:
            self._write_checkpoint(self.checkpoint)
        metrics = _averaged([{EXAMPLES: update.n_steps, **now.metrics[client]} for client, update in updates.items()])
        metrics["groups"] = len(set(now.groups.values()))
        metrics["mean-lam"] = float(np.mean(list(now.lam.values())))
        return array_record({**self._trunk, **layout.unpack(self._start)}), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each sampled node whose client is known: the model that this client would use."""
        layout = self._known_layout()
        nodes = [node for node in self._sample(grid, self.fraction_evaluate, "evaluate") if node in self._client_of]
        shared = {name: Array(values) for name, values in self._trunk.items()}
        return [self._message(layout, shared, node, config, MessageType.EVALUATE) for node in nodes]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the clients' metrics averaged with ``num-examples`` as weights, as Flower's ``FedAvg`` does.

        Those of each client are in ``rounds[-1].evaluation``.
        """
        rows = []
        for message in _in_order(replies):
            node = message.metadata.src_node_id
            try:
                client, row = _metrics(message)
            except InputError as error:
                log.warning("evaluation of %s was skipped: %s", self._name(node), error)
                continue
            self.rounds[-1].evaluation[client] = {key: value for key, value in row.items() if key != EXAMPLES}
            rows.append(row)
        return _averaged(rows) if rows else None

    def _known_layout(self) -> HeadLayout:
        if self._layout is None:
            raise InputError("the strategy has not trained yet: configure_train comes first")
        return self._layout

    def _begin(self, record: ArrayRecord) -> HeadLayout:
        """Take the model of the first round, or what the checkpoint has in its place."""
        if self._layout is not None:
            return self._layout
        arrays = {name: array.numpy() for name, array in record.items()}
        layout = head_layout(
            arrays, head_keys=self.head_keys, head_predicate=self.head_predicate, features_last=self.features_last
        )
        layout.check(arrays)
        self._trunk, self._start = layout.split(arrays)
        if self._saved is not None:
            self._resume(layout, self._saved)
            self._saved = None
        self._layout = layout
        return layout

    def _write_checkpoint(self, path: Path) -> None:
        # all clients have one trunk: it is written once, not once for each
        server = {name: values for name, values in self.server.state_dict().items() if not name.startswith("trunk/")}
        parts = {"trunk": self._trunk, "start": {"head": self._start}, "server": server}
        checkpoints.write(path, _RUN, parts, json.dumps({"rounds": self.rounds_done}))

    def _resume(self, layout: HeadLayout, saved: Mapping[str, Arrays]) -> None:
        """Take over a checkpoint after looking whether it is of this model."""
        trunk, server = saved.get("trunk", {}), dict(saved.get("server", {}))
        start = saved.get("start", {}).get("head", np.empty(0))
        heads = [values for name, values in server.items() if name.startswith(("head/", "last/"))]
        if any(head.shape != layout.head_shape or head.dtype.kind != "f" for head in (start, *heads)):
            raise InputError(f"checkpoint {self.checkpoint} is of another model; remove it or name another file")
        for head in (start, *heads):
            layout.check({**trunk, **layout.unpack(head)})
        clients = np.atleast_1d(server.get("clients", np.empty(0, dtype=np.int64)))
        if clients.dtype.kind != "i":
            raise InputError(f"checkpoint {self.checkpoint} cannot be read: its clients are no numbers")
        for client in clients.tolist():
            server.update({f"trunk/{client}/{name}": values for name, values in trunk.items()})
        self.server.load_state_dict(server)
        self._trunk, self._start = dict(trunk), start

    def _sample(self, grid: Grid, fraction: float, stream: str) -> list[int]:
        """Return nodes; by client where it is known, so that equal seeds sample equal clients."""
        if fraction == 0.0:
            return []
        while len(nodes := set(grid.get_node_ids())) < self.min_available_nodes:
            log.info("Waiting for nodes to connect: %d of %d", len(nodes), self.min_available_nodes)
            time.sleep(1.0)
        ordered = sorted(nodes, key=lambda node: (self._client_of.get(node, np.inf), node))
        size = max(1, round(fraction * len(ordered)))
        draw = generator("fed", f"flower nodes {stream} {self.rounds_done}", self.seed)
        return [ordered[i] for i in sorted(draw.choice(len(ordered), size=size, replace=False))]

    def _ask(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Learn whose nodes the new ones are; one that does not answer is sent the head of a new client."""
        if not nodes:
            return
        queries = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        for message in _in_order(grid.send_and_receive(queries, timeout=self.query_timeout)):
            try:
                self._client_of[message.metadata.src_node_id] = _client(_only_metrics(message))
            except InputError as error:
                log.warning("node %d did not say who it is: %s", message.metadata.src_node_id, error)

    def _message(
        self, layout: HeadLayout, shared: Mapping[str, Array], node: int, config: ConfigRecord, kind: str
    ) -> Message:
        client = self._client_of.get(node)
        own = self.server.sent[client].head if client in self.server.sent else self._start
        head = {name: Array(values) for name, values in layout.unpack(own).items()}
        record = ArrayRecord()
        for name in layout.shapes:  # the arrays of the trunk are the same objects in all messages: hashed once
            record[name] = shared[name] if name in shared else head[name]
        meant = {} if client is None else {PARTITION: client}
        settings = ConfigRecord({**config, ROUND: self.rounds_done + (kind == MessageType.TRAIN), **meant})
        return Message(RecordDict({ARRAYS: record, CONFIG: settings}), node, kind)

    def _usable(self, layout: HeadLayout, replies: list[Message], now: FlowerRound) -> dict[int, ClientUpdate]:
        """Return the updates by client; name in ``now`` whom nothing could be used of."""
        updates: dict[int, ClientUpdate] = {}
        silent = set(self._sent) - {message.metadata.src_node_id for message in replies}
        for node in sorted(silent):
            now.failures[self._name(node)] = "it did not answer in time"
        for message in _in_order(replies, first=[node for node, client in self._sent.items() if client is not None]):
            name = self._name(message.metadata.src_node_id)
            try:
                client, update = self._read(layout, message)
                if client in updates:
                    raise InputError(f"another node has answered as client {client} in this round")
            except InputError as error:
                now.failures[name] = str(error)
            else:
                updates[client], now.metrics[client] = update, dict(update.metrics)
        for node in [*silent, *(message.metadata.src_node_id for message in replies if message.has_error())]:
            self._client_of.pop(node, None)  # it may come back as somebody else: it is asked again
        if not (updates or self.server.sent) and any(not message.has_error() for message in replies):
            raise InputError(f"no answer of the first round can be used; {_told(now.failures)}")
        return updates

    def _read(self, layout: HeadLayout, message: Message) -> tuple[int, ClientUpdate]:
        """Return the client and its update, which the server counts from the head that was sent."""
        client, metrics = _metrics(message)
        node = message.metadata.src_node_id
        meant = self._sent.get(node)
        self._client_of[node] = client
        if meant is None and client in self.server.sent:
            raise InputError(f"it is client {client}, which was not known, and trained a new client's head")
        if meant is not None and meant != client:
            raise InputError(f"it is client {client} now and was sent the head of client {meant}")
        if VARIANCE not in metrics:
            raise InputError(
                f"the answer has no {VARIANCE!r}; use train_reply of steelyard.fed.gadaphead.flower_client"
            )
        variance = metrics.pop(VARIANCE)
        if not isinstance(variance, int | float) or not 0 <= variance < np.inf:
            raise InputError(f"{VARIANCE!r} must be a finite number of at least 0, got {variance}")
        arrays = _arrays(message, ARRAYS)
        layout.check(arrays)
        typed = layout.typed(arrays)
        if any(values.dtype != layout.types[name] for name, values in arrays.items()):
            layout.check(typed)  # a number may be too large for a smaller type
        trunk, head = layout.split(typed)
        steps = int(metrics.pop(EXAMPLES))
        moment = _moment(message, layout.head_shape[0]) if MOMENT in message.content else None
        return client, ClientUpdate(trunk, head, None, float(variance), steps, moment, metrics)

    def _name(self, node: int) -> str:
        client = self._client_of.get(node)
        return f"node {node}" if client is None else f"client {client} (node {node})"


def _in_order(replies: Iterable[Message], first: Collection[int] = ()) -> list[Message]:
    """Return messages by node, those of the nodes ``first`` before the others."""
    return sorted(replies, key=lambda m: (m.metadata.src_node_id not in first, m.metadata.src_node_id))


def _arrays(message: Message, key: str) -> Arrays:
    if key not in message.content.array_records:
        raise InputError(f"the answer has no arrays under {key!r}")
    try:
        return {name: array.numpy() for name, array in message.content.array_records[key].items()}
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise InputError(f"the arrays under {key!r} cannot be read: {error}") from error


def _moment(message: Message, features: int) -> NDArray[np.float64]:
    moment = _arrays(message, MOMENT).get(MOMENT, np.empty(0))
    if moment.shape != (features, features):
        raise InputError(
            f"the second moment has shape {moment.shape}, but heads have {features} features with the bias"
        )
    if moment.dtype.kind not in "fiu" or not np.isfinite(moment).all():
        raise InputError("the second moment holds values that are not finite numbers")
    return second_moment(moment, features)


def _only_metrics(message: Message) -> MetricRecord:
    if message.has_error():
        raise InputError(f"it failed: {message.error.reason}")
    records = list(message.content.metric_records.values())
    if len(records) != 1:
        raise InputError(f"the answer holds {len(records)} metric records, not one")
    return records[0]


def _client(record: MetricRecord) -> int:
    client = record.get(PARTITION)
    if not isinstance(client, int) or client < 0:
        raise InputError(f"the answer has {PARTITION}={client!r}; send the client's number, as introduction() does")
    return client


def _metrics(message: Message) -> tuple[int, dict[str, Any]]:
    """Return the client that answers and its numbers, ``num-examples`` among them."""
    record = _only_metrics(message)
    client = _client(record)
    examples = record.get(EXAMPLES)
    if not isinstance(examples, int | float) or not 1 <= examples < np.inf:
        raise InputError(f"the answer has {EXAMPLES}={examples!r}, which must be a number of at least 1")
    return client, {name: value for name, value in record.items() if name != PARTITION}


def _averaged(rows: Sequence[Mapping[str, Any]]) -> MetricRecord:
    """Return each metric's mean over the rows that have it, with their ``num-examples`` as weights."""
    averages = MetricRecord()
    for name in sorted({name for row in rows for name in row} - {EXAMPLES}):
        held = [row for row in rows if name in row]
        if len({np.shape(row[name]) for row in held}) == 1:
            mean = np.average([row[name] for row in held], axis=0, weights=[row[EXAMPLES] for row in held])
            averages[name] = mean.tolist()
    return averages


def _read_checkpoint(path: Path) -> tuple[dict[str, Arrays], int]:
    parts, text = checkpoints.read(path, _RUN)
    try:
        rounds = int(json.loads(text)["rounds"])
        if rounds < 0:
            raise ValueError(f"it has {rounds} rounds")
        return parts, rounds
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error}; remove it to begin anew") from None


def _settings(part: UpdateCosine | AdaptiveMix) -> str:
    return ", ".join(f"{name}={value}" for name, value in vars(part).items() if not name.startswith("_"))


def _told(skipped: Mapping[str, str]) -> str:
    return "; ".join(f"{who}: {why}" for who, why in skipped.items())
