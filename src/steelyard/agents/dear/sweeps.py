"""Curves: accuracy against cost for each way to spend a budget, against the price of a call, and against conformity."""

from __future__ import annotations

import numpy as np

from steelyard.agents.dear.cells import ROUNDS, Policy, figures, play, started, trained
from steelyard.agents.dear.policies import CritiqueAll, FullyConnected, random_answer, self_consistency
from steelyard.agents.dear.tasks import Sides, sides
from steelyard.contracts import CellInput, Measured

Point = tuple[float, float]
"""Call-units a debate, and right votes."""

_POLICIES: dict[str, Policy] = {
    "mad_stop": FullyConnected(early_stop="unanimous"),
    "critique_stop": CritiqueAll(),
}
_MOST_ROUNDS = 5
_SAMPLES = (1, 2, 3, 4, 5)


def run_curve(cell: CellInput) -> Measured:
    """Measure one way to spend a budget at several budgets, and at several strengths of conformity."""
    policy, where = str(cell.config["policy"]), sides(cell)
    steps = 0
    extra: dict[str, tuple[list[float], list[float]]] = {}
    if policy == "dear":
        points, extra, steps = _by_price(cell, where)
    elif policy in _POLICIES:
        played = [play(cell, where, _POLICIES[policy], rounds=rounds) for rounds in range(_MOST_ROUNDS + 1)]
        points = [(figures(one)["cost"], figures(one)["vote_accuracy"]) for one in played]
        steps = sum(one.steps for one in played)
    else:
        points = _without_reading(cell, where, policy)
    traces = {"budget": _line(points), **extra}
    if policy == "dear" or policy in _POLICIES:
        by_conformity, more = _by_conformity(cell, policy)
        traces["by_conformity"], steps = _line(by_conformity), steps + more
    best = max(points, key=lambda point: point[1])
    metrics = {"vote_accuracy": best[1], "cost": best[0]}
    return Measured(metrics, steps=max(steps, 1), traces=traces)


def _by_price(cell: CellInput, where: Sides) -> tuple[list[Point], dict[str, tuple[list[float], list[float]]], int]:
    """Return a point for each price of a call-unit: policies collapse to silence when it is high."""
    points, steps = [], 0
    prices = [float(price) for price in cell.params["prices"]]
    for price in prices:
        controller, _ = trained(cell, where.train, lam=price, episodes=cell.params["curve_episodes"])
        found = play(cell, where, controller)
        points.append((figures(found)["cost"], figures(found)["vote_accuracy"]))
        steps += found.steps + controller.history[-1].episodes * where.train.n_agents * ROUNDS
    lines = {
        "vote_by_price": (prices, [right for _, right in points]),
        "cost_by_price": (prices, [cost for cost, _ in points]),
    }
    return points, lines, steps


def _by_conformity(cell: CellInput, policy: str) -> tuple[list[Point], int]:
    points, steps = [], 0
    for strength in cell.params["strengths"]:
        where = sides(cell, float(strength))
        if policy == "dear":
            controller: Policy = trained(cell, where.train, episodes=cell.params["curve_episodes"])[0]
            steps += int(cell.params["curve_episodes"]) * where.train.n_agents * ROUNDS
        else:
            controller = _POLICIES[policy]
        found = play(cell, where, controller)
        points.append((float(strength), figures(found)["vote_accuracy"]))
        steps += found.steps
    return points, steps


def _without_reading(cell: CellInput, where: Sides, policy: str) -> list[Point]:
    """Return the points of self-consistency by samples an agent, or of a random option at any budget."""
    episodes = started(cell, where)
    agents = episodes.n_agents
    points = []
    for samples in _SAMPLES:
        if policy == "chance":
            voted = random_answer(episodes, cell.rng(f"chance/{samples}"))
        else:
            voted = self_consistency(where.test, episodes, np.array(samples * agents), cell.rng("samples"))
        points.append((float(samples * agents), float((voted == episodes.truth).mean())))
    return points


def _line(points: list[Point]) -> tuple[list[float], list[float]]:
    ordered = sorted(points)
    return [x for x, _ in ordered], [y for _, y in ordered]
