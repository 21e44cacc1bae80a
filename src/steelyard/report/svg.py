"""Lean inline SVG from matplotlib figures: text as text, colours as CSS variables, ids that never collide.

Figures are made with the object API and an SVG canvas, never with pyplot. Matplotlib keeps its settings in one global
table, so drawing happens under a lock and the table is put back afterwards.
"""

from __future__ import annotations

import html
import io
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from steelyard.extras import require

EXTRA = "optim"  # every room's extra brings matplotlib; this is the one that exists from the start
SERIES = 8  # colours for arms; after that they repeat with another dash

_NAMES = ("ink", "muted", "grid", "band", "floor", "card", "o-borne", "o-direction", "o-none", "o-reversed", "o-open")
_SENTINELS = {name: f"#0101{index:02x}" for index, name in enumerate(_NAMES, start=1)}
_SENTINELS |= {f"a{index}": f"#0102{index:02x}" for index in range(SERIES)}
_VARIABLES = {sentinel: f"var(--{name})" for name, sentinel in _SENTINELS.items()}
_LOCK = threading.Lock()


def colour(name: str) -> str:
    """Return the stand-in for the page's CSS variable ``--name`` (``ink``, ``grid``, ``a0`` …) in a figure."""
    return _SENTINELS[name]


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    """Matplotlib's defaults and ours, whatever the user's own settings say, for the length of one drawing."""
    matplotlib = require("matplotlib", EXTRA)
    ours = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.size": 11.0,
        "text.parse_math": False,  # a label may hold dollar signs
        "text.color": colour("ink"),
        "axes.labelcolor": colour("muted"),
        "axes.edgecolor": colour("grid"),
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "xtick.color": colour("grid"),
        "ytick.color": colour("grid"),
        "xtick.labelcolor": colour("muted"),
        "ytick.labelcolor": colour("muted"),
        "xtick.major.size": 0.0,
        "ytick.major.size": 0.0,
        "xtick.minor.size": 0.0,
        "ytick.minor.size": 0.0,
        "grid.color": colour("grid"),
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.solid_capstyle": "round",
        "path.simplify_threshold": 0.3,
    }
    with _LOCK, matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the measuring font lacks is drawn by the browser's font
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(ours)
        yield


def render(draw: Callable[[Any], None], width: float, height: float, salt: str, label: str) -> str:
    """Return the figure that ``draw`` paints on an empty one, as inline SVG.

    Args:
        draw: Gets a ``matplotlib.figure.Figure`` and adds axes to it.
        width: Width in CSS pixels; the page scales the figure down where there is less room.
        height: Height in CSS pixels.
        salt: Makes the ids of this figure its own; must differ between figures of one page.
        label: What a screen reader says for the figure.

    Returns:
        One ``<svg>`` element, without width, height, scripts, styles or outside references.
    """
    figures = require("matplotlib.figure", EXTRA)
    canvas = require("matplotlib.backends.backend_svg", EXTRA).FigureCanvasSVG
    buffer = io.StringIO()
    with _settings(salt):
        figure = figures.Figure(figsize=(width / 72, height / 72), dpi=72)
        canvas(figure)
        draw(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    return slim(buffer.getvalue(), label)


def slim(svg: str, label: str) -> str:
    """Return matplotlib's SVG without what a page does not need, and with CSS variables for colours."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    box = re.search(r'viewBox="([^"]*)"', svg)
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.S)
    body = re.sub(r">\s+<", "><", body)
    body = re.sub(r"<defs><clipPath.*?</clipPath></defs>| clip-path=\"[^\"]*\"", "", body)  # nothing leaves its axes
    body = re.sub(r"<[^<>]+>", lambda tag: _slim_tag(tag.group()), body)
    body = re.sub(r'<path d="[^"]*" style="fill:none"/>', "", body)  # frames without a line
    used = set(re.findall(r'href="#([^"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda match: match.group() if match.group(1) in used else "", body)
    for _ in range(4):
        body = re.sub(r"<g>(<[^<>]+/>|<text[^<>]*>[^<]*</text>|<defs><path[^<>]*/></defs>)</g>", r"\1", body)
        body = re.sub(r"<g[^<>]*></g>|<g/>|<defs/>", "", body)
    body = re.sub(r'(?:<use [^<>]*? style="([^"]*)"/>)(?:<use [^<>]*? style="\1"/>)+', _share_style, body)
    size = box.group(1) if box else "0 0 1 1"
    title = html.escape(label, quote=True)
    return f'<svg viewBox="{size}" role="img" aria-label="{title}">{body.strip()}'


def share(figures: Sequence[str], least: int = 4) -> tuple[list[str], str, str]:
    """Return the figures of one page without what they repeat, and what they then share.

    Args:
        figures: From :func:`render`.
        least: How often a style must occur to become a class.

    Returns:
        The figures; the style sheet of the shared styles; the ``<path>`` elements of the shared markers, to be put
        once into the ``<defs>`` of an SVG on the page.
    """
    counts = Counter(style for figure in figures for style in re.findall(r' style="([^"]*)"', figure))
    names = {style: f"k{index}" for index, (style, count) in enumerate(counts.most_common()) if count >= least}
    markers: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return f" class={names[match.group(1)]}" if match.group(1) in names else match.group()

    shared = []
    for figure in figures:
        found = re.findall(r'<defs><path id="([^"]*)"([^<>]*)/></defs>', figure)
        text = re.sub(r"<defs><path [^<>]*/></defs>", "", figure)
        for local, rest in found:
            text = text.replace(f'href="#{local}"', f"href=#{markers.setdefault(rest, f'p{len(markers)}')}")
        text = re.sub(r"<g>(<[^<>]+/>)</g>", r"\1", text)
        text = re.sub(r' style="([^"]*)"(?=[ >])', name, text.replace("/>", " />"))
        shared.append(re.sub(r' ([xy])="(-?[\d.]+)"', r" \1=\2", text))
    sheet = "".join(f".{short}{{{style}}}" for style, short in names.items())
    defs = "".join(f'<path id="{short}"{rest}/>' for rest, short in markers.items())
    return shared, sheet, defs


def _share_style(run: re.Match[str]) -> str:
    """Return markers of one style as one group that holds it."""
    style = f' style="{run.group(1)}"'
    return f"<g{style}>{run.group().replace(style, '')}</g>"


def _slim_tag(tag: str) -> str:
    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r"#010[12][0-9a-f]{2}", lambda found: _VARIABLES.get(found.group(), found.group()), tag)
    tag = re.sub(r" font-family: [^;\"]*;?", "", tag)
    tag = re.sub(r"font-size: 11px; ?| stroke-linejoin: miter;?| stroke-linecap: square;?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = re.sub(r"-?\d+\.\d+", lambda found: _short(float(found.group())), tag)
    tag = re.sub(r' d="([^"]*)"', lambda found: f' d="{_short_path(found.group(1))}"', tag)
    return re.sub(r"\s+", " ", re.sub(r"([:;,]) ", r"\1", tag)).replace(" />", "/>").replace(';"', '"')


def _short(value: float) -> str:
    text = f"{value:.1f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else re.sub(r"^(-?)0\.", r"\1.", text)


def _short_path(path: str) -> str:
    """Return a path of straight lines in relative coordinates, which take half the bytes; others unchanged."""
    steps = re.findall(r"([A-Za-z])([^A-Za-z]*)", path)
    if any(command not in "MLz" for command, _ in steps):
        return path
    parts, x, y, last = [], 0.0, 0.0, ""
    for command, numbers in steps:
        if command == "z":
            parts.append("z")
        else:
            new_x, new_y = (round(float(number), 1) for number in numbers.split())
            head = "M" if command == "M" else "l" if last != "L" else " "  # a repeated l need not be written
            pair = (new_x, new_y) if command == "M" else (new_x - x, new_y - y)
            parts.append(f"{head}{_short(pair[0])} {_short(pair[1])}")
            x, y = new_x, new_y
        last = command
    return "".join(parts).replace("l0 0", "h0").replace(" -", "-")
