"""``steelyard agents debate``: let several models, or one model several times, answer a question together."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from steelyard.cli.command import Command, JsonOption, print_json, several
from steelyard.cli.local_model import local_model
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

CONTROLLERS = ("critique", "all", "ring", "vote", "dear")


class _AskHint(typer.core.TyperGroup):
    """The group ``debate``; a question in the place of a command is answered with the command that takes it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` name.

        Raises:
            InputError: There is none of this name.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise InputError(
                f"debate has no command '{args[0][:80]}'; a question goes with `ask`: "
                "steelyard agents debate ask QUESTION"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_AskHint,
    no_args_is_help=True,
    help="Debate among language models: who reads whom, how each answers, when to stop.",
)


def models_of(endpoints: list[str], names: list[str], agents: int) -> list[Any]:
    """Return ``agents`` language models: every pair of endpoint and name in turn, or the local one.

    Raises:
        InputError: Endpoints without models, or as many models as neither one nor one per endpoint.
    """
    models = require("steelyard.models", "models")
    if not endpoints:
        if len(names) > 1:
            raise InputError("--model: without --endpoint there is one local model; name one at most")
        return [local_model(names[0] if names else None)] * agents
    if len(names) not in (1, len(endpoints)):
        raise InputError("--model: give one name for all endpoints, or one for each --endpoint, in the same order")
    every = names if len(names) == len(endpoints) else names * len(endpoints)
    built = [models.OpenAICompatibleLM(url, name) for url, name in zip(endpoints, every, strict=True)]
    return [built[index % len(built)] for index in range(agents)]


def make_controller(name: str, weights: Path | None) -> Any:
    """Return the controller ``name`` of :data:`CONTROLLERS`.

    Raises:
        InputError: The name is unknown, or weights are given to a fixed one.
    """
    agents = require("steelyard.agents", "agents")
    policies = require("steelyard.agents.dear.policies", "agents")
    if weights is not None and name != "dear":
        raise InputError("--weights are for --controller dear")
    if name == "dear":
        if weights is None:
            raise InputError("--controller dear needs --weights FOLDER, a controller saved by DEARController.save")
        return agents.DEARController.from_pretrained(weights)
    fixed = {
        "critique": policies.CritiqueAll,
        "all": lambda: policies.FullyConnected(early_stop="unanimous"),
        "ring": policies.Sparse,
        "vote": policies.KeepAll,
    }
    if name not in fixed:
        raise InputError(f"--controller must be one of {', '.join(CONTROLLERS)}, got {name!r}")
    return fixed[name]()


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What is asked.", show_default=False)],
    option: Annotated[
        list[str] | None, typer.Option("--option", help="A possible answer; give each. Default: an open question.")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option("--endpoint", metavar="URL", help="OpenAI-compatible server; several take turns. Default: local."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="The model's name there; or a local folder.")
    ] = None,
    agents: Annotated[int, typer.Option("--agents", min=1, max=32, help="How many debate.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=0, max=10, help="Most rounds after the first answers.")] = 2,
    controller: Annotated[
        str, typer.Option("--controller", help="critique (fixed, stops early), all, ring, vote, or dear (trained).")
    ] = "critique",
    weights: Annotated[Path | None, typer.Option("--weights", metavar="DIR", help="Of a trained controller.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of a reply.")] = 256,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for one call.")] = 120.0,
    seed: Annotated[int, typer.Option("--seed", help="Of sampling, orders and ties.")] = 0,
    json: JsonOption = False,
) -> None:
    """Ask several agents, let them read each other, and print the answer that they come to."""
    team = models_of(endpoint or [], model or [], agents)
    regulated = make_controller(controller, weights)
    teller = _Teller()
    library = require("steelyard.agents", "agents")
    debate = library.Debate(
        team,
        regulated,
        rounds=rounds,
        seed=seed,
        timeout=timeout,
        max_new_tokens=max_tokens,
        on_turn=None if json else teller.turn,
    )
    if json:
        print_json(_as_json(debate.run(question, option or None)))
        return
    try:
        result = debate.run(question, option or None)
    except library.DebateError as error:
        where = f"round {teller.round}" if teller.round else "the first round"
        raise library.DebateError(f"no agent has an answer in {where}; the reasons are above") from error
    finally:
        teller.close()
    _show_result(result)


def _show_result(result: Any) -> None:
    typer.echo(f"answer: {printable(result.answer)}")
    votes = ", ".join(f"{printable(name)} {count}" for name, count in result.votes.items())
    failed = "".join(f", {several(count, 'call')} failed ({kind})" for kind, count in result.failures.items())
    typer.echo(f"votes: {votes or 'none'}{f', {result.unanswered} without an answer' if result.unanswered else ''}")
    exact = "" if result.tokens.exact else "about "
    typer.echo(
        f"{several(result.calls, 'call')}, {exact}{several(result.tokens.total, 'token')}, "
        f"{several(result.rounds_run, 'round')}, "
        f"ended by: {result.stopped_by}{failed}"
    )


class _Teller:
    """Says on standard error what each agent answers, a line a turn; a problem that comes again is only counted."""

    def __init__(self) -> None:
        self.round = 0  # of the last turn
        self._first: dict[str, str] = {}
        self._again: Counter[str] = Counter()

    def turn(self, turn: Any) -> None:
        """Tell of one turn."""
        self.round = turn.round
        if turn.answer is None:
            if turn.problem in self._first:
                self._again[turn.problem] += 1
                return
            self._first[turn.problem] = f"{turn.agent} in round {turn.round}"
        read = f", read {', '.join(turn.read)}" if turn.read else ""
        said = turn.answer if turn.answer is not None else f"no answer ({turn.problem})"
        typer.echo(f"round {turn.round}: {turn.agent} ({turn.behaviour}{read}): {printable(said)[:200]}", err=True)

    def close(self) -> None:
        """Say how often each problem came again."""
        for problem, first in self._first.items():
            count = self._again[problem]
            if count:
                typer.echo(f"{several(count, 'more call')} with the problem of {printable(first)}", err=True)


def _as_json(result: Any) -> dict[str, Any]:
    return {
        "answer": result.answer,
        "votes": dict(result.votes),
        "calls": result.calls,
        "tokens": result.tokens._asdict(),
        "cost": result.cost,
        "rounds": result.rounds_run,
        "stopped_by": result.stopped_by,
        "unanswered": result.unanswered,
        "failures": dict(result.failures),
        "reads": [graph.tolist() for graph in result.G_t],
        "transcript": [asdict(turn) for turn in result.transcript],
    }


COMMANDS = (
    Command(
        "ask",
        ask,
        "steelyard agents debate ask 'Which planet is largest?' --option Mars --option Jupiter "
        "--endpoint http://127.0.0.1:8000/v1 --model NAME --agents 3",
    ),
)
for command in COMMANDS:
    command.add_to(app)


@app.callback()
def _debate() -> None:
    """Keep ``ask`` a command of its own beside those to come."""
