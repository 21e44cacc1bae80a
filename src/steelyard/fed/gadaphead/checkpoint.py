"""State of a federation in a file: arrays by name in an npz, written whole or not at all, read without pickle."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError

_FORMAT = "steelyard-federation-1"


def write_state(path: Path, state: Mapping[str, ArrayLike]) -> None:
    """Write arrays by name; a crash leaves the file of before.

    Args:
        path: File, by habit ``*.npz``.
        state: Name -> array of numbers or text; objects are refused.

    Raises:
        InputError: The file cannot be written, or a value is no array of numbers or text.
    """
    arrays = {name: np.asarray(value) for name, value in state.items()}
    for name, value in arrays.items():
        if value.dtype.hasobject:
            raise InputError(f"state {name!r} is no array of numbers or text and cannot be written to {path}")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(beside, "w") as archive:
            # numpy.savez takes names as keyword arguments, among them its own "file"
            for name, value in {"format": np.asarray(_FORMAT), **arrays}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, value, allow_pickle=False)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"the checkpoint {path} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``write_state`` wrote.

    Raises:
        InputError: The file cannot be read, is none of ours, or holds pickled objects.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            state = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"the checkpoint {path} cannot be read: {error}; remove it to start anew") from error
    if str(state.pop("format", "")) != _FORMAT:
        raise InputError(f"{path} is no checkpoint of a federation; give another file name")
    return state
