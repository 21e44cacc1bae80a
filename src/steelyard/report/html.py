"""One self-contained HTML file of one or several weighings: no network, no outside files, hostile text escaped.

A content security policy inside the file allows its own style and one script by hash, so that even text that slipped
through escaping could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import steelyard
from steelyard.bench.results import Results
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.report.clean import tidy
from steelyard.report.figures import clip
from steelyard.report.page import csv_text, method_page, outcome_counts
from steelyard.report.svg import EXTRA, share

LIMIT = 500_000  # bytes of a file with three methods; a third of it for each one more
_CURVE_BYTES = 64_000  # what all curves of the page together may take
_SECTIONS = (
    ("progress", "Progress"),
    ("verdicts", "Verdicts"),
    ("claims", "Claims"),
    ("arms", "Arms"),
    ("cost", "Cost and quality"),
    ("curves", "Curves"),
    ("pictures", "Pictures"),
    ("ledger", "Decisions"),
    ("paper", "Paper and ours"),
    ("limits", "Limits"),
    ("environment", "Environment"),
    ("failures", "Failures"),
    ("raw", "Raw rows"),
)


def write_report(results: Sequence[Results], path: str | os.PathLike[str]) -> Path:
    """Write the report of ``results`` to one HTML file and return its path.

    Args:
        results: Weighings, at least one, in the order in which they are shown; unfinished ones show their progress.
        path: The file; its folder is made if it is missing. It is replaced only by a whole new report.

    Raises:
        InputError: ``results`` is empty, or ``path`` cannot be written.
        MissingExtraError: matplotlib or Jinja2 is not installed.
    """
    return write_page(path, render_report(results))


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` to ``path``, which is replaced only by the whole of it, and return the path.

    Raises:
        InputError: ``path`` cannot be written.
    """
    target = Path(path).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".report-") as folder:
            draft = Path(folder, target.name)
            draft.write_bytes(text.encode())
            os.replace(draft, target)
    except OSError as error:
        raise InputError(f"path: the report cannot be written to {target} ({error.strerror or error})") from None
    return target


def render_report(results: Sequence[Results]) -> str:
    """Return the report of ``results`` as HTML; equal results give equal bytes.

    Raises:
        InputError: ``results`` is empty.
        MissingExtraError: matplotlib or Jinja2 is not installed.
    """
    if not results:
        raise InputError("results: a report needs at least one weighing")
    require("matplotlib", EXTRA)
    environment = template_environment()
    cleaned = [tidy(result) for result in results]
    points = _curve_points(cleaned)
    pages = [method_page(result, f"m{index}", points) for index, result in enumerate(cleaned, start=1)]
    for page in pages:
        page["anchors"] = [(anchor, name) for anchor, name in _SECTIONS if _has(page, anchor)]
    context = _context(cleaned, pages)
    limit = LIMIT * max(len(results), 3) // 3
    template = environment.get_template("report.html")
    for _ in _shorter_rows(pages):
        text: str = template.render(context)
        if len(text.encode()) <= limit:
            break
    return text


def script_policy() -> str:
    """Return the content security policy of a report: its own styles, its one script by hash, nothing else."""
    digest = base64.b64encode(hashlib.sha256(_asset("report.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("steelyard.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def style_sheet() -> str:
    """Return the style sheet that reports and the live view share."""
    return _asset("style.css")


def sprite() -> str:
    """Return the inline SVG symbols (marks of the verdicts, of roles, and the logo) that pages refer to."""
    return _asset("sprite.html")


def template_environment() -> Any:
    """Return the Jinja2 environment of the pages: everything escaped, a name that is missing is an error."""
    jinja = require("jinja2", EXTRA)
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cut"] = lambda value, length: clip(str(value), length)
    return environment


def _context(results: Sequence[Results], pages: list[dict[str, Any]]) -> dict[str, Any]:
    safe = require("markupsafe", EXTRA).Markup
    slots = list(_figure_slots(pages))
    figures, sheet, markers = share([slot["figure"] for slot in slots])
    for slot, figure in zip(slots, figures, strict=True):
        slot["figure"] = safe(figure)  # made by us; labels in it were escaped by matplotlib and html.escape
    verdicts = [verdict for result in results if result.finished for verdict in result.verdicts]
    outcomes = outcome_counts(verdicts)
    names = [clip(str(result.card["name"]), 120) for result in results]
    return {
        "pages": pages,
        "title": f"{names[0]}, weighed" if len(names) == 1 else f"{_counted(len(names))} methods, weighed",
        "lead": _lead(results, names),
        "outcomes": outcomes,
        "total": len(verdicts),
        "spoken": ", ".join(f"{outcome['n']} {outcome['word']}" for outcome in outcomes),
        "policy": script_policy(),
        "style": safe(style_sheet()),
        "sheet": safe(sheet),
        "markers": safe(markers),
        "script": safe(_asset("report.js")),
        "sprite": safe(sprite()),
        "version": steelyard.__version__,
    }


def _lead(results: Sequence[Results], names: Sequence[str]) -> str:
    waiting = sum(not result.finished for result in results)
    cells = sum(bool(row.key) for result in results for row in result.rows)
    subject = str(results[0].card["summary"]) if len(results) == 1 else "; ".join(names) + "."
    state = f" {waiting} not finished." if waiting and len(results) > 1 else ""
    return clip(subject, 600) + f" {cells} cells on paired seeds.{state}"


def _counted(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[count] if count < len(words) else str(count)


def _has(page: dict[str, Any], anchor: str) -> bool:
    shown: dict[str, bool] = {
        "progress": not page["finished"],
        "verdicts": page["finished"],
        "claims": page["finished"],
        "arms": page["finished"],
        "cost": bool(page.get("scatters")),
        "curves": bool(page.get("traces")),
        "pictures": bool(page.get("diagrams")),
        "paper": bool(page.get("claims")),
        "failures": bool(page["failures"]),
        "raw": page["finished"],
    }
    return shown.get(anchor, True)


def _figure_slots(pages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the holders of all figures of the page."""
    for page in pages:
        yield from (claim for claim in page.get("claims", ()) if claim["figure"])
        yield from page.get("scatters", ())
        for group in page.get("traces", ()):
            yield from group["figures"]


def _curve_points(results: Sequence[Results]) -> int:
    """Return how many points each curve may have so that all of them together stay within their share of the file."""
    curves = sum(len(r.traces) * len(r.tasks) * len(r.arms) for r in results if r.finished)
    share = _CURVE_BYTES * max(len(results), 3) // 3
    return min(max(share // (14 * max(curves, 1)), 14), 80)


def _shorter_rows(pages: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Step by step, write the raw rows shorter; yield after each step, the full tables first."""
    yield
    for page in pages:
        page["raw_note"] = "Comma-separated and without notes to keep this file small; steelyard export has all of it."
        for table in page["raw"]:
            table["text"] = csv_text(table)
    yield
    for page in pages:
        page["raw_note"] = "Only the first metrics are shown to keep this file small; steelyard export has all of it."
        for table in page["raw"]:
            table["text"] = csv_text(table, columns=2)
    yield
    for page in pages:
        page["raw_note"] = "The rows are left out to keep this file small; steelyard export has them."
        page["raw"] = []
    yield
