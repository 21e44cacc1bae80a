"""Where texts name skills: one pass over the words of a text, however many names there are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from steelyard.agents.goskills.skill import Skill

SCANNED = 9000  # characters of description and body that are searched for names
_WORD = re.compile(r"[a-z0-9]+")
_BEFORE = re.compile(r"\b(?:use|using|skills?)[ :]+[`\"']?$")
_AFTER = re.compile(r"[`\"']?\s+skills?\b")
_GENERIC_WORDS = (
    "csv data design docx excel html image images json latex markdown math matplotlib model models networkx "
    "numpy pandas paper pdf plot pptx python pytorch report research review scan scipy search seaborn sql statistics "
    "test testing text transformers web writing xlsx"
)
_GENERIC = frozenset(_GENERIC_WORDS.split())
GENERIC_SHARE = 0.02  # of the other skills whose text holds the word
GENERIC_COUNT = 3


class Mention(NamedTuple):
    """A place in a text where skills are named.

    Attributes:
        skills: Places of the skills with that name in the library; several where sources share a name.
        start: First character in the lower-cased text.
        end: Character after the last.
        joined: The name has several parts, written with hyphens.
        spaced: The name has several parts, written with blanks.
        marked: It stands in backticks, or next to "skill" or "use".
    """

    skills: tuple[int, ...]
    start: int
    end: int
    joined: bool
    spaced: bool
    marked: bool


class NameIndex:
    """The names of the skills of a library, in a form that finds them in any text.

    A name of one part is *generic* when a text can hold the word without meaning the skill: it has at most 3
    characters, is a common noun or tool, or is a word of more than 2 % of the other skills' texts (at least 3).

    Args:
        skills: The skills, in the order of the library.
    """

    def __init__(self, skills: Sequence[Skill]) -> None:
        by_parts: dict[tuple[str, ...], list[int]] = {}
        self.plain = tuple(skill.plain_name for skill in skills)
        for place, skill in enumerate(skills):
            parts = tuple(_WORD.findall(skill.plain_name.lower()))
            if parts:
                by_parts.setdefault(parts, []).append(place)
        self._by_parts = by_parts
        self._lengths: dict[str, list[int]] = {}  # first part -> how many parts the names that begin so have
        for length, first in sorted({(len(parts), parts[0]) for parts in by_parts}, reverse=True):
            self._lengths.setdefault(first, []).append(length)
        self.mentions = [self.find(scanned_text(skill)) for skill in skills]
        holders: dict[int, int] = {}
        for source, found in enumerate(self.mentions):
            for place in {place for mention in found for place in mention.skills if place != source}:
                holders[place] = holders.get(place, 0) + 1
        least = max(GENERIC_COUNT, GENERIC_SHARE * len(skills))
        self.generic = frozenset(
            places[0]
            for parts, places in by_parts.items()
            if len(parts) == 1 and (len(parts[0]) <= 3 or parts[0] in _GENERIC or holders.get(places[0], 0) >= least)
        )

    def find(self, text: str) -> list[Mention]:
        """Return every mention in ``text``, the longest name where several begin at one word."""
        lowered = text.lower()
        words = list(_WORD.finditer(lowered))
        found: list[Mention] = []
        free = 0
        for number, word in enumerate(words):
            if number < free:
                continue
            for length in self._lengths.get(word[0], ()):
                run = words[number : number + length]
                places = self._by_parts.get(tuple(one[0] for one in run))
                gaps = None if places is None else _gaps(lowered, run)
                if places is not None and gaps is not None:
                    joined, spaced = length > 1 and " " not in gaps, " " in gaps
                    marked = _is_marked(lowered, word.start(), run[-1].end())
                    found.append(Mention(tuple(places), word.start(), run[-1].end(), joined, spaced, marked))
                    free = number + length
                    break
        return found

    def literal(self, query: str) -> list[int]:
        """Return the skills that a task names outright, in the order of their first mention.

        A name of several parts counts with hyphens, and with blanks when it is longer than 5 characters; a name of one
        part counts as a word of more than 3 characters, a generic one only when it is marked.
        """
        named: dict[int, None] = {}
        for mention in self.find(query):
            length = mention.end - mention.start
            plain = not mention.joined and not mention.spaced
            generic = plain and mention.skills[0] in self.generic
            if mention.marked or mention.joined or (mention.spaced and length > 5) or (plain and not generic):
                named.update(dict.fromkeys(mention.skills))
        return list(named)


def scanned_text(skill: Skill) -> str:
    """Return what is searched of a skill's own text."""
    return f"{skill.description}\n{skill.body}"[:SCANNED]


def _gaps(text: str, words: Sequence[re.Match[str]]) -> set[str] | None:
    """Return the characters between neighbouring words where these can part a name, else None."""
    gaps = {text[one.end() : other.start()] for one, other in itertools.pairwise(words)}
    return gaps if gaps <= {"-", "_", " "} else None


def _is_marked(text: str, start: int, end: int) -> bool:
    if text[start - 1 : start] == "`" and text[end : end + 1] == "`":
        return True
    return bool(_BEFORE.search(text, max(0, start - 12), start)) or bool(_AFTER.match(text, end))
