"""The settings of an arm, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob

Kind = Literal[
    "smoothing", "none", "rectify_only", "erase_and_check", "oracle", "restored", "coin", "block_all", "pass_all"
]


class Config(Frozen):
    """Settings of an arm; every field names its decision in the ledger.

    ``kind`` is the defence: ``smoothing`` covers SmoothLLM (``rectify="none"``) and disrupt-and-rectify. ``oracle`` is
    told the clean goal, ``restored`` undoes the noise exactly; ``coin``, ``block_all`` and ``pass_all`` are floors.
    """

    kind: Kind = knob("N1", "smoothing")
    disrupt: Literal["swap", "insert", "patch", "mask_words", "delete_words", "random"] = knob("D3", "swap")
    q: float = knob("D3", 0.10, ge=0, le=1)
    rate: float = knob("N2", 0.3, ge=0, le=1)
    alphabet: str = knob("D4", "safe")
    quirk: bool = knob("D14", False)
    rectify: Literal["spell", "llm", "both", "none"] = knob("D5", "spell")
    coherence: bool = knob("D5", True)
    min_unigram: float = knob("D6", 5e8, ge=0)
    temperature: float = knob("D7", 0.0, ge=0, le=1)
    n: int = knob("D2", 10, ge=1, le=1000)
    gamma: float = knob("D1", 0.5, ge=0, lt=1)
    judge: Literal["strict", "smoothllm", "llm"] = knob("D8", "strict")
    choose: Literal["uniform", "first", "longest"] = knob("D9", "uniform")
    bound: Literal["exact", "chernoff", "hoeffding"] = knob("D10", "exact")
    draws: int = knob("D16", 4, ge=1, le=64)
    on_rectifier_refusal: Literal["safe_vote", "fallback"] = knob("D17", "safe_vote")
    max_erase: int = knob("N3", 20, ge=1, le=200)
