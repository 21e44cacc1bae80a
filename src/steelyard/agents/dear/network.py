"""The networks of the controller: one policy shared by all agents, and a critic that training alone uses.

Source: reconstruction (the abstract names two learned agents, not their form). What every agent shares makes the
policy equivariant: permute the agents and its decisions are permuted with them. Peers meet an agent through sums and
through a score per pair, so no peer has a place of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

MACROS = ("none", "all", "disagreeing", "majority speaker", "rival speakers")
"""The categorical choices of whom to read, for ``selection="macro"``."""

_READING = 1.5  # logit: training starts near a debate in which all read all, as what a critique is worth shows there


class Sizes(NamedTuple):
    """Features of the group, of an agent, and of a peer as an agent sees it."""

    group: int
    own: int
    peer: int


class Seen(NamedTuple):
    """Observations as tensors: group (B, G), own (B, N, F), peers (B, N, N, P), all float32."""

    group: Tensor
    own: Tensor
    peers: Tensor


class PolicyNet(nn.Module):
    """Logits of how each agent answers, and of whom it reads.

    Args:
        sizes: Widths of the observation.
        hidden: Two widths of hidden layers.
        behaviours: Number of behaviours to choose from.
        choices: 0: a logit for every pair (a mask over peers); else a logit for each of so many macro choices.
        generator: Draws the initial weights.
    """

    def __init__(
        self, sizes: Sizes, hidden: tuple[int, int], behaviours: int, choices: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        first, second = hidden
        self.trunk1 = _linear(sizes.group + sizes.own + sizes.peer, first, generator)
        self.trunk2 = _linear(first, second, generator)
        self.behaviour = _linear(second, behaviours, generator, gain=0.01)
        if choices:
            self.choice = _linear(second, choices, generator, gain=0.01)
        else:
            self.reader = _linear(second, second, generator)
            self.peer = _linear(sizes.peer, second, generator)
            self.score = _linear(second, 1, generator, gain=0.01)
            nn.init.constant_(self.score.bias, _READING)

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return behaviour logits (B, N, behaviours) and those of whom to read: (B, N, N), or (B, N, choices)."""
        trunk = torch.tanh(self.trunk1(torch.cat([_spread(seen), seen.own, _pooled(seen.peers)], dim=-1)))
        trunk = torch.tanh(self.trunk2(trunk))
        if hasattr(self, "choice"):
            return self.behaviour(trunk), self.choice(trunk)
        pairs = torch.tanh(self.reader(trunk)[:, :, None] + self.peer(seen.peers))
        return self.behaviour(trunk), self.score(pairs)[..., 0]


class ValueNet(nn.Module):
    """The central critic: the value of a debate for each agent, from the group's evidence and all agents pooled."""

    def __init__(self, sizes: Sizes, hidden: tuple[int, int], generator: torch.Generator) -> None:
        super().__init__()
        self.first = _linear(sizes.group + 2 * sizes.own + sizes.peer, hidden[0], generator)
        self.second = _linear(hidden[0], hidden[1], generator)
        self.value = _linear(hidden[1], 1, generator, gain=1.0)

    def forward(self, seen: Seen) -> Tensor:
        """Return values (B, N)."""
        others = seen.own.mean(dim=1, keepdim=True).expand_as(seen.own)
        joined = torch.cat([_spread(seen), seen.own, others, _pooled(seen.peers)], dim=-1)
        value: Tensor = self.value(torch.tanh(self.second(torch.tanh(self.first(joined)))))
        return value[..., 0]


def _spread(seen: Seen) -> Tensor:
    """Return the group's features once per agent, (B, N, G)."""
    return seen.group[:, None].expand(-1, seen.own.shape[1], -1)


def _pooled(peers: Tensor) -> Tensor:
    """Return the mean of the peers' features without the agent's own pair, (B, N, P)."""
    agents = peers.shape[1]
    others = 1.0 - torch.eye(agents, dtype=peers.dtype)
    return (peers * others[None, :, :, None]).sum(dim=2) / (agents - 1)


def _linear(inputs: int, outputs: int, generator: torch.Generator, gain: float = 2**0.5) -> nn.Linear:
    """Return a layer with orthogonal weights drawn from ``generator`` (never from torch's global state)."""
    layer: nn.Linear = torch.nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
