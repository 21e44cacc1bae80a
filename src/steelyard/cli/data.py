"""``steelyard data``: the registered data sets, where they are, and how to get them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from steelyard.cli.command import Command, JsonOption, print_json

Name = Annotated[str, typer.Argument(help="A registered data set; see `steelyard data list`.")]

app = typer.Typer(no_args_is_help=True, help="List, fetch and find the registered data sets.")


def list_(json: JsonOption = False) -> None:
    """List the registered data sets with licence, size and where they lie now."""
    from steelyard import data

    rows = [
        {
            "name": dataset.name,
            "here": str(origin),
            "rows": dataset.rows,
            "from": "package" if dataset.embedded else "mirror only" if dataset.mirror_only else "download",
            "megabytes": round(sum(file.size for file in dataset.files) / 1e6, 2),
            "licence": dataset.licence,
            "title": dataset.title,
        }
        for dataset, origin in data.datasets()
    ]
    if json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(name, no_wrap=name in ("name", "here", "from")) for name in rows[0]]
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def fetch(name: Name) -> None:
    """Download a data set, check its bytes against the pinned checksum, and keep it in the cache."""
    from rich.console import Console
    from rich.progress import Progress

    from steelyard import data

    with Progress(console=Console(stderr=True)) as progress:
        bars: dict[str, int] = {}

        def show(file: str, received: int, total: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=received)  # type: ignore[arg-type]

        located = data.fetch(name, show)
    typer.echo(f"{name}: {located.origin}" + "".join(f"\n{path}" for path in located.paths))


def path(name: Name) -> None:
    """Print the folder where a data set lies."""
    from steelyard import data

    typer.echo(data.path(name))


for command in (
    Command("list", list_, "steelyard data list"),
    Command("fetch", fetch, "steelyard data fetch adult"),
    Command("path", path, "steelyard data path mnist_t10k"),
):
    command.add_to(app)
