"""One shape for every command: a function, its name, its help with an example."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from steelyard.bench.results import Results

INTERRUPTED = 130  # exit code after Ctrl-C

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="SQLite file. Default: $STEELYARD_STORE, else .steelyard/store.db")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


class Command(NamedTuple):
    """A command of the line; ``example`` closes its help."""

    name: str
    call: Callable[..., None]
    example: str
    context: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default is never changed

    def add_to(self, app: typer.Typer) -> None:
        """Register the command."""
        app.command(self.name, epilog=f"Example: `{self.example}`", context_settings=self.context)(self.call)


def several(count: int, noun: str) -> str:
    """Return ``count`` and the noun, in the plural unless there is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print ``value`` as JSON, one document."""
    typer.echo(json.dumps(value, indent=1))


def results_json(results: Iterable[Results]) -> str:
    """Return ``results`` as one JSON list; an endless interval, as that of a single seed, is null there."""
    return "[" + ",\n".join(result.model_dump_json() for result in results) + "]\n"


def quiet_libraries() -> None:
    """Keep libraries from talking about themselves: transformers imports torchao, which does."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
