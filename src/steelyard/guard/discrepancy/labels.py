"""Whether an answer is right, by two rules that are always reported together."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"[^\W_]+")
ROUGE_RIGHT = 0.5


class Labels(NamedTuple):
    """Which answers are **right**, bool of shape (n,) each.

    Attributes:
        contains: The normalised gold answer stands in the answer, whole words.
        rouge_l: ROUGE-L with a gold answer is above .5 (INSIDE's rule).
    """

    contains: NDArray[np.bool_]
    rouge_l: NDArray[np.bool_]


def label_answers(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> Labels:
    """Return which answers are right by either rule; one of several gold answers is enough.

    Args:
        answers: One text per question; an empty one is wrong.
        golds: The gold answers of each question, at least one.

    Raises:
        InputError: Lists of different length; a question without a gold answer that has a word.
    """
    if len(answers) != len(golds):
        raise InputError(f"answers and golds must be equally long, got {len(answers)} and {len(golds)}")
    for row, gold in enumerate(golds):
        if isinstance(gold, str):
            raise InputError(f"golds[{row}] must be a list of gold answers, got one string; write [gold]")
        if not any(normalise(text) for text in gold):
            raise InputError(f"golds[{row}] holds no gold answer with a word in it; leave the question out")
    pairs = list(zip(answers, golds, strict=True))
    contains = [contains_gold(answer, gold) for answer, gold in pairs]
    rouge = [max(rouge_l(answer, text) for text in gold) > ROUGE_RIGHT for answer, gold in pairs]
    return Labels(np.array(contains, dtype=bool), np.array(rouge, dtype=bool))


def normalise(text: str) -> str:
    """Return ``text`` as SQuAD's evaluation compares it: lower case, no punctuation, no English article, one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def contains_gold(answer: str, golds: Sequence[str]) -> bool:
    """Say whether a normalised gold answer stands in the normalised answer; whole words, so 1 is not in 1931."""
    text = f" {normalise(answer)} "
    return any(gold and f" {gold} " in text for gold in map(normalise, golds))


def words(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, in lower case."""
    return _WORD.findall(text.lower())


def rouge_l(candidate: str, reference: str) -> float:
    """Return ROUGE-L in [0, 1]: the F measure of the longest common subsequence of words (Lin 2004), no stemming."""
    a, b = words(candidate), words(reference)
    common = _common_subsequence(a, b)
    return 2 * common / (len(a) + len(b)) if common else 0.0


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    best = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for place, other in enumerate(b, start=1):
            diagonal, best[place] = best[place], diagonal + 1 if word == other else max(best[place], best[place - 1])
    return best[-1]
