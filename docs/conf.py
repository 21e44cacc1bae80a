"""Sphinx configuration. Method cards, the table of methods, the commands and the names of each room are generated here.

What is generated comes from the code at build time and is never copied by hand: ``methods/`` from the cards,
``generated/`` from the command line's own help and from the public names.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import steelyard
from steelyard import catalog
from steelyard.card import Source
from steelyard.report.card import card_markdown

HERE = Path(__file__).parent

project = "steelyard"
author = "the steelyard contributors"
project_copyright = author
version = release = steelyard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough"]  # the HTML builder, which is the one used, renders it

html_theme = "furo"
html_title = f"steelyard {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["steelyard.css"]
smartquotes = False  # it would turn the -- of options into dashes
html_theme_options = {"navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # types stand in the signature
# Shown by name, as in the source; written out they fill lines.
_ALIASES = ("ArrayLike", "Arrays", "Column", "Derive", "Floats", "Gradient", "Ints", "Params", "Role", "Schedule")
autodoc_type_aliases = {name: name for name in _ALIASES}

_CODE = re.compile(r"(``.*?``|:[a-z:]+:`[^`]*`|`[^`]*`)")
_MARKUP = re.compile(r"([*|])|(?<=\w)_(?=\W|$)")


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    cells = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {cells_} |" for cells_ in cells)])


def method_table() -> str:
    """Return the page that lists the methods of the catalog."""
    rows = (
        (
            f"[{catalog.load_card(row.id).name}]({row.id}.md)",
            f"`{row.id}`",
            row.plugs_into,
            f"`steelyard[{row.extra}]`",
            row.summary,
        )
        for row in catalog.METHODS
    )
    pages = "\n".join(row.id for row in catalog.METHODS)
    return (
        "# The methods\n\nOne page per method, made from its card; `steelyard card METHOD` prints the same text.\n\n"
        + table(("method", "name in steelyard", "plugs into", "install", "what it is"), rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    )


def method_page(method: str) -> str:
    """Return the page of one method: its card, and what the ledger says about where its choices come from."""
    card = catalog.load_card(method)
    counts = {source: sum(decision.source is source for decision in card.decisions) for source in Source}
    said = ", ".join(f"{count} from {_FROM[source]}" for source, count in counts.items() if count)
    head = "## Decisions\n\n"
    text = card_markdown(card).replace(head, f"{head}Of these {len(card.decisions)} decisions: {said}.\n\n")
    return f"{text}\n## Weigh it\n\n```console\n$ steelyard weigh {method} --quick\n```\n"


_FROM = {
    Source.PAPER: "the paper",
    Source.SECOND_HAND: "a secondary source",
    Source.CODE: "the authors' code",
    Source.RECON: "our reconstruction",
    Source.DEFAULT: "us (additions and defaults)",
}


def commands_page() -> str:
    """Return the reference of the command line, made from the help of its commands."""
    from steelyard.cli.main import app

    root = typer.main.get_command(app)
    parts = ["# The command line", str(root.help), f"{root.epilog}", *_commands(root, "steelyard")]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, full)
            continue
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        usage = " ".join([full, *(_placeholder(param) for param in arguments)])
        yield f"## `{full}`\n\n{_paragraphs(command.help)}\n\n`{usage} [options]`\n\n{command.epilog}"
        rows = [(_names(param), param.help or "") for param in command.params if getattr(param, "help", None)]
        if rows:
            yield table(("option", "meaning"), iter(rows))


def _placeholder(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required else f"[{name}]"


def _names(param: Any) -> str:
    names = [param.metavar or param.name.upper()] if param.param_type_name == "argument" else param.opts
    return ", ".join(f"`{name}`" for name in (*names, *getattr(param, "secondary_opts", ())))


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\f", "").split("\n\n"))


def room_page(room: str) -> str:
    """Return the API reference of a room: its public names, grouped by the method that they belong to.

    Names that need another extra than the room's, such as the Flower strategy, are told of on the room's own page:
    these pages are made without what they need.
    """
    package = f"steelyard.{room}"
    module = importlib.import_module(package)
    groups: dict[str, list[str]] = {}
    for name in module.__all__:
        home = getattr(module, name).__module__
        groups.setdefault(home.removeprefix(f"{package}.").partition(".")[0], []).append(name)
    parts = [f"# `{package}`", str(module.__doc__).strip(), f"Every name is imported from `{package}`."]
    methods = {row.id for row in catalog.METHODS}
    for method, names in sorted(groups.items()):
        parts.append(f"## {method}" + f"\n\nSee [its card](../methods/{method}.md)." * (method in methods))
        for name in sorted(names, key=str.lower):
            parts.append(f"```{{eval-rst}}\n{_directive(getattr(module, name), f'{package}.{name}')}\n```")
    return "\n\n".join(parts) + "\n"


def _directive(thing: object, name: str) -> str:
    if isinstance(thing, type):
        return f".. autoclass:: {name}\n   :members:"
    return f".. autofunction:: {name}" if callable(thing) else f".. autodata:: {name}\n   :no-value:"


def generated_pages() -> dict[str, str]:
    """Return path below the documentation folder -> text, for every page that is made from the code."""
    rooms = dict.fromkeys(row.room for row in catalog.METHODS)
    return {
        "methods/index.md": method_table(),
        **{f"methods/{row.id}.md": method_page(row.id) for row in catalog.METHODS},
        "generated/commands.md": commands_page(),
        **{f"generated/{room}.md": room_page(room) for room in rooms},
    }


def write_generated(folder: Path) -> list[Path]:
    """Write the generated pages into ``folder``; an unchanged one keeps its time, so that a rebuild is short."""
    written = []
    for name, text in generated_pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def as_plain_text(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup: our docstrings are plain text with ``code`` in them."""
    for index, line in enumerate(lines):
        pieces = _CODE.split(line)
        pieces[::2] = [_MARKUP.sub(lambda found: "\\" + found.group(0), piece) for piece in pieces[::2]]
        lines[index] = "".join(pieces)


def name_aliases(
    _app: object, _what: str, _name: str, _thing: object, _options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Show a type alias inside a union by its name alone."""
    shown = [text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, result)]
    return shown[0], shown[1]


def skip_foreign(_app: object, _what: str, name: str, _thing: object, _skip: bool, _options: object) -> bool | None:
    """Leave out the methods that scikit-learn generates; their texts refer to its own documentation."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Any) -> None:
    """Generate the pages before Sphinx looks for them, and treat docstrings as plain text before napoleon does."""
    app.connect("builder-inited", lambda _app: write_generated(HERE))
    app.connect("autodoc-process-docstring", as_plain_text, priority=100)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-signature", name_aliases)
