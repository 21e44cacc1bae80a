"""One recurrent step of the lattice as few convolutions: all layers in one, or one per layer.

Every edge takes one step, so the layers of a step do not depend on one another. Few channels are best served by a
single convolution over the channels of all layers (blocks that are no edges hold zeros); many channels, or strides, by
one convolution per layer over the concatenated neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_DENSE_CHANNELS = 48  # above, the zero blocks cost more than the fewer calls save (measured on one thread)


class Kernel(Protocol):
    """The recurrent step for one batch of images; ``state`` is opaque to the caller."""

    def first(self) -> list[Tensor]:
        """Return the state after step 1, when every earlier state is zero."""
        ...

    def step(self, state: list[Tensor]) -> list[Tensor]:
        """Return the state one step later."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch only."""
        ...


def make_kernel(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int]) -> Kernel:
    """Return the faster kernel for these layers.

    Args:
        x: Images of shape (B, in_channels, H, W).
        weights: Per layer (C_l, inputs, 3, 3); the inputs are those from below (the image for the first layer), the
            layer's own and those from above, concatenated.
        biases: Per layer (C_l,).
        strides: Spatial stride of each layer.
    """
    dense = all(stride == 1 for stride in strides) and sum(bias.shape[0] for bias in biases) <= _DENSE_CHANNELS
    return DenseKernel(x, weights, biases) if dense else LayerKernel(x, weights, biases, strides)


class DenseKernel:
    """All layers in one convolution; the state is one tensor (B, sum of channels, H, W)."""

    def __init__(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        channels = [bias.shape[0] for bias in biases]
        total, first, images = sum(channels), channels[0], x.shape[1]
        x = x.contiguous(memory_format=torch.channels_last)
        image = functional.conv2d(x, weights[0][:, :images], biases[0], padding=1)  # constant in time: once
        if len(channels) > 1:
            rest = torch.cat(list(biases[1:])).view(1, -1, 1, 1).expand(x.shape[0], -1, *image.shape[2:])
            image = torch.cat((image, rest), 1)
        self._drive = image.contiguous(memory_format=torch.channels_last)
        rows, start = [torch.constant_pad_nd(weights[0][:, images:], _inputs(0, total, first + sum(channels[1:2])))], 0
        for index in range(1, len(channels)):
            end = start + weights[index].shape[1]
            rows.append(torch.constant_pad_nd(weights[index], _inputs(start, total, end)))
            start += channels[index - 1]
        self._weight = torch.cat(rows) if len(rows) > 1 else rows[0]

    def first(self) -> list[Tensor]:
        """Return the state after step 1."""
        return [torch.relu(self._drive)]

    def step(self, state: list[Tensor]) -> list[Tensor]:
        """Return the state one step later."""
        # In place on the fresh result of the convolution, whose gradient does not need it.
        return [functional.conv2d(state[0], self._weight, padding=1).add_(self._drive).relu_()]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch only."""
        self._drive = self._drive[rows]


def _inputs(start: int, total: int, end: int) -> tuple[int, ...]:
    """Padding that puts a weight's inputs at start..end of ``total``."""
    return 0, 0, 0, 0, start, total - end


class LayerKernel:
    """One convolution per layer (two where a stride separates the layer from the one below)."""

    def __init__(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int]) -> None:
        self._strides = tuple(strides)
        self._biases = list(biases)
        channels = [bias.shape[0] for bias in biases]
        x = x.contiguous(memory_format=torch.channels_last)
        below = [x.shape[1], *channels[:-1]]
        self._image = functional.conv2d(x, weights[0][:, : below[0]], biases[0], strides[0], padding=1)
        # Layer 1 sees the image through the drive, a strided layer sees the one below through its own convolution.
        apart = [index == 0 or stride > 1 for index, stride in enumerate(strides)]
        self._up = [weight[:, :n] if split else None for weight, n, split in zip(weights, below, apart, strict=True)]
        self._near = [
            weight[:, n:] if split else weight for weight, n, split in zip(weights, below, apart, strict=True)
        ]

    def first(self) -> list[Tensor]:
        """Return the state after step 1."""
        height, width = self._image.shape[2:]
        state = [torch.relu(self._image)]
        for bias, stride in zip(self._biases[1:], self._strides[1:], strict=True):
            height, width = -(-height // stride), -(-width // stride)
            state.append(torch.relu(bias).view(1, -1, 1, 1).expand(self._image.shape[0], -1, height, width))
        return state

    def step(self, state: list[Tensor]) -> list[Tensor]:
        """Return the state one step later."""
        return [self._layer(state, index).relu_() for index in range(len(state))]

    def _layer(self, state: list[Tensor], index: int) -> Tensor:
        near = [state[index]]
        up = self._up[index]
        if up is None:
            near.insert(0, state[index - 1])
        if index + 1 < len(state):
            above = state[index + 1]
            size = state[index].shape[2:]
            near.append(above if above.shape[2:] == size else functional.interpolate(above, size=size))
        near_input = torch.cat(near, 1) if len(near) > 1 else near[0]
        near_input = near_input.contiguous(memory_format=torch.channels_last)
        if index == 0:
            return functional.conv2d(near_input, self._near[0], padding=1).add_(self._image)
        z = functional.conv2d(near_input, self._near[index], self._biases[index], padding=1)
        if up is None:
            return z
        return z.add_(functional.conv2d(state[index - 1], up, stride=self._strides[index], padding=1))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch only."""
        self._image = self._image[rows]
