"""The games of a bench's cell: which are imitated, which are trained on, which are held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steelyard.contracts import CellInput
from steelyard.policy.household.game import HouseholdGame
from steelyard.policy.household.games import load_household_games
from steelyard.policy.household.generate import generate_games
from steelyard.rng import derive_seed


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
    if "names" in cell.data:
        train = load_household_games("train")
        order = cell.rng("games").permutation(len(train)).tolist()
        held = load_household_games("valid_seen" if cell.root == "tuning" else "valid_unseen")
        shuffled = [train[place] for place in order]
        return CellGames(shuffled[:imitate], shuffled[imitate:], held[: cell.params.get("hold_out")])
    count = int(cell.data["train"])
    made = generate_games(imitate + count + int(cell.data["hold_out"]), derive_seed(cell.root, "games", cell.seed))
    return CellGames(made[:imitate], made[imitate : imitate + count], made[imitate + count :])
