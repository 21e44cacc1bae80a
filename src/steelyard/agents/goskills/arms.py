"""The contestants and what is measured on them.

One cell runs every retriever on its fold of tasks, since reading and linking the library is what costs; the arm
``goskills`` is that cell, and :func:`derive` takes the other arms' figures out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, carried, carried_arms

BUDGET = 8
BUDGETS = (3, 5, BUDGET)


def _arm(name: str, label: str, role: Any, derived: bool = True) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived)


RUN = (
    _arm("goskills", "GoSkills (its cell runs all retrievers)", "method", derived=False),
    _arm("random", "B skills at random", "floor", derived=False),
    _arm("gold", "The gold skills, cut at B", "ceiling", derived=False),
)
ABLATIONS = (
    _arm("no_backfill", "GoSkills without backfill", "ablation"),
    _arm("no_expansion", "GoSkills without support groups", "ablation"),
    _arm("no_groups", "GoSkills, groups of the anchor alone", "ablation"),
    _arm("anchor_group", "GoSkills without backfill and support groups: the anchor group alone", "ablation"),
)
BASELINES = (
    _arm("vanilla", "All skills in context (no selection: tokens only)", "baseline"),
    _arm("bm25", "BM25", "baseline"),
    _arm("vector", "Vector of the whole query (the encoder's first 96 tokens)", "baseline"),
    _arm("vector_chunked", "Vectors of the query's clauses, best clause", "baseline"),
    _arm("rrf", "Hybrid: reciprocal ranks of BM25 and vector", "baseline"),
    _arm("clause_rrf", "Hybrid, clause by clause", "baseline"),
    _arm("gos_ppr", "Graph of Skills: personalised PageRank", "baseline"),
    _arm("naive_grouping", "Hybrid, shown as groups by cosine", "baseline"),
    _arm("hybrid_backfill", "Hybrid, named skills first", "baseline"),
    _arm("chunked_backfill", "Hybrid with vectors of the clauses, named skills first", "baseline"),
)
ARMS = (*RUN, *ABLATIONS, *BASELINES)
RUN_NAMES = tuple(arm.name for arm in RUN)
DERIVED_NAMES = tuple(arm.name for arm in (*ABLATIONS, *BASELINES))

_NAMED = "gold skills that the query names, found"
METRICS = (
    Metric(name="gold_recall", label="Recall of gold skills, 8 skills", better="higher", worst=0.0),
    Metric(name="recall_5", label="Recall of gold skills, 5 skills", better="higher", worst=0.0),
    Metric(name="recall_3", label="Recall of gold skills, 3 skills", better="higher", worst=0.0),
    Metric(name="must_hit", label=f"Must-hit: {_NAMED}, 8 skills", better="higher", worst=0.0),
    Metric(name="must_hit_5", label=f"Must-hit: {_NAMED}, 5 skills", better="higher", worst=0.0),
    Metric(name="must_hit_3", label=f"Must-hit: {_NAMED}, 3 skills", better="higher", worst=0.0),
    Metric(name="vrc", label="Visible requirements covered, 8 skills (GoSkills' own measure)", better="higher",
           worst=0.0),
    Metric(name="fields", label="Contracts with all four fields, within budget", better="higher", worst=0.0),
    Metric(name="roles", label="Chosen skills that the contract gives a role", better="higher", worst=0.0),
    Metric(name="tokens", label="Context (characters / 4)", better="lower", unit="tokens"),
    Metric(name="latency", label="Processor time a query, without its encoding", better="lower", unit="ms"),
    Metric(name="simulated", label="SIMULATED agent's success (no agent ran)", better="higher", worst=0.0),
    Metric(name="queries", label="Queries of the fold", better="higher"),
)  # fmt: skip


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``goskills``."""
    return carried("goskills", arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``goskills`` ran, of one task and seed."""
    return carried_arms("goskills", arms)
