"""A vision-language model of 190 thousand parameters with real posteriors, trained on the videos of `world`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.models.safefile import SafeFile
from steelyard.models.vision.protocols import LMDims
from steelyard.models.vision.world import COLOURS, KINDS, NONE, NUMBERS, SHAPES, SIDE, SPRITE, wording
from steelyard.rng import torch_generator

LETTERS = ("A", "B", "C", "D")
VOCABULARY = (*KINDS, *SHAPES, *COLOURS, *NUMBERS, *LETTERS, "ANS", "NULL")
TOKEN = {word: number for number, word in enumerate(VOCABULARY)}
FULL, LOW = SIDE * SIDE, SPRITE * SPRITE
"""Pixels a frame: four tokens a frame, or one."""
TOKENS = {FULL: 4, LOW: 1}
SEEDS = 10
_WIDTH, _LAYERS, _HEADS, _INNER, _PATCH = 64, 3, 4, 256, 128
_OCTAVES = 8
_AROUND = 3  # tokens besides the frames': kind, argument, ANS
_EMBEDDING = 32  # width in which frames and words are compared
CHECKPOINTS = Path(__file__).with_name("checkpoints")


class FrameFeatures(NamedTuple):
    """Frames as `TinyVLM.encode_frames` returns them.

    Attributes:
        tokens: (n, tokens a frame, 64).
        resolution: Pixels a frame.
    """

    tokens: Tensor
    resolution: int

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, frames: Any) -> FrameFeatures:
        """Return those of some frames."""
        return FrameFeatures(self.tokens[torch.as_tensor(np.asarray(frames))], self.resolution)


class Block(nn.Module):
    """A causal pre-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attend, self.mix = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.widen, self.narrow = nn.Linear(_WIDTH, _INNER), nn.Linear(_INNER, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, L, 64) from (B, L, 64)."""
        rows, length, _ = x.shape
        parts = self.attend(self.before(x)).view(rows, length, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, length, _WIDTH))
        wide: Tensor = self.narrow(functional.gelu(self.widen(self.between(x))))
        return x + wide


class TinyVLM(nn.Module):
    """The model; implements `VisionLanguageModel`, scores options in the space of their own tokens.

    Args:
        seed: Of the weights before training.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(SPRITE * SPRITE * 3, _PATCH), nn.GELU(), nn.Linear(_PATCH, _WIDTH))
        self.where = nn.Embedding(5, _WIDTH)  # four quarters of a frame, or all of it
        self.when = nn.Linear(2 * _OCTAVES, _WIDTH)
        self.words = nn.Embedding(len(VOCABULARY), _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.last, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, len(VOCABULARY))
        self.seen = nn.Linear(_WIDTH, len(SHAPES) + 1 + len(COLOURS) + 1 + len(COLOURS))
        self.picture_side = nn.Linear(_WIDTH, _EMBEDDING)
        self.text_side = nn.Embedding(len(VOCABULARY), _EMBEDDING)
        self._start(torch_generator("tiny_vlm", "weights", seed))

    def _start(self, draws: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                nn.init.uniform_(module.weight, -bound, bound, generator=draws)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.1, generator=draws)

    def patches(self, frames: Tensor, resolution: int) -> Tensor:
        """Return features of patches, (..., tokens a frame, 64), from frames (..., 16, 16, 3)."""
        lead = frames.shape[:-3]
        if resolution == LOW:
            flat = frames.reshape(-1, SPRITE, 2, SPRITE, 2, 3).mean((2, 4)).reshape(*lead, 1, -1)
        else:
            flat = frames.reshape(-1, 2, SPRITE, 2, SPRITE, 3).transpose(2, 3).reshape(*lead, 4, -1)
        return self.patch(flat)  # type: ignore[no-any-return]

    def detect(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of shape, colour (each with "none" last) and background of frames, from their patches."""
        shape, colour, background = self.seen(features.mean(-2)).split(
            (len(SHAPES) + 1, len(COLOURS) + 1, len(COLOURS)), -1
        )
        return shape, colour, background

    def read(self, question: Tensor, features: Tensor, times: Tensor, said: Tensor | None = None) -> Tensor:
        """Return logits of the next token after ANS and after each token already said.

        Args:
            question: Tokens of kind and argument, (B, 2).
            features: Of patches, (B, n, tokens a frame, 64).
            times: Of frames, shares of the video in [0, 1), (B, n).
            said: Tokens of an answer begun, (B, A).

        Returns:
            Shape (B, 1 + A, vocabulary).
        """
        rows, frames, per, _ = features.shape
        places = torch.arange(4) if per == 4 else torch.tensor([4])
        seen = features + self.where(places) + self.when(_clock(times))[:, :, None]
        ending = torch.full((rows, 1), TOKEN["ANS"])
        ending = ending if said is None else torch.cat([ending, said], 1)
        x = torch.cat([self.words(question), seen.reshape(rows, frames * per, _WIDTH), self.words(ending)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x[:, -ending.shape[1] :]))  # type: ignore[no-any-return]

    @property
    def dims(self) -> LMDims:
        """Sizes of the transformer."""
        return LMDims(_WIDTH, _INNER, _WIDTH, _LAYERS, len(VOCABULARY), ffn_matrices=2)

    def token_count(self, n_frames: int, resolution: int | None, question: str, options: Sequence[str]) -> int:
        """Return the tokens of a clip: those of its frames, the question's two, and ANS."""
        return n_frames * TOKENS[_resolution(resolution)] + _AROUND

    @torch.no_grad()
    def encode_frames(self, frames: Any, resolution: int | None = None) -> FrameFeatures:
        """Return the features of frames (n, 16, 16, 3), to be given in their place."""
        chosen = _resolution(resolution)
        return FrameFeatures(self.patches(_pictures(frames), chosen), chosen)

    def option_logprobs(
        self, frames: Any, timestamps: Any, question: str, options: Sequence[str], resolution: int | None = None
    ) -> NDArray[np.float64]:
        """Return the log-probability of each option's token over the whole vocabulary, (options,)."""
        return np.asarray(self.option_logprobs_batch([frames], [timestamps], question, options, resolution)[0])

    @torch.no_grad()
    def option_logprobs_batch(
        self,
        clips: Sequence[Any],
        timestamps: Sequence[Any],
        question: str,
        options: Sequence[str],
        resolution: int | None = None,
    ) -> NDArray[np.float64]:
        """Return the same for many clips of one length, (clips, options)."""
        tokens, answers = question_tokens(question), option_tokens(options)
        features = torch.stack([self._features(clip, resolution) for clip in clips])
        times = torch.as_tensor(np.stack([np.asarray(one, np.float64) for one in timestamps]), dtype=torch.float32)
        if times.shape != features.shape[:2]:
            raise InputError(
                f"timestamps: they must be {tuple(features.shape[:2])}, one a frame, got {tuple(times.shape)}"
            )
        logits = self.read(torch.tensor([tokens]).expand(len(features), 2), features, times)[:, 0]
        found: NDArray[np.float64] = logits.double().log_softmax(-1)[:, answers].numpy()
        return found

    def _features(self, clip: Any, resolution: int | None) -> Tensor:
        if not isinstance(clip, FrameFeatures):
            return self.patches(_pictures(clip), _resolution(resolution))
        if resolution is not None and clip.resolution != resolution:
            raise InputError(f"resolution: the features are of {clip.resolution} pixels, {resolution} are asked for")
        return clip.tokens

    @torch.no_grad()
    def embeddings(self, frames: Any, words: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return unit vectors of frames, (n, 32), and of a bag of words, (32,), as a contrastive encoder makes them."""
        clip = frames if isinstance(frames, FrameFeatures) else self.encode_frames(frames)
        text = self.text_side(torch.tensor(option_tokens(words))).mean(0)
        pictures = functional.normalize(self.picture_side(clip.tokens.mean(-2)), dim=-1)
        return pictures.double().numpy(), functional.normalize(text, dim=0).double().numpy()

    def similarity(self, frames: Any, words: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosine of each frame and a bag of words, (n,)."""
        pictures, text = self.embeddings(frames, words)
        return np.asarray(pictures @ text)

    @classmethod
    def load_default(cls, seed: int = 0) -> TinyVLM:
        """Return the model of one of the ten training seeds that come with the library, ready to answer."""
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
            raise InputError(f"seed must be a whole number from 0 to {SEEDS - 1}, got {seed!r}")
        return _loaded(seed)

    @classmethod
    def load(cls, path: str | Path) -> TinyVLM:
        """Return a model from a safetensors file, with weights in float32.

        Raises:
            InputError: The file is not one of this model.
        """
        model, file = cls(), SafeFile(path)
        wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        if {name: span.shape for name, span in file.spans.items()} != wanted:
            raise InputError(f"{Path(path).name}: it does not hold the weights of a TinyVLM")
        model.load_state_dict({name: file.read(name).float() for name in wanted})
        return model.eval().requires_grad_(False)


@lru_cache(maxsize=SEEDS)
def _loaded(seed: int) -> TinyVLM:
    return TinyVLM.load(CHECKPOINTS / f"tiny_vlm_{seed}.safetensors")


def _clock(times: Tensor) -> Tensor:
    """Return sines and cosines of the true time, (..., 16)."""
    angles = times[..., None] * (math.pi * 0.5 * 2.0 ** torch.arange(_OCTAVES))
    return torch.cat([angles.sin(), angles.cos()], -1)


def _resolution(resolution: int | None) -> int:
    chosen = FULL if resolution is None else resolution
    if chosen not in TOKENS:
        raise InputError(f"resolution must be {FULL} or {LOW} pixels a frame for TinyVLM, got {resolution!r}")
    return chosen


def _pictures(frames: Any) -> Tensor:
    values = np.asarray(frames)
    scale = 255.0 if values.dtype == np.uint8 else 1.0  # as pictures are stored
    pictures = torch.as_tensor(np.asarray(values, np.float32) / np.float32(scale))
    if pictures.ndim != 4 or pictures.shape[1:] != (SIDE, SIDE, 3) or not len(pictures):
        raise InputError(f"frames must have the shape (n, {SIDE}, {SIDE}, 3) for TinyVLM, got {tuple(pictures.shape)}")
    return pictures


@lru_cache(maxsize=1)
def _questions() -> dict[str, tuple[int, int]]:
    found = {}
    for kind in KINDS:
        for about in range(len(SHAPES)) if kind in ("specific", "count") else (NONE,):
            argument = TOKEN["NULL"] if about == NONE else TOKEN[SHAPES[about]]
            found[wording(kind, about)] = (TOKEN[kind], argument)
    return found


def question_tokens(question: str) -> tuple[int, int]:
    """Return the two tokens of a question; raises InputError for one that the model does not know."""
    try:
        return _questions()[question]
    except KeyError:
        known = next(iter(_questions()))
        raise InputError(
            f"question: TinyVLM knows those of its world only, such as {known!r}; got {question[:80]!r}"
        ) from None


def option_tokens(options: Sequence[str]) -> list[int]:
    """Return the token of each option; raises InputError for one that is no word of the model."""
    unknown = [option for option in options if option not in TOKEN]
    if unknown:
        raise InputError(
            f"options: TinyVLM has no word {str(unknown[0])[:40]!r}; it knows {', '.join(VOCABULARY[5:-2])}"
        )
    return [TOKEN[option] for option in options]
