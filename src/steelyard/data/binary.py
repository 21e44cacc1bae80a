"""Tables in binary files: npz without pickle, and Parquet through pyarrow."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from steelyard.data.table import Table, from_columns
from steelyard.errors import InputError
from steelyard.extras import require


def read_npz(path: Path, max_bytes: int) -> Table:
    """Read an .npz file: one-dimensional arrays are columns, a matrix ``X`` gives columns ``X_0``, ``X_1``, ….

    Raises:
        InputError: Not an npz file, damaged, with pickled objects, or larger than ``max_bytes``.
    """
    return from_columns(_spread(read_arrays(path, max_bytes), str(path)), str(path), max_bytes)


def read_arrays(path: Path, max_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an .npz file by name.

    Nothing is unpickled: every array's header is read, and its size compared with what the archive holds, before numpy
    may load it.

    Raises:
        InputError: Not an npz file, damaged, with pickled objects, or larger than ``max_bytes``.
    """
    source = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, source, max_bytes)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except InputError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, RuntimeError, zlib.error) as error:
        raise InputError(f"{source} is not a sound npz file ({error}); write it again with numpy.savez") from error


def _check_members(archive: zipfile.ZipFile, source: str, max_bytes: int) -> None:
    members = archive.infolist()
    if not members:
        raise InputError(f"{source} has no arrays in it; a table needs at least one")
    if sum(member.file_size for member in members) > max_bytes:
        raise InputError(f"{source} unpacks to more than {max_bytes} bytes; split it or allow more")
    for member in members:
        if not member.filename.endswith(".npy"):
            raise InputError(f"{source} holds '{member.filename}', which is not an array; write it with numpy.savez")
        with archive.open(member) as stream:
            _check_array(stream, f"{source}, array '{member.filename.removesuffix('.npy')}'", member.file_size)


def _check_array(stream: IO[bytes], where: str, size: int) -> None:
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise InputError(f"{where}: it holds Python objects (a pickle), which are never loaded; store numbers or text")
    if math.prod(shape) * dtype.itemsize > size:
        raise InputError(f"{where}: its header promises more data than the file holds; write it again")


def _spread(arrays: dict[str, npt.NDArray[Any]], source: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name, array in arrays.items():
        if array.ndim == 1:
            yield name, array
        elif array.ndim == 2:
            for position in range(array.shape[1]):
                yield f"{name}_{position}", array[:, position]
        else:
            raise InputError(f"{source}, array '{name}': it has {array.ndim} dimensions where a table takes 1 or 2")


def read_parquet(path: Path, max_bytes: int) -> Table:
    """Read a Parquet file.

    Raises:
        InputError: Not a Parquet file, damaged, columns of kinds that a table does not have, or too large.
        MissingExtraError: pyarrow is not installed.
    """
    source = str(path)
    parquet = require("pyarrow.parquet", "tables")
    failures = require("pyarrow", "tables").ArrowException
    try:
        with parquet.ParquetFile(path) as file:
            facts = file.metadata
            stored = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
            # A run of equal values takes next to no room in the file, so count what its rows will take as well.
            if max(stored, 8 * facts.num_rows * facts.num_columns) > max_bytes:
                raise InputError(f"{source} unpacks to more than {max_bytes} bytes; split it or allow more")
            frame = file.read()
    except (failures, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise InputError(f"{source} is not a sound Parquet file ({first_line}); write it again") from error
    columns = zip(frame.column_names, frame.columns, strict=True)
    return from_columns(((name, _arrow_array(column)) for name, column in columns), source, max_bytes)


def _arrow_array(column: Any) -> npt.NDArray[Any]:
    """Return a column as a typed array when it has no nulls, as objects (None for null) otherwise."""
    if column.null_count == 0:
        return np.asarray(column.to_numpy())
    array = np.empty(len(column), dtype=object)
    array[:] = column.to_pylist()
    return array
