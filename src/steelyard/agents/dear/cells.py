"""One cell: train a controller on one stream of debates, judge it and the fixed policies on another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.agents.dear.arms import flat
from steelyard.agents.dear.controller import DEARController
from steelyard.agents.dear.diagrams import debate_diagrams
from steelyard.agents.dear.episodes import Backend, Episodes, Ints, vote
from steelyard.agents.dear.policies import (
    CritiqueAll,
    FullyConnected,
    KeepAll,
    OracleSpeaker,
    RandomOne,
    ReConcile,
    Sparse,
    any_agent_correct,
    best_single_agent,
    random_answer,
    self_consistency,
    skill_vote,
)
from steelyard.agents.dear.reward import Reward
from steelyard.agents.dear.rollout import Outcome, rollout
from steelyard.agents.dear.settings import PPOSettings
from steelyard.agents.dear.tasks import Sides, sides
from steelyard.contracts import CellInput, Measured
from steelyard.errors import UnsupportedError

Policy = Any
"""A `Controller` of :mod:`steelyard.agents.dear.rollout`; its protocol asks for attributes that frozen ones lack."""

ROUNDS = 3
_CONTROLLER = ("who", "how", "evidence", "identity", "selection", "behaviours")
_REWARD = ("vote", "individual", "shaping", "credit")


def trained(
    cell: CellInput, train: Backend, items: Sequence[int] | None = None, **changes: Any
) -> tuple[DEARController, float]:
    """Return a controller trained as the cell's configuration says, and the processor time that it took, in seconds."""
    config = {**cell.params["controller"], **cell.config, **changes}
    reward = Reward(**{name: config[name] for name in _REWARD if name in config})
    settings = PPOSettings(**{name: config[name] for name in PPOSettings.model_fields if name in config})
    made = {name: config[name] for name in _CONTROLLER if name in config}
    controller = DEARController(**made, reward=reward, settings=settings)
    start = time.process_time()
    controller.fit(
        train, episodes=int(config.get("episodes", cell.params["episodes"])), lam=float(config["lam"]), rounds=ROUNDS,
        seed=cell.seed, root=f"{cell.root} training {cell.task}", items=items,
    )  # fmt: skip
    return controller, time.process_time() - start


def judged(cell: CellInput, where: Sides) -> tuple[int, list[int] | None]:
    """Return how many debates a cell is judged on, and about which items if these are stored."""
    size = getattr(where.test, "size", None)
    if where.test_items is not None:
        items = list(where.test_items) * int(cell.params["repeats"])
    elif size is not None:
        items = list(range(size)) * int(cell.params["repeats"])
    else:
        return int(cell.params["debates"]), None
    return len(items), items


def play(cell: CellInput, where: Sides, controller: Policy, trace: bool = False, rounds: int = ROUNDS) -> Outcome:
    """Return the outcome of ``controller`` on the cell's evaluation debates, the same ones for every controller."""
    batch, items = judged(cell, where)
    if isinstance(controller, DEARController):
        controller.check_unseen(items)
    return rollout(
        where.test, controller, batch=batch, rounds=rounds, generator=cell.rng("judged"), items=items, trace=trace
    )


def started(cell: CellInput, where: Sides) -> Episodes:
    """Return the evaluation debates after their first answers, as `play` starts them."""
    batch, items = judged(cell, where)
    return where.test.start(batch, cell.rng("judged").spawn(3)[0], items=items)


def fixed_policies(knobs: Mapping[str, Any], agents: int) -> dict[str, Policy]:
    """Return the fixed policies; ``knobs`` has what was tuned for the ring and for ReConcile on five agents."""
    ring = {**knobs["ring"], "degree": min(int(knobs["ring"]["degree"]), agents - 1)}
    return {
        "vote": KeepAll(),
        "mad": FullyConnected(),
        "mad_stop": FullyConnected(early_stop="unanimous"),
        "ring": Sparse(**ring),
        "random_one": RandomOne(),
        "reconcile": ReConcile(**knobs["reconcile"]),
        "critique_stop": CritiqueAll(),
        "oracle_speaker": OracleSpeaker(),
    }


def figures(outcome: Outcome) -> dict[str, float]:
    """Return an outcome's figures by the names of the bench's metrics; those without a value are left out."""
    return {name: value for name, value in outcome.summary().items() if name != "rounds" and np.isfinite(value)}


def run_trained(cell: CellInput) -> Measured:
    """Train one controller and judge it; with the arm ``dear``, play every fixed policy as well."""
    where = sides(cell)
    controller, seconds = trained(cell, where.train, where.train_items)
    outcome = play(cell, where, controller, trace=cell.seed == 0)
    metrics = figures(outcome) | {"train_cpu": seconds}
    steps = outcome.steps + controller.history[-1].episodes * where.train.n_agents * ROUNDS
    traces = {}
    if cell.arm == "dear":
        for name, policy in fixed_policies(cell.params["fixed"], where.test.n_agents).items():
            played = play(cell, where, policy)
            steps += played.steps
            metrics |= flat(name, figures(played))
        metrics |= without_debate(cell, where, outcome)
        traces = _learning(controller)
    pictures = debate_diagrams(outcome) if cell.seed == 0 and cell.arm == "dear" else ()
    return Measured(metrics, steps=steps, traces=traces, diagrams=pictures)


def run_chance(cell: CellInput) -> Measured:
    """Measure a random option on the same debates."""
    episodes = started(cell, sides(cell))
    right = random_answer(episodes, cell.rng("chance")) == episodes.truth
    return Measured({"vote_accuracy": float(right.mean()), "calls": 0.0, "cost": 0.0}, steps=len(right))


def without_debate(cell: CellInput, where: Sides, outcome: Outcome) -> dict[str, float]:
    """Return the figures of what needs first answers only, and of self-consistency at the calls of ``outcome``."""
    episodes = started(cell, where)
    first = where.train.start(
        len(where.train_items or ()) or 2_000, cell.rng("single"), items=where.train_items
    )  # other debates than those judged
    record = (first.answers == first.truth[:, None]).mean(axis=0)
    agents = float(episodes.n_agents)
    found = {
        "best_single": (best_single_agent(episodes, int(record.argmax())) == episodes.truth, 1.0),
        "skill_vote": (skill_vote(episodes, record) == episodes.truth, agents),
        "any_right": (any_agent_correct(episodes), agents),
    }
    if episodes.confidence is not None:
        found["confidence_vote"] = (vote(episodes, "reconcile") == episodes.truth, agents)
    metrics: dict[str, float] = {}
    for name, (right, calls) in found.items():
        metrics |= flat(name, {"vote_accuracy": float(right.mean()), "calls": calls, "cost": calls})
    return metrics | flat("self_consistency", equal_calls(cell, where, episodes, outcome.calls))


def equal_calls(cell: CellInput, where: Sides, episodes: Episodes, calls: Ints) -> dict[str, float]:
    """Return self-consistency at as many calls in each debate; nothing where too few samples are recorded."""
    try:
        voted = self_consistency(where.test, episodes, calls, cell.rng("samples"))
    except UnsupportedError:
        return {}
    mean = float(calls.mean())
    return {"vote_accuracy": float((voted == episodes.truth).mean()), "calls": mean, "cost": mean}


def _learning(controller: DEARController) -> dict[str, tuple[list[float], list[float]]]:
    seen = [float(row.episodes) for row in controller.history]
    return {
        "training_cost": (seen, [row.cost for row in controller.history]),
        "training_vote": (seen, [row.vote for row in controller.history]),
    }
