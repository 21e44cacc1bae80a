"""Arithmetic of grouped skill retrieval on plain arrays: walks on the skill graph, coverage, and the three scores.

Skills are rows and required features are columns of ``cover``, whose entries lie in [0, 1]. The scores, their weights
and the threshold of coverage are a reconstruction; the graph walk is that of Graph of Skills.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from steelyard.errors import InputError

Array = NDArray[np.float64]

MAX_BRUTE_FORCE = 20  # skills; 2^20 subsets


@dataclass(frozen=True)
class Weights:
    """Weights of the three scores, fixed a priori (reconstruction); the fields name their term.

    ``anchor_*`` make A(g|q), ``grow_*`` the gain of a support group, ``pay_*`` the gain of a payload.
    """

    anchor_lex: float = 0.30
    anchor_cos: float = 0.30
    anchor_cov: float = 0.20
    anchor_role_fit: float = 0.10
    anchor_centrality: float = 0.05
    anchor_group_bonus: float = 0.05
    anchor_incompat: float = 0.30
    grow_cov: float = 0.5
    grow_link: float = 0.3
    grow_anchor: float = 0.2
    pay_cov: float = 1.0
    pay_anchor: float = 0.3
    pay_literal: float = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value) or value < 0:
                raise InputError(f"weights.{entry.name} must be a finite number of at least 0, got {value!r}")


DEFAULT_WEIGHTS = Weights()


class Coverage(NamedTuple):
    """Visible-requirement coverage: the share of required features that are covered.

    Attributes:
        value: In [0, 1]; 1 when nothing is required.
        vacuous: True when nothing is required.
    """

    value: float
    vacuous: bool


def personalised_pagerank(csr: Any, restart: Any, alpha: float = 0.2, iters: int = 50, tol: float = 1e-6) -> Array:
    """Return the stationary visits of a walk that goes back to ``restart`` with probability ``alpha``, shape (N,).

    x <- alpha p + (1 - alpha) P'x, rows of P normalised, a row without edges is a loop on itself, so that the sum of x
    stays 1. After k steps the error is at most 2 (1 - alpha)^k in the 1-norm.

    Args:
        csr: Weights of the edges, sparse (N, N), at least 0; row i holds the edges that leave i.
        restart: Where the walk starts over, shape (N,), at least 0 and not all 0; it is brought to sum 1.
        alpha: Probability of starting over, in (0, 1].
        iters: Most steps.
        tol: The walk ends when a step changes x by less than this in the 1-norm.

    Raises:
        InputError: Shapes that do not fit, a negative or not finite weight, or ``alpha``, ``iters`` out of range.
    """
    graph = sparse.csr_array(csr, dtype=np.float64)
    seeds = np.asarray(restart, dtype=np.float64)
    if graph.shape[0] != graph.shape[1] or seeds.shape != (graph.shape[0],):
        raise InputError(f"csr must be (N, N) and restart (N,), got {graph.shape} and {seeds.shape}")
    if not np.isfinite(graph.data).all() or (graph.data < 0).any():
        raise InputError("csr must hold finite weights of at least 0")
    if not np.isfinite(seeds).all() or (seeds < 0).any() or seeds.sum() <= 0:
        raise InputError("restart must hold finite numbers of at least 0, one of them above 0")
    if not 0 < alpha <= 1 or iters < 1:
        raise InputError(f"alpha must lie in (0, 1] and iters be at least 1, got {alpha} and {iters}")
    totals = np.asarray(graph.sum(axis=1)).ravel()
    loops = sparse.diags_array((totals == 0).astype(np.float64))
    step = ((sparse.diags_array(1 / np.where(totals == 0, 1, totals)) @ graph) + loops).T.tocsr()
    start = seeds / seeds.sum()
    visits: Array = start
    for _ in range(iters):
        following: Array = alpha * start + (1 - alpha) * (step @ visits)
        moved = np.abs(following - visits).sum()
        visits = following
        if moved < tol:
            break
    return visits


def best_cover(selected: Collection[int], cover: Any) -> Array:
    """Return how well a set of skills covers each feature, the best of its members, shape (F,)."""
    table = _table(cover)
    rows = sorted(set(selected))
    if rows and (rows[0] < 0 or rows[-1] >= len(table)):
        raise InputError(f"selected must hold rows of cover, 0 to {len(table) - 1}, got {rows[0]} to {rows[-1]}")
    best: Array = table[rows].max(axis=0, initial=0.0)
    return best


def coverage(selected: Collection[int], req: Collection[int] | None, cover: Any) -> float:
    """Return the sum over required features of the best cover among the selected skills.

    A facility-location function: monotone and submodular in ``selected``, so that greedy choice of B skills by it
    reaches at least 1 - 1/e of the optimum. The scores below carry no such promise.

    Args:
        selected: Rows of ``cover``.
        req: Columns that count; None: all.
        cover: Shape (skills, features), entries in [0, 1].
    """
    best = best_cover(selected, cover)
    return float(best.sum() if req is None else best[sorted(set(req))].sum())


def greedy_coverage(req: Collection[int] | None, cover: Any, budget: int) -> list[int]:
    """Return ``budget`` rows (fewer when there are fewer) chosen greedily by plain coverage; ties by row."""
    table = _table(cover)
    table = table if req is None else table[:, sorted(set(req))]
    best = np.zeros(table.shape[1])
    chosen: list[int] = []
    for _ in range(min(budget, len(table))):
        gains = np.maximum(table - best, 0.0).sum(axis=1)
        gains[chosen] = -1.0
        chosen.append(int(np.argmax(gains)))
        best = np.maximum(best, table[chosen[-1]])
    return chosen


def brute_force_coverage(req: Collection[int] | None, cover: Any, budget: int) -> tuple[int, ...]:
    """Return the best set of at most ``budget`` rows by trying all, for pools of at most 20; ties by row.

    Raises:
        InputError: More skills than that.
    """
    table = _table(cover)
    if len(table) > MAX_BRUTE_FORCE:
        raise InputError(f"cover has {len(table)} skills; all subsets are tried for at most {MAX_BRUTE_FORCE}")
    sets = itertools.combinations(range(len(table)), min(budget, len(table)))
    return max(sets, key=lambda chosen: (coverage(chosen, req, table), tuple(-row for row in chosen)))


def coverage_debt(selected: Collection[int], req: Collection[int] | None, cover: Any, theta: float = 0.5) -> list[int]:
    """Return the required features that no selected skill covers to at least ``theta``, in ascending order."""
    if not 0 < theta <= 1:
        raise InputError(f"theta must lie in (0, 1], got {theta}")
    best = best_cover(selected, cover)
    needed = range(len(best)) if req is None else sorted(set(req))
    return [feature for feature in needed if best[feature] < theta]


def visible_requirement_coverage(
    selected: Collection[int], req: Collection[int] | None, cover: Any, theta: float = 0.5
) -> Coverage:
    """Return 1 - |debt| / |req|: the share of required features that the selected skills cover."""
    needed = _table(cover).shape[1] if req is None else len(set(req))
    if needed == 0:
        return Coverage(1.0, True)
    return Coverage(1 - len(coverage_debt(selected, req, cover, theta)) / needed, False)


def must_hit(
    required: Collection[str],
    selected: Sequence[str],
    budget: int | None = None,
    kind: Literal["fraction", "indicator"] = "fraction",
) -> float:
    """Return how many of the required skills are selected, over min(|required|, budget); NaN when none is required.

    ``indicator`` gives 1 when that share is whole, else 0.
    """
    share = gold_recall(required, selected, budget)
    return share if kind == "fraction" or np.isnan(share) else float(share >= 1)


def gold_recall(gold: Collection[str], selected: Sequence[str], budget: int | None = None) -> float:
    """Return |gold in the first ``budget`` selected| / min(|gold|, budget); NaN when there is no gold skill."""
    wanted = set(gold)
    if not wanted:
        return float("nan")
    if budget is not None and budget < 1:
        raise InputError(f"budget must be at least 1, got {budget}")
    shown = selected if budget is None else selected[:budget]
    return len(wanted & set(shown)) / (len(wanted) if budget is None else min(len(wanted), budget))


def chance_recall(skills: int, gold: int, budget: int) -> float:
    """Return the gold recall expected of ``budget`` skills drawn at random: (B |gold| / N) / min(|gold|, B)."""
    if not 0 < gold <= skills or budget < 1:
        raise InputError(f"need 1 <= gold <= skills and budget >= 1, got gold {gold}, skills {skills}, budget {budget}")
    drawn = min(budget, skills)
    return drawn * gold / skills / min(gold, budget)


def anchor_score(
    lex: Any,
    cos: Any,
    cov: Any,
    role_fit: Any = 0.0,
    centrality: Any = 0.0,
    group_bonus: Any = 0.0,
    incompat: Any = 0.0,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Array:
    """Return A(g|q) of every group from the terms of its anchor, each in [0, 1] and of shape (N,) or a scalar."""
    w = weights
    score = w.anchor_lex * np.asarray(lex, dtype=np.float64) + w.anchor_cos * np.asarray(cos, dtype=np.float64)
    score = score + w.anchor_cov * np.asarray(cov) + w.anchor_role_fit * np.asarray(role_fit)
    score = score + w.anchor_centrality * np.asarray(centrality) + w.anchor_group_bonus * np.asarray(group_bonus)
    return np.asarray(score - w.anchor_incompat * np.asarray(incompat), dtype=np.float64)


def expansion_gain(delta_cov: Any, link: Any, anchor: Any, weights: Weights = DEFAULT_WEIGHTS) -> Array:
    """Return the gain of adding a group: normalised new coverage, best link to the plan in [-1, 1], its A(g|q)."""
    gain = weights.grow_cov * np.asarray(delta_cov, dtype=np.float64) + weights.grow_link * np.asarray(link)
    return np.asarray(gain + weights.grow_anchor * np.asarray(anchor), dtype=np.float64)


def bottleneck_gain(
    delta_cov: Any, anchor: Any, literal: Any, cost: Any = 1.0, weights: Weights = DEFAULT_WEIGHTS
) -> Array:
    """Return the gain per cost of adding a payload: normalised new coverage, its A, and whether it is a name's debt."""
    gain = weights.pay_cov * np.asarray(delta_cov, dtype=np.float64) + weights.pay_anchor * np.asarray(anchor)
    gain = gain + weights.pay_literal * np.asarray(literal, dtype=np.float64)
    return np.asarray(gain / np.asarray(cost, dtype=np.float64), dtype=np.float64)


def _table(cover: Any) -> Array:
    table = np.asarray(cover, dtype=np.float64)
    if table.ndim != 2:
        raise InputError(f"cover must be (skills, features), got shape {table.shape}")
    if not np.isfinite(table).all() or (table < 0).any() or (table > 1).any():
        raise InputError("cover must hold numbers in [0, 1]")
    return table
