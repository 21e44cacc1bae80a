"""The settings of the retriever and of a weighing, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings; every field names its decision in the ledger.

    ``linker`` up to ``theta_cov`` and the budgets are those of ``SkillLibrary`` and ``GoSkillsRetriever``; ``coverage``
    and ``query`` say what a weighing measures and what each arm is given.
    """

    linker: Literal["rules"] = knob("S15", "rules")
    type_weights: tuple[float, float, float, float] = knob("S2", (1.0, 0.7, 0.4, 0.3))
    max_members: int = knob("S3", 2, ge=0)
    max_support: int = knob("S4", 2, ge=0)
    schema_reader: Literal["rules"] = knob("S5", "rules")
    confidences: tuple[float, float, float, float] = knob("S6", (0.95, 0.7, 0.4, 0.7))
    cover: Literal["cosine", "literal"] = knob("S7", "cosine")
    theta_cov: float = knob("S8", 0.5, gt=0, le=1)
    weights: Literal["a priori"] = knob("S9", "a priori")
    expansion: Literal["coverage", "whole score"] = knob("S10", "coverage")
    cost: Literal["skill", "tokens"] = knob("S11", "skill")
    budget: int = knob("S12", 8, ge=1)
    max_chars: int = knob("S12", 12_000, ge=1)
    chars_per_skill: int = knob("S12", 2_400, ge=1)
    backfill: bool = knob("S13", True)
    floor: float = knob("S16", 0.3, ge=0, le=1)
    vacuous: Literal["one", "nan"] = knob("S17", "one")
    coverage: Literal["gold recall", "visible requirements"] = knob("S18", "gold recall")
    query: Literal["full", "first lines"] = knob("S19", "full")
    ties: Literal["name"] = knob("S20", "name")
