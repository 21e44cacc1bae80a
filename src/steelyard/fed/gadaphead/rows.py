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

_BLOCK = 768 * 1024  # bytes of a block of all rows, which a second-level cache holds; long pieces are read fastest
_NARROWEST = 1024  # columns, however many rows there are
_HEADROOM = 8.0  # of a float's range
# OpenBLAS shares a larger product among threads, and on a busy machine they wait for one another: 15 times as long
_ONE_THREAD, _LEAST_WIDTH = 2**18, 64


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


def is_finite(row: Row, headroom: float = 1.0) -> bool:
    """Return whether all values are finite, and so would be ``headroom`` times as large ones.

    One product settles it for all but huge ones.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(row, row)):
            return True
    return bool((np.abs(row) <= np.finfo(row.dtype).max / headroom).all())


def can_be_averaged(array: NDArray[Any]) -> bool:
    """Return whether floats of any shape are finite, and so are differences and sums of a few of them."""
    return is_finite(array.reshape(-1), _HEADROOM)


def gram(rows: Sequence[Row]) -> Floats:
    """Return the products of all pairs of rows, (n, n); ``rows`` may be a matrix.

    Products of a block are summed in the rows' own precision, blocks in float64.
    """
    total = np.zeros((len(rows), len(rows)))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(rows):
            total += part @ part.T
    return total


def distances(weights: Floats, rows: Sequence[Row], leave_one_out: bool) -> Floats:
    """Return the squared distance of each row from the mean of all, or of all others, (n,); infinite if out of range.

    A row's step from the mean of the others is its step from the mean of all over 1 minus its share of the weight, so
    that one mean serves all rows. A row with more than half of the weight is too close to that mean for this: its step
    from the others is taken by itself.

    Args:
        weights: Of the rows in the means, above 0, shape (n,).
        rows: n rows, n at least 2.
        leave_one_out: From the mean of the others.
    """
    share = weights / weights.sum()
    heavy = int(share.argmax())
    apart = leave_one_out and share[heavy] > 0.5
    others = np.where(np.arange(len(rows)) == heavy, 0.0, weights)
    mean, rest = (part.astype(rows[0].dtype) for part in (share, others / others.sum()))
    total, own = np.zeros(len(rows)), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _gathered(rows):
            if apart:
                step = part[heavy] - rest @ part
                own += float(step @ step)
            part -= mean @ part
            total += np.matmul(part[:, None, :], part[:, :, None])[:, 0, 0]
        if leave_one_out:
            total /= (1.0 - np.where(apart & (share == share[heavy]), 0.0, share)) ** 2
    if apart:
        total[heavy] = own
    if not np.isfinite(total).all() and rows[0].dtype != np.float64:
        return distances(weights, [row.astype(np.float64) for row in rows], leave_one_out)
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
            _multiply(own, part, total := np.empty_like(part))
        if sums is not None:
            _write(total, sums, start, stop)
        if mixed is not None:
            room = cast(Row, mixed)[:, start:stop] if hasattr(mixed, "ndim") else np.empty_like(part)
            _multiply(mixing, part, room)
            room[keep] = part[keep]
            if len(whole):
                room[whole] = total[whole]
            if not hasattr(mixed, "ndim"):
                _write(room, mixed, start, stop)
        start = stop


def _multiply(matrix: Row, part: Row, out: Row) -> None:
    """Write ``matrix @ part`` to ``out``, by products so small that each stays in one thread, where that pays."""
    count, length = part.shape
    width = _ONE_THREAD // count**2
    whole = length - length % width if width >= _LEAST_WIDTH else 0
    if whole:
        pieces, outs = (values[:, :whole].reshape(count, -1, width).transpose(1, 0, 2) for values in (part, out))
        np.matmul(matrix, pieces, out=outs)
    if whole < length:
        np.matmul(matrix, part[:, whole:], out=out[:, whole:])


def _write(values: Row, outs: Sequence[Row], start: int, stop: int) -> None:
    for out, row in zip(outs, values, strict=True):
        out[start:stop] = row


def _blocks(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows' columns block by block, (n, block), views of a matrix or as :func:`_gathered` does."""
    if not hasattr(rows, "ndim"):
        yield from _gathered(rows)
        return
    width = _width(rows)
    for start in range(0, len(rows[0]), width):
        yield cast(Row, rows)[:, start : start + width]


def _gathered(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield copies of the rows' columns block by block, (n, block), in memory that the next block takes over."""
    width, length = _width(rows), len(rows[0])
    room = np.empty((len(rows), min(width, length)), dtype=rows[0].dtype)
    for start in range(0, length, width):
        part = room[:, : min(width, length - start)]
        for own, row in zip(part, rows, strict=True):
            own[:] = row[start : start + width]
        yield part


def _width(rows: Sequence[Row]) -> int:
    return max(_NARROWEST, _BLOCK // (len(rows) * rows[0].dtype.itemsize))
