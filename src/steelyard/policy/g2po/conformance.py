"""Probes for the checks that every method passes; the acceptance test takes any rule of credit for steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.policy.advantages import gigpo, grpo, rloo
from steelyard.policy.chain import KeyDoorChain, Wanderer, exact_values
from steelyard.policy.g2po import user
from steelyard.policy.g2po.cells import correlation, exact_advantages
from steelyard.policy.g2po.core import g2po_advantage
from steelyard.policy.g2po.theory import edge_variance_bound
from steelyard.policy.groups import Floats
from steelyard.policy.household.generate import generate_games
from steelyard.policy.loglinear import LogLinearPolicy
from steelyard.policy.rollouts import collect
from steelyard.policy.steps import StepBatch
from steelyard.policy.training import train_household
from steelyard.rng import generator

Credit = Callable[[StepBatch], Floats]
"""From steps to their advantages."""

_GROUPS, _ROLLOUTS, _HORIZON, _REWARD = 24, 8, 60, 10.0
_LEAST, _MORE = 0.35, 0.15


def credited(batch: StepBatch) -> Floats:
    """Return G2PO's credit at its defaults."""
    return np.asarray(g2po_advantage(batch))


def steps_of(seed: int, dtype: str = "float64") -> dict[str, Any]:
    """Return made-up steps of two tasks with four rollouts each."""
    draws = generator("conformance", "g2po/steps", seed)
    lengths = draws.integers(3, 9, size=8)
    traj = np.repeat(np.arange(8), lengths)
    t = np.concatenate([np.arange(length) for length in lengths])
    reward = np.zeros(len(t), dtype)
    reward[np.cumsum(lengths) - 1] = 10.0 * draws.integers(0, 2, size=8)
    return {"task": traj // 4, "traj": traj, "t": t, "reward": reward, "anchor": draws.integers(0, 6, size=len(t))}


def _batch(seed: int = 0, dtype: str = "float64") -> StepBatch:
    return StepBatch(**steps_of(seed, dtype))


def _run(seed: int, dtype: str) -> Arrays:
    return {"advantage": g2po_advantage(_batch(seed, dtype)), "gigpo": gigpo(_batch(seed, dtype))}


def _noop() -> tuple[Arrays, Arrays]:
    """Without weight on the graph it is GRPO."""
    return {"advantage": g2po_advantage(_batch(), w=0.0)}, {"advantage": grpo(_batch())}


def _effect() -> tuple[Arrays, Arrays]:
    return {"advantage": g2po_advantage(_batch())}, {"advantage": grpo(_batch())}


def _resumed() -> tuple[Arrays, Arrays]:
    """Train a small policy for four iterations, or two and two with its state carried over."""
    games, limit = generate_games(6, 1), {"tasks": 2, "rollouts": 3, "max_steps": 12}

    def trained(parts: tuple[int, ...]) -> Arrays:
        policy = LogLinearPolicy()
        for place, count in enumerate(parts):
            if place:
                state, policy = policy.state_dict(), LogLinearPolicy()
                policy.load_state_dict(state)
            for number in range(count):
                done = sum(parts[:place]) + number
                train_household(policy, games, credited, iterations=1, seed=done, **limit)  # type: ignore[arg-type]
        return {"weights": policy.weights}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trained((4,)), trained((2, 2))


def _untouched() -> tuple[Arrays, Arrays]:
    inputs = steps_of(0)
    before = {name: values.copy() for name, values in inputs.items()}
    g2po_advantage(StepBatch(**inputs), return_info=True)
    return before, inputs


def acceptance(credit: Credit) -> None:
    """Credit the steps of rollouts whose exact advantages are known, and of shuffled and renamed copies of them.

    Credit must order steps as the exact advantage does, much better than GRPO and GiGPO do on the same rollouts; it
    must not depend on the order of the rows nor on the states' names; and where states are not told apart it must be
    worse: one that does not look at states cannot be.

    Raises:
        AssertionError: It is not so.
    """
    acting = Wanderer()
    exact = exact_values(acting.probabilities, reward=_REWARD, horizon=_HORIZON)
    draws = generator("conformance", "g2po/chain", 0)
    found: dict[str, list[float]] = {"ours": [], "grpo": [], "gigpo": [], "blurred": []}
    for _ in range(_GROUPS):
        envs = [(0, KeyDoorChain(max_steps=_HORIZON, reward=_REWARD)) for _ in range(_ROLLOUTS)]
        episodes = collect(envs, acting, draws)
        batch, truth = StepBatch.from_episodes(episodes), exact_advantages(episodes, exact, _HORIZON)
        blurred = StepBatch.from_episodes([[{**step, "anchor": step["observation"]} for step in e] for e in episodes])
        ours = credit(batch)
        order = draws.permutation(len(batch))
        assert np.allclose(credit(_rows(batch, order)), ours[order], atol=1e-9), "the order of the rows changes credit"
        for name, values in (
            ("ours", ours),
            ("grpo", grpo(batch)),
            ("gigpo", gigpo(batch)),
            ("blurred", credit(blurred)),
        ):
            found[name].append(correlation(np.asarray(values), truth))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    assert mean["ours"] >= _LEAST, f"correlation with the exact advantage is {mean['ours']:.2f}, at least {_LEAST}"
    for rival in ("grpo", "gigpo", "blurred"):
        gain = mean["ours"] - mean[rival]
        assert gain >= _MORE, f"correlation is {gain:.2f} above that of {rival}, at least {_MORE} was asked for"


def _rows(batch: StepBatch, order: Any) -> StepBatch:
    """Return the batch in another order of rows, its states by other names."""
    names = [f"state {anchor}" for anchor in batch.anchor]
    return StepBatch(
        [batch.task[row] for row in order], [batch.traj[row] for row in order], batch.t[order], batch.reward[order],
        [names[row] for row in order], success=None if batch.success is None else batch.success[order],
    )  # fmt: skip


def _constant(batch: StepBatch) -> Floats:
    return np.ones(len(batch))


def _random(batch: StepBatch) -> Floats:
    return generator("conformance", "g2po/dummy", len(batch)).normal(size=len(batch))


def _identity(batch: StepBatch) -> Floats:
    """Return the rewards themselves."""
    return np.asarray(batch.reward)


def _bad_inputs() -> tuple[BadInput, ...]:
    good = steps_of(0)
    episodes = [[{"task": 0, "reward": 1.0, "anchor": "a", "action": "go"}]]

    def made(**changed: Any) -> Callable[[], object]:
        return lambda: StepBatch(**{**good, **changed})

    twice, gap, nan = good["t"].copy(), good["t"].copy(), good["reward"].copy()
    twice[1], gap[2], nan[3] = 0, 40, np.nan
    mixed = good["task"].copy()
    mixed[0] = 1
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("a step twice", made(t=twice), "t: row 1"),
        ("a missing step", made(t=gap), "t: row"),
        ("a rollout across tasks", made(task=mixed), "task: row"),
        ("a reward that is not a number", made(reward=nan), "reward: row 3"),
        ("anchors of another length", made(anchor=[0]), "anchor"),
        ("an anchor that is a list", made(anchor=[[1]] * len(twice)), "anchor: row 0"),
        ("a discount above 1", lambda: g2po_advantage(_batch(), gamma=1.5), "gamma"),
        ("a negative weight", lambda: g2po_advantage(_batch(), w=-1.0), "w must"),
        ("an unknown part", lambda: g2po_advantage(_batch(), parts=("nodes",)), "parts"),
        ("an unknown norm", lambda: g2po_advantage(_batch(), norm="max"), "norm"),  # type: ignore[arg-type]
        ("terminal values of another length", lambda: g2po_advantage(_batch(), terminal_value=[1.0]), "terminal_value"),
        ("steps without anchors", lambda: g2po_advantage(StepBatch(**{**good, "anchor": None})), "anchor"),
        ("a node without visits", lambda: edge_variance_bound(1.0, 0, 2), "n_src"),
        ("rollouts too few to divide", lambda: user.user_task(episodes), "at least 4 rollouts"),
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
    dummies={"constant": _constant, "random": _random, "identity": _identity, "grpo": grpo, "rloo": rloo},
)
