"""Arrays as bytes: what a task's data look like in the store, and the hash that keys its cells."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping

import numpy as np

from steelyard.contracts import Arrays
from steelyard.errors import InputError


def plain(arrays: Mapping[str, object], task: str) -> dict[str, np.ndarray]:
    """Return ``arrays`` as numpy arrays of plain numbers, booleans or unicode text; anything else is refused."""
    checked = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biufcU":
            raise InputError(
                f"task {task}: array '{name}' has dtype {array.dtype}; only numbers and text can be stored"
            )
        checked[name] = np.ascontiguousarray(array) if array.ndim else array
    return checked


def content_hash(arrays: Arrays) -> str:
    """Return a SHA-256 over names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\x1f{array.dtype.str}\x1f{array.shape}\x1f".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def to_bytes(arrays: Arrays) -> bytes:
    """Return an npz archive, without pickled objects."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def from_bytes(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an npz archive; pickled objects are refused."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
