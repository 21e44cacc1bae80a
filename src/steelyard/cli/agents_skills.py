"""``steelyard agents skills``: look into a folder of skills, and get the contract for a task from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, several
from steelyard.extras import require
from steelyard.models.paths import printable

_SHOWN = 20  # findings printed without --json

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A folder with SKILL.md files at any depth.", show_default=False)
]
TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="What is to be done.", show_default=False)]
BudgetOption = Annotated[int, typer.Option("--budget", min=1, help="Most skills in the contract.")]
CharsOption = Annotated[int, typer.Option("--max-chars", min=1, help="Most characters of the whole contract.")]
EncoderOption = Annotated[
    bool, typer.Option("--embed", help="Use the small sentence encoder beside words (2 s to load, more to encode).")
]

app = typer.Typer(
    no_args_is_help=True, help="Retrieve skills as a contract: where to start, what supports, what to check."
)


def open_library(folder: Path, embed: bool = False, strict: bool = False) -> Any:
    """Return the library of a folder with its graph and groups built."""
    agents = require("steelyard.agents", "agents")
    library = agents.SkillLibrary.from_dir(folder, strict=strict)
    return library.build_graph(embedder=encoder(embed)).build_groups()


def encoder(embed: bool) -> Any:
    """Return the default sentence encoder, or None."""
    return require("steelyard.models", "models").load_default_embedder() if embed else None


def make_retriever(folder: Path, budget: int, max_chars: int, embed: bool) -> Any:
    """Return the retriever over a folder."""
    agents = require("steelyard.agents", "agents")
    library = open_library(folder, embed)
    return agents.GoSkillsRetriever(library, budget=budget, max_chars=max_chars, embedder=encoder(embed))


def index(
    folder: FolderArgument,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first file that breaks the format.")] = False,
    embed: EncoderOption = False,
    json: JsonOption = False,
) -> None:
    """Read a folder of skills and say what is in it: skills, links between them, groups, and what is wrong."""
    library = open_library(folder, embed, strict)
    counts = library.graph.counts()
    problems = [
        {"path": printable(found.path), "line": found.line, "what": printable(found.message), "lost": found.lost}
        for found in library.problems
    ]
    if json:
        print_json({"skills": len(library), "edges": counts, "groups": len(library.groups), "problems": problems})
        return
    typer.echo(f"{several(len(library), 'skill')}, {several(len(library.groups), 'group')}")
    typer.echo("links: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if problems:
        typer.echo(f"{several(len(problems), 'finding')}:")
    for problem in problems[:_SHOWN]:
        where = f"{problem['path']}:{problem['line']}" if problem["line"] else problem["path"]
        typer.echo(f"  {where}: {problem['what']}" + (" (left out)" if problem["lost"] else ""))
    if len(problems) > _SHOWN:
        typer.echo(f"  … {len(problems) - _SHOWN} more; --json lists all")


def retrieve(
    folder: FolderArgument,
    task: TaskArgument,
    budget: BudgetOption = 8,
    max_chars: CharsOption = 12_000,
    embed: EncoderOption = False,
    json: JsonOption = False,
) -> None:
    """Print the contract for a task: START, SUPPORT, CHECK, AVOID, what is not covered (DEBT), and the skills."""
    contract = make_retriever(folder, budget, max_chars, embed).retrieve(task)
    typer.echo(contract.render("json" if json else "markdown"))
    if contract.empty and not json:
        typer.echo("no skill of this folder fits the task", err=True)


def explain(
    folder: FolderArgument,
    task: TaskArgument,
    budget: BudgetOption = 8,
    embed: EncoderOption = False,
) -> None:
    """Print, as JSON, why: what the task was read as, the scores, the plan, the choice and what is missing."""
    print_json(make_retriever(folder, budget, 12_000, embed).explain(task))


COMMANDS = (
    Command("index", index, "steelyard agents skills index ~/.claude/skills"),
    Command(
        "retrieve", retrieve, "steelyard agents skills retrieve ~/.claude/skills 'plot a CSV file as PDF' --budget 5"
    ),
    Command("explain", explain, "steelyard agents skills explain ~/.claude/skills 'plot a CSV file as PDF'"),
)
for command in COMMANDS:
    command.add_to(app)
