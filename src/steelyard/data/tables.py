"""Tables that users bring: CSV, Parquet, npz, data frames or columns, read without ever running what is in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.data import binary, csvfile
from steelyard.data.columns import MAX_TABLE_BYTES
from steelyard.data.table import Table, from_columns
from steelyard.errors import InputError, did_you_mean

__all__ = ["Table", "read_table"]


def read_table(source: Any, label: str = "data", *, max_bytes: int = MAX_TABLE_BYTES) -> Table:
    """Read a table from a file or take it over from memory.

    In CSV files the separator is the one of comma, tab, semicolon and bar that splits the header into most names;
    blanks around cells are removed; a column is numeric when all its cells but the missing ones are finite numbers.
    Frames, npz and Parquet keep their own types: text stays text. Dates, lists and other kinds are refused.

    Args:
        source: Path of a .csv, .tsv, .csv.gz, .tsv.gz, .parquet or .npz file (one- and two-dimensional arrays; a
            matrix ``X`` gives columns ``X_0``, ``X_1``, …), a pandas or polars DataFrame, a Table, or a mapping of
            column names to equally long sequences.
        label: What error messages call a source that is not a file.
        max_bytes: Most bytes that the table, or a compressed file once unpacked, may take.

    Returns:
        The table; it has at least one column and one row.

    Raises:
        InputError: Anything that is wrong with the source, with file, row and column.
        MissingExtraError: A Parquet file without pyarrow.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source), max_bytes)
    if _is_frame(source):
        return from_columns(_frame_columns(source), label, max_bytes)
    if isinstance(source, Mapping):
        return from_columns(((str(name), _as_array(values)) for name, values in source.items()), label, max_bytes)
    raise InputError(
        f"{label}: a {type(source).__name__} is not a table; pass a CSV, Parquet or npz file, a pandas or polars "
        "DataFrame, or a mapping of columns"
    )


def _as_array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return np.fromiter(values, dtype=object, count=len(values))  # np.asarray would silently turn [1, "a"] into text
    return np.asarray(values)


def _is_frame(source: Any) -> bool:
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] in ("pandas", "polars")
        for kind in type(source).__mro__
    )


def _frame_columns(frame: Any) -> Iterable[tuple[str, npt.NDArray[Any]]]:
    """Give the columns of a pandas or polars frame without importing either."""
    for position, name in enumerate(frame.columns):
        if "pandas" in sys.modules and isinstance(frame, sys.modules["pandas"].DataFrame):
            yield str(name), _pandas_array(frame.iloc[:, position])
        else:
            yield str(name), frame[name].to_numpy()


def _pandas_array(series: Any) -> npt.NDArray[Any]:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "biuf":
        exact = not series.isna().any()
        array: npt.NDArray[Any] = series.to_numpy() if exact else series.to_numpy(dtype=object)
        return array
    return np.asarray(series.to_numpy(dtype=object) if kind in "OUT" else series.to_numpy())


def _read_file(path: Path, max_bytes: int) -> Table:
    reader = _reader(path)
    if not path.exists():
        raise InputError(f"there is no file {path}.{did_you_mean(path.name, _siblings(path))}")
    if not path.is_file():
        raise InputError(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}; name one table file")
    try:
        return reader(path, max_bytes)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error


def _reader(path: Path) -> Callable[[Path, int], Table]:
    readers: dict[str, Callable[[Path, int], Table]] = {
        ".csv": csvfile.read_csv,
        ".tsv": csvfile.read_csv,
        ".csv.gz": csvfile.read_csv,
        ".tsv.gz": csvfile.read_csv,
        ".npz": binary.read_npz,
        ".parquet": binary.read_parquet,
        ".pq": binary.read_parquet,
    }
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + suffix
    if suffix in readers:
        return readers[suffix]
    if path.is_dir():
        raise InputError(f"{path} is a folder; name one table file")
    known = ", ".join(readers)
    raise InputError(f"{path}: '{suffix}' is not a table format; use one of {known}.{did_you_mean(suffix, readers)}")


def _siblings(path: Path) -> list[str]:
    return [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
