"""A detector behind the guard proxy: what it says of every answer goes into ``x_discrepancy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.scorer import Scorer


class DiscrepancyDetector:
    """Scores the answer of a chat completion; it never holds an answer back.

    Args:
        detector: An :class:`EmbeddingDiscrepancy`, whose own model reads the chat (it need not be the one that
            answered), or a :class:`BlackBoxDiscrepancy`, which reads the last user turn.
    """

    def __init__(self, detector: Scorer) -> None:
        self.detector = detector

    def score(self, messages: Sequence[Mapping[str, str]], text: str) -> dict[str, Any]:
        """Return ``{"x_discrepancy": {...}}`` for one answer.

        ``score`` is higher = more likely hallucinated, ``hallucinated`` what the threshold makes of it, None without
        one. Where nothing can be said, such as of an empty answer or a chat longer than the model, ``score`` is None
        and ``reason`` says why.
        """
        try:
            value = self._score(messages, text)
        except InputError as error:
            return {"x_discrepancy": {"score": None, "hallucinated": None, "reason": str(error)[:300]}}
        threshold = self.detector.threshold
        verdict = None if threshold is None else bool(value > threshold)
        return {"x_discrepancy": {"score": value, "hallucinated": verdict, "threshold": threshold}}

    def _score(self, messages: Sequence[Mapping[str, str]], text: str) -> float:
        if isinstance(self.detector, EmbeddingDiscrepancy):
            chat = list(messages) if self.detector.lm.is_chat else _last_user_turn(messages)
            return float(self.detector.score([chat], [text])[0])
        return float(self.detector.score([_last_user_turn(messages)], [text])[0])


def _last_user_turn(messages: Sequence[Mapping[str, str]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            return message["content"]
    raise InputError("messages hold no user turn")
