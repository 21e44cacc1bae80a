"""Guessing who answers whom from names and turns alone (reconstruction), and how often the guess is right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from steelyard.errors import InputError

_SHORTEST_NAME = 3  # shorter nicks are also words


class LinkScores(NamedTuple):
    """How good predicted reply links are, with the counts behind the shares.

    Attributes:
        precision: Right ones among the predicted links of annotated messages.
        recall: Right ones among the annotated messages that answer something.
        right: Predicted parents that are an annotated parent of the same message.
        predicted: Annotated messages with a predicted parent.
        linked: Annotated messages with an annotated parent.
    """

    precision: float
    recall: float
    right: int
    predicted: int
    linked: int


def predict_parents(
    authors: Sequence[str],
    texts: Sequence[str],
    positions: Sequence[int],
    *,
    address_window: int = 150,
    response_window: int = 60,
    own_window: int = 40,
) -> list[int]:
    """Return the index of the message that each one seems to answer, -1 for none (reconstruction).

    (a) The first word, stripped of ``:`` and ``,``, names another known user: that user's latest message. (b) Else, if
    somebody addressed the speaker since the speaker last wrote: the addressing message. (c) Else the speaker's own
    previous message. (d) Else none. A link counts only within its window. Names are compared in lower case; short ones
    (two characters or less) are not taken for names; every author of the list is known.

    Args:
        authors: Who wrote each message, in order of time.
        texts: What they wrote.
        positions: Line of each message, rising.
        address_window: (a) holds if the message lies fewer lines back than this.
        response_window: The same for (b).
        own_window: The same for (c).

    Raises:
        InputError: The lists differ in length.
    """
    if not len(authors) == len(texts) == len(positions):
        raise InputError(
            f"authors, texts and positions must be equally long, not {len(authors)}, {len(texts)}, {len(positions)}."
        )
    names = [author.lower() for author in authors]
    known = {name for name in names if len(name) >= _SHORTEST_NAME}
    latest: dict[str, int] = {}
    addressed: dict[str, int] = {}
    parents = []
    for here, (me, text) in enumerate(zip(names, texts, strict=True)):
        named = _addressee(text, known, me)
        candidates = (
            (latest.get(named, -1), address_window),
            (addressed.get(me, -1) if addressed.get(me, -1) > latest.get(me, -1) else -1, response_window),
            (latest.get(me, -1), own_window),
        )
        near = (there for there, window in candidates if there >= 0 and positions[here] - positions[there] < window)
        parents.append(next(near, -1))
        if named:
            addressed[named] = here
        latest[me] = here
    return parents


def _addressee(text: str, known: Collection[str], speaker: str) -> str:
    """Return the known user whom the first word names, or an empty string."""
    words = text.split(maxsplit=1)
    name = words[0].strip(":,").lower() if words else ""
    return name if name in known and name != speaker else ""


def score_links(predicted: Mapping[str, str | None], gold: Mapping[str, Collection[str]]) -> LinkScores:
    """Compare predicted links with annotated ones; a prediction is right if it is any of the annotated parents.

    Args:
        predicted: Message -> parent or None; a message that is missing here has none.
        gold: Annotated message -> its parents; none, or itself alone, for one that starts a thread.

    Raises:
        InputError: Nothing is annotated as an answer, or nothing was predicted: a share is then undefined.
    """
    right = guessed = linked = 0
    for child, parents in gold.items():
        guess = predicted.get(child)
        others = set(parents) - {child}
        linked += bool(others)
        guessed += guess is not None
        right += guess in others
    if not linked or not guessed:
        raise InputError(f"precision and recall need both kinds of links: {linked} annotated, {guessed} predicted.")
    return LinkScores(right / guessed, right / linked, right, guessed, linked)
