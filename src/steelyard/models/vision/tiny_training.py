"""How the checkpoints of `TinyVLM` were trained: pictures first, then short videos whole, then parts of long ones.

The last phase is what makes posteriors honest: the true answer is the target whatever was shown, so that a clip
without evidence is answered with doubt. Batches hold a constant number of tokens. `train` is what
``benchmarks/train_tiny_vlm.py`` runs for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steelyard import rng as streams
from steelyard.models.vision.tiny_vlm import FULL, LOW, TOKEN, TOKENS, TinyVLM, question_tokens
from steelyard.models.vision.world import (
    BRIGHT,
    COLOURS,
    DIM,
    KINDS,
    MASKS,
    NONE,
    SHAPES,
    SIDE,
    Events,
    draw_events,
    render,
)

ROOT = "tiny_vlm_training"
_CHUNK = 256  # questions drawn at once in an evaluation


@dataclass(frozen=True)
class Recipe:
    """Lengths and rates of training; the defaults made the checkpoints.

    Attributes:
        pictures: Steps on single frames.
        visible: Steps on videos of 16 frames, all of them seen.
        parts: Steps on parts of videos of 64 and 144 frames.
        contrast: Steps on frames and captions, on top of what is learned.
        rates: Highest learning rate of each phase.
        low: Share of the last phase's batches at low resolution.
        tokens: Of a batch in the last phase.
        caption_weight: Weight of naming frames beside answering.
        noise: Of the pixels.
    """

    pictures: int = 400
    visible: int = 1500
    parts: int = 3000
    contrast: int = 300
    rates: tuple[float, float, float, float] = (3e-3, 2e-3, 1.5e-3, 3e-3)
    low: float = 0.5
    tokens: int = 2048
    caption_weight: float = 0.1
    noise: float = 0.12


@dataclass
class History:
    """What a training was like: mean loss of every hundred steps by phase."""

    losses: dict[str, list[float]] = field(default_factory=dict)


def train(
    seed: int, recipe: Recipe = Recipe(), progress: Callable[[str, int, int], None] | None = None
) -> tuple[TinyVLM, History]:
    """Train a model; equal seeds give equal weights on one machine with one thread.

    Args:
        seed: Of weights and data.
        recipe: Lengths and rates.
        progress: Called with (phase, step, steps).
    """
    draws = streams.generator(ROOT, "data", seed)
    model, history = TinyVLM(seed), History()
    phases: tuple[tuple[str, int, float, Callable[[int], Tensor], float], ...] = (
        ("pictures", recipe.pictures, recipe.rates[0], lambda step: _naming(model, draws, step, recipe), 0.1),
        ("visible", recipe.visible, recipe.rates[1], lambda _: _answering(model, draws, *_whole(draws), recipe), 0.05),
        (
            "parts",
            recipe.parts,
            recipe.rates[2],
            lambda _: _answering(model, draws, *_part(draws, recipe), recipe),
            0.0,
        ),
        ("contrast", recipe.contrast, recipe.rates[3], lambda _: _contrasting(model, draws, recipe), 0.0),
    )
    for name, steps, rate, loss, floor in phases:
        taught = _taught(model, name)
        for step, value in _descended(taught, loss, steps, rate, floor):
            if step % 100 == 0:
                history.losses.setdefault(name, []).append(0.0)
            history.losses[name][-1] += value / min(100, steps - step // 100 * 100)
            if progress is not None:
                progress(name, step + 1, steps)
    return model.eval().requires_grad_(False), history


def _taught(model: TinyVLM, phase: str) -> list[torch.nn.Parameter]:
    """Return the weights that a phase changes; captions are learned on top of the finished model."""
    apart = {id(weight) for module in (model.picture_side, model.text_side) for weight in module.parameters()}
    return [weight for weight in model.parameters() if (id(weight) in apart) == (phase == "contrast")]


def _descended(
    weights: list[torch.nn.Parameter], loss: Callable[[int], Tensor], steps: int, rate: float, floor: float
) -> Iterator[tuple[int, float]]:
    """Yield the loss of each step of AdamW: 50 steps of warming up, then half a cosine down to ``floor``."""
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        share = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))
        optimizer.param_groups[0]["lr"] = rate * share * min(1.0, (step + 1) / 50)
        value = loss(step)
        optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        yield step, float(value.detach())


def _whole(draws: np.random.Generator) -> tuple[Events, np.ndarray, int]:
    """Return 64 short videos, all frames seen, at low resolution."""
    return draw_events(draws, 64, 16, kinds=_shuffled(draws)), np.tile(np.arange(16), (64, 1)), LOW


def _part(draws: np.random.Generator, recipe: Recipe) -> tuple[Events, np.ndarray, int]:
    """Return parts of long videos: as many as the tokens of a batch allow."""
    length, counts = (64, (8, 16, 32, 64)) if draws.random() < 0.6 else (144, (12, 28, 72, 144))
    count = counts[int(draws.integers(len(counts)))]
    resolution = LOW if draws.random() < recipe.low else FULL
    videos = int(np.clip(recipe.tokens // (count * TOKENS[resolution] + 3), 8, 64))
    events = draw_events(draws, videos, length, kinds=_shuffled(draws))
    return events, np.stack([_chosen(draws, length, count) for _ in range(videos)]), resolution


def _shuffled(draws: np.random.Generator) -> tuple[str, ...]:
    return tuple(KINDS[number] for number in draws.permutation(len(KINDS)))


def _chosen(draws: np.random.Generator, length: int, count: int) -> np.ndarray:
    """Return frames of a video in time order: side by side, evenly apart, or anywhere."""
    way = draws.random()
    if way < 0.25:
        return int(draws.integers(length - count + 1)) + np.arange(count)
    if way < 0.5:
        stride = length // count
        return int(draws.integers(length - stride * (count - 1))) + stride * np.arange(count)
    return np.sort(draws.permutation(length)[:count])


def _answering(
    model: TinyVLM, draws: np.random.Generator, events: Events, frames: np.ndarray, resolution: int, recipe: Recipe
) -> Tensor:
    """Return the loss of answering, and of naming the frames, on a batch."""
    pictures = torch.from_numpy(render(events, frames, draws, noise=recipe.noise))
    features = model.patches(pictures, resolution)
    times = torch.as_tensor(frames / events.length, dtype=torch.float32)
    logits = model.read(_questions(events), features, times)[:, 0]
    options, answer = answer_tokens(events)
    loss = functional.cross_entropy(logits.gather(1, options), answer)
    return loss + recipe.caption_weight * _caption_loss(model, events, frames, features)


def _questions(events: Events) -> Tensor:
    return torch.tensor([question_tokens(events.question(video)) for video in range(len(events))])


def answer_tokens(events: Events) -> tuple[Tensor, Tensor]:
    """Return the tokens of each question's options, (V, 4), and which of them is right, (V,)."""
    options = [[TOKEN[word] for word in events.choices(video)] for video in range(len(events))]
    return torch.tensor(options), torch.from_numpy(events.answer)


def _caption_loss(model: TinyVLM, events: Events, frames: np.ndarray, features: Tensor) -> Tensor:
    shown = np.take_along_axis(events.shape, frames, 1)
    seen = shown != NONE
    shape = np.where(seen, shown, len(SHAPES))
    colour = np.where(seen, np.take_along_axis(events.colours, np.where(seen, shown, 0), 1), len(COLOURS))
    background = np.broadcast_to(events.background[:, None], shown.shape)
    return _named(
        model, features.flatten(0, 1), *(np.ascontiguousarray(one.reshape(-1)) for one in (shape, colour, background))
    )


def _named(model: TinyVLM, features: Tensor, *truth: np.ndarray) -> Tensor:
    """Return the loss of naming shape, colour and background of frames from their patches."""
    losses = [
        functional.cross_entropy(logits, torch.from_numpy(one))
        for logits, one in zip(model.detect(features), truth, strict=True)
    ]
    return torch.stack(losses).sum()


def _pictures(
    draws: np.random.Generator, count: int, present: float, noise: float
) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Return single frames, and what each shows: shape and colour (one past the last for none) and background."""
    shape, colour = draws.integers(0, len(SHAPES), count), draws.integers(0, len(COLOURS), count)
    background = draws.integers(0, len(COLOURS), count)
    shown = draws.random(count) < present
    images = (
        draws.standard_normal((count, SIDE, SIDE, 3), np.float32) * np.float32(noise) + DIM[background][:, None, None]
    )
    mask = MASKS[shape, draws.integers(0, MASKS.shape[1], count)] * shown[:, None, None]
    images += mask[..., None] * (BRIGHT[colour] - DIM[background])[:, None, None]
    return (
        torch.from_numpy(images),
        np.where(shown, shape, len(SHAPES)),
        np.where(shown, colour, len(COLOURS)),
        background,
    )


def _naming(model: TinyVLM, draws: np.random.Generator, step: int, recipe: Recipe) -> Tensor:
    """Return the loss of naming what single frames show, every third batch at full resolution."""
    images, *truth = _pictures(draws, 512, 0.75, recipe.noise)
    return _named(model, model.patches(images, FULL if step % 3 == 2 else LOW), *truth)


def _contrasting(model: TinyVLM, draws: np.random.Generator, recipe: Recipe) -> Tensor:
    """Return the loss of telling which caption belongs to which frame; captions are bags of two words or of one."""
    images, shape, colour, background = _pictures(draws, 256, 0.75, recipe.noise)
    resolution = LOW if draws.random() < 0.5 else FULL
    with torch.no_grad():
        features = model.patches(images, resolution).mean(-2)
    # A caption names the shape, its colour, or the background, drawn anew: "ring red", "ring", "blue".
    words = np.full((len(shape), 2), TOKEN["NULL"])
    way = draws.integers(0, 3, len(shape))
    empty = shape == len(SHAPES)
    of_shape = np.array([TOKEN[one] for one in (*SHAPES, "NULL")])[shape]
    of_colour = np.array([TOKEN[one] for one in (*COLOURS, "NULL")])[colour]
    of_ground = np.array([TOKEN[one] for one in COLOURS])[background]
    words[:, 0] = np.where(empty, of_ground, np.where(way == 2, of_ground, of_shape))
    words[:, 1] = np.where(empty | (way != 0), words[:, 0], of_colour)
    text = functional.normalize(model.text_side(torch.from_numpy(words)).mean(1), dim=-1)
    scores = functional.normalize(model.picture_side(features), dim=-1) @ text.T / 0.1
    # Frames that share a caption are each other's right answer too.
    same = torch.from_numpy((words[:, None] == words[None]).all(-1))
    target = same / same.sum(1, keepdim=True)
    return (
        functional.cross_entropy(scores, target)
        + functional.cross_entropy(scores.T, target.T / target.T.sum(1, keepdim=True))
    ) / 2


@torch.no_grad()
def accuracy(
    model: TinyVLM, length: int, *, resolution: int = FULL, questions: int = 200, seed: int = 0
) -> dict[str, float]:
    """Return the share of right answers by kind when all frames are seen, on videos that no training drew."""
    draws = streams.generator(ROOT, f"accuracy/{length}", seed)
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for start in range(0, questions, _CHUNK):
        events = draw_events(draws, min(_CHUNK, questions - start), length)
        frames = np.tile(np.arange(length), (len(events), 1))
        for rows in np.array_split(np.arange(len(events)), max(1, len(events) // 32)):
            part = Events(**{name: getattr(events, name)[rows] for name in Events.__dataclass_fields__})
            features = model.patches(torch.from_numpy(render(part, frames[rows], draws)), resolution)
            logits = model.read(_questions(part), features, torch.as_tensor(frames[rows] / length, dtype=torch.float32))
            options, answer = answer_tokens(part)
            hit = logits[:, 0].gather(1, options).argmax(1) == answer
            for kind, one in zip(part.kind.tolist(), hit.tolist(), strict=True):
                right[KINDS[kind]].append(one)
    return {kind: float(np.mean(found)) for kind, found in right.items()}
