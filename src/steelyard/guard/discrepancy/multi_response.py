"""Scores that need K more answers to the same question, drawn at a temperature: what the detector saves.

All are "higher = more likely hallucinated".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array, clip_features
from steelyard.guard.discrepancy.core import eigenscore as core_eigenscore
from steelyard.guard.discrepancy.labels import normalise, rouge_l, words
from steelyard.models.protocols import Prompt
from steelyard.models.transformers_lm import Generation

ALIKE = 0.9  # cosine above which two answers mean the same to the encoder


class Samples(NamedTuple):
    """K answers to one question.

    Attributes:
        texts: The answers.
        states: A state of each near its end, float32 of shape (K, d); zeros for an answer without a token.
        logprobs: Log-probability of each one's tokens, shape (T,) each; empty unless asked for.
    """

    texts: list[str]
    states: NDArray[np.float32]
    logprobs: list[NDArray[np.float32]]


def sample_answers(
    lm: Any,
    prompts: Sequence[Prompt],
    k: int = 10,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: int = 64,
    stop: Sequence[str] | None = None,
    seed: int = 0,
    layer: int | None = None,
    logprobs: bool = False,
) -> list[Samples]:
    """Draw ``k`` answers to every prompt.

    Args:
        lm: A :class:`steelyard.models.TransformersLM`.
        prompts: Texts or chats.
        k: Answers a prompt, at least 2.
        temperature: Above 0.
        top_p: See :meth:`TransformersLM.generate`, also for the next two.
        max_new_tokens: Longest answer.
        stop: What ends an answer.
        seed: Of all draws.
        layer: Whose state is kept; None: the middle one.
        logprobs: Score the answers' tokens too, in a pass of its own.
    """
    if k < 2:
        raise InputError(f"k must be at least 2, got {k}")
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, or all answers are one; got {temperature}")
    sampling = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "stop": stop}
    done = lm.generations(prompts, layers=[middle_layer(lm) if layer is None else layer], n=k, seed=seed, **sampling)
    return by_question(lm, prompts, done, k, logprobs)


def middle_layer(lm: Any) -> int:
    """Return the layer that INSIDE reads: half of the number of states (L + 1), rounded down."""
    return int(lm.num_layers + 1) // 2


def by_question(
    lm: Any, prompts: Sequence[Prompt], done: Sequence[Generation], k: int, logprobs: bool = False
) -> list[Samples]:
    """Return the ``k`` answers to each prompt together, out of what ``lm.generations(prompts, n=k)`` returned.

    Args:
        lm: A :class:`steelyard.models.TransformersLM`.
        prompts: Texts or chats.
        done: Their answers, with the states of one layer.
        k: Answers a prompt.
        logprobs: Score the answers' tokens too, in a pass of its own.
    """
    scored: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(done)
    rows = [row for row, one in enumerate(done) if one.tokens] if logprobs else []
    if rows:
        asked = [prompts[row // k] for row in rows]
        for row, values in zip(rows, lm.logprobs(asked, [done[row].tokens for row in rows]), strict=True):
            scored[row] = values
    found = []
    for start in range(0, len(done), k):
        mine = done[start : start + k]
        states = np.stack([near_end(one.states[0]) for one in mine])
        found.append(Samples([one.text for one in mine], states, scored[start : start + k] if logprobs else []))
    return found


def near_end(states: Any) -> NDArray[np.float32]:
    """Return the state before the last of an answer's tokens, (T, d) -> (d,), as INSIDE's code; of one token, it."""
    x = np.asarray(states, dtype=np.float32)
    if not len(x):
        return np.zeros(x.shape[1], np.float32)
    chosen: NDArray[np.float32] = x[max(0, len(x) - 2)]
    return chosen


def ln_entropy(samples: Sequence[Samples]) -> Array:
    """Return the length-normalised entropy, shape (n,): mean over the answers of their mean token NLL, in nats.

    Answers without a token are left out; a question with no other gets 0.
    """
    means = [[-values.mean(dtype=np.float64) for values in one.logprobs if len(values)] for one in samples]
    if any(len(one.logprobs) != len(one.texts) for one in samples):
        raise InputError("samples hold no log-probabilities; draw them with sample_answers(..., logprobs=True)")
    return np.array([float(np.mean(values)) if values else 0.0 for values in means])


def lexical(samples: Sequence[Samples]) -> Array:
    """Return minus the mean ROUGE-L over pairs of answers, shape (n,)."""
    return np.array([-_mean(rouge_l(a, b) for a, b in itertools.combinations(one.texts, 2)) for one in samples])


def selfcheck(
    answers: Sequence[str],
    samples: Sequence[Samples],
    similarity: Literal["ngram"] | Callable[[str, str], float] | Any = "ngram",
) -> Array:
    """Return SelfCheckGPT's score of each answer, shape (n,): mean over the samples of 1 - similarity.

    Args:
        answers: The answers that are judged.
        samples: K answers to the same questions.
        similarity: "ngram" (F measure of shared words), an embedder (cosine), or a function of two texts, such as the
            entailment probability of a model of yours.
    """
    if len(answers) != len(samples):
        raise InputError(f"answers and samples must be equally long, got {len(answers)} and {len(samples)}")
    like: Any = word_overlap if similarity == "ngram" else similarity
    if not isinstance(like, str) and hasattr(like, "encode"):
        return np.array([1 - _to_samples(like, *pair) for pair in zip(answers, samples, strict=True)])
    if not callable(like):
        raise InputError(f"similarity must be 'ngram', an embedder or a function of two texts, got {similarity!r}")
    pairs = zip(answers, samples, strict=True)
    return np.array([_mean(1 - like(answer, text) for text in one.texts) for answer, one in pairs])


def _to_samples(embedder: Any, answer: str, samples: Samples) -> float:
    vectors = np.asarray(embedder.encode([answer, *samples.texts]), dtype=np.float64)
    return float((vectors[1:] @ vectors[0]).mean())


def word_overlap(a: str, b: str) -> float:
    """Return the F measure of the words that two texts share, counted with repetition (ROUGE-1), in [0, 1]."""
    left, right = words(a), words(b)
    shared = sum(min(left.count(word), right.count(word)) for word in set(left))
    return 2 * shared / (len(left) + len(right)) if shared else 0.0


class SemanticEntropy(NamedTuple):
    """Entropies over clusters of meaning, and how meanings were told apart.

    Attributes:
        values: Entropy of each question's answers in nats, shape (n,).
        rule: "match", "embedding" or "entailment"; the published method is the last.
    """

    values: Array
    rule: str


def semantic_entropy(
    samples: Sequence[Samples],
    embedder: Any = None,
    entails: Callable[[str, str], bool] | None = None,
    alike: float = ALIKE,
) -> SemanticEntropy:
    """Return the entropy over clusters of each question's answers.

    An answer joins the first cluster whose first answer means the same. Without ``entails`` that is decided by the
    embedder's cosine, without an embedder by equal normalised text: weaker rules than the published one, and the result
    says which was used.

    Args:
        samples: K answers to each question.
        embedder: A :class:`steelyard.models.Embedder`.
        entails: Says whether the first text entails the second; both directions are asked.
        alike: Cosine above which two answers mean the same.
    """
    values = []
    for one in samples:
        if entails is not None:
            matches = [[entails(a, b) and entails(b, a) for b in one.texts] for a in one.texts]
        elif embedder is not None:
            vectors = np.asarray(embedder.encode(one.texts), dtype=np.float64)
            matches = (vectors @ vectors.T > alike).tolist()
        else:
            plain = [normalise(text) for text in one.texts]
            matches = [[a == b for b in plain] for a in plain]
        values.append(_cluster_entropy(matches))
    rule = "entailment" if entails is not None else "match" if embedder is None else "embedding"
    return SemanticEntropy(np.array(values), rule)


def _cluster_entropy(same: Sequence[Sequence[bool]]) -> float:
    sizes: dict[int, int] = {}  # first member -> members
    for row in range(len(same)):
        home = next((first for first in sizes if same[first][row]), row)
        sizes[home] = sizes.get(home, 0) + 1
    share = np.array(list(sizes.values())) / len(same)
    return float(-(share * np.log(share)).sum() + 0.0)


def eigenscore(samples: Sequence[Samples], alpha: float = 1e-3, bank: Any = None) -> Array:
    """Return INSIDE's EigenScore of each question, shape (n,); see :func:`core.eigenscore`.

    Args:
        samples: K answers to each question, with states.
        alpha: Regulariser.
        bank: States, shape (m, d), at whose 0.2 and 99.8 percentiles features are cut; None: not at all.
    """
    states = [one.states if bank is None else clip_features(one.states, bank) for one in samples]
    return np.array([core_eigenscore(one, alpha) for one in states])


def _mean(values: Any) -> float:
    found = list(values)
    return float(np.mean(found)) if found else 0.0
