"""The map of importance as a picture: a shade for every frame round its thumbnail, the selected ones outlined."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from steelyard.contracts import Grid
from steelyard.models.vision.pictures import resized
from steelyard.vision.gridprobe.core import select_frames
from steelyard.vision.gridprobe.probe import GridProbeAnswer

_PIXELS, _LARGEST = 24 * 24, 2900


def map_picture(found: GridProbeAnswer, frames: Any, name: str = "map", title: str = "Where the model is sure") -> Grid:
    """Return the picture of an answer.

    Args:
        found: What the probes said.
        frames: The video that was asked about.
        name: Of the picture.
        title: Its heading.
    """
    side = len(found.importance)
    cells = select_frames(found.importance, found.m_eff).tolist()
    return Grid(
        name=name,
        title=title,
        caption=f"{side} x {side} frames in rows by time; fuller colour: the model was surer of some answer in "
        f"that row and column. Outlined: the {len(cells)} frames that are read once more.",
        values=tuple(tuple(map(float, row)) for row in found.importance),
        marked=tuple(divmod(cell, side) for cell in cells),
        images=_thumbnails([frames[int(at)] for at in found.sampled.ravel()]) if side <= 16 else (),
    )


def _thumbnails(frames: Sequence[Any]) -> tuple[str, ...]:
    """Return small PNG files in base64; none at all if one of them would be too large."""
    found = []
    for frame in frames:
        stream = io.BytesIO()
        picture = resized(frame, min(_PIXELS, int(np.prod(np.shape(frame)[:2]))))
        picture.convert("RGB").quantize(32).save(stream, "PNG", optimize=True)
        found.append(base64.b64encode(stream.getvalue()).decode())
    return tuple(found) if max(map(len, found)) <= _LARGEST else ()
