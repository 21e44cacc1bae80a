"""``steelyard mcp``: the parts that an agent can use, as an MCP server."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.agents_memory import found_in, remembering
from steelyard.cli.agents_skills import open_library
from steelyard.cli.command import Command, quiet_libraries
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable


class SkillTool:
    """A folder of skills, read once, as the server asks it."""

    def __init__(self, folder: Path) -> None:
        self._library = open_library(folder)
        self._make = require("steelyard.agents", "agents").GoSkillsRetriever
        self._server = require("steelyard.serve.mcp_server", "mcp")
        self._retrievers: dict[int, Any] = {}

    def retrieve(self, task: str, budget: int, format: str) -> Any:
        """Return the contract for ``task``."""
        if budget not in self._retrievers:
            self._retrievers[budget] = self._make(self._library, budget=budget)
        contract = self._retrievers[budget].retrieve(task)
        start = None if contract.start is None else contract.start.skill
        debt = [f"{item.dimension}: {item.value}" for item in contract.debt]
        return self._server.contract_of(contract.render(format), {"start": start, "debt": debt}, contract.names)


class MemoryTool:
    """A memory file and its index, kept in step; ``asker`` is who asks and writes, whatever clients say."""

    def __init__(self, path: Path, asker: str | None = None) -> None:
        if not path.parent.is_dir():
            folder = printable(str(path.parent))[:200]
            raise InputError(f"--memory: there is no folder {folder}; make it first, or name another file")
        self._agents = require("steelyard.agents", "agents")
        self._store, self._memory = remembering(path, allow_unknown_asker=True)
        self._asker = asker

    def add(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Store messages, all or none, and return their ids; they are on disk when this returns."""
        messages = [self._message(row) for row in rows]
        self._store.add_many(messages)
        return [message.id for message in messages]

    def _message(self, row: Mapping[str, Any]) -> Any:
        author, audience = row["author"], row["audience"]
        if self._asker is not None and author != self._asker:
            raise InputError(f"message by {author!r:.80}: this server adds messages of {self._asker!r} only")
        id_ = uuid.uuid4().hex if row["id"] is None else row["id"]
        return self._agents.Message(**{**row, "id": id_, "audience": None if audience is None else frozenset(audience)})

    def search(self, query: str, asker: str | None, k: int) -> list[Mapping[str, Any]]:
        """Return the best messages that the asker may see."""
        if self._asker is not None and asker not in (None, self._asker):
            raise InputError(f"asker: this server searches for {self._asker!r} only")
        self._store.refresh()  # another process may have added to the file, or deleted from it
        hits = found_in(self._memory, query, asker=self._asker or asker, k=k)
        return [
            {
                "id": hit.id,
                "author": hit.message.author,
                "channel": hit.message.channel,
                "timestamp": None if hit.message.timestamp is None else str(hit.message.timestamp),
                "content": hit.message.content,
                "score": hit.score,
            }
            for hit in hits
        ]


def serve_mcp(
    skills: Annotated[Path | None, typer.Option("--skills", metavar="DIR", help="A folder of skills to find.")] = None,
    memory: Annotated[
        Path | None, typer.Option("--memory", metavar="FILE", help="The memory of a chat; made if it does not exist.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The only folder whose files may be weighed.")
    ] = None,
    asker: Annotated[
        str | None, typer.Option("--asker", help="Who asks and writes, whatever a client says. Default: clients say.")
    ] = None,
    no_weigh: Annotated[bool, typer.Option("--no-weigh", help="Leave the tool `weigh` out.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP on 127.0.0.1 in the place of stdio.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port for --http; 0 picks a free one.")] = 8767,
) -> None:
    """Serve skills, memory and weighing to an agent over MCP, on standard input and output or over HTTP."""
    quiet_libraries()
    served = require("steelyard.serve.mcp_server", "mcp")
    if asker is not None and memory is None:
        raise InputError("--asker is for a memory; give --memory FILE as well")
    with contextlib.redirect_stdout(sys.stderr):  # what loading prints: standard output belongs to the protocol
        server = served.make_server(
            SkillTool(skills) if skills else None,
            MemoryTool(memory, asker) if memory else None,
            None if no_weigh else require("steelyard.report.weighing", "agents").weigh,
            root,
        )
    if http:
        _serve_http(served, server, port)
    else:
        tools = ", ".join(served.tool_names(server))
        typer.echo(f"steelyard: serving on standard input and output; tools: {tools}", err=True)
        server.run("stdio")


def _serve_http(served: Any, server: Any, port: int) -> None:
    uvicorn = require("uvicorn", "mcp")
    listener = require("steelyard.serve.listening", "mcp").listen(port)
    taken = listener.getsockname()[1]
    config = uvicorn.Config(served.http_app(server, taken), log_level="warning", access_log=False, server_header=False)
    typer.echo(f"Serving at http://{served.HOST}:{taken}/mcp (Ctrl-C stops)")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    typer.echo("Stopped.")


COMMANDS = (Command("mcp", serve_mcp, "steelyard mcp --skills ~/.claude/skills --memory team.db --root ~/data"),)
