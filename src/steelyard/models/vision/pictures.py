"""Frames as pictures of a wanted size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require


def resized(frame: Any, pixels: int | None, *, square: bool = False, multiple: int = 1) -> Any:
    """Return a picture with at most ``pixels`` pixels; the sides' ratio is kept unless ``square``.

    Args:
        frame: (height, width, 3) or a Pillow image.
        pixels: Wanted; None: as it is.
        square: Make both sides alike, as the released code does.
        multiple: Sides are rounded down to a multiple of it.

    Raises:
        InputError: Fewer than one pixel.
    """
    image = require("PIL.Image", "vision")
    picture = (
        frame if hasattr(frame, "resize") and not isinstance(frame, np.ndarray) else image.fromarray(_bytes(frame))
    )
    if pixels is None:
        return picture
    if pixels < 1:
        raise InputError(f"resolution must be at least 1 pixel a frame, got {pixels}")
    width, height = picture.size
    scale = (pixels / (width * height)) ** 0.5
    sides = (pixels**0.5, pixels**0.5) if square else (width * scale, height * scale)
    return picture.resize(tuple(max(multiple, int(side) // multiple * multiple) for side in sides))


def _bytes(frame: Any) -> NDArray[np.uint8]:
    values = np.asarray(frame)
    if values.dtype == np.uint8:
        return values
    return np.asarray((np.clip(values, 0, 1) * 255).round(), np.uint8)
