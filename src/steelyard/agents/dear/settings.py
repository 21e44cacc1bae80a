"""Settings of the controller and of its training, plain enough to be stored as JSON beside the weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steelyard.agents.dear.episodes import BEHAVIOURS, StopRule
from steelyard.card import Frozen

MAX_WIDTH = 1024
MAX_FEATURES = 4096


class PPOSettings(Frozen):
    """PPO's settings. Clip, rate, decay, entropy, epochs and discount are usual values (reconstruction).

    ``batch`` is the number of debates between two updates, ``minibatches`` how many parts each epoch takes them in;
    ``anneal`` lets rate and entropy bonus fall to 0 over the training.
    """

    clip: float = Field(default=0.2, gt=0, lt=1)
    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    gae: float = Field(default=0.95, ge=0, le=1)
    entropy: float = Field(default=0.01, ge=0)
    epochs: int = Field(default=4, ge=1, le=100)
    gamma: float = Field(default=0.99, ge=0, le=1)
    batch: int = Field(default=128, ge=2, le=100_000)
    minibatches: int = Field(default=4, ge=1, le=1000)
    value_weight: float = Field(default=0.5, ge=0)
    max_grad_norm: float = Field(default=0.5, gt=0)
    anneal: bool = True


class ControllerSettings(Frozen):
    """What a stored controller is, apart from its weights.

    Attributes:
        d_max: Most peers an agent reads; None: no cap.
        behaviours: What agents may do; "keep" makes no call.
        identity: Whether agents and peers are told apart by a one-hot (fixed teams only).
        evidence: "group" (the library's), "none" (features of the group are 0), or "own" (a function of the user's).
        hidden: Two widths.
        selection: "mask": peers one by one; "macro": one of five sets.
        who: "learned", or "random": as many peers as the mask says, but random ones (an ablation).
        how: "learned", or "revise": everyone speaks and revises (an ablation).
        decision: "greedy": the likeliest decision; "sample": drawn.
        early_stop: Stop rule of its debates.
        rounds: Rounds that it was trained for.
        seed: Seed of its training and of its live draws.
        sizes: Features of group, agent and peer; None before training.
        trained_on: Items of the back end that it was trained on; empty where questions are drawn, not stored.
    """

    d_max: int | None = Field(default=None, ge=1, le=1000)
    behaviours: tuple[Literal["keep", "revise", "critique", "explore"], ...] = BEHAVIOURS  # type: ignore[assignment]
    identity: bool = False
    evidence: Literal["group", "none", "own"] = "group"
    hidden: tuple[int, int] = (64, 64)
    selection: Literal["mask", "macro"] = "mask"
    who: Literal["learned", "random"] = "learned"
    how: Literal["learned", "revise"] = "learned"
    decision: Literal["greedy", "sample"] = "greedy"
    early_stop: StopRule = "unanimous"
    rounds: int = Field(default=3, ge=1, le=100)
    seed: int = Field(default=0, ge=0)
    sizes: tuple[int, int, int] | None = None
    trained_on: tuple[int, ...] = Field(default=(), max_length=1_000_000)
