"""One forward pass over a batch of [prefix, answer] token rows: hidden states, and statistics of the logits if asked.

Right padding with an explicit mask; only the layers asked for are kept; the output head runs only where token
statistics are wanted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.errors import InputError
from steelyard.models.batches import padded

Ids = Sequence[int]


class TokenStatistics(NamedTuple):
    """What the model says about each token of an answer, float32 of shape (T,) each, in nats."""

    nll: NDArray[np.float32]
    entropy: NDArray[np.float32]
    energy: NDArray[np.float32]


class Pass(NamedTuple):
    """One answer in one pass.

    Attributes:
        states: float32 of shape (layers, T, d), at the answer's tokens.
        prefix_states: float32 of shape (layers, P, d), at the prefix's tokens; None unless asked for.
        tokens: Statistics of the answer's tokens; None unless asked for.
    """

    states: NDArray[np.float32]
    prefix_states: NDArray[np.float32] | None
    tokens: TokenStatistics | None


class Pair(NamedTuple):
    """One answer after its question and alone."""

    context: Pass
    alone: Pass


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield row numbers, rows of like length together."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def check_lengths(lm: Any, prefixes: Sequence[Ids], responses: Sequence[Ids]) -> None:
    """Raise InputError, which names the answer, where a row is longer than the model's positions."""
    for row, (prefix, response) in enumerate(zip(prefixes, responses, strict=True)):
        total = len(prefix) + len(response)
        if total > lm.context:
            raise InputError(
                f"responses[{row}] and its prompt have {total} tokens, and the model takes {lm.context}; shorten the "
                "context"
            )


def forward(
    lm: Any,
    prefixes: Sequence[Ids],
    responses: Sequence[Ids],
    layers: Sequence[int],
    *,
    shifts: Sequence[int] | None = None,
    logits: bool = False,
    keep_prefix: bool = False,
) -> list[Pass]:
    """Run one batch of rows through ``model`` once.

    Args:
        lm: A :class:`steelyard.models.TransformersLM`.
        prefixes: Token ids before each answer, none empty.
        responses: Token ids of each answer, none empty.
        layers: Indices of the hidden states to keep, 0..L.
        shifts: Added to the position ids of each row; None: every row starts at 0.
        logits: Give token statistics too, which needs the output head.
        keep_prefix: Give the states of the prefix too.
    """
    rows = [[*prefix, *response] for prefix, response in zip(prefixes, responses, strict=True)]
    ids, mask = padded(rows, "right", lm.model.device)
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if shifts is not None:
        positions = positions + torch.tensor(shifts, device=ids.device)[:, None]
    first = min(map(len, prefixes)) - 1
    arguments: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions,
        "output_hidden_states": sorted(set(layers)),
        "use_cache": False,
        "return_dict": True,
    }
    runner = lm.model if logits else decoder(lm.model)
    if logits and "logits_to_keep" in inspect.signature(lm.model.forward).parameters:
        arguments["logits_to_keep"] = ids.shape[1] - first
    with lm.exclusive():
        out = runner(**arguments)
    states = [out.hidden_states[layer] for layer in layers]
    found = []
    for row, (prefix, response) in enumerate(zip(prefixes, responses, strict=True)):
        start, stop = len(prefix), len(prefix) + len(response)
        tokens = None
        if logits:
            skipped = ids.shape[1] - out.logits.shape[1]
            kept = out.logits[row, start - 1 - skipped : stop - 1 - skipped]
            tokens = token_statistics(kept, ids[row, start:stop])
        before = _rows(states, row, 0, start) if keep_prefix else None
        found.append(Pass(_rows(states, row, start, stop), before, tokens))
    return found


def decoder(model: Any) -> Any:
    """Return the stack of blocks without the output head."""
    stack = model.get_decoder() if hasattr(model, "get_decoder") else None
    return model.base_model if stack is None or stack is model else stack


def token_statistics(logits: Tensor, target: Tensor) -> TokenStatistics:
    """Return statistics in float32 from logits (T, V) and token ids (T,); row t predicts token t."""
    logits = logits.float()
    log_z = torch.logsumexp(logits, -1)
    log_p = logits - log_z[:, None]
    nll = -log_p.gather(1, target[:, None])[:, 0]
    entropy = -torch.where(log_p.isneginf(), 0.0, log_p.exp() * log_p).sum(-1)
    return TokenStatistics(*(values.cpu().numpy() for values in (nll, entropy, -log_z)))


def _rows(states: Sequence[Tensor], row: int, start: int, stop: int) -> NDArray[np.float32]:
    kept: NDArray[np.float32] = torch.stack([layer[row, start:stop] for layer in states]).float().cpu().numpy()
    return kept
