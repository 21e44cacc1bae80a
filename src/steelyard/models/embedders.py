"""Sentence encoders: a transformer's mean over tokens, hashed n-grams that need no model, and an endpoint's vectors."""

from __future__ import annotations

import copy
import hashlib
import itertools
import threading
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.batches import padded

Keep = Literal["start", "end"]


class TokenStates(NamedTuple):
    """What an encoder says of each token of a text.

    Attributes:
        states: float32 of shape (tokens, width), not normalised.
        offsets: int64 of shape (tokens, 2): where each token begins and ends in the text, in characters; a special
            token, which stands for no character, has (0, 0).
    """

    states: NDArray[np.float32]
    offsets: NDArray[np.int64]

    def span(self, start: int, end: int) -> NDArray[np.float32]:
        """Return the unit-length mean over the tokens that overlap the characters ``start`` to ``end``, shape (width,).

        This is late chunking: every token was encoded with the whole text around it.

        Raises:
            InputError: No token overlaps them.
        """
        inside = (self.offsets[:, 0] < end) & (self.offsets[:, 1] > start)
        if start >= end or not inside.any():
            raise InputError(f"no token of the text lies in the characters {start} to {end}; choose another span")
        mean: NDArray[np.float32] = unit_rows(self.states[inside].mean(0, keepdims=True))[0]
        return mean


class _Coded(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]


class TransformersEmbedder:
    """Sentence embeddings by a bidirectional encoder: the mean of the last layer over all tokens, at unit length.

    Args:
        model: A transformers encoder, such as ``BertModel``; it stays on its device.
        tokenizer: Its tokenizer, of the fast kind.
        max_length: Most tokens of a text, special tokens among them.
        truncate: What happens to a longer text: ``"warn"`` cuts it and warns once, ``"error"`` refuses it.
    """

    def __init__(
        self, model: Any, tokenizer: Any, max_length: int = 256, truncate: Literal["warn", "error"] = "warn"
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise InputError("tokenizer must be a fast tokenizer of transformers; it tells where each token lies")
        limit = getattr(model.config, "max_position_embeddings", max_length)
        if not 2 < max_length <= limit:
            raise InputError(f"max_length must be from 3 to the encoder's {limit} positions, got {max_length}")
        if truncate not in ("warn", "error"):
            raise InputError(f"truncate must be 'warn' or 'error', got {truncate!r}")
        self.max_length = max_length
        self._model, self._truncate, self._warned = model.eval(), truncate, False
        self._tokenizers: dict[Keep, Any] = {"start": copy.deepcopy(tokenizer), "end": copy.deepcopy(tokenizer)}
        self._tokenizers["start"].truncation_side = "right"  # which side is cut is a state of a tokenizer
        self._tokenizers["end"].truncation_side = "left"
        self._lock = threading.Lock()  # a fast tokenizer cannot be used by two threads at once

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self._model.config.hidden_size)

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return one vector of unit length per text, float32 of shape (texts, width).

        Raises:
            InputError: Not a list of texts, a text without tokens, or one that is too long and not to be cut.
        """
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        for index, _, states in self._run(texts, batch_size, "start"):
            found[index] = states.mean(0)
        return unit_rows(found)

    def encode_tokens(self, texts: Sequence[str], batch_size: int = 64, keep: Keep = "start") -> list[TokenStates]:
        """Return the states of the tokens of each text; :meth:`TokenStates.span` pools over a part of it.

        Args:
            texts: The texts.
            batch_size: Texts that are run at once.
            keep: Which end of a text that is too long is kept.

        Raises:
            InputError: As in :meth:`encode`.
        """
        found: dict[int, TokenStates] = {}
        for index, coded, states in self._run(texts, batch_size, keep):
            found[index] = TokenStates(states, np.array(coded.offsets, dtype=np.int64).reshape(-1, 2))
        return [found[index] for index in range(len(texts))]

    def _run(
        self, texts: Sequence[str], batch_size: int, keep: Keep
    ) -> Iterator[tuple[int, _Coded, NDArray[np.float32]]]:
        """Yield (index, tokens, states) of every text, texts of like length together so that padding costs little."""
        torch = require("torch", "models")
        check_texts(texts, batch_size)
        coded = self._code(texts, keep)
        order = sorted(range(len(coded)), key=lambda index: -len(coded[index].ids))
        device = next(self._model.parameters()).device
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids, mask = padded([coded[index].ids for index in batch], "right", device)
            with torch.inference_mode():
                hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float().cpu().numpy()
            for place, index in enumerate(batch):
                yield index, coded[index], hidden[place, : len(coded[index].ids)]

    def _code(self, texts: Sequence[str], keep: Keep) -> list[_Coded]:
        if keep not in self._tokenizers:
            raise InputError(f"keep must be 'start' or 'end', got {keep!r}")
        if not texts:
            return []
        coded = self._tokenise(texts, keep, self.max_length + 1)  # one more tells which are too long
        long = [index for index, one in enumerate(coded) if len(one.ids) > self.max_length]
        if long:
            self._say_truncated(long)
            cut = self._tokenise([texts[index] for index in long], keep, self.max_length)
            for index, one in zip(long, cut, strict=True):
                coded[index] = one
        empty = [index for index, one in enumerate(coded) if not one.ids]
        if empty:
            raise InputError(f"texts[{empty[0]}] has no tokens; leave it out")
        return coded

    def _tokenise(self, texts: Sequence[str], keep: Keep, limit: int) -> list[_Coded]:
        with self._lock:
            coded = self._tokenizers[keep](
                list(texts), truncation=True, max_length=limit, return_offsets_mapping=True, verbose=False
            )
        return [_Coded(*pair) for pair in zip(coded["input_ids"], coded["offset_mapping"], strict=True)]

    def _say_truncated(self, long: Sequence[int]) -> None:
        what = f"texts[{long[0]}] has more than {self.max_length} tokens"
        if self._truncate == "error":
            raise InputError(f"{what}; shorten it, or let it be cut with truncate='warn'")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{what}; the rest is not read (said once)", UserWarning, stacklevel=5)


class HashingEmbedder:
    """Embeddings without a model: signed counts of word and character n-grams, hashed into ``dim`` places.

    Words and pairs of words, and runs of 3 and 4 characters, of the case-folded text; the sign of a count comes from
    the hash as well, so that collisions cancel on average (Weinberger et al. 2009). Texts that share words are close;
    it knows nothing of meaning.

    Args:
        dim: Length of an embedding.
    """

    def __init__(self, dim: int = 512) -> None:
        if not 8 <= dim <= 1 << 20:
            raise InputError(f"dim must be from 8 to {1 << 20}, got {dim}")
        self.width = dim

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return one vector of unit length per text, float32 of shape (texts, dim).

        Raises:
            InputError: Not a list of texts.
        """
        check_texts(texts, batch_size)
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        for row, text in zip(found, texts, strict=True):
            hashes = np.array([_hash(gram) for gram in _grams(text)], dtype=np.uint64)
            signs = np.where(hashes >> np.uint64(63), 1.0, -1.0).astype(np.float32)
            np.add.at(row, (hashes % np.uint64(self.width)).astype(np.int64), signs)
            if not row.any():  # no n-gram, or all of them cancelled
                row[_hash(text) % self.width] = 1
        return unit_rows(found)


class EndpointEmbedder:
    """Embeddings by a server's ``/v1/embeddings``, brought to unit length.

    Args:
        base_url: The server, with or without ``/v1``.
        model: Name of the model there.
        api_key: Key to send; without one the environment variable STEELYARD_API_KEY counts.
        timeout: Seconds for one attempt.
        max_concurrency: Most requests at a time.
        retries: How often a failed request is tried again.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_concurrency: int = 8,
        retries: int = 2,
    ) -> None:
        from steelyard.models.http_client import Endpoint, check_model_name

        self.model = check_model_name(model)
        self._endpoint = Endpoint(base_url, api_key, timeout, max_concurrency, retries)
        self._width = 0

    def __repr__(self) -> str:
        return f"EndpointEmbedder({self._endpoint.shown!r}, model={self.model!r})"

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return one vector of unit length per text, float32 of shape (texts, width); (0, 0) before the first text.

        Raises:
            InputError: Not a list of texts.
            EndpointError: The server failed or answered something else than one finite vector per text.
        """
        check_texts(texts, batch_size)
        batches = [list(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)]
        bodies: list[dict[str, Any]] = [
            {"model": self.model, "input": batch, "encoding_format": "float"} for batch in batches
        ]
        answers = self._endpoint.post_all("embeddings", bodies)
        rows = [
            row for answer, batch in zip(answers, batches, strict=True) for row in self._vectors(answer, len(batch))
        ]
        return unit_rows(np.array(rows, dtype=np.float32).reshape(len(texts), self._width))

    def close(self) -> None:
        """End the connections; the embedder cannot be used afterwards."""
        self._endpoint.close()

    def _vectors(self, answer: Mapping[str, Any], count: int) -> list[list[float]]:
        listed = answer.get("data")
        rows: dict[int, list[float]] = {}
        for place, item in enumerate(listed if isinstance(listed, list) else []):
            vector = item.get("embedding") if isinstance(item, dict) else None
            if not isinstance(vector, list) or not vector or not all(_is_small(value) for value in vector):
                raise self._endpoint.unusable("embeddings", f"item {place} of 'data' has no list of finite numbers")
            index = item.get("index", place)
            rows[index if type(index) is int else place] = vector
        if sorted(rows) != list(range(count)):
            raise self._endpoint.unusable("embeddings", f"'data' does not hold one vector for each of {count} texts")
        vectors = [rows[index] for index in range(count)]
        self._width = self._width or len(vectors[0])
        if any(len(vector) != self._width for vector in vectors):
            raise self._endpoint.unusable("embeddings", f"a vector has not {self._width} numbers like the first")
        return vectors


def check_texts(texts: Sequence[str], batch_size: int) -> None:
    """Raise InputError unless ``texts`` is a list of texts and ``batch_size`` a positive number."""
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one string; write [text]")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{index}] must be text, got {type(text).__name__}")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of shape (rows, width) divided by their length; a row of zeros stays."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _is_small(value: object) -> bool:
    """Tell whether a value of a JSON text is a number that float32 can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _grams(text: str) -> Iterator[str]:
    """Yield words, pairs of words, and the runs of 3 and 4 characters of each word with a space on either side."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    yield from (f"w {word}" for word in words)
    yield from (f"w {one} {other}" for one, other in itertools.pairwise(words))
    for word in words:
        spaced = f" {word} "
        for size in (3, 4):
            yield from (f"c {spaced[start : start + size]}" for start in range(len(spaced) - size + 1))


@lru_cache(maxsize=1 << 16)
def _hash(gram: str) -> int:
    return int.from_bytes(hashlib.blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
