"""Read CSV text strictly: a file is taken as it is or refused with its row and column, never repaired in silence."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from steelyard.data.columns import Where, from_cells
from steelyard.data.limits import gunzip
from steelyard.data.table import Table
from steelyard.errors import InputError

_SEPARATORS = ",\t;|"  # the first wins a tie
_LINE_END = re.compile(r"\r\n|\r|\n")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_csv(path: Path, max_bytes: int) -> Table:
    """Read a .csv, .tsv, .csv.gz or .tsv.gz file.

    Args:
        path: The file.
        max_bytes: Most bytes of text.

    Raises:
        InputError: Whatever is wrong, with row and column.
    """
    source = str(path)
    if path.stat().st_size > max_bytes:
        raise InputError(f"{source} is larger than {max_bytes} bytes; split it or allow more")
    data = path.read_bytes()
    if path.suffix.lower() == ".gz":
        data = gunzip(data, source, max_bytes)
    return parse_csv(data, source, max_bytes)


def parse_csv(data: bytes, source: str, max_bytes: int) -> Table:
    """Read CSV text: a header row of distinct names, then rows with as many cells as the header.

    Raises:
        InputError: Whatever is wrong, with row (line number) and column.
    """
    text = _decode(data, source)
    if not text.strip():
        raise InputError(f"{source} is empty; a table needs a header row and at least one row of data")
    separator = _separator(text)
    records = _records(text, separator, source)
    names = _check_header(*records[0], source)
    rows = records[1:]
    if not rows:
        raise InputError(f"{source} has a header row but no rows of data; it needs at least one")
    for line, cells in rows:
        _check_width(line, cells, names, separator, source)
    lines = np.array([line for line, _ in rows], dtype=np.int64)
    columns = {}
    for position, name in enumerate(names):
        cells = [row[position] for _, row in rows]
        columns[name] = from_cells(cells, _cell_namer(source, name, lines), max_bytes)
    return Table(columns, source, lines)


def _cell_namer(source: str, name: str, lines: np.ndarray) -> Where:
    return lambda row: f"{source}, row {lines[row]}, column '{name}'"


def _records(text: str, separator: str, source: str) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) of every record that is not an empty line; a quoted cell may span lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    records: list[tuple[int, list[str]]] = []
    line = 1
    try:
        for cells in reader:
            if cells:
                records.append((line, [cell.strip() for cell in cells]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{source}, row {line}: the row cannot be read ({error}); check its quotes") from error
    return records


def _separator(text: str) -> str:
    return max(_SEPARATORS, key=lambda mark: len(_first_record(text, mark)))


def _first_record(text: str, separator: str) -> list[str]:
    """Return the cells of the first record that is not an empty line, or none when it cannot be read."""
    lines = io.StringIO(text, newline="")
    try:
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        return next((cells for cells in reader if cells), [])
    except csv.Error:
        return []


def _check_header(line: int, header: list[str], source: str) -> list[str]:
    seen: dict[str, int] = {}
    for number, name in enumerate(header, 1):
        if not name:
            raise InputError(
                f"{source}, row {line}: column {number} has no name; name it, or write the file without its index"
            )
        if name in seen:
            raise InputError(
                f"{source}, row {line}: columns {seen[name]} and {number} are both called '{name}'; rename one"
            )
        seen[name] = number
    return header


def _check_width(line: int, cells: list[str], names: list[str], separator: str, source: str) -> None:
    if len(cells) < len(names):
        raise InputError(
            f"{source}, row {line}: it has {len(cells)} cells where the header has {len(names)}; "
            f"there is none for column '{names[len(cells)]}'"
        )
    if len(cells) > len(names):
        raise InputError(
            f"{source}, row {line}: it has {len(cells)} cells where the header has {len(names)}; "
            f"quote cells that contain {separator!r}, the first without a column comes after '{names[-1]}'"
        )


def _decode(data: bytes, source: str) -> str:
    if data.startswith(_UTF16):
        raise InputError(f"{source} is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _undecodable(data, source, error) from error
    if "\0" in text:
        row = len(_LINE_END.split(text[: text.index("\0")]))
        raise InputError(f"{source}, row {row}: it holds a zero byte, so this is not a text file; save it as UTF-8 CSV")
    return text


def _undecodable(data: bytes, source: str, error: UnicodeDecodeError) -> InputError:
    """Name the row and, as far as the text before the bad byte tells, the column."""
    before = _LINE_END.split(data[: error.start].decode("utf-8-sig", errors="replace"))
    row, line = len(before), before[-1]
    separator = _separator(before[0]) if row > 1 else ","
    header = _first_record(before[0], separator) if row > 1 else []
    position = line.count(separator) + 1  # a quoted separator would shift it, which is near enough to find the byte
    column = f"column '{header[position - 1].strip()}'" if 0 < position <= len(header) else f"column {position}"
    return InputError(
        f"{source}, row {row}, {column}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
    )
