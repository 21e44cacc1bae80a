"""One cell: a checkpoint of the small model and questions of its own, on which every way to choose frames answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from steelyard.contracts import CellInput, Grid, Measured
from steelyard.models.vision.tiny_vlm import FULL, LOW, SEEDS, FrameFeatures, TinyVLM
from steelyard.models.vision.world import COLOURS, KINDS, NONE, SHAPES, Question, tiny_videos
from steelyard.vision.gridprobe.arms import ARMS, CARRIER, CHANCE, flat
from steelyard.vision.gridprobe.core import (
    Floats,
    Ints,
    effective_budget,
    evidence_hit_rate,
    importance_map,
    normalised,
    select_frames,
)
from steelyard.vision.gridprobe.cost import forward_flops
from steelyard.vision.gridprobe.pictures import map_picture
from steelyard.vision.gridprobe.probe import GridProbe, GridProbeAnswer
from steelyard.vision.gridprobe.selectors import AKS, BOLT, MDP3, RandomFrames, TopSimilarity, UniformFrames

_FIXED = 8
_SETTINGS = {arm.name: arm.config for arm in ARMS}


class Asked(NamedTuple):
    """A question with the features of its frames at both resolutions."""

    question: Question
    full: FrameFeatures
    low: FrameFeatures


class Outcome(NamedTuple):
    """What an arm made of a question: was it right, frames and tokens of its answer, and operations of everything."""

    right: bool
    frames: int
    tokens: int
    flops: float
    chosen: Ints


def run(cell: CellInput) -> Measured:
    """Compute one cell; the seed says which of the ten checkpoints answers."""
    if cell.arm == CHANCE:
        return Measured({"accuracy": 0.25}, steps=1)
    side, frames = int(cell.data["side"]), int(cell.data["frames"])
    model = TinyVLM.load_default(cell.seed % SEEDS)
    questions = tiny_videos(cell.rng("questions"), int(cell.params["questions"]), frames)
    probe = GridProbe(model, side, probe_pixels=LOW, focus_pixels=FULL)
    fine = GridProbe(model, side, probe_pixels=FULL, focus_pixels=FULL)
    draws, found, probed = cell.rng("random frames"), list[dict[str, Outcome]](), list[GridProbeAnswer]()
    for question in questions:
        asked = Asked(question, model.encode_frames(question.frames, FULL), model.encode_frames(question.frames, LOW))
        answer = probe.answer(question.frames, question.question, question.options, timestamps=question.timestamps)
        outcomes = dict(_outcomes(model, asked, answer, draws))
        outcomes["fine_probes"] = _probed(
            fine.answer(question.frames, question.question, question.options, timestamps=question.timestamps), question
        )
        found.append(outcomes)
        probed.append(answer)
    metrics = {name: value for arm in found[0] for name, value in flat(arm, _figures(arm, found, questions)).items()}
    metrics |= _of_budgets(found, probed, questions)
    pictures = tuple(_pictures(questions, probed)) if cell.seed == 0 else ()
    return Measured(metrics, steps=len(questions), notes={"checkpoint": cell.seed % SEEDS}, diagrams=pictures)


def _pictures(questions: list[Question], probed: list[GridProbeAnswer]) -> Iterator[Grid]:
    """Yield the map of the first question of three kinds: of one frame, of all frames, and of several."""
    for kind in ("specific", "scene", "count"):
        at = next((place for place, one in enumerate(questions) if one.kind == kind), None)
        if at is not None:
            one = questions[at]
            said = one.options[int(probed[at].ensemble_probs.argmax())]
            title = f"{one.question} ({one.options[one.answer]}; the probes say {said})"
            yield map_picture(probed[at], one.frames, f"map_{kind}", title)


def _probed(answer: GridProbeAnswer, question: Question) -> Outcome:
    cost = answer.cost
    tokens = (cost.probes.tokens or 0) + (cost.focus.tokens or 0)
    return Outcome(answer.answer == question.answer, len(answer.frame_ids), tokens, cost.flops or 0.0, answer.frame_ids)


def _outcomes(
    model: TinyVLM, asked: Asked, answer: GridProbeAnswer, draws: np.random.Generator
) -> Iterator[tuple[str, Outcome]]:
    """Yield what every arm makes of a question; those that probe pay for the probes."""
    question, budget, every = asked.question, answer.m_eff, np.arange(len(asked.full))
    probing = answer.cost.probes.flops or 0.0, answer.cost.probes.tokens or 0
    yield CARRIER, _probed(answer, question)
    for name, chosen in _maps(answer):
        yield name, _read(model, asked, chosen, probing)
    ensemble = int(answer.ensemble_probs.argmax()) == question.answer
    yield "ensemble", Outcome(ensemble, 0, probing[1], probing[0], every[:0])
    yield "monolithic", _read(model, asked, every)
    yield "monolithic_low", _read(model, asked, every, low=True)
    for name, chosen in _others(model, asked, budget, draws):
        yield name, _read(model, asked, chosen)
    yield "evidence", _read(model, asked, question.evidence)
    grey = FrameFeatures(asked.low.tokens[:1] * 0, LOW)
    blind = model.option_logprobs(grey, question.timestamps[:1], question.question, question.options)
    yield "blind", Outcome(int(blind.argmax()) == question.answer, 0, 0, 0.0, every[:0])


def _maps(answer: GridProbeAnswer) -> Iterator[tuple[str, Ints]]:
    """Yield the frames that other readings of the same probes select."""
    yield "fixed8", select_frames(answer.importance, _FIXED)
    for name in ("sum_map", "alpha1", "alpha10", "participation", "mean", "otsu"):
        settings = dict(_SETTINGS[name])
        cells = importance_map(answer.row_conf, answer.col_conf, combine=settings.pop("combine", "product"))
        yield name, select_frames(cells, effective_budget(cells, **settings))


def _others(model: TinyVLM, asked: Asked, budget: int, draws: np.random.Generator) -> Iterator[tuple[str, Ints]]:
    """Yield the frames of selectors that do not probe, as many as GridProbe took."""
    question = asked.question
    by_words = _fixed(model.similarity(asked.low, words(question)))
    chosen: dict[str, tuple[Any, int]] = {
        "uniform": (UniformFrames(), budget),
        "random_frames": (RandomFrames(draws), budget),
        "uniform8": (UniformFrames(), _FIXED),
        "detector": (TopSimilarity(_fixed(detected(model, asked))), budget),
        "similarity": (TopSimilarity(by_words), budget),
        "similarity8": (TopSimilarity(by_words), _FIXED),
        "aks": (AKS(by_words), budget),
        "bolt": (BOLT(by_words), budget),
        "mdp3": (MDP3(lambda *_: model.embeddings(asked.low, words(question))), budget),
    }
    for name, (selector, count) in chosen.items():
        yield name, selector.select(question.frames, question.question, question.options, count)


def _fixed(scores: Floats) -> Callable[..., Floats]:
    return lambda *_: scores


def words(question: Question) -> tuple[str, ...]:
    """Return the words that an encoder is given: the shape that is asked about, else the options."""
    return question.options if question.about == NONE else (SHAPES[question.about],)


def detected(model: TinyVLM, asked: Asked) -> Floats:
    """Return how surely a frame shows what the question is about, by the model's own supervised head, (T,)."""
    shape, _, _ = model.detect(asked.low.tokens)
    named = shape.double().softmax(-1).numpy()
    question = asked.question
    if question.about != NONE:
        return np.asarray(named[:, question.about])
    if question.options[0] in COLOURS:
        return np.zeros(len(named))  # a background is everywhere
    return np.asarray(named[:, [SHAPES.index(option) for option in question.options]].max(1))


def _read(
    model: TinyVLM, asked: Asked, chosen: Ints, probing: tuple[float, int] = (0.0, 0), *, low: bool = False
) -> Outcome:
    """Answer on some frames and add up what that costs."""
    question, features = asked.question, asked.low if low else asked.full
    shown = features.take(chosen)
    logs = model.option_logprobs(shown, question.timestamps[chosen], question.question, question.options)
    tokens = model.token_count(len(chosen), features.resolution, question.question, question.options)
    right = int(normalised(logs).argmax()) == question.answer
    return Outcome(right, len(chosen), tokens + probing[1], forward_flops(tokens, model.dims) + probing[0], chosen)


def _figures(arm: str, found: list[dict[str, Outcome]], questions: list[Question]) -> dict[str, float]:
    """Return an arm's means over the questions, and over those of each kind."""
    outcomes = [outcome[arm] for outcome in found]
    kinds = np.array([question.kind for question in questions])
    right, frames = np.array([one.right for one in outcomes]), np.array([one.frames for one in outcomes])
    figures = {
        "accuracy": float(right.mean()),
        **{f"accuracy_{kind}": float(right[kinds == kind].mean()) for kind in KINDS},
    }
    if arm in ("blind", "evidence"):
        return figures
    hits = [
        evidence_hit_rate(one.chosen, question.evidence)
        for one, question in zip(outcomes, questions, strict=True)
        if question.kind == "specific" and arm != "ensemble"
    ]
    return figures | {
        "frames": float(frames.mean()),
        **{f"frames_{kind}": float(frames[kinds == kind].mean()) for kind in KINDS},
        "mflops": float(np.mean([one.flops for one in outcomes])) / 1e6,
        "tokens": float(np.mean([one.tokens for one in outcomes])),
        **({"hit_rate": float(np.mean(hits))} if hits else {}),
    }


def _of_budgets(
    found: list[dict[str, Outcome]], probed: list[GridProbeAnswer], questions: list[Question]
) -> dict[str, float]:
    """Return how the budget goes with difficulty, and what is saved."""
    budget = np.array([answer.m_eff for answer in probed], np.float64)
    right = np.array([outcome["monolithic"].right for outcome in found])
    kinds = np.array([question.kind for question in questions])
    mean = {kind: float(budget[kinds == kind].mean()) for kind in KINDS}
    low = budget <= np.median(budget)
    whole = sum(answer.cost.monolithic.flops or 0.0 for answer in probed)
    paid = {arm: sum(outcome[arm].flops for outcome in found) for arm in (CARRIER, "fine_probes")}
    varied = np.ptp(budget) > 0 and 0 < right.mean() < 1
    figures = {
        "tracking": float(spearmanr(budget, ~right)[0]) if varied else 0.0,
        "easy": float(right[low].mean()),
        "count_specific": float(np.log(mean["count"] / mean["specific"])),
        "order_specific": float(np.log(mean["order"] / mean["specific"])),
        "saving": whole / paid[CARRIER],
        "fine_saving": whole / paid["fine_probes"],
        "uncovered": float(np.mean([answer.m_eff < answer.needed for answer in probed])),
    }
    return figures | ({"hard": float(right[~low].mean())} if (~low).any() else {})
