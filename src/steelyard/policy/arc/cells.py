"""One cell: a policy that commits itself, trained with an arm's advantages and judged on games that were held out."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from steelyard.contracts import CellInput, Measured
from steelyard.policy.arc.arms import FIXED, REWARD, estimator, penalised
from steelyard.policy.arc.diagrams import episode_picture
from steelyard.policy.arc.format import claims_of
from steelyard.policy.arc.heads import HEADS, CommitmentPolicy, committed
from steelyard.policy.arc.report import inconsistency_report
from steelyard.policy.games import CellGames, games_of, walked
from steelyard.policy.loglinear import HouseholdFeatures, LogLinearPolicy
from steelyard.policy.rollouts import Episode
from steelyard.policy.steps import StepBatch
from steelyard.policy.training import Iteration, Streams, evaluate, train_household

_INDICATORS = 12  # those of the commitment policy's command


def run_games(cell: CellInput) -> Measured:
    """Train from imitation with an arm's advantages, then play the games that were held out."""
    games, params = games_of(cell), cell.params
    streams = Streams(cell.rng("tasks"), cell.rng("actions"), cell.rng("evaluation"))
    limit = int(params["max_steps"])
    if cell.arm == "expert":
        return Measured({"success": walked(games.hold_out)}, steps=len(games.hold_out))
    policy, wrap = _start(cell, games)
    if cell.arm in FIXED:
        rate, episodes = evaluate(policy, games.hold_out, streams.evaluation, max_steps=limit, wrap=wrap)
        judged = {} if wrap is None else evaluated(episodes)
        return Measured({"success": rate, **judged}, steps=len(games.hold_out))
    rule, right = estimator(cell.arm, cell.config), list[float]()

    def advantages(batch: StepBatch) -> Any:
        return rule(penalised(batch) if cell.arm == "freeform" else batch)

    def look(iteration: Iteration) -> None:
        if "progress" in iteration.batch.process:
            right.append(float(np.nanmean(iteration.batch.process["progress"])))

    log = train_household(
        policy, games.train, advantages, iterations=int(cell.config.get("iterations", params["iterations"])),
        tasks=int(params["tasks"]), rollouts=int(params["rollouts"]), max_steps=limit, wrap=wrap, reward=REWARD,
        streams=streams, evaluate_on=games.hold_out, on_iteration=look,
    )  # fmt: skip
    episodes = log.evaluations[-1].episodes
    metrics = {"success": log.success, "auc": log.area, "train_steps": float(log.steps)}
    traces = {"learning": (_counted(log.train_success), log.train_success)}
    if wrap is not None:
        metrics |= evaluated(episodes)
        traces["statements"] = (_counted(right), right)
    pictured = cell.seed == 0 and cell.arm in ("arc", "outcome")
    pictures = tuple(filter(None, [episode_picture(episodes, cell.arm)])) if pictured else ()
    return Measured(metrics, steps=log.steps, traces=traces, diagrams=pictures)


def _start(cell: CellInput, games: CellGames) -> tuple[Any, Any]:
    """Return the policy after imitation, and how its environments are wrapped."""
    rate = float(cell.config.get("learning_rate", 0.05))
    if cell.arm in ("true_state", "random"):
        policy = LogLinearPolicy(HouseholdFeatures(_INDICATORS), learning_rate=rate)
        if cell.arm == "true_state":
            policy.fit_bc(games.imitate, epochs=6)
        return policy, None
    silence = cell.arm == "freeform"
    committing = CommitmentPolicy(learning_rate=rate, silence=silence)
    committing.fit_bc(games.imitate)
    return committing, partial(committed, silence=silence)


def evaluated(episodes: list[Episode]) -> dict[str, float]:
    """Return the rates of inconsistency, and how often statements and predictions were right."""
    found = {"unsaid": _unsaid(episodes)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        report = inconsistency_report(episodes)
        for name in ("progress", "prediction"):
            scores = [step["process"].get(name, np.nan) for episode in episodes for step in episode]
            found[f"{'statement' if name == 'progress' else name}s"] = float(np.nanmean(scores))
    rates = {
        "inconsistency": report.inconsistency_rate,
        "failed_inconsistent": report.failed_with_inconsistency,
        "persistence": report.persistence_markov,
        "persistence_onset": report.persistence_after_onset,
    }
    return found | {name: value for name, value in rates.items() if np.isfinite(value)}


def _unsaid(episodes: list[Episode]) -> float:
    """Return the share of the statement's parts that were left unsaid."""
    said = [len(claims_of(_statement(step["action"]))) for episode in episodes for step in episode]
    return 1 - float(np.mean(said)) / len(HEADS)


def _statement(turn: str) -> str:
    return turn.partition("<progress>")[2].partition("</progress>")[0]


def _counted(values: list[float]) -> list[float]:
    return [float(number) for number in range(1, len(values) + 1)]
