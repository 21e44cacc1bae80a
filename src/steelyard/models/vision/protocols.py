"""What a vision-language model is to the library: the answers' log-probabilities given frames and a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Frames = Any
"""Pictures of a clip in time order: (n, height, width, 3), a list of pictures, or a model's own features of them."""


class LMDims(NamedTuple):
    """Sizes of a language model, from which the operations of a forward pass follow.

    Attributes:
        d: Width.
        d_ffn: Inner width of the feed-forward part; of the active and shared experts, if there are several.
        d_kv: Width of keys and of values.
        layers: Number of blocks.
        vocab: Rows of the output matrix.
        d_q: Width of queries, where it is not ``d``.
        ffn_matrices: 3 with a gate, 2 without.
    """

    d: int
    d_ffn: int
    d_kv: int
    layers: int
    vocab: int
    d_q: int | None = None
    ffn_matrices: int = 3


@runtime_checkable
class VisionLanguageModel(Protocol):
    """A model that answers a question with options about a clip.

    Two more methods are used where a model has them: ``option_logprobs_batch(clips, timestamps, question, options,
    resolution)`` for many clips of one length, (clips, options), and ``encode_frames(frames, resolution)``, whose
    result is accepted in the place of frames.
    """

    @property
    def dims(self) -> LMDims | None:
        """Sizes of its language model; None where they are not known, as of a server's."""
        ...

    def option_logprobs(
        self,
        frames: Frames,
        timestamps: Sequence[float] | NDArray[np.floating[Any]],
        question: str,
        options: Sequence[str],
        resolution: int | None,
    ) -> NDArray[np.float64]:
        """Return the log-probability of each option, (options,), normalised over the options or not.

        ``resolution`` is in pixels a frame; None: as the frames come.
        """
        ...

    def token_count(self, n_frames: int, resolution: int | None, question: str, options: Sequence[str]) -> int | None:
        """Return how many tokens the language model reads for a clip of ``n_frames``; None where it is not known."""
        ...
