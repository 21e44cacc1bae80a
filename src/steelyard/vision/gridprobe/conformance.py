"""Probes for the checks that every method passes; the acceptance test takes any rule from confidences to frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.models.vision.tiny_vlm import FULL, LOW, TinyVLM
from steelyard.models.vision.world import tiny_videos
from steelyard.rng import generator
from steelyard.vision.gridprobe.core import (
    Floats,
    Ints,
    effective_budget,
    evidence_hit_rate,
    ghost_cells,
    importance_map,
    letter_posterior,
    merge_posteriors,
    normalised,
    select_frames,
    shape_statistic,
    uniform_frames,
)
from steelyard.vision.gridprobe.cost import forward_flops, gridprobe_flops
from steelyard.vision.gridprobe.probe import GridProbe

Selection = Callable[[Floats, Floats], Ints]
"""From the confidence of rows and of columns to the cells that are read, in time order."""

_SIDE, _QUESTIONS = 8, 40
_HITS, _MOST = 0.9, 0.3  # of the evidence, and of the frames


def selected(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return GridProbe's selection at its defaults."""
    cells = importance_map(row_conf, col_conf)
    return select_frames(cells, effective_budget(cells))


def _confidences(seed: int, dtype: str = "float64") -> tuple[Any, Any]:
    draws = generator("conformance", "gridprobe/confidences", seed)
    return tuple((0.25 + 0.75 * draws.random(_SIDE)).astype(dtype) for _ in range(2))  # type: ignore[return-value]


def _run(seed: int, dtype: str) -> Arrays:
    rows, columns = _confidences(seed, dtype)
    cells = importance_map(rows, columns)
    return {"importance": cells, "frames": select_frames(cells, effective_budget(cells))}


def _noop() -> tuple[Arrays, Arrays]:
    """Without any weight on shape all frames are read."""
    cells = importance_map(*_confidences(0))
    every = np.arange(_SIDE * _SIDE)
    return {"frames": select_frames(cells, effective_budget(cells, alpha=0.0))}, {"frames": every}


def _effect() -> tuple[Arrays, Arrays]:
    cells = importance_map(*_confidences(0))
    return {"frames": np.array([effective_budget(cells)])}, {"frames": np.array([_SIDE * _SIDE])}


def _answers(batch: int | None) -> Arrays:
    question = tiny_videos(generator("conformance", "gridprobe/video", 0), 1, _SIDE * _SIDE)[0]
    probe = GridProbe(TinyVLM.load_default(), _SIDE, probe_pixels=LOW, focus_pixels=FULL, probe_batch_size=batch)
    found = probe.answer(question.frames, question.question, question.options, timestamps=question.timestamps)
    return {"frames": found.frame_ids, "answer": np.array([found.answer])}


def _resumed() -> tuple[Arrays, Arrays]:
    """Probes read in one batch, and the same ones five at a time."""
    return _answers(None), _answers(5)


def _untouched() -> tuple[Arrays, Arrays]:
    rows, columns = _confidences(0)
    before = {"rows": rows.copy(), "columns": columns.copy()}
    selected(rows, columns)
    return before, {"rows": rows, "columns": columns}


def acceptance(selection: Selection) -> None:
    """Check that a selection finds what the questions of two checkpoints are about, with few frames.

    Of specific questions nine in ten evidence frames must be selected by three in ten of the frames, and the right
    answers of the pass on them must be more than those on as many frames evenly apart.
    """
    hits, share, right, even = [], [], 0, 0
    for seed in (0, 1):
        model = TinyVLM.load_default(seed)
        probe = GridProbe(model, _SIDE, probe_pixels=LOW, focus_pixels=FULL)
        draws = generator("conformance", "gridprobe/acceptance", seed)
        for one in tiny_videos(draws, _QUESTIONS, _SIDE * _SIDE, kinds=("specific",)):
            found = probe.select(one.frames, one.question, one.options, timestamps=one.timestamps)
            chosen = np.asarray(selection(found.row_conf, found.col_conf))
            if (np.diff(chosen) <= 0).any():
                raise AssertionError("frames must be selected once each and in time order")
            hits.append(evidence_hit_rate(chosen, one.evidence))
            share.append(len(chosen) / _SIDE**2)
            for frames, add in ((chosen, 0), (uniform_frames(_SIDE**2, len(chosen)), 1)):
                logs = model.option_logprobs(one.frames[frames], one.timestamps[frames], one.question, one.options)
                hit = int(logs.argmax()) == one.answer
                right, even = right + hit * (1 - add), even + hit * add
    if np.mean(hits) < _HITS:
        raise AssertionError(f"{np.mean(hits):.2f} of the evidence frames were selected, {_HITS} are needed")
    if np.mean(share) > _MOST:
        raise AssertionError(f"{np.mean(share):.2f} of the frames were selected, at most {_MOST} may be")
    if right < even + 10:
        raise AssertionError(f"{right} right answers, {even} on as many frames evenly apart")


def constant(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return the same frames whatever the probes say: a dummy."""
    return np.arange(12)


def uniform(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return frames evenly apart, as many as GridProbe would take: a dummy."""
    return uniform_frames(len(row_conf) ** 2, len(selected(row_conf, col_conf)))


def random(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return random frames, as many as GridProbe would take: a dummy."""
    draws = generator("conformance", "gridprobe/random", int(1e6 * float(np.sum(row_conf))))
    return np.sort(draws.permutation(len(row_conf) ** 2)[: len(selected(row_conf, col_conf))])


def identity(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return all frames: a dummy."""
    return np.arange(len(row_conf) ** 2)


def least_sure(row_conf: Floats, col_conf: Floats) -> Ints:
    """Return the frames of which the model is least sure: a dummy."""
    cells = importance_map(row_conf, col_conf)
    return select_frames(-cells, effective_budget(cells))


def _probe(**options: Any) -> GridProbe:
    return GridProbe(TinyVLM.load_default(), **{"k": _SIDE, "probe_pixels": LOW, **options})


_VIDEO = np.zeros((4, 16, 16, 3), np.float32)
_QUESTION, _OPTIONS = "What colour is the background?", ("red", "green", "blue", "cyan")
BAD = (
    BadInput("no resolution", lambda: GridProbe(TinyVLM.load_default(), 8), "probe_pixels"),
    BadInput("one row", lambda: _probe(k=1), "k must be"),
    BadInput("one option", lambda: _probe().answer(_VIDEO, _QUESTION, ("red",)), "options"),
    BadInput("doubled options", lambda: _probe().answer(_VIDEO, _QUESTION, ("red", "red")), "options"),
    BadInput("no frame", lambda: _probe().answer(_VIDEO[:0], _QUESTION, _OPTIONS), "frames"),
    BadInput("times that fall", lambda: _probe().answer(_VIDEO, _QUESTION, _OPTIONS, timestamps=[3, 2, 1, 0]),
             "timestamps"),
    BadInput("no model", lambda: GridProbe(5, probe_pixels=64), "model"),  # type: ignore[arg-type]
    BadInput("NaN logits", lambda: letter_posterior([0.0, np.nan], [[0], [1]]), "logits"),
    BadInput("NaN of a probe", lambda: normalised([[0.0, 0.0], [np.nan, 0.0]]), "probe 1"),
    BadInput("confidence of 0", lambda: importance_map([0.0, 1.0], [0.5, 0.5]), "row_conf"),
    BadInput("uneven sides", lambda: importance_map([0.5, 1.0], [0.5] * 3), "col_conf"),
    BadInput("no map", lambda: shape_statistic(), "importance"),
    BadInput("unknown rule", lambda: effective_budget(np.eye(3), rule="best"), "rule"),  # type: ignore[arg-type]
    BadInput("sigma without k", lambda: effective_budget(1.0), "k must be"),
    BadInput("too many frames", lambda: select_frames(np.eye(2), 5), "budget"),
    BadInput("cells off the grid", lambda: ghost_cells(2, evidence=[4]), "evidence"),
    BadInput("unknown merge", lambda: merge_posteriors([[0.5, 0.5]], "best"), "rule"),  # type: ignore[arg-type]
    BadInput("rho of 0", lambda: gridprobe_flops(8, TinyVLM().dims, k=2, fraction=1.0, rho=0.0), "rho"),
    BadInput("tokens below 0", lambda: forward_flops(-1, TinyVLM().dims), "n_tokens"),
)  # fmt: skip

CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64",),
    bad_inputs=BAD,
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=selected,
    acceptance=acceptance,
    dummies={
        "constant": constant, "random": random, "uniform": uniform, "identity": identity, "least sure": least_sure,
    },
)  # fmt: skip
