"""A vision-language model behind a URL, read through the top log-probabilities of its first answer token."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.models.http_client import Endpoint, check_model_name
from steelyard.models.vision.pictures import resized
from steelyard.models.vision.transformers_vlm import LETTERS, multiple_choice

MOST = 20
"""Log-probabilities that the OpenAI protocol returns at most."""


class EndpointVLM:
    """A model of any server that speaks the OpenAI chat protocol with images and ``logprobs``; `VisionLanguageModel`.

    Frames are sent as JPEG pictures in the order of time. A letter that is not among the returned tokens gets the
    lowest of their log-probabilities, which is the most that it can have, and this is warned of; with many options use
    a model in process and score their texts.

    Args:
        base_url: The server, with or without ``/v1``.
        model: Name of the model there.
        api_key: Key to send; without one the environment variable STEELYARD_API_KEY counts.
        timeout: Seconds for one attempt at a request.
        max_concurrency: Most requests at a time.
        retries: How often a request is tried again.
        quality: Of the JPEG pictures, 1 to 95.
    """

    dims = None
    """Sizes of the language model, which a server does not say: operations are not counted."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_concurrency: int = 4,
        retries: int = 2,
        quality: int = 90,
    ) -> None:
        if not 1 <= quality <= 95:
            raise InputError(f"quality must be from 1 to 95, got {quality}")
        self.model, self.quality = check_model_name(model), quality
        self._endpoint = Endpoint(base_url, api_key, timeout, max_concurrency, retries)
        self._tokens: dict[tuple[int, int | None], int] = {}

    def close(self) -> None:
        """End the connections; the model cannot be used afterwards."""
        self._endpoint.close()

    def token_count(self, n_frames: int, resolution: int | None, question: str, options: Sequence[str]) -> int | None:
        """Return what the server counted for the last clip of as many frames; None for one that was never sent."""
        return self._tokens.get((n_frames, resolution))

    def option_logprobs(
        self, frames: Any, timestamps: Any, question: str, options: Sequence[str], resolution: int | None
    ) -> NDArray[np.float64]:
        """Return the log-probability of each option's letter, (options,)."""
        return np.asarray(self.option_logprobs_batch([frames], [timestamps], question, options, resolution)[0])

    def option_logprobs_batch(
        self,
        clips: Sequence[Any],
        timestamps: Sequence[Any],
        question: str,
        options: Sequence[str],
        resolution: int | None,
    ) -> NDArray[np.float64]:
        """Return the same for many clips, asked side by side, (clips, options).

        Raises:
            InputError: Fewer than 2 or more than 20 options.
            EndpointError: The server failed, or returns no log-probabilities.
        """
        if not 2 <= len(options) <= MOST:
            raise InputError(f"options: a server's log-probabilities serve 2 to {MOST} options, got {len(options)}")
        bodies = [self._body(clip, question, options, resolution) for clip in clips]
        answers = self._endpoint.post_all("chat/completions", bodies)
        for clip, answer in zip(clips, answers, strict=True):
            self._count(len(clip), resolution, answer)
        return np.array([self._read(answer, LETTERS[: len(options)]) for answer in answers])

    def _body(self, clip: Any, question: str, options: Sequence[str], resolution: int | None) -> dict[str, Any]:
        pictures: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": self._url(resized(frame, resolution))}} for frame in clip
        ]
        text = {"type": "text", "text": multiple_choice(question, options)}
        return {
            "model": self.model, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": MOST,
            "messages": [{"role": "user", "content": [*pictures, text]}],
        }  # fmt: skip

    def _url(self, picture: Any) -> str:
        stream = io.BytesIO()
        picture.convert("RGB").save(stream, "JPEG", quality=self.quality)
        return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()

    def _count(self, n_frames: int, resolution: int | None, answer: Mapping[str, Any]) -> None:
        usage = answer.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if isinstance(count, int) and not isinstance(count, bool):
            self._tokens[n_frames, resolution] = count

    def _read(self, answer: Mapping[str, Any], letters: str) -> NDArray[np.float64]:
        """Return the letters' log-probabilities of an answer that may hold anything."""
        try:
            returned = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            pairs = [(str(one["token"]), float(one["logprob"])) for one in returned]
        except (KeyError, IndexError, TypeError, ValueError):
            pairs = []
        pairs = [(token, value) for token, value in pairs if value <= 1e-6]  # drops NaN too
        if not pairs:
            raise self._endpoint.unusable("chat/completions", "it holds no log-probabilities (top_logprobs)")
        least, found = min(value for _, value in pairs), []
        for letter in letters:
            own = [value for token, value in pairs if token.strip().strip("().") == letter]
            if not own:
                warnings.warn(
                    f"letter {letter} is not among the {len(pairs)} log-probabilities of {self.model}: it counts as "
                    "the least of them",
                    stacklevel=4,
                )
            found.append(math.log(sum(map(math.exp, own))) if own and sum(map(math.exp, own)) else least)
        return np.array(found)
