"""The view's own pages, made without any template library: the index, a running weighing, and messages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from steelyard.bench.results import Results
from steelyard.report.clean import clean
from steelyard.report.html import sprite, style_sheet
from steelyard.report.summary import progress

_STATES = (("done", ""), ("failed", "bad"), ("running", "now"))


def plain_policy() -> str:
    """Return the content security policy of a page without a script."""
    return "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; " + (
        "frame-ancestors 'none'"
    )


def script_policy(script: str) -> str:
    """Return the policy of a page with one script, known by its hash, that may send requests to this server."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{plain_policy()}; script-src 'sha256-{digest}'; connect-src 'self'"


def live_policy() -> str:
    """Return the policy of the live page."""
    return script_policy(own_script("live.js"))


@cache
def own_script(name: str) -> str:
    """Return a script that lies beside this module."""
    return resources.files("steelyard.serve").joinpath(name).read_text(encoding="utf-8").strip()


def message(title: str, said: str) -> str:
    """Return a page with one sentence and a way back."""
    return shell(title, f"<h1>{text(title)}</h1><p>{text(said)}</p><p><a href='/'>All weighings</a></p>")


def index(entries: Sequence[dict[str, Any]]) -> str:
    """Return the list of all weighings with state and progress."""
    if not entries:
        body = "<p>The store holds no weighing yet. Start one with <code>steelyard weigh</code>.</p>"
        return shell("Weighings", f"<h1>Weighings</h1>{body}")
    rows = "".join(_index_row(entry) for entry in entries)
    head = "".join(
        f'<th scope="col"{css}>{name}'
        for name, css in (
            ("Weighing", ' class="l"'),
            ("state", ' class="l"'),
            ("cells", ""),
            ("failed", ""),
            ("profile", ""),
            ("started", ""),
        )
    )
    table = f"<table><thead><tr>{head}<tbody>{rows}</table>"
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="Weighings">{table}</div>'
    return shell("Weighings", f"<h1>Weighings</h1><article>{box}</article>")


def _index_row(entry: dict[str, Any]) -> str:
    name, method = escape(str(entry["id"]), quote=True), text(entry["method"])
    state = "finished" if entry["finished"] else "running" if entry["running"] else "stopped"
    cells = f"{int(entry['done']) + int(entry['failed'])} of {int(entry['total'])}"
    started = text(f"{str(entry['created'])[:10]} {str(entry['created'])[11:16]}")
    return (
        f'<tr><th scope="row" class="w"><a href="/weighing/{name}">{method}</a> '
        f'<span class="meta">{text(entry["id"])}</span><td class="l">{state}{_meter(entry)}<td>{cells}'
        f"<td>{int(entry['failed'])}<td>{text(entry['profile'])}<td>{started}"
    )


def _meter(counts: dict[str, Any], name: str = "") -> str:
    whole = int(counts["total"]) or 1
    shares = [(css, 100 * int(counts[state]) / whole) for state, css in _STATES]
    bars = "".join(f'<i class="{css}" style="width:{share:.2f}%"></i>' for css, share in shares)
    now = int(counts["done"]) + int(counts["failed"])
    return (
        f'<div class="meter"{name} role="progressbar" aria-label="Cells finished" aria-valuemin="0" '
        f'aria-valuemax="{int(counts["total"])}" aria-valuenow="{now}">{bars}</div>'
    )


def live(results: Results) -> str:
    """Return the page of a running weighing; its script asks for progress every second until the report is there."""
    state = progress(results)
    rows = "".join(
        f'<tr><th scope="row" class="w">{text(arm["label"], 120)} <span class="tag {text(arm["role"])}">'
        f"{text(arm['role'])}</span><td>{arm['done']}<td>{arm['failed']}<td>{arm['running']}<td>{arm['waiting']}"
        for arm in state["arms"]
    )
    cells = "".join(
        f"<li>{text(cell['arm'], 80)} on {text(cell['task'], 80)}, seed {cell['seed']}</li>" for cell in state["cells"]
    )
    said = f"{state['done'] + state['failed']} of {state['total']} cells are in"
    name = text(results.card["name"], 120)
    body = f"""<h1>{name}</h1><p class="lead">{text(results.card["summary"], 600)}</p>
<article><p class="big" id="said">{said}</p>{_meter(state, ' id="meter"')}
<p id="state" class="reversed" role="status"></p>
<p class="meta">The report takes this page's place when every cell is in.</p>
<h3>By arm</h3><div class="scroll" tabindex="0" role="region" aria-label="Cells by arm"><table><thead><tr>
<th scope="col" class="l">Arm<th scope="col">done<th scope="col">failed<th scope="col">running<th scope="col">waiting
<tbody id="arms">{rows}</table></div>
<h3>Running now</h3><ul class="plain" id="cells">{cells or "<li>No cell is running right now.</li>"}</ul></article>
<p><a href="/">All weighings</a></p>"""
    address = f' data-progress="/api/weighing/{escape(results.id, quote=True)}/progress"'
    script = f"<script>{own_script('live.js')}</script>"
    return shell(str(results.card["name"]), body, attributes=address, script=script)


def text(value: object, longest: int = 400) -> str:
    """Return ``value`` as HTML text of bounded length, without characters that would steer a page."""
    return escape(clean(str(value), longest), quote=True)


def shell(title: str, body: str, attributes: str = "", script: str = "") -> str:
    """Return a whole page in the house's style; ``body``, ``attributes`` and ``script`` are HTML, ``title`` is text."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{text(title, 120)} · steelyard</title>
<link rel="icon" href="data:,"><style>{style_sheet()}</style></head><body{attributes}>
<a class="skip" href="#main">Skip to the content</a>{sprite()}<div class="page"><header class="top">
<p class="brand"><svg aria-hidden="true"><use href="#mark"/></svg><a href="/">steelyard</a></p></header>
<main id="main">{body}</main></div>{script}</body></html>
"""
