"""Any defence of this room as the ``Defence`` of an OpenAI-compatible proxy (:mod:`steelyard.serve`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from steelyard.errors import InputError, UnsupportedError
from steelyard.guard.dr_smoothing.ending import ended_by
from steelyard.guard.dr_smoothing.result import SmoothedResponse
from steelyard.models.protocols import Message, Prompt, Seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Answer(NamedTuple):
    """What a defence answers a conversation with; ``extra`` stands beside the completion."""

    text: str
    extra: dict[str, Any]


class Complete(Protocol):
    """Asks the proxy's upstream; blocks until all texts are there.

    An attribute ``closed``, where there is one, tells whether the request has ended meanwhile.
    """

    def __call__(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        *,
        seeds: Sequence[int] | None = None,
        max_tokens: int | None = None,
    ) -> list[str]:
        """Return one text per conversation, with the sampling options that the client asked for."""
        ...


class Smoothing(Protocol):
    """What every defence of this room is: :class:`DRSmoothing` and the baselines."""

    def __call__(self, prompt: Prompt, *, generate: Any = None, seed: int | None = None) -> SmoothedResponse:
        """Return the defended answer to one prompt."""
        ...


class CompletionLM:
    """The proxy's upstream as a language model; the client's request says how it samples.

    Args:
        complete: Asks the upstream.
    """

    is_chat = True
    samples_itself = True

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        n: int = 1,
        seed: Seed = None,
        **sampling: Any,
    ) -> list[str]:
        """Return the upstream's texts; of the sampling options only the length reaches it.

        Raises:
            InputError: ``n`` is not 1, or the upstream gave another number of texts.
        """
        if n != 1:
            raise InputError("n must be 1: a proxy asks for one answer per conversation")
        conversations = [as_messages(prompt) for prompt in prompts]
        seeds = [seed + row for row in range(len(prompts))] if isinstance(seed, int) else seed
        texts = self._complete(conversations, seeds=seeds, max_tokens=max_new_tokens)
        if len(texts) != len(prompts):
            raise InputError(f"complete returned {len(texts)} texts for {len(prompts)} conversations")
        return texts

    def logprobs(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("a proxy gives no log-probabilities; use steelyard.models.TransformersLM")

    def hidden_states(
        self, prompts: Sequence[Prompt], responses: Sequence[str], layers: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Raise UnsupportedError."""
        raise UnsupportedError("a proxy gives no hidden states; use steelyard.models.TransformersLM")


class SmoothingDefence:
    """A defence in front of an upstream: the conversation is answered by a vote, told in ``x_smoothing``.

    Args:
        guard: :class:`DRSmoothing` or a baseline. Give it ``seed=None`` against attackers who know its seed. A guard
            without a rectifier model of its own needs none: spelling is repaired in this process.
        confidence: Of the certified bound in ``x_smoothing``.
    """

    def __init__(self, guard: Smoothing, confidence: float = 0.99) -> None:
        self.guard = guard
        self.confidence = confidence

    @property
    def copies(self) -> int:
        """How many copies of a conversation are worked on: the proxy's limit on characters counts each."""
        return int(getattr(self.guard, "n", 1))

    def answer(self, messages: Sequence[Message], complete: Complete) -> Answer:
        """Return the majority's answer; called in a worker thread.

        Args:
            messages: The conversation; system turns and all but the user's text reach the upstream as they are.
            complete: Asks the upstream.

        Raises:
            InputError: The conversation holds no user text.
            RequestEndedError: ``complete.closed`` has become true, so that nobody waits for the answer.
        """
        with ended_by(lambda: bool(getattr(complete, "closed", False))):
            result = self.guard(list(messages), generate=CompletionLM(complete))
        return Answer(result.response, {"x_smoothing": result.to_dict(self.confidence)})


def as_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as a conversation."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
