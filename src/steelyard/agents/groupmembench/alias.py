"""Aliases: names of one thing, from glossary lines and from roles that use other phrases in the same threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from steelyard.agents.bm25 import tokenize
from steelyard.errors import InputError

_STOP = frozenset(
    re.findall(
        r"\S+",
        """
        a about above after again all also am an and any are as at be because been before being below between both
    but by can could did do does doing don down during each few for from further get go going got had has have
    having he her here hers him his how i if in into is isn it its just let like ll make may me might more most
    must my need no nor not now of off ok on once one only or other our out over own per please re s same she
    should so some such t than thanks that the their them then there these they this those through to too under
    until up us use very via was we well were what when where which while who whom why will with would yes yet
    you your
        """,
    )
)
_TERM = r"[\"'“‘]?((?:the\s+)?[\w&/-]+(?:\s+[\w&/-]+){0,3}?)[\"'”’]?"
_OPEN = r"(?:^|[.:;!?\n(]\s*|\b(?:fyi|note|glossary|reminder),?\s+(?:that\s+)?)"
_CUE = (
    r"(?:\s+(?:means?|refers?\s+to|stands?\s+for|is\s+(?:just\s+)?short\s+for|is\s+the\s+same\s+(?:thing\s+)?as"
    r"|is\s+another\s+(?:name|word)\s+for|is\s+an?\s+alias\s+(?:for|of))\s+|\s*={1,2}\s*"
    r"|,?\s*\(?(?:aka|a\.k\.a\.|also\s+(?:known|referred\s+to)\s+as|also\s+called)\s+)"
)
_GLOSSARY = re.compile(_OPEN + _TERM + _CUE + _TERM + r"(?=\s*(?:[.,;!?)\n]|$))", re.IGNORECASE)
_CUE_WORDS = frozenset("mean means refer refers stand stands short same another alias aka k also".split())  # noqa: SIM905

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MOST_PHRASES = 2000
_LEAST_USES = 3  # of a phrase by the role that it belongs to
_OWNED = 0.8  # share of a phrase's uses that this role makes


def glossary_pairs(content: str, tokens: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Return the pairs of names that a message says are the same, e.g. "X stands for Y", "X (aka Y)", "X = Y".

    Names are lower-cased tokens joined by spaces, without "the"; a name of filler words only is none.
    """
    if "=" not in content and _CUE_WORDS.isdisjoint(tokenize(content) if tokens is None else tokens):
        return []
    pairs = []
    for match in _GLOSSARY.finditer(content[:2000]):
        one, two = _name(match[1]), _name(match[2])
        if one and two and one != two:
            pairs.append((one, two))
    return pairs


def _name(text: str) -> str:
    words = tokenize(text)
    words = words[1:] if words[:1] == ["the"] else words
    return "" if not words or any(word in _STOP for word in words) else " ".join(words)


def merged(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the groups of names that ``pairs`` connect, each sorted, and the groups sorted."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for one, two in pairs:
        leader[find(one)] = find(two)
    groups: dict[str, list[str]] = {}
    for name in sorted(leader):
        groups.setdefault(find(name), []).append(name)
    return sorted(tuple(names) for names in groups.values())


def table_pairs(table: Mapping[str, Sequence[str]] | None) -> list[tuple[str, str]]:
    """Return the pairs of a table given by the user, name -> its aliases.

    Raises:
        InputError: It is no such mapping, or a name has no letters or digits.
    """
    pairs = []
    for name, aliases in (table or {}).items():
        if isinstance(aliases, str) or not all(isinstance(alias, str) for alias in (name, *aliases)):
            raise InputError("aliases must map each name to a list of its other names.")
        for alias in aliases:
            one, two = (" ".join(tokenize(text)) for text in (name, alias))
            if not one or not two:
                raise InputError(f"aliases: {name!r} and {alias!r} must both have a letter or a digit.")
            pairs.append((one, two))
    return pairs


def coreference_pairs(
    documents: Sequence[Sequence[str]],
    roles: Sequence[Any],
    threads: Sequence[int],
    *,
    tau: float,
    vectors: NDArray[np.float32] | None = None,
) -> list[tuple[str, str]]:
    """Return pairs of phrases that different roles use in like contexts within the same thread (reconstruction).

    A candidate is a phrase of two or three words, none a filler word, that one role uses at least three times and
    makes four of five uses of. Its context is the sum of the idf-weighted other words of its messages, or the mean of
    their ``vectors``. Two are merged when each is the other's most similar candidate among those of other roles with
    a common thread and no common message, and their cosine exceeds ``tau``.

    Args:
        documents: Tokens of the messages.
        roles: Role (or author) of each message; None takes no part.
        threads: Thread of each message.
        tau: Least cosine, exclusive.
        vectors: Unit rows of an encoder, shape (messages, width), or None for words.
    """
    words = {word: i for i, word in enumerate(dict.fromkeys(token for tokens in documents for token in tokens))}
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    stream = np.fromiter((words[token] for tokens in documents for token in tokens), np.int64, int(lengths.sum()))
    number = np.repeat(np.arange(len(documents)), lengths)
    role_of = {role: i for i, role in enumerate(sorted({role for role in roles if role is not None}, key=str))}
    role = np.array([role_of.get(one, -1) for one in roles], np.int64)
    plain = np.array([word not in _STOP and not word.isdigit() for word in words], np.bool_)
    phrases, owner, member = _candidates(stream, number, role, plain)
    if len(phrases) < 2:
        return []
    _, thread = np.unique(np.asarray(threads), return_inverse=True)
    of_thread = csr_array((np.ones(len(thread)), (np.arange(len(thread)), thread)))
    in_threads = member @ of_thread
    together = ((in_threads @ in_threads.T).toarray() > 0) & ~((member @ member.T).toarray() > 0)
    allowed = together & (owner[:, None] != owner[None, :])
    if vectors is None:
        contexts = _word_contexts(stream, number, plain, phrases, member)
    else:
        contexts = csr_array(member @ vectors.astype(np.float64))
    cosine = np.where(allowed, _cosines(contexts), -1.0)
    best = cosine.argmax(axis=1)
    spelled = list(words)
    names = [" ".join(spelled[word] for word in phrase if word >= 0) for phrase in phrases.tolist()]
    return sorted(
        (names[i], names[j]) for i, j in enumerate(best.tolist()) if i < j and best[j] == i and cosine[i, j] > tau
    )


def _candidates(stream: Ints, number: Ints, role: Ints, plain: Flags) -> tuple[Ints, Ints, csr_array]:
    """Return the candidate phrases, their owners, and in which messages the owners use them.

    Args:
        stream: Word of every token.
        number: Message of every token, rising.
        role: Role of every message, -1 for none.
        plain: Which words are no filler words.

    Returns:
        Words of each phrase, shape (P, 3), -1 where a phrase has two; its owner, shape (P,); uses, (P, messages).
    """
    parts = []
    for length in (2, 3):
        starts = np.arange(max(0, len(stream) - length + 1))
        fits = number[starts] == number[starts + length - 1]
        for step in range(length):
            fits &= plain[stream[starts + step]]
        starts = starts[fits]
        grams = np.full((len(starts), 3), -1)
        for step in range(length):
            grams[:, step] = stream[starts + step]
        parts.append((grams, number[starts]))
    grams = np.concatenate([one for one, _ in parts])
    message = np.concatenate([two for _, two in parts])
    vocabulary = len(plain) + 1
    _, pair_of = np.unique(grams[:, 0] * vocabulary + grams[:, 1], return_inverse=True)
    _, first, gram_of, count = np.unique(
        pair_of * vocabulary + grams[:, 2] + 1, return_index=True, return_inverse=True, return_counts=True
    )
    often = count[gram_of] >= _LEAST_USES
    uses = np.unique(np.stack([gram_of[often], role[message[often]], message[often]], axis=1), axis=0)
    total = np.bincount(uses[:, 0], minlength=len(first))
    change = np.ones(len(uses), np.bool_)
    change[1:] = (uses[1:, :2] != uses[:-1, :2]).any(axis=1)
    begin = np.flatnonzero(change)
    size = np.diff(begin, append=len(uses))
    owns = (size >= _LEAST_USES) & (size >= _OWNED * total[uses[begin, 0]]) & (uses[begin, 1] >= 0)
    begin, size = begin[owns], size[owns]
    words = grams[first[uses[begin, 0]]]
    most = np.lexsort((words[:, 2], words[:, 1], words[:, 0], -size))[:_MOST_PHRASES]
    begin, size = begin[most], size[most]
    columns = np.concatenate([uses[a : a + n, 2] for a, n in zip(begin, size, strict=True)] or [number[:0]])
    rows = np.repeat(np.arange(len(begin)), size)
    member = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(begin), len(role)))
    return words[most], uses[begin, 1], member


def _word_contexts(stream: Ints, number: Ints, plain: Flags, phrases: Ints, member: csr_array) -> csr_array:
    """Return the idf-weighted words around each phrase, its own left out, shape (P, vocabulary)."""
    pairs = np.unique(np.stack([number, stream], axis=1)[plain[stream]], axis=0)
    counts = np.bincount(pairs[:, 1], minlength=len(plain))
    idf = np.log(member.shape[1] / np.maximum(counts, 1)) + 1e-9
    bag = csr_array((idf[pairs[:, 1]], (pairs[:, 0], pairs[:, 1])), shape=(member.shape[1], len(plain)))
    contexts = (member @ bag).tocoo()
    rows, columns = contexts.coords
    other = (phrases[rows] != columns[:, None]).all(axis=1)
    return csr_array((contexts.data[other], (rows[other], columns[other])), shape=contexts.shape)


def _cosines(contexts: csr_array) -> NDArray[np.float64]:
    norms = np.sqrt(np.asarray(contexts.multiply(contexts).sum(axis=1)).ravel())
    product = np.asarray((contexts @ contexts.T).toarray())
    return product / np.maximum(np.outer(norms, norms), 1e-12)
