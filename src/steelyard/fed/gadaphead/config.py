"""The settings of sharing heads and of its weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    Those up to ``staleness`` are `UpdateCosine`'s and `AdaptiveMix`'s; the rest belong to clients and to the bench.
    """

    part: Literal["head"] = knob("d1", "head")
    prototype: Literal["others", "inclusive"] = knob("d2", "others")
    strength: Literal["debiased", "plugin", "fixed", "oracle"] = knob("d3", "debiased")
    metric: Literal["values", "euclidean"] = knob("d4", "values")
    variance: Literal["refit", "split", "iterates"] = knob("d5", "refit")
    ema: float = knob("d6", 0.9, ge=0, lt=1)
    warmup: int = knob("d6", 2, ge=0)
    signal: Literal["update", "head"] = knob("d7", "update")
    update_ema: float = knob("d7", 0.7, ge=0, lt=1)
    linkage: Literal["average", "sattler"] = knob("d8", "average")
    threshold: float = knob("d8", 1.0, gt=0, le=2)
    every: int = knob("d9", 1, ge=1)
    hysteresis: int = knob("d9", 2, ge=1)
    trunk: Literal["all", "group"] = knob("d10", "all")
    optimiser: Literal["reset"] = knob("d11", "reset")
    staleness: float = knob("d12", 0.9, gt=0, le=1)
    evaluation: Literal["greedy"] = knob("d13", "greedy")
    residual_norm: Literal["sample"] = knob("d14", "sample")
