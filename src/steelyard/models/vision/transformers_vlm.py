"""Vision-language models of transformers (`AutoModelForImageTextToText`), and what prepares their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.vision.pictures import resized
from steelyard.models.vision.protocols import LMDims

Prepare = Callable[[Any, Any, str, int | None], Mapping[str, Any]]
"""From frames, timestamps, the prompt's text and pixels a frame to the model's inputs, with a batch of one."""
Variants = Callable[[str], list[int]]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FORMS = ("{}", " {}", "({}", "{}.", " {}.", "{})")


def multiple_choice(question: str, options: Sequence[str]) -> str:
    """Return the prompt of a question whose answer is a letter."""
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return (
        "Watch the video, then choose the option that answers the question best. Say its letter and nothing else.\n"
        f"Question: {question}\n{listed}\nAnswer:"
    )


class TransformersVLM:
    """A model of ``AutoModelForImageTextToText`` that answers by the letters of the options; `VisionLanguageModel`.

    Args:
        model: The model, in evaluation.
        tokenizer: Of its text.
        processor: Makes inputs of a chat with a video; or
        prepare: a function that does, where the processor cannot be built (those of Qwen-VL and SmolVLM need
            torchvision) or the clip is to be prepared in another way.
        scorer: ``"letters"`` reads the next token, summing each letter's forms; ``"options"`` scores the options' own
            texts, one pass each, by the mean log-probability of their tokens.

    Raises:
        InputError: Neither or both of processor and prepare are given, or an unknown scorer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        processor: Any = None,
        prepare: Prepare | None = None,
        scorer: Literal["letters", "options"] = "letters",
    ) -> None:
        if (processor is None) == (prepare is None):
            raise InputError("processor: give the model's processor, or a function as prepare")
        if scorer not in ("letters", "options"):
            raise InputError(f"scorer must be letters or options, got {scorer!r}")
        self.model, self.tokenizer, self.scorer = model, tokenizer, scorer
        self._prepare: Prepare = prepare or _by_processor(processor)
        self._tokens: dict[tuple[int, int | None], int] = {}

    @classmethod
    def from_pretrained(cls, path: str, **options: Any) -> TransformersVLM:
        """Return a model of a folder or hub name with its own processor; no code of it is run.

        Raises:
            InputError: The processor cannot be built here.
        """
        transformers = require("transformers", "models")
        settings = {"trust_remote_code": False, "use_safetensors": True}
        try:
            processor = transformers.AutoProcessor.from_pretrained(path, trust_remote_code=False)
        except (ImportError, OSError, ValueError) as error:
            raise InputError(
                f"{path}: its processor cannot be built ({str(error)[:120]}); give a prepare function"
            ) from None
        model = transformers.AutoModelForImageTextToText.from_pretrained(path, **settings, **options).eval()
        return cls(model, processor.tokenizer, processor=processor)

    @property
    def dims(self) -> LMDims:
        """Sizes of the language model, from the configuration."""
        config = self.model.config.get_text_config()
        width, heads = config.hidden_size, config.num_attention_heads
        each = getattr(config, "head_dim", None) or width // heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        queries = each * heads
        return LMDims(
            width, config.intermediate_size, each * keys, config.num_hidden_layers, config.vocab_size,
            None if queries == width else queries,
        )  # fmt: skip

    def token_count(self, n_frames: int, resolution: int | None, question: str, options: Sequence[str]) -> int | None:
        """Return the tokens of a clip: those of the last one that was read, else counted on inputs of grey frames.

        Processors round as they like, so that nothing is computed here. None where frames are read as they come and no
        clip of as many was read yet.
        """
        if (n_frames, resolution) in self._tokens:
            return self._tokens[n_frames, resolution]
        if resolution is None:
            return None
        side = max(1, round(resolution**0.5))
        grey = np.full((n_frames, side, side, 3), 127, np.uint8)
        inputs = self._prepare(grey, np.arange(n_frames, dtype=float), multiple_choice(question, options), resolution)
        return int(inputs["input_ids"].shape[-1])

    @torch.no_grad()
    def option_logprobs(
        self, frames: Any, timestamps: Any, question: str, options: Sequence[str], resolution: int | None
    ) -> NDArray[np.float64]:
        """Return the log-probability of each option over the whole vocabulary, in float32, (options,)."""
        if not 2 <= len(options) <= len(LETTERS):
            raise InputError(f"options: there must be 2 to {len(LETTERS)}, got {len(options)}")
        inputs = dict(self._prepare(frames, timestamps, multiple_choice(question, options), resolution))
        self._tokens[len(frames), resolution] = int(inputs["input_ids"].shape[-1])
        if self.scorer == "options":
            return np.array([self._mean_logprob(inputs, option) for option in options])
        logits = self.model(**self._placed(inputs), logits_to_keep=1).logits[0, -1]
        logs = logits.float().log_softmax(-1)
        return np.array([self._letter(logs, letter) for letter in LETTERS[: len(options)]], np.float64)

    def _letter(self, logs: torch.Tensor, letter: str) -> float:
        tokens = sorted({self._first(form.format(letter)) for form in _FORMS} - {None})  # type: ignore[type-var]
        if not tokens:
            return -np.inf
        return float(logs[torch.tensor(tokens, device=logs.device)].logsumexp(0))

    def _first(self, text: str) -> int | None:
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        return int(ids[0]) if ids else None

    def _mean_logprob(self, inputs: Mapping[str, Any], option: str) -> float:
        ids = self.tokenizer(f" {option}", add_special_tokens=False).input_ids
        if not ids:
            raise InputError(f"options: {option[:40]!r} has no token")
        said = torch.tensor([ids])
        longer = {**inputs, "input_ids": torch.cat([inputs["input_ids"], said], 1)}
        for name in ("attention_mask", "mm_token_type_ids"):
            if name in inputs:
                more = torch.ones_like(said) if name == "attention_mask" else torch.zeros_like(said)
                longer[name] = torch.cat([inputs[name], more.to(inputs[name].dtype)], 1)
        logits = self.model(**self._placed(longer), logits_to_keep=len(ids) + 1).logits[0, :-1]
        logs = logits.float().log_softmax(-1).cpu()
        return float(logs.gather(1, said.T).mean())

    def _placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        device = next(self.model.parameters()).device
        return {name: value.to(device) if hasattr(value, "to") else value for name, value in inputs.items()}


def _by_processor(processor: Any) -> Prepare:
    """Return what makes inputs with a model's own processor, from a chat with one video."""

    def prepare(frames: Any, timestamps: Any, prompt: str, resolution: int | None) -> Mapping[str, Any]:
        content = [{"type": "video"}, {"type": "text", "text": prompt}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        pictures = [resized(frame, resolution) for frame in frames]
        made: Mapping[str, Any] = processor(text=[text], videos=[pictures], return_tensors="pt")
        return made

    return prepare
