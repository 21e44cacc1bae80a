"""A table in memory: columns of equal length, numeric or text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard.data.columns import Column, Where, from_array
from steelyard.errors import InputError, did_you_mean


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, by name and in order.

    Attributes:
        columns: Name -> float64 [n] with NaN for missing, or text ``<U`` [n] with "" for missing.
        source: The file, or the label of what was handed over; opens every error message.
        row_numbers: int64 [n], the number of each row in the source as a person counts it (in a CSV file the line
            number, in all others from 1); empty means 1 to n.
    """

    columns: dict[str, Column]
    source: str
    row_numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> Column:
        """Return the column called ``name``.

        Raises:
            InputError: There is none; the message suggests the closest name.
        """
        if name not in self.columns:
            names = ", ".join(list(self.columns)[:12]) + (", …" if len(self.columns) > 12 else "")
            raise InputError(f"{self.source} has no column '{name}'; it has {names}.{did_you_mean(name, self.columns)}")
        return self.columns[name]

    def is_numeric(self, name: str) -> bool:
        """Say whether the column called ``name`` holds numbers."""
        return self.column(name).dtype.kind == "f"

    def where(self, name: str, row: int) -> str:
        """Return the words that name a cell in an error message; ``row`` counts from 0."""
        number = int(self.row_numbers[row]) if self.row_numbers.size else row + 1
        return f"{self.source}, row {number}, column '{name}'"


def from_columns(columns: Iterable[tuple[str, npt.NDArray[Any]]], source: str, max_bytes: int) -> Table:
    """Make a table of typed columns, each a one-dimensional array."""
    made: dict[str, Column] = {}
    first, length = "", 0
    for name, values in columns:
        if name in made:
            raise InputError(f"{source} has two columns called '{name}'; rename one")
        if values.ndim != 1:
            raise InputError(f"{source}, column '{name}': it has {values.ndim} dimensions where a column has 1")
        if made and len(values) != length:
            raise InputError(
                f"{source}, column '{name}': it has {len(values)} rows where column '{first}' has {length}"
            )
        if not made:
            first, length = name, len(values)
        if length == 0:
            raise InputError(f"{source} has columns but no rows; a table needs at least one")
        made[name] = from_array(values, _cell_namer(source, name), max_bytes)
    if not made:
        raise InputError(f"{source} has no columns; a table needs at least one")
    return Table(made, source)


def _cell_namer(source: str, name: str) -> Where:
    return lambda row: f"{source}, row {row + 1}, column '{name}'"
