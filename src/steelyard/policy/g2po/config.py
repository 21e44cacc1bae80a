"""The settings of G2PO and of its weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger. Most are arguments of :func:`steelyard.policy.g2po`."""

    anchor: Literal["state", "history", "obs"] = knob("d1", "state")
    weighting: Literal["visits", "trajectories"] = knob("d2", "visits")
    gamma: float = knob("d2", 0.95, gt=0, le=1)
    terminal_value: None = knob("d3", None)
    bootstrap: bool = knob("d4", False)
    invalid_penalty: float = knob("d5", 0.1, ge=0)
    parts: tuple[str, ...] = knob("d10", ("ep", "nc", "ec"))
    episode_stats: Literal["trajectory", "step"] = knob("d7", "trajectory")
    norm: Literal["std", "mean"] = knob("d8", "std")
    w: float = knob("d9", 1.0, ge=0)
    min_std: float = knob("d13", 0.0, ge=0)
    lam: float = knob("d14", 0.0, ge=0, le=1)
    lone_rollout: Literal["zero"] = knob("d11", "zero")
    loss: Literal["step mean"] = knob("d12", "step mean")
    edge: Literal["rise in value"] = knob("d6", "rise in value")
    learning_rate: float = knob("d15", 0.05, gt=0)
    policy: Literal["log-linear"] = knob("d15", "log-linear")
