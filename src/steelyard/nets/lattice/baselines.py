"""What the lattice is compared with: fixed recurrent and feed-forward networks, BLT, ACT, and pruning by norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.torch_nn import LatticeOutput, LatticeRCNN

ACT_EPS = 0.01  # Graves 2016: halting starts once the sum reaches 1 - eps
_NEVER_LOG = -100.0  # log-probability of a step that is not taken, kept finite


class FixedStepsRCNN(LatticeRCNN):
    """The same network, always read out after its last step: the grid of fixed architectures."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "time": "fixed"})
        with torch.no_grad():
            self.theta[:-1] = _NEVER_LOG
        self.theta.requires_grad_(False)


class BLT(LatticeRCNN):
    """Bottom-up, lateral and top-down network trained to answer at every step alike (Spoerer et al. 2017, 2020).

    Time is not learned; stop it afterwards with ``EntropyThreshold``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "time": "fixed"})
        self.theta.requires_grad_(False)


class FeedForward(LatticeRCNN):
    """Bottom-up connections alone, every layer computed once; the same pooled readout of all layers."""

    def __init__(self, in_channels: int, n_classes: int, max_channels: int, max_layers: int, **kwargs: Any) -> None:
        super().__init__(in_channels, n_classes, max_channels, max_layers, max_layers, "fixed", **kwargs)
        self.theta.requires_grad_(False)

    def fan_in(self, layer: int) -> tuple[int, int, int]:
        """Return the input channels of layer ``layer``: those from below only."""
        return super().fan_in(layer)[0], 0, 0

    def forward(self, x: Tensor) -> LatticeOutput:
        """Run the layers one after the other; the output has one step."""
        self._check(x)
        states, below = [], x
        for weight, bias, stride in zip(self.weights, self.biases, self.strides, strict=True):
            below = torch.relu(functional.conv2d(below, weight, bias, stride, padding=1))
            states.append(below)
        logits = self.read(self.pooled(states)).unsqueeze(1)
        p = torch.ones_like(logits[..., 0])
        return LatticeOutput(functional.log_softmax(logits[:, 0], dim=-1), logits, p, p[:, 0], p.log())

    def macs_per_step(self, height: int, width: int, active: Sequence[int] | None = None) -> tuple[int, int, int]:
        """Return the multiply-adds of one image: (all convolutions, 0, the readout)."""
        widths = list(self.widths if active is None else active)
        below = [self.in_channels, *widths[:-1]]
        area = [rows * columns for rows, columns in self.sizes(height, width)]
        convolutions = sum(9 * size * a * b for size, a, b in zip(area, widths, below, strict=True))
        return convolutions, 0, self.n_classes * sum(widths) * self.pool**2


class ACT(LatticeRCNN):
    """Adaptive computation time (Graves 2016) on the same network and hazards.

    The hazards are summed; the step N at which the sum reaches 1 - eps is the last and takes the remainder R. The
    price of time is N + R, whose gradient comes from R alone. ``expected_time`` of the output is N + R - 1, so that a
    run which stops for certain at step N counts N.
    """

    def log_p_time(self, step_logits: Tensor, features: Tensor) -> Tensor:
        """Return the log of ACT's halting distribution (that of a step after N is -100)."""
        p = self._halting(step_logits)[0]
        return p.clamp_min(torch.finfo(p.dtype).tiny).log().clamp_min(_NEVER_LOG)

    def forward(self, x: Tensor) -> LatticeOutput:
        """Run all steps; ``expected_time`` is ACT's ponder cost."""
        output = super().forward(x)
        p, steps = self._halting(output.step_logits)
        remainder = p.gather(1, (steps - 1).unsqueeze(1)).squeeze(1)
        return output._replace(expected_time=steps.to(p.dtype) - 1 + remainder)

    def _halting(self, step_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return p of shape (B, T) and the step N of each input, (B,)."""
        z = core.halting_logits(self.halting_bias, self.kappa, step_logits[:, :-1], None, self.halting_bound)
        hazards = functional.pad(torch.sigmoid(z), (0, 1), value=1.0)
        steps = core.first_stop(hazards.cumsum(1)[:, :-1] < 1 - ACT_EPS)
        number = torch.arange(1, self.max_steps + 1, device=hazards.device)
        before = (number < steps.unsqueeze(1)).to(hazards.dtype)
        last = (number == steps.unsqueeze(1)).to(hazards.dtype)
        rest = 1 - (hazards * before).sum(1, keepdim=True)
        return hazards * before + last * rest, steps


def prune(model: LatticeRCNN, channels: int) -> LatticeRCNN:
    """Return a smaller copy that keeps the ``channels`` channels of largest norm, over all layers.

    Args:
        model: A trained network; not changed.
        channels: How many channels of all layers together are to stay, at least 1.

    Raises:
        InputError: Fewer than one channel or more than there are, or none of layer 1 is among them.
    """
    norms = torch.cat([square.detach() for square in model.channel_squares()])
    if not 1 <= channels <= len(norms):
        raise InputError(f"channels must be between 1 and {len(norms)}, not {channels}.")
    dead = torch.ones(len(norms), dtype=torch.bool)
    dead[norms.argsort(descending=True)[:channels]] = False
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight, bias, columns, gone in zip(
            copied.weights,
            copied.biases,
            copied.readout_by_channel(),
            torch.split(dead, list(model.widths)),
            strict=True,
        ):
            weight[gone], bias[gone], columns[gone] = 0.0, 0.0, 0.0
    return shrink(copied)
