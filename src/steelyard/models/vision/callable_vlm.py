"""A plain function in the place of a vision-language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.models.vision.protocols import LMDims


class CallableVLM:
    """A function from (frames, timestamps, question, options, resolution) to log-probabilities; `VisionLanguageModel`.

    Args:
        function: Returns one log-probability an option, (options,).
        tokens_per_frame: From pixels a frame (or None) to its tokens; None: tokens are not counted.
        dims: Sizes of the language model; None: operations are not counted.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        tokens_per_frame: Callable[[int | None], int] | None = None,
        dims: LMDims | None = None,
    ) -> None:
        if not callable(function):
            raise InputError(f"function must be a function, got {type(function).__name__}")
        self._function, self._tokens, self.dims = function, tokens_per_frame, dims

    def option_logprobs(
        self, frames: Any, timestamps: Any, question: str, options: Sequence[str], resolution: int | None
    ) -> NDArray[np.float64]:
        """Return what the function returns.

        Raises:
            InputError: It returned something else than one number an option.
        """
        found = np.asarray(self._function(frames, timestamps, question, options, resolution), np.float64)
        if found.shape != (len(options),):
            raise InputError(f"function must return {len(options)} log-probabilities, got shape {found.shape}")
        return found

    def token_count(self, n_frames: int, resolution: int | None, question: str, options: Sequence[str]) -> int | None:
        """Return the tokens of the frames; the text's are not counted."""
        return None if self._tokens is None else n_frames * self._tokens(resolution)
