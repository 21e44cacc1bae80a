"""Find the files of a data set: the mirror folder first, then the cache, then a download into the cache.

``STEELYARD_DATA_MIRROR`` names a folder that holds converted copies and an ``index.json`` with their checksums;
``STEELYARD_DATA`` names the cache folder (else the user's data folder). No file is used whose bytes were not checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.data.registry import CACHE_VARIABLE, MIRROR_VARIABLE, Dataset, Origin, Progress, RemoteFile, lookup
from steelyard.errors import ChecksumError, DataMissingError, InputError, SteelyardError


@dataclass(frozen=True)
class Located:
    """The checked files of a data set, in the order of the registry, and where they lie."""

    origin: Origin
    paths: tuple[Path, ...]


def locate(name: str, progress: Progress | None = None) -> Located:
    """Return the checked files of the registered data set ``name``, downloading them when they are not here.

    Raises:
        InputError: No such data set, or it is embedded and has no files.
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The mirror or the source has other bytes than the pinned ones.
    """
    return obtain(lookup(name), progress)


def obtain(dataset: Dataset, progress: Progress | None = None) -> Located:
    """Do what :func:`locate` does, for a data set given as a record."""
    found = find_local(dataset)
    if found is not None:
        return found
    if dataset.mirror_only:
        raise missing(dataset)
    from steelyard.data.download import download  # urllib and ssl only when something is fetched

    folder = cache_folder() / dataset.room / dataset.name
    paths = tuple(folder / file.name for file in dataset.files)
    for file, path in zip(dataset.files, paths, strict=True):
        if not is_pinned(path, file):
            download(file, path, dataset.name, progress)
    return Located("cache", paths)


def find_local(dataset: Dataset) -> Located | None:
    """Return the mirrored or cached files, or None when they would have to be downloaded.

    Raises:
        InputError: ``dataset`` is embedded.
        DataMissingError: The mirror folder is not there or has no readable index.
        ChecksumError: A mirrored file has other bytes than the mirror's index says.
    """
    if dataset.embedded:
        raise InputError(f"data set '{dataset.name}' comes inside scikit-learn and has no files; load it instead")
    mirrored = _find_in_mirror(dataset)
    if mirrored is not None:
        return mirrored
    if dataset.mirror_only:
        return None
    folder = cache_folder() / dataset.room / dataset.name
    paths = tuple(folder / file.name for file in dataset.files)
    if all(is_pinned(path, file) for file, path in zip(dataset.files, paths, strict=True)):
        return Located("cache", paths)
    return None


def state_of(dataset: Dataset) -> Origin:
    """Say where a data set lies now, without fetching and without raising."""
    if dataset.embedded:
        return "embedded"
    try:
        found = find_local(dataset)
    except SteelyardError:
        return "damaged"
    return "absent" if found is None else found.origin


def missing(dataset: Dataset) -> DataMissingError:
    """Return the error that says how to get a data set which is not here."""
    if dataset.mirror_only:
        return DataMissingError(
            f"data set '{dataset.name}' is not here, and it is in a mirror folder only, because rows, fields or "
            f"pickles of its source were left out on purpose; set {MIRROR_VARIABLE} to a folder that holds it"
        )
    return DataMissingError(
        f"data set '{dataset.name}' is not here yet; get it with: steelyard data fetch {dataset.name}"
    )


def cache_folder() -> Path:
    """Return the folder that downloads go to; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "steelyard" / "data"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_pinned(path: Path, file: RemoteFile) -> bool:
    """Say whether ``path`` is a readable file with the pinned bytes; a damaged copy is as good as none."""
    try:
        size = path.stat().st_size
        fitting = [pin.sha256 for pin in file.pins if pin.size == size]
        return bool(fitting) and file_sha256(path) in fitting
    except OSError:
        return False


def _find_in_mirror(dataset: Dataset) -> Located | None:
    folder = os.environ.get(MIRROR_VARIABLE)
    if not folder or not dataset.mirror:
        return None
    root = Path(folder).expanduser()
    checksums = _mirror_checksums(root)
    if not all(file.path in checksums for file in dataset.mirror):
        return None  # a mirror need not hold everything; what it lacks may be cached or fetched
    for file in dataset.mirror:
        _check_mirrored(root, file.path, checksums[file.path])
    return Located("mirror", tuple(root / file.path for file in dataset.mirror))


def _mirror_checksums(root: Path) -> dict[str, str]:
    """Return path -> SHA-256 as listed in the mirror's index."""
    index = root / "index.json"
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
        return {file["path"]: file["sha256"] for entry in content["datasets"] for file in entry["files"]}
    except OSError as error:
        raise DataMissingError(
            f"{MIRROR_VARIABLE} is set to {root}, whose index.json cannot be read ({error.strerror or error}); "
            "point it at a mirror folder or unset it"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataMissingError(
            f"the mirror's {index} does not list files with their checksums; copy it again or unset {MIRROR_VARIABLE}"
        ) from error


def _check_mirrored(root: Path, relative: str, expected: str) -> None:
    path = root / relative
    try:
        actual = file_sha256(path)
    except OSError as error:
        raise DataMissingError(
            f"{path} is listed in the mirror's index but cannot be read ({error.strerror or error}); "
            f"copy it again or unset {MIRROR_VARIABLE}"
        ) from error
    if actual != expected:
        raise ChecksumError(
            f"{path} has SHA-256 {actual[:12]}… where the mirror's index.json says {expected[:12]}…; "
            f"it was not used: copy it again or unset {MIRROR_VARIABLE}"
        )
