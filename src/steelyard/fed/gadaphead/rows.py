"""Sums over many long rows, block by block: every value is read once or twice, and no copy of all of them is made.

Rows are one-dimensional arrays of one length and dtype, e.g. the flattened heads of clients. A result of some rows
never touches another row's memory, so that nothing of it can leak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Row = NDArray[Any]

_BLOCK = 8192  # columns: 50 rows of float32 are 1.6 MB, which a second-level cache holds


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


def gram(rows: Sequence[Row], centre: bool = False) -> Floats:
    """Return the products of all pairs of rows, (n, n), or of the rows less their mean.

    Products of a block are summed in the rows' own precision, blocks in float64.
    """
    total = np.zeros((len(rows), len(rows)))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(rows):
            if centre:
                part -= part.mean(axis=0)
            total += part @ part.T
    if not np.isfinite(total).all() and rows[0].dtype != np.float64:
        return gram([row.astype(np.float64) for row in rows], centre)
    return total


def combine(weights: Floats, rows: Sequence[Row], outs: Sequence[Row], shares: Floats | None = None) -> None:
    """Write the sums ``weights @ rows`` to ``outs``, or the mix of each row with its sum by ``shares``.

    A share of 0 gives the row itself and a share of 1 its sum, bit for bit.

    Args:
        weights: Shape (n, n).
        rows: n rows.
        outs: n rows of the same length and dtype.
        shares: Of the sums, shape (n,), in [0, 1].
    """
    own = weights.astype(rows[0].dtype)
    keep = whole = np.zeros(len(rows), dtype=bool)
    if shares is not None:
        keep, whole = shares == 0, shares == 1
        share = shares.astype(rows[0].dtype)[:, None]
    between = np.flatnonzero(~(keep | whole))
    start = 0
    for part in _blocks(rows):
        sums = own @ part
        if shares is not None:
            sums[keep] = part[keep]
            sums[between] = (1 - share[between]) * part[between] + share[between] * sums[between]
        stop = start + part.shape[1]
        for out, values in zip(outs, sums, strict=True):
            out[start:stop] = values
        start = stop


def _blocks(rows: Sequence[Row]) -> Iterator[Row]:
    for start in range(0, len(rows[0]), _BLOCK):
        yield np.stack([row[start : start + _BLOCK] for row in rows])
