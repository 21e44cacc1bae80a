"""A small transformer that answers the questions of `world`, and its supervised start."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.policy.ean.world import CELLS, COLOURS, SHAPES, WIDTH, blank, draw_items
from steelyard.rng import generator, torch_generator

_WIDTH, _LAYERS, _HEADS, _INNER = 48, 2, 4, 96


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attend, self.mix = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.widen, self.narrow = nn.Linear(_WIDTH, _INNER), nn.Linear(_INNER, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.attend(self.before(x)).view(rows, length, 3, _HEADS, _WIDTH // _HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, length, _WIDTH))
        wide: Tensor = self.narrow(functional.gelu(self.widen(self.between(x))))
        return x + wide


class ToyPolicy(nn.Module):
    """41,670 weights: patches and a question token, two blocks, the answer read at the question.

    Args:
        seed: Of the weights.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, _WIDTH, bias=False)
        self.place = nn.Parameter(torch.zeros(CELLS, _WIDTH))
        self.ask = nn.Embedding(SHAPES, _WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.last, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, COLOURS)
        draws = torch_generator("ean", "weights", seed)
        for weights in self.parameters():
            if weights.dim() > 1:
                bound = 1 / math.sqrt(weights.shape[-1])
                nn.init.uniform_(weights, -bound, bound, generator=draws)
        nn.init.normal_(self.ask.weight, generator=draws)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, question: Tensor) -> Tensor:
        """Return the log-probability of each colour, (N, 6), from patches (N, 16, 48) and shapes (N,)."""
        return self.read(self.embed(images), question)

    def read(self, embedded: Tensor, question: Tensor) -> Tensor:
        """Return the same from embedded patches, (N, 16, 48): what a saliency is taken with respect to."""
        x = torch.cat([embedded + self.place, self.ask(question)[:, None]], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x[:, -1])).log_softmax(-1)  # type: ignore[no-any-return]


def supervised(seed: int, *, steps: int = 450, dropout: float = 0.25) -> ToyPolicy:
    """Return a policy trained on biased data: AdamW, batches of 64, some images blank and some patches dropped.

    Without blank images a policy is out of its depth when it is blind, and the gain says nothing.

    Args:
        seed: Of weights and data.
        steps: Of the optimiser.
        dropout: Share of images that are blank; patches of the others are dropped at a rate drawn from 0 to a half.
    """
    draws = generator("ean", "supervised", seed)
    policy = ToyPolicy(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    for _ in range(steps):
        items = draw_items(draws, 64)
        images = items.images
        rate = draws.random((64, 1)) * 0.5
        kept = (draws.random((64, CELLS)) >= rate) & (draws.random((64, 1)) >= dropout)
        images = torch.where(torch.from_numpy(np.asarray(kept))[..., None], images, blank(images))
        loss = functional.nll_loss(policy(images, items.question), items.answer)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy.eval()
