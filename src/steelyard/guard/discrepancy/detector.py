"""EmbeddingDiscrepancy: a hallucination score from what its question changes in the states of an answer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import (
    DISTANCES,
    POOLS,
    Array,
    Distance,
    Layer,
    Pool,
    answer_discrepancy,
    resolve_layers,
    token_discrepancy,
)
from steelyard.guard.discrepancy.generated import states_of_output
from steelyard.guard.discrepancy.length import LengthAdjustment, fit_length_adjustment
from steelyard.guard.discrepancy.passes import Pair, Pass, batches, check_lengths, forward
from steelyard.guard.discrepancy.prompts import (
    SHORT_ANSWERS,
    alone_prefix,
    answer_ids,
    build_prompts,
    check_same_length,
)
from steelyard.guard.discrepancy.scorer import Scorer
from steelyard.models.protocols import Prompt, check_prompts
from steelyard.models.transformers_lm import TransformersLM


class Explanation(NamedTuple):
    """Which tokens of an answer the question shaped.

    Attributes:
        tokens: The answer's tokens as text.
        discrepancy: Distance of each token's two states, shape (T,); small = the token ignores the question.
        value: Their mean, which is the answer's D with ``pool="token"`` (the first token included).
    """

    tokens: list[str]
    discrepancy: Array
    value: float


class ScoredAnswer(NamedTuple):
    """An answer of the model and its score, higher = more likely hallucinated."""

    answer: str
    score: float


class EmbeddingDiscrepancy(Scorer):
    """Unsupervised hallucination detector: one short pass over the answer, no labels, no further answers.

    The answer's tokens are run after the question and alone (after ``prefix``); D is how far their states differ in
    one fixed layer, and the score is -D: an answer that the question hardly changed is likely made up (the paper's
    abstract; layer, pooling, distance and prefix are a reconstruction). Scores of different models, layers, pools or
    distances are not comparable. With mean pooling D falls with the answer's length, so compare the token-aligned
    score (``pool="token"``) or adjust for the length before trusting a difference. An answer that merely restates the
    question is grounded in words, not in facts: D can come out large.

    Args:
        model: A :class:`steelyard.models.TransformersLM`, or a Hugging Face causal language model with ``tokenizer``.
        tokenizer: The tokenizer of a Hugging Face model.
        layer: Index 1..L of a hidden state, a fraction in (0, 1] of L, or a pair of them for the mean over a band.
        pool: "mean", "last", or "token" (distance per token, then the mean).
        dist: "cosine", "l2" or "rel_l2".
        prefix: What stands before the answer alone: "auto" (assistant header of a chat model, BOS of a base model),
            "header", "bos", or token ids.
        batch_size: Answers a pass.
        center: Taken off every state: corpus mean of shape (d,) or (layers, d); see :meth:`fit_center`.
        drop_first: Leave out the answer's first token where it has more than one.
        length_adjust: Line of scores on length, from :meth:`fit_length_adjust`; scores are then residuals.
        position_ids: "own" (each pass counts from 0) or "aligned" (the answer alone keeps the positions that it has
            after its question: for models with absolute positions; no difference for rotary ones).
        system: System turn put before a question that is plain text; None: none.

    Raises:
        InputError: An argument that cannot be used; a model that gives no hidden states, such as an endpoint.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        layer: Layer = "0.75",
        pool: Pool = "mean",
        dist: Distance = "cosine",
        prefix: str | Sequence[int] = "auto",
        batch_size: int = 16,
        center: Any = None,
        drop_first: bool = False,
        length_adjust: LengthAdjustment | None = None,
        position_ids: str = "own",
        system: str | None = SHORT_ANSWERS,
    ) -> None:
        for name, value, known in (
            ("pool", pool, POOLS),
            ("dist", dist, DISTANCES),
            ("position_ids", position_ids, ("own", "aligned")),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if length_adjust is not None and not isinstance(length_adjust, LengthAdjustment):
            raise InputError(
                "length_adjust must be the line that fit_length_adjust(scores, responses) returns, or None"
            )
        self.lm = _language_model(model, tokenizer)
        self.layers = resolve_layers(layer, self.lm.num_layers)
        self.prefix_ids = alone_prefix(self.lm, prefix)
        self.pool, self.dist, self.drop_first = pool, dist, drop_first
        self.batch_size, self.aligned, self.system = batch_size, position_ids == "aligned", system
        self.length_adjust = length_adjust
        self.center = None if center is None else self._checked_center(center)

    def score(
        self,
        questions: Sequence[Prompt] | None,
        responses: Sequence[str | Sequence[int]],
        contexts: Sequence[str | None] | None = None,
        *,
        condition: Sequence[Prompt] | None = None,
        base: Sequence[Prompt] | None = None,
    ) -> Array:
        """Return the score of each answer, shape (n,): **higher = more likely hallucinated**.

        Two forward passes an answer, neither through the output head.

        Args:
            questions: What was asked, texts or chats; None with ``condition``.
            responses: The answers: texts, or their tokens as they were generated.
            contexts: The text that each was answered from, or None.
            condition: Prompts used as they are in the place of the question's, e.g. question and documents.
            base: Prompts before the answer in the second pass in the place of ``prefix``, e.g. the question without
                documents: the score then says what the documents changed.

        Raises:
            InputError: Lists of different length, an empty answer, a row beyond the model's positions.
        """
        prompts = self._prompts(questions, responses, contexts, condition)
        scores, lengths = np.zeros(len(responses)), np.ones(len(responses))
        for row, pair in self._pairs(prompts, responses, base, self.layers):
            scores[row], lengths[row] = (
                -self._discrepancy(pair.context.states, pair.alone.states),
                pair.alone.states.shape[1],
            )
        return scores if self.length_adjust is None else self.length_adjust.apply(scores, lengths)

    def passes(
        self,
        questions: Sequence[Prompt] | None,
        responses: Sequence[str | Sequence[int]],
        contexts: Sequence[str | None] | None = None,
        *,
        condition: Sequence[Prompt] | None = None,
        base: Sequence[Prompt] | None = None,
        layers: Sequence[int] | None = None,
        logits: bool = False,
        keep_prefix: bool = False,
    ) -> list[Pair]:
        """Return both passes of each answer, from which every single-pass score can be taken.

        Args:
            questions: See :meth:`score`, also for the other texts.
            responses: The answers.
            contexts: Their contexts.
            condition: Prompts in the place of the questions'.
            base: Prompts in the place of the prefix.
            layers: Indices 0..L of the states to keep; None: the detector's own.
            logits: Statistics of the tokens too (needs the output head).
            keep_prefix: States of the prompts too.
        """
        prompts = self._prompts(questions, responses, contexts, condition)
        kept = self.layers if layers is None else layers
        if not len(kept) or not all(0 <= layer <= self.lm.num_layers for layer in kept):
            raise InputError(f"layers must be indices 0..{self.lm.num_layers}, at least one, got {list(kept)}")
        found = dict(self._pairs(prompts, responses, base, kept, logits=logits, keep_prefix=keep_prefix))
        return [found[row] for row in range(len(responses))]

    def explain(self, question: Prompt, response: str | Sequence[int], context: str | None = None) -> Explanation:
        """Return the discrepancy of every token of one answer."""
        (pair,) = self.passes([question], [response], [context])
        ctx, alone = self._centred(pair.context.states), self._centred(pair.alone.states)
        values = token_discrepancy(ctx, alone, dist=self.dist).mean(0)
        (ids,) = answer_ids(self.lm, [response])
        return Explanation([self.lm.tokenizer.decode([token]) for token in ids], values, float(values.mean()))

    def answer_and_score(
        self,
        questions: Sequence[Prompt],
        contexts: Sequence[str | None] | None = None,
        *,
        max_new_tokens: int = 64,
        stop: Sequence[str] | None = None,
        **sampling: Any,
    ) -> list[ScoredAnswer]:
        """Let the model answer and score its answers with the states that it had while answering.

        An answer without a token has no score: NaN.

        Args:
            questions: What is asked, texts or chats.
            contexts: The text to answer from, or None.
            max_new_tokens: Longest answer.
            stop: An answer ends before these; None: the line's end for a base model.
            **sampling: ``temperature``, ``top_p`` and ``seed`` of :meth:`TransformersLM.generate`.
        """
        prompts = build_prompts(questions, contexts, is_chat=self.lm.is_chat, system=self.system)
        if stop is None and not self.lm.is_chat:
            stop = ("\n",)
        done = self.lm.generations(prompts, layers=self.layers, max_new_tokens=max_new_tokens, stop=stop, **sampling)
        rows = [row for row, one in enumerate(done) if one.tokens]
        scores = np.full(len(done), np.nan)
        if rows:
            scores[rows] = self.score_from_generate([done[row] for row in rows])
        return [ScoredAnswer(one.text, float(score)) for one, score in zip(done, scores, strict=True)]

    def score_from_generate(self, out: Any, eos_token_id: int | Sequence[int] | None = None) -> Array:
        """Return scores, shape (n,), from states that generation left behind: one pass over each answer alone.

        Args:
            out: What ``lm.generations(prompts, layers=detector.layers)`` returned, or what ``generate(...,
                output_hidden_states=True, return_dict_in_generate=True)`` of transformers did. The latter has no state
                of the last token of an answer that was cut by ``max_new_tokens``; that token is then left out.
            eos_token_id: What ended the answers of a transformers output; None: the tokenizer's EOS and PAD.

        Raises:
            InputError: An answer without a token, states of other layers or none, beams.
        """
        if hasattr(out, "sequences"):
            ends = _as_list(eos_token_id)
            if eos_token_id is None:
                tokens = self.lm.tokenizer
                ends = [token for token in (tokens.eos_token_id, tokens.pad_token_id) if token is not None]
            return self.score_states(*states_of_output(out, self.layers, set(ends)))
        return self.score_states([one.states for one in out], [one.tokens for one in out])

    def score_states(self, states: Sequence[Any], responses: Sequence[Sequence[int]]) -> Array:
        """Return scores from context states that are there already: one pass over each answer alone.

        Args:
            states: For each answer the states of this detector's ``layers`` at its tokens, shape (layers, T, d).
            responses: For each answer its T token ids, without the end-of-text token.

        Raises:
            InputError: Lists of different length, states of another shape.
        """
        check_same_length("states", states, "responses", responses)
        for row, (given, ids) in enumerate(zip(states, responses, strict=True)):
            if np.ndim(given) != 3 or np.shape(given)[:2] != (len(self.layers), len(ids)) or not len(ids):
                raise InputError(
                    f"states[{row}] must be (layers, tokens, width) = ({len(self.layers)}, {len(ids)}, …), "
                    f"at least one token, got {np.shape(given)}"
                )
        prefixes = [self.prefix_ids] * len(responses)
        check_lengths(self.lm, prefixes, responses)
        scores, lengths = np.zeros(len(responses)), np.array([len(ids) for ids in responses])
        for rows in batches(lengths.tolist(), self.batch_size):
            for row, alone in zip(rows, self._forward(rows, prefixes, responses, self.layers), strict=True):
                scores[row] = -self._discrepancy(states[row], alone.states)
        return scores if self.length_adjust is None else self.length_adjust.apply(scores, lengths)

    def fit_center(
        self, questions: Sequence[Prompt], responses: Sequence[str | Sequence[int]], contexts: Any = None
    ) -> Array:
        """Take the mean state of these answers, both passes alike, as :attr:`center`, shape (layers, d)."""
        pairs = self.passes(questions, responses, contexts)
        if not pairs:
            raise InputError("responses must hold at least one answer")
        means = [np.mean(side.states, axis=1, dtype=np.float64) for pair in pairs for side in pair]
        self.center = np.mean(means, axis=0)
        return self.center

    def fit_length_adjust(self, scores: Any, responses: Sequence[str | Sequence[int]]) -> LengthAdjustment:
        """Take the line of unadjusted ``scores`` on the answers' token counts out of later scores; no labels needed."""
        lengths = [len(ids) for ids in answer_ids(self.lm, responses)]
        self.length_adjust = fit_length_adjustment(scores, lengths)
        return self.length_adjust

    def _prompts(
        self, questions: Sequence[Prompt] | None, responses: Sequence[Any], contexts: Any, condition: Any
    ) -> list[Prompt]:
        if (questions is None) == (condition is None):
            raise InputError("give either questions or condition=, the prompts as they are")
        if questions is None:
            if contexts is not None:
                raise InputError("contexts go with questions; write them into the prompts of condition=")
            check_same_length("condition", condition, "responses", responses)
            check_prompts(condition)
            return list(condition)
        check_same_length("questions", questions, "responses", responses)
        return build_prompts(questions, contexts, is_chat=self.lm.is_chat, system=self.system)

    def _pairs(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[str | Sequence[int]],
        base: Sequence[Prompt] | None,
        layers: Sequence[int],
        **options: bool,
    ) -> Any:
        ids = answer_ids(self.lm, responses)
        contexts = [self.lm.prompt_ids(prompt) for prompt in prompts]
        alone = [self.prefix_ids] * len(ids)
        if base is not None:
            check_same_length("base", base, "responses", responses)
            check_prompts(base)
            alone = [self.lm.prompt_ids(prompt) for prompt in base]
        check_lengths(self.lm, contexts, ids)
        check_lengths(self.lm, alone, ids)
        shifts = [max(0, len(a) - len(b)) if self.aligned else 0 for a, b in zip(contexts, alone, strict=True)]
        for rows in batches([len(a) + len(b) for a, b in zip(contexts, ids, strict=True)], self.batch_size):
            first = self._forward(rows, contexts, ids, layers, **options)
            second = self._forward(rows, alone, ids, layers, shifts=[shifts[row] for row in rows], **options)
            for row, *pair in zip(rows, first, second, strict=True):
                yield row, Pair(*pair)

    def _forward(
        self,
        rows: Sequence[int],
        prefixes: Sequence[Any],
        responses: Sequence[Any],
        layers: Sequence[int],
        **options: Any,
    ) -> list[Pass]:
        return forward(self.lm, [prefixes[r] for r in rows], [responses[r] for r in rows], layers, **options)

    def _centred(self, states: Any) -> Array:
        x = np.asarray(states, dtype=np.float64)
        return x if self.center is None else x - self.center[:, None]

    def _discrepancy(self, context: Any, alone: Any) -> float:
        """Return D of one answer from states (layers, T, d) of this detector's layers."""
        return answer_discrepancy(self._centred(context), self._centred(alone), self.pool, self.dist, self.drop_first)

    def _checked_center(self, center: Any) -> Array:
        mean = np.atleast_2d(np.asarray(center, dtype=np.float64))
        width = self.lm.model.config.hidden_size
        if mean.shape not in ((1, width), (len(self.layers), width)) or not np.isfinite(mean).all():
            raise InputError(f"center must be finite, of shape ({width},) or ({len(self.layers)}, {width})")
        return mean


def _language_model(model: Any, tokenizer: Any) -> Any:
    """Return a TransformersLM."""
    if isinstance(model, TransformersLM):
        return model
    if hasattr(model, "get_output_embeddings") and hasattr(model, "config"):
        if tokenizer is None:
            raise InputError("tokenizer is missing: a Hugging Face model needs its tokenizer beside it")
        return TransformersLM(model, tokenizer, device=str(model.device))
    raise InputError(
        f"model must give hidden states, and {type(model).__name__} gives none; use a transformers model, or "
        f"BlackBoxDiscrepancy(embedder), which needs the texts only"
    )


def _as_list(token: int | Sequence[int] | None) -> list[int]:
    return [] if token is None else [token] if isinstance(token, int) else list(token)
