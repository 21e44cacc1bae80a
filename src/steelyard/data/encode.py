"""Turn a table into a matrix: numbers standardised, categories as 0/1 columns, missing values marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steelyard.data.columns import MAX_TABLE_BYTES
from steelyard.data.table import Table
from steelyard.errors import InputError

MAX_CATEGORIES = 1000
"""A text column with more distinct values is an identifier or a spoilt number column, not a feature."""

_MISSING_LABEL = "(missing)"

Named = tuple[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features as numbers.

    Attributes:
        matrix: float64 [n, d], finite.
        names: d names, e.g. ``"age"``, ``"age missing"``, ``"sex=Female"``.
    """

    matrix: npt.NDArray[np.float64]
    names: tuple[str, ...]


def encode_features(table: Table, exclude: Iterable[str] = ()) -> Encoded:
    """Encode every column of ``table`` but the excluded ones, in the table's order.

    A numeric column is standardised with the mean and the population standard deviation of the values it has (a
    constant one becomes 0); its missing values become the mean, which is 0 after that, and when there are any a 0/1
    column ``"<name> missing"`` follows. A text column becomes one 0/1 column per category in alphabetical order, and
    missing is a category of its own, the last.

    Args:
        table: What to encode.
        exclude: Names of columns to leave out, such as the label and the group.

    Raises:
        InputError: An excluded column is not in the table, none is left, a text column has over 1000 categories, or the
            matrix would take more than 1 GiB.
    """
    left_out = {exclude} if isinstance(exclude, str) else set(exclude)
    for name in sorted(left_out):
        table.column(name)
    features: list[Named] = []
    for name in table.columns:
        if name not in left_out:
            features.extend(_numeric(table, name) if table.is_numeric(name) else _categories(table, name))
            _require_room(len(features), table, name)
    if not features:
        raise InputError(f"{table.source} has no column left to use as a feature; exclude fewer")
    return Encoded(np.column_stack([values for _, values in features]), tuple(name for name, _ in features))


def _require_room(n_features: int, table: Table, name: str) -> None:
    if 8 * n_features * table.n_rows > MAX_TABLE_BYTES:
        raise InputError(
            f"{table.source}, column '{name}': with it the {table.n_rows} rows have {n_features} features, too many to "
            "hold in memory; exclude text columns with many values"
        )


def _numeric(table: Table, name: str) -> Iterator[Named]:
    values = np.asarray(table.columns[name], dtype=np.float64)
    missing = np.isnan(values)
    encoded = np.zeros_like(values)
    encoded[~missing] = _standardise(values[~missing])
    yield name, encoded
    if missing.any():
        yield f"{name} missing", missing.astype(np.float64)


def _standardise(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if values.size == 0 or values.min() == values.max():
        return np.zeros_like(values)
    _, exponent = np.frexp(np.abs(values).max())
    scaled = np.ldexp(values, -exponent)  # exact, and squares of very large or small values stay in range
    centred = scaled - scaled.mean()
    return np.asarray(centred / np.sqrt(np.mean(centred**2)), dtype=np.float64)


def _categories(table: Table, name: str) -> Iterator[Named]:
    values = table.columns[name]
    categories = np.unique(values)
    if categories.size > MAX_CATEGORIES:
        raise InputError(
            f"{table.source}, column '{name}': it has {categories.size} different texts, more than the "
            f"{MAX_CATEGORIES} that can be encoded; exclude it, or correct the cells that are no numbers"
        )
    present = [category for category in categories if category != ""]
    for category in present:
        yield f"{name}={category}", (values == category).astype(np.float64)
    if len(present) < categories.size:
        yield f"{name}={_MISSING_LABEL}", (values == "").astype(np.float64)
