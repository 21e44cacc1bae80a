"""Any source of sentence vectors as one function from texts to unit rows, and a cache of its vectors on disk."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError, StoreError
from steelyard.models.embedders import unit_rows
from steelyard.models.paths import printable, usable_path

Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
"""From texts to unit rows, float32 of shape (texts, width)."""

_SCHEMA = "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"


def as_encoder(embedder: Any) -> Encoder:
    """Return ``embedder`` as a function from texts to unit rows that checks what comes back.

    Args:
        embedder: An Embedder of ``steelyard.models`` (it has ``encode``), or a function from texts to vectors.

    Raises:
        InputError: It is neither; and, when called, not one finite vector per text, all of one width: the message
            names the first text that is at fault. A vector of zeros stays as it is.
    """
    call = getattr(embedder, "encode", embedder)
    if not callable(call):
        raise InputError(
            "embedder must be an Embedder of steelyard.models or a function from a list of texts to vectors, "
            f"got {type(embedder).__name__}"
        )

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked = list(texts)
        return _checked(call(asked), asked) if asked else np.zeros((0, 0), dtype=np.float32)

    return encode


def _checked(answer: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    try:
        rows = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        rows = None
    if rows is None:
        raise InputError(f"embedder: {_first_odd(answer, texts)} has a vector of another kind or length than the rest")
    if rows.ndim != 2 or rows.shape[0] != len(texts) or rows.shape[1] == 0:
        missing = min(len(rows), len(texts) - 1) if rows.ndim == 2 else 0
        raise InputError(
            f"embedder must give {len(texts)} vectors, an array of shape ({len(texts)}, width), and gave shape "
            f"{rows.shape}: {_shown(texts, missing)} is the first without one"
        )
    odd = np.flatnonzero(~np.isfinite(rows).all(axis=1) | (np.abs(rows) > 1e30).any(axis=1))
    if len(odd):
        raise InputError(f"embedder gave numbers that are not finite for {_shown(texts, int(odd[0]))}")
    return unit_rows(rows.astype(np.float32))


def _first_odd(answer: Any, texts: Sequence[str]) -> str:
    width = None
    for place, row in enumerate(answer if isinstance(answer, Sequence) else ()):
        try:
            shape = np.asarray(row, dtype=np.float64).shape
        except (TypeError, ValueError):
            return _shown(texts, place)
        width = shape if width is None else width
        if shape != width:
            return _shown(texts, place)
    return _shown(texts, 0)


def _shown(texts: Sequence[str], place: int) -> str:
    if place >= len(texts):
        return f"texts[{place}]"
    return f"texts[{place}] ('{printable(texts[place][:60])}')"


class EmbeddingCache:
    """An encoder whose vectors are kept, by the SHA-256 of its name and the text, in a SQLite file or in memory.

    A file is safe to share between processes; a damaged entry is encoded again.

    Args:
        encoder: An Embedder, or a function from texts to vectors.
        path: The file; None: memory.
        name: What tells this encoder's vectors from another's, e.g. ``"minilm"``; change it when the encoder changes.

    Raises:
        InputError: ``name`` is empty, or the path cannot be used.
        StoreError: The file is no such cache, or cannot be opened.
    """

    def __init__(self, encoder: Any, path: str | Path | None = None, *, name: str) -> None:
        if not name.strip():
            raise InputError("name must tell this encoder from another, it is empty")
        self._encode, self._name = as_encoder(encoder), name
        self._path = None if path is None else usable_path(path)
        self._memory: dict[bytes, NDArray[np.float32]] = {}
        if self._path is not None:
            self._on_file(lambda connection: connection.execute(_SCHEMA))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit rows, float32 of shape (texts, width); only texts that were never seen are encoded."""
        keys = [self._key(text) for text in texts]
        known = self._read(keys)
        new = list(dict.fromkeys(text for text, key in zip(texts, keys, strict=True) if key not in known))
        if new:
            vectors = self._encode(new)
            fresh = {self._key(text): vector for text, vector in zip(new, vectors, strict=True)}
            self._write(fresh)
            known.update(fresh)
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)
        rows = [known[key] for key in keys]
        if len({row.shape for row in rows}) > 1:
            raise InputError(f"the cache holds vectors of another width under the name {self._name!r}; give a new name")
        return np.stack(rows)

    encode = __call__

    def _key(self, text: str) -> bytes:
        joined = f"{self._name}\x1f{text}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(joined).digest()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        if self._path is None:
            return {key: self._memory[key] for key in keys if key in self._memory}
        wanted = sorted(set(keys))

        def rows(connection: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
            ask = "SELECT key, vector FROM vectors WHERE key = ?"
            return [row for key in wanted for row in connection.execute(ask, (key,))]

        found = self._on_file(rows)
        vectors = {key: np.frombuffer(blob, dtype="<f4") for key, blob in found if len(blob) % 4 == 0 and blob}
        return {key: vector for key, vector in vectors.items() if np.isfinite(vector).all()}

    def _write(self, fresh: dict[bytes, NDArray[np.float32]]) -> None:
        if self._path is None:
            self._memory.update(fresh)
            return
        rows = [(key, vector.astype("<f4").tobytes()) for key, vector in fresh.items()]
        self._on_file(lambda connection: connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows))

    def _on_file(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            with closing(sqlite3.connect(str(self._path), timeout=30.0)) as connection, connection:
                return action(connection)
        except sqlite3.Error as error:
            raise StoreError(f"the cache of vectors {printable(str(self._path))} cannot be used ({error})") from error
