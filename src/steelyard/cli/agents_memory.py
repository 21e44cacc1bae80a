"""``steelyard agents memory``: keep a group chat in a file, search it for one person, and run the benchmark on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, several
from steelyard.cli.progress import counted
from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require
from steelyard.models.paths import printable

MEMORIES = ("structured", "bm25", "header", "flat", "dense", "hybrid")
_SHOWN = 160  # characters of a message on a terminal
_LOOKED_AT = 50  # hits that are looked at: in a memory of a few messages a match may rank below what shares no word
_SQLITE = b"SQLite format 3\0"  # how the file of a memory begins

MemoryArgument = Annotated[
    Path, typer.Argument(metavar="MEMORY", help="The memory's file (SQLite).", show_default=False)
]
KindOption = Annotated[str, typer.Option("--kind", help=f"How it is searched: {', '.join(MEMORIES)}.")]

app = typer.Typer(no_args_is_help=True, help="A memory of a group chat that keeps who said what to whom.")


def make_memory(kind: str, **options: Any) -> Any:
    """Return an empty memory of a kind of :data:`MEMORIES`."""
    agents = require("steelyard.agents", "agents")
    if kind in ("dense", "hybrid"):
        dense = agents.DenseMemory(require("steelyard.models", "models").load_default_embedder(), **options)
        return dense if kind == "dense" else agents.HybridMemory(agents.BM25Memory(**options), dense)
    made = {
        "structured": lambda: agents.StructuredGroupMemory(**options),
        "bm25": lambda: agents.BM25Memory(**options),
        "header": lambda: agents.BM25Memory(fields="header", **options),
        "flat": lambda: agents.FlatFactMemory(**options),
    }
    if kind not in made:
        raise InputError(f"--kind must be one of {', '.join(MEMORIES)}, got {kind!r}")
    return made[kind]()


def remembering(path: Path, kind: str = "structured", **options: Any) -> tuple[Any, Any]:
    """Return the store at ``path``, made if it is not there, and a memory that is kept in step with it."""
    store = require("steelyard.agents", "agents").MemoryStore(path)
    return store, store.attach(make_memory(kind, **options))


def found_in(memory: Any, query: str, *, k: int, **asked: Any) -> list[Any]:
    """Return the best ``k`` hits of a memory that have to do with the query; ``asked`` is what ``search`` takes.

    A memory fills its list with messages that score nothing: they are dropped. In a memory of a few messages BM25 gives
    zero or less to a word that half of them have (the only message of a memory scores below zero), so a hit that shares
    a word with the query stays whatever it scores.
    """
    words = require("steelyard.agents.bm25", "agents").tokenize
    asked_for = set(words(query))
    hits = memory.search(query, k=max(k, _LOOKED_AT), **asked)
    return [hit for hit in hits if hit.score > 0 or not asked_for.isdisjoint(words(hit.message.content))][:k]


def _existing(path: Path) -> Path:
    make = "`steelyard agents memory index CHAT MEMORY` makes one"
    if not path.is_file():
        raise InputError(f"{printable(str(path))}: no such memory; {make}")
    if not _may_be_memory(path):
        raise InputError(f"{printable(str(path))} is no memory; {make}, did you give the chat itself?")
    return path


def _may_be_memory(path: Path) -> bool:
    """Return whether a file is empty or a database."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) in (b"", _SQLITE)
    except OSError:
        return True  # opening it as what it should be says why it cannot be read


def _check_order(chat: Path, memory: Path) -> None:
    """Refuse a chat in the place of the memory, or a memory in the place of the chat."""
    if memory.is_file() and not _may_be_memory(memory):
        raise InputError(f"{printable(str(memory))} is no memory; did you swap CHAT and MEMORY?")
    if chat.is_file() and chat.stat().st_size and _may_be_memory(chat):
        raise InputError(f"{printable(str(chat))} is a memory and no chat; did you swap CHAT and MEMORY?")


def index(
    chat: Annotated[
        Path, typer.Argument(metavar="CHAT", help="JSONL, Slack or Discord export, IRC log, GroupMemBench file.")
    ],
    memory: MemoryArgument,
    format: Annotated[
        str, typer.Option("--format", help="What CHAT is: auto, jsonl, slack, discord, irc or groupmembench.")
    ] = "auto",
    json: JsonOption = False,
) -> None:
    """Put the messages of a chat into a memory; those that it holds already are left as they are."""
    _check_order(chat, memory)
    messages = list(require("steelyard.agents.groupmembench.formats", "agents").read_chat(chat, format))
    if not messages:
        typer.echo(f"{printable(str(chat))} holds no messages", err=True)
    store = require("steelyard.agents", "agents").MemoryStore(memory)
    known = {message.id for message in store.messages()}
    new = [message for message in messages if message.id not in known]
    with counted("storing") as progress:
        for start in range(0, len(new), 10_000):
            store.add_many(new[start : start + 10_000])
            progress(min(start + 10_000, len(new)), len(new), "messages")
    if json:
        print_json({"added": len(new), "known": len(messages) - len(new), "messages": len(store)})
        return
    typer.echo(
        f"{several(len(new), 'message')} added, {len(messages) - len(new):,} known already; "
        f"{len(store):,} in {printable(str(memory))}"
    )


def search(
    memory: MemoryArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False)],
    asker: Annotated[
        str | None, typer.Option("--asker", help="Who asks. Default: nobody, so only what everyone may see.")
    ] = None,
    k: Annotated[int, typer.Option("--top", "-k", min=1, help="How many messages.")] = 10,
    kind: KindOption = "structured",
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Answer as of then (ISO 8601).")] = None,
    json: JsonOption = False,
) -> None:
    """Search a memory on behalf of one person: what that person may not see is never returned."""
    store, found = remembering(_existing(memory), kind)
    try:
        hits = found_in(found, query, asker=asker, k=k, at=at)
    except require("steelyard.agents", "agents").UnknownUserError:
        known = {name for message in store.messages() for name in (message.author, *(message.audience or ()))}
        raise InputError(
            f"--asker: {asker!r:.80} neither wrote a message nor is in an audience.{did_you_mean(asker or '', known)} "
            "Leave --asker out to search what is public"
        ) from None
    if json:
        print_json([_hit(hit) for hit in hits])
        return
    for hit in hits:
        message = hit.message
        head = " ".join(str(part) for part in (message.timestamp, message.channel, message.author) if part)
        text = " ".join(printable(message.content).split())
        typer.echo(f"{hit.score:8.3f}  {printable(head)}: {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}")
    if not hits:
        typer.echo("nothing found", err=True)


def _hit(hit: Any) -> dict[str, Any]:
    message = hit.message
    when = None if message.timestamp is None else str(message.timestamp)
    kept = ("author", "channel", "role", "phase", "reply_to", "content")
    return {"id": hit.id, "score": hit.score, "timestamp": when} | {name: getattr(message, name) for name in kept}


def forget(
    memory: MemoryArgument,
    author: Annotated[str, typer.Option("--author", help="Whose messages to delete.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Delete every message that a person wrote, from the file too."""
    store = require("steelyard.agents", "agents").MemoryStore(_existing(memory))
    removed = store.delete_user(author)
    if json:
        print_json({"deleted": removed})
        return
    hint = "" if removed else did_you_mean(author, {message.author for message in store.messages()})
    typer.echo(printable(f"{several(removed, 'message')} of {author} deleted{'.' if hint else ''}{hint}"))


def bench(
    release: Annotated[
        Path, typer.Argument(metavar="RELEASE", help="GroupMemBench, as its authors release it: you bring it.")
    ],
    domain: Annotated[str, typer.Option("--domain", help="Finance, Technology, Healthcare or Manufacturing.")],
    kind: KindOption = "bm25",
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="OpenAI-compatible reader and judge. Default: offline."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model's name at the endpoint.")] = None,
    k: Annotated[int, typer.Option("--top", "-k", min=1, help="Messages that the reader is given.")] = 10,
    json: JsonOption = False,
) -> None:
    """Run the paper's protocol on a domain of its release: accuracy by question type, micro and macro averages.

    Absolute figures depend on the reader and the judge; compare memories under the same ones only.
    """
    agents = require("steelyard.agents", "agents")
    run = agents.GroupMemBench.from_release(release, domain, k=k, **_judged_by(endpoint, model))
    with counted("asking") as progress:
        report = run.run(make_memory(kind), progress=lambda done, total: progress(done, total, "questions"))
    if json:
        print_json(report.to_dict())
        return
    typer.echo(str(report))


def _judged_by(endpoint: str | None, model: str | None) -> dict[str, Any]:
    if endpoint is None:
        if model is not None:
            raise InputError("--model needs --endpoint, the server that has it")
        return {}
    if model is None:
        raise InputError("--endpoint needs --model, the name that the server knows it by")
    lm = require("steelyard.models", "models").OpenAICompatibleLM(endpoint, model)
    readers = require("steelyard.agents.groupmembench.readers", "agents")
    return {"reader": readers.LMReader(lm), "judge": readers.LMJudge(lm)}


COMMANDS = (
    Command("index", index, "steelyard agents memory index chat.jsonl team.db"),
    Command("search", search, "steelyard agents memory search team.db 'when is the cutover?' --asker ann"),
    Command("forget", forget, "steelyard agents memory forget team.db --author bob"),
    Command("bench", bench, "steelyard agents memory bench GroupMemBench/ --domain Finance --kind bm25"),
)
for command in COMMANDS:
    command.add_to(app)
