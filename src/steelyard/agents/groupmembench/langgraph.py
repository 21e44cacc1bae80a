"""A memory as a LangGraph store, by shape: it answers the calls of ``BaseStore`` and does not need LangGraph.

An item is a message: its namespace is the channel (labels joined by dots, which labels cannot hold), its key the id,
its value a mapping with ``content``, ``author`` and whatever else the message has.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from steelyard.agents.groupmembench.memory import RankedMemory
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.errors import InputError

_FIELDS = ("role", "phase", "topic", "reply_to", "is_noise", "timestamp")
Namespace = tuple[str, ...]


@dataclass
class StoredItem:
    """What LangGraph's ``Item`` and ``SearchItem`` are, for when LangGraph is not installed."""

    namespace: Namespace
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    score: float | None = None


class LangGraphMemoryStore:
    """LangGraph's ``BaseStore`` calls over any memory of this room.

    Args:
        memory: The memory.
        asker: On whose behalf items are read; None sees what is public.
    """

    supports_ttl = False

    def __init__(self, memory: RankedMemory, *, asker: str | None = None) -> None:
        self.memory, self.asker = memory, asker

    def put(self, namespace: Namespace, key: str, value: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Store a message, in the place of the one that has the key.

        Raises:
            InputError: The namespace is not a tuple of labels, the value lacks the texts content and author, or the
                key is a message elsewhere.
        """
        channel = _channel(namespace)
        if not all(isinstance(value.get(name), str) for name in ("content", "author")):
            raise InputError(f"the value of {key!r} must hold the texts 'content' and 'author'.")
        fields = {name: value[name] for name in _FIELDS if value.get(name) is not None}
        audience = value.get("audience")
        if isinstance(audience, str):
            raise InputError(f"the audience of {key!r} must be a list of names.")
        readers = None if audience is None else frozenset(map(str, audience))
        message = Message(
            id=key, content=value["content"], author=value["author"], channel=channel, audience=readers, **fields
        )
        seen = self.memory.get(key, asker=self.asker)
        if seen is not None and seen.channel != channel:
            raise InputError(f"the key {key!r} is taken in another namespace; keys are message ids and must be unique.")
        if seen is None:  # never overwrite what the asker does not see
            self.memory.add(message)
        else:
            self.memory.replace(message)

    def delete(self, namespace: Namespace, key: str) -> None:
        """Remove a message; nothing happens where the asker sees none with this key there."""
        if self.get(namespace, key) is not None:
            self.memory.remove(key)

    def get(self, namespace: Namespace, key: str, **_: Any) -> Any:
        """Return an item, or None where the asker sees none."""
        message = self.memory.get(key, asker=self.asker)
        return None if message is None or message.channel != _channel(namespace) else _item(message, "Item")

    def search(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        **_: Any,
    ) -> list[Any]:
        """Return items below a prefix: for a query best first, else in the order of their arrival.

        ``filter`` compares fields of the value, by equality.
        """
        hits = (
            self.memory.search(query, asker=self.asker, k=max(1, len(self.memory)))
            if query and query.strip()
            else (Hit(message.id, 0.0, message, {}) for message in self.memory.messages(asker=self.asker))
        )
        found = []
        for hit in hits:
            value = _value(hit.message)
            below = _namespace(hit.message)[: len(namespace_prefix)] == tuple(namespace_prefix)
            if below and all(value.get(name) == wanted for name, wanted in (filter or {}).items()):
                found.append(_item(hit.message, "SearchItem", hit.score if query else None))
        return found[offset : offset + limit]

    def list_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """Return the namespaces of the messages that the asker sees, sorted; ``"*"`` stands for any label."""
        all_of = {_namespace(message) for message in self.memory.messages(asker=self.asker)}
        kept = {
            name[:max_depth]
            for name in all_of
            if _matches(name[: len(prefix or ())], prefix) and _matches(name[-len(suffix) :] if suffix else (), suffix)
        }
        return sorted(kept)[offset : offset + limit]

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        """Run LangGraph's operations (told apart by their class names) in order.

        Raises:
            InputError: An operation of another kind.
        """
        return [self._run(op) for op in ops]

    def _run(self, op: Any) -> Any:
        kind = type(op).__name__
        if kind == "GetOp":
            return self.get(op.namespace, op.key)
        if kind == "PutOp":
            if op.value is None:
                return self.delete(op.namespace, op.key)
            return self.put(op.namespace, op.key, op.value)
        if kind == "SearchOp":
            query = getattr(op, "query", None)
            return self.search(op.namespace_prefix, query=query, filter=op.filter, limit=op.limit, offset=op.offset)
        if kind == "ListNamespacesOp":
            ends = {one.match_type: tuple(one.path) for one in op.match_conditions or ()}
            return self.list_namespaces(
                prefix=ends.get("prefix"),
                suffix=ends.get("suffix"),
                max_depth=op.max_depth,
                limit=op.limit,
                offset=op.offset,
            )
        raise InputError(f"the operation {kind} is none of GetOp, PutOp, SearchOp and ListNamespacesOp.")

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        """Return what :meth:`batch` returns, from a thread of its own."""
        return await asyncio.to_thread(self.batch, list(ops))

    async def aput(self, namespace: Namespace, key: str, value: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Do what :meth:`put` does, in a thread of its own."""
        await asyncio.to_thread(self.put, namespace, key, value)

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """Do what :meth:`delete` does, in a thread of its own."""
        await asyncio.to_thread(self.delete, namespace, key)

    async def aget(self, namespace: Namespace, key: str, **_: Any) -> Any:
        """Return what :meth:`get` returns, from a thread of its own."""
        return await asyncio.to_thread(self.get, namespace, key)

    async def asearch(self, namespace_prefix: Namespace, /, **options: Any) -> list[Any]:
        """Return what :meth:`search` returns, from a thread of its own."""
        return await asyncio.to_thread(lambda: self.search(namespace_prefix, **options))

    async def alist_namespaces(self, **options: Any) -> list[Namespace]:
        """Return what :meth:`list_namespaces` returns, from a thread of its own."""
        return await asyncio.to_thread(lambda: self.list_namespaces(**options))


def _channel(namespace: Namespace) -> str:
    labels = tuple(namespace)
    if not labels or not all(isinstance(label, str) and label and "." not in label for label in labels):
        raise InputError(f"namespace must be a tuple of labels, texts without dots that are not empty; got {labels!r}.")
    return ".".join(labels)


def _namespace(message: Message) -> Namespace:
    return tuple((message.channel or "").split("."))


def _value(message: Message) -> dict[str, Any]:
    value = {name: item for name in _FIELDS if (item := getattr(message, name)) is not None}
    if isinstance(message.timestamp, datetime):
        value["timestamp"] = message.timestamp.isoformat()
    audience = {} if message.audience is None else {"audience": sorted(message.audience)}
    return {"content": message.content, "author": message.author, **value, **audience}


def _matches(labels: Namespace, pattern: Namespace | None) -> bool:
    wanted = tuple(pattern or ())
    return len(labels) == len(wanted) and all(one in ("*", label) for one, label in zip(wanted, labels, strict=True))


def _item(message: Message, kind: str, score: float | None = None) -> Any:
    stamp = message.timestamp if isinstance(message.timestamp, datetime) else datetime.fromtimestamp(0, UTC)
    item = StoredItem(_namespace(message), message.id, _value(message), stamp, stamp, score)
    try:
        module = importlib.import_module("langgraph.store.base")
    except ModuleNotFoundError:
        return item
    fields = dict(vars(item))
    if kind == "Item":
        del fields["score"]
    return getattr(module, kind)(**fields)
