"""What people of an export are called: names in the place of ids, wherever a name can only mean one person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_LIKE_AN_ID = re.compile(r"\d+|[UWB][A-Z0-9]*\d[A-Z0-9]*")  # Discord's numbers, Slack's codes


def unique_names(called: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the name of every id: the first of what it is called that nobody else is called, else the id.

    A name that looks like an id is none: audiences are sets of these names, and nobody may take another's by choice.

    Args:
        called: Id -> what the person is called, the preferred name first; empty ones do not count.
    """
    wanted = {id_: [name for name in map(_line, names) if name] for id_, names in called.items()}
    bearers: dict[str, int] = {}
    for names in wanted.values():
        for name in {name.casefold() for name in names}:
            bearers[name] = bearers.get(name, 0) + 1
    ids = {id_.casefold() for id_ in wanted}

    def usable(name: str) -> bool:
        return bearers[name.casefold()] == 1 and name.casefold() not in ids and not _LIKE_AN_ID.fullmatch(name)

    return {id_: next(filter(usable, names), id_) for id_, names in wanted.items()}


def _line(name: str) -> str:
    """Return ``name`` in one line of printable letters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
