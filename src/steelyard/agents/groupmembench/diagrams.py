"""Pictures of what a memory found: a thread with its reply links, and which of its messages came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.report import GroupMemReport
from steelyard.agents.groupmembench.thread_recall import Link, Thread
from steelyard.contracts import Diagram, Edge, Node

Kind = Literal["plain", "main", "good", "bad", "muted"]

_LABEL, _NOTE = 20, 400  # letters of author and first words, and of the whole message
_NAME = 8  # of them for the author
_MOST = 24  # messages of a picture
_SPEAKERS = 6  # columns; further speakers share the last one
_LEGEND = {
    "main": "where the search began",
    "good": "belongs to it and was found",
    "plain": "belongs to it and was missed",
    "muted": "found beside it",
    "bad": "found in its place: the answer is wrong",
    "solid": "answers, as people say",
}


def of_threads(
    chat: GroupChat, links: Sequence[Link], threads: Sequence[Thread], ids: Mapping[str, Sequence[tuple[str, ...]]]
) -> tuple[Diagram, ...]:
    """Return the same thread twice: what the structured memory found of it, and what BM25 did.

    The thread is the first of five to ten messages, else the first; never chosen by what was found.
    """
    if not threads:
        return ()
    place = next((at for at, one in enumerate(threads) if 4 <= len(one.others) <= 9), 0)
    thread = threads[place]
    return tuple(
        _picture(
            chat, f"thread_{arm}", f"A thread, and what {label} finds of it",
            f"{_capital(label)} finds {len(set(thread.others) & set(ids[arm][place]))} of {len(thread.others)}. "
            "Messages from top to bottom as they were written, one column per speaker.",
            main=(thread.root,), gold=thread.others, found=ids[arm][place], links=links,
        )
        for arm, label in (("structured", "the structured memory"), ("bm25", "BM25"))
        if arm in ids
    )  # fmt: skip


def of_questions(
    chat: GroupChat, questions: Sequence[Question], reports: Mapping[str, GroupMemReport]
) -> tuple[Diagram, ...]:
    """Return the first question with two pieces of evidence, else the first with one, as two memories answered it."""
    known = [place for place, one in enumerate(questions) if one.gold_ids]
    if not known:
        return ()
    place = next((at for at in known if len(questions[at].gold_ids) > 1), known[0])
    one = questions[place]
    pictures = []
    for arm, label in (("structured", "the structured memory"), ("bm25", "BM25")):
        row = reports[arm].rows[place]
        links = [(message.reply_to, message.id) for message in chat.messages if message.reply_to]
        told = "right" if row.correct else "wrong"
        pictures.append(
            _picture(
                chat, f"question_{arm}", f"A question ({one.type.replace('_', ' ')}), and what {label} finds",
                f"{one.question} The reader's answer from what {label} finds is {told}.",
                main=(), gold=one.gold_ids, found=row.hit_ids, links=links, wrong=not row.correct,
            )
        )  # fmt: skip
    return tuple(pictures)


def _picture(
    chat: GroupChat, name: str, title: str, caption: str, *, main: Sequence[str], gold: Sequence[str],
    found: Sequence[str], links: Sequence[Link], wrong: bool = False,
) -> Diagram:  # fmt: skip
    """Return the picture of the messages of a thread and of those that were found, in the order of the chat.

    What was found beside the thread is grey: ten places have room for it. It is red where the answer is ``wrong``.
    """
    shown = list(dict.fromkeys([*main, *gold[: _MOST - len(main)], *found]))[:_MOST]
    messages = sorted((chat[one] for one in shown), key=lambda message: chat.index(message.id))
    speakers = list(dict.fromkeys(message.author for message in messages))
    columns = [*speakers[: _SPEAKERS - 1], "others"] if len(speakers) > _SPEAKERS else speakers
    column = {speaker: min(place, len(columns) - 1) for place, speaker in enumerate(speakers)}
    nodes = [
        _node(message, row, column[message.author], _kind(message.id, main, gold, found, wrong))
        for row, message in enumerate(messages)
    ]
    inside = set(shown)
    edges = [Edge(source=two, target=one) for one, two in links if one != two and {one, two} <= inside]
    kinds = {node.kind for node in nodes} | ({"solid"} if edges else set())
    return Diagram(
        name=name, title=title, caption=caption[:_NOTE], nodes=tuple(nodes), edges=tuple(edges[:120]),
        columns=tuple(_short(speaker, 20) for speaker in columns),
        legend={kind: text for kind, text in _LEGEND.items() if kind in kinds},
    )  # fmt: skip


def _kind(name: str, main: Sequence[str], gold: Sequence[str], found: Sequence[str], wrong: bool) -> Kind:
    if name in main:
        return "main"
    if name in gold:
        return "good" if name in found else "plain"
    return "bad" if wrong else "muted"


def _node(message: Message, row: int, column: int, kind: Kind) -> Node:
    label = _short(f"{_short(message.author, _NAME)}: {message.content}", _LABEL)
    note = _short(f"{message.author}: {message.content}", _NOTE)
    return Node(id=message.id, label=label, x=column, y=row, kind=kind, note=note)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str, most: int) -> str:
    """Return ``text`` in one line of printable letters, cut to ``most``."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
