"""From scores to a plan and from a plan to payloads: the greedy steps on plain arrays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.goskills.core import Weights, bottleneck_gain, expansion_gain
from steelyard.agents.goskills.groups import GroupGraph, GroupRows

Array = NDArray[np.float64]
Stop = Literal["coverage", "whole score"]

LEAST_GAIN = 0.05  # of normalised coverage, or of the whole score, for another support group


class Step(NamedTuple):
    """One payload in the order of choice: its place in the library, why it was chosen, and its gain."""

    skill: int
    why: str
    gain: float


def grow_plan(
    anchor: int,
    groups: GroupRows,
    links: GroupGraph,
    cover: Array,
    scores: Array,
    weights: Weights,
    max_support: int,
    stop: Stop = "coverage",
) -> list[int]:
    """Return the anchor group and up to ``max_support`` support groups, greedily by expansion gain; ties by place.

    Args:
        anchor: The anchor group.
        groups: All groups; group i is anchored at skill i.
        links: The graph of groups.
        cover: Required features only, shape (skills, features).
        scores: A(g|q), shape (groups,).
        weights: Weights of the gain.
        max_support: Most support groups.
        stop: Growth ends when the best group adds less than .05 of this.
    """
    plan = [anchor]
    table = groups.cover(cover)
    covered = table[anchor]
    needed = max(cover.shape[1], 1)
    for _ in range(min(max_support, len(scores) - 1)):
        added = np.maximum(table - covered, 0.0).sum(axis=1) / needed
        gain = expansion_gain(added, links.link(plan), scores, weights)
        gain[plan] = -np.inf
        best = int(np.argmax(gain))
        if (added if stop == "coverage" else gain)[best] < LEAST_GAIN:
            break
        plan.append(best)
        covered = np.maximum(covered, table[best])
    return plan


def squeeze(
    anchor: int,
    pool: Collection[int],
    cover: Array,
    literal: NDArray[np.bool_],
    scores: Array,
    weights: Weights,
    budget: int,
    theta: float,
    costs: Array | None = None,
) -> list[Step]:
    """Return at most ``budget`` payloads of a pool, the anchor first, then greedily by bottleneck gain; ties by place.

    Args:
        anchor: The anchor, always kept.
        pool: Candidates.
        cover: Required features only, shape (skills, features).
        literal: Which features are literal (a name or a file format), shape (features,).
        scores: A(g|q), shape (skills,).
        weights: Weights of the gain.
        budget: Most payloads.
        theta: Cover from which on a feature counts as covered.
        costs: Cost of each skill, shape (skills,); None: 1 each.
    """
    needed = max(cover.shape[1], 1)
    best = cover[anchor].copy()
    chosen = [Step(anchor, "anchor", float(scores[anchor]))]
    rows = np.array(sorted(set(pool) - {anchor}), dtype=np.int64)
    open_ = np.ones(len(rows), dtype=np.bool_)
    hits = cover[rows][:, literal] >= theta
    while len(chosen) < budget and open_.any():
        added = np.maximum(cover[rows] - best, 0.0).sum(axis=1) / needed
        names = (hits & (best[literal] < theta)).any(axis=1)
        cost = 1.0 if costs is None else costs[rows]
        gain = np.where(open_, bottleneck_gain(added, scores[rows], names, cost, weights), -np.inf)
        pick = int(np.argmax(gain))
        why = "literal requirement" if names[pick] else "coverage" if added[pick] > 0 else "score"
        chosen.append(Step(int(rows[pick]), why, float(gain[pick])))
        best = np.maximum(best, cover[rows[pick]])
        open_[pick] = False
    return chosen
