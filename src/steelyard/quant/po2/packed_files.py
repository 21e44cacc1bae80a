"""Quantised tensors in safetensors files: parts under the name of the weight, the rest as JSON in the header.

A weight ``a.weight`` becomes the uint8 tensors ``a.weight.codes`` and ``a.weight.scales`` (a selector in the sign bit
makes float8 a wrong label), the float32 ``a.weight.tensor_scale`` and, where selectors do not fit, ``a.weight.side``.
Tensors that stay as they are keep their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from steelyard.errors import InputError
from steelyard.models.paths import check_links, usable_path
from steelyard.models.safefile import SafeFile, parse_json, write_safe
from steelyard.quant.po2.checkpoints import INDEX, read_index
from steelyard.quant.po2.tensor import QuantizedTensor

FORMAT = "1"
KEY = "po2"
PARTS = ("codes", "scales", "tensor_scale", "side")


def part_name(name: str, part: str) -> str:
    """Return where a part of the quantised tensor ``name`` lies, as in the ``state_dict`` of a packed layer."""
    return f"{name}.{part}"


def write_packed(
    path: Path,
    quantized: Mapping[str, QuantizedTensor],
    plain: Mapping[str, Tensor],
    reports: Mapping[str, Mapping[str, Any]] | None = None,
    model: Mapping[str, Any] | None = None,
    **strings: str,
) -> None:
    """Write quantised and plain tensors into one file, which appears when it is whole.

    Args:
        path: The file.
        quantized: Name -> quantised tensor.
        plain: Name -> tensor that is stored as it is.
        reports: Name -> what else to note of a quantised tensor, as JSON.
        model: What else to note of the model, as JSON.
        strings: More metadata of the header.

    Raises:
        InputError: Two tensors would have the same name, or the file cannot be written.
    """
    families: list[str] = []
    table: dict[str, Any] = {}
    tensors = dict(plain)
    for name, tensor in quantized.items():
        parts, text = tensor.to_tensors()
        if (family := text.pop("family")) not in families:
            families.append(family)
        table[name] = {**text, "family": families.index(family)}
        if reports and name in reports:
            table[name]["report"] = dict(reports[name])
        for part, values in parts.items():
            if part_name(name, part) in tensors:
                raise InputError(f"the tensor '{part_name(name, part)}' is in the way of a part of '{name}'; rename it")
            tensors[part_name(name, part)] = values
    header = {"version": FORMAT, "families": [json.loads(family) for family in families], "tensors": table}
    header |= {} if model is None else {"model": dict(model)}
    write_safe(path, tensors, {**strings, "format": "pt", KEY: json.dumps(header, separators=(",", ":"))})


class PackedFile:
    """A file with quantised tensors, memory-mapped.

    Attributes:
        file: The safetensors file.
        table: Name of a quantised tensor -> its text fields and its report.
        plain: Names of the tensors that are stored as they are.
        model: What else is noted of the model.

    Raises:
        InputError: It is no such file, has another format version, or is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = SafeFile(path)
        text = self.file.metadata.get(KEY)
        if text is None:
            raise InputError(f"{path} holds no quantised tensors: its header has no entry '{KEY}'")
        header = parse_json(text, self.file.path)
        version = header.get("version") if isinstance(header, dict) else None
        if version != FORMAT:
            raise InputError(
                f"{path} has the format version {str(version)[:40]!r}; this version of steelyard reads '{FORMAT}'. "
                "Quantise the checkpoint again, or install the steelyard that wrote it"
            )
        families, table, model = header.get("families"), header.get("tensors"), header.get("model", {})
        if not isinstance(families, list) or not isinstance(table, dict) or not isinstance(model, dict):
            raise InputError(f"{path} is damaged: its header lacks the families or the tensors")
        self.model: dict[str, Any] = model
        self._families = [json.dumps(family) for family in families]
        self.table: dict[str, dict[str, Any]] = {name: self._row(name, row) for name, row in table.items()}
        used = {part_name(name, part) for name in self.table for part in PARTS}
        self.plain = [name for name in self.file.spans if name not in used]

    def read(self, name: str) -> QuantizedTensor:
        """Return a quantised tensor, on the file's own pages.

        Raises:
            InputError: It is not there, or a part of it is missing or impossible.
        """
        if name not in self.table:
            raise InputError(f"{self.file.path} holds no quantised tensor '{name}'")
        found = {part: part_name(name, part) for part in PARTS if part_name(name, part) in self.file.spans}
        row = self.table[name]
        text = {key: row[key] for key in ("version", "group_size", "scale_format", "shape", "axis")}
        parts = {part: self.file.read(full) for part, full in found.items()}
        try:
            return QuantizedTensor.from_tensors(parts, {**text, "family": self._families[row["family"]]})
        except InputError as error:
            raise InputError(f"{self.file.path}, tensor '{name[:80]}': {error}") from None

    def stored_bytes(self, name: str) -> int:
        """Return the bytes that the parts of a quantised tensor take in the file."""
        spans = (self.file.spans.get(part_name(name, part)) for part in PARTS)
        return sum(span.end - span.begin for span in spans if span is not None)

    def check(self) -> None:
        """Compare all bytes with the digest in the header.

        Raises:
            InputError: They are others.
        """
        if not self.file.is_whole():
            raise InputError(f"{self.file.path} is damaged: its bytes are not those that were written")

    def _row(self, name: str, row: Any) -> dict[str, Any]:
        fields = ("version", "group_size", "scale_format", "shape", "axis")
        if (
            not name.isprintable()
            or not isinstance(row, dict)
            or not all(isinstance(row.get(field), str) for field in fields)
            or type(row.get("family")) is not int
            or not 0 <= row["family"] < len(self._families)
            or not isinstance(row.get("report", {}), dict)
        ):
            raise InputError(f"{self.file.path} is damaged: the header's entry of {name[:80]!r} lacks a field")
        return row


def packed_files(path: Path) -> list[PackedFile]:
    """Open a file of :func:`write_packed`, or every shard of a converted folder that its index names.

    Raises:
        InputError: There is none, the folder is not finished, or a file in it is damaged.
    """
    if not usable_path(path).is_dir():
        return [PackedFile(path)]
    check_links(path)
    if not (path / INDEX).is_file():
        raise InputError(f"{path} holds no {INDEX}: it is no converted checkpoint, or its conversion has not ended")
    return [PackedFile(shard) for shard in sorted(set(read_index(path).values()))]
