"""The upstream calls of one guarded request: made from a worker thread, counted, and ended with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from steelyard.errors import InputError
from steelyard.serve.chat_api import Completion, Limits, ProxyError


class Calls:
    """The calls of one request, from the event loop or from a worker thread.

    Args:
        ask: Asks the upstream.
        payload: The client's request; its sampling options are those of every call.
        limits: How many calls there may be.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Mapping[str, Any]]], Awaitable[list[Completion]]],
        payload: Mapping[str, Any],
        limits: Limits,
    ) -> None:
        dropped = ("messages", "stream", "stream_options", "n")
        self._base = {name: value for name, value in payload.items() if name not in dropped}
        self._ask, self._limits = ask, limits
        self._loop = asyncio.get_running_loop()
        self._pending: set[Future[list[str]]] = set()
        self._closed = False
        self._made = 0
        self.completions: list[Completion] = []
        self.finish_reasons: dict[str, str] = {}

    @property
    def model(self) -> str:
        """The model that answered."""
        names = [completion.body.get("model") for completion in self.completions]
        name = next((name for name in names if isinstance(name, str)), self._base.get("model"))
        return name[:300] if isinstance(name, str) else "unknown"

    @property
    def closed(self) -> bool:
        """Whether the request has ended, so that work for it is in vain."""
        return self._closed

    def __call__(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        *,
        seeds: Sequence[int] | None = None,
        max_tokens: int | None = None,
    ) -> list[str]:
        """Return one text per conversation; for worker threads, in the order of the conversations.

        Raises:
            InputError: There are not as many seeds as conversations.
            ProxyError: The upstream failed, the request has ended, or it made too many calls.
        """
        if self.closed:
            raise _ended()
        future = asyncio.run_coroutine_threadsafe(self.ask(conversations, seeds, max_tokens), self._loop)
        self._pending.add(future)
        if self._closed:
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise _ended() from None
        finally:
            self._pending.discard(future)

    async def ask(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        seeds: Sequence[int] | None,
        max_tokens: int | None,
    ) -> list[str]:
        """Return one text per conversation; on the event loop."""
        if seeds is not None and len(seeds) != len(conversations):
            raise InputError(f"seeds must be one per conversation: {len(seeds)} for {len(conversations)}")
        self._made += len(conversations)
        if self._made > self._limits.copies:
            raise ProxyError(
                500, f"the defence asked the upstream more than {self._limits.copies} times", "defence_failed"
            )
        if not conversations:
            return []
        payloads = [self._asked(turns, max_tokens) for turns in conversations]
        for payload, seed in zip(payloads, seeds or (), strict=False):
            payload["seed"] = int(seed)
        completions = await self._ask(payloads)
        self.completions += completions
        self.finish_reasons.update({completion.text: completion.finish_reason for completion in completions})
        return [completion.text for completion in completions]

    def _asked(self, turns: Sequence[Mapping[str, str]], max_tokens: int | None) -> dict[str, Any]:
        payload = {**self._base, "messages": [dict(turn) for turn in turns]}
        if max_tokens is not None:
            name = "max_completion_tokens" if payload.get("max_completion_tokens") else "max_tokens"
            payload[name] = min(max_tokens, payload.get(name) or math.inf)
        return payload

    def close(self) -> None:
        """End what still runs: the answer has left, failed, or is no longer wanted."""
        self._closed = True
        for future in list(self._pending):
            future.cancel()


def _ended() -> ProxyError:
    return ProxyError(504, "the request has ended", "timeout")
