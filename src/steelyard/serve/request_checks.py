"""What every request passes before a route sees it: where it comes from, how large it is, and what it names.

The layer stands round the whole application, so no route can be added that skips it. It reads the body itself, parses
it once, and hands the parsed payload on as ``scope["steelyard.payload"]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from steelyard.serve.chat_api import JSON_TYPE, KNOWN, Limits, ProxyError, refused, to_json
from steelyard.serve.metrics import Metrics

logger = logging.getLogger("steelyard.serve")

PAYLOAD = "steelyard.payload"
_DEPTH = 32  # levels of a body's JSON
_NODES = 100_000  # values in a body's JSON
_DRAINED = 8 * 2**20  # bytes of an oversized body that are read and dropped, so that its sender gets to see the answer
_OPEN = "/healthz"  # needs no key and no free place

_LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
_WORDS = frozenset({"host", "hosts", "key", "keys", "url", "urls", "uri", "uris", "server", "servers", "auth"})
_ENDS = ("host", "key", "keys", "url", "urls", "uri")
_PARTS = (
    "apibase", "apikey", "authorization", "baseurl", "bearer", "credential", "endpoint", "header", "hostname",
    "password", "proxy", "proxies", "secret", "upstream",
)  # fmt: skip
# Where users' own names stand: (field, name in it); and media, whose address is for a model that reads it.
_FREE = frozenset({
    ("functions", "parameters"), ("logit_bias", "logit_bias"), ("messages", "audio_url"), ("messages", "image_url"),
    ("messages", "video_url"), ("metadata", "metadata"), ("response_format", "schema"), ("tools", "parameters"),
})  # fmt: skip
_PLAIN = frozenset({"role", "content", "type", "text"})  # in every request, so not looked at again and again
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]


def names_host_or_key(name: str) -> bool:
    """Return whether a field's name stands for an address or a key, however it is spelt."""
    folded = unicodedata.normalize("NFKC", name)
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", folded).lower())
    joined = "".join(words)
    return bool(_WORDS & set(words)) or joined.endswith(_ENDS) or any(part in joined for part in _PARTS)


def check_head(scope: Scope, limits: Limits) -> None:
    """Refuse a request by its head: where it was sent to, where from, how its body is framed, what its query names.

    Raises:
        ProxyError: 400, 403, 413 or 415.
    """
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    for name in (b"host", b"origin", b"content-length", b"transfer-encoding", b"content-type", b"authorization"):
        if len(headers.get(name, ())) > 1:
            raise refused(f"the header {name.decode()} was sent more than once", code="bad_header")
    one = {name: values[0].decode("latin-1").strip() for name, values in headers.items()}
    if not _LOCAL.fullmatch(one.get(b"host", "")):
        raise refused("this proxy answers to localhost and 127.0.0.1 only", code="bad_host", status=403)
    if b"origin" in one and not _LOCAL_ORIGIN.fullmatch(one[b"origin"]):
        raise refused("requests from other sites' pages are refused", code="cross_origin", status=403)
    if one.get(b"sec-fetch-site") == "cross-site":
        raise refused("requests from other sites' pages are refused", code="cross_origin", status=403)
    if b"content-length" in one and b"transfer-encoding" in one:
        raise refused("Content-Length and Transfer-Encoding together are refused", code="bad_header")
    for name in _query_names(scope["query_string"]):
        if names_host_or_key(name):
            raise refused("the query names a host or a key; the operator sets both", name[:100], "host_or_key")
    if scope["method"] in ("POST", "PUT", "PATCH"):
        _check_body_head(one, limits)


def _query_names(query: bytes) -> Iterator[str]:
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise refused("the query has too many fields") from None
    for name, _ in pairs:
        yield from (name, unquote(name))


def _check_body_head(one: dict[bytes, str], limits: Limits) -> None:
    kind = one.get(b"content-type", "").lower().replace(" ", "")
    if kind not in (JSON_TYPE, f"{JSON_TYPE};charset=utf-8", f'{JSON_TYPE};charset="utf-8"'):
        raise refused(f"the body must be sent as {JSON_TYPE}", code="bad_content_type", status=415)
    if one.get(b"content-encoding", "identity").lower() != "identity":
        raise refused("compressed bodies are refused", code="bad_content_type", status=415)
    declared = one.get(b"content-length", "0")
    if not re.fullmatch(r"\d{1,18}", declared, re.ASCII):
        raise refused("Content-Length is not a number", code="bad_header")
    if int(declared) > limits.body_bytes + _DRAINED:
        raise _too_large(limits)


def _too_large(limits: Limits) -> ProxyError:
    return refused(f"the body is larger than {limits.body_bytes} bytes", code="too_large", status=413)


async def read_body(receive: Receive, limits: Limits) -> bytes | None:
    """Return the body, or None when its sender left.

    Raises:
        ProxyError: 413.
    """
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            parts.clear()
            if size > limits.body_bytes + _DRAINED:
                raise _too_large(limits)
        else:
            parts.append(part)
        more = message.get("more_body", False)
    if size > limits.body_bytes:
        raise _too_large(limits)
    return b"".join(parts)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        ProxyError: 400: not UTF-8, not JSON, no object, nested too deeply, a number that is not finite, half a
            surrogate pair, or a field that names a host or a key.
    """
    try:
        payload = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise refused("the body is nested too deeply", code="bad_json") from None
    except ValueError as error:  # also an error in UTF-8, and an integer of thousands of digits
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise refused(f"the body is not valid {what}", code="bad_json") from None
    if not isinstance(payload, dict):
        raise refused("the body must be a JSON object", code="bad_json")
    check_tree(payload)
    return payload


def _no_constant(name: str) -> None:
    raise ValueError(name)


def check_tree(payload: dict[str, Any]) -> None:
    """Refuse what no field of a payload may hold.

    Raises:
        ProxyError: 400, see :func:`parse_body`.
    """
    waiting: list[tuple[Any, int, str | None]] = [(payload, 1, "")]
    seen = 0
    while waiting:
        value, depth, field = waiting.pop()
        seen += 1
        if depth > _DEPTH or seen > _NODES:
            raise refused("the body is nested too deeply or has too many values", code="bad_json")
        if isinstance(value, dict):
            waiting.extend((entry, depth + 1, _named(name, depth, field)) for name, entry in value.items())
        elif isinstance(value, list):
            waiting.extend((entry, depth + 1, field) for entry in value)
        elif isinstance(value, str):
            _check_text(value)
        elif isinstance(value, int | float) and not (math.isfinite(value) and abs(value) < 2**64):
            raise refused("a number in the body is too large", code="bad_json")


def _named(name: str, depth: int, field: str | None) -> str | None:
    """Return the top-level field that ``name`` stands in, or None where any name may stand; refuse a bad name."""
    _check_text(name)
    if name in _PLAIN:
        return field
    if field is None or (field, name) in _FREE:
        return None
    if depth == 1 and name in KNOWN:
        return None if (name, name) in _FREE else name
    if names_host_or_key(name):
        raise refused("the body names a host or a key; the operator sets both", name[:100], "host_or_key")
    return name if depth == 1 else field


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise refused("a text in the body holds half a surrogate pair", code="bad_json") from None


class RequestChecks:
    """The layer itself.

    Args:
        app: What it stands round.
        limits: What is accepted.
        metrics: Where requests and refusals are counted.
        client_key: The key that clients must send as ``Authorization: Bearer``; None accepts any.
        outlived: Returns how many threads still work for requests that have ended; each keeps its place.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        client_key: str | None,
        outlived: Callable[[], int] = lambda: 0,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._digest = None if client_key is None else hashlib.sha256(client_key.encode()).digest()
        self._running, self._outlived = 0, outlived

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Sender(send, self._metrics, scope["path"])
        counted = scope["path"] != _OPEN
        self._running += counted
        try:
            await self._admit(scope, receive, answer)
        except ProxyError as error:
            self._metrics.refuse(error.code)
            await answer.error(error)
        except Exception as error:
            logger.error("a request ended in %s", type(error).__name__)  # its text may hold a prompt
            await answer.error(ProxyError(500, "the proxy failed on this request", "internal_error"))
        finally:
            self._running -= counted
            answer.close()

    async def _admit(self, scope: Scope, receive: Receive, answer: _Sender) -> None:
        check_head(scope, self._limits)
        if scope["path"] != _OPEN:
            self._check_key(scope)
            if self._running + self._outlived() > self._limits.concurrency:
                raise refused("too many requests at once; try again", code="too_many_requests", status=429)
        body = b""
        if scope["method"] in ("POST", "PUT", "PATCH"):
            read = await read_body(receive, self._limits)
            if read is None:
                return
            body = read
            scope[PAYLOAD] = parse_body(body)
        await _until_disconnect(self._app, scope, body, receive, answer)

    def _check_key(self, scope: Scope) -> None:
        if self._digest is None:
            return
        sent = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        scheme, _, key = sent.partition(b" ")
        right = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), self._digest)
        if scheme.lower() != b"bearer" or not right:
            raise refused("the API key is missing or wrong", code="invalid_api_key", status=401)


async def _until_disconnect(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run ``app`` until it is done or the client has left, in which case it is cancelled."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # ended by the cancellation below
        raise AssertionError

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(_run(app, scope, replay, send))
    left = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        left.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


class _Sender:
    """Sends an answer with the headers that all answers have, and counts it."""

    def __init__(self, send: Send, metrics: Metrics, path: str) -> None:
        self._send, self._metrics, self._path = send, metrics, path
        self._start, self._status = time.perf_counter(), 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}  # a page brings a policy of its own
            message = {**message, "headers": given + [header for header in _HEADERS if header[0] not in names]}
        await self._send(message)

    async def error(self, error: ProxyError) -> None:
        """Send ``error``, unless an answer has begun: the server then ends the connection in the middle of it."""
        if self._status:
            return
        body = to_json(error.body())
        headers = [(b"content-type", JSON_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        headers.append((b"connection", b"close"))  # an unread body may follow
        if error.status == 429:
            headers.append((b"retry-after", b"1"))
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    def close(self) -> None:
        """Count the request."""
        self._metrics.answer(self._path, self._status, time.perf_counter() - self._start)
