"""Probes for the checks that every method passes; the acceptance test takes a detector in any form."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard import rng
from steelyard.contracts import Arrays, BadInput, CellInput, Conformance
from steelyard.guard.discrepancy import answering, tasks
from steelyard.guard.discrepancy.answering import Answers
from steelyard.guard.discrepancy.core import discrepancy_from_states, eigenscore, score_from_states, unbiased_hsic
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.labels import label_answers
from steelyard.guard.discrepancy.measure import auroc, auroc_within_lengths
from steelyard.guard.discrepancy.theory import detector_cost
from steelyard.models.default import load_default_lm
from steelyard.models.tiny import tiny_random_lm
from steelyard.models.transformers_lm import TransformersLM

Detector = Callable[[TransformersLM], Any]
"""From a language model to what has ``score(questions, responses, contexts)``."""

_PLANTED_AREA = 0.8  # D reaches .9 and more; a score blind to the passage .5 up to chance
_LEAST_SPREAD = 1e-4
_WORDS = ("amber", "boat", "cedar", "dune", "ember", "fern", "gull", "harp")


def _texts(seed: int, count: int = 4) -> list[str]:
    draws = rng.generator("conformance", "texts", seed)
    return [" ".join(_WORDS[place] for place in draws.integers(len(_WORDS), size=3)) for _ in range(count)]


@functools.cache
def _tiny() -> TransformersLM:
    return tiny_random_lm(seed=0)


def _run(seed: int, dtype: str) -> Arrays:
    """Score random answers by a tiny random model; and random states. Scores are float64 whatever the states are."""
    asked, answers = _texts(seed), _texts(seed + 1000)
    context, alone = rng.generator("conformance", "states", seed).standard_normal((2, 3, 5, 8)).astype(dtype)
    score = EmbeddingDiscrepancy(_tiny()).score(asked, answers)
    return {"core": score_from_states(context, alone, None, "token"), "score": score}


def _noop() -> tuple[Arrays, Arrays]:
    """With the same text before the answer in both passes there is no influence: exactly 0."""
    asked, answers = _texts(0), _texts(1)
    score = EmbeddingDiscrepancy(_tiny()).score(None, answers, condition=asked, base=asked)
    return {"discrepancy": np.abs(score)}, {"discrepancy": np.zeros(len(answers))}


def _effect() -> tuple[Arrays, Arrays]:
    asked, answers = _texts(0), _texts(1)
    score = EmbeddingDiscrepancy(_tiny()).score(asked, answers)
    return {"discrepancy": np.abs(score)}, {"discrepancy": np.zeros(len(answers))}


def _resumed() -> tuple[Arrays, Arrays]:
    """A detector that has seen a pool of answers, and one made anew from what the first had taken from it."""
    asked, answers = _texts(2), _texts(3)
    whole = EmbeddingDiscrepancy(_tiny())
    center = whole.fit_center(asked, answers)
    stored = io.BytesIO()
    np.savez(stored, center=center, threshold=whole.fit_threshold(whole.score(asked, answers)))
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as kept:
        restored = EmbeddingDiscrepancy(_tiny(), center=kept["center"])
        restored.threshold = float(kept["threshold"])
    later = _texts(6), _texts(7)
    scores = [detector.score(*later) for detector in (whole, restored)]
    one, other = (
        {"score": score, "predicted": detector.predict(score)}
        for detector, score in zip((whole, restored), scores, strict=True)
    )
    return one, other


def _untouched() -> tuple[Arrays, Arrays]:
    states = rng.generator("conformance", "states", 7).standard_normal((2, 3, 5, 8))
    context, alone = states
    mask = np.ones((3, 5), dtype=bool)
    weights = {name: value.numpy() for name, value in _tiny().model.state_dict().items()}
    asked, answers = _texts(0), _texts(1)
    before = {"states": states.copy(), "mask": mask.copy(), "texts": np.array([*asked, *answers])}
    before |= {name: value.copy() for name, value in weights.items()}
    score_from_states(context, alone, mask)
    EmbeddingDiscrepancy(_tiny()).score(asked, answers)
    return before, {"states": states, "mask": mask, "texts": np.array([*asked, *answers]), **weights}


@functools.cache
def _planted() -> tuple[TransformersLM, Answers]:
    """Return SmolLM2 and, for questions of the project, an answer copied from the passage and one planted."""
    cell = CellInput("planted", "planted", {}, {}, {}, 0, tasks.own_questions(), root="tuning")
    lm = load_default_lm()
    every = tasks.all_questions(cell.data)
    lengths = [len(lm.response_ids(question.golds[0])) for question in every]
    pairs = tasks.planted_pairs(tasks.questions_of(cell), every, lengths, cell.rng("planted"))
    return lm, answering.given_answers(pairs, lm)


def deaf_model() -> TransformersLM:
    """Return a tiny model whose tokens cannot look at each other: no text before an answer changes its states."""
    lm = tiny_random_lm(seed=1)
    with torch.no_grad():
        for name, weight in lm.model.named_parameters():
            if name.endswith("o_proj.weight"):
                weight.zero_()
    return lm


def acceptance(implementation: Detector) -> None:
    """Demand of a detector that it measures how much the text before an answer changes the model's states.

    On SmolLM2 and passages of invented facts, answers copied from the passage must be told from answers planted from
    another passage, at equal numbers of tokens (so no score by length can). With a model whose tokens cannot look at
    each other nothing is changed, so every score must be the same: a score that compares texts would still tell them
    apart. This shows that an influence is measured, not that hallucinations are found; the bench weighs that.

    Raises:
        AssertionError: It is not so.
    """
    check_deaf(implementation)
    lm, answers = _planted()
    scores = _scores(implementation(lm), answers.questions, answers.responses, answers.contexts)
    lengths = [len(ids) for ids in answers.tokens]
    assert np.mean(lengths) == np.mean([t for t, wrong in zip(lengths, answers.wrong, strict=True) if wrong])
    for name, area in (
        ("AUROC", auroc(scores, answers.wrong)),
        ("AUROC at like lengths", auroc_within_lengths(scores, answers.wrong, lengths)),
    ):
        assert area >= _PLANTED_AREA, f"planted answers are told from copied ones with an {name} of {area:.2f} only"


def check_deaf(implementation: Detector) -> None:
    """Scores must not differ where no text before an answer can change the model's states, and differ where it can.

    Raises:
        AssertionError: They do, or do not.
    """
    asked, answers = _texts(4, 8), _texts(5, 8)
    deaf = _scores(implementation(deaf_model()), asked, answers, None)
    assert np.ptp(deaf) <= _LEAST_SPREAD, f"scores differ by {np.ptp(deaf):.4f} where the question can change nothing"
    hearing = _scores(implementation(_tiny()), asked, answers, None)
    assert np.ptp(hearing) > _LEAST_SPREAD, "scores are all the same, whatever the question changes"


def _scores(detector: Any, questions: Sequence[str], responses: Sequence[str], contexts: Any) -> NDArray[np.float64]:
    scores = np.asarray(detector.score(list(questions), list(responses), contexts), dtype=np.float64)
    assert scores.shape == (len(responses),), f"{len(responses)} answers got scores of shape {scores.shape}"
    assert np.isfinite(scores).all(), "a score is not finite"
    return scores


class _Dummy:
    """A detector that never runs the model."""

    def __init__(self, score: Callable[[str], float]) -> None:
        self._score = score

    def score(self, questions: Sequence[str], responses: Sequence[str], contexts: Any = None) -> list[float]:
        return [self._score(response) for response in responses]


def _random(lm: TransformersLM) -> _Dummy:
    draws = rng.generator("conformance", "random scores", 0)
    return _Dummy(lambda response: float(draws.random()))


DUMMIES: dict[str, Detector] = {
    "constant": lambda lm: _Dummy(lambda response: 0.5),
    "random": _random,
    "identity": lambda lm: _Dummy(lambda response: float(len(lm.response_ids(response)))),  # the answer's own length
}


def _bad_inputs() -> tuple[BadInput, ...]:
    lm = _tiny()
    detector = EmbeddingDiscrepancy(lm)
    states = np.ones((2, 3, 4))
    nan = states.copy()
    nan[1, 0, 0] = np.nan
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("an empty answer", lambda: detector.score(["a?"], [""]), "responses[0]"),
        ("special tokens only", lambda: detector.score(["a?"], ["<|im_end|>"]), "responses[0]"),
        ("more answers than questions", lambda: detector.score(["a?"], ["b", "c"]), "responses"),
        ("contexts of another length", lambda: detector.score(["a?"], ["b"], []), "contexts"),
        ("one question as a string", lambda: detector.score("a?", ["b"]), "questions"),
        ("a row beyond the model's positions", lambda: detector.score(["a" * 5000], ["b"]), "tokens"),
        ("layer 0", lambda: EmbeddingDiscrepancy(lm, layer=0), "layer"),
        ("a layer that is not there", lambda: EmbeddingDiscrepancy(lm, layer=3), "layer"),
        ("a fraction above 1", lambda: EmbeddingDiscrepancy(lm, layer=1.5), "layer"),
        ("an unknown pool", lambda: EmbeddingDiscrepancy(lm, pool=_any("max")), "pool"),
        ("an unknown distance", lambda: EmbeddingDiscrepancy(lm, dist=_any("l1")), "dist"),
        ("an empty prefix", lambda: EmbeddingDiscrepancy(lm, prefix=[]), "prefix"),
        ("a model without states", lambda: EmbeddingDiscrepancy(abs), "model"),
        ("a prediction without a threshold", lambda: EmbeddingDiscrepancy(lm).predict([0.1]), "threshold"),
        ("states of other shapes", lambda: discrepancy_from_states(states, states[:1]), "h_ctx"),
        ("NaN", lambda: score_from_states(states, nan), "h_alone"),
        ("an answer without a token", lambda: score_from_states(states, states, np.zeros((2, 3))), "mask"),
        ("one sample", lambda: eigenscore(np.ones((1, 4))), "states"),
        ("kernels of three rows", lambda: unbiased_hsic(np.eye(3), np.eye(3)), "at least 4"),
        ("labels of one class", lambda: auroc([0.1, 0.2], [True, True]), "both classes"),
        ("a score that is not finite", lambda: auroc([0.1, np.nan], [True, False]), "finite"),
        ("a gold answer as a string", lambda: label_answers(["a"], ["b"]), "golds[0]"),
        ("no tokens", lambda: detector_cost(0, 10), "T"),
        ("too few questions", lambda: tasks.user_task([{"question": "a?", "answer": "b"}]), "rows"),
        ("questions without answers", lambda: tasks.user_task([{"question": "a?"}] * 40), "answer"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


def _any(value: Any) -> Any:
    return value


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64",),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=EmbeddingDiscrepancy,
    acceptance=acceptance,
    dummies=DUMMIES,
)
