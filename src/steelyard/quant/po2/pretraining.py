"""Pre-training with 4-bit weights and inputs in every forward pass: a small byte-level Llama on WikiText-2.

Straight-through gradients, frozen grids, the choice made anew in every step (reconstruction after related work); the
backward pass is float32 here, as bfloat16 matrix products have no speed on a CPU.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM, LlamaRotaryEmbedding

from steelyard.contracts import Arrays, CellInput, Measured
from steelyard.data import wikitext2
from steelyard.quant.po2.baselines import UNQUANTISED, Quantiser
from steelyard.quant.po2.cells import config_of, quantiser_of
from steelyard.quant.po2.families import E2M1
from steelyard.quant.po2.tensor import quantize

_BATCH, _LENGTH, _RATE, _WARMUP = 16, 128, 2e-3, 30
_TEST_WINDOWS = 64
_POINTS = 10


def load() -> Arrays:
    """Return WikiText-2 as bytes: validation for training, test for the loss that is judged."""
    return {"train": _bytes(wikitext2("valid")), "test": _bytes(wikitext2("test"))}


def _bytes(lines: list[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8).copy()


def run(cell: CellInput) -> Measured:
    """Train one network from the seed's start on the seed's batches, and return its loss with 4-bit arithmetic on."""
    steps = int(cell.params["steps"])
    model = _start(cell.torch_rng("start"))
    quantise = quantiser_of(cell, [])
    if quantise.config.family != UNQUANTISED:
        _quantise(cell, model, quantise)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / _WARMUP))
    batches, text = cell.rng("batches"), torch.from_numpy(cell.data["train"])
    at: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        loss = _loss(model, _windows(text, batches, _BATCH))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        if (step + 1) % max(1, steps // _POINTS) == 0:
            at.append(float(step + 1))
            losses.append(float(loss.detach()))
    with torch.no_grad():
        held_out = _windows(torch.from_numpy(cell.data["test"]), cell.rng("test"), _TEST_WINDOWS)
        metrics = {"loss": float(_loss(model, held_out)), "bits": quantise.bits_per_weight}
    return Measured(metrics, steps, {"training_loss": (at, losses)})


def _start(generator: torch.Generator) -> Any:
    """Return a Llama of 0.9 M parameters whose start is drawn from ``generator`` alone."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=_LENGTH, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
    model.tie_weights()
    return model


class _StraightThrough(nn.Module):
    """Quantise in the forward pass; the gradient passes as if nothing had been done."""

    def __init__(self, quantise: Quantiser, hadamard: bool) -> None:
        super().__init__()
        self._quantise, self._hadamard = quantise, hadamard

    def forward(self, x: Tensor) -> Tensor:
        if self._hadamard:
            x = rotated(x)
        return x + (self._quantise(x) - x).detach()


def rotated(x: Tensor) -> Tensor:
    """Return ``x`` with every 16 neighbours along the last axis turned by a Hadamard matrix; products are kept."""
    return (x.reshape(*x.shape[:-1], -1, 16) @ _hadamard()).reshape(x.shape)


@functools.cache
def _hadamard() -> Tensor:
    matrix = torch.ones(1, 1)
    for _ in range(4):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / 4


class _StochasticGradient(torch.autograd.Function):
    """The identity; the gradient that comes back is rounded at random onto NVFP4."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, generator: torch.Generator) -> Tensor:
        ctx.generator = generator
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return stochastically_rounded(gradients[0], ctx.generator), None


def stochastically_rounded(t: Tensor, generator: torch.Generator) -> Tensor:
    """Return ``t`` on NVFP4's grid, each value up or down with the odds that keep its expectation.

    Only what lies beyond the ends of its group's grid, where the E4M3 scale was rounded down, is cut off.

    Args:
        t: float32, a multiple of 16 along the last axis.
        generator: Where the draws come from.
    """
    levels = torch.tensor(sorted(set(E2M1)))
    with (
        warnings.catch_warnings()
    ):  # gradients span more than E4M3 does; what is too small for it goes to 0 by the odds
        warnings.simplefilter("ignore", RuntimeWarning)
        scales = quantize(t, "nvfp4").group_scales()
    scale = scales.repeat_interleave(16, -1).reshape(t.shape)
    u = (t / scale.clamp(min=torch.finfo(t.dtype).tiny)).clamp(levels[0], levels[-1])
    low = (torch.bucketize(u, levels, right=True) - 1).clamp(max=len(levels) - 2)
    odds = (u - levels[low]) / (levels[low + 1] - levels[low])
    return levels[low + (torch.rand(t.shape, generator=generator) < odds)] * scale


def _rounded_back(y: Tensor, generator: torch.Generator) -> Tensor:
    same: Tensor = _StochasticGradient.apply(y, generator)  # type: ignore[no-untyped-call]
    return same


def _quantise(cell: CellInput, model: Any, quantise: Quantiser) -> None:
    """Have the weights and the inputs of all linear layers but the output layer quantised in every forward pass."""
    hadamard, generator = config_of(cell).hadamard, cell.torch_rng("gradients")
    for layer in list(model.modules()):
        if isinstance(layer, nn.Linear) and layer is not model.lm_head:
            through = _StraightThrough(quantise, hadamard)
            parametrize.register_parametrization(layer, "weight", through)
            layer.register_forward_pre_hook(lambda _, inputs, through=through: through(inputs[0]))
            if config_of(cell).stochastic_gradients:
                layer.register_forward_hook(lambda _, inputs, output: _rounded_back(output, generator))


def _windows(text: Tensor, stream: np.random.Generator, count: int) -> Tensor:
    starts = torch.from_numpy(stream.integers(0, len(text) - _LENGTH, count))
    return text[starts[:, None] + torch.arange(_LENGTH)].long()


def _loss(model: Any, windows: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of every byte but the first of each window, nats a byte."""
    logits = model(windows[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
