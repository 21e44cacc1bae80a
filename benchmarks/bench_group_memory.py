"""Group memory side by side with bm25s and rank_bm25: indexing, querying and storing 30,000 and 1,000,000 messages.

Run: ``python benchmarks/bench_group_memory.py`` (``--million`` for the large store as well, some minutes). Texts have
Zipf-distributed words, 12 a message on average; every hundredth message has an audience. CPU time; query arms take
turns on the same queries.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import receipt
from rank_bm25 import BM25Okapi

from steelyard.agents.bm25 import tokenize
from steelyard.agents.groupmembench.flat import FlatFactMemory
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.memory import RankedMemory
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.store import MemoryStore
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.rng import generator

WORDS = 30_000
QUERIES = 200
PEER_QUERIES = 20  # of rank_bm25, which takes tens of milliseconds
SHARE = 1 / np.arange(1, WORDS + 1)
SHARE /= SHARE.sum()
SPELLED = np.array([f"w{i}" for i in range(WORDS)])


def messages(n: int) -> Iterator[Message]:
    """Yield ``n`` messages; three of four answer one of the 300 before them."""
    rng, start = generator("bench", "group memory", 0), datetime(2025, 1, 1)
    for first in range(0, n, 10_000):
        lengths = rng.integers(5, 20, min(10_000, n - first))
        words = SPELLED[rng.choice(WORDS, int(lengths.sum()), p=SHARE)]
        back = rng.integers(1, 300, len(lengths))
        for i, end in enumerate(np.cumsum(lengths).tolist(), first):
            text = " ".join(words[end - lengths[i - first] : end])
            yield Message(
                id=f"m{i}",
                content=f"{text} instead" if i % 17 == 0 else text,
                author=f"U{i % 200}",
                channel=f"channel {i % 50}",
                phase=f"phase {i % 300}",
                role=f"role{i % 20}",
                timestamp=start + timedelta(seconds=i),
                reply_to=f"m{i - int(back[i - first])}" if i % 4 and i > 300 else None,
                audience=frozenset({"U1", "U2"}) if i % 100 == 0 else None,
            )


def queries() -> list[str]:
    """Queries of eight words drawn as those of the messages are."""
    rng = generator("bench", "group memory queries", 0)
    return [" ".join(SPELLED[rng.choice(WORDS, 8, p=SHARE)]) for _ in range(QUERIES)]


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    gc.collect()
    start = time.process_time()
    call()
    return time.process_time() - start


def spread(seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds."""
    return {"median": 1e3 * float(np.median(seconds)), "p95": 1e3 * float(np.percentile(seconds, 95))}


def arms(memories: dict[str, RankedMemory]) -> dict[str, Callable[[str], Any]]:
    """Searches by name; those of the structured memory as a plain question and with every step at work."""
    found: dict[str, Callable[[str], Any]] = {
        name: (lambda query, memory=memory: memory.search(query, asker="U7")) for name, memory in memories.items()
    }
    structured = memories["structured"]
    found["structured, current state in a phase"] = lambda query: structured.search(
        f"current {query} in phase 7", asker="U7"
    )
    found["structured, first person"] = lambda query: structured.search(f"my {query}", asker="U7")
    return found


def timed(found: dict[str, Callable[[str], Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds of a query of each arm, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for query in queries():
        for name, search in found.items():
            start = time.process_time()
            search(query)
            seconds[name].append(time.process_time() - start)
    return {name: spread(values) for name, values in seconds.items()}


def small(n: int) -> dict[str, Any]:
    """Figures at ``n`` messages beside the peers."""
    chat = list(messages(n))
    split = [tokenize(message.content) for message in chat]
    peer, okapi = bm25s.BM25(), None
    memories: dict[str, RankedMemory] = {
        "BM25": BM25Memory(),
        "structured": StructuredGroupMemory(),
        "flat facts": FlatFactMemory(),
    }
    index = {"bm25s": cpu(lambda: peer.index(split, show_progress=False))}
    for name, memory in memories.items():
        index[name] = cpu(lambda memory=memory: memory.add_many(chat))  # type: ignore[misc]
        index[f"{name}, first query"] = cpu(lambda memory=memory: memory.search("w1", asker="U7"))  # type: ignore[misc]
    found = arms(memories)
    found["bm25s"] = lambda query: peer.retrieve([query.split()], k=10, show_progress=False)
    query = timed(found)
    okapi = BM25Okapi(split)
    slow = [cpu(lambda text=text: okapi.get_top_n(text.split(), chat, 10)) for text in queries()[:PEER_QUERIES]]  # type: ignore[misc]
    query["rank_bm25"] = spread(slow)
    return {
        "index, s": index,
        "query, ms": query,
        "query over bm25s": {name: one["median"] / query["bm25s"]["median"] for name, one in query.items()},
    }


def storing(n: int) -> dict[str, float]:
    """Messages a second into a store on disk, alone and with a structured memory attached, and out of it again."""
    chat = list(messages(n))
    with tempfile.TemporaryDirectory() as folder:
        with MemoryStore(Path(folder) / "alone.db") as store:
            alone = cpu(lambda: store.add_many(chat))
            read = cpu(lambda: list(store.messages()))
            erase = cpu(lambda: store.delete_user("U7"))
        with MemoryStore(Path(folder) / "attached.db") as store:
            store.attach(StructuredGroupMemory())
            attached = cpu(lambda: store.add_many(chat))
    return {
        "stored, messages/s": n / alone,
        "stored and indexed by the structured memory, messages/s": n / attached,
        "read, messages/s": n / read,
        "delete_user with all its bytes, s": erase,
    }


def large(n: int) -> dict[str, Any]:
    """Figures of one structured memory of ``n`` messages; its memory is the process's peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    memory = StructuredGroupMemory()
    index = cpu(lambda: memory.add_many(messages(n)))
    first = cpu(lambda: memory.search("w1", asker="U7"))
    return {
        "messages": n,
        "generate and index, s": index,
        "messages/s": n / index,
        "first query, s": first,
        "query, ms": timed(arms({"structured": memory})),
        "peak RSS, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak RSS before, MB": before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--million", action="store_true", help="also a store of 1,000,000 messages")
    parser.add_argument("--dry", action="store_true", help="print the figures, write no receipt")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"messages": arguments.messages, "clock": "process_time"}
    if arguments.million:  # first: a peak of memory never falls
        figures["1,000,000 messages"] = large(1_000_000)
        gc.collect()
    figures |= small(arguments.messages)
    figures["store"] = storing(arguments.messages)
    figures["targets"] = {
        "index of 30,000, s": 1,
        "query over bm25s": 2,
        "ingest, messages/s": 20_000,
        "1,000,000 messages: peak RSS, MB": 2048,
        "1,000,000 messages: query p95, ms": 50,
    }
    print(json.dumps(figures, indent=1))
    if not arguments.dry:
        print(receipt.write("speed_group_memory", figures))


if __name__ == "__main__":
    main()
