"""Pictures that cells recorded, of nodes and arrows or of cells in rows and columns, as geometry for the template."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steelyard.bench.results import Results
from steelyard.contracts import Diagram, Edge, Grid, Node, Picture
from steelyard.report.clean import clean
from steelyard.report.figures import clip

MOST = 12  # pictures of one weighing
_COLUMN, _ROW, _MARGIN, _HEAD = 132.0, 46.0, 66.0, 24.0  # pixels
_RADIUS, _ARROW = 7.0, 5.0
_TILE = 40  # pixels of a grid's cell
_LABEL = 20  # characters of a label that fit a column; the whole is shown when the node is pointed at, and in the table
_NODE_KINDS = ("plain", "main", "good", "bad", "muted", "first", "second", "third")
_EDGE_KINDS = ("solid", "dashed", "good", "bad")


def diagram_pictures(results: Results, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the diagrams of all finished cells, at most ``MOST``, in the order of tasks, arms and seeds.

    Args:
        results: The weighing, cleaned.
        labels: Task name -> label.
    """
    arms = {arm.name: arm.label for arm in results.arms}
    pictures = []
    for row in results.rows:
        if row.state == "done":
            where = f"{labels.get(row.task, row.task)}, {clip(arms.get(row.arm, row.arm), 60)}, seed {row.seed}"
            pictures += [{**picture(diagram), "where": where} for diagram in row.diagrams]
    return pictures[:MOST]


def picture(one: Picture) -> dict[str, Any]:
    """Return the geometry and the words of one picture, as the template draws them."""
    return _grid(one) if isinstance(one, Grid) else _diagram(one)


def _grid(grid: Grid) -> dict[str, Any]:
    """Return cells whose shade goes from the lowest value to the highest."""
    flat = [value for row in grid.values for value in row]
    low, spread = min(flat), (max(flat) - min(flat)) or 1.0
    marked, columns = set(grid.marked), len(grid.values[0])

    def cell(row: int, column: int, value: float) -> dict[str, Any]:
        stands_out = (row, column) in marked
        return {
            "x": column * _TILE, "y": row * _TILE, "shade": f"{0.05 + 0.9 * (value - low) / spread:.2f}",
            "marked": stands_out, "image": grid.images[row * columns + column] if grid.images else "",
            "said": f"row {row + 1}, column {column + 1}: {value:.3g}{', marked' if stands_out else ''}",
        }  # fmt: skip

    cells = [cell(row, column, value) for row, of_row in enumerate(grid.values) for column, value in enumerate(of_row)]
    return {
        "title": grid.title,
        "caption": grid.caption,
        "width": columns * _TILE,
        "height": len(grid.values) * _TILE,
        "tile": _TILE,
        "cells": cells,
        "table": {
            "head": ("row", *(str(column + 1) for column in range(columns))),
            "rows": [(str(row + 1), *(f"{value:.3g}" for value in of)) for row, of in enumerate(grid.values)],
        },
    }


def _diagram(diagram: Diagram) -> dict[str, Any]:
    places = _places(diagram)
    width = max(x for x, _ in places.values()) + _MARGIN
    height = max(y for _, y in places.values()) + 34
    names = {node.id: node.label for node in diagram.nodes}
    drawn = {node.kind for node in diagram.nodes}  # "good" and "bad" may be nodes or arrows
    return {
        "title": diagram.title,
        "caption": diagram.caption,
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "columns": [
            (clip(text, _LABEL + 2), f"{_x(index, diagram):.0f}") for index, text in enumerate(diagram.columns)
        ],
        "nodes": [_node(node, *places[node.id]) for node in diagram.nodes],
        "edges": [_edge(edge, places, names) for edge in diagram.edges if edge.source != edge.target],
        "legend": [
            {"css": kind, "edge": kind in _EDGE_KINDS and kind not in drawn, "text": text}
            for kind, text in diagram.legend.items()
            if kind in (*_NODE_KINDS, *_EDGE_KINDS)
        ],
        "table": {
            "head": ("from", "to", "what"),
            "rows": [
                (names[e.source], names[e.target], e.label or diagram.legend.get(e.kind, e.kind)) for e in diagram.edges
            ],
        },
        "points": {
            "head": ("point", "what", "more"),
            "rows": [(node.label, diagram.legend.get(node.kind, ""), node.note) for node in diagram.nodes],
        },
    }


def _x(column: float, diagram: Diagram) -> float:
    first = min(min(node.x for node in diagram.nodes), 0.0 if diagram.columns else math.inf)
    return _MARGIN + (column - first) * _COLUMN


def _places(diagram: Diagram) -> dict[str, tuple[float, float]]:
    top = min(node.y for node in diagram.nodes)
    above = (_HEAD if diagram.columns else 0.0) + 16.0
    return {node.id: (_x(node.x, diagram), above + (node.y - top) * _ROW) for node in diagram.nodes}


def _node(node: Node, x: float, y: float) -> dict[str, str]:
    return {
        "css": node.kind,
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
        "label": clip(clean(node.label), _LABEL),
        "said": clip(f"{node.label}: {node.note}" if node.note else node.label, 500),
    }


def _edge(edge: Edge, places: Mapping[str, tuple[float, float]], names: Mapping[str, str]) -> dict[str, str]:
    """Return an arrow as a curve that bends aside, so that two between the same nodes do not cover each other."""
    (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    bend = min(0.16 * length, 26.0)
    middle = ((x0 + x1) / 2 - uy * bend, (y0 + y1) / 2 + ux * bend)
    start = _toward((x0, y0), middle, _RADIUS + 2)
    end = _toward((x1, y1), middle, _RADIUS + 3)
    back = math.atan2(middle[1] - end[1], middle[0] - end[0])
    wings = [(end[0] + _ARROW * math.cos(back + s * 0.5), end[1] + _ARROW * math.sin(back + s * 0.5)) for s in (1, -1)]
    return {
        "css": f"{edge.kind} strong" if edge.strong else edge.kind,
        "path": f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}",
        "head": "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (wings[0], end, wings[1])) + "z",
        "said": clip(f"{names[edge.source]} to {names[edge.target]}{': ' + edge.label if edge.label else ''}", 300),
    }


def _toward(place: tuple[float, float], other: tuple[float, float], distance: float) -> tuple[float, float]:
    dx, dy = other[0] - place[0], other[1] - place[1]
    length = math.hypot(dx, dy) or 1.0
    return place[0] + dx / length * distance, place[1] + dy / length * distance
