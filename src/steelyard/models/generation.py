"""Text by a causal language model, many rows at once: left padding, a shared start run once, a stream per row.

Greedy, or sampled by the Gumbel-max rule: the largest of log p + Gumbel noise is a draw from p. The noise of a row
comes from its own generator, so that its text depends neither on the batch that it is in nor on torch's global state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.extras import require
from steelyard.models.batches import Ids, padded

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.models.decoder import Decoder

Stopped = Callable[[Sequence[int]], bool]
"""Tells from a row's new tokens whether it is complete."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: greedily at temperature 0; ``top_p`` cuts the tail after the temperature was applied."""

    temperature: float = 0.0
    top_p: float = 1.0


@dataclass
class Row:
    """One text under way.

    Attributes:
        ids: Its prompt.
        limit: How many new tokens it may have.
        noise: Its own random stream; None when nothing is drawn.
        tokens: New tokens so far, without the one that ended it.
        states: For every new token the states asked for, (layers, width) each.
        complete: No token follows.
    """

    ids: Ids
    limit: int
    noise: np.random.Generator | None = None
    tokens: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    complete: bool = False


def shared_start(decoder: Decoder, ids: Ids) -> Any:
    """Return the cache of one row that holds ``ids``, to be handed to :func:`decode`; None for no tokens."""
    if not ids:
        return None
    tokens, mask = padded([ids], "left", decoder.device)
    return decoder.run(tokens, mask)[1]


def repeated(cache: Any, rows: int) -> Any:
    """Return a copy of a cache of one row for ``rows`` rows; the given one is left as it is."""
    if cache is not None:
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(rows)
    return cache


def decode(
    decoder: Decoder,
    rows: Sequence[Row],
    sampling: Sampling,
    *,
    ends: Collection[int],
    stopped: Stopped | None = None,
    start: Any = None,
    shared: int = 0,
    layers: Sequence[int] = (),
) -> None:
    """Write the texts of ``rows``, in place.

    Args:
        decoder: The model.
        rows: Rows whose first ``shared`` tokens are the same.
        sampling: How tokens are chosen.
        ends: Tokens that end a text and do not belong to it.
        stopped: Tells that a text is complete.
        start: The cache of the shared tokens, from :func:`shared_start`.
        shared: How many tokens it holds.
        layers: States to keep; costs one more pass when a text was ended by its length or by ``stopped``.
    """
    torch = require("torch", "models")
    logits, mask, cache = _prompts(decoder, rows, start, shared)
    active = list(rows)
    with decoder.recording(layers) as seen:
        while True:
            kept = list(_extend(active, pick(logits[:, -1], sampling, active), ends, stopped, bool(layers)))
            if not kept:
                return
            if len(kept) < len(active):  # finished rows cost nothing more
                index = torch.tensor(kept, device=mask.device)
                cache.batch_select_indices(index)
                mask, active = mask[index], [active[place] for place in kept]
            latest = torch.tensor([[row.tokens[-1]] for row in active], device=mask.device)
            mask = torch.cat([mask, mask.new_ones((len(active), 1))], dim=1)
            logits, cache = decoder.logits(latest, mask, cache)
            for place, row in enumerate(active if layers else ()):
                row.states.append(torch.stack([seen[layer][place, -1] for layer in layers]).float().cpu())


def _prompts(decoder: Decoder, rows: Sequence[Row], start: Any, shared: int) -> tuple[Tensor, Tensor, Any]:
    """Run the prompts, equal ones once; return the logits of their last tokens, the mask and the cache, by row."""
    torch = require("torch", "models")
    places: dict[tuple[int, ...], int] = {}
    index = [places.setdefault(tuple(row.ids), len(places)) for row in rows]
    ids, mask = padded([prompt[shared:] for prompt in places], "left", decoder.device)
    mask = torch.cat([mask.new_ones((len(places), shared)), mask], dim=1)
    logits, cache = decoder.logits(ids, mask, repeated(start, len(places)))
    if len(places) < len(rows):
        of_row = torch.tensor(index, device=mask.device)
        cache.batch_select_indices(of_row)
        logits, mask = logits[of_row], mask[of_row]
    return logits, mask, cache


def _extend(
    active: Sequence[Row],
    chosen: Sequence[int],
    ends: Collection[int],
    stopped: Stopped | None,
    with_states: bool,
) -> Iterator[int]:
    """Append the chosen tokens; yield the places of rows that have to be fed their latest token."""
    for place, (row, token) in enumerate(zip(active, chosen, strict=True)):
        if row.complete:  # was fed its last token for the sake of its states
            continue
        if token in ends:
            row.complete = True
            continue
        row.tokens.append(token)
        row.complete = len(row.tokens) >= row.limit or (stopped is not None and stopped(row.tokens))
        if with_states or not row.complete:
            yield place


def pick(logits: Tensor, sampling: Sampling, rows: Sequence[Row]) -> list[int]:
    """Return the next token of every row from its logits, (rows, vocabulary)."""
    torch = require("torch", "models")
    if sampling.temperature > 0:
        logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature  # at most 0: no overflow
        if sampling.top_p < 1:
            logits = nucleus(logits, sampling.top_p)
        noise = np.stack([_gumbel(row.noise, logits.shape[1]) for row in rows])
        logits = logits + torch.from_numpy(noise).to(logits.device)
    chosen: list[int] = logits.argmax(-1).tolist()
    return chosen


def _gumbel(generator: np.random.Generator | None, count: int) -> Any:
    """Return standard Gumbel noise, float32 of shape (count,): minus the logarithm of exponential draws."""
    assert generator is not None
    drawn = generator.standard_exponential(count, dtype=np.float32)
    return -np.log(np.maximum(drawn, np.finfo(np.float32).tiny))


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return ``logits`` with -inf outside the smallest set of likeliest tokens whose probability reaches ``top_p``."""
    torch = require("torch", "models")
    ordered, order = logits.sort(-1, descending=True)
    probability = torch.softmax(ordered, -1)
    before = probability.cumsum(-1) - probability
    ordered = ordered.masked_fill(before >= top_p, -torch.inf)
    kept: Tensor = torch.full_like(logits, -torch.inf).scatter(-1, order, ordered)
    return kept
