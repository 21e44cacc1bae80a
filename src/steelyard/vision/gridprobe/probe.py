"""GridProbe in front of a model: 2K probes of K frames each, then one pass on the frames that they point at."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.models.vision.protocols import VisionLanguageModel
from steelyard.vision.gridprobe.core import (
    ALPHA,
    MIN_FRAMES,
    Floats,
    Ints,
    Rule,
    confidence,
    effective_budget,
    ghost_cells,
    importance_map,
    is_flat,
    merge_posteriors,
    normalised,
    probe_frames,
    select_frames,
    shape_statistic,
    uniform_frames,
)
from steelyard.vision.gridprobe.cost import forward_flops

_log = logging.getLogger(__name__)
Times = Sequence[float] | Floats
FOCUS = "focus"


class Counted(NamedTuple):
    """Tokens and operations of one or more passes; None where a model does not say them."""

    tokens: int | None
    flops: float | None


@dataclass(frozen=True)
class GridProbeCost:
    """What a question cost.

    Attributes:
        probes: All probes together.
        focus: The pass on the selected frames; 0 where there was none.
        monolithic: One pass on all K^2 frames at the focus resolution, for comparison.
        fine_probes: The probes, had they had the focus resolution.
    """

    probes: Counted
    focus: Counted
    monolithic: Counted
    fine_probes: Counted

    @property
    def flops(self) -> float | None:
        """Operations of probes and answer."""
        return _sum(self.probes, self.focus)

    @property
    def ratio(self) -> float | None:
        """Monolithic over GridProbe's operations, probes included; below 1 GridProbe costs more."""
        return _ratio(self.monolithic, self.flops)

    @property
    def full_resolution_ratio(self) -> float | None:
        """The same had the probes had the focus resolution."""
        return _ratio(self.monolithic, _sum(self.fine_probes, self.focus))


def _sum(one: Counted, two: Counted) -> float | None:
    return None if one.flops is None or two.flops is None else one.flops + two.flops


def _ratio(whole: Counted, paid: float | None) -> float | None:
    return None if whole.flops is None or not paid else whole.flops / paid


@dataclass(frozen=True)
class GridProbeAnswer:
    """What the probes say, and the answer on the frames that they select.

    Attributes:
        answer: Index of the option; None where only frames were selected.
        probs: Probability of each option in the focused pass, (options,); None likewise.
        frame_ids: Frames of the video that were selected, in time order.
        importance: Of the K^2 sampled frames, (K, K).
        sampled: Which frame of the video each cell is, (K, K).
        row_conf: Confidence of the row probes, (K,).
        col_conf: Of the column probes, (K,).
        m_eff: The budget: how many cells were selected, before doubles of a short video are dropped.
        sigma: The map's shape.
        ensemble_probs: Mean of the probes' log-posteriors, (options,): an answer that needs no focused pass.
        padded: Cells that repeat the last frame, as the video has fewer frames than the grid.
        needed: Cells where bright rows and columns cross; a budget below it may leave evidence out.
        cost: Tokens and operations.
        settings: K, alpha and resolutions, as they took effect.
    """

    answer: int | None
    probs: Floats | None
    frame_ids: Ints
    importance: Floats
    sampled: Ints
    row_conf: Floats
    col_conf: Floats
    m_eff: int
    sigma: float
    ensemble_probs: Floats
    padded: int
    needed: int
    cost: GridProbeCost
    settings: dict[str, Any]


class GridProbe:
    """Selects frames by a model's own confidence, and answers on them.

    Args:
        model: Reads the probes; a `VisionLanguageModel`.
        k: Side of the grid: K^2 frames are sampled, 2K probes of K frames are read.
        alpha: How strongly the map's shape shortens the budget.
        min_frames: Lower bound of the budget.
        max_frames: Upper bound; None: K^2.
        probe_pixels: Pixels a frame in the probes. There is no default, as it decides whether anything is saved: a
            number, or ``"focus"`` for the resolution of the answer, with a warning of what that costs.
        focus_pixels: Pixels a frame in the answer; None: as the frames come.
        combine: ``"product"`` or ``"sum"``.
        rule: Of the budget, see :func:`steelyard.vision.effective_budget`.
        budget: A fixed budget in place of the rule's.
        debias: ``"permute"`` averages each probe over the rotations of the options (ours): so many times the cost.
        batch_probes: Whether the probes share a call, where the model takes batches.
        probe_batch_size: Most probes a call; None: all.
        strict: See :func:`steelyard.vision.effective_budget`.

    Raises:
        InputError: An argument is out of its range, or ``probe_pixels`` is not given.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        k: int = 12,
        alpha: float = ALPHA,
        min_frames: int = MIN_FRAMES,
        max_frames: int | None = None,
        *,
        probe_pixels: int | Literal["focus"] | None = None,
        focus_pixels: int | None = None,
        combine: str = "product",
        rule: Rule = "shape",
        budget: int | None = None,
        debias: Literal["permute"] | None = None,
        batch_probes: bool = True,
        probe_batch_size: int | None = None,
        strict: bool = False,
    ) -> None:
        if not isinstance(model, VisionLanguageModel):
            raise InputError(f"model must be a VisionLanguageModel, got {type(model).__name__}")
        if probe_pixels is None:
            raise InputError(
                "probe_pixels: say how many pixels a frame has in the probes, or 'focus'; it decides what is saved"
            )
        if isinstance(probe_pixels, str) and probe_pixels != FOCUS:
            raise InputError(f"probe_pixels must be a number or 'focus', got {probe_pixels!r}")
        if debias not in (None, "permute"):
            raise InputError(f"debias must be 'permute' or None, got {debias!r}")
        effective_budget(np.eye(2) if rule != "shape" else 0.0, None if rule != "shape" else k, alpha=alpha, rule=rule,
                         min_frames=1)  # fmt: skip
        for name, number in (("budget", budget), ("probe_batch_size", probe_batch_size)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise InputError(f"{name} must be a whole number of at least 1, got {number!r}")
        self.model, self.k, self.alpha, self.combine, self.rule = model, k, alpha, combine, rule
        self.min_frames, self.max_frames, self.budget, self.strict = min_frames, max_frames, budget, strict
        self.focus_pixels = focus_pixels
        self.probe_pixels = focus_pixels if isinstance(probe_pixels, str) else probe_pixels
        self.debias, self.batch_probes, self.probe_batch_size = debias, batch_probes, probe_batch_size
        if probe_pixels == FOCUS:
            _log.warning(
                "probe_pixels='focus': probes as fine as the answer cost up to all that is saved; see cost.ratio"
            )

    def select(
        self, frames: Any, question: str, options: Sequence[str], timestamps: Times | None = None
    ) -> GridProbeAnswer:
        """Return the frames to read, without answering; arguments as in :meth:`answer`."""
        return self._asked(frames, question, options, timestamps, None)

    def answer(
        self,
        frames: Any,
        question: str,
        options: Sequence[str],
        qa_model: VisionLanguageModel | None = None,
        timestamps: Times | None = None,
    ) -> GridProbeAnswer:
        """Select frames and answer on them.

        Args:
            frames: The video in time order: (n, height, width, 3) or a list of pictures.
            question: In words. Neither it nor the options say which is right.
            options: The answers in words, at least two.
            qa_model: Answers in the place of the probing model.
            timestamps: Time of each frame; None: its share of the video.

        Raises:
            InputError: No frame, fewer than two options or two alike, or a probe without a possible option.
        """
        return self._asked(frames, question, options, timestamps, qa_model or self.model)

    def _asked(
        self, frames: Any, question: str, options: Sequence[str], timestamps: Any, qa_model: VisionLanguageModel | None
    ) -> GridProbeAnswer:
        times = checked_question(frames, question, options, timestamps)
        side, count = self.k, len(frames)
        grid = uniform_frames(count, side * side) if count >= side * side else _padded(count, side * side)
        posteriors = self._probes(frames, times, grid, question, options)
        rows, columns = confidence(posteriors[:side]), confidence(posteriors[side:])
        importance = importance_map(rows, columns, combine=self.combine)
        m_eff = self._budget(importance)
        chosen = np.unique(grid[select_frames(importance, m_eff)])
        probs = None
        if qa_model is not None:
            shown = _taken(frames, chosen)
            probs = normalised(qa_model.option_logprobs(shown, times[chosen], question, options, self.focus_pixels))
        return GridProbeAnswer(
            answer=None if probs is None else int(probs.argmax()),
            probs=probs,
            frame_ids=chosen,
            importance=importance,
            sampled=grid.reshape(side, side),
            row_conf=rows,
            col_conf=columns,
            m_eff=m_eff,
            sigma=shape_statistic(importance).sigma,
            ensemble_probs=merge_posteriors(posteriors),
            padded=max(0, side * side - count),
            needed=ghost_cells(side, importance=importance).needed,
            cost=self._cost(qa_model, len(chosen), question, options),
            settings={
                "k": side, "alpha": self.alpha, "rule": self.rule, "combine": self.combine, "frames": count,
                "probe_pixels": self.probe_pixels, "focus_pixels": self.focus_pixels,
            },
        )  # fmt: skip

    def _budget(self, importance: Floats) -> int:
        most = self.k * self.k
        if self.budget is not None:
            return min(self.budget, most)
        least = min(self.min_frames, most if self.max_frames is None else self.max_frames)
        if is_flat(importance, strict=self.strict) and self.rule == "shape":
            return most if self.max_frames is None else min(most, self.max_frames)
        return effective_budget(
            importance, alpha=self.alpha, min_frames=least, max_frames=self.max_frames, rule=self.rule,
            strict=self.strict,
        )  # fmt: skip

    def _probes(self, frames: Any, times: Floats, grid: Ints, question: str, options: Sequence[str]) -> Floats:
        """Return the posterior of every probe, (2K, options)."""
        clips = grid[probe_frames(self.k)]
        if self.debias is None:
            return normalised(self._read(frames, times, clips, question, options))
        turned = []
        for shift in range(len(options)):
            order = np.roll(np.arange(len(options)), shift)
            logs = np.log(normalised(self._read(frames, times, clips, question, [options[int(at)] for at in order])))
            turned.append(logs[:, np.argsort(order)])
        return normalised(np.mean(turned, 0))

    def _read(self, frames: Any, times: Floats, clips: Ints, question: str, options: Sequence[str]) -> Floats:
        """Return log-probabilities of the options for clips of frames, (clips, options)."""
        encode = getattr(self.model, "encode_frames", None)
        together = getattr(self.model, "option_logprobs_batch", None) if self.batch_probes else None
        used = np.unique(clips)
        cached = _taken(frames, used) if encode is None else encode(_taken(frames, used), self.probe_pixels)
        at = np.searchsorted(used, clips)
        if together is None:
            found = [
                self.model.option_logprobs(_taken(cached, own), times[clip], question, options, self.probe_pixels)
                for own, clip in zip(at, clips, strict=True)
            ]
            return np.asarray(found, np.float64)
        size = self.probe_batch_size or len(clips)
        parts = [
            together(
                [_taken(cached, own) for own in at[start : start + size]], list(times[clips[start : start + size]]),
                question, options, self.probe_pixels,
            )
            for start in range(0, len(clips), size)
        ]  # fmt: skip
        return np.concatenate(parts).astype(np.float64)

    def _cost(
        self, qa_model: VisionLanguageModel | None, selected: int, question: str, options: Sequence[str]
    ) -> GridProbeCost:
        reader, side = qa_model or self.model, self.k
        turns = len(options) if self.debias else 1

        def counted(model: VisionLanguageModel, count: int, pixels: int | None, times: int = 1) -> Counted:
            """Return tokens and operations of equal passes, None for what the model does not know."""
            tokens = model.token_count(count, pixels, question, options)
            if tokens is None:
                return Counted(None, None)
            flops = None if model.dims is None else times * forward_flops(tokens, model.dims)
            return Counted(times * tokens, flops)

        probes = counted(self.model, side, self.probe_pixels, 2 * side * turns)
        fine = counted(self.model, side, self.focus_pixels, 2 * side * turns)
        focus = Counted(0, 0.0) if qa_model is None else counted(reader, selected, self.focus_pixels)
        return GridProbeCost(probes, focus, counted(reader, side * side, self.focus_pixels), fine)


def checked_question(frames: Any, question: str, options: Sequence[str], timestamps: Any) -> Floats:
    """Return the time of every frame, once the arguments of a question are in order; raises InputError otherwise."""
    try:
        count = len(frames)
    except TypeError:
        raise InputError(f"frames must be an array or a list of pictures, got {type(frames).__name__}") from None
    if not count:
        raise InputError("frames: the video has none")
    if not isinstance(question, str) or not question.strip():
        raise InputError("question must be a text that is not empty")
    if isinstance(options, str) or len(options) < 2:
        raise InputError("options: there must be at least two; with one its probability is 1 whatever is seen")
    if len(set(options)) != len(options):
        raise InputError("options: two are the same")
    times = np.arange(count) / count if timestamps is None else np.asarray(timestamps, np.float64)
    if times.shape != (count,) or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InputError(f"timestamps must be {count} finite numbers that do not fall, one a frame")
    return times


def _padded(count: int, cells: int) -> Ints:
    """Return all frames of a short video, the last one repeated."""
    return np.minimum(np.arange(cells), count - 1)


def _taken(frames: Any, chosen: Ints) -> Any:
    """Return some frames of an array, a list, or a model's own features."""
    if hasattr(frames, "take") and not isinstance(frames, np.ndarray):
        return frames.take(chosen)
    return frames[chosen] if isinstance(frames, np.ndarray) else [frames[int(at)] for at in chosen]
