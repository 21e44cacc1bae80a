"""Growing columns: numbers in numpy, texts in one buffer, repeated words as codes; no Python object per row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Ints = NDArray[np.int64]
Value = TypeVar("Value", bound=Hashable)


class Column:
    """A numpy vector that grows by doubling, so that appending costs O(1) a row on average."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._data: NDArray[Any] = np.empty(64, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[Any]:
        """The rows, shape (N,): a view that is valid until rows are added."""
        return self._data[: self._size]

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append ``values``."""
        end = self._size + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[: self._size] = self.values
            self._data = grown
        self._data[self._size : end] = values
        self._size = end


class Texts:
    """A column of texts, UTF-8 in one buffer; lone surrogates are kept."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = Column(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        ends = self._ends.values
        start = int(ends[row - 1]) if row else 0
        return self._bytes[start : int(ends[row])].decode("utf-8", "surrogatepass")

    def extend(self, texts: Iterable[str]) -> None:
        """Append ``texts``."""
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        self._ends.extend(len(self._bytes) + np.cumsum(lengths))
        self._bytes += b"".join(parts)


class Codes(Generic[Value]):
    """A column of values that repeat: one code a row, each value kept once."""

    def __init__(self) -> None:
        self._codes = Column(np.int32)
        self._code_of: dict[Value, int] = {}
        self.words: list[Value] = []

    def __getitem__(self, row: int) -> Value:
        return self.words[int(self._codes.values[row])]

    @property
    def codes(self) -> NDArray[np.int32]:
        """The code of each row, shape (N,): a position in ``words``."""
        return self._codes.values

    def code(self, value: Value) -> int:
        """Return the code of ``value``, or -1 where no row ever had it."""
        return self._code_of.get(value, -1)

    def extend(self, values: Iterable[Value]) -> None:
        """Append ``values``."""
        codes = []
        for value in values:
            code = self._code_of.get(value)
            if code is None:
                code = self._code_of[value] = len(self.words)
                self.words.append(value)
            codes.append(code)
        self._codes.extend(codes)


class Keys:
    """Finds rows by a 63-bit key: a sorted part for most rows, a small dictionary for the newest ones.

    Keys need not be unique: a caller compares what it looked for with the rows that come back.
    """

    def __init__(self) -> None:
        self._column = Column(np.int64)
        self._sorted = np.empty(0, np.int64)
        self._rows = np.empty(0, np.int32)
        self._recent: dict[int, list[int]] = {}

    @property
    def values(self) -> Ints:
        """The key of each row, shape (N,)."""
        return self._column.values

    def extend(self, keys: Ints) -> None:
        """Append ``keys``; the sorted part is made anew when an eighth of all rows is not in it."""
        first = len(self._column)
        self._column.extend(keys)
        for row, key in enumerate(keys.tolist(), first):
            self._recent.setdefault(key, []).append(row)
        if len(self._recent) > max(16_384, len(self._column) // 8):
            order = np.argsort(self.values, kind="stable")
            self._sorted, self._rows = self.values[order], order.astype(np.int32)
            self._recent = {}

    def rows(self, key: int) -> list[int]:
        """Return the rows that have ``key``."""
        start = int(np.searchsorted(self._sorted, key))
        found = list(self._recent.get(key, ()))
        while start < len(self._sorted) and self._sorted[start] == key:
            found.append(int(self._rows[start]))
            start += 1
        return found
