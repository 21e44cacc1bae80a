"""The user's own chat as a task: with questions if there are any, else recall of its own threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from steelyard.agents.groupmembench import chats, tasks
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.formats import chat_format, read_chat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.protocol import GroupMemBench
from steelyard.agents.groupmembench.questions import Question, read_questions
from steelyard.agents.groupmembench.thread_recall import LEAST_WORDS, Link, threads_of
from steelyard.card import Frozen
from steelyard.contracts import Task
from steelyard.data.irc import read_irc_log
from steelyard.errors import InputError
from steelyard.models.paths import usable_path

LARGEST = 100_000
"""Messages of a chat that a weighing takes; every arm indexes all of them for every seed."""

TASK = "user"
_LEAST = 2  # threads or questions per part
_ASCII, _ANNOTATION = ".ascii.txt", ".annotation.txt"


class Options(Frozen):
    """What a weighing on the user's own chat takes beside it."""

    questions: str | None = Field(
        default=None,
        description="JSON Lines file of questions: id, type, question, answer, asking_user_id, and gold_ids if known; "
        "without it the threads of the chat's own reply links are asked for",
    )
    domain: str | None = Field(default=None, description="for a folder of the GroupMemBench release: which domain")


def user_task(source: Any, **options: Any) -> Task:
    """Return the task of a user's chat.

    Without questions its threads are asked for, by its own reply links: those of 3 messages or more whose first has 4
    words or more. At least 16 are needed, two for each of the 8 seeds of a weighing, quick or full.

    Args:
        source: ``chat.jsonl``; a folder or file of Slack, Discord, IRC (``*.ascii.txt`` with ``*.annotation.txt``) or
            of the GroupMemBench release; a :class:`GroupChat`; or messages.
        options: Fields of :class:`Options`.

    Raises:
        InputError: The chat cannot be read, is too large, or has neither questions nor enough threads.
    """
    chosen = Options(**options)
    chat, asked, since = _load(source, chosen)
    if len(chat) > LARGEST:
        raise InputError(f"data has {len(chat)} messages; a weighing takes at most {LARGEST}: give one channel")
    if chosen.questions is not None:
        asked = read_questions(chosen.questions)
    messages = chats.unlabelled(chat.messages)
    if asked:
        return _with_questions(chat, messages, asked)
    links = [(chat.messages[parent].id, chat.messages[child].id) for parent, child in chat.links]
    return _with_threads(chat, messages, links, since)


def _with_questions(chat: GroupChat, messages: Sequence[Message], asked: Sequence[Question]) -> Task:
    if len(asked) < tasks.USER_PARTS * _LEAST:
        raise InputError(f"questions has {len(asked)} rows; at least {tasks.USER_PARTS * _LEAST} are needed")
    GroupMemBench(chat, asked)  # refuses askers that the chat does not know, and ids that occur twice
    for one in asked:
        missing = [name for name in one.gold_ids if name not in chat]
        if missing:
            raise InputError(f"question '{one.id}': gold_ids names '{missing[0]}', which is no message of the chat")
    arrays = {name: array for name, array in chats.encode(messages, (), asked).items() if name != "links"}
    return Task(TASK, f"your {len(asked)} questions on {len(chat)} messages", lambda: arrays, "your own")


def _with_threads(chat: GroupChat, messages: Sequence[Message], links: Sequence[Link], since: int) -> Task:
    threads = threads_of(chat, links, since)
    if len(threads) < tasks.USER_PARTS * _LEAST:
        raise InputError(
            f"data has no questions and {len(threads)} threads of 3 messages or more, the first of {LEAST_WORDS} words "
            f"or more, by its own reply links; give at least {tasks.USER_PARTS * _LEAST} threads, or a file of "
            "questions (--questions)"
        )
    arrays = {**chats.encode(messages, links), "since": np.array(since)}
    return Task(TASK, f"threads of your {len(chat)} messages", lambda: arrays, "your own")


def _load(source: Any, options: Options) -> tuple[GroupChat, list[Question], int]:
    """Return the chat, questions that come with it, and the line from which on its links are complete."""
    if isinstance(source, GroupChat):
        return source, [], 0
    if not isinstance(source, str | Path):
        return GroupChat(source), [], 0
    path = usable_path(source)
    if path.is_dir():
        return _load_folder(path, options)
    if path.name.endswith(_ASCII):
        return _irc([path])
    return read_chat(path), [], 0


def _load_folder(path: Path, options: Options) -> tuple[GroupChat, list[Question], int]:
    if (path / "questions").is_dir():
        if options.domain is None:
            known = ", ".join(sorted(entry.name for entry in (path / "questions").iterdir() if entry.is_dir()))
            raise InputError(f"{path} is a GroupMemBench release: say which domain (--domain), one of {known}")
        bench = GroupMemBench.from_release(path, options.domain)
        return bench.chat, list(bench.questions), 0
    logs = sorted(path.glob(f"*{_ASCII}"))
    if logs:
        return _irc(logs)
    if chat_format(path) is None:
        raise InputError(f"{path} holds no chat that is known: Slack, Discord, IRC logs or a GroupMemBench release")
    return read_chat(path), [], 0


def _irc(logs: Sequence[Path]) -> tuple[GroupChat, list[Question], int]:
    """Return several logs as one chat, each a channel; ids are prefixed by the log's name."""
    messages, extra = list[Message](), list[Link]()
    annotated = False
    for path in logs:
        beside = path.with_name(path.name.removesuffix(_ASCII) + _ANNOTATION)
        log = read_irc_log(path, beside if beside.is_file() else None)
        bare, links = tasks.irc_chat(log)
        annotated |= bool(links)
        names = {message.id: f"{log.name}/{message.id}" for message in bare}
        messages += [_renamed(message, names[message.id], log.name) for message in bare]
        extra += [(names[one], names[two]) for one, two in links if one != two and {one, two} <= names.keys()]
    return GroupChat(messages, extra_links=extra), [], tasks.ANNOTATED_FROM if annotated else 0


def _renamed(message: Message, name: str, channel: str) -> Message:
    return Message(name, message.content, message.author, channel=channel, position=message.position)
