"""Paths that users name and folders that they were given: refused in one sentence before anything in them is read."""

from __future__ import annotations

import os
from pathlib import Path

from steelyard.errors import InputError


def usable_path(path: str | Path) -> Path:
    """Return ``path`` once the system can look it up, whether something is there or not.

    Raises:
        InputError: It is too long, holds a NUL character, or may not be looked at.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise InputError(f"the path {_short(path)} cannot be used: {error.strerror}") from None
    except ValueError:
        raise InputError(f"the path {_short(path)} cannot be used: a character in it is not allowed") from None
    return Path(path)


def check_links(folder: Path) -> None:
    """Refuse links among the files of a checkpoint folder that lead out of it.

    A downloaded folder may hold a link to any file of its reader's. Those of a Hugging Face cache, from
    ``snapshots/REVISION`` to ``blobs`` beside ``snapshots``, are as they should be.

    Raises:
        InputError: A file is such a link, leads nowhere, or is a pipe or a device.
    """
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")  # not resolved: a link in its place does not count
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            continue
        try:
            target = entry.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a circle of links
            raise InputError(f"{_short(entry)} is a link that leads nowhere; put the file itself there") from None
        if not any(place in target.parents for place in allowed):
            raise InputError(f"{_short(entry)} is a link that leads out of its folder; put the file itself there")
        if not target.is_file():
            raise InputError(f"{_short(entry)} is a pipe or a device; put a file there, or remove it")


def printable(text: str) -> str:
    """Return ``text`` with every character that could steer a terminal written as an escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _short(path: str | Path) -> str:
    text = printable(str(path))
    return text if len(text) <= 200 else f"{text[:80]}… ({len(text)} characters)"
