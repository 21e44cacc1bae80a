"""``weigh``, ``resume``, ``plan`` and ``tune``: the commands that run cells."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from steelyard import catalog
from steelyard.cli.command import INTERRUPTED, Command, JsonOption, StoreOption, print_json, results_json
from steelyard.errors import InputError, did_you_mean

MethodsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="METHOD…", help="Methods, or dotted names of packages of your own.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Weigh every method of the catalog.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="At most a minute per method (the default).")]
FullOption = Annotated[bool, typer.Option("--full", help="Ten seeds, at most ten minutes per method.")]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Another profile of the bench.")]
DataOption = Annotated[
    str | None, typer.Option("--data", help="Your own data: a table (CSV, Parquet, npz) or what the method takes.")
]
ArmsOption = Annotated[
    str | None, typer.Option("--arms", help="Arms to run, as a,b; a wrong one lists all. Default: all.")
]
SeedsOption = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Number of seeds. Default: the profile's; one decides nothing.")
]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes. Default: one per core.")]


class _Request(NamedTuple):
    """What is to be weighed, as the command line says it."""

    methods: list[str]
    options: dict[str, str]
    profile: str
    data: str | None
    arms: list[str] | None
    seeds: int | None

    def plans(self, store: Any) -> list[Any]:
        """Plan every method and then save: one that cannot be planned leaves no weighing half begun."""
        from steelyard.bench.plan import make_plan

        made = [
            make_plan(name, store, self.data, self.profile, self.seeds, self.arms, self.options)
            for name in self.methods
        ]
        for plan in made:
            plan.save(store)
        return made


def weigh(
    methods: MethodsArgument = None,
    all_: AllOption = False,
    quick: QuickOption = False,
    full: FullOption = False,
    profile: ProfileOption = None,
    data: DataOption = None,
    arms: ArmsOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    store: StoreOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the HTML report.")] = None,
    json: JsonOption = False,
) -> None:
    """Weigh methods against their baselines, print the verdicts, write a report.

    What a method takes beside --data is given the same way, e.g. --group region --label y; an unknown option is
    answered with the list of those that there are.
    """
    from steelyard.bench.store import Store, store_path

    request = _request(methods, all_, (quick, full, profile), data, arms, seeds)
    with Store(store_path(store), check=True) as opened:
        plans = request.plans(opened)
        for plan in plans:
            typer.echo(f"{plan.id}: {len(plan.cells)} cells", err=True)
        code = finish(opened, [plan.id for plan in plans], jobs, json, output)
    raise typer.Exit(code)


def _request(
    words: list[str] | None,
    all_: bool,
    sizes: tuple[bool, bool, str | None],
    data: str | None,
    arms: str | None,
    seeds: int | None,
) -> _Request:
    """Check the words of the command line before anything is opened; ``sizes`` is (quick, full, profile)."""
    names, options = split_options(words or [])
    names = [row.id for row in catalog.METHODS] if all_ else names
    quick, full, profile = sizes
    if not names:
        raise InputError("name a method to weigh, or use --all; `steelyard list` shows them")
    if options and data is None:
        word = "--" + next(iter(options)).replace("_", "-")
        hint = did_you_mean(word, [f"--{name.strip('_')}" for name in inspect.signature(weigh).parameters], 0.7)
        raise InputError(f"unknown option {word}.{hint} The options of a bench go with --data")
    if data is not None and len(names) > 1:
        raise InputError(f"--data goes with one method, got {len(names)}")
    if sum((quick, full, profile is not None)) > 1:
        raise InputError("choose one of --quick, --full and --profile")
    for name in names:
        catalog.entry(name)
    chosen = [arm.strip() for arm in arms.split(",")] if arms else None
    return _Request(names, options, profile or ("full" if full else "quick"), data, chosen, seeds)


def split_options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split ``METHOD… --name value…`` into the methods and the options that belong to the method's bench."""
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    rest = iter(words[len(names) :])
    options: dict[str, str] = {}
    for word in rest:
        if not word.startswith("--"):
            raise InputError(f"unexpected '{word}' after the options of the bench")
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise InputError(f"option --{name} needs a value; see `steelyard weigh --help`")
            value = following
        options[name.replace("-", "_")] = value
    return names, options


def finish(store: Any, weighings: Sequence[str], jobs: int | None, json: bool, output: Path | None) -> int:
    """Run what is left of ``weighings``, print verdicts, write the report; return the exit code."""
    from steelyard.bench import runner
    from steelyard.bench.progress import shown
    from steelyard.bench.source import read_results
    from steelyard.report.html import write_report
    from steelyard.report.text import text_table

    try:
        with shown() as on_progress:
            counts = runner.run(store, weighings, jobs, on_progress)
    except KeyboardInterrupt:
        counts = store.counts(weighings)
        typer.echo(
            f"steelyard: interrupted; {counts.done} of {counts.total} cells are kept. Go on with: "
            f"steelyard resume {' '.join(weighings)} --store {store.path}",
            err=True,
        )
        return INTERRUPTED
    results = [read_results(store, identity) for identity in weighings]
    if json:
        typer.echo(results_json(results), nl=False)
    else:
        for result in results:
            typer.echo(text_table(result))
    path = output or store.path.parent / "reports" / f"{'+'.join(weighings)}.html"
    typer.echo(f"report: {write_report(results, path).resolve()}", err=json)
    return 1 if counts.failed else 0


def resume(
    weighings: Annotated[list[str] | None, typer.Argument(help="Weighings. Default: all unfinished ones.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed cells again.")] = False,
    jobs: JobsOption = None,
    store: StoreOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the HTML report.")] = None,
    json: JsonOption = False,
) -> None:
    """Go on with weighings that were interrupted; finished cells are not run again."""
    from steelyard.bench.store import Store, store_path

    with Store(store_path(store), create=False, check=True) as opened:
        for identity in weighings or []:
            opened.weighing(identity)
        known = weighings or opened.weighing_ids()
        if retry_failed:
            for identity in known:
                opened.retry_failed(identity)
        chosen = weighings or _unfinished(opened, known)
        if not chosen:
            typer.echo("nothing to resume")
            return
        code = finish(opened, chosen, jobs, json, output)
    raise typer.Exit(code)


def _unfinished(store: Any, known: Sequence[str]) -> list[str]:
    """Return the weighings that are not finished; one whose code has changed since is named and left out."""
    from steelyard.bench.plan import is_stale

    found = []
    for identity in known:
        if store.counts([identity]).finished:
            continue
        if is_stale(store.weighing(identity)[0]):
            typer.echo(f"{identity}: left out, its code has changed since it was planned; weigh again", err=True)
        else:
            found.append(identity)
    return found


def plan(
    methods: MethodsArgument = None,
    all_: AllOption = False,
    quick: QuickOption = False,
    full: FullOption = False,
    profile: ProfileOption = None,
    data: DataOption = None,
    arms: ArmsOption = None,
    seeds: SeedsOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write the cells of weighings into the store without running them, e.g. for a batch job.

    Takes what `steelyard weigh` takes. Any number of workers on one machine can then run the cells, `python -m
    steelyard.bench.worker STORE WEIGHING`. The store is an SQLite file in WAL mode, which no network file system
    carries: for several machines, plan on each of them.
    """
    from steelyard.bench.store import Store, store_path

    request = _request(methods, all_, (quick, full, profile), data, arms, seeds)
    with Store(store_path(store), check=True) as opened:
        path = opened.path.resolve()
        planned = [(made, f"python -m steelyard.bench.worker {path} {made.id}") for made in request.plans(opened)]
    if json:
        kept = ("key", "task", "arm", "seed", "exclusive")
        rows = [
            {
                "weighing": made.id,
                "store": str(path),
                "worker": worker,
                "cells": [{name: cell[name] for name in kept} for cell in made.cells],
            }
            for made, worker in planned
        ]
        print_json(rows)
        return
    for made, worker in planned:
        typer.echo(f"{made.id}: {len(made.cells)} cells; run them with: {worker}")


def tune(
    method: Annotated[str, typer.Argument(help="The method.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: tuned.json beside the bench.")] = None,
    jobs: JobsOption = None,
    store: StoreOption = None,
) -> None:
    """Renew the tuned settings of a bench: every arm's grid on tuning seeds that no verdict is read from."""
    from steelyard.bench.progress import shown
    from steelyard.bench.store import Store, store_path
    from steelyard.bench.tune import tune as run_tuning

    with Store(store_path(store), check=True) as opened, shown() as on_progress:
        path = run_tuning(method, opened, output, jobs, on_progress)
    typer.echo(f"tuned settings: {path}")


_ANY_OPTION = {"ignore_unknown_options": True, "allow_extra_args": True}

COMMANDS = (
    Command("weigh", weigh, "steelyard weigh gdro_fsq --data my.csv --group region --label y", _ANY_OPTION),
    Command("resume", resume, "steelyard resume"),
    Command("plan", plan, "steelyard plan nfi --full --json", _ANY_OPTION),
    Command("tune", tune, "steelyard tune gdro_fsq"),
)
