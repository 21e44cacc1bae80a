"""Scores that need the answer only: likelihoods from the two passes, HIDE, P(True), and the controls.

All are "higher = more likely hallucinated". ``length`` and ``text_similarity`` are no rivals but controls: what they
reach, a score may owe to the length or to the words of the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array, rbf_kernel, unbiased_hsic
from steelyard.guard.discrepancy.passes import Pair, TokenStatistics
from steelyard.guard.discrepancy.prompts import SHORT_ANSWERS, build_prompts, check_same_length

HIDE_TOKENS = 20


def nll(pairs: Sequence[Pair]) -> Array:
    """Return the mean negative log-likelihood of each answer after its question, in nats, shape (n,)."""
    return np.array([_tokens(pair).nll.mean(dtype=np.float64) for pair in pairs])


def summed_nll(pairs: Sequence[Pair]) -> Array:
    """Return the summed negative log-likelihood of each answer, shape (n,); it grows with the length."""
    return np.array([_tokens(pair).nll.sum(dtype=np.float64) for pair in pairs])


def max_nll(pairs: Sequence[Pair]) -> Array:
    """Return the negative log-likelihood of each answer's least likely token, shape (n,)."""
    return np.array([float(_tokens(pair).nll.max()) for pair in pairs])


def entropy(pairs: Sequence[Pair]) -> Array:
    """Return the mean entropy of the next-token distribution over each answer's tokens, in nats, shape (n,)."""
    return np.array([_tokens(pair).entropy.mean(dtype=np.float64) for pair in pairs])


def energy(pairs: Sequence[Pair]) -> Array:
    """Return the mean of -logsumexp(logits) over each answer's tokens, shape (n,)."""
    return np.array([_tokens(pair).energy.mean(dtype=np.float64) for pair in pairs])


def pmi(pairs: Sequence[Pair]) -> Array:
    """Return minus the mean pointwise mutual information of question and token, shape (n,).

    The counterpart of the discrepancy at the level of logits, from the same two passes: mean of
    log p(token | prefix) - log p(token | question).
    """
    gaps = [_tokens(pair).nll.astype(np.float64) - _tokens(pair, alone=True).nll for pair in pairs]
    return np.array([gap.mean() for gap in gaps])


def length(pairs: Sequence[Pair]) -> Array:
    """Return the number of tokens of each answer, shape (n,): a control."""
    return np.array([float(pair.alone.states.shape[1]) for pair in pairs])


def _tokens(pair: Pair, alone: bool = False) -> TokenStatistics:
    tokens = (pair.alone if alone else pair.context).tokens
    if tokens is None:
        raise InputError("pairs hold no token statistics; take them with passes(..., logits=True)")
    return tokens


LIKELIHOODS: Mapping[str, Callable[[Sequence[Pair]], Array]] = {
    "nll": nll,
    "summed_nll": summed_nll,
    "max_nll": max_nll,
    "entropy": entropy,
    "energy": energy,
    "pmi": pmi,
    "length": length,
}


def hide(pairs: Sequence[Pair], place: int = 0, gamma: float = 1e-7, tokens: int = HIDE_TOKENS) -> Array:
    """Return minus HIDE's dependence of answer on prompt, shape (n,): unbiased HSIC of their central tokens' states.

    HIDE's code picks tokens by keywords of a sentence encoder; here they are those whose states are closest in cosine
    to the mean of their side, paired by rank (a reconstruction). With fewer than 4 pairs HSIC does not exist and 0, its
    value under independence, is returned.

    Args:
        pairs: From ``passes(..., keep_prefix=True)``.
        place: Which of the layers kept there is read; HIDE takes a middle one.
        gamma: Of the radial kernel; 1e-7 is the public code's.
        tokens: Most tokens a side.
    """
    return np.array([-_dependence(pair, place, gamma, tokens) for pair in pairs])


def _dependence(pair: Pair, place: int, gamma: float, tokens: int) -> float:
    if pair.context.prefix_states is None:
        raise InputError("pairs hold no states of the prompt; take them with passes(..., keep_prefix=True)")
    prompt, answer = pair.context.prefix_states[place], pair.context.states[place]
    count = min(tokens, len(prompt), len(answer))
    if count < 4:
        return 0.0
    return unbiased_hsic(*(rbf_kernel(_central(side, count), gamma) for side in (prompt, answer)))


def _central(states: Any, count: int) -> Array:
    """Return the ``count`` rows of (T, d) closest in cosine to their mean, closest first."""
    x = np.asarray(states, dtype=np.float64)
    norms = np.linalg.norm(x, axis=1)
    closeness = x @ x.mean(0) / np.where(norms > 0, norms, 1)
    chosen: Array = x[np.argsort(-closeness, kind="stable")[:count]]
    return chosen


def p_true(
    lm: Any,
    questions: Sequence[str],
    responses: Sequence[str],
    contexts: Sequence[str | None] | None = None,
) -> Array:
    """Return 1 - P(A) where the model is asked whether its answer is (A) True or (B) False, shape (n,).

    P(A) is normalised over the two letters (a reconstruction), so what else a small model might say does not count.

    Args:
        lm: A language model with log-probabilities.
        questions: Texts.
        responses: The answers.
        contexts: Their contexts, or None.
    """
    check_same_length("questions", questions, "responses", responses)
    asked = [
        f"{question}\nProposed answer: {response}\nIs the proposed answer (A) True or (B) False? Reply with the letter."
        for question, response in zip(questions, responses, strict=True)
    ]
    prompts = build_prompts(asked, contexts, is_chat=lm.is_chat, system=SHORT_ANSWERS)
    letters = ("A", "B") if lm.is_chat else (" A", " B")
    scored = lm.logprobs([*prompts, *prompts], [letter for letter in letters for _ in prompts])
    a, b = np.array([values.sum(dtype=np.float64) for values in scored]).reshape(2, -1)
    not_true: Array = 1 / (1 + np.exp(np.clip(a - b, -700, 700)))
    return not_true


def text_similarity(
    embedder: Any, questions: Sequence[str], responses: Sequence[str], contexts: Sequence[str | None] | None = None
) -> Array:
    """Return minus a sentence encoder's cosine of answer and question with context, shape (n,): a control.

    Args:
        embedder: A :class:`steelyard.models.Embedder`.
        questions: Texts.
        responses: The answers.
        contexts: Their contexts, or None.
    """
    check_same_length("questions", questions, "responses", responses)
    contexts = [None] * len(questions) if contexts is None else contexts
    check_same_length("questions", questions, "contexts", contexts)
    asked = [q if c is None else f"{c}\n{q}" for q, c in zip(questions, contexts, strict=True)]
    similarity: Array = -_cosines(embedder.encode(asked), embedder.encode(list(responses)))
    return similarity


def sgi(embedder: Any, questions: Sequence[str], responses: Sequence[str], contexts: Sequence[str]) -> Array:
    """Return minus the ratio angle(answer, question) / angle(answer, context), shape (n,).

    A low ratio, an answer nearer to the question than to the context, counts as hallucinated (the sign is a
    reconstruction). Angles below 1e-3 are taken as 1e-3.

    Args:
        embedder: A :class:`steelyard.models.Embedder`.
        questions: Texts.
        responses: The answers.
        contexts: The text that each was answered from; none may be missing.
    """
    check_same_length("questions", questions, "responses", responses)
    check_same_length("questions", questions, "contexts", contexts)
    if any(context is None for context in contexts):
        raise InputError("contexts must hold a text for every question: sgi compares the answer with both")
    answers = embedder.encode(list(responses))
    q, c = (_angles(answers, embedder.encode(list(side))) for side in (questions, contexts))
    ratio: Array = -q / c
    return ratio


def _cosines(a: Any, b: Any) -> Array:
    cosines: Array = (np.asarray(a, dtype=np.float64) * np.asarray(b, dtype=np.float64)).sum(-1)
    return np.clip(cosines, -1.0, 1.0)


def _angles(a: Any, b: Any) -> Array:
    return np.maximum(np.arccos(_cosines(a, b)), 1e-3)
