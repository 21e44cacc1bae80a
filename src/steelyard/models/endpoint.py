"""A language model behind a URL: any server that speaks the OpenAI chat protocol, asked in parallel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from steelyard.errors import InputError, UnsupportedError
from steelyard.models.http_client import Endpoint, check_model_name
from steelyard.models.protocols import Prompt, Seed, check_prompts, check_sampling
from steelyard.rng import derive_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEED_BITS = 0x7FFF_FFFF  # some servers keep 32 bits of a seed


class OpenAICompatibleLM:
    """A model served by vLLM, Ollama, llama-server, a hosted API, or anything else that speaks the OpenAI protocol.

    Give it one long life: it keeps connections and a thread, which :meth:`close` or a ``with`` block ends.

    Args:
        base_url: The server, with or without ``/v1``, e.g. ``http://127.0.0.1:8000``.
        model: Name of the model there.
        api_key: Key to send; without one the environment variable STEELYARD_API_KEY counts. It is in no message.
        timeout: Seconds for one attempt at a request.
        max_concurrency: Most requests at a time.
        retries: How often a request is tried again on 429, 5xx or a broken connection, with growing pauses and the
            server's ``Retry-After`` kept to; one that asks for more than a minute is not waited for.
        is_chat: False asks ``/v1/completions``, which continues plain text, in the place of ``/v1/chat/completions``.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_concurrency: int = 8,
        retries: int = 2,
        is_chat: bool = True,
    ) -> None:
        self.model = check_model_name(model)
        self.is_chat = is_chat
        self._endpoint = Endpoint(base_url, api_key, timeout, max_concurrency, retries)

    def __repr__(self) -> str:
        return f"OpenAICompatibleLM({self._endpoint.shown!r}, model={self.model!r})"

    def __enter__(self) -> OpenAICompatibleLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections and the thread; the model cannot be used afterwards."""
        self._endpoint.close()

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] | None = None,
        n: int = 1,
        seed: Seed = None,
    ) -> list[str]:
        """Return ``len(prompts) * n`` texts, the ``n`` of a prompt side by side; works inside a running loop too.

        At temperature 0 equal prompts are asked once. With a seed each text is asked for by itself, with a seed of its
        own: whether the same seed gives the same text is up to the server.

        Raises:
            InputError: An argument is out of range, a prompt is empty, or turns of a chat for a base model.
            EndpointError: The server failed; the message names status and URL.
        """
        options = self._options(max_new_tokens, temperature, top_p, stop, n)
        return self._endpoint.wait(self._all(self._plan(prompts, options, n, seed)))

    async def agenerate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] | None = None,
        n: int = 1,
        seed: Seed = None,
    ) -> list[str]:
        """Do what :meth:`generate` does without blocking the loop of the caller."""
        options = self._options(max_new_tokens, temperature, top_p, stop, n)
        return await self._endpoint.wait_async(self._all(self._plan(prompts, options, n, seed)))

    def logprobs(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("an endpoint gives no log-probabilities of a text; use steelyard.models.TransformersLM")

    def hidden_states(
        self, prompts: Sequence[Prompt], responses: Sequence[str], layers: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("an endpoint gives no hidden states; use steelyard.models.TransformersLM")

    def _options(
        self, max_new_tokens: int, temperature: float, top_p: float, stop: Sequence[str] | None, n: int
    ) -> dict[str, Any]:
        stops = check_sampling(max_new_tokens, temperature, top_p, stop, n)
        options: dict[str, Any] = {"model": self.model, "max_tokens": max_new_tokens, "temperature": temperature}
        if top_p < 1:
            options["top_p"] = top_p
        if stops:
            options["stop"] = stops
        return options

    def _plan(self, prompts: Sequence[Prompt], options: Mapping[str, Any], n: int, seed: Seed) -> list[_Request]:
        check_prompts(prompts)
        bodies = [{**options, **self._body(prompt, index)} for index, prompt in enumerate(prompts)]
        if options["temperature"] == 0:
            same: dict[str, _Request] = {}
            for index, body in enumerate(bodies):
                request = same.setdefault(json.dumps(body), _Request(body, 1, []))
                request.rows.extend(range(index * n, (index + 1) * n))
            return list(same.values())
        if seed is None:
            return [_Request(body, n, [*range(index * n, (index + 1) * n)]) for index, body in enumerate(bodies)]
        seeds = _row_seeds(seed, len(prompts) * n)
        return [_Request({**bodies[row // n], "seed": value}, 1, [row]) for row, value in enumerate(seeds)]

    def _body(self, prompt: Prompt, index: int) -> dict[str, Any]:
        if not self.is_chat:
            if not isinstance(prompt, str):
                raise InputError(f"prompts[{index}] is a chat, but {self.model} continues plain text; hand over text")
            return {"prompt": prompt}
        if isinstance(prompt, str):
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"messages": [{"role": turn["role"], "content": turn["content"]} for turn in prompt]}

    async def _all(self, requests: Sequence[_Request]) -> list[str]:
        answers = await self._endpoint.gather([self._texts(request) for request in requests])
        texts: dict[int, str] = {}
        for request, answer in zip(requests, answers, strict=True):
            repeated = answer * (len(request.rows) // len(answer))  # of one text asked for once, or n as they are
            texts.update(zip(request.rows, repeated, strict=True))
        return [texts[row] for row in range(len(texts))]

    async def _texts(self, request: _Request) -> list[str]:
        texts = await self._ask(request.body, request.texts)
        missing = request.texts - len(texts)  # a server that does not know n gives one
        rest = await self._endpoint.gather([self._ask(request.body, 1) for _ in range(missing)])
        return texts + [text for one in rest for text in one]

    async def _ask(self, body: Mapping[str, Any], count: int) -> list[str]:
        path = "chat/completions" if self.is_chat else "completions"
        answer = await self._endpoint.post(path, {**body, "n": count} if count > 1 else body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not 1 <= len(choices) <= count:
            got = f"{len(choices)} choices" if isinstance(choices, list) else "no 'choices'"
            raise self._endpoint.unusable(path, f"with {got} where {count} were asked for")
        texts = [self._text(choice) for choice in choices]
        if None in texts:
            raise self._endpoint.unusable(path, "a choice holds no text")
        return [str(text).encode("utf-8", "replace").decode("utf-8") for text in texts]  # half surrogate pairs go

    def _text(self, choice: object) -> str | None:
        """Return the text of a choice; a message may have none, as when a model refuses in a field of its own."""
        if not isinstance(choice, dict):
            return None
        message = choice.get("message") if self.is_chat else {"content": choice.get("text")}
        if not isinstance(message, dict):
            return None
        content = message.get("content")
        if content is None and self.is_chat:
            content = message.get("refusal") or ""
        return content if isinstance(content, str) else None


class _Request(NamedTuple):
    """What is sent, how many texts it asks for, and the rows of the result that they fill."""

    body: dict[str, Any]
    texts: int
    rows: list[int]


def _row_seeds(seed: int | Sequence[int], rows: int) -> list[int]:
    """Return one seed per row: those given, or the stream of the one given."""
    if isinstance(seed, Sequence):
        if len(seed) != rows:
            raise InputError(f"seed must be one number or one for each of {rows} texts, got {len(seed)}")
        return [int(value) & _SEED_BITS for value in seed]
    return [derive_seed("endpoint", str(int(seed)), row) & _SEED_BITS for row in range(rows)]
