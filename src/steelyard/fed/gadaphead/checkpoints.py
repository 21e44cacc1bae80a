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
    """Write arrays by part and name, what run they belong to, and a text; an array of several names is written once."""
    arrays = {f"{part}\x1f{name}": np.asarray(values) for part, own in parts.items() for name, values in own.items()}
    stored = list({id(values): values for values in arrays.values()}.values())
    place = {id(values): number for number, values in enumerate(stored)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                run=np.array(run),
                text=np.array(text),
                names=np.array(list(arrays)),
                places=np.array([place[id(values)] for values in arrays.values()], dtype=np.int64),
                **{f"array{i}": values for i, values in enumerate(stored)},
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
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            theirs, text, names = str(file["run"]), str(file["text"]), [str(name) for name in file["names"]]
            places = [int(place) for place in file["places"]]
            stored = {place: file[f"array{place}"] for place in sorted(set(places))}
            arrays = dict(zip(names, (stored[place] for place in places), strict=True))
    except Exception as error:  # a file may be broken in any way, and numpy's reader has an exception for each
        raise InputError(
            f"checkpoint {path} cannot be read ({error}): damaged, or of another version; remove it to begin anew"
        ) from None
    if theirs != run:
        raise InputError(f"checkpoint {path} is of another run ({theirs}, not {run}); remove it or name another file")
    parts: dict[str, dict[str, Array]] = {}
    for name, values in arrays.items():
        part, _, own = name.partition("\x1f")
        parts.setdefault(part, {})[own] = values
    return parts, text


def _check_sizes(path: Path) -> None:
    """Raise ValueError if the file would fill more memory than it has bytes, as ours never do."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("it is compressed or overlaps itself")
