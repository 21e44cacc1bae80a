"""A reader without a model: it understands what is asked, and believes the first passage that has such an answer.

It knows the language (which words are statuses, which phrases settle a topic, how dates and paths look) and nothing of
the chat, so what it gets right depends on which passages a memory returns and in which order. A stale or foreign
passage in front misleads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from steelyard.agents.groupmembench.messages import Hit
from steelyard.agents.groupmembench.ontology import BLOCKERS, DETAILS, STATUSES, TOPICS
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.readers import ABSTAINS
from steelyard.errors import InputError

_FORMS = {
    "date": r"\b\d{4}-\d{2}-\d{2}\b",
    "path": r"(?:/[\w-]+)+\.\w+",
    "owner": r"\bUser_\d+\b",
}
_ASKED = (
    ("blocker", ("blocker", "waiting for")),
    ("path", ("which path", "which file", "what location")),
    ("date", ("date", "deadline", "when ")),
    ("status", ("status", "how far")),
    ("owner", ("who ", "owner")),
)


def kind_of(question: str) -> str:
    """Return what form of answer a generated question asks for.

    Raises:
        InputError: It is not a question of the generator's kinds.
    """
    text = question.lower()
    for name in (*DETAILS, *TOPICS):
        if name in text:
            return name
    for kind, cues in _ASKED:
        if any(cue in text for cue in cues):
            return kind
    raise InputError(f"question {question[:80]!r} is none that the deterministic reader knows; give a reader of yours")


@lru_cache(maxsize=64)
def pattern(kind: str) -> re.Pattern[str]:
    """Return the pattern of answers of a kind."""
    if kind in DETAILS:
        return re.compile(DETAILS[kind][0])
    if kind in _FORMS:
        return re.compile(_FORMS[kind], re.IGNORECASE)
    values = {**TOPICS, "status": STATUSES, "blocker": BLOCKERS}[kind]
    longest_first = sorted(values, key=len, reverse=True)
    return re.compile(r"\b(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)", re.IGNORECASE)


def read(question: str, passages: Sequence[str]) -> str:
    """Return the answer in the first passage that has one of the asked form, or :data:`ABSTAINS`.

    Args:
        question: A generated question.
        passages: Bodies of messages, best first.
    """
    form = pattern(kind_of(question))
    for passage in passages:
        found = form.search(passage)
        if found:
            return found.group(0)
    return ABSTAINS


def correct(answer: str, gold: str) -> bool:
    """Return whether two answers are the same but for case and outer blanks."""
    return answer.strip().lower() == gold.strip().lower()


class FormReader:
    """:func:`read` in the form that the protocol takes."""

    def __call__(self, question: Question, hits: Sequence[Hit]) -> str:
        """Return ``Final:`` and the answer."""
        return f"Final: {read(question.question, [hit.message.content for hit in hits])}"
