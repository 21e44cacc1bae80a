"""What the words of a query or message say about structure: who is meant, which phase, whether plans changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from steelyard.agents.bm25 import tokenize

Value = TypeVar("Value", bound=Hashable)

_FIRST_PERSON = re.compile(r"\b(?:my|me|i(?!\.\s?e\b))\b", re.IGNORECASE)
_CURRENT = re.compile(
    r"\b(?:current(?:ly)?|latest|now|nowadays|still|these days|at (?:the moment|present)|present(?:ly)?"
    r"|up[- ]to[- ]date|as of|final(?:ly)?|most recent(?:ly)?|today|in (?:effect|force)|end(?:ed)? up|by now|newest"
    r"|updated?)\b",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"\b(?:instead|rather than|no longer|any ?more|chang(?:e|ed|es|ing)|switch(?:ed|ing)?|replac(?:e|ed|es|ing)"
    r"|supersed(?:e|ed|es|ing)|overrid(?:e|es|ing|den)|revis(?:e|ed|ing)|updat(?:e|ed|ing)|scrap(?:ped|ping)?"
    r"|drop(?:ped|ping)|revert(?:ed|ing)?|revers(?:e|ed|ing)|scratch that|correction|new plan|reconsider(?:ed|ing)?"
    r"|mov(?:e|ed|ing) (?:away|over|off)|abandon(?:ed|ing)?|withdraw[ns]?)\b",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(?:decid(?:e|ed|es|ing)|decision|agree[ds]?|approv(?:e|ed|al)|settled?|sign(?:ed)?[- ]off|commit(?:ted)?"
    r"|go(?:ing)? with|went with|stick(?:ing)? with|proceed(?:ing)?|we(?:'ll| will| are going to)|the plan is|final)\b",
    re.IGNORECASE,
)


def is_first_person(query: str) -> bool:
    """Return whether ``query`` has the word I, my or me."""
    return _FIRST_PERSON.search(query) is not None


def asks_for_current(query: str) -> bool:
    """Return whether ``query`` asks for the current or latest state of something."""
    return _CURRENT.search(query) is not None


# Words of which each pattern needs one: far cheaper to look for than the pattern itself, which has the last word.
_CHANGE_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
        instead rather longer any anymore change changed changes changing switch switched switching replace replaced
        replaces replacing supersede superseded supersedes superseding override overrides overriding overridden revise
        revised revising update updated updating scrap scrapped scrapping dropped dropping revert reverted reverting
        reverse reversed reversing scratch correction plan reconsider reconsidered reconsidering move moved moving
        abandon abandoned abandoning withdrawn withdraws
        """,
    )
)
_DECISION_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
        decide decided decides deciding decision agree agreed agrees approve approved approval settle settled sign
        signed commit committed go going went stick sticking proceed proceeding we plan final
        """,
    )
)


def is_change(content: str, tokens: Iterable[str] | None = None) -> bool:
    """Return whether the wording of a message, whose ``tokens`` may be given, changes something decided before."""
    words = tokenize(content) if tokens is None else tokens
    return not _CHANGE_WORDS.isdisjoint(words) and _CHANGE.search(content) is not None


def is_decision(content: str, tokens: Iterable[str] | None = None) -> bool:
    """Return whether the wording of a message, whose ``tokens`` may be given, decides something."""
    words = tokenize(content) if tokens is None else tokens
    return not _DECISION_WORDS.isdisjoint(words) and _DECISION.search(content) is not None


class Names(Generic[Value]):
    """Finds which of some names a query mentions, the longest first: a name within a longer one found does not count.

    Args:
        names: Pairs of a name and what it stands for; equal names may stand for several things.
    """

    def __init__(self, names: Iterable[tuple[str, Value]]) -> None:
        self._meanings: dict[tuple[str, ...], set[Value]] = {}
        for name, value in names:
            words = tuple(tokenize(name))
            if words:
                self._meanings.setdefault(words, set()).add(value)
        self._lengths = sorted({len(words) for words in self._meanings}, reverse=True)

    def find(
        self, tokens: Sequence[str], known: Callable[[Value], bool] | None = None
    ) -> list[tuple[int, int, set[Value]]]:
        """Return (start, end, meanings) of the names among ``tokens``, none overlapping, in order.

        Args:
            tokens: The query's.
            known: Which meanings count; a name without one does not take the place of a shorter one. None = all.
        """
        taken = [False] * len(tokens)
        found = []
        for length in self._lengths:
            for start in range(len(tokens) - length + 1):
                end = start + length
                meanings = self._meanings.get(tuple(tokens[start:end]), set())
                if known is not None:
                    meanings = {one for one in meanings if known(one)}
                if meanings and not any(taken[start:end]):
                    taken[start:end] = [True] * length
                    found.append((start, end, meanings))
        return sorted(found, key=lambda one: one[:2])

    def __len__(self) -> int:
        return len(self._meanings)
