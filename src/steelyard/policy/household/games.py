"""The official ALFWorld games, from the registered data set or from a folder of the user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from steelyard import rng
from steelyard.data.household import SPLITS, Split, read_household_games
from steelyard.errors import InputError, did_you_mean
from steelyard.policy.household.game import KINDS, HouseholdGame


def load_household_games(
    split: Split = "valid_unseen",
    kinds: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> list[HouseholdGame]:
    """Return games of one split; their rules are read when they are first played.

    Args:
        split: ``"train"`` (600 of the official 3,553, 100 a kind), ``"valid_seen"`` (140) or ``"valid_unseen"`` (134).
        kinds: Only these of the six kinds of tasks.
        limit: At most so many, drawn with ``seed``; None: all, in the order of the file.
        seed: Of the draw.
        folder: A folder of your own with ``game.tw-pddl`` files, such as ALFWorld's download, in place of the data set;
            its path below the folder says the split, kind and trial.

    Raises:
        InputError: An unknown split or kind, or no such game.
    """
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    for kind in kinds or ():
        if kind not in KINDS:
            raise InputError(f"kinds: '{kind}' is not known; there are {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    found = list(_all_games()) if folder is None else _folder_games(Path(folder))
    games = [game for game in found if game.split == split and (kinds is None or game.kind in kinds)]
    if not games:
        raise InputError(f"split: there is no game of '{split}'" + ("" if folder is None else f" below {folder}"))
    if limit is not None and limit < len(games):
        drawn = rng.generator("games", split, seed).choice(len(games), limit, replace=False)
        games = [games[place] for place in np.sort(drawn)]
    return games


@lru_cache(maxsize=1)
def _all_games() -> tuple[HouseholdGame, ...]:
    return tuple(
        HouseholdGame(row.name, row.trial, row.task, row.pddl_problem, row.walkthrough, row.split)
        for row in read_household_games()
    )


def _folder_games(folder: Path) -> list[HouseholdGame]:
    paths = sorted(folder.glob("*/*/*/game.tw-pddl"))
    if not paths:
        raise InputError(f"folder: {folder} has no files <split>/<name>/<trial>/game.tw-pddl")
    return [HouseholdGame.from_tw_pddl(path) for path in paths]
