"""The games that benches train on: made here, or the official ones; which are imitated, trained on and held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from steelyard.contracts import Arrays, CellInput, Task
from steelyard.data.household import read_household_games
from steelyard.policy.household.game import HouseholdGame
from steelyard.policy.household.games import load_household_games
from steelyard.policy.household.generate import generate_games
from steelyard.rng import derive_seed

MADE, OFFICIAL = "household", "alfworld"


def made() -> Arrays:
    """Return how many games are made: to imitate, to train on, to hold out."""
    return {"imitate": np.array(20), "train": np.array(60), "hold_out": np.array(60)}


def official() -> Arrays:
    """Return the names of the official games and a digest of their problems."""
    rows = read_household_games()
    digest = hashlib.sha256("\x1f".join(row.pddl_problem for row in rows).encode()).hexdigest()
    names = np.array([f"{row.split}/{row.name}/{row.trial}" for row in rows])
    return {"names": names, "digest": np.array(digest), "imitate": np.array(40)}


MADE_TASK = Task(
    MADE, "Household games made here, 60 held out", made, "made up: household games with the rules of ALFWorld"
)
OFFICIAL_TASK = Task(
    OFFICIAL,
    "ALFWorld, 134 unseen games",
    official,
    "ALFWorld's official games (json_2.1.1), MIT",
    dataset="alfworld_games",
)


def tuned_settings(package: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings by task and arm of a bench's ``tuned.json``: chosen on the official games, used on both."""
    tuned = json.loads(resources.files(package).joinpath("tuned.json").read_text(encoding="utf-8"))
    chosen = {arm: dict(row["config"]) for arm, row in tuned.get(OFFICIAL, {}).items()}
    return {OFFICIAL: chosen, MADE: chosen}


class CellGames(NamedTuple):
    """Games by their use; no game has two."""

    imitate: Sequence[HouseholdGame]
    train: Sequence[HouseholdGame]
    hold_out: Sequence[HouseholdGame]


def games_of(cell: CellInput) -> CellGames:
    """Return a cell's games: the same for every arm of a seed, others with every seed.

    Of the official games the training split is divided anew; the unseen validation games are held out, and in tuning
    the seen ones, so that no setting is chosen on games that a verdict is read from.
    """
    imitate = int(cell.data["imitate"])
    if cell.task == OFFICIAL:
        train = load_household_games("train")
        order = cell.rng("games").permutation(len(train)).tolist()
        shuffled = [train[place] for place in order]
        held = load_household_games("valid_seen" if cell.root == "tuning" else "valid_unseen")
        return CellGames(shuffled[:imitate], shuffled[imitate:], held)
    count = int(cell.data["train"])
    made = generate_games(imitate + count + int(cell.data["hold_out"]), derive_seed(cell.root, "games", cell.seed))
    return CellGames(made[:imitate], made[imitate : imitate + count], made[imitate + count :])


def walked(games: Sequence[HouseholdGame]) -> float:
    """Return the share of games that their walkthroughs win: the ceiling."""
    won = []
    for game in games:
        env = game.make_env(max_steps=len(game.walkthrough))
        env.reset()
        won.append([env.step(command)[2] for command in game.walkthrough][-1])
    return float(np.mean(won))
