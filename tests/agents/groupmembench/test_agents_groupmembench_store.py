"""The store: what comes back, erasure down to the bytes, several writers, and files that cannot be used."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.agents.groupmembench.dense import DenseMemory, HybridMemory
from steelyard.agents.groupmembench.flat import FlatFactMemory
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.store import MemoryStore
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.errors import InputError, StoreError
from steelyard.models.embedders import HashingEmbedder

START = datetime(2025, 6, 19, tzinfo=UTC)
SECRET = "the umbrella word xylographic"


def chat(n=30):
    return [
        Message(
            f"m{i}",
            f"{SECRET} {i}" if i % 3 == 1 else f"plain words {i}",
            ["ana", "mallory", "bob"][i % 3],
            timestamp=START + timedelta(minutes=i),
            reply_to=f"m{i - 1}" if i % 2 else None,
            audience=frozenset({"ana", "bob"}) if i % 5 == 0 else None,
        )
        for i in range(n)
    ]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


@settings(max_examples=25)
@given(st.lists(st.builds(
    Message, id=TEXTS, content=st.text(max_size=20), author=TEXTS, channel=st.none() | TEXTS,
    timestamp=st.none() | st.datetimes(timezones=st.just(UTC)), reply_to=st.none() | TEXTS, phase=st.none() | TEXTS,
    is_noise=st.none() | st.booleans(), audience=st.none() | st.frozensets(TEXTS, max_size=3),
    truth=st.none() | st.dictionaries(TEXTS, st.integers(), max_size=2), position=st.none() | st.integers(0, 9),
), max_size=8, unique_by=lambda message: message.id))  # fmt: skip
def test_messages_come_back_as_they_were(tmp_path_factory, messages):
    path = tmp_path_factory.mktemp("store") / "s.db"
    with MemoryStore(path) as store:
        assert store.add_many(messages) == len(messages)
    with MemoryStore(path) as store:
        assert list(store.messages()) == messages
        assert len(store) == len(messages)


def test_a_faulty_batch_adds_nothing(tmp_path):
    with MemoryStore(tmp_path / "new" / "s.db") as store:
        store.add_many(chat(5))

        def failing():
            yield from chat(9)[5:]
            raise RuntimeError("the source broke")

        bad = {
            "there twice": [*chat(8)[5:], chat(1)[0]],
            "time zone": [Message("n", "x", "ana", timestamp=datetime(2025, 1, 1))],
            "surrogates": [Message("\ud800", "x", "ana")],
            "cannot be stored": [Message("o", "x", "ana", truth={"a": object()})],
            "must be Message": ["text"],
            "role must be": [Message("p", "x", "ana", role=3)],  # no memory takes these in: the store would be lost
            "channel must be": [Message("p", "x", "ana", channel={"a": 1})],
            "position must be": [Message("p", "x", "ana", position=-1)],
            "is_noise must be": [Message("p", "x", "ana", is_noise="x")],
            "audience must hold": [Message("p", "x", "ana", audience=frozenset({1, "bob"}))],
            "years 1 to 9999": [Message("p", "x", "ana", timestamp="0001-01-01T00:00:00+14:00")],
            "9999 in UTC": [
                Message("p", "x", "ana", timestamp=datetime.max.replace(tzinfo=timezone(-timedelta(hours=9))))
            ],
        }
        for says, batch in bad.items():
            with pytest.raises(InputError, match=says):
                store.add_many(batch)
        with pytest.raises(RuntimeError, match="broke"):
            store.add_many(failing())
        assert list(store.messages()) == chat(5)
        store.add(chat(6)[5])
        assert len(store) == 6
        assert stat.S_IMODE((tmp_path / "new" / "s.db").stat().st_mode) == 0o600


def bytes_of(tmp_path):
    return b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))


def test_odd_zones_do_not_lock_a_memory(tmp_path):
    stamps = ["2025-01-01T00:00:00-23:59:59", "2025-01-01T00:00:00+23:59:59", "0001-01-01T00:00:00-00:00:30"]
    with MemoryStore(tmp_path / "s.db") as store:
        memory = store.attach(BM25Memory())
        store.add_many(Message(str(i), "hello", "ana", timestamp=stamp) for i, stamp in enumerate(stamps))
        found = {hit.id: hit.message.timestamp for hit in memory.search("hello", asker="ana")}
        assert found == {str(i): datetime.fromisoformat(stamp) for i, stamp in enumerate(stamps)}


def test_a_deleted_user_is_gone_from_file_log_and_indexes(tmp_path):
    with MemoryStore(tmp_path / "s.db") as store:
        memories = [
            store.attach(memory)
            for memory in (
                BM25Memory(),
                FlatFactMemory(),
                StructuredGroupMemory(),
                HybridMemory(BM25Memory(), DenseMemory(HashingEmbedder())),
            )
        ]
        messages = chat(3000)
        store.add_many(messages[:2000])
        store.add_many(messages[2000:])
        assert b"xylographic" in bytes_of(tmp_path)
        assert store.delete_user("mallory") == 1000
        left = bytes_of(tmp_path)
        assert b"xylographic" not in left
        assert b"mallory" not in left
        assert (tmp_path / "s.db-wal").stat().st_size == 0
        kept = list(store.messages())
        assert len(kept) == 2000
        assert {message.author for message in kept} == {"ana", "bob"}
        gone = {message.id for message in messages if message.author == "mallory"}
        assert all(message.reply_to not in gone for message in kept)
        assert len(store.chat().messages) == 2000  # without a warning, which would be an error here
        for memory in memories:
            assert len(memory) == 2000
            assert not any("xylographic" in hit.message.content for hit in memory.search("xylographic umbrella", k=99))
        assert store.delete_user("mallory") == 0


def test_attached_memories_keep_in_step(tmp_path):
    with MemoryStore(tmp_path / "s.db") as store, MemoryStore(tmp_path / "s.db") as other:
        store.add_many(chat(4))
        first = store.attach(BM25Memory())
        other.add_many(chat(8)[4:])
        second = store.attach(BM25Memory())
        assert len(first) == len(second) == 8
        other.add_many(chat(10)[8:])
        assert len(first) == 8
        store.refresh()
        assert len(first) == len(second) == 10
        other.delete_user("ana")
        store.add(Message("late", "x", "bob", timestamp=START))
        assert len(first) == len(second) == len(store) == 7


def _write(path, name, count):
    with MemoryStore(path) as store:
        for i in range(count):
            store.add_many([Message(f"{name}-{i}-{j}", "x", name) for j in range(3)])


def test_several_writers_at_once(tmp_path):
    path = tmp_path / "s.db"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, name, 20)) for name in ("ana", "bob", "cleo")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with MemoryStore(path) as store:
        assert len(store) == 180
        assert [message.id for message in store.messages() if message.author == "bob"] == [
            f"bob-{i}-{j}" for i in range(20) for j in range(3)
        ]


def test_deleting_says_when_a_reader_keeps_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.agents.groupmembench.store._LOCKED_S", 0.2)
    with MemoryStore(tmp_path / "s.db") as store:
        store.add_many(chat(9))
        reader = sqlite3.connect(tmp_path / "s.db")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM message").fetchone()
        with pytest.raises(StoreError, match=r"another program kept reading|locked"):
            store.delete_user("mallory")
        reader.close()
        store.delete_user("mallory")
        assert b"xylographic" not in bytes_of(tmp_path)


def test_files_that_cannot_be_used(tmp_path):
    with MemoryStore(tmp_path / "s.db") as store:
        store.add_many(chat(400))
    whole = (tmp_path / "s.db").read_bytes()
    cases = {
        "text": (
            b"no database at all, but longer than a header of one hundred bytes " * 4,
            "text is no memory of steelyard",
        ),
        "cut": (whole[: len(whole) // 2], "damaged"),
        "holes": (whole[:4096] + b"\xff" * (len(whole) - 4096), "damaged"),
    }
    for name, (content, says) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError, match=says), MemoryStore(tmp_path / name) as store:
            list(store.messages())
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("UPDATE message SET body = '[1' WHERE number = 7")
    db.commit()
    with MemoryStore(tmp_path / "s.db") as store, pytest.raises(StoreError, match="number 7 cannot be read"):
        list(store.messages())
    db.execute("""UPDATE message SET body = '{"content": 3}' WHERE number = 7""")
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="schema 2, newer"):
        MemoryStore(tmp_path / "s.db")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine(x)")
    other.close()
    with pytest.raises(StoreError, match="another program"):
        MemoryStore(tmp_path / "other.db")
    with pytest.raises(StoreError, match="cannot be used"):
        MemoryStore(tmp_path)
    with pytest.raises(InputError, match="path"):
        MemoryStore("a\0b")


def test_a_closed_store_says_so(tmp_path):
    store = MemoryStore(tmp_path / "s.db")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        len(store)
