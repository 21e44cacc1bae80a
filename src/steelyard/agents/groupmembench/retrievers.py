"""A memory as a LangChain and as a LlamaIndex retriever, by shape: both work with the packages and without them."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from typing import Any

from steelyard.agents.groupmembench.memory import Memory, RankedMemory
from steelyard.agents.groupmembench.messages import Hit


@dataclass
class MemoryDocument:
    """What LangChain's ``Document`` is, for when LangChain is not installed."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str | None = None


@dataclass
class MemoryNode:
    """What LlamaIndex's ``TextNode`` is, for when LlamaIndex is not installed."""

    text: str
    id_: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScoredNode:
    """What LlamaIndex's ``NodeWithScore`` is, for when LlamaIndex is not installed."""

    node: Any
    score: float | None = None


class _Retriever:
    """Searches a memory for one asker.

    Args:
        memory: The memory.
        asker: On whose behalf; None sees what is public.
        k: How many messages.

    Raises:
        InputError: ``k`` is below 1.
    """

    def __init__(self, memory: Memory, *, asker: str | None = None, k: int = 10) -> None:
        RankedMemory.check_k(k)
        self.memory, self.asker, self.k = memory, asker, k

    def _hits(self, query: str) -> list[Hit]:
        return self.memory.search(query, asker=self.asker, k=self.k)


class LangChainMemoryRetriever(_Retriever):
    """Answers ``invoke`` and ``ainvoke`` with documents, as a LangChain ``BaseRetriever`` does."""

    def invoke(self, input: str, config: Any = None, **_: Any) -> list[Any]:
        """Return one document a message; ``config`` is LangChain's and not used."""
        kind = _class("langchain_core.documents", "Document", MemoryDocument)
        return [
            kind(page_content=hit.message.content, metadata={**_metadata(hit), "score": hit.score}, id=hit.id)
            for hit in self._hits(input)
        ]

    async def ainvoke(self, input: str, config: Any = None, **options: Any) -> list[Any]:
        """Return what :meth:`invoke` returns, from a thread of its own."""
        return await asyncio.to_thread(self.invoke, input, config, **options)


class LlamaIndexMemoryRetriever(_Retriever):
    """Answers ``retrieve`` and ``aretrieve`` with scored nodes, as a LlamaIndex ``BaseRetriever`` does."""

    def retrieve(self, str_or_query_bundle: Any) -> list[Any]:
        """Return one scored node a message for a text or a ``QueryBundle``."""
        query = getattr(str_or_query_bundle, "query_str", str_or_query_bundle)
        node = _class("llama_index.core.schema", "TextNode", MemoryNode)
        scored = _class("llama_index.core.schema", "NodeWithScore", ScoredNode)
        return [
            scored(node=node(text=hit.message.content, id_=hit.id, metadata=_metadata(hit)), score=hit.score)
            for hit in self._hits(query)
        ]

    async def aretrieve(self, str_or_query_bundle: Any) -> list[Any]:
        """Return what :meth:`retrieve` returns, from a thread of its own."""
        return await asyncio.to_thread(self.retrieve, str_or_query_bundle)


def _metadata(hit: Hit) -> dict[str, Any]:
    message = hit.message
    return {
        "author": message.author,
        "role": message.role,
        "channel": message.channel,
        "phase": message.phase,
        "timestamp": None if message.timestamp is None else str(message.timestamp),
        "reply_to": message.reply_to,
    }


def _class(module: str, name: str, otherwise: Any) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return otherwise
