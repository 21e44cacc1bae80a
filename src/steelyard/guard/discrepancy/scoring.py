"""Every score of a cell, from the same answers, each with what it took beyond giving the answer.

Costs count what a deployment would add: states and likelihoods are there once the model has answered, so likelihoods
are free, D and PMI run the answer alone, and methods with K samples pay for the samples and for reading the prompt once
more. Where an answer is cut by its length the state of its last token takes one more step; D is not charged for it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.guard.discrepancy import baselines, multi_response
from steelyard.guard.discrepancy.answering import Answers
from steelyard.guard.discrepancy.black_box import BlackBoxDiscrepancy
from steelyard.guard.discrepancy.core import Distance, Pool, answer_discrepancy
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.length import fit_length_adjustment
from steelyard.guard.discrepancy.measure import probe_scores
from steelyard.guard.discrepancy.multi_response import Samples
from steelyard.guard.discrepancy.passes import Pair
from steelyard.models.transformers_lm import TransformersLM

Vector = NDArray[np.float64]
TIMED = 2  # questions on which both passes, and the reading of a prompt, are timed
_CHUNK = 8  # the states of all layers at all tokens of so many prompts are held at once


class Column(NamedTuple):
    """One arm's scores, shape (n,), and its cost per answer.

    Attributes:
        scores: Higher = more likely hallucinated.
        tokens: Tokens run.
        cpu: Seconds of processor time.
        reading: The part of ``cpu`` in which the prompt is read: K samples share it, whatever K.
    """

    scores: Vector
    tokens: float = 0.0
    cpu: float = 0.0
    reading: float = 0.0

    def scaled(self, times: float) -> tuple[float, float]:
        """Return seconds and tokens for ``times`` as many samples."""
        return self.reading + times * (self.cpu - self.reading), times * self.tokens


class Drawn(NamedTuple):
    """K more answers to every question, and what they took per question.

    Attributes:
        samples: The answers.
        cpu: Seconds of processor time.
        reading: The part of it in which the prompt is read once.
        tokens: Tokens drawn.
    """

    samples: list[Samples]
    cpu: float
    reading: float
    tokens: float


class Scored(NamedTuple):
    """All columns of a cell, and the scores of D by layer, shape (L, n)."""

    columns: dict[str, Column]
    by_layer: Vector


def timed(work: Callable[[], Any], answers: int) -> tuple[Any, float]:
    """Return what ``work`` returns and its processor time per answer, in seconds."""
    start = time.process_time()
    found = work()
    return found, (time.process_time() - start) / max(1, answers)


def single_columns(detector: EmbeddingDiscrepancy, embedder: Any, answers: Answers, asks_itself: bool = True) -> Scored:
    """Return D with its variants, the single-pass baselines, the controls and the probe.

    Args:
        detector: D, with its model.
        embedder: A sentence encoder.
        answers: What is judged.
        asks_itself: Whether P(True) is among them, which reads the prompt once more.
    """
    lengths = np.array([len(ids) for ids in answers.tokens], dtype=np.float64)
    alone = len(detector.prefix_ids) + float(lengths.mean())
    pairs, hide, hide_cpu = all_passes(detector, answers)
    d, both = _discrepancy(detector, answers, pairs, alone)
    settings = detector.pool, detector.dist
    by_layer = np.stack([scores_at(pairs, (place,), *settings) for place in range(detector.lm.num_layers)])
    columns = {"discrepancy": d, "two_passes": both}
    columns |= {name: Column(s, d.tokens, d.cpu) for name, s in variants(pairs, detector, answers, by_layer).items()}
    columns |= {name: Column(score(pairs)) for name, score in baselines.LIKELIHOODS.items()}
    _, pmi_cpu = timed(lambda: detector.lm.logprobs([detector.prefix_ids] * len(pairs), answers.tokens), len(pairs))
    columns["pmi"] = Column(columns["pmi"].scores, alone, pmi_cpu)
    columns["hide"] = Column(hide, 0.0, hide_cpu)
    columns |= _texts(embedder, answers)
    if asks_itself:
        columns["p_true"] = _p_true(detector.lm, answers)
    columns |= _with_labels(pairs, detector, answers)
    return Scored(columns, by_layer)


def all_passes(detector: EmbeddingDiscrepancy, answers: Answers) -> tuple[list[Pair], Vector, float]:
    """Return both passes of every answer with the states of layers 1 to L, HIDE's scores, and HIDE's own time.

    States of the prompts are as large as all the rest, so they are dropped chunk by chunk once HIDE has read them.
    """
    layers = range(1, detector.lm.num_layers + 1)
    pairs: list[Pair] = []
    hide: list[Vector] = []
    spent = 0.0
    for start in range(0, len(answers.responses), _CHUNK):
        rows = slice(start, start + _CHUNK)
        found = detector.passes(
            answers.questions[rows], answers.tokens[rows], answers.contexts[rows],
            layers=layers, logits=True, keep_prefix=True,
        )  # fmt: skip
        begun = time.process_time()
        hide.append(baselines.hide(found, place=max(0, detector.lm.num_layers // 2 - 1)))
        spent += time.process_time() - begun
        pairs += [Pair(*(side._replace(prefix_states=None) for side in pair)) for pair in found]
    return pairs, np.concatenate(hide), spent / len(pairs)


def _discrepancy(
    detector: EmbeddingDiscrepancy, answers: Answers, pairs: Sequence[Pair], alone: float
) -> tuple[Column, Column]:
    """Return D from the states of generation where there are some, and D from both passes."""
    at = tuple(layer - 1 for layer in detector.layers)
    rows = slice(0, TIMED)
    asked = float(np.mean([len(detector.lm.prompt_ids(prompt)) for prompt in answers.prompts]))
    _, cpu = timed(
        lambda: detector.score(answers.questions[rows], answers.tokens[rows], answers.contexts[rows]),
        len(answers.tokens[rows]),
    )
    tokens = 2 * alone - len(detector.prefix_ids) + asked
    both = Column(scores_at(pairs, at, detector.pool, detector.dist), tokens, cpu)
    if answers.states is None:
        return both, both
    states = answers.states
    scores, cpu_alone = timed(lambda: detector.score_states(states, answers.tokens), len(states))
    return Column(scores, alone, cpu_alone), both


def scores_at(
    pairs: Sequence[Pair], places: Sequence[int], pool: Pool, dist: Distance, drop_first: bool = False
) -> Vector:
    """Return -D at layers given by their place in the passes (mean over several)."""
    at = list(places)
    return np.array(
        [-answer_discrepancy(one.context.states[at], one.alone.states[at], pool, dist, drop_first) for one in pairs]
    )


def variants(
    pairs: Sequence[Pair], detector: EmbeddingDiscrepancy, answers: Answers, by_layer: Vector
) -> dict[str, Vector]:
    """Return the scores of D with one choice changed, the others being the detector's."""
    depth, pool, dist = detector.lm.num_layers, detector.pool, detector.dist
    at = tuple(layer - 1 for layer in detector.layers)
    half = max(0, depth // 2 - 1)
    band = range(half, max(half + 1, int(0.9 * depth)))
    plain = scores_at(pairs, at, pool, dist)
    mean = np.stack([side.states[list(at)].mean(1) for pair in pairs for side in pair]).mean(0)[:, None]
    centred = [Pair(*(side._replace(states=side.states[list(at)] - mean) for side in pair)) for pair in pairs]
    found = {
        "d_token": scores_at(pairs, at, "token", dist),
        "d_token_half": scores_at(pairs, (half,), "token", dist),
        "d_last_token": scores_at(pairs, at, "last", dist),
        "d_l2": scores_at(pairs, at, pool, "l2"),
        "d_rel_l2": scores_at(pairs, at, pool, "rel_l2"),
        "d_quarter": by_layer[max(0, depth // 4 - 1)],
        "d_half": by_layer[half],
        "d_top": by_layer[depth - 1],
        "d_band": scores_at(pairs, band, pool, dist),
        "d_no_first": scores_at(pairs, at, pool, dist, drop_first=True),
        "d_centred": scores_at(centred, range(len(at)), pool, dist),
        "d_length_adjusted": plain,
    }
    try:
        lengths = [len(ids) for ids in answers.tokens]
        found["d_length_adjusted"] = fit_length_adjustment(plain, lengths).apply(plain, lengths)
    except InputError:  # answers of one length: nothing to take out
        pass
    return found


def _texts(embedder: Any, answers: Answers) -> dict[str, Column]:
    """Return the scores that a sentence encoder gives."""
    asked, n = (answers.questions, answers.responses, answers.contexts), len(answers.responses)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the encoder reads 256 tokens of a long passage, and says so for each
        work: dict[str, Callable[[], Any]] = {
            "text_similarity": lambda: baselines.text_similarity(embedder, *asked),
        }
        if hasattr(embedder, "encode_tokens"):
            work["black_box"] = lambda: BlackBoxDiscrepancy(embedder).score(*asked)
        if all(context is not None for context in answers.contexts):
            work["sgi"] = lambda: baselines.sgi(embedder, *asked[:2], [str(context) for context in answers.contexts])
        for name, compute in work.items():
            scores, cpu = timed(compute, n)
            found[name] = Column(scores, 0.0, cpu)
    return found


def _p_true(lm: TransformersLM, answers: Answers) -> Column:
    """Return P(True); one question at a time, so that both letters share the pass over its prompt."""
    sharing = TransformersLM(lm.model, lm.tokenizer, share_prefix=True)
    rows = list(zip(answers.questions, answers.responses, answers.contexts, strict=True))
    scores, cpu = timed(
        lambda: np.concatenate([baselines.p_true(sharing, [q], [r], [c]) for q, r, c in rows]),
        len(rows),
    )
    read = [len(lm.prompt_ids(prompt)) + len(ids) for prompt, ids in zip(answers.prompts, answers.tokens, strict=True)]
    return Column(scores, float(np.mean(read)), cpu)


def _with_labels(pairs: Sequence[Pair], detector: EmbeddingDiscrepancy, answers: Answers) -> dict[str, Column]:
    place = detector.layers[-1] - 1
    states = np.stack([pair.context.states[place].mean(0) for pair in pairs])
    return {"probe": Column(probe_scores(states, answers.wrong, answers.groups))}


def draw_samples(
    lm: TransformersLM,
    prompts: Sequence[Any],
    k: int,
    temperature: float,
    new_tokens: int,
    seed: int,
    likelihoods: bool = True,
) -> Drawn:
    """Return ``k`` more answers to every prompt and their cost.

    Their log-probabilities, which generation has at hand but does not return, are computed apart and not counted; that
    reads every prompt once more, so they are left out unless asked for.
    """
    stop = None if lm.is_chat else ["\n"]
    drawn, cpu = timed(
        lambda: lm.generations(
            prompts, layers=[multi_response.middle_layer(lm)], n=k, seed=seed, temperature=temperature,
            max_new_tokens=new_tokens, stop=stop,
        ),
        len(prompts),
    )  # fmt: skip
    few = prompts[:TIMED]
    _, reading = timed(lambda: lm.generations(few, max_new_tokens=1), len(few))
    samples = multi_response.by_question(lm, prompts, drawn, k, likelihoods)
    return Drawn(samples, cpu, min(reading, cpu), sum(len(one.tokens) for one in drawn) / len(prompts))


def multi_columns(drawn: Drawn, embedder: Any, answers: Answers) -> dict[str, Column]:
    """Return the methods that need K samples; each pays for drawing them."""
    samples = drawn.samples
    work: dict[str, Callable[[], Any]] = {
        "lexical": lambda: multi_response.lexical(samples),
        "selfcheck": lambda: multi_response.selfcheck(answers.responses, samples, embedder),
        "semantic_entropy": lambda: multi_response.semantic_entropy(samples, embedder).values,
        "eigenscore": lambda: multi_response.eigenscore(samples),
    }
    if any(one.logprobs for one in samples):
        work["ln_entropy"] = lambda: multi_response.ln_entropy(samples)
    found = {}
    for name, compute in work.items():
        scores, cpu = timed(compute, len(samples))
        found[name] = Column(scores, drawn.tokens, drawn.cpu + cpu, drawn.reading)
    return found
