"""Probes for the checks that every method passes; the acceptance test takes any rule of credit for commitments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.policy.advantages import grpo
from steelyard.policy.arc import user
from steelyard.policy.arc.commitment import CommitmentWrapper
from steelyard.policy.arc.core import arc_advantage
from steelyard.policy.arc.format import CommitmentFormat
from steelyard.policy.arc.heads import CommitmentPolicy, committed
from steelyard.policy.arc.report import inconsistency_report
from steelyard.policy.arc.verifiers import LexicalVerifier, brier_score
from steelyard.policy.chain import KeyDoorChain
from steelyard.policy.groups import Floats, decoupled
from steelyard.policy.household.generate import generate_games
from steelyard.policy.rollouts import collect
from steelyard.policy.steps import StepBatch
from steelyard.policy.training import train_household
from steelyard.rng import generator

Credit = Callable[[StepBatch], Mapping[str, Floats]]
"""From steps with "progress" and "prediction" among their signals to the advantages of a turn's segments."""

SEGMENTS = ("progress", "action", "prediction")
_GAMES, _ROLLOUTS, _LIMIT = 6, 8, 20
_EXACT = 1e-9


def credited(batch: StepBatch) -> dict[str, Floats]:
    """Return ARC's advantages at its defaults, by segment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = arc_advantage(batch)
    return {name: np.asarray(found.for_segment(name)) for name in SEGMENTS}


def steps_of(seed: int, dtype: str = "float64") -> dict[str, Any]:
    """Return made-up steps of two tasks with four rollouts each, the last prediction of each not scored."""
    draws = generator("conformance", "arc/steps", seed)
    lengths = draws.integers(3, 9, size=8)
    traj = np.repeat(np.arange(8), lengths)
    t = np.concatenate([np.arange(length) for length in lengths])
    last = np.cumsum(lengths) - 1
    reward = np.zeros(len(t), dtype)
    reward[last] = 10.0 * draws.integers(0, 2, size=8)
    prediction = draws.random(len(t))
    prediction[last] = np.nan
    return {
        "task": traj // 4,
        "traj": traj,
        "t": t,
        "reward": reward,
        "process": {"progress": draws.random(len(t)), "prediction": prediction},
    }


def _batch(seed: int = 0, dtype: str = "float64") -> StepBatch:
    return StepBatch(**steps_of(seed, dtype))


def _run(seed: int, dtype: str) -> Arrays:
    found = arc_advantage(_batch(seed, dtype))
    return {"outcome": found.outcome, "progress": found.progress, "prediction": found.prediction}


def _noop() -> tuple[Arrays, Arrays]:
    """Without weight on the commitments it is GRPO."""
    found, plain = arc_advantage(_batch(), alpha=0.0), grpo(_batch())
    return {"progress": found.progress, "step": found.step}, {"progress": plain, "step": plain}


def _effect() -> tuple[Arrays, Arrays]:
    return {"progress": arc_advantage(_batch()).progress}, {"progress": grpo(_batch())}


def _resumed() -> tuple[Arrays, Arrays]:
    """Train a policy that commits itself for four iterations, or two and two with its state carried over."""
    games = generate_games(6, 1)

    def trained(parts: tuple[int, ...]) -> Arrays:
        policy = CommitmentPolicy()
        for place, count in enumerate(parts):
            if place:
                state, policy = policy.state_dict(), CommitmentPolicy()
                policy.load_state_dict(state)
            for number in range(count):
                train_household(
                    policy, games, credited, iterations=1, tasks=2, rollouts=3, max_steps=12, wrap=committed,
                    seed=sum(parts[:place]) + number,
                )  # fmt: skip
        return {"weights": policy.weights}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trained((4,)), trained((2, 2))


def _untouched() -> tuple[Arrays, Arrays]:
    inputs = steps_of(0)
    flat = {**{name: inputs[name] for name in ("task", "t", "reward")}, **inputs["process"]}
    before = {name: values.copy() for name, values in flat.items()}
    arc_advantage(StepBatch(**inputs))
    return before, flat


def acceptance(credit: Credit) -> None:
    """Credit turns of a policy on household games made here, whose statements are judged by the rules.

    In every game where statements are both right and wrong, right ones must get more than wrong ones beside the
    outcome's part, and so must predictions; commands must get the outcome's advantage and nothing else; a signal's part
    must not change with its scale, nor with another signal. A turn in which nothing is stated must get no more than one
    that is wrong.

    Raises:
        AssertionError: It is not so.
    """
    draws = generator("conformance", "arc/games", 0)
    games = generate_games(_GAMES, 2)
    policy = CommitmentPolicy()
    policy.fit_bc(games)
    envs = [(task, committed(game.make_env(_LIMIT, 10.0))) for task, game in enumerate(games) for _ in range(_ROLLOUTS)]
    batch = StepBatch.from_episodes(collect(envs, policy, draws))
    found, outcome = credit(batch), np.asarray(grpo(batch))
    assert np.abs(outcome).max() > 0, "no game was both won and lost"
    assert np.allclose(found["action"], outcome, atol=_EXACT), "commands get something else than the outcome's part"
    for name in ("progress", "prediction"):
        _check_signal(name, batch, np.asarray(found[name]) - outcome)
        other = {key: (3 * values if key == name else values[::-1].copy()) for key, values in batch.process.items()}
        moved = np.asarray(credit(_with(batch, other))[name]) - outcome
        assert np.allclose(moved, np.asarray(found[name]) - outcome, atol=1e-4), f"{name}: its part depends on scales"
    _check_silence()


def _check_signal(name: str, batch: StepBatch, part: Floats) -> None:
    """Assert that right commitments get more than wrong ones in every task that has both."""
    score, task = batch.process[name], np.asarray(batch.task)
    seen = 0
    for number in np.unique(task):
        right, wrong = ((task == number) & (score == value) for value in (1.0, 0.0))
        if right.any() and wrong.any():
            seen += 1
            assert part[right].min() > part[wrong].max() + 0.01, f"{name}: wrong ones get as much as right ones"
            assert part[right].min() > 0 > part[wrong].max(), f"{name}: the parts of a task have one sign"
    assert seen >= 2, f"{name}: too few games have right and wrong ones"


def _check_silence() -> None:
    """Assert that nothing stated scores as the worst statement does."""
    env = committed(generate_games(1, 3)[0].make_env(5))
    form = CommitmentFormat()
    env.reset()
    for said in ("", "all is well", "progress=fine"):
        told = env.step(form.render(progress=said, action="look", prediction=said))[4]["process"]
        assert told["progress"] == 0.0, "an empty statement earns something"
        assert told["prediction"] == 0.0, "an empty prediction earns something"


def _with(batch: StepBatch, process: dict[str, Floats]) -> StepBatch:
    return StepBatch(
        batch.task, batch.traj, batch.t, batch.reward, batch.anchor, process=process, success=batch.success
    )


def _constant(batch: StepBatch) -> dict[str, Floats]:
    return {name: np.ones(len(batch)) for name in SEGMENTS}


def _random(batch: StepBatch) -> dict[str, Floats]:
    draws = generator("conformance", "arc/dummy", len(batch))
    outcome = np.asarray(grpo(batch))
    return {name: outcome + (0 if name == "action" else draws.normal(size=len(batch))) for name in SEGMENTS}


def _identity(batch: StepBatch) -> dict[str, Floats]:
    """Return the outcome's advantage for everything, as though nothing had been stated."""
    return dict.fromkeys(SEGMENTS, np.asarray(grpo(batch)))


def _everywhere(batch: StepBatch) -> dict[str, Floats]:
    """Return one sum for every segment: the process part reaches commands."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict.fromkeys(SEGMENTS, np.asarray(arc_advantage(batch, route="step").step))


def _bad_inputs() -> tuple[BadInput, ...]:
    good = steps_of(0)
    infinite = {**good["process"], "progress": np.full(len(good["t"]), np.inf)}
    chain = KeyDoorChain()
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("a negative weight of the process", lambda: arc_advantage(_batch(), alpha=-0.1), "alpha"),
        ("a weight that is not a number", lambda: arc_advantage(_batch(), alpha=float("nan")), "alpha"),
        ("weights of one segment only", lambda: arc_advantage(_batch(), alpha={"progress": 0.1}), "alpha"),
        ("a signal that is not there", lambda: arc_advantage(_batch(), weights={"plan": 1.0}), "plan"),
        ("a negative share", lambda: arc_advantage(_batch(), weights={"progress": -1.0}), "weights"),
        ("an unknown route", lambda: arc_advantage(_batch(), route="token"), "route"),  # type: ignore[arg-type]
        ("an unknown group", lambda: arc_advantage(_batch(), group="batch"), "group"),  # type: ignore[arg-type]
        ("an infinite signal", lambda: StepBatch(**{**good, "process": infinite}), "process['progress']"),
        ("weights that name another reward", lambda: decoupled({"a": [1.0]}, [0], {"b": 1.0}), "weights"),
        ("rewards of another length", lambda: decoupled({"a": [1.0, 2.0]}, [0], {"a": 1.0}), "rewards"),
        ("two tags of one name", lambda: CommitmentFormat({"think": "action"}), "tags"),
        ("an unknown signal of a verifier", lambda: CommitmentWrapper(chain, {"plan": LexicalVerifier()}), "plan"),
        ("episodes without scores", lambda: inconsistency_report([[{"success": True}]]), "episodes"),
        ("probabilities that do not sum to 1", lambda: brier_score([[0.2, 0.2]], [0]), "probabilities"),
        ("rollouts without signals", lambda: user.user_task([[{"reward": 1.0}]]), "progress"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64", "float32"),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=credited,
    acceptance=acceptance,
    dummies={"constant": _constant, "random": _random, "identity": _identity, "everywhere": _everywhere},
)
