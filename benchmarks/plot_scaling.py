"""Draw how time and memory grow with size, from the committed receipts: one small chart per curve."""

from __future__ import annotations

import json
import math

from matplotlib.figure import Figure
from receipt import RESULTS


def curves() -> dict[str, dict[str, object]]:
    """Return title -> curve of every receipt that has a ``scaling`` entry."""
    found: dict[str, dict[str, object]] = {}
    for path in sorted(RESULTS.glob("speed_*.json")):
        found.update(json.loads(path.read_text())["figures"].get("scaling", {}))
    return found


def main() -> None:
    charts = curves()
    columns = 3
    rows = math.ceil(len(charts) / columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (title, curve) in zip(axes, charts.items(), strict=False):
        lines = curve["y"] if isinstance(curve["y"], dict) else {"": curve["y"]}
        for label, values in lines.items():
            axis.loglog(curve["x"], values, marker="o", label=label)
        axis.set(title=title, xlabel=curve["x_label"], ylabel=curve["y_label"])
        if len(lines) > 1:
            axis.legend(fontsize="small")
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    path = RESULTS / "scaling.svg"
    figure.savefig(path, metadata={"Date": None})
    print(path)


if __name__ == "__main__":
    main()
