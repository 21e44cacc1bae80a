"""Time the household games: loading all official ones, reading their rules, steps with texts, a training iteration.

Run: STEELYARD_DATA_MIRROR=… python benchmarks/bench_household.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import receipt

from steelyard.policy import LogLinearPolicy, g2po_advantage, load_household_games, train_household
from steelyard.policy.household.games import _all_games

TARGETS = {"steps a second": 5_000, "seconds to load 874 games": 2.0, "milliseconds to read a game's rules": 5.0}


def timed(call: Any, repeats: int) -> float:
    """Return the median of processor seconds."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return statistics.median(found)


def load() -> None:
    _all_games.cache_clear()
    load_household_games("valid_unseen")


def steps_a_second(games: list[Any], seed: int = 0) -> float:
    """Return steps of random play a second, with texts, admissible commands and state keys."""
    draws, steps, start = np.random.default_rng(seed), 0, time.process_time()
    for game in games:
        for _ in range(8):
            env = game.make_env()
            _, info = env.reset()
            while not env.over:
                offered = info["admissible"]
                *_, info = env.step(offered[int(draws.random() * len(offered))])
                env.state_key()
                steps += 1
    return steps / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    figures: dict[str, Any] = {"targets": TARGETS, "seconds to load 874 games": timed(load, repeats)}
    _all_games.cache_clear()
    games = load_household_games("valid_unseen")
    start = time.process_time()
    for game in games:
        _ = game.rules, game.won
    figures["milliseconds to read a game's rules"] = 1000 * (time.process_time() - start) / len(games)
    figures["steps a second"] = statistics.median(steps_a_second(games[:40], seed) for seed in range(repeats))
    policy = LogLinearPolicy()
    policy.fit_bc(games[:20], 3)
    log = train_household(policy, games, g2po_advantage, iterations=10)
    figures["seconds an iteration of 64 episodes"] = log.seconds / 10
    figures["share of it for advantages"] = log.advantage_seconds / log.seconds
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_household", figures))


if __name__ == "__main__":
    main()
