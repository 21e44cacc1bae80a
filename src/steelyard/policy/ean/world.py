"""A made-up world of images with a language prior: six coloured shapes, each with a usual colour.

A question asks for the colour of a shape. In training data the colour is the usual one 85 times in a hundred, so that a
model can be right without looking; on counter-prior items it then is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError

SHAPES, COLOURS, CELLS = 6, 6, 16
PRIOR, NOISE = 0.85, 0.45
WIDTH = 48  # numbers of a patch: 4 x 4 pixels of three channels
_LOW, _HIGH = 0.2, 1.0
_HUES = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], np.float32)
_PATTERNS = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0],
        [1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1],
    ],
    np.float32,
)


class Items(NamedTuple):
    """Questions about images, N of them.

    Attributes:
        images: Patches, (N, 16, 48).
        question: Shape that is asked about, (N,).
        answer: Its colour, (N,).
        usual: The shape's usual colour, which a model without the image would say, (N,).
        evidence: Patch in which the shape is, (N,).
    """

    images: Tensor
    question: Tensor
    answer: Tensor
    usual: Tensor
    evidence: Tensor

    def __len__(self) -> int:
        return len(self.question)

    def take(self, rows: Tensor) -> Items:
        """Return some of the items."""
        return Items(*(values[rows] for values in self))

    @property
    def counter(self) -> Tensor:
        """Whether the colour is another than the usual one, (N,)."""
        return self.answer != self.usual


def draw_items(rng: np.random.Generator, count: int, *, prior: float = PRIOR, noise: float = NOISE) -> Items:
    """Draw items; shape s has the usual colour s.

    Args:
        rng: Of everything that is drawn.
        count: How many.
        prior: How often a colour is the usual one for certain; 0 draws all colours evenly.
        noise: Standard deviation of every number of a patch.

    Raises:
        InputError: A number out of its range.
    """
    if count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    if not (0 <= prior <= 1 and noise >= 0):
        raise InputError(f"prior must lie in [0, 1] and noise be at least 0, got {prior} and {noise}")
    cells = rng.permuted(np.tile(np.arange(CELLS), (count, 1)), axis=1)[:, :SHAPES]
    usual = np.arange(SHAPES)
    colours = np.where(rng.random((count, SHAPES)) < prior, usual, rng.integers(0, COLOURS, (count, SHAPES)))
    images = rng.standard_normal((count, CELLS, WIDTH), np.float32) * np.float32(noise)
    rows = np.arange(count)
    for shape in range(SHAPES):
        pixels = np.where(_PATTERNS[shape] > 0, _HIGH, _LOW).astype(np.float32)
        images[rows, cells[:, shape]] += (pixels[None, :, None] * _HUES[colours[:, shape]][:, None]).reshape(
            count, WIDTH
        )
    asked = rng.integers(0, SHAPES, count)
    found = (asked, colours[rows, asked], usual[asked], cells[rows, asked])
    return Items(torch.from_numpy(images), *(torch.from_numpy(np.asarray(values, np.int64)) for values in found))


def blank(images: Tensor) -> Tensor:
    """Return images without content, as many patches as before: the mean patch of the world's empty cells, 0."""
    return torch.zeros_like(images)
