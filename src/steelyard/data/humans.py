"""What people answered, and how fast: the contrast experiment of Geirhos et al. (2017)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steelyard.data.cache import locate
from steelyard.data.columns import MAX_TABLE_BYTES, Column
from steelyard.data.csvfile import read_csv
from steelyard.data.registry import Progress
from steelyard.data.table import Table
from steelyard.errors import InputError


def human_contrast(progress: Progress | None = None) -> Table:
    """Return the trials of five people who named grey-scale objects at eight contrasts.

    A trial without an answer has no reaction time and is left out, and so would be one of 0 s or less: 6,293 of 6,400
    trials remain.

    Columns: ``subject``, ``response`` (one of 16 classes), ``category`` (the right one), ``image`` (text); ``session``,
    ``trial``, ``reaction_time`` (seconds), ``contrast`` (fraction, 1 to .01), ``correct`` (1 or 0).

    Args:
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    return load_human_contrast(locate("human_contrast", progress).paths)


def load_human_contrast(paths: Sequence[Path]) -> Table:
    """Read either form: one file a subject (the source) or all in one (the mirror), gzipped or not.

    Raises:
        InputError: A file lacks a column, or its conditions are not contrasts.
    """
    parts = [read_csv(path, MAX_TABLE_BYTES) for path in paths]

    def joined(name: str) -> Column:
        return np.concatenate([part.column(name) for part in parts])

    times = np.asarray(joined("rt"), dtype=np.float64)
    answered = times > 0  # False for NaN
    columns = {
        "subject": joined("subj"),
        "session": joined("session"),
        "trial": joined("trial"),
        "reaction_time": times,
        "response": joined("object_response"),
        "category": joined("category"),
        "contrast": _contrasts(joined("condition"), parts[0].source),
        "image": joined("imagename"),
    }
    columns["correct"] = (columns["response"] == columns["category"]).astype(np.float64)
    return Table({name: values[answered] for name, values in columns.items()}, "human_contrast")


def _contrasts(conditions: Column, source: str) -> Column:
    """Turn "c05" into .05."""
    levels = {}
    for name in np.unique(conditions).tolist():
        digits = str(name).removeprefix("c")
        if str(name) == digits or not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) <= 100:
            raise InputError(f"{source}, column 'condition': '{name}' is not a contrast such as c05 or c100")
        levels[name] = int(digits) / 100
    return np.array([levels[name] for name in conditions.tolist()], dtype=np.float64)
