"""What the runner costs: milliseconds per cell beside the cell's own work, and what an import costs."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from receipt import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from steelyard.bench import runner
from steelyard.bench.plan import make_plan
from steelyard.bench.store import Store

SIZES = (50, 100, 200, 400)


def overhead(seeds: int, jobs: int) -> float:
    """Return wall seconds to run 2 x ``seeds`` cells that do nothing, start of the workers included."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.db") as store:
        plan = make_plan("toys.coin", store, profile="quick", seeds=seeds)
        plan.save(store)
        start = time.perf_counter()
        counts = runner.run(store, [plan.id], jobs)
        assert counts.done == 2 * seeds
        return time.perf_counter() - start


def import_cpu(statement: str, repeats: int = 5) -> float:
    """Return the median CPU seconds of a fresh interpreter that runs ``statement``."""
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


def main() -> None:
    one_worker = {2 * seeds: overhead(seeds, 1) for seeds in SIZES}
    cells, seconds = list(one_worker), list(one_worker.values())
    slope = (seconds[-1] - seconds[0]) / (cells[-1] - cells[0])
    bare = import_cpu("pass")
    figures = {
        "cells": cells,
        "seconds_one_worker": [round(value, 3) for value in seconds],
        "ms_per_cell_one_worker": round(1000 * slope, 2),
        "import_cpu_s_over_bare_interpreter": {
            "steelyard": round(import_cpu("import steelyard") - bare, 4),
            "steelyard.weigh": round(import_cpu("import steelyard; steelyard.weigh") - bare, 3),
            "GreedySGD": round(import_cpu("from steelyard.optim import GreedySGD") - bare, 3),
        },
        "scaling": {"runner: seconds by cells": {"x": cells, "y": seconds, "x_label": "cells", "y_label": "s"}},
    }
    print(figures)
    print(write("speed_runner", figures))


if __name__ == "__main__":
    main()
