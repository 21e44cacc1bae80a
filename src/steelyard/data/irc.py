"""Ubuntu IRC logs with human reply links (Kummerfeld et al. 2019): real talk of many people at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from steelyard.data.cache import locate
from steelyard.data.records import read_text
from steelyard.data.registry import Progress
from steelyard.errors import InputError

_ASCII, _ANNOTATION = ".ascii.txt", ".annotation.txt"
_MESSAGE = re.compile(r"\[\d\d:\d\d\] <(\S+)> (.*)")
_LINK = re.compile(r"\s*(\d{1,9})\s+(\d{1,9})\s*-?\s*")


class IrcLog(NamedTuple):
    """One log with its annotation.

    Attributes:
        name: Its date and hour, e.g. ``"2004-11-15_03"``.
        lines: Every line, those that are no messages too.
        links: (earlier, later) line numbers from 0: the later one answers the earlier one; a line linked to itself
            starts a thread. Only lines from 1,000 on are annotated, some with several links.
    """

    name: str
    lines: tuple[str, ...]
    links: tuple[tuple[int, int], ...]


def irc_logs(split: Literal["dev", "test"] = "dev", progress: Progress | None = None) -> list[IrcLog]:
    """Return the ten logs of a split, in order of their names.

    Args:
        split: ``dev`` or ``test``.
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another split.
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    if split not in ("dev", "test"):
        raise InputError(f"split must be 'dev' or 'test', got {split!r}")
    paths = [path for path in locate("irc_disentanglement", progress).paths if path.parent.name == split]
    logs = sorted(path for path in paths if path.name.endswith(_ASCII))
    return [read_irc_log(path, path.with_name(path.name.removesuffix(_ASCII) + _ANNOTATION)) for path in logs]


def read_irc_log(ascii_path: Path, annotation_path: Path | None = None) -> IrcLog:
    """Read a log, and its reply links where a file of them is given.

    Raises:
        InputError: A file cannot be read, or a row of the annotation is no link between two lines of the log.
    """
    lines = tuple(line.removesuffix("\r") for line in read_text(ascii_path).removesuffix("\n").split("\n"))
    links = []
    rows = [] if annotation_path is None else read_text(annotation_path).split("\n")
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        found = _LINK.fullmatch(row)
        if found is None:
            raise InputError(f"{annotation_path}, row {number}: {row[:40]!r} is no link; write 'number number -'")
        # Not every row names the earlier line first.
        earlier, later = sorted((int(found[1]), int(found[2])))
        if later >= len(lines):
            raise InputError(f"{annotation_path}, row {number}: {ascii_path} has no line {later}, counted from 0")
        links.append((earlier, later))
    return IrcLog(ascii_path.name.removesuffix(_ASCII), lines, tuple(links))


def irc_message(line: str) -> tuple[str, str] | None:
    """Return (nick, text) of a line such as ``[12:34] <nick> text``, or None for any other line of a log."""
    found = _MESSAGE.fullmatch(line)
    return None if found is None else (found[1], found[2])
