"""Sums over many long rows, block by block: every value is read once or twice, and no copy of all of them is made.

Rows are one-dimensional arrays of one length and dtype, e.g. the flattened heads of clients. A result of some rows
never touches another row's memory, so that nothing of it can leak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Row = NDArray[Any]

_BLOCK = 4096  # columns: 12 rows of float32 are 200 kB, which a second-level cache holds beside their sums


def as_row(values: Any, name: str) -> Row:
    """Return ``values`` flattened, as float32 (from half precision) or float64 (from integers); floats keep theirs.

    Raises:
        InputError: No numbers.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be an array of numbers, got dtype {array.dtype}")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    elif array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(-1)


def is_finite(row: Row) -> bool:
    """Return whether all values are finite; one product settles it for all but huge ones."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(row, row)):
            return True
    return bool(np.isfinite(row).all())


def gram(rows: Sequence[Row]) -> Floats:
    """Return the products of all pairs of rows, (n, n); ``rows`` may be a matrix.

    Products of a block are summed in the rows' own precision, blocks in float64.
    """
    total = np.zeros((len(rows), len(rows)))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(rows):
            total += part @ part.T
    return total


def distances(means: Floats, rows: Sequence[Row]) -> Floats:
    """Return the squared distance of each row from its sum in ``means @ rows``, shape (n,); infinite if out of range.

    Args:
        means: Shape (n, n), rows that sum to 1.
        rows: n rows.
    """
    away = (np.eye(len(rows)) - means).astype(rows[0].dtype)
    total = np.zeros(len(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(rows):
            step = away @ part
            total += np.einsum("ij,ij->i", step, step)
    if not np.isfinite(total).all() and rows[0].dtype != np.float64:
        return distances(means, [row.astype(np.float64) for row in rows])
    return np.where(np.isnan(total), np.inf, total)


def combine(
    means: Floats,
    rows: Sequence[Row],
    sums: Sequence[Row] | None = None,
    shares: Floats | None = None,
    mixed: Sequence[Row] | None = None,
) -> None:
    """Write the sums ``means @ rows`` to ``sums``, and each row mixed with its sum by ``shares`` to ``mixed``.

    A share of 0 gives the row itself and a share of 1 its sum, bit for bit.

    Args:
        means: Shape (n, n).
        rows: n rows.
        sums: n rows to write to, or None.
        shares: Of the sums in the mix, shape (n,), in [0, 1]; None: none.
        mixed: n rows to write to, or None; a matrix saves a copy.
    """
    share = np.zeros(len(rows)) if shares is None else shares
    keep, whole = np.flatnonzero(share == 0), np.flatnonzero(share == 1)
    mixing = ((1 - share)[:, None] * np.eye(len(rows)) + share[:, None] * means).astype(rows[0].dtype)
    own = means.astype(rows[0].dtype)
    start = 0
    for part in _blocks(rows):
        stop = start + part.shape[1]
        if sums is not None or len(whole):
            total = own @ part
        if sums is not None:
            _write(total, sums, start, stop)
        if mixed is not None:
            room = cast(Row, mixed)[:, start:stop] if hasattr(mixed, "ndim") else np.empty_like(part)
            np.matmul(mixing, part, out=room)
            room[keep] = part[keep]
            if len(whole):
                room[whole] = total[whole]
            if not hasattr(mixed, "ndim"):
                _write(room, mixed, start, stop)
        start = stop


def _write(values: Row, outs: Sequence[Row], start: int, stop: int) -> None:
    for out, row in zip(outs, values, strict=True):
        out[start:stop] = row


def _blocks(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows' columns block by block, (n, block), in memory that the next block takes over."""
    matrix: Row | None = cast(Any, rows) if hasattr(rows, "ndim") else None
    width = len(rows[0])
    room = np.empty((len(rows), min(_BLOCK, width)), dtype=rows[0].dtype) if matrix is None else matrix
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        if matrix is None:
            part = room[:, : stop - start]
            for own, row in zip(part, rows, strict=True):
                own[:] = row[start:stop]
            yield part
        else:
            yield matrix[:, start:stop]
