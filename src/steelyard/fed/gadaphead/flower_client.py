"""What a Flower ``ClientApp`` needs to work under ``GAdapHeadStrategy``: read a message, answer it.

Kept apart from the strategy because Flower starts a new process for every message: this module imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError, MissingExtraError

try:
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
except ModuleNotFoundError as error:
    raise MissingExtraError("flwr is not installed; install it with: pip install 'steelyard[flower]'") from error

ARRAYS, CONFIG, METRICS, MOMENT = "arrays", "config", "metrics", "second-moment"
PARTITION, EXAMPLES, VARIANCE, ROUND = "partition-id", "num-examples", "head-variance", "server-round"


def partition_id(context: Context) -> int:
    """Return the number of this client, which its SuperNode was started with.

    Raises:
        InputError: The SuperNode has no such number.
    """
    value = context.node_config.get(PARTITION)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(
            f"the node's configuration has {PARTITION}={value!r}; start the SuperNode with "
            '--node-config "partition-id=0" (a different number for each client)'
        )
    return value


def received_arrays(message: Message, context: Context) -> dict[str, NDArray[Any]]:
    """Return the model of a train or evaluate message: the shared trunk and this client's own head.

    Raises:
        InputError: The message is meant for another client (a node was restarted with another ``partition-id``); the
            strategy then asks the node who it is.
    """
    own, meant = partition_id(context), _config(message).get(PARTITION, None)
    if meant is not None and meant != own:
        raise InputError(f"this message holds the head of client {meant}, but this is client {own}")
    return {name: array.numpy() for name, array in message.content[ARRAYS].items()}


def train_reply(
    message: Message,
    context: Context,
    arrays: Mapping[str, NDArray[Any]],
    *,
    num_examples: int,
    variance: float,
    second_moment: NDArray[np.float64] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Message:
    """Answer a train message with the trained model and how sure its head is.

    The strategy knows the head it sent, so the update is not sent. Flower's own ``FedAvg`` accepts the same answer as
    long as ``second_moment`` is not given.

    Args:
        message: The message that is answered.
        context: The app's context, which holds the number of the client.
        arrays: The trained model under the names of the one received.
        num_examples: Weight of this client in the average of the trunk.
        variance: Estimate of E||head - best head||^2, e.g. of ``head_variance_refit``; with ``second_moment`` in the
            norm that it defines.
        second_moment: Mean of phi phi^T over the client's features, shape (d, d) for a head (d,) or (d, k); a bias
            counts as one more, constant feature at the end. Distances between heads are then those of their values.
        metrics: Numbers to be averaged over the clients.

    Raises:
        InputError: A metric has the name of one of the strategy's own.
    """
    content = RecordDict({ARRAYS: array_record(arrays), METRICS: _metrics(context, metrics, num_examples)})
    content[METRICS][VARIANCE] = float(variance)
    if second_moment is not None:
        content[MOMENT] = array_record({MOMENT: np.asarray(second_moment, dtype=np.float64)})
    return Message(content, reply_to=message)


def evaluate_reply(message: Message, context: Context, metrics: Mapping[str, float], *, num_examples: int) -> Message:
    """Answer an evaluate message with ``metrics``, which are averaged with weight ``num_examples``.

    Raises:
        InputError: A metric has the name of one of the strategy's own.
    """
    return Message(RecordDict({METRICS: _metrics(context, metrics, num_examples)}), reply_to=message)


def introduction(message: Message, context: Context) -> Message:
    """Answer a query message with the number of this client, so that a node that is new gets its own head at once."""
    return Message(RecordDict({METRICS: MetricRecord({PARTITION: partition_id(context)})}), reply_to=message)


def array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return numpy arrays as the record that Flower sends."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def _metrics(context: Context, metrics: Mapping[str, float] | None, num_examples: int) -> MetricRecord:
    own = {PARTITION: partition_id(context), EXAMPLES: int(num_examples)}
    if taken := {*own, VARIANCE} & set(metrics or ()):
        raise InputError(f"metrics may not hold {min(taken)!r}, which the strategy uses itself")
    return MetricRecord({**{name: float(value) for name, value in (metrics or {}).items()}, **own})


def _config(message: Message) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], message.content.get(CONFIG, {}))
