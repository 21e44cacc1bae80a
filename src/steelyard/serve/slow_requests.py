"""uvicorn's HTTP protocol with what it lacks: time limits on heads, bodies and unread answers, and strict framing.

uvicorn waits without end for a head or a body that has begun. h11 joins folded header lines, takes a repeated
Content-Length for one and lets Transfer-Encoding win over it; two programs that read such a request differently are
what request smuggling lives on, so each of these is refused here, before h11 has read them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from steelyard.serve.chat_api import JSON_TYPE, Limits, refused, to_json

_HEAD_BYTES = 16384  # h11 holds heads that come in pieces to this, not those that come at once
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FRAMING = re.compile(rb"\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_LISTED = re.compile(rb"\ncontent-length[ \t]*:[^\n]*,", re.IGNORECASE)  # "5, 5" is 5 to h11
_VERSION = re.compile(rb"[^\n]* HTTP/1\.1\r?\n")
_CHUNKED = re.compile(rb"\ntransfer-encoding:[ \t]*chunked[ \t]*\r?\n", re.IGNORECASE)


def framing_fault(received: bytes) -> str | None:
    """Return what is wrong with the framing of the head at the start of ``received``, or None.

    A head that is not whole yet has no fault.
    """
    end = _HEAD_END.search(received)
    if end is None:
        return None
    if end.start() > _HEAD_BYTES:
        return "the head is too long"
    head = received[: end.start()] + b"\n"
    if b"\n " in head or b"\n\t" in head:
        return "a header is folded over two lines"
    if b"\0" in head or re.search(rb"\r(?!\n)", head):
        return "the head holds control characters"
    found = [name.lower() for name in _FRAMING.findall(head)]
    if len(found) > 1 or _LISTED.search(head):
        return "the body's length is given more than once"
    if found == [b"transfer-encoding"]:
        if not _CHUNKED.search(head):
            return "the only transfer encoding that is accepted is chunked"
        if not _VERSION.match(head):
            return "a body in chunks needs HTTP/1.1"  # an older program takes what follows for a second request
    return None


class _StrictConnection(h11.Connection):
    """h11's connection, which looks at each head before it reads it."""

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            fault = framing_fault(self.trailing_data[0])
            if fault is not None:
                raise h11.RemoteProtocolError(fault)
        return super().next_event()


def _answer(status: int, message: str, code: str) -> bytes:
    body = to_json(refused(message, code=code, status=status).body())
    phrase = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {JSON_TYPE}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


class _GuardedProtocol(H11Protocol):
    """One connection with its clocks."""

    limits: Limits
    refuse: Callable[[str], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _StrictConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or _HEAD_BYTES)
        self.limit_concurrency = None  # counted in connection_made: uvicorn's own answer is plain text
        self._clock: asyncio.TimerHandle | None = None
        self._awaited = ""
        self._write_clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._end(503, "too many connections; try again", "too_many_connections")
        else:
            self._wind("head", fresh=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wind("")
        self._cancel_write_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_write_clock()
        self._write_clock = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_clock()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._end(400, "the request is not valid HTTP, or its framing is ambiguous", "bad_header")

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: any client may ask for a websocket, and the operator lacks no library."""

    def _look(self) -> None:
        """Let the clock run for what is awaited now: the rest of a head, the rest of a body, or nothing."""
        state = self.conn.their_state
        if self.transport.is_closing():
            self._wind("")
        elif state is h11.SEND_BODY:
            self._wind("body")
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            self._wind("head")
        else:
            self._wind("")

    def _wind(self, awaited: str, fresh: bool = False) -> None:
        if awaited == self._awaited and not fresh:
            return
        self._awaited = awaited
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if awaited:
            seconds = self.limits.header_seconds if awaited == "head" else self.limits.body_seconds
            self._clock = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._end(408, f"the request's {self._awaited} did not arrive in time", "slow_request")

    def _end(self, status: int, message: str, code: str) -> None:
        """Close the connection, with a last answer unless one has begun."""
        self._wind("")
        if self.transport.is_closing():
            return
        type(self).refuse(code)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_answer(status, message, code))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _cancel_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None


def make_protocol(limits: Limits, refuse: Callable[[str], None]) -> type[asyncio.Protocol]:
    """Return the protocol class for uvicorn's ``http=``.

    Args:
        limits: Connections and times.
        refuse: Called with the code of every request that is refused here.
    """
    return type("GuardedProtocol", (_GuardedProtocol,), {"limits": limits, "refuse": staticmethod(refuse)})
