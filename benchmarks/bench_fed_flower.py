"""A round of Flower with GAdapHeadStrategy beside one with Flower's FedAvg: training, messages as bytes, aggregation.

Run in the environment of ``make test-fed``: ``python benchmarks/bench_fed_flower.py``. Clients are in this process, so
that no start of a process hides what the strategy costs: every message is written to bytes and read back, both ways.
Both strategies have the same clients; those of GAdapHead also estimate the variance of their head. Rounds are taken in
turns and compared as ratios of the same turn, in processor time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import receipt
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from steelyard.fed import AdaptiveMix, GAdapHeadStrategy, head_variance_refit
from steelyard.fed.gadaphead.flower_client import array_record, partition_id, received_arrays, train_reply
from steelyard.timing import interleaved

INPUTS, FEATURES, OUTPUTS, BATCH = 64, 80, 250, 64  # a head of 20,000 parameters
CLIENTS = (8, 50)
STEPS = (0, 100)  # gradient steps of a client in a round; without any, only transport and aggregation are left
TARGET = 1.2  # of rounds with training


def carried(message: Message) -> Message:
    """Return a message as it comes out of the wire."""
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


class Grid:
    """Nodes that train at once when a message comes."""

    def __init__(self, clients: int, train: Callable[[Message, Context], Message]) -> None:
        self.clients, self.train = clients, train

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids."""
        return range(100, 100 + self.clients)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the clients' answers."""
        return [carried(self._answer(carried(message))) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        return self.train(message, Context(1, node, {"partition-id": node - 100}, RecordDict(), {}))


def model() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {"trunk.weight": (FEATURES, INPUTS), "trunk.bias": (FEATURES,), "head.weight": (OUTPUTS, FEATURES)}
    return {name: (0.05 * generator.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def client(steps: int, variance: bool) -> Callable[[Message, Context], Message]:
    """A client of one hidden layer that takes gradient steps on squared error, with an estimate of variance or not."""

    def train(message: Message, context: Context) -> Message:
        arrays = received_arrays(message, context)
        hidden, bias, head = arrays["trunk.weight"], arrays["trunk.bias"], arrays["head.weight"]
        generator = np.random.default_rng(partition_id(context))
        x = generator.normal(size=(BATCH, INPUTS)).astype(np.float32)
        y = generator.normal(size=(BATCH, OUTPUTS)).astype(np.float32)
        for _ in range(steps):
            phi = np.maximum(x @ hidden.T + bias, 0)
            error = (phi @ head.T - y) / BATCH
            back = (error @ head) * (phi > 0)
            head = head - 0.1 * error.T @ phi
            hidden, bias = hidden - 0.1 * back.T @ x, bias - 0.1 * back.sum(axis=0)
        phi = np.maximum(x @ hidden.T + bias, 0)
        spread = head_variance_refit(phi, y - phi @ head.T, ridge=1.0) if variance else 0.0
        new = {"trunk.weight": hidden, "trunk.bias": bias, "head.weight": head}
        return train_reply(message, context, new, num_examples=BATCH, variance=spread)

    return train


def one_round(strategy: Strategy, grid: Grid) -> Callable[[], object]:
    state = {"arrays": array_record(model())}

    def go() -> None:
        messages = strategy.configure_train(1, state["arrays"], ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
        assert arrays is not None
        state["arrays"] = arrays

    return go


def compare(clients: int, steps: int, repeats: int) -> dict[str, Any]:
    """Median seconds of a round of each strategy, and the median of the ratio with its quartiles."""
    ours = GAdapHeadStrategy(head_keys=["head.weight"], mixing=AdaptiveMix(warmup=0))
    arms = {
        "FedAvg": one_round(FedAvg(min_available_nodes=clients), Grid(clients, client(steps, variance=False))),
        "GAdapHead": one_round(ours, Grid(clients, client(steps, variance=True))),
    }
    seconds = interleaved(arms, repeats=repeats, clock=time.process_time)
    ratios = [a / b for a, b in zip(seconds["GAdapHead"], seconds["FedAvg"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "clients": clients,
        "steps": steps,
        **{f"{name} seconds": statistics.median(values) for name, values in seconds.items()},
        "ratio": middle,
        "quartiles": [low, high],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # without them Flower makes no messages
    rows = [compare(clients, steps, arguments.repeats) for clients in CLIENTS for steps in STEPS]
    for row in rows:
        print(f"{row['clients']:3d} clients, {row['steps']:3d} steps: {row['ratio']:.2f} x FedAvg", row["quartiles"])
    path = receipt.write("speed_fed_flower", {"target": TARGET, "head parameters": FEATURES * OUTPUTS, "rounds": rows})
    print(path)
    trained = [row for row in rows if row["steps"]]
    return int(any(row["ratio"] > TARGET for row in trained))


if __name__ == "__main__":
    sys.exit(main())
