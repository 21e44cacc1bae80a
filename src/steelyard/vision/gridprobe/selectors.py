"""Other ways to choose frames, behind one interface: uniform, random, and by the similarity of frames and words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from steelyard.errors import InputError
from steelyard.models.vision.protocols import VisionLanguageModel
from steelyard.vision.gridprobe.core import Floats, Ints, normalised, select_frames, uniform_frames
from steelyard.vision.gridprobe.cost import forward_flops
from steelyard.vision.gridprobe.probe import _taken, checked_question

Scores = Callable[[Any, str, Sequence[str]], Floats]
"""From frames, question and options to how well each frame fits, (n,)."""
Embeddings = Callable[[Any, str, Sequence[str]], tuple[Floats, Floats]]
"""From frames, question and options to embeddings of the frames, (n, d), and of the words, (d,)."""
_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)


class FrameSelector(Protocol):
    """Chooses ``budget`` frames of a video for a question."""

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return the frames in time order."""
        ...


def _checked(frames: Any, budget: int) -> int:
    count = len(frames)
    if not isinstance(budget, int | np.integer) or not 1 <= budget <= count:
        raise InputError(f"budget must be from 1 to {count}, the frames of the video, got {budget!r}")
    return count


class UniformFrames:
    """Frames evenly apart, the first and the last among them."""

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return ``round(linspace(0, n - 1, budget))``."""
        return uniform_frames(_checked(frames, budget), budget)


class RandomFrames:
    """Frames drawn without replacement.

    Args:
        generator: Of the draws.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return a random choice, in time order."""
        return np.sort(self.generator.permutation(_checked(frames, budget))[:budget])


class TopSimilarity:
    """The frames that fit the words best.

    Args:
        scores: How well frames fit.
    """

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return the best frames in time order; of equal ones the earlier."""
        _checked(frames, budget)
        return select_frames(self.scores(frames, question, options), budget)


class AKS:
    """Adaptive keyframe sampling: top frames where they stand out, else time is halved (after arXiv 2502.21271).

    Args:
        scores: How well frames fit; brought to [0, 1] first.
        threshold: How far the mean of the best must lie above that of all.
        depth: Most halvings.
    """

    def __init__(self, scores: Scores, threshold: float = 0.2, depth: int = 5) -> None:
        self.scores, self.threshold, self.depth = scores, threshold, depth

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return the frames in time order."""
        _checked(frames, budget)
        found = self._split(_unit(self.scores(frames, question, options)), 0, budget, 0)
        return np.sort(np.array(found, np.int64))

    def _split(self, scores: Floats, start: int, budget: int, depth: int) -> list[int]:
        if budget <= 0 or not len(scores):
            return []
        best = select_frames(scores, min(budget, len(scores)))
        stands_out = scores[best].mean() - scores.mean() > self.threshold
        if stands_out or depth == self.depth or budget == 1 or len(scores) < 2 * budget:
            return list(map(int, best + start))
        half = len(scores) // 2
        first = (budget + 1) // 2
        return self._split(scores[:half], start, first, depth + 1) + self._split(
            scores[half:], start + half, budget - first, depth + 1
        )


class BOLT:
    """Frames drawn evenly from the distribution of sharpened similarity, by its inverse (after arXiv 2503.21483).

    Args:
        scores: How well frames fit; brought to [0, 1] first.
        power: How strongly it is sharpened.
    """

    def __init__(self, scores: Scores, power: float = 3.0) -> None:
        self.scores, self.power = scores, power

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return the frames in time order; what one frame would be drawn for twice goes to the best that are left."""
        _checked(frames, budget)
        weights = _unit(self.scores(frames, question, options)) ** self.power + 1e-9
        total = np.cumsum(weights) / weights.sum()
        drawn = np.unique(np.searchsorted(total, (np.arange(budget) + 0.5) / budget))
        left = np.where(np.isin(np.arange(len(weights)), drawn), -np.inf, weights)
        more = np.argsort(-left, kind="stable")[: budget - len(drawn)]
        return np.sort(np.concatenate([drawn, more]))


class MDP3:
    """A sequence of determinantal point processes over segments of the video (after arXiv 2501.02885).

    Args:
        embeddings: Of frames and words.
        weight: Of diversity over relevance, the paper's lambda.
        segment: Frames a segment.
    """

    def __init__(self, embeddings: Embeddings, weight: float = 0.2, segment: int = 32) -> None:
        self.embeddings, self.weight, self.segment = embeddings, weight, segment

    def select(self, frames: Any, question: str, options: Sequence[str], budget: int) -> Ints:
        """Return the frames in time order: the best of a dynamic programme over (segment, how many so far)."""
        count = _checked(frames, budget)
        pictures, words = self.embeddings(frames, question, options)
        relevance = (2 / self.weight) * np.log(np.maximum(_kernel(pictures, words[None])[:, 0], 1e-12))
        kernel = _kernel(pictures, pictures)
        traces: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        for start in range(0, count, self.segment):
            members = np.arange(start, min(start + self.segment, count))
            following: dict[int, tuple[float, list[int]]] = {}
            for taken, (value, trace) in sorted(traces.items()):
                gains = _greedy(kernel, relevance, members, trace[-1:], budget - taken)
                for more, (gain, chosen) in enumerate(gains):
                    if taken + more not in following or value + gain > following[taken + more][0]:
                        following[taken + more] = (value + gain, trace + chosen)
            traces = following
        return np.sort(np.array(traces[budget][1], np.int64))


def _kernel(one: Floats, two: Floats) -> Floats:
    """Return the sum of Gaussians of five widths, (n, m)."""
    squares = ((one[:, None] - two[None]) ** 2).sum(-1)
    return np.asarray(np.sum([np.exp(-squares / (2 * scale)) for scale in _SCALES], 0))


def _greedy(
    kernel: Floats, relevance: Floats, members: Ints, given: list[int], most: int
) -> list[tuple[float, list[int]]]:
    """Return for 0, 1 … frames of a segment the gain and the frames, chosen greedily, given the frame before.

    Diversity is the log determinant, kept up by rows of a Cholesky factor.
    """
    residual = kernel[members, members].copy()
    rows: list[Floats] = []
    for frame in given:
        row = kernel[frame, members] / np.sqrt(kernel[frame, frame])
        residual, rows = residual - row**2, [*rows, row]
    found, gain, chosen = [(0.0, list[int]())], 0.0, list[int]()
    open_ = np.ones(len(members), bool)
    for _ in range(min(most, len(members))):
        value = np.where(open_, relevance[members] + np.log(np.maximum(residual, 1e-12)), -np.inf)
        best = int(value.argmax())
        gain, chosen = gain + float(value[best]), [*chosen, int(members[best])]
        open_[best] = False
        row = kernel[members[best], members] - sum((one[best] * one for one in rows), np.zeros(len(members)))
        row = row / np.sqrt(max(residual[best], 1e-12))
        residual, rows = residual - row**2, [*rows, row]
        found.append((gain, chosen))
    return found


def _unit(scores: Floats) -> Floats:
    """Return scores brought to [0, 1]; equal ones become 0."""
    scores = np.asarray(scores, np.float64)
    spread = float(np.ptp(scores))
    return (scores - scores.min()) / spread if spread else np.zeros_like(scores)


class Row(NamedTuple):
    """How a selector did on a set of questions; tokens and operations are None where the model does not say them."""

    selector: str
    accuracy: float
    frames: float
    tokens: float | None
    flops: float | None
    seconds: float


def compare(
    selectors: Mapping[str, FrameSelector], questions: Sequence[Any], qa_model: VisionLanguageModel, budget: int
) -> list[Row]:
    """Return a table of how selectors do with the same number of frames.

    Args:
        selectors: By name.
        questions: With ``frames``, ``timestamps``, ``question``, ``options`` and ``answer``.
        qa_model: Answers on the frames that each selects.
        budget: Frames for every question.

    Raises:
        InputError: No question, or one that cannot be asked.
    """
    if not questions:
        raise InputError("questions: there is none")
    table = []
    for name, selector in selectors.items():
        right, tokens, began = 0, 0, time.process_time()
        for one in questions:
            times = checked_question(one.frames, one.question, one.options, one.timestamps)
            chosen = selector.select(one.frames, one.question, one.options, budget)
            shown = _taken(one.frames, chosen)
            logs = qa_model.option_logprobs(shown, times[chosen], one.question, one.options, None)
            right += int(normalised(logs).argmax()) == one.answer
            tokens += qa_model.token_count(len(chosen), None, one.question, one.options) or 0
        seconds, size = time.process_time() - began, len(questions)
        dims = getattr(qa_model, "dims", None)
        flops = None if dims is None or not tokens else forward_flops(tokens / size, dims)
        table.append(Row(name, right / size, float(budget), tokens / size or None, flops, seconds / size))
    return table
