"""What a language model and a sentence encoder are to the rest of steelyard: one small interface each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from steelyard.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Message = Mapping[str, str]
"""One turn of a chat: ``{"role": ..., "content": ...}``."""

Prompt = str | Sequence[Message]
"""Plain text, or the turns of a chat."""

Seed = int | Sequence[int] | None
"""One seed for a call, or one for each text that it returns."""

_ROLES = ("system", "developer", "user", "assistant")


@runtime_checkable
class CausalLM(Protocol):
    """A language model. A back end that lacks a capability raises UnsupportedError, which names both."""

    is_chat: bool

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
        """Return ``len(prompts) * n`` texts, the ``n`` of a prompt side by side.

        With temperature above 0 a text depends on its prompt and its seed, never on the other rows of the call.
        """
        ...

    def logprobs(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return the log-probability of every token of each response, shape (tokens,)."""
        ...

    def hidden_states(
        self, prompts: Sequence[Prompt], responses: Sequence[str], layers: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Return the states of ``layers`` at the tokens of each response, shape (layers, tokens, width)."""
        ...


class Embedder(Protocol):
    """A sentence encoder."""

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return one vector of unit length per text, float32 of shape (texts, width)."""
        ...


class CallableLM:
    """A plain function from prompts to texts in the place of a language model; it chooses how it samples.

    Args:
        function: Called with the list of prompts, returns as many texts.
    """

    is_chat = True

    def __init__(self, function: Callable[[list[Prompt]], Sequence[str]]) -> None:
        self._function = function

    def generate(self, prompts: Sequence[Prompt], *, n: int = 1, **_: Any) -> list[str]:
        """Return what the function returns for every prompt, each asked ``n`` times; sampling options do not reach it.

        Raises:
            InputError: The function returned something else than one text per prompt.
        """
        asked = [prompt for prompt in prompts for _ in range(n)]
        texts = list(self._function(asked)) if asked else []
        if len(texts) != len(asked) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"generate must return one string per prompt: {len(asked)} were asked for")
        return texts

    def logprobs(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("a plain function gives no log-probabilities; use steelyard.models.TransformersLM")

    def hidden_states(
        self, prompts: Sequence[Prompt], responses: Sequence[str], layers: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("a plain function gives no hidden states; use steelyard.models.TransformersLM")


def as_lm(model: Any) -> CausalLM:
    """Return ``model`` itself when it is a language model, a function wrapped as one.

    Raises:
        InputError: It is neither.
    """
    if isinstance(model, CausalLM):
        return model
    if callable(model):
        return CallableLM(model)
    raise InputError(
        f"generate must be a function from a list of prompts to a list of texts or a language model of "
        f"steelyard.models, got {type(model).__name__}"
    )


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Raise InputError, which names the prompt, unless each is non-empty text or a list of role/content turns."""
    if isinstance(prompts, str):
        raise InputError("prompts must be a list of prompts, got one string; write [prompt]")
    for index, prompt in enumerate(prompts):
        where = f"prompts[{index}]"
        if isinstance(prompt, str):
            if not prompt.strip():
                raise InputError(f"{where} is empty")
            continue
        if not isinstance(prompt, Sequence) or not prompt:
            raise InputError(f"{where} must be text or a list of messages with role and content")
        for turn, message in enumerate(prompt):
            _check_message(message, f"{where}[{turn}]")


def check_sampling(
    max_new_tokens: int, temperature: float, top_p: float, stop: Sequence[str] | None, n: int
) -> list[str]:
    """Return the stop strings, one alone as a list, once every argument of ``generate`` is in range.

    Raises:
        InputError: One is not.
    """
    if max_new_tokens < 1 or n < 1:
        raise InputError(f"max_new_tokens and n must be at least 1, got {max_new_tokens} and {n}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"temperature must be a finite number of at least 0, got {temperature}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must lie in (0, 1], got {top_p}")
    stops = [stop] if isinstance(stop, str) else list(stop or ())
    if not all(isinstance(one, str) and one for one in stops):
        raise InputError("stop must be a list of non-empty strings")
    return stops


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, Mapping):
        raise InputError(f"{where} must be a message with role and content, got {type(message).__name__}")
    if message.get("role") not in _ROLES:
        raise InputError(f"{where}: role must be one of {', '.join(_ROLES)}")
    if not isinstance(message.get("content"), str):
        raise InputError(f"{where}: content must be text")
