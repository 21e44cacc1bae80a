"""What is measured of one contract for one task, and its mean over a fold: first within, then over clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from steelyard.agents.goskills.contract import ExecutionContract, count_tokens
from steelyard.agents.goskills.core import gold_recall, must_hit
from steelyard.agents.goskills.queries import Query
from steelyard.agents.goskills.simulator import simulated_success
from steelyard.errors import InputError

FIELDS = ("start", "support", "check", "avoid", "debt")


def selection(names: Sequence[str], query: Query, named: Sequence[str], budget: int) -> dict[str, float]:
    """Return recall of the gold skills and must-hit (NaN where the query names no gold skill) of a selection."""
    return {
        "gold_recall": gold_recall(query.gold, names, budget),
        "must_hit": must_hit(named, names[:budget], budget),
    }


def presentation(contract: ExecutionContract, query: Query, budget: int) -> dict[str, float]:
    """Return what is measured of a contract as it is handed over."""
    start = contract.start.skill if contract.start else None
    return {
        "tokens": float(count_tokens(contract.render("markdown"))),
        "fields": float(has_fields(contract, budget)),
        "roles": roles(contract),
        "simulated": simulated_success(contract.names, start, query.gold, budget),
    }


def has_fields(contract: ExecutionContract, budget: int) -> bool:
    """Tell whether both renderings hold every field, empty or not, within the budget of skills and characters."""
    texts = {name: contract.render(name) for name in ("markdown", "json")}
    found = ExecutionContract.read(texts["json"])
    headings = all(f"\n## {name.upper()}\n" in texts["markdown"] for name in FIELDS)
    short = all(len(text) <= contract.max_chars for text in texts.values())
    return headings and short and set(FIELDS) <= set(found) and len(found["payloads"]) <= budget


def roles(contract: ExecutionContract) -> float:
    """Return the share of the chosen skills that START or a group gives a role; 0 where none is chosen."""
    given = {one.skill for one in contract.support if one.role != "backfill"} | (
        {contract.start.skill} if contract.start else set()
    )
    return len(given & set(contract.names)) / len(contract.names) if contract.names else 0.0


def over_clusters(rows: Sequence[Mapping[str, float]], clusters: Sequence[str]) -> dict[str, float]:
    """Return the mean of every figure over clusters of the mean within each, values that are not defined left out.

    Raises:
        InputError: There is no row, or not one cluster per row.
    """
    if not rows or len(rows) != len(clusters):
        raise InputError(f"clusters must be one per row and rows not empty, got {len(clusters)} and {len(rows)}")
    found = {}
    for name in rows[0]:
        groups: dict[str, list[float]] = {}
        for row, cluster in zip(rows, clusters, strict=True):
            if not math.isnan(row[name]):
                groups.setdefault(cluster, []).append(row[name])
        if groups:
            found[name] = float(np.mean([np.mean(groups[cluster]) for cluster in sorted(groups)]))
    return found
