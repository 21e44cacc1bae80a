"""Thread recall: given the first message of a thread, which of the other messages of the thread does a memory find?

The query is anchored at a known message, so its place in time is known to every arm that looks at it; this is why the
recency window, not BM25, is the line to beat. Reply links of people are seen by the ceiling alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from steelyard.agents.bm25 import tokenize
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.dense import DenseMemory, HybridMemory
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.links import LinkScores, score_links
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.agents.groupmembench.threads import THREAD_WEIGHTS
from steelyard.agents.ranking import recall_at_k
from steelyard.models.embedders import HashingEmbedder

LEAST_MESSAGES, LEAST_WORDS = 3, 4
K = 10
THREAD_ARMS = (
    "bm25", "bm25_header", "recency", "dense", "hybrid", "structured", "no_recency", "no_same_speaker", "no_links",
    "gold_links",
)  # fmt: skip

Link = tuple[str, str]
Find = Callable[[Message], Sequence[str]]
"""From the first message of a thread to ids, best first."""


class Thread(NamedTuple):
    """A thread: its first message, and the ids of the others."""

    root: str
    others: tuple[str, ...]


def threads_of(chat: GroupChat, links: Iterable[Link], since: int = 0) -> list[Thread]:
    """Return the threads that are asked for: connected by ``links``, long enough, with words in the first message.

    Args:
        chat: The messages, in order.
        links: (parent id, child id) pairs; an id that is no message joins what it links, and counts for nothing else.
        since: Only messages from this line on count.
    """
    groups = _components(links)
    places = {message.id: place for place, message in enumerate(chat.messages)}
    lines = chat.positions
    found = []
    for group in groups:
        members = sorted((line, name) for name in group if (line := _line(name, places, lines)) >= since)
        told = [name for _, name in members if name in places]
        if not told or members[0][1] not in places or len(told) < LEAST_MESSAGES:
            continue
        if len(tokenize(chat[told[0]].content)) >= LEAST_WORDS:
            found.append(Thread(told[0], tuple(told[1:])))
    return sorted(found, key=lambda thread: places[thread.root])


def _line(name: str, places: Mapping[str, int], lines: np.ndarray) -> int:
    """Return the line of a message; of an id that is none, the line that it names (system lines of a log)."""
    return int(lines[places[name]]) if name in places else int(name) if name.isdigit() else -1


def _components(links: Iterable[Link]) -> list[set[str]]:
    group: dict[str, set[str]] = {}
    for one, two in links:
        first, second = group.setdefault(one, {one}), group.setdefault(two, {two})
        if first is not second:
            small, large = sorted((first, second), key=len)
            large |= small
            group.update(dict.fromkeys(small, large))
    return list({id(members): members for members in group.values()}.values())


def finders(
    bare: Sequence[Message], links: Sequence[Link], draws: np.random.Generator, only: Sequence[str] = THREAD_ARMS
) -> dict[str, Find]:
    """Return every arm over one chat; only ``gold_links`` reads ``links``.

    Args:
        bare: Messages without reply links.
        links: Links by people.
        draws: The random order.
        only: Names of the arms that are wanted: of :data:`THREAD_ARMS`, or ``random``.
    """
    chat = GroupChat(bare)
    messages = chat.messages

    @cache
    def predicted() -> tuple[Message, ...]:
        return chat.predict_replies().messages

    def certain() -> Find:
        gold, extra = with_links(messages, links)
        memory = StructuredGroupMemory(thread=unhurried)
        memory.add_links(extra)
        return _anchored(memory, gold)

    unhurried = THREAD_WEIGHTS._replace(recency=0.0)
    makers: dict[str, Callable[[], Find]] = {
        "random": lambda: lambda root: _any(root, chat, draws),
        "bm25": lambda: _searching(BM25Memory(), messages),
        "bm25_header": lambda: _searching(BM25Memory(fields="speaker"), messages, nick=True),
        "recency": lambda: lambda root: _behind(root, chat),
        "dense": lambda: _searching(DenseMemory(HashingEmbedder()), messages),
        "hybrid": lambda: _searching(HybridMemory(BM25Memory(), DenseMemory(HashingEmbedder())), messages),
        "structured": lambda: _anchored(StructuredGroupMemory(), predicted()),
        "no_recency": lambda: _anchored(StructuredGroupMemory(thread=unhurried), predicted()),
        "no_same_speaker": lambda: _anchored(StructuredGroupMemory(use_speaker=False), predicted()),
        "no_links": lambda: _anchored(StructuredGroupMemory(use_reply=False), predicted()),
        "gold_links": certain,
    }
    return {name: makers[name]() for name in only}


def with_links(messages: Sequence[Message], links: Iterable[Link]) -> tuple[list[Message], list[Link]]:
    """Return messages that answer the nearest of their linked parents, and the links beyond these."""
    places = {message.id: place for place, message in enumerate(messages)}
    parents: dict[str, list[str]] = {}
    for parent, child in links:
        if parent != child and parent in places and child in places:
            parents.setdefault(child, []).append(parent)
    for above in parents.values():
        above.sort(key=places.__getitem__)
    linked = [
        replace(message, reply_to=parents[message.id][-1]) if message.id in parents else message for message in messages
    ]
    return linked, [(parent, child) for child, above in parents.items() for parent in above[:-1]]


def _behind(root: Message, chat: GroupChat) -> list[str]:
    """Return the next messages of the root's channel."""
    after = islice(chat.messages, chat.index(root.id) + 1, None)
    seen = (one.id for one in after if one.channel == root.channel and one.visible_to(root.author))
    return list(islice(seen, K))


def _any(root: Message, chat: GroupChat, draws: np.random.Generator) -> list[str]:
    seen = [one.id for one in chat.messages if one.visible_to(root.author)]
    return [seen[place] for place in draws.permutation(len(seen))[: K + 1].tolist()]


def _searching(
    memory: BM25Memory | DenseMemory | HybridMemory, messages: Sequence[Message], nick: bool = False
) -> Find:
    memory.add_many(messages)

    def find(root: Message) -> list[str]:
        query = f"{root.author} {root.content}" if nick else root.content
        return [hit.id for hit in memory.search(query, asker=root.author, k=K + 1)]

    return find


def _anchored(memory: StructuredGroupMemory, messages: Sequence[Message]) -> Find:
    memory.add_many(messages)
    return lambda root: [hit.id for hit in memory.search(root.content, asker=root.author, k=K, anchor=root.id)]


class Found(NamedTuple):
    """Recall of each thread, seconds in all, and the ids found, by arm."""

    recalls: dict[str, list[float]]
    seconds: dict[str, float]
    ids: dict[str, list[tuple[str, ...]]]


def find_threads(arms: Mapping[str, Find], chat: GroupChat, threads: Sequence[Thread]) -> Found:
    """Ask every arm for every thread; the query's own message is taken out of what comes back."""
    found = Found({}, {}, {})
    for name, find in arms.items():
        began = time.process_time()
        ids = [tuple(other for other in find(chat[thread.root]) if other != thread.root)[:K] for thread in threads]
        found.seconds[name] = time.process_time() - began
        found.ids[name] = ids
        found.recalls[name] = [
            recall_at_k(set(thread.others), one, K) for thread, one in zip(threads, ids, strict=True)
        ]
    return found


def link_quality(chat: GroupChat, links: Iterable[Link], since: int = 0) -> LinkScores:
    """Return how often the reply predictor names one of the annotated parents, over annotated messages."""
    gold: dict[str, set[str]] = {}
    for parent, child in links:
        if child in chat and (chat[child].position is None or (chat[child].position or 0) >= since):
            gold.setdefault(child, set()).add(parent)
    predicted = {message.id: message.reply_to for message in chat.predict_replies().messages}
    return score_links(predicted, gold)
