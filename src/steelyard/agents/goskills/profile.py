"""What the rules read out of one skill: formats in and out, cues, and the sentences that warn or check."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from steelyard.agents.goskills.names import scanned_text
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.words import canonical_formats, formats, grams, name_phrase, stems

MAX_SENTENCE = 240
MAX_SENTENCES = 3  # of one kind from one skill
_HEADINGS = 40
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_READS = re.compile(r"\b(?:read|load|pars|import|open|ingest|from|input|accept)\w*\b", re.I)
_WRITES = re.compile(r"\b(?:writ|export|sav|generat|creat|produc|output|emit|render|to|into)\w*\b", re.I)
_CHECKS = re.compile(r"\b(?:validat|verif|check|lint|test|audit|review|qa|quality control)\w*\b", re.I)
_ENTRY = re.compile(
    r"\b(?:end-to-end|entry point|orchestrat|pipeline|workflow|start here|toolkit|comprehensive)\w*\b", re.I
)
_AVOID = re.compile(r"\b(?:not for|never|do not|don't|avoid)\b", re.I)
_NOT_FOR = re.compile(r"\bnot for\b", re.I)
_WHEN = re.compile(r"\b(?:use (?:this|it|when|for|to|whenever)|when (?:you|the|working|to))\b", re.I)
_FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)
_MARKUP = re.compile(r"^[\s>#*+\-\d.\])]+|[*_]{2}")


@dataclass(frozen=True)
class Profile:
    """Cues of one skill.

    Attributes:
        reads: File formats that it takes, declared or named next to a reading verb.
        writes: File formats that it gives.
        checker: Its name or description says that it validates, tests or checks.
        entry: It says that it leads a whole workflow.
        phrases: Pairs of stems of name, description, headings and tags; formats and single stems of the name too.
        use_when: The sentence that says when to use it.
        avoid: Sentences that warn.
        check: Sentences that say what to check.
        unfit: Pairs of stems of the sentences that say what it is not for.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    checker: bool
    entry: bool
    phrases: frozenset[str]
    use_when: str
    avoid: tuple[str, ...]
    check: tuple[str, ...]
    unfit: frozenset[str]


def profile(skill: Skill) -> Profile:
    """Return the cues of a skill; rules of this reconstruction."""
    prose = _FENCED.sub("\n", scanned_text(skill))
    sentences = [sentence for part in _SENTENCE.split(prose) if len(sentence := _plain(part)) > 2]
    own = [part for part in _SENTENCE.split(skill.description) if part.strip()]
    headings = [line.lstrip("# ") for line in prose.split("\n") if line.startswith("#")][:_HEADINGS]
    reads, writes = set(canonical_formats(skill.inputs)), set(canonical_formats(skill.outputs))
    for sentence in own + headings:
        named = formats(sentence)
        if named:
            reads.update(named if _READS.search(sentence) else ())
            writes.update(named if _WRITES.search(sentence) else ())
    lead = f"{skill.plain_name.replace('-', ' ')}. {skill.description}"
    cues = [lead, *headings, *skill.tags, *skill.inputs, *skill.outputs]
    phrases = {gram for cue in cues for gram in grams(cue)}
    phrases.update([name_phrase(skill.plain_name)], stems(skill.plain_name), *(formats(cue) for cue in cues))
    return Profile(
        reads=frozenset(reads),
        writes=frozenset(writes),
        checker=_CHECKS.search(lead) is not None,
        entry=_ENTRY.search(lead) is not None,
        phrases=frozenset(phrases),
        use_when=_plain(next((part for part in own if _WHEN.search(part)), own[0])),
        avoid=_first(part for part in sentences if _AVOID.search(part)),
        check=_first(part for part in sentences if _CHECKS.search(part)),
        unfit=frozenset(gram for part in own if (hit := _NOT_FOR.search(part)) for gram in grams(part[hit.end() :])),
    )


def _first(sentences: Iterable[str]) -> tuple[str, ...]:
    found = dict.fromkeys(sentences)
    return tuple(found)[:MAX_SENTENCES]


def _plain(sentence: str) -> str:
    """Return a sentence on one line, without list marks, at most 240 characters, the cut shown."""
    text = " ".join(_MARKUP.sub("", sentence).split())
    return text if len(text) <= MAX_SENTENCE else f"{text[: MAX_SENTENCE - 1]}…"
