"""The settings of ARC and of its weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger. Most are arguments of :func:`steelyard.policy.arc`."""

    commitments: tuple[str, ...] = knob("r1", ("progress", "prediction"))
    tags: tuple[str, ...] = knob("r2", ("progress", "think", "action", "predict"))
    verifier: Literal["rule", "lexical", "embedding", "judge"] = knob("r3", "rule")
    format_penalty: float = knob("r4", 0.05, ge=0)
    unknown_claims: Literal["left out"] = knob("r5", "left out")
    specificity: bool = knob("r6", True)
    weights: tuple[float, float] = knob("r7", (0.5, 0.5))
    norm: Literal["independent", "joint"] = knob("r8", "independent")
    group: Literal["task", "anchor"] = knob("r8", "task")
    alpha: float = knob("r9", 0.1, ge=0)
    route: Literal["segment", "step"] = knob("r10", "segment")
    returns: Literal["immediate", "to_go"] = knob("r11", "immediate")
    gamma: float = knob("r11", 0.8, ge=0, le=1)
    cold_start: Literal["walkthroughs with true statements"] = knob("r12", "walkthroughs with true statements")
    whiten: bool = knob("r13", False)
    persistence: Literal["both"] = knob("r14", "both")
    learning_rate: float = knob("r15", 0.05, gt=0)
