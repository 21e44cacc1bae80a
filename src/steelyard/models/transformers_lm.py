"""A language model of transformers in this process: text, log-probabilities and inner states, in batches."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models import chat, scoring
from steelyard.models.batches import Ids, Share, group
from steelyard.models.decoder import Decoder
from steelyard.models.float32_copy import float32_copy
from steelyard.models.generation import Row, Sampling, Stopped, decode, shared_start
from steelyard.models.hugging_face import load_causal_lm, load_tokenizer
from steelyard.models.paths import usable_path
from steelyard.models.protocols import Prompt, Seed, check_prompts, check_sampling
from steelyard.models.scoring import Scored
from steelyard.rng import generator

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeIs

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Generation:
    """One text that a model wrote.

    Attributes:
        text: Without special tokens, cut before the first stop string.
        tokens: Its tokens as they were drawn; other ones than those of the text read anew, now and then.
        states: Inner states at these tokens, float32 of shape (layers, tokens, width); no layers unless asked for.
        cut: The text ends where its length ran out, not where the model or a stop string ended it.
    """

    text: str
    tokens: list[int]
    states: NDArray[np.float32]
    cut: bool = False


class TransformersLM:
    """A causal language model and its tokenizer, behind the interface :class:`steelyard.models.CausalLM`.

    Plain text is one user turn to a chat model, and is continued as it stands by another. A chat template may add a
    system turn of its own where there is none (SmolLM2's does); give one to have another. Several threads may use one
    object; they take turns.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer.
        device: Where the model is moved to, e.g. ``"cuda"``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``, to convert the model; None leaves it as it is. In half
            precision a text may depend on the batch that it is in.
        batch_size: Rows at a time.
        share_prefix: Whether rows that start alike run that start once: ``"auto"`` for four rows or more of which at
            least half of the tokens are shared.

    Attributes:
        is_chat: Whether the model has a chat template; messages to another are refused.
        num_layers: Number of blocks; states are numbered from 0 (embeddings) to this (after the final norm).
        context: Longest prompt and response together, in tokens.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: str = "cpu",
        dtype: str | None = None,
        batch_size: int = 16,
        share_prefix: Share = "auto",
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if share_prefix not in (True, False, "auto"):
            raise InputError("share_prefix must be True, False or 'auto'")
        if dtype is not None and dtype not in _DTYPES:
            raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        torch = require("torch", "models")
        try:
            self.model = model.to(device=device, dtype=getattr(torch, dtype) if dtype else None).eval()
        except (RuntimeError, AssertionError) as error:  # of torch, for a device that is not there
            raise InputError(f"the model cannot be moved to device {device!r}: {str(error).splitlines()[0]}") from error
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.share_prefix: Share = share_prefix
        self.is_chat = chat.is_chat(tokenizer)
        self._decoder = Decoder(self.model)
        self.num_layers, self.context = self._decoder.num_layers, self._decoder.context
        self._ends = _end_tokens(model, tokenizer)
        self._turn = threading.RLock()
        self.response_ids("x")  # the first use settles how it pads and cuts, which two threads may not do at once

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, gguf_file: str | None = None, cache: bool = True, **options: Any
    ) -> Self:
        """Load a model from a local folder; nothing is fetched, and no code of it is run.

        Args:
            folder: A Hugging Face folder with safetensors, or the one that holds ``gguf_file``.
            gguf_file: Name of a GGUF file in it.
            cache: Keep the GGUF's weights as float32 safetensors below ``STEELYARD_DATA``, from which a second load
                takes less than a second.
            **options: ``device``, ``dtype``, ``batch_size`` and ``share_prefix`` of the class.

        Raises:
            InputError: The model or its tokenizer cannot be read.
            MissingExtraError: transformers, or for GGUF files gguf or accelerate, is not installed.
        """
        if gguf_file is None:
            return cls(load_causal_lm(folder), load_tokenizer(folder), **options)
        if Path(gguf_file).name != gguf_file:
            raise InputError(f"gguf_file must be the name of a file in {folder}, got {gguf_file!r}")
        path = usable_path(Path(folder) / gguf_file)
        home = float32_copy(path) if cache else path
        return cls(load_causal_lm(home), load_tokenizer(home), **options)

    def __repr__(self) -> str:
        return f"TransformersLM({type(self.model).__name__}, {self.model.device}, {self.model.dtype})"

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

        Args:
            prompts: Plain texts, or chats.
            max_new_tokens: Longest text, in tokens; the model's context may end it before.
            temperature: 0 takes the likeliest token; equal prompts are then answered once.
            top_p: Draw from the smallest set of likeliest tokens that has this probability.
            stop: A text ends before the first of these strings.
            n: Texts per prompt, which runs once for all of them.
            seed: A number, from which each text gets a stream of its own, or one number per text; None draws anew.

        Raises:
            InputError: A prompt is empty, of a wrong form, or longer than the context; an argument is out of range.
        """
        done = self.generations(
            prompts, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, stop=stop, n=n, seed=seed
        )
        return [one.text for one in done]

    def generate_with_states(
        self, prompts: Sequence[Prompt], layers: Sequence[int], **options: Any
    ) -> tuple[list[str], list[NDArray[np.float32]]]:
        """Return texts and, without a pass of its own, the states of ``layers`` at their tokens as they were drawn.

        Args:
            prompts: As for :meth:`generate`.
            layers: Layers, from the end when negative.
            **options: Those of :meth:`generate`.
        """
        done = self.generations(prompts, layers=layers, **options)
        return [one.text for one in done], [one.states for one in done]

    def generations(
        self,
        prompts: Sequence[Prompt],
        *,
        layers: Sequence[int] = (),
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] | None = None,
        n: int = 1,
        seed: Seed = None,
    ) -> list[Generation]:
        """Do what :meth:`generate` does; return texts with their tokens, and the states of ``layers`` at these."""
        stops = check_sampling(max_new_tokens, temperature, top_p, stop, n)
        numbers = self._layers(layers)
        rows = [ids for ids in self._all_prompt_ids(prompts) for _ in range(n)]
        limits = [min(max_new_tokens, self.context - len(ids)) for ids in rows]
        if temperature > 0:
            streams = _streams(seed, len(rows))
            work = [Row(ids, limit, noise) for ids, limit, noise in zip(rows, limits, streams, strict=True)]
            written = work
        else:
            unique = {tuple(ids): Row(ids, limit) for ids, limit in zip(rows, limits, strict=True)}
            work, written = list(unique.values()), [unique[tuple(ids)] for ids in rows]
        stopped = self._stopped(stops) if stops else None
        self._decode(work, Sampling(temperature, top_p), stopped, numbers)
        return [self._finish(row, stops, len(numbers)) for row in written]

    def logprobs(self, prompts: Sequence[Prompt | Ids], responses: Sequence[str | Ids]) -> list[NDArray[np.float32]]:
        """Return the log-probability of every token of each response, in nats, float32 of shape (tokens,).

        Args:
            prompts: Texts or chats; or the tokens themselves, which are taken as they are.
            responses: Texts, or tokens; none empty.

        Raises:
            InputError: As :meth:`generate`; or there is not one response per prompt.
        """
        texts = self._scored(prompts, responses)
        with self.exclusive():
            return scoring.logprobs(self._decoder, texts, self.batch_size, self.share_prefix)

    def hidden_states(
        self, prompts: Sequence[Prompt | Ids], responses: Sequence[str | Ids], layers: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Return the states of ``layers`` at the tokens of each response, float32 of shape (layers, tokens, width).

        Args:
            prompts: Texts or chats; or the tokens themselves, which are taken as they are.
            responses: Texts, or tokens; none empty.
            layers: From 0 (embeddings) to ``num_layers`` (after the final norm), from the end when negative.
        """
        texts, numbers = self._scored(prompts, responses), self._layers(layers)
        if not numbers:
            raise InputError("layers must name at least one layer")
        with self.exclusive():
            return scoring.states(self._decoder, texts, numbers, self.batch_size, self.share_prefix)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt as the model gets it, with its template and the header of the answer."""
        return chat.prompt_ids(self.tokenizer, prompt)

    def response_ids(self, text: str) -> list[int]:
        """Return the tokens of a response, to stand behind those of a prompt; nothing is added."""
        return chat.text_ids(self.tokenizer, text)

    def assistant_header_ids(self) -> list[int]:
        """Return what a response can stand behind when there is no prompt: the assistant's header, or BOS."""
        return chat.assistant_header_ids(self.tokenizer)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Open a block in which this thread alone runs the model, without gradients: for passes of one's own."""
        with self._turn, require("torch", "models").no_grad():
            yield

    def _decode(self, work: Sequence[Row], sampling: Sampling, stopped: Stopped | None, layers: Sequence[int]) -> None:
        copies: dict[tuple[int, ...], list[Row]] = {}
        for row in work:
            copies.setdefault(tuple(row.ids), []).append(row)
        prompts = list(copies)
        longest = max((len(row.ids) + row.limit for row in work), default=0)
        # padding between the shared start and the rest would count as looked-back-over text
        share = self.share_prefix if longest <= (self._decoder.window or longest) else False
        with self.exclusive():
            for members, shared in group(prompts, [len(ids) - 1 for ids in prompts], share):
                start = shared_start(self._decoder, prompts[members[0]][:shared])
                rows = [row for index in members for row in copies[prompts[index]]]
                for place in range(0, len(rows), self.batch_size):
                    decode(
                        self._decoder, rows[place : place + self.batch_size], sampling, ends=self._ends,
                        stopped=stopped, start=start, shared=shared, layers=layers,
                    )  # fmt: skip

    def _stopped(self, stops: Sequence[str]) -> Stopped:
        def stopped(tokens: Sequence[int]) -> bool:
            text = self._text(tokens)
            return any(stop in text for stop in stops)

        return stopped

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _finish(self, row: Row, stops: Sequence[str], layers: int) -> Generation:
        tokens, text = list(row.tokens), self._text(row.tokens)
        cut = min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
        if cut is not None:
            text = text[:cut]
            while tokens and self._text(tokens[:-1]).startswith(text):  # tokens that the text does not need
                tokens.pop()
        torch = require("torch", "models")
        width = self.model.config.get_text_config().hidden_size
        states = torch.stack(row.states[: len(tokens)], 1) if tokens and layers else torch.zeros((layers, 0, width))
        return Generation(text, tokens, states.numpy(), cut is None and len(row.tokens) >= row.limit)

    def _layers(self, layers: Sequence[int]) -> list[int]:
        count = self.num_layers + 1
        for layer in layers:
            if not -count <= layer < count:
                raise InputError(
                    f"layers: {layer} is not between {-count} and {count - 1}; the model has {count} states"
                )
        return [int(layer) % count for layer in layers]

    def _all_prompt_ids(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        check_prompts(prompts)
        rows = []
        for index, prompt in enumerate(prompts):
            try:
                rows.append(self.prompt_ids(prompt))
            except InputError as error:
                raise InputError(f"prompts[{index}]: {error}") from error
            if len(rows[-1]) >= self.context:
                raise InputError(
                    f"prompts[{index}] has {len(rows[-1])} tokens and leaves no room in the model's context of "
                    f"{self.context}; shorten it"
                )
        return rows

    def _scored(self, prompts: Sequence[Prompt | Ids], responses: Sequence[str | Ids]) -> Scored:
        if isinstance(responses, str) or len(prompts) != len(responses):
            raise InputError(f"responses must be a list with one response per prompt ({len(prompts)})")
        texts = iter(self._all_prompt_ids([prompt for prompt in prompts if not _is_ids(prompt)]))
        before: list[Ids] = [prompt if _is_ids(prompt) else next(texts) for prompt in prompts]
        after: list[Ids] = [self.response_ids(one) if isinstance(one, str) else one for one in responses]
        vocabulary = self._decoder.vocabulary
        for index, (first, then) in enumerate(zip(before, after, strict=True)):
            if not first or not then:
                raise InputError(f"{'prompts' if not first else 'responses'}[{index}] has no tokens")
            if len(first) + len(then) > self.context:
                raise InputError(
                    f"prompts[{index}] and its response have {len(first) + len(then)} tokens; the model's context "
                    f"holds {self.context}"
                )
            if min(min(first), min(then)) < 0 or max(max(first), max(then)) >= vocabulary:
                raise InputError(f"prompts[{index}] or its response holds a token outside 0 to {vocabulary - 1}")
        return Scored(before, after)


def _is_ids(prompt: Prompt | Ids) -> TypeIs[Ids]:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(isinstance(one, int) for one in prompt)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: the tokenizer's and those that the model's own settings name."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = list(named) if isinstance(named, list | tuple) else [named]
    return frozenset(int(token) for token in (*several, tokenizer.eos_token_id) if token is not None)


def _streams(seed: Seed, rows: int) -> list[np.random.Generator]:
    """Return a random stream for each text: of (seed, its place), or of its own seed."""
    if seed is None:
        seed = secrets.randbits(62)
    if isinstance(seed, Sequence):
        if len(seed) != rows:
            raise InputError(f"seed must be one number or one per text ({rows}), got {len(seed)}")
        return [generator("generate", "text", int(one)) for one in seed]
    return [generator("generate", f"{int(seed)}/text", place) for place in range(rows)]
