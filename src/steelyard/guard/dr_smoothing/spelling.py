"""SymSpell's English dictionary and word pairs, read once per process at the first use."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard.extras import require

_WORDS = "frequency_dictionary_en_82_765.txt"  # "word count"
_PAIRS = "frequency_bigramdictionary_en_243_342.txt"  # "left right count"
_LONGEST = 64  # letters of a word that is looked up: English has none so long, and hostile ones must not be kept
_LOCK = threading.Lock()


class Lexicon:
    """English words with counts, their neighbours within two edits, and the pairs that occur.

    Args:
        speller: A loaded ``symspellpy.SymSpell``.
        pairs: Known pairs, as ``"left right"``.
    """

    def __init__(self, speller: Any, pairs: frozenset[str]) -> None:
        self._speller = speller
        self._pairs = pairs
        self._top = require("symspellpy", "guard").Verbosity.TOP
        self._known = functools.lru_cache(maxsize=1 << 16)(self._lookup)

    def corrected(self, token: str) -> str:
        """Return the dictionary word closest to one run without white space, digits as they are, or nothing."""
        word = "".join(sign for sign in token.replace("\u2019", "'") if sign.isalnum() or sign in "'-").lower()
        if not word or word.isdigit():
            return word
        if len(word) > _LONGEST:
            return ""
        return self._known(word)

    def coherent(self, words: Sequence[str], min_unigram: float) -> list[str]:
        """Return the words that are frequent by themselves, form a known pair with a neighbour, or are numbers."""
        if not words:
            return []
        linked = [f"{left} {right}" in self._pairs for left, right in itertools.pairwise(words)]
        before, after = [False, *linked], [*linked, False]
        counts = self._speller.words
        return [
            word
            for word, left, right in zip(words, before, after, strict=True)
            if left or right or word.isdigit() or counts.get(word, 0) >= min_unigram
        ]

    def _lookup(self, word: str) -> str:
        edits = min(2, len(word) - 1)  # else every unknown word of two letters would become "of", the most frequent
        found = self._speller.lookup(word, self._top, max_edit_distance=edits)
        return str(found[0].term) if found else ""


def lexicon() -> Lexicon:
    """Return the process's one lexicon; the first call reads it.

    Raises:
        MissingExtraError: symspellpy is not installed.
    """
    with _LOCK:  # two threads of a server must not read it twice
        return _loaded()


@functools.cache
def _loaded() -> Lexicon:
    symspell = require("symspellpy", "guard")
    folder = Path(str(symspell.__file__)).parent
    speller = symspell.SymSpell(max_dictionary_edit_distance=2, prefix_length=7)
    with _no_collections():
        speller.load_dictionary(folder / _WORDS, term_index=0, count_index=1, encoding="utf-8-sig")
        lines = (folder / _PAIRS).read_text(encoding="utf-8-sig").splitlines()
        pairs = frozenset(line.rpartition(" ")[0] for line in lines)  # their counts are not needed
    return Lexicon(speller, pairs)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the cyclic collector from walking two million strings again and again while they are made."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
