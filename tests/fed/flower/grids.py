"""A grid in this process: real Flower messages, sent as bytes to real client apps, on nodes that can be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto

from steelyard.fed.gadaphead import flower_client as client_side

WIDTH = 3


def carried(message: Message) -> Message:
    """Return a message as it comes out of the wire."""
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


@dataclass
class Node:
    """A node: its client's app and settings; what it was sent is kept."""

    app: ClientApp
    config: dict[str, Any]
    received: list[Message] = field(default_factory=list)


@dataclass
class FakeGrid:
    """Nodes by id. ``lost`` answer with Flower's error, ``silent`` not at all."""

    nodes: dict[int, Node] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            arrived = carried(message)
            self.nodes[node].received.append(arrived)
            if node in self.silent:
                continue
            context = Context(1, node, self.nodes[node].config, RecordDict(), {})
            try:
                if node in self.lost:
                    raise ConnectionError("the node is gone")
                reply = carried(self.nodes[node].app(arrived, context))
            except Exception as error:
                reply = Message(Error(code=0, reason=str(error)), reply_to=arrived)
            replies.append(reply)
        return replies[::-1]  # answers come in any order


def node(train: Callable[..., Message], client: int | None, introduces: bool = True) -> Node:
    """A node of ``client`` whose app trains with ``train(message, context)``."""
    app = ClientApp()
    app.train()(train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        head = client_side.received_arrays(message, context)["head.weight"]
        return client_side.evaluate_reply(
            message, context, {"first": float(head[0, 0])}, num_examples=1 + (client or 0)
        )

    if introduces:
        app.query()(client_side.introduction)
    return Node(app, {} if client is None else {"partition-id": client})


def target(client: int) -> np.ndarray:
    """Clients 0-2 and 3-5 have near heads each."""
    base = np.array([[1.0, 2.0, 0.0], [-1.0, 0.5, 2.0]])[client // 3]
    return base + 0.1 * np.random.default_rng(client).normal(size=WIDTH)


def learner(client: int, **odd: Any) -> Callable[[Message, Context], Message]:
    """A client that moves its head half of the way to its target; ``odd`` replaces what it sends."""

    def train(message: Message, context: Context) -> Message:
        model = client_side.received_arrays(message, context)
        head = model["head.weight"] + 0.5 * (target(client)[None] - model["head.weight"])
        new = {
            "trunk": model["trunk"] + client,
            "seen": model["seen"] + 1,
            "head.weight": head,
            **odd.pop("arrays", {}),
        }
        sent = {"num_examples": 10, "variance": 0.05, "metrics": {"loss": float(client)}, **odd}
        return client_side.train_reply(message, context, new, **sent)

    return train


def start() -> Any:
    return client_side.array_record(
        {
            "trunk": np.zeros(2, dtype=np.float32),
            "seen": np.array(0),
            "head.weight": np.zeros((1, WIDTH), dtype=np.float32),
        }
    )
