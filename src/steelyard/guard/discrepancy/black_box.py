"""The discrepancy without the model's insides: a sentence encoder reads the answer alone and behind its question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import DISTANCES, Array, Distance, distance
from steelyard.guard.discrepancy.prompts import check_same_length
from steelyard.guard.discrepancy.scorer import Scorer


class BlackBoxDiscrepancy(Scorer):
    """EmbeddingDiscrepancy for models that give text only, such as endpoints (a reconstruction).

    The encoder reads the answer alone and behind the question (and context); both times only the **answer's own
    tokens** are pooled. Pooled over all tokens it would be the similarity of question and answer, another method.

    Args:
        embedder: A bidirectional encoder with ``encode_tokens``, e.g. ``load_default_embedder()``; hashed n-grams and
            endpoints embed whole texts only.
        dist: "cosine", "l2" or "rel_l2", between unit-length means.
        batch_size: Texts a pass.

    Raises:
        InputError: The embedder gives no token states, or an option is unknown.
    """

    def __init__(self, embedder: Any, *, dist: Distance = "cosine", batch_size: int = 64) -> None:
        if not hasattr(embedder, "encode_tokens"):
            raise InputError(
                f"embedder must give the states of single tokens, and {type(embedder).__name__} has no encode_tokens; "
                "use steelyard.models.load_default_embedder()"
            )
        if dist not in DISTANCES:
            raise InputError(f"dist must be one of {', '.join(DISTANCES)}, got {dist!r}")
        self.embedder, self.dist, self.batch_size = embedder, dist, batch_size

    def score(
        self, questions: Sequence[str], responses: Sequence[str], contexts: Sequence[str | None] | None = None
    ) -> Array:
        """Return the score of each answer, shape (n,): **higher = more likely hallucinated**.

        A question too long for the encoder loses its beginning, with the encoder's warning.

        Args:
            questions: What was asked, as text.
            responses: The answers.
            contexts: The text that each was answered from, or None.

        Raises:
            InputError: Lists of different length, an empty text, an answer too long for the encoder.
        """
        check_same_length("questions", questions, "responses", responses)
        contexts = [None] * len(questions) if contexts is None else contexts
        check_same_length("questions", questions, "contexts", contexts)
        if not len(responses):
            return np.zeros(0)
        before = [_before(row, *pair) for row, pair in enumerate(zip(questions, contexts, strict=True))]
        for row, response in enumerate(responses):
            if not isinstance(response, str) or not response.strip():
                raise InputError(f"responses[{row}] is empty; leave unanswered questions out")
        together = self._pooled([x + y for x, y in zip(before, responses, strict=True)], [len(x) for x in before])
        alone = self._pooled(list(responses), [0] * len(responses))
        return -distance(together, alone, self.dist)

    def _pooled(self, texts: Sequence[str], starts: Sequence[int]) -> Array:
        """Return the mean state of each text's tokens from its ``start`` to its end, shape (n, d)."""
        found = []
        encoded = self.embedder.encode_tokens(texts, batch_size=self.batch_size, keep="end")
        for row, (text, start, tokens) in enumerate(zip(texts, starts, encoded, strict=True)):
            begin = start + len(text[start:]) - len(text[start:].lstrip())
            kept = tokens.offsets[tokens.offsets[:, 1] > 0]
            if not len(kept) or kept[0, 0] > begin:
                raise InputError(f"responses[{row}] is too long for the encoder, which would lose a part; shorten it")
            found.append(tokens.span(start, len(text)))
        return np.asarray(found, dtype=np.float64)


def _before(row: int, question: Any, context: Any) -> str:
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"questions[{row}] must be text that is not empty")
    if context is not None and not isinstance(context, str):
        raise InputError(f"contexts[{row}] must be text or None, got {type(context).__name__}")
    return f"{question}\n" if context is None else f"{context}\n{question}\n"
