"""The exact optimum of a group problem, with a certificate: what every gap is measured against (reconstruction)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from steelyard.optim.gdro_fsq.player import Floats
from steelyard.optim.gdro_fsq.problems import GroupProblem

TAU = 300.0  # inverse temperature of the smoothed maximum; multipliers make it exact without raising it
STIFFNESS = 10.0  # of the penalty on leaving the ball, in units of the squared radius


class Optimum(NamedTuple):
    """``lower`` <= min_w max_i R_i(w) <= ``upper`` = max_i R_i(w)."""

    w: Floats
    lower: float
    upper: float


def solve(problem: GroupProblem, tolerance: float = 1e-5, rounds: int = 60) -> Optimum:
    """Minimise the largest group risk over the ball around 0.

    The maximum is smoothed by log-sum-exp with multipliers q (the exponential method of multipliers) and the ball by an
    augmented Lagrangian; each round is one L-BFGS run. The lower bound is that of a linearisation of sum_i q_i R_i at
    the current point, minimised over the ball, and holds whether or not the runs converged.

    Args:
        problem: The problem.
        tolerance: Stop when upper - lower is at most this.
        rounds: Most rounds of multiplier updates.
    """
    q = np.full(problem.m, 1.0 / problem.m)
    w, pull = problem.w0.ravel(), 0.0
    best = Optimum(problem.w0, -np.inf, np.inf)
    for k in range(rounds):
        solution = minimize(_augmented, w, args=(problem, q, pull), jac=True, method="L-BFGS-B", options=_precision(k))
        w = solution.x
        excess = float(w @ w) / problem.radius**2 - 1.0
        pull = max(0.0, pull + STIFFNESS * excess)
        inside = w / max(1.0, float(np.linalg.norm(w)) / problem.radius)
        risks, slope = problem.risks_and_slope(inside.reshape(problem.w0.shape))
        q *= np.exp(TAU * (risks - risks.max()))
        q /= q.sum()
        gradient = slope(q).ravel()
        lower = float(q @ risks - gradient @ inside) - problem.radius * float(np.linalg.norm(gradient))
        if risks.max() < best.upper:
            best = Optimum(inside.reshape(problem.w0.shape), best.lower, float(risks.max()))
        best = best._replace(lower=max(best.lower, lower))
        if best.upper - best.lower <= tolerance:
            break
        q = np.maximum(q, 1e-12)  # a multiplier that reached 0 could never come back
    return best


def _precision(k: int) -> dict[str, float]:
    """Return the options of the k-th L-BFGS run: early runs need not be exact, their multipliers are not either."""
    return {"maxiter": 400, "maxcor": 20, "ftol": max(1e-15, 2e-9 * 0.3**k), "gtol": 1e-5 * 0.5**k}


def _augmented(flat: Floats, problem: GroupProblem, q: Floats, pull: float) -> tuple[float, Floats]:
    risks, slope = problem.risks_and_slope(flat.reshape(problem.w0.shape))
    top = risks.max()
    tilted = q * np.exp(TAU * (risks - top))
    total = tilted.sum()
    excess = float(flat @ flat) / problem.radius**2 - 1.0
    force = max(0.0, pull + STIFFNESS * excess)
    value = top + np.log(total) / TAU + (force**2 - pull**2) / (2 * STIFFNESS)
    gradient = slope(tilted / total).ravel() + force * 2 * flat / problem.radius**2
    return float(value), gradient


def prepare(arrays: Any) -> dict[str, Any]:
    """Return what a bench task computes once per data set: the optimum's point and its two bounds."""
    found = solve(GroupProblem.from_arrays(arrays))
    return {"optimum_w": found.w, "optimum_low": np.array(found.lower), "optimum_high": np.array(found.upper)}
