"""Data sets with pinned checksums and one cache, and safe loaders for what the user brings."""

from __future__ import annotations

from pathlib import Path

from steelyard.data.cache import Located, find_local, locate, state_of
from steelyard.data.census import adult
from steelyard.data.embedded import breast_cancer, digits
from steelyard.data.encode import Encoded, encode_features
from steelyard.data.humans import human_contrast
from steelyard.data.images import mnist_t10k
from steelyard.data.pictures import Pictures, read_pictures
from steelyard.data.registry import DATASETS, Dataset, Origin, Progress, lookup
from steelyard.data.table import Table
from steelyard.data.tables import read_table
from steelyard.data.text import plain_wikitext, wikitext2
from steelyard.errors import DataMissingError

__all__ = [
    "Dataset",
    "Encoded",
    "Located",
    "Origin",
    "Pictures",
    "Progress",
    "Table",
    "adult",
    "breast_cancer",
    "datasets",
    "digits",
    "encode_features",
    "fetch",
    "human_contrast",
    "locate",
    "mnist_t10k",
    "path",
    "plain_wikitext",
    "read_pictures",
    "read_table",
    "wikitext2",
]


def datasets() -> tuple[tuple[Dataset, Origin], ...]:
    """Return every registered data set with where it lies now; nothing is fetched, a damaged mirror shows as such."""
    return tuple((dataset, state_of(dataset)) for dataset in DATASETS.values())


def fetch(name: str, progress: Progress | None = None) -> Located:
    """Make the files of a data set present and checked, downloading them if need be; see :func:`locate`.

    Embedded data sets have no files: for them the result is empty.
    """
    return Located("embedded", ()) if lookup(name).embedded else locate(name, progress)


def path(name: str) -> Path:
    """Return the folder where a data set's checked files lie, without fetching.

    Raises:
        InputError: No such data set, or it is embedded.
        DataMissingError: It is not here yet.
        ChecksumError: Its mirrored copy is damaged.
    """
    found = find_local(lookup(name))
    if found is None:
        raise DataMissingError(f"data set '{name}' is not here yet; get it with: steelyard data fetch {name}")
    return found.paths[0].parent
