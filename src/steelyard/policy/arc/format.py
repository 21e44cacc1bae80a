"""The form of a turn: what an agent states, does and predicts, each between tags of its own (reconstruction)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError

SEGMENTS = ("progress", "think", "action", "predict")
LONGEST = 200_000
"""Characters of a turn that are read; a longer one is an error of form."""
_NAME = re.compile(r"[a-z][a-z_]{0,30}\Z")


class Span(NamedTuple):
    """Where a segment stands in the text of a turn: with its tags, and without."""

    start: int
    end: int
    inner_start: int
    inner_end: int


@dataclass(frozen=True)
class Commitment:
    """What a turn says.

    Attributes:
        progress: What the agent holds to be done; None when it is missing or malformed.
        think: Free reasoning, never scored.
        action: The command.
        prediction: What the agent expects to see next.
        errors: What is wrong with the form, a sentence each.
        spans: Where each well-formed segment stands.
    """

    progress: str | None
    think: str | None
    action: str | None
    prediction: str | None
    errors: tuple[str, ...]
    spans: Mapping[str, Span]


class CommitmentFormat:
    """Tags of a turn, and a strict parser whose time grows with the text's length only.

    Args:
        tags: Names of the tags, for "progress", "think", "action" and "predict"; those left out keep their name.
        needed: Segments without which a turn is malformed.

    Raises:
        InputError: An unknown segment, a tag that is no word of small letters, or two tags of one name.
    """

    def __init__(
        self, tags: Mapping[str, str] | None = None, needed: Sequence[str] = ("progress", "action", "predict")
    ) -> None:
        if not isinstance(tags, Mapping | None):
            raise InputError(f"tags must be a mapping from segments to words, got {type(tags).__name__}")
        if isinstance(needed, str) or not isinstance(needed, Iterable):
            raise InputError(f"needed must be a list of segments, got {needed!r:.40}")
        chosen: dict[str, str] = {segment: segment for segment in SEGMENTS} | dict(tags or {})
        needed = tuple(needed)
        for name, segments in (("tags", tuple(chosen)), ("needed", needed)):
            for segment in segments:
                if segment not in SEGMENTS:
                    raise InputError(f"{name}: {segment!r:.40} is no segment; there are {', '.join(SEGMENTS)}")
        for tag in chosen.values():
            if not isinstance(tag, str) or not _NAME.match(tag):
                raise InputError(f"tags: {tag!r:.40} must be a word of small letters and underscores")
        if len(set(chosen.values())) != len(SEGMENTS):
            raise InputError("tags: two segments have the same tag")
        self.tags, self.needed = chosen, needed
        self._segment = {tag: segment for segment, tag in chosen.items()}
        self._pattern = re.compile(f"<(/?)({'|'.join(re.escape(tag) for tag in self._segment)})>")

    def template(self) -> str:
        """Return the words of a prompt that ask for this form."""
        tag = self.tags
        return (
            f"Answer with <{tag['progress']}>what is done, held, located and missing, as observed</{tag['progress']}>"
            f"<{tag['think']}>your reasoning</{tag['think']}><{tag['action']}>one command</{tag['action']}>"
            f"<{tag['predict']}>what you will see next</{tag['predict']}>"
        )

    def render(self, *, progress: str, action: str, prediction: str, think: str = "") -> str:
        """Return a turn in this form; what is no text or has a tag in it raises InputError."""
        parts = (("progress", progress), ("think", think), ("action", action), ("predict", prediction))
        for segment, text in parts:
            if not isinstance(text, str):
                raise InputError(f"{segment} must be a text, got {type(text).__name__}")
            if "<" in text and self._pattern.search(text):
                raise InputError(f"{segment}: a tag of the form stands in the text {text[:60]!r}")
        return "".join(
            f"<{self.tags[segment]}>{text}</{self.tags[segment]}>"
            for segment, text in parts
            if text or segment != "think"
        )

    def parse(self, text: Any) -> Commitment:
        """Return what a turn says; whatever is malformed is an entry of ``errors`` and never raises.

        A segment that is nested, given twice or left open is None, and so is one in which another's tag stands, or a
        needed one that is blank. Text outside the segments is not read.
        """
        if not isinstance(text, str):
            return Commitment(None, None, None, None, (f"the turn is no text but a {type(text).__name__}",), {})
        if len(text) > LONGEST:
            return Commitment(None, None, None, None, (f"the turn has more than {LONGEST} characters",), {})
        spans, errors, spoiled = self._scanned(text)
        blank = {
            segment
            for segment, span in spans.items()
            if segment in self.needed and not text[span.inner_start : span.inner_end].strip()
        }
        errors += [f"'{segment}' is empty" for segment in SEGMENTS if segment in blank]
        spoiled |= blank
        good = {segment: span for segment, span in spans.items() if segment not in spoiled}
        errors += [
            f"'{segment}' is missing" for segment in self.needed if segment not in good and segment not in spoiled
        ]

        def words(segment: str) -> str | None:
            span = good.get(segment)
            return None if span is None else text[span.inner_start : span.inner_end].strip()

        said = list(dict.fromkeys(errors))
        return Commitment(words("progress"), words("think"), words("action"), words("predict"), tuple(said), good)

    def _scanned(self, text: str) -> tuple[dict[str, Span], list[str], set[str]]:
        """Return where segments stand, what is wrong with their tags, and which of them that spoils."""
        spans: dict[str, Span] = {}
        errors: list[str] = []
        spoiled: set[str] = set()
        open_: tuple[str, int, int] | None = None
        for found in self._pattern.finditer(text):
            segment, closing = self._segment[found[2]], bool(found[1])
            if not closing:
                if open_ is not None:
                    errors.append(f"'{segment}' begins inside '{open_[0]}'")
                    spoiled |= {segment, open_[0]}
                    continue
                if segment in spans:
                    errors.append(f"'{segment}' is there twice")
                    spoiled.add(segment)
                open_ = (segment, found.start(), found.end())
            elif open_ is not None and open_[0] == segment:
                spans.setdefault(segment, Span(open_[1], found.end(), open_[2], found.start()))
                open_ = None
            else:
                errors.append(f"'{segment}' is closed but was not opened")
                spoiled.add(segment)
        if open_ is not None:
            errors.append(f"'{open_[0]}' is not closed")
            spoiled.add(open_[0])
        return spans, errors, spoiled

    def segment_mask(
        self, text: str, offsets: Sequence[tuple[int, int]] | NDArray[np.int64]
    ) -> dict[str, NDArray[np.bool_]]:
        """Return for each segment which tokens belong to it, tags included.

        Args:
            text: The turn.
            offsets: First and last character (exclusive) of each token, as fast tokenizers give them; (0, 0) for none.

        Returns:
            Segment -> (tokens,); all false for a segment that is missing or malformed. A token across two segments
            belongs to the one in which it begins.

        Raises:
            InputError: What is given is no text, or the offsets are no pairs of whole numbers.
        """
        if not isinstance(text, str):
            raise InputError(f"text must be the text of a turn, got {type(text).__name__}")
        places = _pairs(offsets)
        spans = self.parse(text).spans
        real = places[:, 1] > places[:, 0]
        masks = {}
        for segment in SEGMENTS:
            span = spans.get(segment)
            inside = np.zeros(len(places), bool)
            if span is not None:
                inside = real & (places[:, 0] >= span.start) & (places[:, 0] < span.end)
            masks[segment] = inside
        return masks


def _pairs(offsets: Any) -> NDArray[np.int64]:
    """Return offsets as (tokens, 2); raises InputError for what has another form."""
    try:
        places = np.asarray(offsets)
    except ValueError:  # rows of several lengths
        places = np.zeros(0, object)
    if places.shape in ((0,), (0, 2)) and places.dtype != object:
        return np.zeros((0, 2), np.int64)
    if places.ndim != 2 or places.shape[1] != 2 or places.dtype.kind not in "iu":
        raise InputError("offsets must hold the first and last character of each token, a pair of whole numbers each")
    return places.astype(np.int64)


def claims_of(text: str) -> dict[str, str]:
    """Return the claims "key=value" of a statement, separated by semicolons or new lines, in small letters.

    Of a key that is claimed twice the last claim counts, so that nothing is gained by claiming several.
    """
    found = {}
    for part in re.split(r"[;\n]", text.lower()):
        key, equals, value = part.partition("=")
        if equals and key.strip() and value.strip():
            found[key.strip()] = value.strip()
    return found
