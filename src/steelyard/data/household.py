"""The official ALFWorld household games, packed into one file."""

from __future__ import annotations

import lzma
from typing import Any, Literal, NamedTuple

from steelyard.data.cache import locate
from steelyard.data.records import parse_json
from steelyard.data.registry import Progress

Split = Literal["train", "valid_seen", "valid_unseen"]
SPLITS: tuple[Split, ...] = ("train", "valid_seen", "valid_unseen")
_LARGEST = 200_000_000  # bytes unpacked; the file has 42 million


class HouseholdRow(NamedTuple):
    """A game as it is packed: names, the task's sentence, the problem in PDDL, and an expert's commands."""

    split: str
    name: str
    trial: str
    task: str
    pddl_problem: str
    walkthrough: tuple[str, ...]


def read_household_games(progress: Progress | None = None) -> list[HouseholdRow]:
    """Return all 874 games: 600 to train on (100 a kind), 140 and 134 to validate on.

    Raises:
        DataMissingError: Not in a mirror here.
        ChecksumError: Its bytes are not those of the mirror's index.
    """
    path = locate("alfworld_games", progress).paths[0]
    with lzma.open(path) as stream:
        content = stream.read(_LARGEST)
    packed: Any = parse_json(content.decode("utf-8"), path.name)
    return [
        HouseholdRow(
            game["split"], game["name"], game["trial"], game["task"], game["pddl_problem"], tuple(game["walkthrough"])
        )
        for game in packed["games"]
    ]
