"""Anything that answers a chat as an agent of a debate: functions, coroutines, language models, endpoints.

Blocking agents run in daemon threads: one that never returns holds up neither the debate, which gives it up after its
time, nor the end of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from steelyard.errors import InputError
from steelyard.models.protocols import CausalLM

Chat = Sequence[Mapping[str, str]]
_Result = TypeVar("_Result")
_CHARS_PER_TOKEN = 4  # where a model does not say: an estimate for English


class Tokens(NamedTuple):
    """Tokens read and written; ``exact`` is False where they were estimated as a quarter of the characters."""

    prompt: int
    completion: int
    exact: bool

    @property
    def total(self) -> int:
        """Both together."""
        return self.prompt + self.completion


class Sampling(NamedTuple):
    """How an agent is to write: ``temperature``, its own ``seed``, and ``max_new_tokens``."""

    temperature: float
    seed: int
    max_new_tokens: int


class ChatAgent(Protocol):
    """An agent of a debate."""

    async def ask(self, chat: Chat, sampling: Sampling) -> object:
        """Return what the agent writes; whoever calls checks that it is text."""
        ...

    def count(self, chat: Chat, text: str) -> Tokens:
        """Return the tokens of a call."""
        ...


def as_agent(agent: Any) -> ChatAgent:
    """Return ``agent`` as an agent of a debate.

    Args:
        agent: A function ``(messages, **options) -> str``, plain or async, which gets those of ``temperature``,
            ``seed`` and ``max_new_tokens`` that it takes; a language model of :mod:`steelyard.models`, in this process
            or behind an endpoint; or an agent already.

    Raises:
        InputError: It is none of these.
    """
    if callable(getattr(agent, "ask", None)) and callable(getattr(agent, "count", None)):
        made: ChatAgent = agent
        return made
    if isinstance(agent, CausalLM):
        return ModelAgent(agent)
    if callable(agent):
        return FunctionAgent(agent)
    raise InputError(
        f"agents: {type(agent).__name__} is neither a function of messages nor a language model of steelyard.models."
    )


def estimated(chat: Chat, text: str) -> Tokens:
    """Return the tokens of a call, estimated as one per four characters, rounded up."""
    read = sum(len(turn["content"]) for turn in chat)
    return Tokens(-(-read // _CHARS_PER_TOKEN), -(-len(text) // _CHARS_PER_TOKEN), False)


class FunctionAgent:
    """A function of messages."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        called = getattr(function, "__call__", None)  # noqa: B004 - of an object, to see whether it is async
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        self._takes = _options(function)

    async def ask(self, chat: Chat, sampling: Sampling) -> object:
        """Call the function, in a thread unless it is async; an awaitable that it returns is awaited."""
        options = {name: value for name, value in sampling._asdict().items() if name in self._takes}
        turns = [dict(turn) for turn in chat]
        if self._is_async:
            return await self._function(turns, **options)
        said = await in_thread(lambda: self._function(turns, **options))
        return await said if inspect.isawaitable(said) else said

    def count(self, chat: Chat, text: str) -> Tokens:
        """Return an estimate."""
        return estimated(chat, text)


class ModelAgent:
    """A language model of :mod:`steelyard.models`; one without a chat template gets the turns as plain text."""

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm

    async def ask(self, chat: Chat, sampling: Sampling) -> object:
        """Return one text of the model; an endpoint is awaited, another model runs in a thread."""
        prompt: Any = [dict(turn) for turn in chat]
        if not self._lm.is_chat:
            prompt = "\n\n".join(turn["content"] for turn in chat) + "\n\n"
        generate = getattr(self._lm, "agenerate", None)
        if generate is not None:
            texts = await generate([prompt], **sampling._asdict())
        else:
            texts = await in_thread(lambda: self._lm.generate([prompt], **sampling._asdict()))
        return texts[0]

    def count(self, chat: Chat, text: str) -> Tokens:
        """Return the model's own count where it has a tokenizer here, else an estimate."""
        prompt_ids, response_ids = (getattr(self._lm, name, None) for name in ("prompt_ids", "response_ids"))
        if prompt_ids is None or response_ids is None or not self._lm.is_chat:
            return estimated(chat, text)
        return Tokens(len(prompt_ids(chat)), len(response_ids(text)), True)


def _options(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of :class:`Sampling` that a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some built-in callables
        return frozenset()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(Sampling._fields)
    named = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    return frozenset(named & set(Sampling._fields))


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Await ``work()`` in a daemon thread of its own.

    Raises:
        Exception: What ``work`` raised; what is no `Exception`, such as SystemExit, comes as a RuntimeError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[_Result | None, BaseException | None]] = loop.create_future()

    def tell(result: _Result | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def run() -> None:
        result, raised = None, None
        try:
            result = work()
        except BaseException as error:  # a thread has no one above it to tell
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=run, name="steelyard-agent", daemon=True).start()
    result, error = await done
    if error is None:
        return result  # type: ignore[return-value]  # None only if ``work`` returns it
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    raise RuntimeError(f"the agent raised {type(error).__name__}") from error
