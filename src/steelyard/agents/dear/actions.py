"""From logits to who reads whom and how each agent answers, and how likely such decisions were.

An agent first chooses a behaviour; only one that speaks then chooses peers, so the choice of peers counts for
speakers alone. A mask draws every peer on its own and a cap ``d_max`` then keeps those with the highest scores.
Ties are broken by the episode's permutation of agents. Source: reconstruction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.agents.dear.episodes import Bools, Floats, Ints, State, majority, option_counts


class Choice(NamedTuple):
    """Decisions of B debates.

    ``behaviours`` int64 (B, N) index the policy's own list; ``picks`` are bool (B, N, N) before the cap, or int64
    (B, N) macro choices.
    """

    behaviours: Ints
    picks: NDArray[np.generic]


def probabilities(logits: NDArray[np.floating]) -> Floats:
    """Return the softmax over the last axis, float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    total: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return total


def draw_index(logits: NDArray[np.floating], generator: np.random.Generator | None) -> Ints:
    """Return an index of the last axis: drawn by ``generator``, or the likeliest one."""
    if generator is None:
        best: Ints = logits.argmax(axis=-1)
        return best
    below = probabilities(logits).cumsum(axis=-1)
    drawn: Ints = (generator.random((*logits.shape[:-1], 1)) * below[..., -1:] >= below).sum(axis=-1)
    return drawn


def draw_mask(logits: NDArray[np.floating], generator: np.random.Generator | None) -> Bools:
    """Return bool (B, N, N), the diagonal False: each pair drawn on its own, or those likelier than not."""
    if generator is None:
        mask = logits > 0
    else:
        mask = generator.random(logits.shape) < 1 / (1 + np.exp(-logits.astype(np.float64)))
    return mask & ~np.eye(logits.shape[-1], dtype=bool)


def capped(mask: Bools, scores: NDArray[np.floating], d_max: int | None, agent_tie: Ints) -> Bools:
    """Return ``mask`` with at most ``d_max`` peers an agent: the highest scores, ties by the order of agents."""
    if d_max is None or d_max >= mask.shape[-1] - 1:
        return mask
    places = np.broadcast_to(agent_tie[:, None, :], mask.shape)
    order = np.lexsort((places, -np.where(mask, scores, -np.inf)), axis=-1)
    return mask & (order.argsort(axis=-1) < d_max)


def random_peers(degrees: Ints, generator: np.random.Generator) -> Bools:
    """Return bool (B, N, N): each agent reads ``degrees`` (B, N) peers, uniformly drawn."""
    batch, agents = degrees.shape
    keys = generator.random((batch, agents, agents))
    keys[:, np.eye(agents, dtype=bool)] = 2.0
    return keys.argsort(axis=-1).argsort(axis=-1) < degrees[..., None]


def macro_masks(state: State) -> Bools:
    """Return bool (B, N, 5, N): whom each agent reads under each of ``network.MACROS``; majority ties as everywhere."""
    answers = state.answers
    batch, agents = answers.shape
    others = np.broadcast_to(~np.eye(agents, dtype=bool), (batch, agents, agents))
    top = majority(state)
    counts = option_counts(answers, state.options)
    speakers = np.zeros((batch, state.options, agents), dtype=bool)  # the first agent of each answer, by the order
    for option in range(state.options):
        place = np.where(answers == option, state.agent_tie, agents)
        rows = np.flatnonzero(counts[:, option] > 0)
        speakers[rows, option, place.argmin(axis=1)[rows]] = True
    of_majority = np.take_along_axis(speakers, top[:, None, None], axis=1)
    rivals = speakers.any(axis=1, keepdims=True) & ~of_majority
    found = (
        np.zeros_like(others), others, others & (answers[:, :, None] != answers[:, None, :]),
        others & of_majority, others & rivals,
    )  # fmt: skip
    return np.stack(found, axis=2)


def log_likelihood(
    logits: tuple[Tensor, Tensor], behaviours: Tensor, picks: Tensor, speaks: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probability (B, N) of each agent's decision, and its entropy (B, N).

    Args:
        logits: Of behaviours (B, N, A), and of peers (B, N, N) or macro choices (B, N, M).
        behaviours: int64 (B, N).
        picks: float32 (B, N, N) of 0 and 1, or int64 (B, N).
        speaks: float32 (A,), 1 for behaviours that make a call; peers count for these alone.
    """
    log_behaviour = torch.log_softmax(logits[0], dim=-1)
    chance = log_behaviour.exp()
    spoke = speaks[behaviours]
    will_speak = (chance * speaks).sum(dim=-1)
    chosen = log_behaviour.gather(-1, behaviours[..., None])[..., 0]
    entropy = -(chance * log_behaviour).sum(dim=-1)
    if picks.dtype == torch.int64:
        log_pick = torch.log_softmax(logits[1], dim=-1)
        of_peers = log_pick.gather(-1, picks[..., None])[..., 0]
        peer_entropy = -(log_pick.exp() * log_pick).sum(dim=-1)
    else:
        others = 1.0 - torch.eye(picks.shape[-1])
        scores = logits[1]
        losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, picks, reduction="none")
        of_peers = -(losses * others).sum(dim=-1)
        share = torch.sigmoid(scores)
        spread = torch.nn.functional.softplus(scores) - scores * share
        peer_entropy = (spread * others).sum(dim=-1)
    return chosen + spoke * of_peers, entropy + will_speak * peer_entropy
