"""The settings of a controller, of a debate and of a weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    Those up to ``decision`` are `DEARController`'s and its training's; the rest belong to debates and to the bench.
    """

    evidence: Literal["group", "none", "own"] = knob("D1", "group")
    selection: Literal["mask", "macro"] = knob("D5", "mask")
    d_max: int | None = knob("D5", None, ge=1)
    behaviours: tuple[str, ...] = knob("D6", ("keep", "revise", "critique", "explore"))
    lam: float = knob("D7", 0.02, ge=0)
    vote_reward: float = knob("D7", 1.0)
    individual_reward: float = knob("D7", 0.3)
    shaping: float = knob("D7", 0.5)
    algo: Literal["ppo"] = knob("D8", "ppo")
    clip: float = knob("D8", 0.2, gt=0, lt=1)
    learning_rate: float = knob("D8", 3e-4, gt=0)
    gae: float = knob("D8", 0.95, ge=0, le=1)
    entropy: float = knob("D8", 0.01, ge=0)
    epochs: int = knob("D8", 4, ge=1)
    gamma: float = knob("D8", 0.99, ge=0, le=1)
    hidden: tuple[int, int] = knob("D8", (64, 64))
    credit: Literal["team", "difference"] = knob("D8a", "difference")
    identity: bool = knob("D9", False)
    early_stop: Literal["unanimous", "stable", "never"] = knob("D10", "unanimous")
    decision: Literal["greedy", "sample"] = knob("D18", "greedy")
    vote: Literal["majority", "belief", "reconcile"] = knob("D11", "majority")
    evidence_gamma: float = knob("D2", 1.0, gt=0, le=1)
    alarm_cosine: float = knob("D4", 0.9, ge=-1, le=1)
    cost: Literal["call units", "tokens"] = knob("D14", "call units")
    margin: float = knob("D16", 0.005, gt=0)
    conformity: float = knob("D17", 3.5, ge=0)
