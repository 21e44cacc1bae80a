"""What training pays for. Labels are read here and nowhere else on the way to a decision.

Source: reconstruction. The team earns 1 for a right vote and .3 for the share of right agents when a debate ends; an
agent earns .5 when its answer turns right and pays .5 when it turns wrong, and pays for its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.agents.dear.episodes import Bools, Episodes, Floats, Ints, majority_vote, stable_since, vote

RewardFunction = Callable[[Episodes, Episodes, Bools, float], Floats]
"""(before, after, ended bool (B,), price of a call-unit) -> rewards float64 (B, N)."""


@dataclass(frozen=True)
class Reward:
    """Rewards of one round; the vote is the one that is reported, `vote`'s "majority" with its rule for ties.

    Attributes:
        vote: Paid to every agent when the debate ends with a right vote.
        individual: Times the share of right agents, when the debate ends.
        shaping: Times the change of an agent's own correctness, every round.
        credit: "team": every agent gets what the team earns. "difference": an agent gets, every round, what the vote
            and the share of right agents gained by its new answer against its old one, the others' new answers given;
            so an agent is not paid for what others did.
    """

    vote: float = 1.0
    individual: float = 0.3
    shaping: float = 0.5
    credit: Literal["team", "difference"] = "team"

    def __call__(self, before: Episodes, after: Episodes, ended: Bools, lam: float) -> Floats:
        """Return the rewards float64 (B, N) of the step from ``before`` to ``after``; ``ended`` marks last steps."""
        truth = after.truth[:, None]
        was, now = before.answers == truth, after.answers == truth
        rewards: Floats = self.shaping * (now.astype(float) - was) - lam * (after.cost - before.cost)
        right_vote = (vote(after) == after.truth)[:, None].astype(float)
        if self.credit == "difference":
            rewards += self.vote * (right_vote - (_votes_without(before, after) == truth))
            rewards += self.individual / now.shape[1] * (now.astype(float) - was)
            return rewards
        team: Floats = self.vote * right_vote + self.individual * now.mean(axis=1, keepdims=True)
        rewards += ended[:, None] * team
        return rewards


def _votes_without(before: Episodes, after: Episodes) -> Ints:
    """Return (B, N): the vote had agent i kept its answer, and had held it for as long as it did."""
    own = np.eye(after.answers.shape[1], dtype=bool)

    def kept(then: Ints, now: Ints) -> Ints:
        return np.where(own, then[:, :, None], now[:, None, :])  # (B, i, N)

    return majority_vote(kept(before.answers, after.answers), kept(stable_since(before), stable_since(after)), after)
