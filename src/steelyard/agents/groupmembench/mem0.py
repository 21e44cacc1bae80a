"""A memory behind the calls of mem0: ``add(messages, run_id, actor_id)`` and ``search(query, user_id, run_id)``.

mem0 itself is not imported. A run is a channel, an actor is an author, and the user who searches is the asker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from steelyard.agents.groupmembench.memory import RankedMemory
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.errors import InputError

_FIRST = 64  # hits asked for before those of other runs are left out


class Mem0Memory:
    """mem0's shape over any memory of this room; nothing is extracted, so who said what in which words is kept.

    Args:
        memory: The memory, empty or not.
    """

    def __init__(self, memory: RankedMemory) -> None:
        self.memory = memory
        self._next = 0

    def add(
        self,
        messages: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        actor_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        audience: frozenset[str] | None = None,
        timestamp: datetime | str | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Take in messages, each a text or ``{"role": …, "content": …, "name": …}``.

        The author is the message's ``name``, else ``actor_id``, else ``user_id`` (for the role assistant:
        ``agent_id``). ``metadata`` may name the ``phase``, ``topic`` and ``reply_to`` of them all.

        Raises:
            InputError: A message has no content or no author; none is added then.
        """
        first = max(self._next, len(self.memory))  # a number is never given twice, whatever was deleted
        given = [messages] if isinstance(messages, str | Mapping) else list(messages)
        rows: list[Message] = []
        extra = dict(metadata or {})
        for place, one in enumerate(given):
            entry: Mapping[str, Any] = {"role": "user", "content": one} if isinstance(one, str) else one
            if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
                raise InputError(f"messages[{place}] must be a text or a mapping with the text 'content'.")
            author = entry.get("name") or actor_id or (agent_id if entry.get("role") == "assistant" else user_id)
            if not author or not isinstance(author, str):
                raise InputError(f"messages[{place}] has no author: give its 'name', or actor_id or user_id.")
            number = first + place
            rows.append(
                Message(
                    id=hashlib.sha256(f"{number}\x1f{run_id}\x1f{author}\x1f{entry['content']}".encode()).hexdigest(),
                    content=entry["content"],
                    author=author,
                    channel=run_id,
                    timestamp=timestamp,
                    reply_to=extra.get("reply_to"),
                    phase=extra.get("phase"),
                    topic=extra.get("topic"),
                    audience=audience,
                )
            )
        self.memory.add_many(rows)
        self._next = first + len(rows)
        return {"results": [{"id": row.id, "memory": row.content, "event": "ADD"} for row in rows]}

    def search(
        self, query: str, *, user_id: str | None = None, run_id: str | None = None, limit: int = 10
    ) -> dict[str, list[dict[str, Any]]]:
        """Return up to ``limit`` messages that the user may see, of one run or of all; best first.

        Raises:
            UnknownUserError: The user neither wrote a message nor is in an audience.
            InputError: The query is empty or the limit is below 1.
        """
        RankedMemory.check_k(limit)
        asked = limit if run_id is None else max(limit, _FIRST)
        while True:
            hits = self.memory.search(query, asker=user_id, k=asked)
            fitting = [hit for hit in hits if run_id is None or hit.message.channel == run_id]
            if len(fitting) >= limit or len(hits) < asked:
                return {"results": [_result(hit) for hit in fitting[:limit]]}
            asked *= 8

    def delete(self, memory_id: str) -> dict[str, str]:
        """Remove one message.

        Raises:
            InputError: There is none with this id.
        """
        if not self.memory.remove(memory_id):
            raise InputError(f"there is no memory with the id {memory_id!r}.")
        return {"message": "Memory deleted successfully!"}

    def delete_all(self, *, user_id: str) -> dict[str, str]:
        """Remove every message that the user wrote."""
        self.memory.forget(user_id)
        return {"message": "Memories deleted successfully!"}


def _result(hit: Hit) -> dict[str, Any]:
    message = hit.message
    created = message.timestamp.isoformat() if isinstance(message.timestamp, datetime) else None
    return {
        "id": hit.id,
        "memory": message.content,
        "score": hit.score,
        "actor_id": message.author,
        "run_id": message.channel,
        "created_at": created,
        "metadata": {"phase": message.phase, "topic": message.topic, "reply_to": message.reply_to, "why": hit.why},
    }
