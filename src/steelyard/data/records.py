"""Records in text files: CSV rows by column name, JSON documents and JSON Lines, refused with file and row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import InputError

MAX_RECORD_BYTES = 64 << 20


def read_text(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark.

    Raises:
        InputError: It cannot be read, is larger than ``max_bytes``, or is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(content) > max_bytes:
        raise InputError(f"{path} is larger than {max_bytes} bytes; split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, row {row}: byte 0x{content[error.start]:02x} is not UTF-8; save it as UTF-8"
        ) from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty; only a line feed ends a line."""
    return [line for line in (line.rstrip("\r") for line in read_text(path).split("\n")) if line.strip()]


def read_records(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header, every cell as text.

    Raises:
        InputError: A column is missing, or a row has another number of cells than the header.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        lacking = [name for name in columns if name not in (reader.fieldnames or ())]
        if lacking:
            raise InputError(f"{path} has no column '{lacking[0]}'")
        for row in reader:
            if None in row or None in row.values():
                raise InputError(f"{path}, row {reader.line_num}: it has another number of cells than the header")
            rows.append(row)
    except csv.Error as error:
        raise InputError(
            f"{path}, row {reader.line_num}: the row cannot be read ({error}); check its quotes"
        ) from error
    return rows


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        InputError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number or its nesting is too large"
        raise InputError(f"{where}: it is not JSON ({reason}); write one JSON object") from error


def read_json_lines(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (words that name the row in an error, object) for every line of a JSON Lines file that is not empty.

    Raises:
        InputError: A line is not a JSON object.
    """
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, row {number}"
        value = parse_json(line, where)
        if not isinstance(value, dict):
            raise InputError(
                f'{where}: it is JSON of another kind ({_kind(value)}) where an object such as {{"key": …}} is needed'
            )
        rows.append((where, value))
    return rows


def text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return the text under ``name``.

    Raises:
        InputError: There is none, it is not text, empty, or holds half a surrogate pair.
    """
    value = row.get(name)
    if not isinstance(value, str):
        raise InputError(f"{where}: '{name}' is " + ("missing" if value is None else f"{_kind(value)}, not text"))
    if not value.strip():
        raise InputError(f"{where}: '{name}' is empty")
    return whole_text(value, f"{where}: '{name}'")


def whole_text(value: str, where: str) -> str:
    """Return ``value`` unless it holds half a surrogate pair, which no UTF-8 file or request can carry.

    Raises:
        InputError: It does.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(f"{where} holds half a surrogate pair, which is no character; remove it")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)
