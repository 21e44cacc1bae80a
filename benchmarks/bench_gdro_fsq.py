"""What the q-player costs per round, FSQ with all groups against mirror descent, and r = 1 against r = m in time.

Ratios are medians over interleaved rounds.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Iterator

import numpy as np
from receipt import write

from steelyard.errors import DataMissingError
from steelyard.optim import PLAPlayer, fsq_minimize
from steelyard.optim.gdro_fsq import problems
from steelyard.optim.gdro_fsq.baselines import Game, Run, smd
from steelyard.optim.gdro_fsq.problems import GroupProblem
from steelyard.timing import interleaved

TARGETS_US = {20: 50.0, 1000: 300.0}  # per round: propose and update
SIZES = ((20, 5), (100, 10), (1000, 30), (10_000, 100), (30_000, 100), (100_000, 100))


def median_ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def player_cost() -> dict[str, dict[str, float]]:
    """Return microseconds per round (propose and update) by number of groups."""
    rng, calls = np.random.default_rng(0), {}
    for m, r in SIZES:
        player, losses = PLAPlayer(m), np.full(r, 0.3)

        def one_round(player: PLAPlayer = player, r: int = r, losses: np.ndarray = losses) -> None:
            player.propose(r, rng)
            player.update(losses)

        calls[str(m)] = one_round
    small = interleaved({name: calls[name] for name in ("20", "100", "1000")}, repeats=15, number=400)
    large = interleaved({name: calls[name] for name in ("10000", "30000", "100000")}, repeats=9, number=20)
    costs = {}
    for (m, r), values in zip(SIZES, (small | large).values(), strict=True):
        costs[str(m)] = {"r": r, "median_us": 1e6 * statistics.median(values), "best_us": 1e6 * min(values)}
        if m in TARGETS_US:
            costs[str(m)]["target_us"] = TARGETS_US[m]
    return costs


def instances() -> Iterator[tuple[str, GroupProblem]]:
    """Yield the tasks by name, Adult and MNIST only where their data are at hand."""
    yield "synthetic", GroupProblem.from_arrays(problems.synthetic(0.5, 0.15, 2.0))
    yield "digits", GroupProblem.from_arrays(problems.digits_by_class())
    for name, load in (("adult", problems.adult_by_race_sex_age), ("mnist", problems.mnist_by_class)):
        try:
            yield name, GroupProblem.from_arrays(load())
        except DataMissingError as error:
            print(f"{name} left out: {error}")


def against_mirror_descent(rounds: int = 300) -> dict[str, float]:
    """Return the time of a round of FSQ with r = m over a round of SMD, by task."""
    ratios = {}
    for name, problem in instances():
        ours = functools.partial(solve, problem, problem.m, rounds)
        seconds = interleaved({"fsq": ours, "smd": lambda problem=problem: descend(problem, rounds)}, repeats=9)
        ratios[name] = median_ratio(seconds, "fsq", "smd")
        ratios[f"{name}_us_per_round"] = 1e6 * statistics.median(seconds["fsq"]) / rounds
    return ratios


def equal_samples(samples: int = 4000) -> dict[str, float]:
    """Return the time of r = 1 over the time of r = m for the same number of samples, by task."""
    ratios = {}
    for name, problem in instances():
        arms = {str(r): functools.partial(solve, problem, r, samples // r) for r in (1, problem.m)}
        ratios[f"{name}_m{problem.m}"] = median_ratio(interleaved(arms, repeats=5), "1", str(problem.m))
    return ratios


def solve(problem: GroupProblem, r: int, rounds: int) -> object:
    return fsq_minimize(
        problem.loss_grad, problem, problem.w0, problem.radius, problem.lipschitz("max"), r,
        rng=np.random.default_rng(0), rounds=rounds, loss_range=1e9,
    )  # fmt: skip


def descend(problem: GroupProblem, rounds: int) -> object:
    game = Game(problem.loss_grad, problem, problem.w0, problem.radius, problem.lipschitz("max"), 1e9)
    return smd(game, Run(problem.m, rounds, np.random.default_rng(0)))


def main() -> None:
    costs = player_cost()
    figures = {
        "player_us_per_round": costs,
        "fsq_all_groups_over_smd": against_mirror_descent(),
        "targets": {"fsq_all_groups_over_smd": 1.2, "equal_samples_r1_over_rm": 5.0},
        "equal_samples_r1_over_rm": equal_samples(),
        "scaling": {
            "PLA player: propose and update": {
                "x": [m for m, _ in SIZES],
                "y": [costs[str(m)]["median_us"] for m, _ in SIZES],
                "x_label": "groups",
                "y_label": "microseconds a round",
            }
        },
    }
    print(json.dumps(figures, indent=1))
    print(write("speed_gdro_fsq", figures))


if __name__ == "__main__":
    main()
