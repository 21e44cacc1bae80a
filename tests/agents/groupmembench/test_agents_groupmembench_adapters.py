"""Adapters in the shapes of mem0, LangGraph, LangChain and LlamaIndex, with stand-ins that mirror their interfaces."""

from __future__ import annotations

import asyncio
import sys
import types
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from steelyard import agents
from steelyard.agents.groupmembench.langgraph import LangGraphMemoryStore, StoredItem
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.mem0 import Mem0Memory
from steelyard.agents.groupmembench.messages import Message, UnknownUserError
from steelyard.agents.groupmembench.retrievers import LangChainMemoryRetriever, LlamaIndexMemoryRetriever
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.errors import InputError

STAMP = datetime(2025, 6, 19, tzinfo=UTC)


def test_mem0_keeps_who_said_what_in_which_run():
    memory = Mem0Memory(StructuredGroupMemory())
    added = memory.add(
        [{"role": "user", "content": "the ledger is late", "name": "ana"}, {"role": "user", "content": "which ledger"}],
        run_id="finance",
        actor_id="bob",
        metadata={"phase": "close"},
        timestamp=STAMP,
    )
    assert [one["event"] for one in added["results"]] == ["ADD", "ADD"]
    memory.add("the ledger is fine", user_id="cleo", run_id="audit", timestamp=STAMP)
    memory.add({"role": "assistant", "content": "noted the ledger"}, agent_id="helper", run_id="audit", timestamp=STAMP,
               audience=frozenset({"cleo"}))  # fmt: skip
    found = memory.search("ledger late", user_id="bob", run_id="finance", limit=1)["results"]
    assert [(one["memory"], one["actor_id"], one["run_id"]) for one in found] == [
        ("the ledger is late", "ana", "finance")
    ]
    assert found[0]["created_at"] == "2025-06-19T00:00:00+00:00"
    assert found[0]["metadata"]["phase"] == "close"
    assert {one["actor_id"] for one in memory.search("ledger", user_id="bob")["results"]} == {"ana", "bob", "cleo"}
    assert {one["actor_id"] for one in memory.search("ledger", user_id="cleo", run_id="audit")["results"]} == {
        "cleo",
        "helper",
    }
    memory.delete(added["results"][0]["id"])
    memory.delete_all(user_id="cleo")
    assert {one["actor_id"] for one in memory.search("ledger")["results"]} == {"bob"}
    with pytest.raises(InputError, match="no memory"):
        memory.delete("nowhere")
    with pytest.raises(UnknownUserError):
        memory.search("ledger", user_id="stranger")


def test_mem0_may_say_again_what_is_there_after_a_deletion():
    memory = Mem0Memory(BM25Memory())
    first = memory.add("one", user_id="ana")["results"][0]["id"]
    memory.add("two", user_id="ana")
    memory.delete(first)
    memory.add("two", user_id="ana")
    assert [hit["memory"] for hit in memory.search("two", user_id="ana")["results"]] == ["two", "two"]


def test_mem0_looks_further_where_other_runs_come_first():
    memory = Mem0Memory(BM25Memory())
    for i in range(200):
        memory.add(f"ledger ledger {i}", user_id="ana", run_id="loud")
    memory.add("ledger", user_id="ana", run_id="quiet")
    assert [one["run_id"] for one in memory.search("ledger 7", user_id="ana", run_id="quiet", limit=1)["results"]] == [
        "quiet"
    ]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "user"}], r"messages\[0\] must"),
        (["text"], "no author"),
        ([3], "must be a text"),
        ([{"content": "x", "name": 3}], "author"),
    ],
)
def test_mem0_errors(messages, says):
    memory = Mem0Memory(BM25Memory())
    with pytest.raises(InputError, match=says):
        memory.add(messages)
    with pytest.raises(InputError, match="k must be"):
        memory.search("x", limit=0)
    assert len(memory.memory) == 0


class GetOp(NamedTuple):
    namespace: tuple
    key: str
    refresh_ttl: bool = True


class SearchOp(NamedTuple):
    namespace_prefix: tuple
    filter: dict | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None


class PutOp(NamedTuple):
    namespace: tuple
    key: str
    value: dict | None
    index: Any = None
    ttl: float | None = None


class MatchCondition(NamedTuple):
    match_type: str
    path: tuple


class ListNamespacesOp(NamedTuple):
    match_conditions: tuple | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


def graph_store(asker=None):
    store = LangGraphMemoryStore(StructuredGroupMemory(), asker=asker)
    store.put(
        ("team", "finance"),
        "a",
        {"content": "the ledger is late", "author": "ana", "role": "Dev", "timestamp": "2025-06-19"},
    )
    store.put(("team", "audit"), "b", {"content": "the ledger is fine", "author": "bob", "audience": ["cleo"]})
    store.put(("other",), "c", {"content": "lunch", "author": "ana", "phase": "none"})
    return store


def test_langgraph_store_reads_writes_and_lists():
    store = graph_store("cleo")
    item = store.get(("team", "finance"), "a")
    assert isinstance(item, StoredItem)
    assert (item.namespace, item.key, item.created_at) == (("team", "finance"), "a", datetime(2025, 6, 19))
    assert item.value == {
        "content": "the ledger is late",
        "author": "ana",
        "role": "Dev",
        "timestamp": "2025-06-19T00:00:00",
    }
    assert store.get(("team", "audit"), "a") is None
    found = store.search(("team",), query="ledger fine")
    assert [one.key for one in found] == ["b", "a"]
    assert found[0].score > found[1].score
    assert [one.key for one in store.search(("team",), query="ledger fine", limit=1, offset=1)] == ["a"]
    assert [one.key for one in store.search((), filter={"author": "ana"})] == ["a", "c"]
    assert store.list_namespaces() == [("other",), ("team", "audit"), ("team", "finance")]
    assert store.list_namespaces(prefix=("team",), max_depth=1) == [("team",)]
    assert store.list_namespaces(suffix=("*", "audit")) == [("team", "audit")]
    store.put(("team", "finance"), "a", {"content": "the ledger is done", "author": "ana", "timestamp": "2025-06-20"})
    assert store.get(("team", "finance"), "a").value["content"] == "the ledger is done"
    store.delete(("team", "finance"), "a")
    assert store.get(("team", "finance"), "a") is None


def test_langgraph_store_hides_what_the_asker_may_not_see():
    store = graph_store("ana")
    assert store.get(("team", "audit"), "b") is None
    assert store.search((), query="ledger")[0].key == "a"
    assert {one.key for one in store.search(())} == {"a", "c"}
    assert ("team", "audit") not in store.list_namespaces()
    store.delete(("team", "audit"), "b")
    with pytest.raises(InputError, match="there twice"):
        store.put(("team", "audit"), "b", {"content": "mine now", "author": "ana"})
    assert (
        LangGraphMemoryStore(store.memory, asker="cleo").get(("team", "audit"), "b").value["content"]
        == "the ledger is fine"
    )


def test_langgraph_operations_and_coroutines():
    store = graph_store("cleo")
    ops = [
        GetOp(("other",), "c"),
        SearchOp(("team",), query="ledger", limit=5),
        ListNamespacesOp((MatchCondition("prefix", ("team",)), MatchCondition("suffix", ("audit",)))),
        PutOp(("other",), "d", {"content": "dinner", "author": "ana"}),
        PutOp(("other",), "c", None),
        GetOp(("other",), "c"),
    ]
    got, hits, names, put, deleted, after = store.batch(ops)
    assert got.key == "c"
    assert {hit.key for hit in hits} == {"a", "b"}
    assert names == [("team", "audit")]
    assert put is deleted is after is None

    async def all_of():
        await store.aput(("other",), "e", {"content": "tea", "author": "ana"})
        assert (await store.aget(("other",), "e")).key == "e"
        assert [one.key for one in await store.asearch(("other",), query="tea", limit=1)] == ["e"]
        assert ("other",) in await store.alist_namespaces()
        await store.adelete(("other",), "e")
        return await store.abatch([GetOp(("other",), "e")])

    assert asyncio.run(all_of()) == [None]
    with pytest.raises(InputError, match="tuple is none of"):
        store.batch([()])


@pytest.mark.parametrize(
    ("namespace", "key", "value", "says"),
    [
        ((), "x", {"content": "a", "author": "b"}, "namespace"),
        (("a.b",), "x", {"content": "a", "author": "b"}, "namespace"),
        (("other",), "x", {"content": "a"}, "content' and 'author"),
        (("other",), "x", {"content": "a", "author": "b", "audience": "cleo"}, "list of names"),
        (("other",), "a", {"content": "a", "author": "b"}, "another namespace"),
    ],
)
def test_langgraph_errors(namespace, key, value, says):
    with pytest.raises(InputError, match=says):
        graph_store("cleo").put(namespace, key, value)


def test_langgraph_items_are_its_own_where_it_is_installed(monkeypatch):
    class Item:
        def __init__(self, *, value, key, namespace, created_at, updated_at):
            self.key = key

    class SearchItem(Item):
        def __init__(self, namespace, key, value, created_at, updated_at, score=None):
            super().__init__(value=value, key=key, namespace=namespace, created_at=created_at, updated_at=updated_at)
            self.score = score

    base = types.ModuleType("langgraph.store.base")
    base.Item, base.SearchItem = Item, SearchItem
    for name in ("langgraph", "langgraph.store"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "langgraph.store.base", base)
    store = graph_store()
    assert type(store.get(("other",), "c")) is Item
    hit = store.search(("team",), query="ledger")[0]
    assert type(hit) is SearchItem
    assert hit.score is not None


def retrievable():
    memory = BM25Memory()
    memory.add_many(
        [
            Message("a", "the ledger is late", "ana", "finance", STAMP, role="Dev"),
            Message("b", "lunch", "bob", reply_to="a", timestamp=STAMP),
            Message("c", "the ledger is secret", "bob", audience=frozenset({"cleo"})),
        ]
    )
    return memory


def test_langchain_retriever(monkeypatch):
    retriever = LangChainMemoryRetriever(retrievable(), asker="ana", k=1)
    (document,) = retriever.invoke("ledger late", config={"tags": []})
    assert (document.page_content, document.id) == ("the ledger is late", "a")
    assert document.metadata["author"] == "ana"
    assert document.metadata["timestamp"].startswith("2025-06-19")
    assert asyncio.run(retriever.ainvoke("ledger late"))[0].id == "a"
    with pytest.raises(InputError, match="k must"):
        LangChainMemoryRetriever(retrievable(), k=0)

    class Document:
        def __init__(self, page_content, *, metadata=None, id=None):
            self.page_content, self.metadata, self.id = page_content, metadata, id

    module = types.ModuleType("langchain_core.documents")
    module.Document = Document
    monkeypatch.setitem(sys.modules, "langchain_core", types.ModuleType("langchain_core"))
    monkeypatch.setitem(sys.modules, "langchain_core.documents", module)
    assert type(retriever.invoke("ledger")[0]) is Document


def test_llamaindex_retriever(monkeypatch):
    retriever = LlamaIndexMemoryRetriever(retrievable(), asker="cleo")
    bundle = types.SimpleNamespace(query_str="secret ledger")
    found = retriever.retrieve(bundle)
    assert [one.node.id_ for one in found][:2] == ["c", "a"]
    assert found[0].score > found[1].score
    assert found[0].node.text == "the ledger is secret"
    assert found[0].node.metadata["timestamp"] is None
    assert asyncio.run(retriever.aretrieve("lunch"))[0].node.id_ == "b"

    class TextNode:
        def __init__(self, text, id_, metadata):
            self.text = text

    class NodeWithScore:
        def __init__(self, node, score):
            self.node, self.score = node, score

    schema = types.ModuleType("llama_index.core.schema")
    schema.TextNode, schema.NodeWithScore = TextNode, NodeWithScore
    for name in ("llama_index", "llama_index.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "llama_index.core.schema", schema)
    (first, *_) = retriever.retrieve("lunch")
    assert type(first) is NodeWithScore
    assert type(first.node) is TextNode


def test_the_room_exports_the_adapters():
    for adapter in (Mem0Memory, LangGraphMemoryStore, LangChainMemoryRetriever, LlamaIndexMemoryRetriever):
        assert getattr(agents, adapter.__name__) is adapter
