"""JSON over HTTP to one server: bounded in time, size and number, retried when it is busy, from any thread.

The requests run on an event loop of their own in a thread, so that a plain call works where a loop already runs: in a
notebook, or in a server.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import re
import threading
import time
import urllib.parse
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from steelyard.errors import EndpointError, InputError
from steelyard.extras import require
from steelyard.models.paths import printable

KEY_VARIABLE = "STEELYARD_API_KEY"
MAX_ANSWER_BYTES = 32 << 20
FIRST_WAIT = 0.5  # seconds before the first retry; doubled each time
MAX_WAIT = 60.0  # a server that asks for a longer pause is not waited for

_VERSION = re.compile(r"v\d+\w*")
_ENDINGS = ("/chat/completions", "/completions", "/embeddings")
_Result = TypeVar("_Result")


class _Loop:
    """An event loop in a daemon thread, with one client session on it."""

    def __init__(self, headers: Mapping[str, str], timeout: float, connections: int) -> None:
        self.pid = os.getpid()
        self.slots = asyncio.Semaphore(connections)
        self._loop = asyncio.new_event_loop()
        self._session: Any = None
        self._make = (dict(headers), timeout, connections)
        self._thread = threading.Thread(target=self._run, name="steelyard-endpoint", daemon=True)
        self._thread.start()

    def session(self) -> Any:
        """Return the session, made at its first use because it must be made on its loop."""
        if self._session is None:
            aiohttp = require("aiohttp", "models")
            headers, timeout, connections = self._make
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
                connector=aiohttp.TCPConnector(limit=connections),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    def submit(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start ``work`` on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what is under way, close the session and end the thread; twice is as good as once."""
        if self.pid != os.getpid() or not self._thread.is_alive():  # a thread is not there in a forked process
            return
        self.submit(self._finish())
        if threading.current_thread() is not self._thread:  # where an endpoint may be collected that nobody closed
            self._thread.join(5)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._loop.stop()


class Endpoint:
    """One server, and how it is asked.

    Args:
        base_url: http or https, with or without ``/v1``.
        api_key: Sent as a bearer token; None takes the environment variable STEELYARD_API_KEY if it is set.
        timeout: Seconds for one attempt.
        max_concurrency: Most requests at a time.
        retries: How often a request is tried again on 429, 5xx or a broken connection.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout: float, max_concurrency: int, retries: int) -> None:
        self._base, self._query = split_url(base_url)
        if not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
            raise InputError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if not (isinstance(max_concurrency, int) and 1 <= max_concurrency <= 1024):
            raise InputError(f"max_concurrency must be from 1 to 1024, got {max_concurrency!r}")
        if not (isinstance(retries, int) and 0 <= retries <= 10):
            raise InputError(f"retries must be from 0 to 10, got {retries!r}")
        self._key = usable_key(api_key)
        self._timeout, self._connections, self._retries = float(timeout), max_concurrency, retries
        self._lock, self._closed = threading.Lock(), False
        self._running: _Loop | None = None

    @property
    def shown(self) -> str:
        """The URL as it may be shown, without its query."""
        return self._base

    def post_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Post every body to ``path`` and return the answers in order; see :meth:`post`."""

        async def everything() -> list[dict[str, Any]]:
            return await self.gather([self.post(path, body) for body in bodies])

        return self.wait(everything())

    def wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run ``work`` on the endpoint's loop and wait for its result, from any thread.

        Raises:
            EndpointError: The endpoint was closed meanwhile.
        """
        future = self._start(work)
        try:
            return future.result()
        except CancelledError:
            raise EndpointError(f"{self.shown} was closed while it was asked") from None
        except BaseException:
            future.cancel()
            raise

    async def wait_async(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do what :meth:`wait` does without blocking the caller's loop; cancelling it cancels the work."""
        future = self._start(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed:
                raise EndpointError(f"{self.shown} was closed while it was asked") from None
            raise

    async def gather(self, work: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
        """Run everything at once and return the results in order; the first failure ends the rest."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one) for one in work]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a JSON body to ``path`` and return the JSON object that comes back.

        Raises:
            EndpointError: It could not be had; the message names the status and the URL, never the key.
        """
        failure = EndpointError(f"{self.shown} was not asked")
        for attempt in range(self._retries + 1):
            pause, failure, answer = await self._attempt(path, body)
            if answer is not None:
                return answer
            if pause is None or attempt == self._retries:
                break
            await asyncio.sleep(max(pause, FIRST_WAIT * 2**attempt))
        raise failure

    def unusable(self, path: str, what: str) -> EndpointError:
        """Return the error for an answer that came but is none."""
        return EndpointError(f"{self.shown}/{path} answered 200, but {what}")

    def close(self) -> None:
        """End the connections and the thread; the endpoint cannot be used afterwards."""
        with self._lock:
            running, self._running, self._closed = self._running, None, True
        if running is not None:
            running.stop()

    async def _attempt(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[float | None, EndpointError, dict[str, Any] | None]:
        """Ask once; return (least pause before a retry or None for no retry, the error, the answer if there is one)."""
        aiohttp = require("aiohttp", "models")
        running = self._running
        where = f"{self.shown}/{path}"
        if running is None:
            return None, EndpointError(f"{self.shown} was closed while it was asked"), None
        try:
            async with (
                running.slots,
                running.session().post(where + self._query, json=body, allow_redirects=False) as response,
            ):
                status, pause = response.status, _retry_after(response.headers.get("Retry-After"))
                content = await _read(response, where)
        except EndpointError as error:
            return None, error, None
        except TimeoutError:
            return None, EndpointError(f"{where} did not answer within {self._timeout:g} s"), None
        except (aiohttp.ClientError, OSError) as error:
            return 0.0, EndpointError(f"{where} cannot be reached ({self._clean(_reason(error))})"), None
        if status == 200:
            return self._parse(where, content)
        failure = EndpointError(f"{where} answered {status}{self._message(status, content)}")
        if status != 429 and status < 500:
            return None, failure, None
        if pause > MAX_WAIT:
            return None, EndpointError(f"{where} answered {status} and asks for a pause of {pause:.0f} s"), None
        return pause, failure, None

    def _parse(self, where: str, content: bytes) -> tuple[None, EndpointError, dict[str, Any] | None]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            answer = None
        return None, EndpointError(f"{where} answered 200, but not with a JSON object"), answer

    def _message(self, status: int, content: bytes) -> str:
        """Return the server's own words, bounded and without the key."""
        if 300 <= status < 400:
            return ", a redirect, which is not followed; give the address that it leads to as base_url"
        try:
            told = json.loads(content)
        except (ValueError, RecursionError):
            return ""
        told = told.get("error", told.get("detail")) if isinstance(told, dict) else None
        told = told.get("message") if isinstance(told, dict) else told
        return f": {self._clean(told)}" if isinstance(told, str) and told else ""

    def _clean(self, text: str) -> str:
        if self._key:
            text = re.sub(re.escape(self._key), "***", text, flags=re.IGNORECASE)
        text = printable(" ".join(text.split()))
        return text if len(text) <= 200 else f"{text[:200]}…"

    def _start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        with self._lock:
            if self._closed:
                work.close()
                raise InputError(f"{self.shown} was closed; make a new one")
            if self._running is None or self._running.pid != os.getpid():
                headers = {"Accept-Encoding": "identity", "User-Agent": "steelyard"}
                if self._key:
                    headers["Authorization"] = f"Bearer {self._key}"
                self._running = _Loop(headers, self._timeout, self._connections)
                weakref.finalize(self, self._running.stop)
            return self._running.submit(work)


def check_model_name(model: str) -> str:
    """Return ``model``, or raise InputError when it is no name."""
    if not isinstance(model, str) or not model.strip():
        raise InputError("model must be the name of a model on the server")
    return model


async def _read(response: Any, where: str) -> bytes:
    """Return the body, which is given up when it is larger than an answer can be."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise EndpointError(f"{where} answered {response.status} in a compressed form that was not asked for")
    parts, size = [], 0
    async for part in response.content.iter_chunked(1 << 16):
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            response.close()
            raise EndpointError(f"{where} answered {response.status} with more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """Return what went wrong in words that hold no part of the request."""
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(getattr(cause, "strerror", None) or type(error).__name__)


def _retry_after(value: str | None) -> float:
    """Return the pause in seconds that a server asks for, 0 for none."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(seconds, 0.0) if not math.isnan(seconds) else 0.0


def split_url(base_url: str) -> tuple[str, str]:
    """Return the URL up to and with its version, ``/v1`` where it names none, and its query with the question mark.

    Raises:
        InputError: It is no plain http(s) URL; no message quotes it, for it may hold a password or a key.
    """
    try:
        parts = urllib.parse.urlsplit(base_url.strip())
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except (ValueError, AttributeError):
        raise InputError("base_url is not a URL; write it like http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not host or not re.fullmatch(r"[\w.:%-]+", host):
        raise InputError("base_url must start with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise InputError("base_url must not hold a user name or password; hand a key over as api_key")
    path = parts.path.rstrip("/")
    for ending in _ENDINGS:
        path = path.removesuffix(ending)
    if not any(_VERSION.fullmatch(segment) for segment in path.split("/")):
        path += "/v1"
    place = f"[{host}]" if ":" in host else host
    place = place if port is None else f"{place}:{port}"
    return f"{parts.scheme}://{place}{urllib.parse.quote(path, safe='/%')}", f"?{parts.query}" if parts.query else ""


def usable_key(api_key: str | None = None) -> str | None:
    """Return the key, or without one that of the environment, if any; it must fit into a header.

    Raises:
        InputError: It does not; the message does not quote it.
    """
    key = os.environ.get(KEY_VARIABLE) or None if api_key is None else api_key
    if key is not None and not (isinstance(key, str) and re.fullmatch(r"[!-~]+", key)):
        raise InputError(f"api_key (or {KEY_VARIABLE}) must be printable ASCII text without spaces")
    return key
