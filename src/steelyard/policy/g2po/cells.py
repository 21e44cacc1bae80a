"""One cell: credit on the chain against its exact value, or a policy trained with an arm's credit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from steelyard.contracts import CellInput, Diagram, Measured
from steelyard.policy.anchors import AliasReport, alias_report
from steelyard.policy.chain import Exact, KeyDoorChain, Wanderer, exact_values
from steelyard.policy.g2po.arms import FIXED, estimator
from steelyard.policy.g2po.graph import TransitionGraph
from steelyard.policy.g2po.picture import graph_picture
from steelyard.policy.games import games_of, walked
from steelyard.policy.groups import Floats
from steelyard.policy.loglinear import LogLinearPolicy
from steelyard.policy.rollouts import Episode, collect
from steelyard.policy.steps import StepBatch
from steelyard.policy.training import Iteration, Streams, anchored, evaluate, train_household

_REWARD = 10.0
_LOOKED = 5  # iterations between two looks at the anchors


def run_chain(cell: CellInput) -> Measured:
    """Compare an arm's credit with the exact advantage of the policy that acted, over groups of rollouts."""
    data = {name: float(value) for name, value in cell.data.items()}
    length, start, horizon = int(data["length"]), int(data["start"]), int(data["horizon"])
    acting = Wanderer(data["right"], length)
    exact = exact_values(acting.probabilities, reward=_REWARD, horizon=horizon, length=length)
    credit = estimator(cell.arm, dict(cell.config), cell.rng("random"))
    draws, found, reports = cell.rng("rollouts"), list[float](), list[AliasReport]()
    steps = 0
    for _ in range(int(cell.params["groups"])):
        envs = [
            (0, anchored(KeyDoorChain(length, start, horizon, _REWARD), cell.config["anchor"]))
            for _ in range(int(cell.params["rollouts"]))
        ]
        episodes = collect(envs, acting, draws)
        batch = StepBatch.from_episodes(episodes)
        truth = exact_advantages(episodes, exact, horizon)
        found.append(correlation(truth if cell.arm == "expert" else _quietly(credit, batch), truth))
        reports.append(_report(batch, episodes))
        steps += len(batch)
    metrics = {"credit": float(np.mean(found)), **_anchors(reports)}
    pictures = (_picture(cell, batch),) if cell.seed == 0 and cell.arm in ("g2po", "g2po_obs") else ()
    return Measured(metrics, steps=steps, diagrams=pictures)


def exact_advantages(episodes: list[Episode], exact: Exact, horizon: int) -> Floats:
    """Return the exact advantage of every step, from where the chain was and how much time was left."""
    found = []
    for episode in episodes:
        place, key = int(episode[0]["observation"].rstrip(".").rpartition(" ")[2]), False
        for step in episode:
            place = int(step["observation"].rstrip(".").rpartition(" ")[2])
            found.append(exact.advantage[horizon - step["t"]][(place, key), step["action"]])
            key = key or step["action"] == "take key"
    return np.array(found)


def correlation(values: Floats, truth: Floats) -> float:
    """Return the rank correlation; 0 where either is constant, as credit of a group that only failed is."""
    if np.ptp(values) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(spearmanr(values, truth)[0])


def run_games(cell: CellInput) -> Measured:
    """Train the small policy from imitation with an arm's credit, and play the games that were held out."""
    games, params = games_of(cell), cell.params
    streams = Streams(cell.rng("tasks"), cell.rng("actions"), cell.rng("evaluation"))
    policy = LogLinearPolicy(learning_rate=float(cell.config.get("learning_rate", 0.05)))
    limit = int(params["max_steps"])
    if cell.arm == "expert":
        return Measured({"success": walked(games.hold_out)}, steps=len(games.hold_out))
    if cell.arm != "random":
        policy.fit_bc(games.imitate, epochs=3, learning_rate=2.0)
    if cell.arm in FIXED:
        rate, _ = evaluate(policy, games.hold_out, streams.evaluation, max_steps=limit)
        return Measured({"success": rate}, steps=len(games.hold_out))
    credit = estimator(cell.arm, dict(cell.config), cell.rng("random"))
    reports, last = list[AliasReport](), list[Iteration]()

    def look(iteration: Iteration) -> None:
        if iteration.number % _LOOKED == 0 or iteration.number == 1:
            reports.append(_report(iteration.batch, iteration.episodes))
            last[:] = [iteration]

    log = train_household(
        policy, games.train, lambda batch: _quietly(credit, batch), iterations=int(params["iterations"]),
        tasks=int(params["tasks"]), rollouts=int(params["rollouts"]), max_steps=limit, anchor=cell.config["anchor"],
        reward=_REWARD, streams=streams, evaluate_on=games.hold_out, on_iteration=look,
    )  # fmt: skip
    metrics = {
        "success": log.success,
        "auc": log.area,
        "overhead": log.advantage_seconds / max(log.seconds, 1e-9),
        "train_steps": float(log.steps),
        **_anchors(reports),
    }
    curve = [float(number) for number in range(1, len(log.train_success) + 1)], log.train_success
    pictured = cell.seed == 0 and cell.arm in ("g2po", "g2po_obs") and last
    return Measured(
        metrics,
        steps=log.steps,
        traces={"learning": curve},
        notes={"anchor": str(cell.config["anchor"]), "warning": "; ".join(reports[-1].warnings)[:300]},
        diagrams=(_picture(cell, last[0].batch),) if pictured else (),
    )


def _quietly(credit: Any, batch: StepBatch) -> Floats:
    """Return the credit without its warnings: anchors are measured, and shown, in their own right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(credit(batch))


def _report(batch: StepBatch, episodes: list[Episode]) -> AliasReport:
    return alias_report(batch, [tuple(step["admissible"]) for episode in episodes for step in episode])


def _anchors(reports: list[AliasReport]) -> dict[str, float]:
    return {
        "aliased": float(np.mean([report.aliased_share or 0.0 for report in reports])),
        "singletons": float(np.mean([report.singleton_fraction for report in reports])),
    }


def _picture(cell: CellInput, batch: StepBatch) -> Diagram:
    tasks = list(batch.task)
    won = [
        task
        for task, success in zip(tasks, batch.success if batch.success is not None else [], strict=False)
        if success
    ]
    task = max(set(won or tasks), key=lambda name: (tasks.count(name), str(name)))
    graph = TransitionGraph.from_batch(batch, task=task)
    kind = {"state": "the simulator's state", "obs": "the raw observation"}[cell.config["anchor"]]
    return graph_picture(graph, f"graph_{cell.config['anchor']}", f"One task's rollouts, grouped by {kind}")
