"""A page that answers one question of a user's with tables and pictures; the same looks as the report of a weighing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import steelyard
from steelyard.contracts import Diagram, Grid, Picture
from steelyard.extras import require
from steelyard.report.clean import clean, clean_all
from steelyard.report.diagrams import picture
from steelyard.report.figures import clip
from steelyard.report.html import sprite, style_sheet, template_environment, write_page
from steelyard.report.svg import EXTRA

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


class Table(NamedTuple):
    """Rows under a heading; the first column names the row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Part(NamedTuple):
    """A section of the page: what it says, in words, tables and pictures."""

    heading: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    diagrams: tuple[Picture, ...] = ()


def write_answer(path: str | os.PathLike[str], title: str, lead: str, parts: Sequence[Part]) -> Path:
    """Write one self-contained HTML file without scripts and return its path.

    Args:
        path: The file; it is replaced only by a whole new page.
        title: Heading of the page.
        lead: What was asked and the answer in a sentence or two.
        parts: The sections. All text is escaped.

    Raises:
        InputError: ``path`` cannot be written.
        MissingExtraError: Jinja2 is not installed.
    """
    safe = require("markupsafe", EXTRA).Markup
    template = template_environment().get_template("answer.html")
    text = template.render(
        title=clip(clean(title), 200),
        lead=clip(clean(lead), 1200),
        parts=[_part(part) for part in parts],
        policy=_POLICY,
        style=safe(style_sheet()),
        sheet="",
        sprite=safe(sprite()),
        version=steelyard.__version__,
    )
    return write_page(path, text)


def _part(part: Part) -> dict[str, Any]:
    return {
        "heading": clean(part.heading),
        "text": clean(part.text),
        "tables": [
            {"title": clean(t.title), "head": t.head, "rows": [[clean(cell, 300) for cell in row] for row in t.rows]}
            for t in part.tables
        ],
        "diagrams": [{**picture(_cleaned(diagram)), "where": ""} for diagram in part.diagrams],
    }


def _cleaned(one: Picture) -> Picture:
    kind = Grid if isinstance(one, Grid) else Diagram
    return kind.model_validate(clean_all(one.model_dump()))
