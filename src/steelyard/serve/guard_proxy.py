"""The guard proxy: an OpenAI-compatible server on 127.0.0.1 that puts a defence and a detector in front of a model.

It fails closed: an answer leaves only when the defence and the detector that are on have both done their work on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import Scope

from steelyard.errors import InputError
from steelyard.serve.chat_api import (
    JSON_TYPE,
    STREAM_TYPE,
    ChatRequest,
    Completion,
    Limits,
    ProxyError,
    add_usage,
    check_work,
    chunk_events,
    completion_body,
    event,
    guarded_messages,
    read_request,
    refused,
    to_json,
)
from steelyard.serve.listening import HOST, listen
from steelyard.serve.metrics import Metrics
from steelyard.serve.request_checks import PAYLOAD, RequestChecks
from steelyard.serve.slow_requests import make_protocol
from steelyard.serve.upstream import Upstream
from steelyard.serve.upstream_calls import Calls

logger = logging.getLogger("steelyard.serve")

_KEEP_ALIVE = b": keep-alive\n\n"
T = TypeVar("T")


class Answer(NamedTuple):
    """What a defence returns, or anything with these two attributes.

    ``text`` is for the client; ``extra`` holds fields for the answer whose names begin with ``x_``.
    """

    text: str
    extra: dict[str, Any]


class Complete(Protocol):
    """Asks the upstream; called in the worker thread, waits for the answers."""

    @property
    def closed(self) -> bool:
        """Whether the request has ended: a defence that computes for long looks now and then, and ends as well."""
        ...

    def __call__(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        *,
        seeds: Sequence[int] | None = None,
        max_tokens: int | None = None,
    ) -> list[str]:
        """Return one text per conversation, sampled as the client asked."""
        ...


class Defence(Protocol):
    """Answers a conversation by asking the upstream as often as it likes.

    An attribute ``copies``, where there is one, says how many times it works through the user's text.
    """

    def answer(self, messages: list[dict[str, str]], complete: Complete) -> Answer:
        """Return the answer; called in a worker thread."""
        ...


class Detector(Protocol):
    """Scores a finished answer."""

    def score(self, messages: list[dict[str, str]], text: str) -> dict[str, Any]:
        """Return fields whose names begin with ``x_``; called in a worker thread."""
        ...


def make_app(
    upstream: Upstream,
    defence: Defence | None = None,
    detector: Detector | None = None,
    limits: Limits | None = None,
    client_key: str | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        upstream: Where answers come from.
        defence: What answers in the place of a plain upstream call; None passes requests through.
        detector: What scores every answer before it leaves.
        limits: What is accepted.
        client_key: The key that clients must send; None accepts any.

    Raises:
        InputError: ``client_key`` is empty.
    """
    if client_key is not None and not client_key.strip():
        raise InputError("client_key is empty; leave it out to accept any client on this machine")
    limits = limits or Limits()
    metrics = Metrics()
    proxy = _Proxy(upstream, defence, detector, limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await proxy.close()

    app = FastAPI(title="steelyard guard", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    app.state.limits, app.state.metrics = limits, metrics
    app.add_middleware(RequestChecks, limits=limits, metrics=metrics, client_key=client_key, outlived=proxy.outlived)
    _add_handlers(app)
    shaped = {"description": "An error in OpenAI's shape"}
    replies: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 403, 413, 415, 429, 500, 502, 504), shaped)
    body = {"content": {JSON_TYPE: {"schema": _inlined(ChatRequest.model_json_schema())}}, "required": True}
    app.add_api_route(
        "/v1/chat/completions",
        proxy.chat,
        methods=["POST"],
        responses=replies,
        openapi_extra={"requestBody": body},
        response_class=Response,
    )
    app.add_api_route("/v1/models", proxy.models, methods=["GET"], responses=replies, response_class=Response)
    app.add_api_route("/healthz", proxy.health, methods=["GET"], response_class=Response)
    app.add_api_route("/metrics", proxy.metrics, methods=["GET"], response_class=Response)
    return app


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema whose references to its own ``$defs`` are replaced by what they stand for."""
    named = schema.pop("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return walk(named[value["$ref"].rpartition("/")[2]])
            return {name: walk(entry) for name, entry in value.items()}
        return [walk(entry) for entry in value] if isinstance(value, list) else value

    return {name: walk(entry) for name, entry in schema.items()}


def _add_handlers(app: FastAPI) -> None:
    """Give every error that FastAPI answers itself the shape of OpenAI's."""
    metrics: Metrics = app.state.metrics

    def reply(error: ProxyError, headers: Mapping[str, str] | None = None) -> Response:
        metrics.refuse(error.code)
        return Response(to_json(error.body()), error.status, dict(headers or {}), JSON_TYPE)

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, ProxyError)
        return reply(error, {"retry-after": "1"} if error.status == 429 else None)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = {404: "there is no such route", 405: "the route does not take this method"}.get(error.status_code)
        return reply(ProxyError(error.status_code, what or "the request was refused", "invalid_request"), error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        return reply(refused("the request has fields that cannot be used"))

    app.add_exception_handler(ProxyError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)


class _Proxy:
    """The routes."""

    def __init__(
        self, upstream: Upstream, defence: Defence | None, detector: Detector | None, limits: Limits, metrics: Metrics
    ) -> None:
        self._upstream, self._defence, self._detector = upstream, defence, detector
        self._limits, self._metrics = limits, metrics
        self._threads = ThreadPoolExecutor(limits.concurrency, thread_name_prefix="steelyard-guard")
        self._outlived: set[Future[Any]] = set()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._upstream.close()

    async def health(self) -> Response:
        """Say that the proxy runs; asks nobody."""
        return Response(b'{"status":"ok"}', media_type=JSON_TYPE)

    async def metrics(self) -> Response:
        """Return the counters for Prometheus."""
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self) -> Response:
        """List the models."""
        found = await self._timed(self._upstream.models())
        return Response(to_json({"object": "list", "data": found}), media_type=JSON_TYPE)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation; with a defence on, through the defence only."""
        payload = _payload(request.scope)
        asked = read_request(payload, self._limits)
        if self._defence is None and self._detector is None:
            if asked.stream:
                return await self._streamed(self._forwarded_stream(payload))
            answer = self._forwarded(payload)
        else:
            turns = guarded_messages(asked, payload)
            check_work(turns, getattr(self._defence, "copies", 1), self._limits)
            answer = self._guarded(payload, turns)
        if asked.stream:
            usage = bool((asked.stream_options or {}).get("include_usage"))
            return await self._streamed(_late(answer, usage))
        return Response(to_json(await self._timed(answer)), media_type=JSON_TYPE)

    async def _timed(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                return await work
        except TimeoutError:
            raise ProxyError(504, "no answer was ready in time", "timeout") from None

    async def _ask(self, payloads: Sequence[Mapping[str, Any]]) -> list[Completion]:
        self._metrics.call(len(payloads))
        try:
            return await self._upstream.complete_all(payloads)
        except ProxyError as error:
            self._failed(error)
            raise

    def _failed(self, error: ProxyError) -> None:
        self._metrics.upstream_error(error.code)
        # the proxy's own sentence, unless it may quote what the upstream said of a prompt
        said = f": {error.message}" if error.code == "upstream_error" else ""
        logger.warning("an upstream call failed (%d, %s)%s", error.status, error.code, said)

    async def _forwarded(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        return (await self._ask([payload]))[0].body

    async def _forwarded_stream(self, payload: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        self._metrics.call()
        try:
            async with contextlib.aclosing(self._upstream.stream(payload)) as chunks:
                async for chunk in chunks:
                    yield event(chunk)
        except ProxyError as error:
            self._failed(error)
            raise

    async def _guarded(self, payload: Mapping[str, Any], messages: list[dict[str, str]]) -> dict[str, Any]:
        """Return the completion that leaves; whatever fails on the way is an error, never an answer."""
        calls = Calls(self._ask, payload, self._limits)
        extra: dict[str, Any] = {}
        try:
            if self._defence is None:
                text = (await calls.ask([messages], None, None))[0]
            else:
                text, extra = _checked_answer(await self._worked("defence", self._defence.answer, messages, calls))
                self._metrics.verdict(extra.get("x_smoothing"))
            if self._detector is not None:
                scored = await self._worked("detector", self._detector.score, messages, text)
                extra = {**extra, **_checked_extra(scored, "detector")}
        finally:
            calls.close()
        body = completion_body(calls.model, text, calls.finish_reasons.get(text, "stop"), add_usage(calls.completions))
        return {**body, **extra}

    async def _worked(self, who: str, work: Callable[..., T], *args: object) -> T:
        """Return what ``work`` returns in a thread; one that outlives its request keeps the request's place."""
        running = self._threads.submit(work, *args)
        try:
            return await _or_fail(asyncio.wrap_future(running), who)
        finally:
            if not running.done():
                self._outlived.add(running)
                running.add_done_callback(self._outlived.discard)

    def outlived(self) -> int:
        """Return how many threads work for requests that have ended."""
        return len(self._outlived)

    async def _streamed(self, source: AsyncGenerator[bytes, None]) -> Response:
        """Return a response that begins with the first event, or with a comment when that takes its time.

        An error before that has its own status; a later one is an event of the stream.
        """
        events = _with_keep_alive(source, self._limits.keep_alive_seconds, self._limits.request_seconds)
        first = await anext(events, b"")

        async def body() -> AsyncIterator[bytes]:
            try:
                yield first
                async for part in events:
                    yield part
                yield b"data: [DONE]\n\n"
            except ProxyError as error:
                self._metrics.refuse(error.code)
                yield event(error.body())
            except Exception as error:
                logger.error("a stream ended in %s", type(error).__name__)
                failure = ProxyError(500, "the proxy failed on this request", "internal_error")
                self._metrics.refuse(failure.code)
                yield event(failure.body())
            finally:
                await events.aclose()

        return StreamingResponse(body(), media_type=STREAM_TYPE)


def _payload(scope: Scope) -> dict[str, Any]:
    payload = scope.get(PAYLOAD)
    if not isinstance(payload, dict):  # no request comes here past the checks
        raise ProxyError(500, "the request was not checked", "internal_error")
    return payload


async def _or_fail(work: Awaitable[T], who: str) -> T:
    """Return what ``work`` returns; an upstream's error keeps its status, any other is a failure of ``who``."""
    try:
        return await work
    except ProxyError as error:
        if error.status == 500:
            logger.error("the %s failed (500, %s)", who, error.code)
        raise
    except Exception as error:
        logger.error("the %s failed (500) with %s", who, type(error).__name__)  # its text may hold a prompt
        raise ProxyError(500, f"the {who} failed, so no answer is given", f"{who}_failed") from None


def _checked_answer(answer: object) -> tuple[str, dict[str, Any]]:
    text, extra = getattr(answer, "text", None), getattr(answer, "extra", None)  # a room's own tuple will do
    if not isinstance(text, str):
        logger.error("the defence failed (500): it returned no text")
        raise ProxyError(500, "the defence failed, so no answer is given", "defence_failed")
    return text, _checked_extra(extra, "defence")


def _checked_extra(extra: object, who: str) -> dict[str, Any]:
    """Return fields that may stand beside an answer: named ``x_…`` and representable as JSON."""
    try:
        if not isinstance(extra, dict) or not all(isinstance(name, str) and name.startswith("x_") for name in extra):
            raise TypeError
        to_json(extra)
    except (TypeError, ValueError, RecursionError):
        logger.error("the %s failed (500): its fields are not JSON named x_", who)
        raise ProxyError(500, f"the {who} failed, so no answer is given", f"{who}_failed") from None
    return extra


async def _late(answer: Awaitable[dict[str, Any]], include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Yield nothing until the whole answer is there, then its chunks."""
    for chunk in chunk_events(await answer, include_usage):
        yield event(chunk)


async def _with_keep_alive(
    source: AsyncGenerator[bytes, None], every: float, limit: float
) -> AsyncGenerator[bytes, None]:
    """Yield what ``source`` yields, and a comment line whenever that takes longer than ``every`` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit
    waiting: asyncio.Future[bytes] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(anext(source))
            while not waiting.done():
                left = end - loop.time()
                if left <= 0:
                    raise ProxyError(504, "no answer was ready in time", "timeout")
                await asyncio.wait({waiting}, timeout=min(every, left))
                if not waiting.done():
                    yield _KEEP_ALIVE
            try:
                part = waiting.result()
            except StopAsyncIteration:
                return
            yield part
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await waiting
        await source.aclose()


def make_server(app: Starlette, port: int) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server for an application, and its socket on 127.0.0.1.

    Args:
        app: The application, with ``limits`` and ``metrics`` in its state.
        port: Port; 0 picks a free one.

    Raises:
        InputError: The port is taken or out of range.
    """
    listener = listen(port)
    config = uvicorn.Config(
        app,
        http=make_protocol(app.state.limits, app.state.metrics.refuse),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
        limit_concurrency=app.state.limits.connections,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config), listener


def run(app: FastAPI, port: int = 8766) -> None:
    """Serve an application of :func:`make_app` on 127.0.0.1 until interrupted.

    Raises:
        InputError: The port is taken or out of range.
    """
    server, listener = make_server(app, port)
    print(f"Serving at http://{HOST}:{listener.getsockname()[1]}/v1 (Ctrl-C stops)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    print("Stopped.")
