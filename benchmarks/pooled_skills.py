"""Differences in recall over all queries of a weighing at once, by a bootstrap over examples and plugins.

Usage: python benchmarks/pooled_skills.py STORE WEIGHING…  It stands beside the paired figures over folds: whole
clusters are drawn, never single queries, and clusters weigh alike. It also names those on which GoSkills loses most.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import receipt

from steelyard.agents.goskills.bench import BENCH
from steelyard.agents.goskills.tasks import everything
from steelyard.agents.ranking import paired_bootstrap
from steelyard.bench import open_source
from steelyard.bench.results import Row

LOSSES = 5


def recalls(rows: Sequence[Row], queries: int) -> dict[str, Any]:
    """Return arm -> recall of every query, NaN for those of folds that did not run, from what the cells kept."""
    found = {name: np.full(queries, np.nan) for name in rows[0].traces}
    for row in rows:
        for name, (numbers, values) in row.traces.items():
            found[name][np.array(numbers, dtype=int)] = values
    return found


def by_cluster(values: Any, clusters: Sequence[str]) -> tuple[list[str], Any]:
    """Return the clusters with their mean value."""
    names = sorted(set(clusters))
    member = np.array(clusters)
    return names, np.array([values[member == name].mean() for name in names])


def of_task(rows: Sequence[Row], task: str) -> dict[str, Any]:
    """Return arm -> difference of GoSkills to it with limits, and where it loses most to the strongest list."""
    _, queries = everything(BENCH.task(task).load())
    kept = recalls(rows, len(queries))
    ran = ~np.isnan(kept["goskills"])
    clusters = [query.cluster for query, seen in zip(queries, ran, strict=True) if seen]
    names, ours = by_cluster(kept["goskills"][ran], clusters)
    figures: dict[str, Any] = {"queries": int(ran.sum()), "clusters": len(names), "goskills": float(ours.mean())}
    for arm in kept:
        if arm != "goskills":
            theirs = by_cluster(kept[arm][ran], clusters)[1]
            figures[arm] = {**paired_bootstrap(ours, theirs)._asdict(), "mean": float(theirs.mean())}
    rival = by_cluster(kept["chunked_backfill"][ran], clusters)[1]
    worst = np.argsort(ours - rival, kind="stable")[:LOSSES]
    figures["loses most to chunked_backfill"] = {
        names[place]: float(ours[place] - rival[place]) for place in worst if ours[place] < rival[place]
    }
    return figures


def main(store: str, weighings: list[str]) -> None:
    source = open_source(store)
    for identity in weighings:
        results = source.results(identity)
        cells = [row for row in results.rows if row.arm == "goskills" and row.state == "done" and row.traces]
        tasks = dict.fromkeys(row.task for row in cells)
        figures = {task: of_task([row for row in cells if row.task == task], task) for task in tasks}
        for task, found in figures.items():
            print(f"{task}: {found['queries']} queries, {found['clusters']} clusters, GoSkills {found['goskills']:.3f}")
            for arm, one in found.items():
                if isinstance(one, dict) and "low" in one:
                    limits = f"[{one['low']:+.3f}, {one['high']:+.3f}]"
                    print(f"  over {arm:18s} {one['mean']:.3f}  {one['estimate']:+.3f} {limits}")
            print("  loses most:", found["loses most to chunked_backfill"])
        print(receipt.write(f"pooled_skills_{results.profile}", figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
