"""Renew the settings of GAdapHead's bench on tuning streams, which no verdict is read from.

Every arm has three settings to choose from, those of its own knob: the threshold of the groups, the pull of FedProx,
the share of the head in FedRep's rounds, and for arms without a knob the learning rate. Chosen is the highest mean
greedy return over all evaluations, which is less of an accident than that of the last one. Long training alone, on the
same streams, gives what a task's returns are compared with.

Run: python benchmarks/tune_gadaphead.py [--seeds 3] [--tasks minigrid pendulum] (about half an hour on one core).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.contracts import CellInput
from steelyard.fed import gadaphead
from steelyard.fed.gadaphead import bench, deep

RATES: list[dict[str, Any]] = [{"learning_rate": rate} for rate in (5e-4, 1e-3, 2e-3)]
THRESHOLDS: list[dict[str, Any]] = [{"threshold": threshold} for threshold in (0.6, 0.8, 1.0)]
GRIDS: dict[str, list[dict[str, Any]]] = {
    "local": RATES,
    "fedavg": RATES,
    "fedper": RATES,
    "centralised": RATES,
    "fedprox": [{"prox_mu": pull} for pull in (1e-3, 1e-2, 1e-1)],
    "fedrep": [{"head_share": share} for share in (0.3, 0.5, 0.7)],
    "clustered": THRESHOLDS,
    "gadaphead": THRESHOLDS,
}


def cell_of(task: str, arm: str, config: dict[str, Any], seed: int) -> CellInput:
    """Return the cell of one setting on one tuning seed."""
    spec = bench.BENCH
    return CellInput(
        task, arm, {**spec.arm(arm).config, **config}, spec.profiles["full"].params, {}, seed, spec.task(task).load(),
        root="tuning",
    )  # fmt: skip


def suite_of(task: str) -> deep.Suite:
    """Return the tasks of a suite."""
    return deep.SUITES[task](cell_of(task, "local", {}, 0))


def measured(task: str, arm: str, config: dict[str, Any], seed: int) -> deep.Curve:
    """Return the greedy returns of one setting on one tuning seed."""
    cell = cell_of(task, arm, config, seed)
    suite = deep.SUITES[task](cell)
    return deep.centralised(cell, suite) if arm == "centralised" else deep.federated(cell, suite)


def tuned(task: str, seeds: range) -> dict[str, Any]:
    """Try every setting of every arm on one task."""
    chosen = {}
    for arm, grid in GRIDS.items():
        tried = []
        for config in grid:
            curves = [measured(task, arm, config, seed) for seed in seeds]
            score = float(np.mean([curve.returns.mean() for curve in curves]))
            last = float(np.mean([curve.returns[-1].mean() for curve in curves]))
            tried.append({"config": config, "score": round(score, 4), "last": round(last, 4)})
            print(task, arm, tried[-1], flush=True)
        best = max(tried, key=lambda one: (one["score"], one["last"]))
        chosen[arm] = {**best, "seeds": list(seeds), "tried": tried}
    return chosen


def main() -> None:
    """Write ``references.json`` and ``tuned.json`` beside the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=sorted(deep.SUITES))
    wanted = parser.parse_args()
    seeds, folder = range(wanted.seeds), Path(str(gadaphead.__path__[0]))
    for task in wanted.tasks:
        for name, make in (("references", reference), ("tuned", tuned)):
            path = folder / f"{name}.json"
            kept = json.loads(path.read_text(encoding="utf-8"))
            kept[task] = make(task, seeds)
            path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def reference(task: str, seeds: range) -> list[float]:
    """Return what long training alone reached at best on each client's task, over seeds and clients of one task."""
    curves = [measured(task, "local_long", {}, seed) for seed in seeds]
    best = np.max([curve.returns.max(axis=0) for curve in curves], axis=0)
    kinds = suite_of(task).kinds
    print(task, "reference of each client", best.round(3).tolist(), flush=True)
    return [round(float(best[kinds == kind].max()), 4) for kind in kinds]


if __name__ == "__main__":
    main()
