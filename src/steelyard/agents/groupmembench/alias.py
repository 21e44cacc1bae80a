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
_PREFILTER = re.compile(r"=|mean|refer|stand|short for|same|another|alias|aka|a\.k\.a|also", re.IGNORECASE)

_MOST_PHRASES = 2000
_LEAST_USES = 3  # of a phrase by the role that it belongs to
_OWNED = 0.8  # share of a phrase's uses that this role makes


def glossary_pairs(content: str) -> list[tuple[str, str]]:
    """Return the pairs of names that a message says are the same, e.g. "X stands for Y", "X (aka Y)", "X = Y".

    Names are lower-cased tokens joined by spaces, without "the"; a name of filler words only is none.
    """
    if _PREFILTER.search(content) is None:
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
    uses = _uses(documents, roles)
    phrases = sorted(uses, key=lambda phrase: (-len(uses[phrase][1]), phrase))[:_MOST_PHRASES]
    if len(phrases) < 2:
        return []
    rows = np.concatenate([np.full(len(uses[phrase][1]), i) for i, phrase in enumerate(phrases)])
    columns = np.concatenate([np.array(uses[phrase][1]) for phrase in phrases])
    member = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(phrases), len(documents)))
    place = {thread: i for i, thread in enumerate(dict.fromkeys(threads))}
    of_thread = csr_array(
        (np.ones(len(threads)), (np.arange(len(threads)), [place[thread] for thread in threads])),
        shape=(len(documents), len(place)),
    )
    in_threads = member @ of_thread
    together = ((in_threads @ in_threads.T).toarray() > 0) & ~((member @ member.T).toarray() > 0)
    numbers = {role: i for i, role in enumerate(dict.fromkeys(uses[phrase][0] for phrase in phrases))}
    owner = np.array([numbers[uses[phrase][0]] for phrase in phrases])
    allowed = together & (owner[:, None] != owner[None, :])
    cosine = np.where(allowed, _context_cosine(documents, phrases, member, vectors), -1.0)
    best = cosine.argmax(axis=1)
    return [
        (" ".join(phrases[i]), " ".join(phrases[j]))
        for i, j in enumerate(best.tolist())
        if i < j and best[j] == i and cosine[i, j] > tau
    ]


def _uses(documents: Sequence[Sequence[str]], roles: Sequence[Any]) -> dict[tuple[str, ...], tuple[Any, list[int]]]:
    """Return the role that owns each candidate phrase, and the messages in which it uses the phrase."""
    found: dict[tuple[str, ...], dict[Any, list[int]]] = {}
    for number, (tokens, role) in enumerate(zip(documents, roles, strict=True)):
        plain = [token in _STOP or token.isdigit() for token in tokens]
        for length in (2, 3):
            for start in range(len(tokens) - length + 1):
                if not any(plain[start : start + length]):
                    by_role = found.setdefault(tuple(tokens[start : start + length]), {})
                    numbers = by_role.setdefault(role, [])
                    if not numbers or numbers[-1] != number:
                        numbers.append(number)
    owned = {}
    for phrase, by_role in found.items():
        total = sum(map(len, by_role.values()))
        role, numbers = max(by_role.items(), key=lambda item: (len(item[1]), str(item[0])))
        if role is not None and len(numbers) >= _LEAST_USES and len(numbers) >= _OWNED * total:
            owned[phrase] = (role, numbers)
    return owned


def _context_cosine(
    documents: Sequence[Sequence[str]],
    phrases: Sequence[tuple[str, ...]],
    member: csr_array,
    vectors: NDArray[np.float32] | None,
) -> NDArray[np.float64]:
    if vectors is not None:
        contexts = np.asarray(member @ vectors.astype(np.float64))
    else:
        words: dict[str, int] = {}
        entries = [
            (number, words.setdefault(token, len(words)))
            for number, tokens in enumerate(documents)
            for token in sorted(set(tokens))
            if token not in _STOP
        ]
        at = np.array(entries, np.int64).reshape(-1, 2)
        counts = np.bincount(at[:, 1], minlength=len(words))
        idf = np.log(len(documents) / np.maximum(counts, 1)) + 1e-9
        bag = csr_array((idf[at[:, 1]], (at[:, 0], at[:, 1])), shape=(len(documents), len(words)))
        sparse = (member @ bag).tolil()
        for row, phrase in enumerate(phrases):
            for word in phrase:
                sparse[row, words[word]] = 0.0
        rows = sparse.tocsr()
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        scale = csr_array((1 / np.maximum(norms, 1e-12), (np.arange(len(norms)),) * 2), shape=(len(norms),) * 2)
        unit = scale @ rows
        return np.asarray((unit @ unit.T).toarray())
    norms = np.linalg.norm(contexts, axis=1, keepdims=True)
    unit_rows = contexts / np.maximum(norms, 1e-12)
    return np.asarray(unit_rows @ unit_rows.T)
