"""A detector behind the guard proxy: what it says of every answer goes into ``x_discrepancy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.scorer import Scorer


class DiscrepancyDetector:
    """Scores the answer of a chat completion; it never holds an answer back.

    A score is a remark on an answer and no gate, so an answer that cannot be scored leaves too, with ``score`` None and
    the ``reason``: else every answer longer than an encoder reads would be an error. A client that acts on the verdict
    must take ``hallucinated`` None as not known, not as no. Any other failure is raised, and the proxy then gives no
    answer.

    Args:
        detector: An :class:`EmbeddingDiscrepancy`, whose own model reads the chat (it need not be the one that
            answered), or a :class:`BlackBoxDiscrepancy`, which reads the last user turn.
    """

    def __init__(self, detector: Scorer) -> None:
        self.detector = detector

    def score(self, messages: Sequence[Mapping[str, str]], text: str) -> dict[str, Any]:
        """Return ``{"x_discrepancy": {...}}`` for one answer.

        ``score`` is higher = more likely hallucinated, ``hallucinated`` what the ``threshold`` makes of it, None
        without one. Where nothing can be said, such as of an empty answer or a chat longer than the model, both are
        None and ``reason`` says why.
        """
        threshold = self.detector.threshold
        found: dict[str, Any] = {"score": None, "hallucinated": None, "threshold": threshold}
        try:
            found["score"] = self._score(messages, text)
        except InputError as error:
            return {"x_discrepancy": {**found, "reason": str(error)[:300]}}
        if threshold is not None:
            found["hallucinated"] = bool(found["score"] > threshold)
        return {"x_discrepancy": found}

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
