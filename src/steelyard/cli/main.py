"""The ``steelyard`` command: two verbs, use and weigh, and what helps with them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import steelyard
from steelyard.cli import agents, data, graphs, guard, look, mcp, policy, quant, vision, weigh
from steelyard.cli.command import INTERRUPTED
from steelyard.errors import InputError, SteelyardError
from steelyard.models.paths import printable

app = typer.Typer(
    name="steelyard",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Use methods from NeurIPS 2026, and weigh them against the baselines they claim to beat.",
    epilog="Exit codes: 0 done, whatever the verdicts; 1 some cells failed; 2 wrong use or bad input; "
    "3 an extra or a data set is missing; 130 interrupted: go on with `steelyard resume` or the same command.",
)
for command in (*look.COMMANDS, *weigh.COMMANDS, *mcp.COMMANDS):
    command.add_to(app)
app.add_typer(data.app, name="data")
app.add_typer(quant.app, name="quant")
app.add_typer(guard.app, name="guard")
app.add_typer(agents.app, name="agents")
app.add_typer(graphs.app, name="graphs")
app.add_typer(policy.app, name="policy")
app.add_typer(vision.app, name="vision")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(steelyard.__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line; every error raised on purpose becomes one line and its exit code."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        typer.echo("steelyard: the working directory has been removed; change to another one", err=True)
        sys.exit(InputError.exit_code)
    if here not in sys.path:  # what a user's own module is found by; last, so that it hides nothing
        sys.path.append(here)
    try:
        app()
    except SteelyardError as error:
        typer.echo(f"steelyard: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("steelyard: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader of a pipe left: typer ends with 1, a code of ours
            sys.exit(0)
        raise


if __name__ == "__main__":
    run()
