"""Which kind of chat a file or folder holds, told by its name and first bytes, and the reader that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.errors import InputError
from steelyard.models.paths import printable

FORMATS = ("auto", "jsonl", "slack", "discord", "irc", "groupmembench")
_SNIFFED = 65_536
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "irc", ".log": "irc", ".json": "groupmembench"}


def read_chat(path: Path, format: str = "auto") -> GroupChat:
    """Return the chat in a file, or in the folder of a Slack or Discord export.

    Raises:
        InputError: The format is unknown or cannot be told, or the file cannot be used.
    """
    if format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    readers: dict[str, Callable[[Path], GroupChat]] = {
        "jsonl": GroupChat.from_jsonl,
        "slack": GroupChat.from_slack,
        "discord": GroupChat.from_discord,
        "irc": GroupChat.from_irc,
        "groupmembench": GroupChat.from_groupmembench,
    }
    told = chat_format(path) if format == "auto" else format
    if told is None:
        raise InputError(f"{printable(str(path))}: cannot tell what kind of chat this is; give its format (--format)")
    return readers[told](path)


def chat_format(path: Path) -> str | None:
    """Return the format of a file or folder as one of ``FORMATS``, or None when nothing tells it."""
    if path.is_dir():
        return "slack" if any(path.glob("*/*.json")) else "discord" if any(path.glob("*.json")) else None
    named = _SUFFIXES.get(path.suffix)
    if named == "jsonl" or not path.is_file():  # what is not there is named by the reader
        return named
    with path.open("rb") as file:
        head = file.read(_SNIFFED).decode("utf-8", "replace")
    if _is_row(head.lstrip().partition("\n")[0]):
        return "jsonl"
    return "discord" if named == "groupmembench" and ('"guild"' in head or '"messages"' in head) else named


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "id" in row
