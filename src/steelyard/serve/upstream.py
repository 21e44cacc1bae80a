"""Where the proxy's answers come from: the operator's OpenAI-compatible server, or a language model in process."""

from __future__ import annotations

import abc
import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

from steelyard.errors import InputError
from steelyard.models.http_client import KEY_VARIABLE, split_url, usable_key
from steelyard.models.paths import printable
from steelyard.models.protocols import CausalLM, Prompt
from steelyard.models.transformers_lm import TransformersLM
from steelyard.serve.chat_api import (
    JSON_TYPE,
    STREAM_TYPE,
    Completion,
    Limits,
    ProxyError,
    as_completion,
    chunk_events,
    completion_body,
    to_json,
)

logger = logging.getLogger("steelyard.serve")

Payload = Mapping[str, Any]


class Upstream(abc.ABC):
    """Answers chat requests; every failure is a ProxyError with status 400, 429, 502 or 504."""

    @abc.abstractmethod
    async def complete(self, payload: Payload) -> Completion:
        """Return the answer to one request."""

    @abc.abstractmethod
    async def models(self) -> list[dict[str, Any]]:
        """Return one ``{"id", "object", "created", "owned_by"}`` per model."""

    async def complete_all(self, payloads: Sequence[Payload]) -> list[Completion]:
        """Return the answers to several requests; the first failure ends the others."""
        if len(payloads) == 1:
            return [await self.complete(payloads[0])]
        tasks = [asyncio.ensure_future(self.complete(payload)) for payload in payloads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def stream(self, payload: Payload) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of one answer."""
        body = (await self.complete(payload)).body
        for chunk in chunk_events(body, bool((payload.get("stream_options") or {}).get("include_usage"))):
            yield chunk

    async def close(self) -> None:  # noqa: B027 - not every upstream holds something
        """Let go of what is held."""


def _upstream_error(message: str) -> ProxyError:
    return ProxyError(502, f"the upstream {message}", "upstream_error")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _upstream_error("sent something that is not JSON") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)


class HttpUpstream(Upstream):
    """An OpenAI-compatible server: vLLM, llama-server, Ollama, or one in the cloud.

    Redirects are not followed, proxies in the environment are not used, answers are bounded, and none of a client's
    headers is sent on. The operator's key comes from the environment variable ``STEELYARD_API_KEY`` and is in no error.

    Args:
        base_url: For instance ``http://127.0.0.1:8000/v1``; ``/v1`` is added when the URL names no version.
        model: The model to ask for, whatever a client asks for; None leaves the choice to the client.
        limits: Size and time of an answer.
        timeout: Seconds for one call.
        max_concurrency: Calls at once; more of them wait.

    Raises:
        InputError: The URL is no plain http(s) URL, or the key does not fit into a header.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        limits: Limits | None = None,
        timeout: float = 120.0,
        max_concurrency: int = 128,
    ) -> None:
        self._url = _checked_url(base_url)
        self._model, self._bytes = model, (limits or Limits()).answer_bytes
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(10.0, timeout))
        self._max_concurrency = max_concurrency
        self._key = usable_key()
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"HttpUpstream({self._url!r}, model={self._model!r})"

    async def complete(self, payload: Payload) -> Completion:
        """Return the answer to one request."""
        asked = {name: value for name, value in payload.items() if name not in ("stream", "stream_options")}
        completion = as_completion(_parse(await self._fetch("POST", "/chat/completions", self._prepared(asked))))
        if completion is None:
            raise _upstream_error("sent no chat completion")
        return completion

    async def models(self) -> list[dict[str, Any]]:
        """Return the models of the server, or the operator's choice alone."""
        if self._model is not None:
            return [{"id": self._model, "object": "model", "created": 0, "owned_by": "upstream"}]
        found = _parse(await self._fetch("GET", "/models", None))
        entries = found.get("data") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise _upstream_error("sent no list of models")
        names = [
            entry["id"] for entry in entries[:1000] if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        ]
        return [{"id": name[:300], "object": "model", "created": 0, "owned_by": "upstream"} for name in names]

    async def stream(self, payload: Payload) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the server's chunks as they come."""
        prepared = self._prepared({**payload, "stream": True})
        try:
            async with self._request("POST", "/chat/completions", prepared) as response:
                await self._check(response, STREAM_TYPE)
                size = 0
                async for line in response.content:
                    size += len(line)
                    if size > self._bytes:
                        raise _upstream_error("sent too long an answer")
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    chunk = _parse(data)
                    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
                        raise _upstream_error("sent no chunk of a chat completion")
                    yield chunk
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translated(error) from None
        raise _upstream_error("ended its answer in the middle")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _prepared(self, payload: Payload) -> bytes:
        return to_json(payload if self._model is None else {**payload, "model": self._model})

    def _request(self, method: str, path: str, body: bytes | None) -> Any:
        if self._session is None:
            headers = {"Accept-Encoding": "identity", "User-Agent": "steelyard", "Content-Type": JSON_TYPE}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_concurrency),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                headers=headers,
                auto_decompress=False,
                trust_env=False,
            )
        return self._session.request(method, self._url + path, data=body, allow_redirects=False)

    async def _fetch(self, method: str, path: str, body: bytes | None) -> bytes:
        """Return the body of a good answer; a connection that the server had closed meanwhile is tried once more."""
        for last in (False, True):
            try:
                async with self._request(method, path, body) as response:
                    await self._check(response, JSON_TYPE)
                    return await self._read(response)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if last or not isinstance(error, aiohttp.ServerDisconnectedError):
                    raise _translated(error) from None
        raise AssertionError

    async def _read(self, response: Any) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._bytes:
                raise _upstream_error("sent too long an answer")
            parts.append(part)
        return b"".join(parts)

    async def _check(self, response: Any, kind: str) -> None:
        status = response.status
        if status == 200:
            if response.content_type != kind:
                raise _upstream_error(f"answered with another content type than {kind}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise _upstream_error("compressed its answer, which it was asked not to")
            return
        if status == 429:
            raise ProxyError(429, "the upstream has too many requests; try again", "too_many_requests")
        if status in (400, 404, 413, 422):
            reason = self._reason(await self._read(response))
            raise ProxyError(400, f"the upstream refused the request (status {status}){reason}", "upstream_refused")
        if 300 <= status < 400:
            raise _upstream_error("answered with a redirect, which is not followed")
        raise _upstream_error(f"answered with status {status}")

    def _reason(self, body: bytes) -> str:
        """Return the upstream's own sentence, bounded; nothing if it has none or repeats the key."""
        try:
            said = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""
        if not isinstance(said, str) or (self._key is not None and self._key in said):
            return ""
        return f": {printable(said[:300])}"


def _checked_url(base_url: str) -> str:
    base, query = split_url(base_url)
    if query or "#" in base_url:
        raise InputError(f"base_url must have no query or fragment; a key goes into the variable {KEY_VARIABLE}")
    return base


def _translated(error: Exception) -> ProxyError:
    if isinstance(error, TimeoutError):
        return ProxyError(504, "the upstream did not answer in time", "upstream_timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        return _upstream_error("cannot be reached")
    return _upstream_error("broke off or sent something that is not HTTP")


class LocalUpstream(Upstream):
    """A language model in this process, which answers one call at a time in a thread of its own.

    The copies of one request reach the model as one batch.

    Args:
        lm: The model.
        name: What clients know it as.
        max_new_tokens: Tokens of an answer when the client names no number, and at most four times as many when it
            does.
    """

    def __init__(self, lm: CausalLM, name: str = "local", max_new_tokens: int = 256) -> None:
        self._lm, self._name, self._tokens = lm, name, max_new_tokens
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="steelyard-model")

    async def complete(self, payload: Payload) -> Completion:
        """Return the answer to one request."""
        return (await self.complete_all([payload]))[0]

    async def complete_all(self, payloads: Sequence[Payload]) -> list[Completion]:
        """Return the answers to requests that differ in their messages and seeds only."""
        for payload in payloads:
            if (payload.get("n") or 1) > 1 or payload.get("tools") or payload.get("logprobs"):
                raise ProxyError(
                    400, "the local model gives one answer, without tools or log-probabilities", "unsupported"
                )
        loop = asyncio.get_running_loop()
        try:
            written = await loop.run_in_executor(self._thread, self._generate, list(payloads))
        except InputError as error:
            said = printable(str(error)[:300])
            raise ProxyError(400, f"the local model refused the request: {said}", "upstream_refused") from None
        except ProxyError:
            raise
        except Exception as error:
            logger.error("the local model failed with %s", type(error).__name__)  # its text may hold a prompt
            raise ProxyError(502, "the local model failed", "upstream_error") from None
        return [Completion(completion_body(self._name, text, reason)) for text, reason in written]

    async def models(self) -> list[dict[str, Any]]:
        """Return the one model."""
        return [{"id": self._name, "object": "model", "created": 0, "owned_by": "steelyard"}]

    async def close(self) -> None:
        """Forget the calls that wait; the one that runs ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _generate(self, payloads: list[Payload]) -> list[tuple[str, str]]:
        """Return a text and its ``finish_reason`` for each request; not every model says that a text was cut short."""
        first = payloads[0]
        asked = first.get("max_completion_tokens") or first.get("max_tokens") or self._tokens
        stop = first.get("stop")
        given = [payload.get("seed") for payload in payloads]
        chats: list[Prompt] = [[_turn(message) for message in payload["messages"]] for payload in payloads]
        options: dict[str, Any] = {
            "max_new_tokens": min(asked, 4 * self._tokens),
            "temperature": 1.0 if first.get("temperature") is None else first["temperature"],
            "top_p": 1.0 if first.get("top_p") is None else max(first["top_p"], 1e-6),
            "stop": [stop] if isinstance(stop, str) else stop,
            "seed": [secrets.randbits(31) if seed is None else seed % 2**63 for seed in given],
        }
        if isinstance(self._lm, TransformersLM):
            return [(one.text, "length" if one.cut else "stop") for one in self._lm.generations(chats, **options)]
        return [(text, "stop") for text in self._lm.generate(chats, **options)]


def _turn(message: Mapping[str, Any]) -> dict[str, str]:
    role, content = message["role"], message.get("content")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "\n".join(str(part.get("text", "")) for part in content)
    if role not in ("system", "developer", "user", "assistant") or not isinstance(content, str | None):
        raise ProxyError(400, "the local model reads text of system, user and assistant turns only", "unsupported")
    return {"role": "system" if role == "developer" else role, "content": content or ""}
