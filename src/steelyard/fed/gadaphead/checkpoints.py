"""Checkpoints of federated runs: one .npz file of plain arrays, replaced as a whole."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Array = NDArray[Any]


def write(path: Path, run: str, parts: Mapping[str, Mapping[str, Array]], text: str) -> None:
    """Write arrays by part and name, what run they belong to, and a text."""
    arrays = {f"{part}\x1f{name}": np.asarray(values) for part, own in parts.items() for name, values in own.items()}
    names = np.array(list(arrays))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                run=np.array(run),
                text=np.array(text),
                names=names,
                **{f"array{i}": values for i, values in enumerate(arrays.values())},
            )
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, run: str) -> tuple[dict[str, dict[str, Array]], str]:
    """Return the arrays and the text of a checkpoint.

    Raises:
        InputError: It cannot be read, or belongs to another run.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            theirs, text, names = str(file["run"]), str(file["text"]), [str(name) for name in file["names"]]
            arrays = [file[f"array{i}"] for i in range(len(names))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error}; remove it to begin anew") from None
    if theirs != run:
        raise InputError(f"checkpoint {path} is of another run ({theirs}, not {run}); remove it or name another file")
    parts: dict[str, dict[str, Array]] = {}
    for name, values in zip(names, arrays, strict=True):
        part, _, own = name.partition("\x1f")
        parts.setdefault(part, {})[own] = values
    return parts, text
