"""The settings of the detector and of a weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    The fields up to ``batch_size`` are those of ``EmbeddingDiscrepancy``; the rest say how answers are had and judged.
    """

    layer: int | str | tuple[int | str, int | str] = knob("E3", "0.75")
    pool: Literal["mean", "last", "token"] = knob("E4", "mean")
    dist: Literal["cosine", "l2", "rel_l2"] = knob("E5", "cosine")
    prefix: str = knob("E2", "auto")
    center: bool = knob("E8", False)
    drop_first: bool = knob("E8", False)
    length_adjust: bool = knob("E8", False)
    padding: Literal["right"] = knob("E13", "right")
    batch_size: int = knob("E16", 16, ge=1)
    embedding: Literal["states", "sentence encoder"] = knob("E1", "states")
    threshold: Literal["none", "quantile", "gmm", "otsu", "youden"] = knob("E7", "none")
    condition: Literal["context and question", "question"] = knob("E15", "context and question")
    clusters: Literal["match", "minilm"] = knob("E10", "minilm")
    tokenisation: Literal["separate"] = knob("E12", "separate")
    samples: int = knob("E14", 5, ge=2)
    temperature: float = knob("E14", 1.0, gt=0)
    max_new_tokens: int = knob("E16", 16, ge=1)
