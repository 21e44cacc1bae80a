"""What a weighing found: plain records that the report, the command line and JSON read."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from steelyard.card import Claim, Frozen
from steelyard.contracts import Arm, Metric, Picture, Trace


class Outcome(StrEnum):
    """The six verdicts on a claim."""

    BORNE_OUT = "borne out"
    DIRECTION_ONLY = "direction only"
    NO_DIFFERENCE = "no difference"
    REVERSED = "reversed"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTABLE = "not testable here"


class Verdict(Frozen):
    """The verdict on one claim on one task. Numbers are in the claimed direction, after the claim's offset."""

    claim: Claim
    task: str | None  # None: not testable here
    outcome: Outcome
    sentence: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None  # exact two-sided sign-flip
    p_holm: float | None = None  # Holm over the claims of this weighing
    detectable: float | None = None  # minimum detectable effect at 80 % power with these seeds
    seeds_needed: int | None = None  # to settle an inconclusive claim, if its estimate holds
    differences: tuple[float, ...] = ()  # one per seed, in seed order
    cells: int = 0
    failed_cells: int = 0
    note: str = ""


class Row(Frozen):
    """One cell as the store holds it."""

    key: str
    task: str
    arm: str
    seed: int
    state: str  # waiting, running, done, failed
    config: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, float | None] = Field(default_factory=dict)  # None: not a number
    traces: dict[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]] = Field(default_factory=dict)
    notes: dict[str, str | float | int] = Field(default_factory=dict)
    diagrams: tuple[Picture, ...] = ()
    steps: int = 0
    wall_s: float | None = None
    cpu_s: float | None = None
    rss_mb: float | None = None
    attempts: int = 0
    error: str | None = None


class TaskInfo(Frozen):
    """A task as it was run: its data's hash and size."""

    name: str
    label: str
    source: str
    data_hash: str
    shapes: dict[str, tuple[int, ...]] = Field(default_factory=dict)


class Results(Frozen):
    """A whole weighing, finished or not; round-trips through JSON."""

    id: str
    method: str
    profile: str
    created: str  # ISO 8601, UTC
    finished: bool
    seeds: tuple[int, ...]
    options: dict[str, Any]
    card: dict[str, Any]  # Card.model_dump(mode="json")
    tasks: tuple[TaskInfo, ...]
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...]
    traces: tuple[Trace, ...]
    primary: str
    cost: str
    resources: tuple[str, ...] = ()
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    environment: dict[str, Any]
