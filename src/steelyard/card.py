"""The card of a method: what it does, what it claims, and where each choice comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Frozen(BaseModel):
    """Base of every configuration and record: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(StrEnum):
    """Where a choice comes from."""

    PAPER = "paper"  # stated in the paper
    SECOND_HAND = "second hand"  # from a secondary source or closely related work
    CODE = "code"  # from the authors' repository or its README
    RECON = "reconstruction"  # derived by us, the paper does not settle it
    DEFAULT = "default"  # an addition or default of this library


class Decision(Frozen):
    """One choice that decides results. ``knob`` is the config field that changes it; a reconstruction must have one."""

    id: str
    what: str
    chosen: str
    source: Source
    why: str
    alternatives: tuple[str, ...] = ()
    knob: str | None = None


class Claim(Frozen):
    """One testable sentence: ``arm`` against another arm or a constant, judged on paired seeds.

    The value of a seed is the difference in the claimed direction minus ``offset``; with ``scale="log_ratio"`` it is
    the log-ratio in that direction (log(versus/arm) where the claim says *lower*). ``margin`` is the smallest effect
    worth having. "Not worse than the oracle by more than 0.5" is ``offset=-0.5``; "at least 1.5 times smaller" is
    ``offset=log(1.5)`` on the log-ratio.
    """

    id: str
    text: str
    metric: str
    arm: str
    versus: str | float
    direction: Literal["higher", "lower"]
    margin: float = Field(default=0.0, ge=0)
    offset: float = 0.0
    scale: Literal["difference", "log_ratio"] = "difference"
    kind: Literal["superiority", "equivalence"] = "superiority"
    tasks: tuple[str, ...] | None = None  # None: every task on which both arms ran, the user's own included
    paper: str = "no number available"  # the paper's number and setting
    paper_scale_only: bool = False

    @model_validator(mode="after")
    def _equivalence_needs_a_margin(self) -> Self:
        if self.kind == "equivalence" and self.margin == 0:
            raise ValueError(f"claim {self.id}: an equivalence claim needs a margin above 0")
        return self


class Paper(Frozen):
    """The publication a method comes from, and how much of it this implementation could rest on."""

    title: str
    authors: str
    identifier: str  # e.g. "arXiv 2605.06152v2"
    venue: str
    basis: str  # one sentence: full text, abstract only, README, …


class Card(Frozen):
    """Everything a reader needs to decide whether to use a method; the decision ledger says which line is whose."""

    id: str
    name: str
    summary: str  # one sentence
    does: str  # one paragraph
    use_when: tuple[str, ...]
    avoid_when: tuple[str, ...]
    cost: str
    paper: Paper
    usage: str  # a runnable snippet
    claims: tuple[Claim, ...]
    limits: tuple[str, ...]
    decisions: tuple[Decision, ...]
    contradictions: tuple[str, ...] = ()  # what did not check out in the source, and what was done
    config: type[BaseModel] = Field(exclude=True)  # every field names its decision in json_schema_extra["decision"]

    @model_validator(mode="after")
    def _ledger_is_complete(self) -> Self:
        ids = [decision.id for decision in self.decisions]
        if len(set(ids)) != len(ids):
            raise ValueError(f"card {self.id}: decision ids are not unique")
        fields = self.config.model_fields
        for name in fields:
            if decision_of(self.config, name) not in ids:
                raise ValueError(f"card {self.id}: config field '{name}' names no decision of the ledger")
        for decision in self.decisions:
            if decision.knob is not None and decision.knob not in fields:
                raise ValueError(f"card {self.id}: knob '{decision.knob}' of {decision.id} is not a config field")
            if decision.source is Source.RECON and decision.knob is None:
                raise ValueError(f"card {self.id}: reconstruction {decision.id} has no knob")
        return self


def knob(decision: str, default: Any, **constraints: Any) -> Any:
    """Return a pydantic field whose value settles ``decision`` (an id of the ledger)."""
    return Field(default=default, json_schema_extra={"decision": decision}, **constraints)


def decision_of(config: type[BaseModel], field: str) -> str | None:
    """Return the id of the decision that ``field`` of ``config`` settles, or None."""
    extra = config.model_fields[field].json_schema_extra
    value = extra.get("decision") if isinstance(extra, dict) else None
    return value if isinstance(value, str) else None
