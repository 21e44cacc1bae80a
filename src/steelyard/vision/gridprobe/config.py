"""The settings of GridProbe and of its weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger. Most are arguments of `GridProbe`."""

    sampling: Literal["linspace"] = knob("d1", "linspace")
    k: int = knob("d2", 12, ge=2)
    confidence: Literal["largest option"] = knob("d3", "largest option")
    combine: Literal["product", "sum"] = knob("d4", "product")
    moments: Literal["population"] = knob("d5", "population")
    statistic: Literal["|skew| + max(0, kurtosis) / 2"] = knob("d6", "|skew| + max(0, kurtosis) / 2")
    alpha: float = knob("d7", 3.0, ge=0)
    rule: Literal["shape", "participation", "mean", "otsu"] = knob("d7", "shape")
    min_frames: int = knob("d8", 2, ge=1)
    strict: bool = knob("d9", False)
    ties: Literal["earlier"] = knob("d10", "earlier")
    probe_pixels: int = knob("d11", 64, ge=1)
    resize: Literal["keep aspect"] = knob("d12", "keep aspect")
    batch_probes: bool = knob("d13", True)
    head: Literal["all", "last"] = knob("d14", "all")
    debias: Literal["permute"] | None = knob("d15", None)
    short_videos: Literal["repeat the last frame"] = knob("d16", "repeat the last frame")
    merge: Literal["mean", "confidence", "entropy", "top_third", "vote", "centred", "centred_confidence"] = knob(
        "d17", "mean"
    )
    axes: Literal["rows and columns"] = knob("d18", "rows and columns")
    options: Literal["option tokens"] = knob("d19", "option tokens")
    training: Literal["parts at both resolutions"] = knob("d20", "parts at both resolutions")
