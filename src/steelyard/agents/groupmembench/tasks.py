"""The bench's tasks: generated chats, real IRC threads, and the user's own chat."""

from __future__ import annotations

from typing import Any

import numpy as np

from steelyard import data, rng
from steelyard.agents.groupmembench import chats
from steelyard.agents.groupmembench.asking import TYPES
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.generator import VERSION, GeneratedChat, generate_group_chat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.ontology import DOMAINS
from steelyard.agents.groupmembench.plot import Hardness
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.thread_recall import Link, Thread, threads_of
from steelyard.contracts import Arrays, CellInput
from steelyard.data.irc import IrcLog, irc_message
from steelyard.errors import InputError

ANNOTATED_FROM = 1000  # first line of an IRC log whose links people annotated
IRC_SEEDS, USER_PARTS = 10, 8


def generated(hardness: Hardness) -> Arrays:
    """Return what the cells of generated chats depend on: the generator's version, its types and domains."""
    return {
        "version": np.array(VERSION),
        "hardness": np.array(hardness),
        "domains": np.array(sorted(DOMAINS)),
        "types": np.array(TYPES),
    }


def shipped() -> Arrays:
    """Return the arrays of the frozen generator."""
    return generated("shipped")


def circular() -> Arrays:
    """Return the arrays of the easy generator, which shares its cues with the structured memory."""
    return generated("easy")


def chat_of(cell: CellInput) -> GeneratedChat:
    """Return the generated chat of a cell: its seed's, the domains taking turns."""
    domains = [str(name) for name in cell.data["domains"]]
    hardness: Hardness = "easy" if str(cell.data["hardness"]) == "easy" else "shipped"
    return generate_group_chat(
        cell.seed, domain=domains[cell.seed % len(domains)], hardness=hardness, root=cell.root,
        adversarial_iters=int(cell.params.get("adversarial_iters", 5)),
    )  # fmt: skip


def irc() -> Arrays:
    """Return the twenty annotated logs; seed s reads the s-th of the development and of the test logs."""
    arrays: dict[str, np.ndarray] = {}
    for split in ("dev", "test"):
        for number, log in enumerate(data.irc_logs(split)):
            messages, links = irc_chat(log)
            for name, array in chats.encode(messages, links).items():
                arrays[f"{split}/{number}/{name}"] = array
    return arrays


def irc_chat(log: IrcLog) -> tuple[list[Message], list[Link]]:
    """Return the messages of a log, without links, and people's links as ids, which are line numbers."""
    parsed = ((number, irc_message(line)) for number, line in enumerate(log.lines))
    messages = [Message(str(number), found[1], found[0], position=number) for number, found in parsed if found]
    return messages, [(str(earlier), str(later)) for earlier, later in log.links]


class ThreadChat:
    """A chat whose threads are asked for.

    Attributes:
        bare: Messages without reply links.
        links: Links by people.
        chat: The bare messages, in order.
        threads: What is asked in this cell.
        since: Line from which on links are annotated.
    """

    def __init__(self, arrays: Arrays, since: int) -> None:
        self.bare = chats.without_links(chats.messages_of(arrays))
        self.links, self.since = chats.links_of(arrays), since
        self.chat = GroupChat(self.bare)
        self.threads: list[Thread] = threads_of(self.chat, self.links, since)


def thread_chats(cell: CellInput) -> list[ThreadChat]:
    """Return the chats of a cell of thread recall: two IRC logs, or the user's chat with its part of the threads.

    Raises:
        InputError: The seed is beyond what the data are enough for.
    """
    if "links" in cell.data:
        own = ThreadChat(cell.data, int(cell.data["since"]))
        own.threads = [own.threads[place] for place in _part(cell, len(own.threads))][: int(cell.params["threads"])]
        return [own]
    if cell.seed >= IRC_SEEDS:
        raise InputError(f"task 'irc' has {IRC_SEEDS} pairs of logs; there is no seed {cell.seed}")
    names = "messages", "links"
    return [
        ThreadChat({name: cell.data[f"{split}/{cell.seed}/{name}"] for name in names}, ANNOTATED_FROM)
        for split in ("dev", "test")
    ]


def own_questions(cell: CellInput) -> tuple[list[Message], list[Question]]:
    """Return the user's messages and the cell's part of the user's questions."""
    asked = chats.questions_of(cell.data)
    return chats.messages_of(cell.data), [asked[place] for place in _part(cell, len(asked))]


def _part(cell: CellInput, items: int) -> list[int]:
    """Return which of ``items`` are the cell's: disjoint parts, mixed by a fixed draw."""
    if cell.seed >= USER_PARTS:
        raise InputError(f"data of your own are split into {USER_PARTS} parts; there is no seed {cell.seed}")
    mixed: list[Any] = rng.generator("groupmembench", f"{cell.task}/parts", 0).permutation(items).tolist()
    return mixed[cell.seed :: USER_PARTS]
