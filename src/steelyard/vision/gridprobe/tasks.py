"""The bench's tasks: questions about made-up videos of 64 and of 144 frames."""

from __future__ import annotations

from functools import partial

import numpy as np

from steelyard.contracts import Arrays, Task

SOURCE = "made up: coloured shapes that appear for a moment (steelyard.models.vision.world)"


def grid(side: int) -> Arrays:
    """Return the side of the grid and the frames of a video."""
    return {"side": np.array(side), "frames": np.array(side * side)}


TASKS = (
    Task("videos64", "Videos of 64 frames, K = 8", partial(grid, 8), SOURCE),
    Task("videos144", "Videos of 144 frames, K = 12", partial(grid, 12), SOURCE),
    Task("videos256", "Videos of 256 frames, K = 16, longer than any in training", partial(grid, 16), SOURCE),
)
