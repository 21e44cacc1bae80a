"""The live view of a store: its weighings, their progress while they run, and their reports; 127.0.0.1 only.

The standard library's server is enough. Nothing is read from the file system on behalf of a request: a path is either
one of four routes or not found, and an id must be one that the store lists.
"""

from __future__ import annotations

import json
import re
import threading
import webbrowser
from collections.abc import Callable, Hashable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol

from steelyard.bench.results import Results
from steelyard.errors import InputError, SteelyardError
from steelyard.report.summary import progress
from steelyard.serve import pages

HOST = "127.0.0.1"
_KEPT = 16  # rendered pages kept in memory


class Source(Protocol):
    """Where weighings come from."""

    def weighings(self) -> Sequence[dict[str, Any]]:
        """Return one dict per weighing: id, method, profile, created, finished, total, done, failed, running."""
        ...

    def results(self, id: str) -> Results:
        """Return one weighing."""
        ...


class Answer(NamedTuple):
    """A response before it is sent."""

    status: HTTPStatus
    kind: str
    body: str
    policy: str


def serve(store_path: str, port: int = 8765, open_browser: bool = False) -> None:
    """Serve the weighings of a store until interrupted.

    Args:
        store_path: The store's file.
        port: Port on 127.0.0.1; 0 picks a free one.
        open_browser: Open the index in the default browser.

    Raises:
        InputError: The port is taken.
        StoreError: The store cannot be opened.
    """
    from steelyard import bench

    server = make_server(bench.open_source(store_path), port)
    url = f"http://{HOST}:{server.server_port}/"
    print(f"Serving {store_path} at {url} (Ctrl-C stops)", flush=True)
    if open_browser:
        webbrowser.open(url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        server.server_close()


def make_server(source: Source, port: int) -> ThreadingHTTPServer:
    """Return a server for ``source`` bound to 127.0.0.1; the caller runs and closes it.

    Raises:
        InputError: The port is taken or out of range.
    """
    view = View(source)

    class Handler(_Handler):
        answer = staticmethod(view.answer)

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"port: cannot listen on {HOST}:{port} ({said}); choose another port") from None
    server.daemon_threads = True
    return server


def guard(method: str, path: str, hosts: Sequence[str], port: int) -> tuple[HTTPStatus, str] | None:
    """Return why a request is refused, or None; every route goes through here.

    Args:
        method: The HTTP method; only GET is served.
        path: The request target; it must be a plain absolute path without a query.
        hosts: All Host headers; exactly one is wanted, and it must name this machine (a page elsewhere that has its
            own name resolve to 127.0.0.1 sends that name).
        port: The server's port.
    """
    names = {f"{name}{tail}" for name in ("localhost", HOST) for tail in ("", f":{port}")}
    if len(hosts) != 1 or hosts[0].strip().lower() not in names:
        return HTTPStatus.FORBIDDEN, "This view answers to localhost only."
    if method != "GET":
        return HTTPStatus.METHOD_NOT_ALLOWED, "This view only reads: use GET."
    if len(path) > 300 or not re.fullmatch(r"/[A-Za-z0-9_.\-/]*", path) or ".." in path:
        return HTTPStatus.BAD_REQUEST, "The path is not one of this view's."
    return None


class View:
    """The routes over one source, with the pages that have not changed kept."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: dict[tuple[str, str], tuple[Hashable, Answer]] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, hosts: Sequence[str], port: int) -> Answer:
        """Return the response to one request; an error of the store or of a missing extra becomes a page."""
        refused = guard(method, path, hosts, port)
        if refused is not None:
            return _page(refused[0], pages.message(refused[0].phrase, refused[1]))
        try:
            return self._route(path)
        except SteelyardError as error:
            return _page(HTTPStatus.SERVICE_UNAVAILABLE, pages.message("Not now", str(error)))

    def _route(self, path: str) -> Answer:
        if path == "/":
            return _page(HTTPStatus.OK, pages.index(self._source.weighings()))
        if path == "/api/weighings":
            return _json([dict(entry) for entry in self._source.weighings()])
        match = re.fullmatch(r"(/api)?/weighing/([A-Za-z0-9_.\-]+)(/progress)?", path)
        if match and bool(match.group(1)) == bool(match.group(3)):
            entry = next((entry for entry in self._source.weighings() if entry["id"] == match.group(2)), None)
            if entry is not None:
                return self._progress(entry) if match.group(1) else self._weighing(entry)
        return _page(HTTPStatus.NOT_FOUND, pages.message("Not found", "The store has no such weighing or page."))

    def _progress(self, entry: dict[str, Any]) -> Answer:
        return self._keep("progress", entry, lambda: _json(progress(self._source.results(entry["id"]))))

    def _weighing(self, entry: dict[str, Any]) -> Answer:
        def make() -> Answer:
            results = self._source.results(entry["id"])
            if not results.finished:
                return _page(HTTPStatus.OK, pages.live(results), pages.live_policy())
            from steelyard.report import html

            policy = f"{html.script_policy()}; frame-ancestors 'none'; form-action 'none'"
            return _page(HTTPStatus.OK, html.render_report([results]), policy)

        return self._keep("page", entry, make)

    def _keep(self, kind: str, entry: dict[str, Any], make: Callable[[], Answer]) -> Answer:
        """Return what ``make`` returned when the store's counts for this weighing were the same as now."""
        state, name = json.dumps(entry, sort_keys=True, default=str), (kind, str(entry["id"]))
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None and kept[0] == state:
            return kept[1]
        made = make()
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = (state, made)
            while len(self._kept) > _KEPT:
                self._kept.pop(next(iter(self._kept)))
        return made


def _page(status: HTTPStatus, body: str, policy: str | None = None) -> Answer:
    return Answer(status, "text/html; charset=utf-8", body, policy or pages.plain_policy())


def _json(data: object) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", json.dumps(data), "default-src 'none'; frame-ancestors 'none'")


class _Handler(BaseHTTPRequestHandler):
    """Hands each request to :meth:`View.answer` and sends what comes back, with the same headers for all."""

    server_version, sys_version, timeout = "steelyard", "", 20
    answer: Callable[[str, str, Sequence[str], int], Answer]

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return the same answer to every HTTP method (the standard library looks for ``do_<method>``)."""
        if name.startswith("do_"):
            return self._respond
        raise AttributeError(name)

    def _respond(self) -> None:
        assert isinstance(self.server, ThreadingHTTPServer)
        port = self.server.server_port
        hosts = self.headers.get_all("Host") or []
        self._send(self.answer(self.command, self.path, hosts, port))

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode("utf-8", "replace")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", answer.policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library refuses (a broken line, an unknown method) like any other."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(_page(status, pages.message(status.phrase, "The request was not understood.")))

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""


_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
