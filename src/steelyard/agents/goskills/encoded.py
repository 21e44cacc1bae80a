"""Vectors of the bench: MiniLM's, encoded once per data set and looked up by cells."""

from __future__ import annotations

import functools
import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.embedding import EmbeddingCache, Encoder
from steelyard.models import minilm
from steelyard.models.embedders import TransformersEmbedder

MAX_TOKENS = 96  # of a text that MiniLM reads; cards and whole queries are cut there, for every arm alike
_KEY_BYTES = 16
_MARKS = re.compile(r"[:;\s]+")  # tokens that say nothing and would push words out of the 96; for every arm alike


@functools.cache
def minilm_encoder() -> EmbeddingCache:
    """Return MiniLM at 96 tokens, which keeps what it has encoded for as long as the process lives."""
    model = TransformersEmbedder(minilm.load(), minilm.tokenizer(), max_length=MAX_TOKENS)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        with warnings.catch_warnings():  # that it cuts is meant, and said in the card
            warnings.simplefilter("ignore", UserWarning)
            return model.encode([_MARKS.sub(" ", text) for text in texts])

    return EmbeddingCache(encode, name=f"minilm-{MAX_TOKENS}")


def recorded(encoder: Encoder, use: Callable[[Encoder], object]) -> dict[str, Any]:
    """Return the vectors of all texts that ``use`` has encoded, as arrays for :func:`lookup`.

    Returns:
        ``keys`` uint8 (texts, 16), sorted, and ``vectors`` float32 (texts, width).
    """
    seen: dict[bytes, NDArray[np.float32]] = {}

    def noting(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = encoder(texts)
        seen.update({_key(text): row for text, row in zip(texts, rows, strict=True)})
        return rows

    use(noting)
    keys = sorted(seen)
    table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), _KEY_BYTES).copy()
    return {"keys": table, "vectors": np.array([seen[key] for key in keys], dtype=np.float32)}


def lookup(data: Mapping[str, Any]) -> Encoder:
    """Return an encoder that finds texts among :func:`recorded` vectors and asks MiniLM only for others."""
    place_of = {bytes(key): place for place, key in enumerate(data["keys"])}
    vectors = np.asarray(data["vectors"], dtype=np.float32)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        places = [place_of.get(_key(text)) for text in texts]
        rest = [text for text, place in zip(texts, places, strict=True) if place is None]
        fresh = iter(minilm_encoder()(rest) if rest else ())
        rows = [next(fresh) if place is None else vectors[place] for place in places]
        return np.array(rows, dtype=np.float32).reshape(len(texts), vectors.shape[1])

    return encode


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]
