"""Keep weighings as receipts: all but curves and small images, one JSON file per method under ``results/``.

Usage: python benchmarks/keep_weighing.py STORE WEIGHING…
"""

from __future__ import annotations

import sys

from receipt import RESULTS

from steelyard.bench import open_source
from steelyard.contracts import Grid, Picture


def without_images(one: Picture) -> Picture:
    return one.model_copy(update={"images": ()}) if isinstance(one, Grid) else one


def main(store: str, weighings: list[str]) -> None:
    source = open_source(store)
    for identity in weighings:
        results = source.results(identity)
        rows = tuple(
            row.model_copy(update={"traces": {}, "diagrams": tuple(map(without_images, row.diagrams))})
            for row in results.rows
        )
        path = RESULTS / f"weighing_{results.method}_{results.profile}.json"
        path.write_text(results.model_copy(update={"rows": rows}).model_dump_json(indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
