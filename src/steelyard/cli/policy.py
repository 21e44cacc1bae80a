"""``steelyard policy``: credit for the steps of rollouts in a file, a look at their anchors, and the games to play."""

from __future__ import annotations

import json as jsonlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, quiet_libraries, several
from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require
from steelyard.models.paths import printable

METHODS = ("grpo", "dr_grpo", "rloo", "gigpo", "g2po", "arc")
_PICTURES = 6  # tasks with a picture on the page
_SHOWN = 12  # tasks listed on a terminal
_MADE = 1000  # games to play that are made here
_FACTS = (
    ("steps", "steps", ",d"),
    ("nodes", "states", ",d"),
    ("mean_size", "steps a state", ".1f"),
    ("trajectories", "rollouts a state", ".1f"),
    ("singleton_fraction", "steps alone at their state", ".0%"),
    ("largest_share", "steps at their task's largest", ".0%"),
    ("aliased_share", "steps at mixed anchors", ".0%"),
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="JSON Lines: one step or one episode a line.")]
AnchorOption = Annotated[
    str, typer.Option("--anchor", help="What is one state: the field anchor, the observation, or history (one turn).")
]
MethodOption = Annotated[str, typer.Option("--method", help=f"One of {', '.join(METHODS)}.")]
OutOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write .parquet, .csv or .jsonl, a row a step.")
]
PageOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a picture of each task's graph.")
]

app = typer.Typer(no_args_is_help=True, help="Credit for the steps of an agent: advantages, anchors, games.")


@app.callback()
def _quiet() -> None:
    quiet_libraries()
    warnings.showwarning = lambda message, *_: typer.echo(f"note: {printable(str(message))}", err=True)


def advantages(
    file: FileArgument,
    method: MethodOption = "g2po",
    output: OutOption = None,
    anchor: AnchorOption = "anchor",
    gamma: Annotated[float, typer.Option("--gamma", help="Discount a step (gigpo, g2po).")] = 0.95,
    w: Annotated[float, typer.Option("--w", help="Weight of the step part (gigpo, g2po).")] = 1.0,
    norm: Annotated[str, typer.Option("--norm", help="std, or mean: do not divide (gigpo, g2po).")] = "std",
    parts: Annotated[str, typer.Option("--parts", help="Terms of g2po: ep,nc,ec or some of them.")] = "ep,nc,ec",
    lam: Annotated[float, typer.Option("--lam", help="Rises along the rollout, 0 to 1 (g2po).")] = 0.0,
    alpha: Annotated[float, typer.Option("--alpha", help="Weight of the process part (arc).")] = 0.1,
    json: JsonOption = False,
) -> None:
    """Compute the advantage of every step of rollouts, whatever trained them.

    A step has task, traj, t and reward; gigpo and g2po need its anchor, arc needs process with progress and prediction.
    """
    if method not in METHODS:
        raise InputError(
            f"--method: '{method}' is not known; there are {', '.join(METHODS)}.{did_you_mean(method, METHODS)}"
        )
    home = require("steelyard.policy.trajectories", "policy")
    if output is not None:
        home.check_ending(output)  # before any work
        if output.exists() and file.exists() and output.samefile(file):
            raise InputError(f"--output: {output.name} is the file of the rollouts; name another")
    episodes = _read(file, anchor, needed=method in ("gigpo", "g2po"))
    batch = require("steelyard.policy.steps", "policy").StepBatch.from_episodes(episodes)
    settings = {"gamma": gamma, "w": w, "norm": norm, "parts": tuple(parts.split(",")), "lam": lam, "alpha": alpha}
    columns = {**_names(episodes), **_computed(method, batch, settings)}
    if output is not None:
        typer.echo(f"{several(len(batch), 'step')}: {home.write_table(output, columns).resolve()}", err=True)
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in zip(*map(_plain, columns.values()), strict=True)])
    elif output is None:
        for line in _summary(episodes, columns):
            typer.echo(line)


def check(
    file: FileArgument,
    anchor: AnchorOption = "anchor",
    html: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Say how well the anchors of rollouts serve as states, with warnings; the page shows each task's graph.

    Where the same anchor is met with different admissible actions it is no state, and credit along the graph's edges
    can have the wrong sign.
    """
    episodes = _read(file, anchor, needed=True)
    steps = [step for episode in episodes for step in episode]
    batch = require("steelyard.policy.steps", "policy").StepBatch.from_episodes(episodes)
    known = any(step.get("admissible") is not None for step in steps)
    report = require("steelyard.policy", "policy").alias_report(
        batch, [step.get("admissible") for step in steps] if known else None
    )
    if html is not None:
        typer.echo(f"page: {_page(html, batch, report).resolve()}", err=True)
    if json:
        print_json(report.to_json())
        return
    for line in (*_groups(episodes), *report.lines()):
        typer.echo(line)


def play(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=0, help="Which game, from 0.")] = 0,
    official: Annotated[
        bool, typer.Option("--official", help="One of ALFWorld's 134 unseen games (data set alfworld_games).")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="Games of yours: SPLIT/NAME/TRIAL/game.tw-pddl."),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Of official games or of the folder.")] = "valid_unseen",
    walkthrough: Annotated[bool, typer.Option("--walkthrough", help="Show an expert's commands and answers.")] = False,
) -> None:
    """Play a household game on the terminal; ? lists the commands, an empty line or end of input stops."""
    home = require("steelyard.policy", "policy")
    if official or folder is not None:
        games = home.load_household_games(split, folder=folder)
        if number >= len(games):
            raise InputError(f"NUMBER: there are {len(games)} games, from 0 to {len(games) - 1}")
        game = games[number]
    else:
        if number >= _MADE:
            raise InputError(f"NUMBER: games made here go from 0 to {_MADE - 1}")
        game = home.generate_games(number + 1)[number]
    env = game.make_env(max_steps=50)
    observation, info = env.reset()
    typer.echo(printable(observation.replace("\n\n", " ")))
    commands: Iterator[str] = iter(game.walkthrough) if walkthrough else _typed()
    for command in commands:
        if command == "?":
            typer.echo("  " + printable("\n  ".join(info["admissible"])).replace("\\n", "\n"))
            continue
        if walkthrough:
            typer.echo(f"> {printable(command)}")
        observation, _, won, over, info = env.step(command)
        typer.echo(printable(observation))
        if won or over:
            typer.echo("won" if won else "time is up")
            return


def _typed() -> Iterator[str]:
    while True:
        try:
            line = typer.prompt("", prompt_suffix="> ", default="", show_default=False)
        except typer.Abort:
            return
        if not line.strip():
            return
        yield line.strip()


def _read(file: Path, anchor: str, needed: bool) -> list[Any]:
    """Return the episodes of the file with the anchor that is asked for; without need they may have none."""
    home = require("steelyard.policy.trajectories", "policy")
    episodes = home.read_trajectories(file)
    if not needed and anchor == "anchor":
        return [[{"anchor": None, **step} for step in episode] for episode in episodes]
    return list(home.anchored_episodes(episodes, anchor))


def _names(episodes: list[Any]) -> dict[str, list[Any]]:
    rows = [
        (step.get("task", 0), step.get("traj", number), step["t"]) for number, e in enumerate(episodes) for step in e
    ]
    return {"task": [str(row[0]) for row in rows], "traj": [str(row[1]) for row in rows], "t": [row[2] for row in rows]}


def _computed(method: str, batch: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that a method adds."""
    home = require("steelyard.policy", "policy")
    if method == "arc":
        found = home.arc_advantage(batch, alpha=settings["alpha"])
        return {"advantage": found.outcome, **{f"advantage_{name}": v for name, v in found.signals.items()}}
    if method == "g2po":
        chosen = {name: settings[name] for name in ("gamma", "w", "norm", "parts", "lam")}
        info = home.g2po_advantage(batch, **chosen, return_info=True)
        terms = {"ep": info.ep, "nc": info.nc, "ec": info.ec, "node": info.node, "value": info.value[info.node]}
        return {"advantage": info.advantage, **terms}
    if method == "gigpo":
        return {"advantage": home.gigpo(batch, **{name: settings[name] for name in ("gamma", "w", "norm")})}
    return {"advantage": getattr(home, method)(batch)}


def _plain(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _groups(episodes: list[Any]) -> Iterator[str]:
    """Yield what the rollouts are: tasks, rollouts a task, and how many tasks tell nothing."""
    tasks: dict[Any, list[float]] = {}
    for episode in episodes:
        tasks.setdefault(episode[0].get("task", 0), []).append(sum(step["reward"] for step in episode))
    flat = sum(len(set(returns)) == 1 for returns in tasks.values())
    steps = several(sum(map(len, episodes)), "step")
    yield f"{several(len(tasks), 'task')}, {several(len(episodes), 'rollout')}, {steps}"
    if flat:
        yield f"{several(flat, 'task')} with equal returns in all rollouts: the episode's part is 0 there"


def _summary(episodes: list[Any], columns: dict[str, Any]) -> Iterator[str]:
    """Yield the steps with the largest and smallest advantage of each task."""
    yield from _groups(episodes)
    steps = [step for episode in episodes for step in episode]
    values = _plain(columns["advantage"])
    by_task: dict[str, list[int]] = {}
    for row, task in enumerate(columns["task"]):
        by_task.setdefault(task, []).append(row)
    for task, rows in list(by_task.items())[:_SHOWN]:
        yield f"task {printable(task)[:60]}"
        ranked = sorted(rows, key=lambda row: (-values[row], row))
        for row in dict.fromkeys((*ranked[:2], *ranked[-2:])):
            action = printable(str(steps[row].get("action", "")))[:60]
            where = f"rollout {printable(columns['traj'][row])[:20]}, step {columns['t'][row]}"
            yield f"  {values[row]:+7.3f}  {where}: {action}"
    if len(by_task) > _SHOWN:
        yield f"{len(by_task) - _SHOWN} tasks more; -o FILE writes every step"


def _page(path: Path, batch: Any, report: Any) -> Path:
    from steelyard.report.answer import Part, Table, write_answer

    graph_of = require("steelyard.policy", "policy").TransitionGraph.from_batch
    picture = require("steelyard.policy.g2po.picture", "policy")
    parts = []
    names = list(dict.fromkeys(batch.task.tolist() if hasattr(batch.task, "tolist") else batch.task))
    for task in names[:_PICTURES]:
        graph = graph_of(batch, task=task)
        rows = tuple(
            (*picture.ends(graph, edge), f"{graph.credit[edge]:+.2f}", str(graph.counts[edge]))
            for edge in graph.critical_edges(8)
        )
        table = Table("Steps of the largest credit", ("from", "to", "credit", "times"), rows)
        parts.append(Part(f"Task {jsonlib.dumps(task)[:80]}", "", (table,), (picture.graph_picture(graph),)))
    lead = " ".join(report.warnings) or "Nothing about the anchors is odd."
    found = report.to_json()
    facts = tuple(
        (words, "not known" if found[name] is None else f"{found[name]:{how}}") for name, words, how in _FACTS
    )
    parts.insert(0, Part("Anchors", "", (Table("All steps", ("", "value"), facts),)))
    return write_answer(path, f"States of {several(len(names), 'task')}", lead, parts)


COMMANDS = (
    Command("advantages", advantages, "steelyard policy advantages rollouts.jsonl --method g2po -o credit.parquet"),
    Command("check", check, "steelyard policy check rollouts.jsonl --anchor observation --html states.html"),
    Command("play", play, "steelyard policy play 3"),
)
for command in COMMANDS:
    command.add_to(app)
