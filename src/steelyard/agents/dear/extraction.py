"""From what an agent wrote to what it answered: the answer, the argument before it, and which answers are the same.

Replies are bounded before anything is looked for in them, and every pattern runs in linear time. Reconstruction.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_REPLY = 20_000  # characters of a reply that are looked at, its last ones
MAX_ANSWER = 500
LABELS = string.ascii_uppercase

_ANSWER = re.compile(r"\banswer\s{0,3}[*_]{0,3}\s{0,3}(?:is\b|:|=)[*_:\s]{0,6}(\S.{0,499})", re.IGNORECASE)
_CONFIDENCE = re.compile(
    r"\bconfidence\s{0,3}[*_]{0,3}\s{0,3}(?:is\b|:|=)[*_:\s]{0,6}(\d{1,3}(?:\.\d{1,6})?)(\s?%)?", re.I
)
_BOXED = re.compile(r"\\boxed\{([^{}]{1,500})\}")
_LABEL = re.compile(r"^[\W_]{0,4}([A-Za-z])\s{0,2}(?:[).:,\]*}-][\s*).]{0,4}(.*))?[\W_]{0,4}$")
_NUMBER = re.compile(r"[$€£]?\s?([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d{1,3})?)")
_FRACTION = re.compile(r"([+-]?\d{1,15})\s?/\s?(\d{1,15})")
_NEGATION = re.compile(r"\b(?:not|never|neither|nor|cannot|isn't|no)\b", re.IGNORECASE)
_EDGE = string.punctuation.replace("-", "").replace("+", "").replace("$", "") + "“”‘’€£ \t"


class Reply(NamedTuple):
    """What a reply says: the answer as written (None without one), the text before it, the confidence stated."""

    answer: str | None
    argument: str
    confidence: float | None


def read_reply(text: str) -> Reply:
    r"""Return answer, argument and confidence of a reply.

    The answer is what follows the last "Answer:" (or "answer is"), else the last ``\boxed{}``, else the last line if
    it is short. The argument is the rest, without what states an answer or a confidence.
    """
    lines = [line.strip() for line in text[-MAX_REPLY:].splitlines() if line.strip()]
    levels = [found for line in lines for found in _CONFIDENCE.findall(line)]
    lines = [_CONFIDENCE.split(line)[0].strip() for line in lines]
    kept = [rest for line in lines if (rest := _ANSWER.split(line)[0].strip(" *_#"))]
    stated = [found for line in lines for found in _ANSWER.findall(line)]
    boxed = [found for line in lines for found in _BOXED.findall(line)]
    answer = None
    if stated or boxed:
        answer = str((stated or boxed)[-1])
        inside = _BOXED.search(answer)
        answer = inside.group(1) if inside else answer
    elif kept and len(kept[-1]) <= MAX_ANSWER:
        answer = kept.pop()
    return Reply(answer.strip() or None if answer else None, "\n".join(kept), _level(*levels[-1]) if levels else None)


def _level(number: str, percent: str) -> float | None:
    value = float(number) / (100 if percent or float(number) > 1 else 1)
    return value if value <= 1 else None


def canonical(text: str) -> str:
    """Return a text as answers are compared: one spelling of letters, case, spaces, quotes, articles and full stops."""
    plain = " ".join(unicodedata.normalize("NFKC", text[:MAX_ANSWER]).casefold().split()).strip(_EDGE)
    return re.sub(r"^(?:the|an|a) (?=\S)", "", plain)


def as_number(text: str) -> float | None:
    """Return the number that ``text`` is, with thousands' commas and a currency sign allowed, or None."""
    plain = text.strip().casefold()[:MAX_ANSWER].rstrip(".")
    fraction = _FRACTION.fullmatch(plain)
    if fraction:
        return int(fraction[1]) / int(fraction[2]) if int(fraction[2]) else None
    found = _NUMBER.fullmatch(plain)
    if not found or not re.search(r"\d", found[1].partition("e")[0]):
        return None
    value = float(found[1].replace(",", ""))
    return value if math.isfinite(value) else None


def match_option(said: str, options: Sequence[str]) -> int | None:
    """Return the place of the option that was said, by its label (A, B, …), its text or its number; None if unclear.

    Args:
        said: The answer as it was written.
        options: In the order in which they were shown, A first.
    """
    words = canonical(said)
    same = [place for place, option in enumerate(options) if canonical(option) == words]
    if len(same) == 1:
        return same[0]
    label = _LABEL.match(said[:MAX_ANSWER].strip())
    if label and (place := LABELS.find(label[1].upper())) < len(options):
        rest = canonical(label[2] or "")
        others = [canonical(option) for index, option in enumerate(options) if index != place]
        return None if rest in others else place  # "B) Lyon" where Lyon is A: unclear
    value = as_number(words)
    if value is not None:
        equal = [place for place, option in enumerate(options) if as_number(canonical(option)) == value]
        return equal[0] if len(equal) == 1 else None
    return None if _NEGATION.search(words) else _mentioned(words, options)


def _mentioned(words: str, options: Sequence[str]) -> int | None:
    """Return the one option whose text stands in ``words``; "York" does not count inside "New York"."""
    inside = [(place, canonical(option)) for place, option in enumerate(options)]
    inside = [(place, option) for place, option in inside if option and _stands(option, words)]
    longest = [
        place for place, option in inside if not any(option != other and _stands(option, other) for _, other in inside)
    ]
    return longest[0] if len(longest) == 1 else None


def _stands(part: str, whole: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", whole) is not None


class Clusters:
    """Answers to an open question, put together where they are the same; the clusters found so far keep their numbers.

    Numbers belong to one cluster when they are within ``tolerance`` of its first one, relatively; other answers when
    their canonical texts are equal.

    Args:
        canonicalise: Another function in the place of :func:`canonical`.
        tolerance: Relative.
    """

    def __init__(self, canonicalise: Callable[[str], str] | None = None, tolerance: float = 1e-6) -> None:
        self.texts: list[str] = []
        self._canonicalise = canonicalise or canonical
        self._tolerance = tolerance
        self._numbers: list[float | None] = []

    def place(self, answers: Sequence[str | None]) -> list[int]:
        """Return the cluster of each answer, -1 for None; new ones are numbered by their content, not their order."""
        known = {answer: str(self._canonicalise(answer)) for answer in answers if answer is not None}
        plain = {answer: (as_number(text), text) for answer, text in known.items()}
        for number, text in sorted(set(plain.values()), key=lambda pair: (pair[0] is None, pair[0] or 0.0, pair[1])):
            if self._find(number, text) < 0:
                self.texts.append(text)
                self._numbers.append(number)
        return [-1 if answer is None else self._find(*plain[answer]) for answer in answers]

    def _find(self, number: float | None, text: str) -> int:
        best, nearest = -1, math.inf
        for place, (value, known) in enumerate(zip(self._numbers, self.texts, strict=True)):
            if number is None or value is None:
                if known == text:
                    return place
            elif math.isclose(number, value, rel_tol=self._tolerance, abs_tol=1e-12) and abs(number - value) < nearest:
                best, nearest = place, abs(number - value)
        return best
