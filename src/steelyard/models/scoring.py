"""What a causal language model makes of given texts, token by token: log-probabilities and inner states, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.extras import require
from steelyard.models.batches import Ids, Share, Side, group, padded
from steelyard.models.generation import repeated, shared_start

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.models.decoder import Decoder

_MAX_LOGITS = 1 << 26  # floats at a time, 268 MB: a batch of long texts over a large vocabulary is split


class Scored(NamedTuple):
    """Texts to be scored in one call: the tokens before each response, at least one, and those of the response."""

    before: Sequence[Ids]
    responses: Sequence[Ids]


def logprobs(
    decoder: Decoder, texts: Scored, batch_size: int = 16, share: Share = "auto", side: Side = "right"
) -> list[NDArray[np.float32]]:
    """Return the log-probability of every token of each response, in nats; logits exist only where they are read.

    Args:
        decoder: The model.
        texts: Tokens before each response and of it.
        batch_size: Rows at a time, fewer where their logits would take too much memory.
        share: See :func:`steelyard.models.batches.group`.
        side: Where padding goes; makes no difference beyond rounding.
    """
    torch = require("torch", "models")

    def score(ids: Tensor, mask: Tensor, cache: Any, spans: Sequence[slice]) -> list[NDArray[np.float32]]:
        first, last = min(span.start for span in spans) - 1, max(span.stop for span in spans) - 1
        logits, _ = decoder.logits(ids, mask, cache, keep=torch.arange(first, last, device=ids.device))
        found = []
        for row, span in enumerate(spans):
            logs = torch.log_softmax(logits[row, span.start - 1 - first : span.stop - 1 - first], -1)
            found.append(logs.gather(-1, ids[row, span, None])[:, 0].cpu().numpy())
        return found

    longest = max((len(response) for response in texts.responses), default=1)
    most = max(1, _MAX_LOGITS // (longest * decoder.vocabulary))
    return _in_batches(decoder, texts, score, min(batch_size, most), share, side)


def states(
    decoder: Decoder,
    texts: Scored,
    layers: Sequence[int],
    batch_size: int = 16,
    share: Share = "auto",
    side: Side = "right",
) -> list[NDArray[np.float32]]:
    """Return the states of ``layers`` at the tokens of each response, (layers, tokens, width); no output layer is run.

    Args:
        decoder: The model; see there for how states are numbered.
        texts: Tokens before each response and of it.
        layers: From 0 to ``num_layers``.
        batch_size: Rows at a time.
        share: See :func:`steelyard.models.batches.group`.
        side: Where padding goes; makes no difference beyond rounding.
    """
    torch = require("torch", "models")

    def look(ids: Tensor, mask: Tensor, cache: Any, spans: Sequence[slice]) -> list[NDArray[np.float32]]:
        with decoder.recording(layers) as seen:
            decoder.run(ids, mask, cache)
        return [
            torch.stack([seen[layer][row, span] for layer in layers]).float().cpu().numpy()
            for row, span in enumerate(spans)
        ]

    return _in_batches(decoder, texts, look, batch_size, share, side)


def _in_batches(
    decoder: Decoder,
    texts: Scored,
    work: Callable[[Tensor, Tensor, Any, Sequence[slice]], list[NDArray[np.float32]]],
    batch_size: int,
    share: Share,
    side: Side,
) -> list[NDArray[np.float32]]:
    """Run ``work`` on padded batches; it is told the columns of each response among those that it is given."""
    torch = require("torch", "models")
    rows = [[*before, *response] for before, response in zip(texts.before, texts.responses, strict=True)]
    found: list[NDArray[np.float32] | None] = [None] * len(rows)
    for members, shared in group(rows, [len(before) - 1 for before in texts.before], share):
        start = shared_start(decoder, rows[members[0]][:shared])
        for place in range(0, len(members), batch_size):
            batch = members[place : place + batch_size]
            ids, mask = padded([rows[row][shared:] for row in batch], side, decoder.device)
            width = ids.shape[1]
            spans = []
            for row in batch:
                offset = width - len(rows[row]) if side == "left" else -shared
                spans.append(slice(offset + len(texts.before[row]), offset + len(rows[row])))
            mask = torch.cat([mask.new_ones((len(batch), shared)), mask], dim=1)
            for row, result in zip(batch, work(ids, mask, repeated(start, len(batch)), spans), strict=True):
                found[row] = result
    return [result for result in found if result is not None]
