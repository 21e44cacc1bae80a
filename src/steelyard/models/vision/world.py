"""Made-up long videos with questions: coloured shapes that appear for a moment before a coloured background.

A video has eight time slots; an event is one shape that is seen for some frames of one slot. Five kinds of question ask
for what is specific, redundant, absent, counted or ordered, so that the frames that an answer needs differ by kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KINDS = ("specific", "scene", "negation", "count", "order")
SHAPES = ("square", "cross", "ring", "bar", "post", "diagonal")
COLOURS = ("red", "green", "blue", "yellow", "magenta", "cyan")
NUMBERS = ("1", "2", "3", "4")
SLOTS = 8
SIDE, SPRITE = 16, 8
CELLS = (0, 4, 8)
"""Rows and columns at which a sprite may begin."""
NONE = -1
_HUES = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], bool)
BRIGHT: Floats = np.where(_HUES, 1.0, 0.1).astype(np.float32)
DIM: Floats = np.where(_HUES, 0.25, 0.05).astype(np.float32)


@dataclass(frozen=True)
class Events:
    """Which shape is seen when in several videos, and what is asked; V videos of T frames.

    Attributes:
        shape: Index into `SHAPES` of what each frame shows, `NONE` for nothing, (V, T).
        colours: Colour of each shape in each video, (V, shapes).
        background: Colour of each video's background, (V,).
        kind: Index into `KINDS`, (V,).
        about: Shape that the question is about, `NONE` where it is about none, (V,).
        options: Four answers a question: indices into the answers' own list, (V, 4).
        answer: Which of the four is right, (V,).
    """

    shape: Ints
    colours: Ints
    background: Ints
    kind: Ints
    about: Ints
    options: Ints
    answer: Ints

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def length(self) -> int:
        """Frames of a video."""
        return int(self.shape.shape[1])

    def evidence(self, video: int) -> Ints:
        """Return the frames without which the question cannot be answered, in time order; all of them for a scene."""
        shown = self.shape[video]
        kind = KINDS[int(self.kind[video])]
        if kind == "scene":
            return np.arange(self.length)
        if kind in ("specific", "count"):
            return np.flatnonzero(shown == self.about[video])
        return np.flatnonzero(np.isin(shown, self.options[video]))

    def question(self, video: int) -> str:
        """Return the question in words."""
        return wording(KINDS[int(self.kind[video])], int(self.about[video]))

    def choices(self, video: int) -> tuple[str, ...]:
        """Return the four answers in words."""
        named = ANSWERS[KINDS[int(self.kind[video])]]
        return tuple(named[number] for number in self.options[video].tolist())


ANSWERS: dict[str, tuple[str, ...]] = {
    "specific": COLOURS, "scene": COLOURS, "negation": SHAPES, "count": NUMBERS, "order": SHAPES,
}  # fmt: skip


def wording(kind: str, about: int = NONE) -> str:
    """Return a question in words; ``about`` is an index into `SHAPES` for the kinds that ask about one."""
    return {
        "specific": f"What colour is the {SHAPES[about]}?",
        "scene": "What colour is the background?",
        "negation": "Which of these shapes never appears?",
        "count": f"How many times does the {SHAPES[about]} appear?",
        "order": "Which of these shapes appears first?",
    }[kind]


def draw_events(
    rng: np.random.Generator, videos: int, length: int, *, kinds: Sequence[str] = KINDS, longest: float = 0.5
) -> Events:
    """Draw videos with one question each; kinds in turn, so that each is asked equally often.

    Args:
        rng: Of everything that is drawn.
        videos: How many.
        length: Frames a video, a multiple of eight.
        kinds: Of questions.
        longest: Share of its slot that an event lasts at most.

    Raises:
        InputError: A length that is no multiple of eight, or an unknown kind.
    """
    if length < 2 * SLOTS or length % SLOTS:
        raise InputError(f"length must be a multiple of {SLOTS} of at least {2 * SLOTS}, got {length}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise InputError(f"kinds must be some of {', '.join(KINDS)}, got {unknown or 'none'}")
    if not 0 < longest <= 1:
        raise InputError(f"longest must lie in (0, 1], got {longest}")
    kind = np.array([KINDS.index(kinds[number % len(kinds)]) for number in range(videos)], np.int64)
    colours = rng.integers(0, len(COLOURS), (videos, len(SHAPES)))
    background = rng.integers(0, len(COLOURS), videos)
    shape = np.full((videos, length), NONE, np.int64)
    about, options, answer = np.full(videos, NONE), np.zeros((videos, 4), np.int64), np.zeros(videos, np.int64)
    for video in range(videos):
        asked = _ASKED[KINDS[int(kind[video])]](rng, colours[video], int(background[video]))
        order = rng.permutation(4)
        about[video], options[video] = asked.about, np.array(asked.options)[order]
        answer[video] = int(np.flatnonzero(order == 0)[0])
        _place(rng, shape[video], asked.events, longest)
    return Events(shape, colours, background, kind, about, options, answer)


class _Asked(NamedTuple):
    """Shapes in the order in which they appear, what is asked about, and the answers, the right one first."""

    events: list[int]
    about: int
    options: list[int]


def _some(rng: np.random.Generator, low: int, high: int) -> list[int]:
    """Return between ``low`` and ``high`` different shapes."""
    return list(map(int, rng.permutation(len(SHAPES))[: int(rng.integers(low, high + 1))]))


def _others(rng: np.random.Generator, right: int, size: int) -> list[int]:
    """Return the right answer and three others."""
    return [right, *rng.permutation([number for number in range(size) if number != right])[:3].tolist()]


def _specific(rng: np.random.Generator, colours: Ints, background: int) -> _Asked:
    events = _some(rng, 2, 4)
    about = events[int(rng.integers(len(events)))]
    return _Asked(events, about, _others(rng, int(colours[about]), len(COLOURS)))


def _scene(rng: np.random.Generator, colours: Ints, background: int) -> _Asked:
    return _Asked(_some(rng, 2, 4), NONE, _others(rng, background, len(COLOURS)))


def _negation(rng: np.random.Generator, colours: Ints, background: int) -> _Asked:
    shapes = _some(rng, 4, 4)
    return _Asked(shapes[1:], NONE, shapes)


def _count(rng: np.random.Generator, colours: Ints, background: int) -> _Asked:
    about, first, second = _some(rng, 3, 3)
    times = int(rng.integers(1, 5))
    events = rng.permutation([about] * times + [first, second]).tolist()
    return _Asked(events, about, [times - 1, *(number for number in range(4) if number != times - 1)])


def _order(rng: np.random.Generator, colours: Ints, background: int) -> _Asked:
    shapes = _some(rng, 4, 4)
    return _Asked(shapes, NONE, shapes)


_ASKED = {"specific": _specific, "scene": _scene, "negation": _negation, "count": _count, "order": _order}


def _place(rng: np.random.Generator, frames: Ints, events: list[int], longest: float) -> None:
    """Write the events into slots of their own, in their order."""
    width = len(frames) // SLOTS
    most = min(max(1, int(width * longest)), max(1, width - 1))
    for slot, shape in zip(np.sort(rng.permutation(SLOTS)[: len(events)]).tolist(), events, strict=True):
        run = int(rng.integers(1, most + 1))
        start = slot * width + int(rng.integers(0, width - run + 1))
        frames[start : start + run] = shape


def _sprites() -> Floats:
    """Return the shapes as masks of 8 x 8."""
    at = np.arange(SPRITE)
    row, column = np.meshgrid(at, at, indexing="ij")
    middle = (at >= 3) & (at <= 4)
    edge = (row % 7 == 0) | (column % 7 == 0) | (row % 7 == 6) | (column % 7 == 6) | (row == 1) | (column == 1)
    return np.stack(
        [
            np.ones((SPRITE, SPRITE)),
            middle[row] | middle[column],
            edge,
            np.broadcast_to(((at >= 2) & (at <= 5))[:, None], (SPRITE, SPRITE)),
            np.broadcast_to(((at >= 2) & (at <= 5))[None], (SPRITE, SPRITE)),
            np.abs(row - column) <= 1,
        ]
    ).astype(np.float32)


def _masks() -> Floats:
    """Return every shape at every place, (shapes, places, 16, 16)."""
    sprites = _sprites()
    found = np.zeros((len(SHAPES), len(CELLS) ** 2, SIDE, SIDE), np.float32)
    for place in range(len(CELLS) ** 2):
        top, left = CELLS[place // len(CELLS)], CELLS[place % len(CELLS)]
        found[:, place, top : top + SPRITE, left : left + SPRITE] = sprites
    return found


MASKS = _masks()


def render(events: Events, frames: Ints, rng: np.random.Generator, *, noise: float = 0.12) -> Floats:
    """Return pictures of chosen frames.

    Args:
        events: V videos.
        frames: Which frames of each video, (V, n).
        rng: Of the places of shapes and of the pixels' noise; places are drawn anew for every frame.
        noise: Standard deviation of a channel.

    Returns:
        Shape (V, n, 16, 16, 3), values about [0, 1], not clipped.
    """
    videos, count = frames.shape
    images = rng.standard_normal((videos, count, SIDE, SIDE, 3), np.float32)
    images *= np.float32(noise)
    images += DIM[events.background][:, None, None, None, :]
    shown = np.take_along_axis(events.shape, frames, 1)
    places = rng.integers(0, MASKS.shape[1], (videos, count))
    video, at = np.nonzero(shown != NONE)
    shape = shown[video, at]
    mask = MASKS[shape, places[video, at]][..., None]
    rise = BRIGHT[events.colours[video, shape]] - DIM[events.background[video]]
    images[video, at] += mask * rise[:, None, None, :]
    return images


class Question(NamedTuple):
    """One question about one video, as a user would bring it.

    Attributes:
        frames: The video, (T, 16, 16, 3).
        timestamps: Time of each frame as a share of the video, (T,).
        question: In words.
        options: The answers, in words.
        answer: Which is right.
        kind: One of `KINDS`.
        evidence: Frames that the answer needs.
        about: Shape that is asked about, or `NONE`.
    """

    frames: Floats
    timestamps: NDArray[np.float64]
    question: str
    options: tuple[str, ...]
    answer: int
    kind: str
    evidence: Ints
    about: int


def tiny_videos(
    rng: np.random.Generator,
    questions: int,
    length: int = 64,
    *,
    kinds: Sequence[str] = KINDS,
    noise: float = 0.12,
    longest: float = 0.5,
) -> list[Question]:
    """Return videos with one question each, of ``kinds`` in turn; arguments as in `draw_events` and `render`."""
    events = draw_events(rng, questions, length, kinds=kinds, longest=longest)
    every = np.arange(length)[None]
    found = []
    for video in range(questions):
        one = _row(events, video)
        found.append(
            Question(
                render(one, every, rng, noise=noise)[0], np.arange(length) / length, events.question(video),
                events.choices(video), int(events.answer[video]), KINDS[int(events.kind[video])],
                events.evidence(video), int(events.about[video]),
            )
        )  # fmt: skip
    return found


def _row(events: Events, video: int) -> Events:
    fields: dict[str, Any] = {name: getattr(events, name)[video : video + 1] for name in Events.__dataclass_fields__}
    return Events(**fields)
