"""The settings of protocol, generator and memories, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    They are arguments of ``GroupMemBench``, ``generate_group_chat`` and the memories under the same names, except that
    ``tokeniser``, ``attackers``, ``reader``, ``flat_key`` and ``audience`` say in words what a callable or a field of
    a message decides there.
    """

    k: int = knob("G4", 10, ge=1)
    query_prefix_asker: bool = knob("G3", True)
    fields: Literal["content", "header"] = knob("G2", "content")
    tokeniser: Literal["lower-cased words"] = knob("G5", "lower-cased words")
    k1: float = knob("G6", 1.5, ge=0)
    b: float = knob("G6", 0.75, ge=0, le=1)
    epsilon: float = knob("G6", 0.25)
    reader: Literal["deterministic", "language model"] = knob("G8", "deterministic")
    filtered: tuple[str, ...] | None = knob("G10", None)
    p_chain: float = knob("G11", 0.55, ge=0, le=1)
    p_branch: float = knob("G11", 0.25, ge=0, le=1)
    noise: float = knob("G11", 0.15, ge=0, le=0.9)
    adversarial_iters: int = knob("G12", 5, ge=0, le=20)
    attackers: Literal["BM25 and hashed n-grams"] = knob("G12", "BM25 and hashed n-grams")
    hardness: Literal["shipped", "easy"] = knob("G13", "shipped")
    scope_out: float = knob("G14", 0.05, ge=0, le=1)
    speaker_out: float = knob("G14", 0.1, ge=0, le=1)
    decay: float = knob("G15", 0.9, ge=0, le=1)
    hops: int = knob("G15", 2, ge=0)
    change_boost: float = knob("G16", 1.2, ge=1)
    superseded: float = knob("G16", 0.6, ge=0, le=1)
    alias_tau: float | None = knob("G17", 0.5)
    abstain: float | None = knob("G18", None)
    link: float = knob("G19", 3.0)
    link_decay: float = knob("G19", 0.8)
    depth: int = knob("G19", 6)
    recency: float = knob("G19", 0.3)
    lexical: float = knob("G19", 0.05)
    speaker: float = knob("G19", 0.5)
    address_window: int = knob("G20", 150, ge=0)
    response_window: int = knob("G20", 60, ge=0)
    own_window: int = knob("G20", 40, ge=0)
    rrf_k: float = knob("G21", 60, gt=0)
    flat_key: Literal["phase and first four content words"] = knob("G22", "phase and first four content words")
    seed: int = knob("G23", 0)
    audience: Literal["as the messages say"] = knob("G24", "as the messages say")
