"""Unpack gzip data without being filled up by it."""

from __future__ import annotations

import zlib

from steelyard.errors import InputError

_GZIP_WRAPPER = 31  # zlib's code for a gzip header and trailer, both checked
_STEP = 1 << 20


def gunzip(packed: bytes, source: str, max_bytes: int) -> bytes:
    """Unpack gzip data of one or more members.

    Args:
        packed: The file's bytes.
        source: File name for error messages.
        max_bytes: Most bytes to unpack; a small file can hold a thousand times its size.

    Raises:
        InputError: Not gzip, damaged, cut off, followed by other bytes, or larger than ``max_bytes``.
    """
    parts: list[bytes] = []
    size = 0
    while packed:
        member = zlib.decompressobj(_GZIP_WRAPPER)
        while not member.eof:
            try:
                part = member.decompress(packed, _STEP)
            except zlib.error as error:
                raise InputError(f"{source} is not a sound gzip file ({error}); copy or compress it again") from error
            packed = member.unconsumed_tail if not member.eof else member.unused_data
            if not part and not packed and not member.eof:
                raise InputError(f"{source} is cut off in the middle of its gzip data; copy it again")
            size += len(part)
            if size > max_bytes:
                raise InputError(f"{source} unpacks to more than {max_bytes} bytes; unpack it yourself or split it")
            parts.append(part)
    if not parts:
        raise InputError(f"{source} is empty")
    return b"".join(parts)
