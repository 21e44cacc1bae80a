"""Probes for the checks that every method passes; the acceptance test takes a memory in any form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from steelyard import rng
from steelyard.agents.groupmembench import chats, tasks
from steelyard.agents.groupmembench.arms import RandomMemory
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.chats import unlabelled
from steelyard.agents.groupmembench.core import conformal_abstain_threshold, micro_macro, reply_propagation
from steelyard.agents.groupmembench.generator import GeneratedChat, generate_group_chat
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.protocol import GroupMemBench
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.reading import FormReader, kind_of
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.agents.groupmembench.thread_recall import K, find_threads, threads_of
from steelyard.agents.groupmembench.user import user_task
from steelyard.agents.ranking import recall_at_k
from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.data import irc_logs
from steelyard.errors import DataMissingError

MakeMemory = Callable[[], Any]
"""Returns an empty memory: ``add_many``, and ``search(query, *, asker, k, anchor)``."""

_THREADS_ABOVE = 0.1  # the next ten messages are beaten by about .2
_ANSWERED, _FOUND = 0.35, 0.4  # BM25 reaches about .33 and .5, chance .19 and .01


def _chat(seed: int, **options: Any) -> GeneratedChat:
    small = {"channels": 2, "phases": 2, "questions_per_type": 4, "adversarial_iters": 0, "root": "tuning"}
    return generate_group_chat(seed, **{**small, **options})


def _ranking(memory: Any, made: GeneratedChat) -> Arrays:
    """Return ids and scores of what ``memory`` finds for every question."""
    found = [memory.search(one.question, asker=one.asking_user_id, k=5) for one in made.questions]
    return {
        "ids": np.array([[hit.id for hit in hits] for hits in found]),
        "scores": np.array([[hit.score for hit in hits] for hits in found]),
    }


def _filled(memory: Any, messages: Iterable[Message]) -> Any:
    memory.add_many(messages)
    return memory


def _run(seed: int, dtype: str) -> Arrays:
    """Search a generated chat; scores are float64 whatever the input."""
    made = _chat(seed)
    scores = rng.generator("conformance", "scores", seed).random(6).astype(dtype)
    lent = reply_propagation(scores, np.array([-1, 0, 1, 0, -1, 4]))
    return {**_ranking(_filled(StructuredGroupMemory(seed=seed), made.public()), made), "lent": lent}


def _noop() -> tuple[Arrays, Arrays]:
    """With every part turned off the structured memory is BM25."""
    made = _chat(0)
    off = StructuredGroupMemory(
        use_alias=False, use_scope=False, use_speaker=False, use_reply=False, use_supersession=False, use_abstain=False
    )
    return _ranking(_filled(off, made.public()), made), _ranking(_filled(BM25Memory(), made.public()), made)


def _effect() -> tuple[Arrays, Arrays]:
    made = _chat(0)
    return (
        _ranking(_filled(StructuredGroupMemory(), made.public()), made),
        _ranking(_filled(BM25Memory(), made.public()), made),
    )


def _resumed() -> tuple[Arrays, Arrays]:
    """A memory filled at once, and one that took in the first half anew from what was stored of it."""
    made = _chat(1)
    messages = made.public()
    half = len(messages) // 2
    whole = _filled(StructuredGroupMemory(), messages)
    again = _filled(StructuredGroupMemory(), chats.messages_of(chats.encode(messages[:half])))
    again.add_many(messages[half:])
    return _ranking(whole, made), _ranking(again, made)


def _untouched() -> tuple[Arrays, Arrays]:
    made = _chat(2)
    messages = list(made.public())
    before = {"messages": np.array([repr(message) for message in messages])}
    _ranking(_filled(StructuredGroupMemory(), messages), made)
    return before, {"messages": np.array([repr(message) for message in messages])}


def acceptance(make: MakeMemory) -> None:
    """Raise AssertionError unless a memory answers questions that words alone do not, and finds real threads.

    Real threads are asked for where the IRC logs are at hand.
    """
    check_questions(make)
    try:
        check_threads(make)
    except DataMissingError:
        return


@cache
def _accepted_chat() -> GeneratedChat:
    return generate_group_chat(0, root="tuning")


def check_questions(make: MakeMemory) -> None:
    """Questions on a chat of the frozen generator (a tuning seed): answers, evidence, and nothing that is hidden.

    Raises:
        AssertionError: Too few are right, or a message outside the asker's audience comes back.
    """
    made = _accepted_chat()
    bench = GroupMemBench(GroupChat(unlabelled(made.chat.messages)), made.questions, reader=FormReader())
    report = bench.run(_filled(make(), bench.chat.messages))
    assert report.micro.estimate >= _ANSWERED, f"only {report.micro.estimate:.2f} of the questions are answered"
    assert (report.recall or 0.0) >= _FOUND, f"only {report.recall or 0.0:.2f} of the evidence is found"
    secret = Message("s", "the password of the vault is swordfish", "ana", audience=frozenset({"bo"}))
    memory = _filled(make(), [secret, Message("p", "lunch at noon", "cy", audience=None)])
    seen = {hit.id for hit in memory.search("password of the vault", asker="cy", k=2)}
    assert "s" not in seen, "a message outside the asker's audience was returned"
    _check_audiences(make, bench.chat.messages)


def _check_audiences(make: MakeMemory, messages: Sequence[Message]) -> None:
    """Hide every third message of a whole chat from all but its author, and ask others for its very words."""
    mine: frozenset[str] = frozenset()
    memory = _filled(make(), [m if row % 3 else replace(m, audience=mine) for row, m in enumerate(messages)])
    for hidden, other in itertools.islice(zip(messages[::3], messages[1::3], strict=False), 40):
        if hidden.author != other.author:
            hits = memory.search(hidden.content, asker=other.author, k=10)
            assert all(hit.message.visible_to(other.author) for hit in hits), (
                "a message outside the asker's audience was returned"
            )


def check_threads(make: MakeMemory) -> None:
    """Threads of one real IRC log with predicted reply links.

    Raises:
        AssertionError: Recall@10 is not clearly above that of the next ten messages.
        DataMissingError: The logs are not here.
    """
    messages, links = tasks.irc_chat(irc_logs("dev")[0])
    chat = GroupChat(messages)
    threads = threads_of(chat, links, tasks.ANNOTATED_FROM)
    memory = _filled(make(), chat.predict_replies().messages)
    names = [message.id for message in chat.messages]

    def search(root: Message) -> list[str]:
        return [hit.id for hit in memory.search(root.content, asker=root.author, k=K, anchor=root.id)]

    def following(root: Message) -> list[str]:
        return names[chat.index(root.id) + 1 :][:K]

    found = find_threads({"memory": search, "next": following}, chat, threads)
    ours, bar = (float(np.mean(found.recalls[name])) for name in ("memory", "next"))
    assert ours >= bar + _THREADS_ABOVE, f"recall@10 of threads is {ours:.2f}, the next ten messages reach {bar:.2f}"


class _Dummy:
    """A memory that ranks by something other than the query."""

    def __init__(self, order: Callable[[list[Message]], list[Message]]) -> None:
        self._order, self._messages = order, list[Message]()

    def __len__(self) -> int:
        return len(self._messages)

    def add_many(self, messages: Iterable[Message]) -> int:
        before = len(self._messages)
        self._messages += messages
        return len(self._messages) - before

    def search(self, query: str, *, asker: str | None = None, k: int = 10, anchor: str | None = None) -> list[Hit]:
        return [Hit(one.id, 0.0, one, {}) for one in self._order(self._messages)[:k]]


class _Random(RandomMemory):
    def __init__(self) -> None:
        super().__init__(rng.generator("conformance", "random memory", 0))

    def search(self, query: str, *, asker: str | None = None, k: int = 10, anchor: str | None = None) -> list[Hit]:
        return super().search(query, asker=asker, k=k)


DUMMIES: dict[str, MakeMemory] = {
    "constant": lambda: _Dummy(lambda messages: sorted(messages, key=lambda one: one.id)),
    "random": _Random,
    "identity": lambda: _Dummy(lambda messages: messages),  # as they came
}


def _bad_inputs() -> tuple[BadInput, ...]:
    memory = _filled(StructuredGroupMemory(), [Message("1", "a word", "ana")])
    chat = GroupChat([Message("1", "a word", "ana")])
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("an empty query", lambda: memory.search("  ", asker="ana"), "query"),
        ("k of 0", lambda: memory.search("word", asker="ana", k=0), "k"),
        ("an unknown asker", lambda: memory.search("word", asker="zoe"), "zoe"),
        ("an id twice", lambda: memory.add(Message("1", "again", "bo")), "1"),
        ("a factor above 1", lambda: StructuredGroupMemory(scope_out=2), "scope_out"),
        ("decay above 1", lambda: StructuredGroupMemory(decay=1.5), "decay"),
        ("an unknown domain", lambda: generate_group_chat(domain="law"), "domain"),
        ("an unknown hardness", lambda: generate_group_chat(hardness="hard"), "hardness"),  # type: ignore[arg-type]
        ("no channel", lambda: generate_group_chat(channels=0), "channels"),
        ("shares above 1", lambda: generate_group_chat(p_chain=0.9), "p_chain"),
        ("a realiser without text", lambda: _chat(0, realise=lambda *_: ""), "realise"),
        ("a question of no known kind", lambda: kind_of("Why?"), "question"),
        ("no question", lambda: GroupMemBench(chat, []), "question"),
        ("an asker that nobody knows", lambda: GroupMemBench(chat, [Question("1", "t", "Q?", "A", "zoe")]), "zoe"),
        ("recall without evidence", lambda: recall_at_k((), ["a"], 10), "gold"),
        ("no counts", lambda: micro_macro({}), "counts"),
        ("too few to calibrate", lambda: conformal_abstain_threshold([0.1], 0.05), "alpha"),
        ("a chat without threads", lambda: user_task(chat), "threads"),
        ("a file that is not there", lambda: user_task("no_such_chat.jsonl"), "no_such_chat.jsonl"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64",),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=StructuredGroupMemory,
    acceptance=acceptance,
    dummies=DUMMIES,
)
