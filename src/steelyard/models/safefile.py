"""Safetensors files, read without a copy and written so that a file is whole or absent.

The format (https://github.com/huggingface/safetensors): eight bytes with the length of a JSON header, the header (name
-> dtype, shape, first and last byte; ``__metadata__`` holds strings), the bytes of the tensors without a hole. Read
and written here because a converter needs what the package does not give: one tensor at a time in the file's own
pages, a digest of the data that the header carries, and a file that appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from steelyard.errors import InputError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000  # the format's own limit
_SAMPLE = 4096
_BLOCK = 1 << 22
DIGEST = "sha256"
"""Key of the metadata that holds the SHA-256 of all bytes after the header."""


class Span(NamedTuple):
    """Where a tensor lies in a file: dtype as the format writes it, shape, first byte and the one after the last."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafeFile:
    """A memory-mapped safetensors file.

    Attributes:
        path: The file.
        metadata: The header's strings.
        spans: Tensor name -> where it lies, in the order of the bytes.
        header_size: Bytes before the first tensor.

    Raises:
        InputError: The file cannot be read, or its header is not one of a whole safetensors file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                # a private mapping: writable for torch, yet nothing can reach the file
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputError(f"{self.path} is empty, not a safetensors file") from None
        self.header_size = 8 + int.from_bytes(self._map[:8], "little")
        if len(self._map) < 8 or self.header_size > min(len(self._map), 8 + _MAX_HEADER):
            raise InputError(f"{self.path} is not a safetensors file, or has been cut short inside its header")
        header = parse_json(self._map[8 : self.header_size], self.path)
        if not isinstance(header, dict):
            raise InputError(f"{self.path} is not a safetensors file: its header is no table of tensors")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise InputError(f"{self.path}: __metadata__ of the header must map strings to strings")
        self.metadata: dict[str, str] = metadata
        found = [(name, self._span(name, entry)) for name, entry in header.items()]
        self.spans = dict(sorted(found, key=lambda item: (item[1].begin, item[1].end)))
        self._check_spans()

    def read(self, name: str) -> Tensor:
        """Return the tensor on the file's own pages; writing to it changes memory only, never the file.

        Raises:
            InputError: There is no such tensor.
        """
        if name not in self.spans:
            raise InputError(f"{self.path} holds no tensor '{name}'")
        span = self.spans[name]
        dtype = DTYPES[span.dtype]
        if span.begin == span.end:
            return torch.empty(span.shape, dtype=dtype)
        if span.begin % dtype.itemsize == 0:
            flat = torch.frombuffer(self._map, dtype=dtype, count=math.prod(span.shape), offset=span.begin)
        else:  # allowed by the format, not by torch
            flat = torch.frombuffer(bytearray(self._map[span.begin : span.end]), dtype=dtype)
        return flat.reshape(span.shape)

    def is_whole(self) -> bool:
        """Return whether the bytes are those whose digest the header carries (False also where it carries none)."""
        digest = hashlib.sha256()
        for start in range(self.header_size, len(self._map), _BLOCK):
            digest.update(self._map[start : start + _BLOCK])
        return self.metadata.get(DIGEST) == digest.hexdigest()

    def fingerprint(self) -> bytes:
        """Return a digest of the header and of both ends of every tensor: the file's identity without reading it."""
        return fingerprint(self._map, self.header_size, ((span.begin, span.end) for span in self.spans.values()))

    def _span(self, name: str, entry: Any) -> Span:
        if not name.isprintable():  # such a name would reach terminals and messages
            raise InputError(f"{self.path} names a tensor {name[:80]!r}; names of printable characters are needed")
        where = f"{self.path}: the header entry of '{name[:80]}'"
        if not isinstance(entry, dict):
            raise InputError(f"{where} is no table")
        dtype, shape, ends = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise InputError(
                f"{where} has the dtype {repr(dtype)[:80]}; those that can be read are {', '.join(DTYPES)}"
            )
        if not (_are_sizes(shape) and _are_sizes(ends) and len(ends) == 2):
            raise InputError(f"{where} needs a shape and two data_offsets of numbers from 0")
        if ends[1] - ends[0] != math.prod(shape) * DTYPES[dtype].itemsize:
            raise InputError(
                f"{where} has {ends[1] - ends[0]} bytes, which the shape {str(shape)[:80]} of {dtype} contradicts"
            )
        return Span(dtype, tuple(shape), ends[0] + self.header_size, ends[1] + self.header_size)

    def _check_spans(self) -> None:
        """Tensors follow each other without a hole up to the end of the file, as the format demands."""
        at = self.header_size
        for name, span in self.spans.items():
            if span.begin != at:
                raise InputError(f"{self.path}: the bytes of '{name[:80]}' overlap another tensor or leave a hole")
            at = span.end
        if at > len(self._map):
            raise InputError(f"{self.path} has been cut short: its tensors need {at} bytes, it has {len(self._map)}")
        if at < len(self._map):
            raise InputError(f"{self.path} has {len(self._map) - at} bytes after its last tensor; it is damaged")


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def parse_json(text: str | bytes, path: Path) -> Any:
    """Return ``text``, which came from the untrusted file ``path``, as JSON.

    Raises:
        InputError: It is no JSON, or a table in it names something twice.
    """

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                raise InputError(f"{path} names {name[:80]!r} twice")
            made[name] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=table)
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: where a JSON table should be, there is none") from None


def fingerprint(data: mmap.mmap, header_size: int, spans: Iterable[tuple[int, int]]) -> bytes:
    """Return the SHA-256 of a mapped file's header and of the first and last 4 KB of each of its ``spans``.

    Weights that were trained on, merged or quantised differ in every tensor, so this tells two checkpoints apart
    without reading all of either.
    """
    digest = hashlib.sha256(data[:header_size])
    for begin, end in spans:
        digest.update(data[begin : min(begin + _SAMPLE, end)])
        digest.update(data[max(begin, end - _SAMPLE) : end])
    return digest.digest()


def write_safe(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write ``tensors`` to ``path``; the file appears under that name only when every byte is on the disk.

    The same arguments give the same bytes. The header carries the digest of the data under :data:`DIGEST`.

    Args:
        path: The file; one that is there is replaced.
        tensors: Dense tensors; they are written one at a time, largest item size first, without a copy of the whole.
        metadata: Strings for the header.

    Raises:
        InputError: A dtype cannot be stored, or the disk is full or refuses.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _CODES:
            raise InputError(f"tensor '{name}' has the dtype {tensor.dtype}, which safetensors files here do not hold")
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))  # keeps every tensor aligned
    digest, at, header = hashlib.sha256(), 0, dict[str, Any]()
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
        digest.update(_bytes(tensor))
    strings = dict(sorted({**metadata, DIGEST: digest.hexdigest()}.items()))
    text = json.dumps({"__metadata__": strings, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_whole(path, [len(text).to_bytes(8, "little"), text, *(tensors[name] for name in order)])


def write_whole(path: Path, parts: Iterable[bytes | Tensor]) -> None:
    """Write ``parts`` to a temporary file beside ``path``, sync it, and give it the name ``path``.

    Raises:
        InputError: The disk is full or refuses; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with temporary.open("wb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part) if isinstance(part, bytes) else _bytes(part)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, outlives a power cut
        finally:
            os.close(folder)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


PART = ".part"
"""How the name of a file ends that is still being written."""


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")
