"""Turn raw columns into the two kinds a table has: float64 with NaN for missing, text with "" for missing."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.errors import InputError

MISSING = frozenset({"", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "Null", "null", "None"})
"""Cells of a text file that count as missing (after blanks around them are removed)."""

MAX_TABLE_BYTES = 1 << 30
"""Most bytes that a table, or a compressed file once unpacked, may take in memory unless the caller allows more."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_EXACT_INTEGERS = 1 << 53

Column = npt.NDArray[np.float64] | npt.NDArray[np.str_]
Where = Callable[[int], str]
"""From the index of a cell to the words that name it, e.g. ``"a.csv, row 7, column 'age'"``."""


def from_cells(cells: Sequence[str], where: Where, max_bytes: int = MAX_TABLE_BYTES) -> Column:
    """Type a column of a text file: numeric when every cell that is not missing is a finite number, else text.

    A number is what Python's ``float`` takes, in ASCII digits with a decimal point, without "_" and without hexadecimal
    form. A column with no cell but missing ones is numeric.

    Args:
        cells: n cells without blanks around them.
        where: Names a cell for an error message.
        max_bytes: Most bytes that the array may take.

    Returns:
        float64 [n] with NaN for missing, or text [n] with "" for missing.

    Raises:
        InputError: Infinite or decimal-comma numbers in a column of numbers, or cells too long for an array.
    """
    present = set(cells) - MISSING
    odd = {cell for cell in present if not _NUMBER.fullmatch(cell)}
    if not odd:
        numbers_of = {cell: float(cell) for cell in present}
        return _require_finite(np.array([numbers_of.get(cell, math.nan) for cell in cells]), where)
    first = next(i for i, cell in enumerate(cells) if cell in odd)
    if odd < present and all(_INFINITE.fullmatch(cell) for cell in odd):
        raise InputError(
            f"{where(first)}: '{cells[first]}' is not a finite number; leave the cell empty or drop the row"
        )
    if all(_DECIMAL_COMMA.fullmatch(cell) for cell in odd):
        raise InputError(f"{where(first)}: '{cells[first]}' is a number with a comma; write a decimal point instead")
    return _text(["" if cell in MISSING else cell for cell in cells], where, max_bytes)


def from_array(values: npt.NDArray[Any], where: Where, max_bytes: int = MAX_TABLE_BYTES) -> Column:
    """Type a column that already has types: numbers and booleans stay numbers, text stays text.

    Text is not read as numbers here, because whoever made the column could have stored numbers. ``None``, NaN, pandas'
    ``NA`` and the markers of :data:`MISSING` in text are missing.

    Args:
        values: n values of any dtype.
        where: Names a cell for an error message.
        max_bytes: Most bytes that the array may take.

    Returns:
        float64 [n] or text [n] as in :func:`from_cells`.

    Raises:
        InputError: Infinite numbers, integers that float64 cannot hold, mixed kinds, or kinds that are neither.
    """
    if values.dtype.kind in "iu":
        _require_exact(values, where)
    if values.dtype.kind in "biuf":
        return _require_finite(values.astype(np.float64), where)
    if values.dtype.kind in "UT":
        return _text(["" if v in MISSING else v for v in map(str.strip, values.tolist())], where, max_bytes)
    if values.dtype.kind in "SO":
        return _from_objects(values.tolist(), where, max_bytes)
    raise InputError(
        f"{where(0)}: values of type {values.dtype} are neither numbers nor text; convert the column first"
    )


def _from_objects(values: list[Any], where: Where, max_bytes: int) -> Column:
    kinds = [_kind(value) for value in values]
    for i, kind in enumerate(kinds):
        if kind == "other":
            raise InputError(
                f"{where(i)}: a value of type {type(values[i]).__name__} is neither a number nor text; convert it"
            )
    if "text" not in kinds:
        return _from_numbers(values, kinds, where)
    if "number" in kinds:
        number, text = kinds.index("number"), kinds.index("text")
        raise InputError(
            f"{where(text)}: text ({_short(values[text])}) in a column that has numbers as well "
            f"({_short(values[number])}); make it all text or all numbers"
        )
    return _text(
        [_clean(value, i, where) if kinds[i] == "text" else "" for i, value in enumerate(values)], where, max_bytes
    )


def _from_numbers(values: list[Any], kinds: list[str], where: Where) -> npt.NDArray[np.float64]:
    column = np.full(len(values), math.nan)
    for i, value in enumerate(values):
        if kinds[i] == "number":
            if isinstance(value, numbers.Integral) and abs(int(value)) > _EXACT_INTEGERS:
                raise _inexact(where(i), value)
            column[i] = float(value)
    return _require_finite(column, where)


def _kind(value: Any) -> str:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return "missing"
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, numbers.Real | np.bool_) or type(value).__name__ == "Decimal":
        return "missing" if value != value else "number"
    return "other"


def _clean(value: str | bytes, i: int, where: Where) -> str:
    try:
        text = (value.decode("utf-8") if isinstance(value, bytes) else value).strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{where(i)}: the bytes are not UTF-8 text ({error.reason}); store text, not bytes") from error
    return "" if text in MISSING else text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _require_exact(values: npt.NDArray[Any], where: Where) -> None:
    large = np.flatnonzero((values > _EXACT_INTEGERS) | (values < -_EXACT_INTEGERS))
    if large.size:
        raise _inexact(where(int(large[0])), values[large[0]])


def _inexact(place: str, value: Any) -> InputError:
    return InputError(f"{place}: {value} is too large for an exact number (2^53); store such identifiers as text")


def _require_finite(values: npt.NDArray[np.float64], where: Where) -> npt.NDArray[np.float64]:
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise InputError(f"{where(int(infinite[0]))}: the number is infinite; leave it out or mark it as missing")
    return values


def _text(cells: list[str], where: Where, max_bytes: int) -> npt.NDArray[np.str_]:
    widest = max(range(len(cells)), key=lambda i: len(cells[i]), default=0)
    width = len(cells[widest]) if cells else 0
    if 4 * width * len(cells) > max_bytes:  # numpy gives every cell the room of the widest, 4 bytes a character
        raise InputError(f"{where(widest)}: a cell of {width} characters makes the column too large; leave it out")
    return np.array(cells, dtype=f"<U{max(width, 1)}")
