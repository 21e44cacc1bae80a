"""Probes for the checks that every method passes; the acceptance test takes the q-player in any form."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.optim.gdro_fsq import problems
from steelyard.optim.gdro_fsq.baselines import Game, Run, average_risk, one_per_round
from steelyard.optim.gdro_fsq.bench import user_task
from steelyard.optim.gdro_fsq.core import fsq_minimize
from steelyard.optim.gdro_fsq.player import Floats, PLAPlayer, gradient_weights
from steelyard.optim.gdro_fsq.problems import GroupProblem
from steelyard.optim.gdro_fsq.theory import gdro_error_bound
from steelyard.optim.gdro_fsq.torch_data import FlexGroupBatchSampler, FlexGroupDRO

ROUNDS = 1000
SEEDS = (0, 1, 2)


def _solve(seed: int, dtype: str) -> Arrays:
    """Two linear groups that disagree, in torch tensors of ``dtype``."""
    centres = torch.tensor([[1.0, 0.0], [0.0, -1.0], [-1.0, 1.0]], dtype=getattr(torch, dtype))

    def loss_grad(w: torch.Tensor, sample: tuple[int, float]) -> tuple[torch.Tensor, torch.Tensor]:
        shift = w - centres[sample[0]] * sample[1]
        return (shift * shift).sum(), 2 * shift

    samplers = [lambda rng, i=i: (i, rng.uniform(0.5, 1.0)) for i in range(3)]
    found = fsq_minimize(
        loss_grad, samplers, torch.zeros(2, dtype=centres.dtype), 1.0, 0.7, lambda t: 1 + t % 3,
        rng=np.random.default_rng(seed), rounds=60, loss_range=6.0,
    )  # fmt: skip
    return {"average": found.average.numpy(), "last": found.last.numpy()}


def _play(player: PLAPlayer, rng: np.random.Generator, r: int, rounds: int) -> list[Floats]:
    """Return the strategies of ``rounds`` rounds in which group i costs (i + 1)/m."""
    strategies = []
    for _ in range(rounds):
        _, groups, _ = player.propose(r, rng)
        strategies.append(player.open_proposals[0].q)
        player.update((groups + 1.0) / player.m)
    return strategies


def _hedge(m: int, rounds: int) -> Floats:
    """Return the strategies of Hedge with eta_t = sqrt(ln m/t) on the losses 1 - (i + 1)/m."""
    sums, strategies = np.zeros(m), []
    for t in range(1, rounds + 1):
        q = np.exp(-np.sqrt(np.log(m) / t) * sums)
        strategies.append(q / q.sum())
        sums += 1.0 - (np.arange(m) + 1.0) / m
        sums -= sums.min()
    return np.stack(strategies)


def _noop() -> tuple[Arrays, Arrays]:
    """With one group there is nothing to choose: rounds of any weight are plain stochastic gradient descent."""
    found = [
        fsq_minimize(
            lambda w, z: (float((w - z) @ (w - z)), 2 * (w - z)), [lambda rng: rng.random(2)], np.zeros(2), 1.0, 1.0, 1,
            rng=np.random.default_rng(3), rounds=50, loss_range=8.0, mode=mode,
        )
        for mode in ("ix", "auto")
    ]  # fmt: skip
    rng, theta, average = np.random.default_rng(3), np.zeros(2), np.zeros(2)
    for t in range(1, 51):
        shift = theta * (-(1.0 / 8.0) / np.sqrt(t))
        norm = float(np.sqrt(shift @ shift))
        w = np.zeros(2) + (shift * (1.0 / norm) if norm > 1.0 else shift)
        rng.random()  # the anchor's draw
        average = average + (w - average) * (1.0 / t)
        theta = theta + 2 * (w - rng.random(2))
    return {"ix": found[0].average, "auto": found[1].average}, {"ix": average, "auto": average}


def _effect() -> tuple[Arrays, Arrays]:
    """Exploration changes the strategies even at r = m, where mode auto is Hedge."""
    ix = np.stack(_play(PLAPlayer(5), np.random.default_rng(0), 5, 30))
    return {"q": ix}, {"q": _hedge(5, 30)}


def _resumed() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(1)
    whole = PLAPlayer(6)
    _play(whole, rng, 2, 20)
    restored, copy = PLAPlayer(6), np.random.default_rng(0)
    restored.load_state_dict(whole.state_dict())
    copy.bit_generator.state = rng.bit_generator.state
    return {"q": np.stack(_play(whole, rng, 3, 20))}, {"q": np.stack(_play(restored, copy, 3, 20))}


def _untouched() -> tuple[Arrays, Arrays]:
    w0, losses = np.array([0.25, -0.5]), np.array([0.1, 0.9])
    before = {"w0": w0.copy(), "losses": losses.copy()}
    fsq_minimize(
        lambda w, z: (float((w - z) @ (w - z)), 2 * (w - z)), [lambda rng: rng.random(2)] * 2, w0, 1.0, 1.0, 2,
        rng=np.random.default_rng(0), rounds=5, loss_range=10.0,
    )  # fmt: skip
    player = PLAPlayer(3)
    player.propose(2, np.random.default_rng(0))
    player.update(losses)
    return before, {"w0": w0, "losses": losses}


@functools.cache
def _digits() -> tuple[GroupProblem, tuple[float, ...]]:
    """Return the digits task and the worst risks that must be beaten: no learning, 1 query a round, no adversary."""
    problem = GroupProblem.from_arrays(problems.digits_by_class())
    rivals = [float(problem.risks(problem.w0).max())]
    for rival in (one_per_round, functools.partial(average_risk, balanced=True)):
        worst = []
        for seed in SEEDS:
            game = Game(problem.loss_grad, problem, problem.w0, problem.radius, problem.lipschitz("mean"), 4.0)
            run = Run(_stream(seed, problem.m), ROUNDS, np.random.default_rng(seed))
            worst.append(float(problem.risks(rival(game, run).average).max()))
        rivals.append(float(np.mean(worst)))
    return problem, tuple(rivals)


def _stream(seed: int, m: int) -> list[int]:
    return [int(r) for r in np.random.default_rng([seed, 7]).integers(1, m + 1, ROUNDS)]


def acceptance(implementation: Any) -> None:
    """Demand of a q-player class what the method is for, on scikit-learn's digits with the classes as groups.

    Trained with its proposals and weights, the model's worst group must have a lower risk than without learning, than
    with one query per round and than with group reweighting alone; the weights must be those of a mixed strategy that
    leans to groups with high losses, and inclusion probabilities must sum to r.
    """
    problem, rivals = _digits()
    worst = float(np.mean([_train(implementation, problem, seed) for seed in SEEDS]))
    assert worst < rivals[0] - 0.05, f"worst risk {worst:.4f}, no learning gives {rivals[0]:.4f}"
    assert worst < rivals[1] - 0.005, f"worst risk {worst:.4f}, one query per round gives {rivals[1]:.4f}"
    assert worst < rivals[2] - 0.005, f"worst risk {worst:.4f}, reweighting alone gives {rivals[2]:.4f}"
    player, rng = implementation(4), np.random.default_rng(0)
    for _ in range(200):
        _, groups, _ = player.propose(2, rng)
        player.update(np.where(groups == 2, 0.9, 0.1))
    assert player.weights.argmax() == 2, f"the costly group 2 has no lead in {player.weights}"
    assert abs(player.weights.sum() - 1.0) < 1e-12, "the weights are no mixed strategy"


def _train(implementation: Any, problem: GroupProblem, seed: int) -> float:
    """Return the worst group's risk after follow-the-regularised-leader with the player's weights."""
    player, rng = implementation(problem.m), np.random.default_rng(seed)
    step, theta, average = problem.radius / problem.lipschitz("mean"), problem.w0, problem.w0
    for t, r in enumerate(_stream(seed, problem.m), start=1):
        w = -step / np.sqrt(t) * theta
        w *= min(1.0, problem.radius / max(float(np.linalg.norm(w)), 1e-12))
        _, groups, _ = player.propose(r, rng)
        weights = gradient_weights(player.open_proposals[0], "rb")
        losses, slope = problem.loss_grad(w, problem.draw(groups, rng))
        player.update(np.minimum(losses / problem.loss_range, 1.0))
        average = average + (w - average) / t
        theta = theta + slope(weights / problem.loss_range)
    return float(problem.risks(average).max())


class _Uniform(PLAPlayer):
    """Identity: hands on what it is given and never learns; plain group reweighting."""

    def update(self, losses: Any) -> None:
        self._open.popleft()


class _Constant(_Uniform):
    """Constant: puts everything on group 0 for ever."""

    def __init__(self, m: int) -> None:
        super().__init__(m)
        self._S[1:] = 1e9


class _Random(PLAPlayer):
    """Random: learns from noise instead of losses."""

    def __init__(self, m: int) -> None:
        super().__init__(m)
        self._noise = np.random.default_rng(5)

    def update(self, losses: Any) -> None:
        super().update(self._noise.random(len(losses)))


def _proposed(m: int, r: int) -> PLAPlayer:
    player = PLAPlayer(m)
    player.propose(r, np.random.default_rng(0))
    return player


def _dro(losses: list[float], groups: list[int]) -> object:
    dro = FlexGroupDRO(None, 3)
    dro.player.propose(3, np.random.default_rng(0))
    return dro(torch.tensor(losses), torch.tensor(groups))


TABLE = {
    "x": np.array([1.0, 2.0, np.nan, 0.5]),
    "region": np.array(["a", "b", "a", "b"]),
    "y": np.array(["n", "p"] * 2),
}
ONE = np.array(["a"] * 4)

BAD_INPUTS = (
    BadInput("losses above 1", lambda: _proposed(4, 2).update([0.5, 1.5]), "losses"),
    BadInput("NaN loss", lambda: _proposed(4, 2).update([0.5, float("nan")]), "losses"),
    BadInput("negative loss", lambda: _proposed(4, 2).update([0.5, -0.1]), "losses"),
    BadInput("losses of the wrong length", lambda: _proposed(4, 2).update([0.5]), "losses"),
    BadInput("r = 0", lambda: _proposed(4, 0), "r must"),
    BadInput("r above m", lambda: _proposed(4, 5), "r must"),
    BadInput("r a bool", lambda: _proposed(4, True), "r must"),
    BadInput("r a float", lambda: _proposed(4, 1.5), "r must"),  # type: ignore[arg-type]
    BadInput("m = 0", lambda: PLAPlayer(0), "m must"),
    BadInput("unknown mode", lambda: PLAPlayer(3, "iix"), "mode"),  # type: ignore[arg-type]
    BadInput("duplicate groups", lambda: PLAPlayer(3, "observed").observe([1, 1], np.ones(3)), "group 1"),
    BadInput("group without items", lambda: FlexGroupBatchSampler([0, 2], 1, PLAPlayer(3)), "group 1"),
    BadInput("losses of a batch are NaN", lambda: _dro([0.1, float("nan"), 0.3], [0, 1, 2]), "losses"),
    BadInput("infinite loss", lambda: _dro([0.1, float("inf"), 0.3], [0, 1, 2]), "losses"),
    BadInput("groups not chosen by the player", lambda: _dro([0.1, 0.2], [0, 1]), "groups"),
    BadInput("delta = 1", lambda: gdro_error_bound(3, 1, 10, D=1.0, G=1.0, delta=1.0), "delta"),
    BadInput("missing group column", lambda: user_task(TABLE, group="regoin", label="y"), "region"),
    BadInput("missing label column", lambda: user_task(TABLE, group="region", label="z"), "z"),
    BadInput("one group", lambda: user_task({**TABLE, "region": ONE}, group="region", label="y"), "region"),
    BadInput("one class", lambda: user_task({**TABLE, "y": ONE}, group="region", label="y"), "'y'"),
    BadInput(
        "empty table",
        lambda: user_task({name: column[:0] for name, column in TABLE.items()}, group="region", label="y"),
        "row",
    ),
)

CONFORMANCE = Conformance(
    run=_solve,
    dtypes=("float32", "float64"),
    bad_inputs=BAD_INPUTS,
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=PLAPlayer,
    acceptance=acceptance,
    dummies={"constant": _Constant, "random": _Random, "identity": _Uniform},
)
