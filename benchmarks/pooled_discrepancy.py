"""AUROC over all subsets of a weighing at once, with a bootstrap over questions, beside the paired figures.

Usage: python benchmarks/pooled_discrepancy.py STORE WEIGHING…
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import receipt

from steelyard import rng
from steelyard.bench import open_source
from steelyard.bench.results import Row
from steelyard.guard.discrepancy.measure import pooled_auroc


def pooled(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return arm -> area, limits and answers, from the scores that the cells of one task kept."""
    names = [name for name in rows[0].traces if name not in ("wrong", "by_layer")]
    questions = np.concatenate([row.traces["wrong"][0] for row in rows])
    wrong = np.concatenate([row.traces["wrong"][1] for row in rows]) == 1
    found = {}
    for name in names:
        if not all(name in row.traces for row in rows):
            continue
        scores = np.concatenate([row.traces[name][1] for row in rows])
        # The same draws for every arm, so that intervals differ by the scores alone.
        draws = rng.generator("evaluation", f"pooled/{rows[0].task}", 0)
        found[name] = pooled_auroc(scores, wrong, questions, draws)._asdict()
    return found


def main(store: str, weighings: list[str]) -> None:
    source = open_source(store)
    for identity in weighings:
        results = source.results(identity)
        cells = [row for row in results.rows if row.arm == "discrepancy" and row.state == "done" and row.traces]
        tasks = dict.fromkeys(row.task for row in cells)
        figures = {task: pooled([row for row in cells if row.task == task]) for task in tasks}
        for task, arms in figures.items():
            print(task)
            for arm, area in arms.items():
                print(f"  {arm:18s} {area['auroc']:.3f} [{area['low']:.3f}, {area['high']:.3f}]  {area['answers']}")
        print(receipt.write(f"pooled_discrepancy_{results.profile}", figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
