"""The chat API as the guard proxy speaks it: requests, answers, stream events and errors in the shape of OpenAI's."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard.errors import InputError, SteelyardError

JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"


class ProxyError(SteelyardError):
    """A request that gets an error for an answer.

    Args:
        status: HTTP status.
        message: One sentence for the client; it names no key and no address.
        code: A short name that programs can compare.
        param: The field of the request that is at fault.
    """

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients expect it."""
        kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refused(message: str, param: str | None = None, code: str = "invalid_request", status: int = 400) -> ProxyError:
    """Return the error for a request that is the client's to mend."""
    return ProxyError(status, message, code, param)


@dataclass(frozen=True)
class Limits:
    """What one proxy accepts at most.

    Args:
        body_bytes: Size of a request's body.
        messages: Turns of a request.
        characters: Characters of all texts of a request together.
        guarded_characters: Characters of a user's turns while a guard is on, counted once for every copy that a defence
            makes of them: repairing the spelling takes up to 60 microseconds a character.
        copies: Upstream calls for one request: the copies of a defence and what it asks besides; also ``n``.
        concurrency: Requests at once; one more is answered 429.
        connections: Open connections; one more is answered 503.
        answer_bytes: Size of one upstream answer.
        request_seconds: Time from a request's last byte to the end of its answer.
        header_seconds: Time for a request's head to arrive.
        body_seconds: Time for a request's body to arrive.
        write_seconds: Time that a client may leave an answer unread.
        keep_alive_seconds: Time between the comment lines of a stream whose verdict is pending.

    Raises:
        InputError: A limit is not a positive, finite number, or a count not a whole one.
    """

    body_bytes: int = 2 * 2**20
    messages: int = 1000
    characters: int = 1_000_000
    guarded_characters: int = 300_000
    copies: int = 256
    concurrency: int = 128
    connections: int = 512
    answer_bytes: int = 8 * 2**20
    request_seconds: float = 300.0
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    keep_alive_seconds: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"limits.{field.name} must be a positive number, got {value!r}")
            if field.type == "int" and not isinstance(value, int):
                raise InputError(f"limits.{field.name} must be a whole number, got {value!r}")


_Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=10_000_000, strict=True)]
_Text = Annotated[str, Field(max_length=1000)]


class ChatMessage(BaseModel):
    """One turn; ``content`` is text or a list of parts."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(BaseModel):
    """The fields of a chat request whose values are checked here; others are forwarded as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    messages: list[ChatMessage] = Field(min_length=1)
    model: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: _Chance | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: _Text | Annotated[list[_Text], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)] | None = None
    n: Annotated[int, Field(ge=1, strict=True)] | None = None
    stream: Annotated[bool, Field(strict=True)] | None = None
    stream_options: dict[str, bool | None] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    user: _Text | None = None
    logprobs: Annotated[bool, Field(strict=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20, strict=True)] | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


# Known to OpenAI's API with structures of their own, in which any name may stand.
KNOWN = frozenset(ChatRequest.model_fields) | {
    "audio", "function_call", "functions", "logit_bias", "modalities", "parallel_tool_calls", "prediction",
    "prompt_cache_key", "reasoning_effort", "safety_identifier", "service_tier", "store", "tool_choice", "verbosity",
    "web_search_options",
}  # fmt: skip


def read_request(payload: Mapping[str, Any], limits: Limits) -> ChatRequest:
    """Return the checked request.

    Raises:
        ProxyError: 400, with the name of the field at fault.
    """
    turns = payload.get("messages")
    if isinstance(turns, list) and len(turns) > limits.messages:
        raise refused(f"messages has {len(turns)} turns; at most {limits.messages} are accepted", "messages")
    try:
        request = ChatRequest.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][:3])[:100]
        raise refused(f"{where}: {first['msg'][:200]}", where) from None
    if request.n is not None and request.n > limits.copies:
        raise refused(f"n must be at most {limits.copies}", "n")
    length = sum(_length(message.content) for message in request.messages)
    if length > limits.characters:
        raise refused(
            f"messages hold {length} characters; at most {limits.characters} are accepted", "messages", status=413
        )
    return request


def _length(content: str | list[dict[str, Any]] | None) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(value) for part in content or () for value in part.values() if isinstance(value, str))


# Where a guard cannot follow; a bias against the words of a refusal forbids it.
_UNGUARDED = frozenset({
    "tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs", "audio", "prediction",
    "web_search_options", "parallel_tool_calls", "logit_bias",
})  # fmt: skip


def _number(low: float, high: float, whole: bool = False) -> Callable[[Any], bool]:
    kinds = int if whole else int | float
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def _effort(value: Any) -> bool:
    return value in ("none", "minimal", "low", "medium", "high", "xhigh")


def _short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1000


def _yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


# What else may go to the upstream with a guard on, and its values. Whatever could change what the model reads, forbid
# it words, or keep it from ending its answer is not here: a name that nobody knows today may do so tomorrow.
GUARDED: Mapping[str, Callable[[Any], bool]] = {
    "messages": lambda value: True,  # these first ones have been checked already
    **dict.fromkeys(
        ("model", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "stream",
         "stream_options", "presence_penalty", "frequency_penalty", "user", "metadata", "response_format"),
        lambda value: True,
    ),
    "modalities": lambda value: value in ([], ["text"]),
    "reasoning_effort": _effort,
    "verbosity": _effort,
    "safety_identifier": _short_text,
    "service_tier": _short_text,
    "prompt_cache_key": _short_text,
    "store": _yes_or_no,
    "cache_prompt": _yes_or_no,
    "chat_template_kwargs": lambda value: (
        isinstance(value, dict) and set(value) <= {"enable_thinking"} and all(map(_yes_or_no, value.values()))
    ),
    "top_k": _number(-1, 1_000_000, whole=True),
    "min_p": _number(0, 1),
    "typical_p": _number(0, 1),
    "top_n_sigma": _number(-1, 100),
    "repetition_penalty": _number(1, 1.5),
    "repeat_penalty": _number(1, 1.5),
    "repeat_last_n": _number(-1, 100_000, whole=True),
    "mirostat": _number(0, 2, whole=True),
    "mirostat_tau": _number(0, 20),
    "mirostat_eta": _number(0, 1),
}  # fmt: skip


def guarded_messages(request: ChatRequest, payload: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the turns as role and text, once nothing in the request could go round a defence or a detector.

    Raises:
        ProxyError: 400, with the reason: the request asks for several answers, tools, log-probabilities or images,
            holds a field that is not known to be harmless, or does not end in a user's turn.
    """
    if (request.n or 1) > 1:
        raise refused("n must be 1 while a guard is on: one answer is voted on", "n", "unsupported_with_guard")
    for name, value in payload.items():
        _check_field(name, value)
    kind = (request.response_format or {}).get("type", "text")
    if kind not in ("text", "json_object") or len(request.response_format or ()) > 1:
        raise refused(
            "response_format must be text or json_object while a guard is on: a schema's text would go round it",
            "response_format",
            "unsupported_with_guard",
        )
    turns = [_plain_turn(message, f"messages.{index}") for index, message in enumerate(request.messages)]
    if any(turn["role"] == "user" and not turn["content"].strip() for turn in turns) or turns[-1]["role"] != "user":
        raise refused(
            "messages must end in a user's turn while a guard is on, and every user's turn must have text", "messages"
        )  # some servers go on in a last turn of the assistant's
    return turns


def check_work(turns: Sequence[Mapping[str, str]], copies: int, limits: Limits) -> None:
    """Refuse a conversation that is too much work for a guard.

    Raises:
        ProxyError: 413.
    """
    length = sum(len(turn["content"]) for turn in turns if turn["role"] == "user")
    if length * copies > limits.guarded_characters:
        raise refused(
            f"the user's turns hold {length} characters; with {copies} copies of them at most "
            f"{limits.guarded_characters // copies} are accepted while a guard is on",
            "messages",
            "too_large",
            413,
        )


def _check_field(name: str, value: Any) -> None:
    if name in _UNGUARDED:
        if value:
            raise refused(f"{name} is not supported while a guard is on", name, "unsupported_with_guard")
    elif name not in GUARDED:
        raise refused(
            f"{name[:100]} is not among the fields that are sent on while a guard is on: it could go round it",
            name[:100],
            "unsupported_with_guard",
        )
    elif value is not None and not GUARDED[name](value):
        raise refused(f"{name} has a value that is not sent on while a guard is on", name, "unsupported_with_guard")


def _plain_turn(message: ChatMessage, where: str) -> dict[str, str]:
    if message.role in ("tool", "function"):
        raise refused(f"{where}: tool results are not supported while a guard is on", where, "unsupported_with_guard")
    for name, value in (message.model_extra or {}).items():
        if value and name != "name":
            raise refused(f"{where}.{name[:100]} would go round the guard", where, "unsupported_with_guard")
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    texts = []
    for part in message.content or ():
        if part.get("type") != "text" or not isinstance(part.get("text"), str) or set(part) > {"type", "text"}:
            raise refused(
                f"{where}: only text parts are supported while a guard is on", where, "unsupported_with_guard"
            )
        texts.append(part["text"])
    return {"role": message.role, "content": "\n".join(texts)}


class Completion(NamedTuple):
    """One upstream answer, checked for its shape; ``body`` is what the upstream sent."""

    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The first choice's text; nothing counts as the empty text."""
        content = self.body["choices"][0]["message"].get("content")
        return content if isinstance(content, str) else ""

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return "length" if self.body["choices"][0].get("finish_reason") == "length" else "stop"


def as_completion(body: object) -> Completion | None:
    """Return ``body`` as a completion, or None when it has not the shape of one."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(choices, list) or not choices:
        return None
    for choice in choices:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
            return None
    return Completion(body)


def completion_body(
    model: str, text: str, finish_reason: str = "stop", usage: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the body of a chat completion with one choice."""
    message = {"role": "assistant", "content": text}
    body = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
    }
    return body if usage is None else {**body, "usage": dict(usage)}


def add_usage(completions: Sequence[Completion]) -> dict[str, int] | None:
    """Return the tokens of all upstream calls together, or None when an upstream did not count them."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    total = dict.fromkeys(names, 0)
    for completion in completions:
        usage = completion.body.get("usage")
        for name in names:
            value = usage.get(name) if isinstance(usage, dict) else None
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
                return None
            total[name] += value
    return total if completions else None


def chunk_events(body: Mapping[str, Any], include_usage: bool, piece: int = 2000) -> list[dict[str, Any]]:
    """Return the stream chunks of a whole answer; the fields that begin with ``x_`` are in the last."""
    choice = body["choices"][0]
    base = {name: body[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}]}

    text = choice["message"].get("content") or ""
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": text[start : start + piece]}) for start in range(0, len(text), piece)]
    events.append(chunk({}, choice.get("finish_reason") or "stop"))
    if include_usage:
        events.append({**base, "choices": [], "usage": body.get("usage")})
    events[-1].update({name: value for name, value in body.items() if name.startswith("x_")})
    return events


def to_json(data: object) -> bytes:
    """Return ``data`` as JSON in UTF-8; half a surrogate pair becomes a question mark.

    Raises:
        ValueError: ``data`` holds NaN or an infinite number.
    """
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def event(data: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + to_json(data) + b"\n\n"
