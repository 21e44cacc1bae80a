"""Words of a text without those that say nothing of its subject."""

from __future__ import annotations

from steelyard.agents.bm25 import tokenize

_WORDS = (
    "a about above after again all also am an and any are as at be because been before being below between both but by "
    "can could did do does doing down during each few for from further had has have having he her here hers him his "
    "how "
    "i if in into is it its itself just me more most my no nor not now of off on once only or other our ours out over "
    "own same she should so some such than that the their theirs them then there these they this those through to too "
    "under until up us very was we were what when where which while who whom why will with would you your yours"
)
_STOP_WORDS = frozenset(_WORDS.split())


def content_words(text: str) -> list[str]:
    """Return the lower-cased words of ``text`` without English stop words."""
    return [word for word in tokenize(text) if word not in _STOP_WORDS]
