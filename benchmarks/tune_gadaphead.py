"""Renew the settings of GAdapHead's bench on tuning streams, which no verdict is read from.

Every arm tries five settings on the same seeds. Three are learning rates; then, at the best rate, an arm with a knob of
its own (the threshold of the groups, the pull of FedProx, the head's share of FedRep's rounds) tries two other values
of it, and an arm without one tries a rate on either side. Chosen is the highest mean greedy return over all
evaluations, which is less of an accident than that of the last one. Long training alone, at the default settings and on
the same streams, gives what a task's returns are compared with.

Run: python benchmarks/tune_gadaphead.py [--seeds 2] [--tasks ...] [--arms ...] [--references ...] [--jobs 2]
(120 trainings of some ten seconds each, and long ones for the references)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.contracts import CellInput
from steelyard.fed import gadaphead
from steelyard.fed.gadaphead import bench, deep

Settings = dict[str, Any]
RATES = (1e-3, 5e-4, 2e-3)
KNOBS: dict[str, tuple[str, tuple[float, float, float]]] = {
    "fedprox": ("prox_mu", (1e-3, 1e-2, 1e-4)),
    "fedrep": ("head_share", (0.5, 0.3, 0.7)),
    "clustered": ("threshold", (1.0, 0.8, 0.6)),
    "gadaphead": ("threshold", (1.0, 0.8, 0.6)),
}
"""An arm's own knob, and its values: the first one while rates are tried."""


def first_settings(arm: str) -> list[Settings]:
    """Return the learning rates, at the first value of the arm's knob."""
    own = {KNOBS[arm][0]: KNOBS[arm][1][0]} if arm in KNOBS else {}
    return [{"learning_rate": rate, **own} for rate in RATES]


def further_settings(arm: str, best: Settings) -> list[Settings]:
    """Return two settings beside the best of the first: other values of the knob, or rates on either side."""
    if arm in KNOBS:
        name, values = KNOBS[arm]
        return [{**best, name: value} for value in values[1:]]
    return [{**best, "learning_rate": round(factor * best["learning_rate"], 7)} for factor in (0.7, 1.4)]


def cell_of(task: str, arm: str, config: Settings, seed: int) -> CellInput:
    """Return the cell of one setting on one tuning seed, with the full profile's rounds, steps and episodes."""
    spec = bench.BENCH
    profile = spec.profiles["full"]
    own = [block.params for block in profile.blocks if task in block.tasks and "gadaphead" in block.arms]
    params = {**profile.params, **(own[0] if own else {})}
    return CellInput(
        task, arm, {**spec.arm(arm).config, **config}, params, {}, seed, spec.task(task).load(), root="tuning"
    )


def measured(task: str, arm: str, config: Settings, seed: int) -> np.ndarray:
    """Return the greedy returns (T, N) of one setting on one tuning seed."""
    cell = cell_of(task, arm, config, seed)
    suite = deep.SUITES[task](cell)
    return (deep.centralised if arm == "centralised" else deep.federated)(cell, suite).returns


Rows = dict[tuple[str, str], list[Settings]]


def tried(pool: Executor, seeds: range, wanted: Iterable[tuple[str, str, Settings]]) -> Rows:
    """Measure settings of arms on tasks, and return them with their scores by task and arm."""
    running = [
        (task, arm, config, [pool.submit(measured, task, arm, config, seed) for seed in seeds])
        for task, arm, config in wanted
    ]
    rows: Rows = {}
    for task, arm, config, futures in running:
        curves = [future.result() for future in futures]
        score, last = np.mean([curve.mean() for curve in curves]), np.mean([curve[-1].mean() for curve in curves])
        row = {"config": config, "score": round(float(score), 4), "last": round(float(last), 4)}
        rows.setdefault((task, arm), []).append(row)
        print(task, arm, row, flush=True)
    return rows


def best_of(rows: list[Settings]) -> Settings:
    """Return the row of the highest score."""
    return max(rows, key=lambda row: (row["score"], row["last"]))


def tune(pool: Executor, tasks: list[str], arms: list[str], seeds: range) -> dict[str, dict[str, Any]]:
    """Return the chosen settings by task and arm, with all that were tried; arms that a task does not have are left."""
    pairs = [(task, arm) for task in tasks for arm in arms if arm in bench.TUNED[task]]
    rows = tried(pool, seeds, [(*pair, config) for pair in pairs for config in first_settings(pair[1])])
    beside = [(*pair, one) for pair, own in rows.items() for one in further_settings(pair[1], best_of(own)["config"])]
    for pair, more in tried(pool, seeds, beside).items():
        rows[pair] += more
    chosen: dict[str, dict[str, Any]] = {}
    for (task, arm), own in rows.items():
        chosen.setdefault(task, {})[arm] = {**best_of(own), "seeds": list(seeds), "tried": own}
    return chosen


def references(pool: Executor, tasks: list[str], seeds: range) -> dict[str, list[float]]:
    """Return the best that long training alone reached at any evaluation, over seeds and clients of one task."""
    running = {task: [pool.submit(measured, task, "local_long", {}, seed) for seed in seeds] for task in tasks}
    found = {}
    for task, futures in running.items():
        best = np.max([future.result().max(axis=0) for future in futures], axis=0)
        kinds = deep.SUITES[task](cell_of(task, "local", {}, 0)).kinds
        found[task] = [round(float(best[kinds == kind].max()), 4) for kind in kinds]
        print(task, "reference of each client", found[task], flush=True)
    return found


def renew(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one of the files beside the bench."""
    path = Path(str(gadaphead.__path__[0])) / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    change(kept)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Write ``tuned.json`` and ``references.json`` beside the bench; what was not asked for stays as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tasks", nargs="*", default=sorted(bench.TUNED))
    parser.add_argument("--arms", nargs="*", default=sorted({arm for rows in bench.TUNED.values() for arm in rows}))
    parser.add_argument("--references", nargs="*", default=sorted(deep.SUITES), help="tasks whose references to renew")
    wanted = parser.parse_args()
    seeds = range(wanted.seeds)
    with ProcessPoolExecutor(wanted.jobs) as pool:
        if wanted.references:
            long = references(pool, wanted.references, seeds)
            renew("references", lambda kept: kept.update(long))
        for task, rows in tune(pool, wanted.tasks, wanted.arms, seeds).items():
            renew("tuned", lambda kept, task=task, rows=rows: kept.setdefault(task, {}).update(rows))


if __name__ == "__main__":
    main()
