"""What every memory promises: privacy before ranking, ties without insertion order, cuts in time, clear errors."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import rank_bm25
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.bm25 import BM25Index, tokenize
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.columns import Column, Keys, Texts
from steelyard.agents.groupmembench.dense import DenseMemory, HybridMemory
from steelyard.agents.groupmembench.flat import FlatFactMemory
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Message, UnknownUserError
from steelyard.agents.groupmembench.phrases import FastIndex, PhraseIndex
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.agents.groupmembench.table import MessageTable
from steelyard.agents.ranking import rrf
from steelyard.errors import InputError
from steelyard.models.embedders import HashingEmbedder

START = datetime(2025, 6, 19, tzinfo=UTC)
WORDS = ["alpha", "beta", "gamma", "we decided to", "instead", "current", "ledger means money book", "my", "delta"]
MEMORIES = {
    "bm25": BM25Memory,
    "header": lambda: BM25Memory("header"),
    "speaker": lambda: BM25Memory("speaker"),
    "dense": lambda: DenseMemory(HashingEmbedder(64)),
    "hybrid": lambda: HybridMemory(BM25Memory(), DenseMemory(HashingEmbedder(64))),
    "flat": FlatFactMemory,
    "structured": StructuredGroupMemory,
    "structured dense": lambda: StructuredGroupMemory(HashingEmbedder(64)),
}
EVERY = pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES.keys())
QUERIES = ["alpha beta", "what is the current gamma in phase 1", "my delta", "money book", "unheard of"]


def chat(n=40, seed=0, hidden=5):
    r = random.Random(seed)
    people = ["ana", "bob", "cleo"]
    return [
        Message(
            f"m{i}",
            " ".join(r.choices(WORDS, k=4)) + (" alpha" if i % 3 else ""),
            people[i % 3],
            channel=f"c{i % 2}",
            timestamp=START + timedelta(minutes=i),
            reply_to=f"m{i - r.randint(1, 4)}" if i > 4 and i % 4 else None,
            role=["Dev", "Ops"][i % 2],
            phase=f"phase {i % 3}",
            is_noise=i % 11 == 3,
            audience=frozenset({"bob"}) if hidden and i % hidden == 4 and i % 3 else None,
        )
        for i in range(n)
    ]


def filled(make, messages):
    memory = make()
    memory.add_many(messages)
    return memory


def shown(memory, query, **options):
    return [(hit.id, hit.score, hit.why) for hit in memory.search(query, **options)]


@EVERY
def test_any_order_and_any_batches_give_the_same_ranking(make):
    messages = chat()
    one = filled(make, messages)
    shuffled, other = messages[:], make()
    random.Random(1).shuffle(shuffled)
    other.add_many(shuffled[:7])
    for message in shuffled[7:]:
        other.add(message)
    for query in QUERIES:
        for asker in (None, "ana", "bob"):
            for first, second in zip(
                shown(one, query, asker=asker, k=9), shown(other, query, asker=asker, k=9), strict=True
            ):
                assert first[0] == second[0]
                assert first[1] == pytest.approx(second[1], rel=1e-12)


@EVERY
def test_ties_do_not_follow_arrival_and_change_with_the_seed(make):
    same = [Message(f"t{i}", f"w{i} alpha", "ana", phase=f"p{i}") for i in range(30)]
    order = [hit.id for hit in filled(make, same).search("alpha", k=30)]
    if make is not MEMORIES["dense"] and "dense" not in str(make):
        assert sorted(order) == sorted(message.id for message in same)
    assert order != [message.id for message in same]
    assert order == [hit.id for hit in filled(make, same[::-1]).search("alpha", k=30)]


def test_the_seed_permutes_ties():
    same = [Message(f"t{i}", "alpha", "ana") for i in range(30)]
    orders = {
        tuple(hit.id for hit in filled(lambda s=s: BM25Memory(seed=s), same).search("alpha", k=30)) for s in (0, 1)
    }
    assert len(orders) == 2


@EVERY
def test_a_hidden_message_is_never_returned_nor_named(make):
    messages = chat()
    memory = filled(make, messages)
    hidden = {message.id for message in messages if not message.visible_to("ana")}
    assert hidden
    for query in QUERIES:
        for asker in ("ana", None):
            for hit in memory.search(query, asker=asker, k=100):
                assert hit.id not in hidden
                assert hit.message.reply_to not in hidden
                assert not hidden & {str(value) for value in hit.why.values()}
    assert any(hit.id in hidden for hit in memory.search("alpha beta gamma", asker="bob", k=100))


@given(
    seed=st.integers(0, 10_000), query=st.sampled_from(QUERIES), name=st.sampled_from(sorted(set(MEMORIES) - {"flat"}))
)
def test_what_hidden_messages_say_changes_nothing(seed, query, name):
    r = random.Random(seed)
    messages = chat(24, seed, hidden=r.choice([2, 3, 5]))
    secret = [message for message in messages if not message.visible_to("ana")]
    # The same texts in other places keep idf and the average length; all else about hidden messages changes.
    texts = [message.content for message in secret]
    r.shuffle(texts)
    other = {
        message.id: replace(
            message,
            content=text,
            author=r.choice(["bob", "cleo"]),
            phase=r.choice([None, "phase 1", "gamma"]),
            channel=r.choice(["c0", "money"]),
            role=r.choice(["Dev", "delta"]),
            reply_to=r.choice([None, "m1", "m3"]),
            is_noise=r.choice([None, True, False]),
            timestamp=START + timedelta(minutes=r.randint(-50, 50)),
            audience=frozenset({"bob", "cleo"}),
        )
        for message, text in zip(secret, texts, strict=True)
    }
    if name in ("header", "speaker"):
        for message in secret:  # what the header shows is part of the indexed text
            kept = {part: getattr(message, part) for part in ("content", "author", "role", "channel", "phase")}
            other[message.id] = replace(other[message.id], **kept)
    changed = [other.get(message.id, message) for message in messages]
    make = MEMORIES[name]
    assert shown(filled(make, messages), query, asker="ana", k=30) == shown(
        filled(make, changed), query, asker="ana", k=30
    )


@given(seed=st.integers(0, 1000))
def test_hidden_facts_overwrite_nothing(seed):
    messages = chat(24, seed, hidden=3)
    seen = [message for message in messages if message.visible_to("ana")]
    with_hidden, without = filled(FlatFactMemory, messages), filled(FlatFactMemory, seen)
    for at in (None, START + timedelta(minutes=11)):
        found = [
            {hit.id for hit in memory.search("alpha", asker="ana", k=99, at=at)} for memory in (with_hidden, without)
        ]
        assert found[0] == found[1]


@given(seed=st.integers(0, 1000), query=st.sampled_from(QUERIES))
def test_dense_ranking_without_the_hidden_messages_is_the_same(seed, query):
    messages = chat(20, seed, hidden=3)
    seen = list(GroupChat(messages, on_bad_reply="ignore").visible_to("ana"))
    make = MEMORIES["dense"]
    assert shown(filled(make, messages), query, asker="ana", k=30) == shown(
        filled(make, seen), query, asker="ana", k=30
    )


@EVERY
def test_at_cuts_the_future_off(make):
    messages = chat(30, hidden=0)
    late = filled(make, messages).search("alpha current", k=99, at=START + timedelta(minutes=9))
    assert late
    assert {int(hit.id[1:]) for hit in late} <= set(range(10))
    assert filled(make, messages).search("alpha", at="2020-01-01T00:00:00+00:00") == []
    timeless = [*messages, Message("x", "alpha alpha", "ana")]
    assert "x" not in {hit.id for hit in filled(make, timeless).search("alpha", k=99, at=START + timedelta(days=9))}


@EVERY
def test_errors_and_edges(make):
    memory = make()
    assert memory.search("anything", asker="nobody yet") == []
    messages = [*chat(12), Message("blank", " \n", "dora"), Message("dots", "?!", "dora")]
    memory.add_many(messages)
    assert len(memory) == 14
    for k in (0, -1, True, 2.0):
        with pytest.raises(InputError, match="k must be a whole number"):
            memory.search("alpha", k=k)
    for query in ("", "  ", None):
        with pytest.raises(InputError, match="query"):
            memory.search(query)
    with pytest.raises(UnknownUserError, match=r"'bobb' neither wrote.*Did you mean 'bob'"):
        memory.search("alpha", asker="bobb")
    with pytest.raises(KeyError):
        memory.search("alpha", asker="nobody")
    hits = memory.search("alpha", asker="dora", k=1000)
    assert "blank" not in {hit.id for hit in hits}
    with pytest.raises(InputError, match="'m1' is there twice"):
        memory.add(Message("m1", "again", "ana"))
    with pytest.raises(InputError, match=r"'m0' and 'n'|'n'.*'m0'"):
        memory.add(Message("n", "naive", "ana", timestamp=datetime(2025, 1, 1)))
    with pytest.raises(InputError, match="must be Message objects"):
        memory.add("text")
    assert len(memory) == 14
    with pytest.raises(InputError, match="time zone"):
        memory.search("alpha", at=datetime(2025, 1, 1))
    for at in (7, " "):
        with pytest.raises(InputError, match="at must be"):
            memory.search("alpha", at=at)


@EVERY
def test_anchor_is_left_out_and_must_be_seen(make):
    messages = chat()
    memory = filled(make, messages)
    hits = memory.search(messages[0].content, asker="ana", k=99, anchor="m0")
    assert "m0" not in {hit.id for hit in hits}
    hidden = next(message.id for message in messages if not message.visible_to("ana"))
    for anchor in (hidden, "nowhere"):
        with pytest.raises(InputError, match="anchor"):
            memory.search("alpha", asker="ana", anchor=anchor)


@EVERY
def test_forgetting_leaves_what_was_never_added(make):
    messages = chat()
    memory = filled(make, messages)
    assert memory.forget("nobody") == 0
    assert memory.forget("bob") == 13
    kept = [message for message in messages if message.author != "bob"]
    gone = {message.id for message in messages} - {message.id for message in kept}
    never = filled(make, [replace(m, reply_to=None) if m.reply_to in gone else m for m in kept])
    for query in QUERIES:
        assert shown(memory, query, asker="ana", k=9) == shown(never, query, asker="ana", k=9)
    memory.clear()
    assert len(memory) == 0
    memory.add_many(messages)
    assert shown(memory, "alpha", k=5) == shown(filled(make, messages), "alpha", k=5)


def test_a_hybrid_takes_in_a_block_in_all_memories_or_in_none():
    def encode(texts):
        if "fail" in texts:
            raise RuntimeError("the endpoint is down")
        return np.ones((len(texts), 2), np.float32)

    memory = HybridMemory(BM25Memory(), StructuredGroupMemory(), DenseMemory(encode))
    early, late = Message("a", "alpha", "ana", reply_to="b"), Message("b", "fail", "bob")
    memory.add(early)
    with pytest.raises(RuntimeError, match="endpoint"):
        memory.add(late)
    assert [len(one) for one in memory.memories] == [1, 1, 1]
    with pytest.raises(InputError, match="there twice"):
        memory.add_many([Message("c", "beta", "ana"), early])
    assert memory.add_many([replace(late, content="beta"), Message("c", "beta", "ana")]) == 2
    assert memory.search("alpha", k=1)[0].message.reply_to == "b"  # still a reply to the message that came again


@EVERY
def test_messages_without_content_change_no_score(make):
    told = chat(12)
    blank = [Message(f"blank{i}", " ", "ana", timestamp=START) for i in range(30)]
    for query in QUERIES:
        assert shown(filled(make, [*told, *blank]), query, asker="ana", k=9) == shown(
            filled(make, told), query, asker="ana", k=9
        )


def test_a_group_of_names_in_most_documents_has_the_floor_of_a_word_there():
    index, texts = PhraseIndex(), ["alpha beta", "alpha", "gamma alpha", "delta"]
    index.add_many(map(tokenize, texts))
    rows, scores = index.group_scores(["alpha"], texts.__getitem__, None)
    assert rows.tolist() == [0, 1, 2]
    assert scores == pytest.approx(rank_bm25.BM25Okapi(list(map(tokenize, texts))).get_scores(["alpha"])[:3])


def test_replace_get_remove_and_listing():
    messages = chat(10, hidden=0)
    messages[4:6] = [replace(message, reply_to="m2") for message in messages[4:6]]
    memory = filled(BM25Memory, messages)
    memory.replace(Message("m2", "zebra", "ana", timestamp=START, audience=frozenset({"bob"})))
    assert memory.search("zebra", asker="bob")[0].id == "m2"
    assert memory.get("m2") is None
    assert memory.get("m2", asker="bob").content == "zebra"
    assert memory.get("nowhere") is None
    assert "m2" not in {message.id for message in memory.messages()}
    assert len(list(memory.messages(asker="bob"))) == 10
    for id in ("m4", "m5"):
        assert memory.get(id, asker="bob").reply_to == "m2"
        assert memory.get(id).reply_to is None
    with pytest.raises(InputError, match="cannot be compared"):
        memory.replace(Message("m2", "naive", "ana", timestamp=datetime(2025, 1, 1)))
    assert memory.get("m2", asker="bob").content == "zebra"
    memory.replace(Message("new", "fresh", "ana"))
    assert memory.remove("new")
    assert not memory.remove("new")


def test_only_the_public_is_shown_to_no_asker():
    memory = BM25Memory(allow_unknown_asker=True)
    memory.add_many([Message("a", "alpha", "ana"), Message("b", "alpha", "bob", audience=frozenset({"cleo"}))])
    found = {
        asker: {hit.id for hit in memory.search("alpha", asker=asker)} for asker in (None, "cleo", "bob", "stranger")
    }
    assert found == {None: {"a"}, "cleo": {"a", "b"}, "bob": {"a", "b"}, "stranger": {"a"}}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: BM25Memory("title"), "fields must be"),
        (lambda: BM25Memory(seed=True), "seed must be"),
        (lambda: HybridMemory(BM25Memory()), "at least two"),
        (lambda: HybridMemory(BM25Memory(), BM25Memory(), rrf_k=0), "rrf_k"),
        (lambda: FlatFactMemory(extract=3), "extract must be"),
        (lambda: DenseMemory("minilm"), "embedder must be"),
        (lambda: BM25Memory().add(Message("a", "b", "c", phase=3)), "phase must be text"),
        (lambda: BM25Memory().add(Message("a", "b", "c", position=-1)), "position"),
        (lambda: BM25Memory().add(Message("a", "b", "c", is_noise="no")), "is_noise"),
    ],
)
def test_bad_arguments(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_messages_come_back_as_they_were():
    message = Message(
        "id", "text ☃ \ud800", "ana", "c", START.astimezone(), None, "Dev", "p", "t", True, False, "changed",
        {"label": 1}, {"changed_to": "x"}, frozenset({"bob"}), {"event": 3}, 17,
    )  # fmt: skip
    plain = Message("other", "x", "bob", timestamp=None, reply_to="not here")
    table = MessageTable()
    table.extend([message, plain])
    assert [table.message(row) for row in range(2)] == [message, plain]
    naive = Message("n", "x", "bob", timestamp=datetime(2025, 1, 1, 3, 4, 5, 6))
    lone = MessageTable()
    lone.extend([naive])
    assert lone.message(0) == naive


def test_a_reply_may_come_before_what_it_answers():
    table = MessageTable()
    table.extend([Message("b", "x", "ana", reply_to="a"), Message("self", "x", "ana", reply_to="self")])
    assert table.parents.tolist() == [-1, -1]
    table.extend([Message("a", "x", "bob")])
    assert table.parents.tolist() == [2, -1, -1]
    assert table.message(0).reply_to == "a"


@given(st.lists(st.text(max_size=8), max_size=90))
def test_columns_give_back_what_they_took(texts):
    column = Texts()
    column.extend(texts[:5])
    column.extend(texts[5:])
    assert [column[i] for i in range(len(texts))] == texts
    numbers = Column(np.int64)
    for i in range(0, len(texts), 7):
        numbers.extend([len(text) for text in texts[i : i + 7]])
    assert numbers.values.tolist() == [len(text) for text in texts]


def test_keys_find_all_rows_in_both_parts():
    keys, r = Keys(), np.random.default_rng(0)
    values = r.integers(0, 9_000, 40_000)
    for start in range(0, 40_000, 9_000):
        keys.extend(values[start : start + 9_000])
    for key in (0, 1, 17, 8_999, 10_000):
        assert sorted(keys.rows(key)) == np.flatnonzero(values == key).tolist()


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=30),
    st.lists(st.sampled_from("abcdef"), max_size=5),
)
def test_remembered_postings_score_as_rank_bm25(documents, query):
    if not any(documents):
        return
    index, plain = FastIndex(), BM25Index()
    index.add_many(documents[:3])
    index.scores(query)
    index.add_many(documents[3:])
    plain.add_many(documents)
    assert index.scores(query).tolist() == plain.scores(query).tolist()
    assert np.allclose(index.scores(query), rank_bm25.BM25Okapi(documents).get_scores(query), atol=1e-12)
    assert index.postings("a").tolist() == [i for i, words in enumerate(documents) if "a" in words]
    with pytest.raises(InputError, match="string"):
        index.scores("abc")


def test_phrases_are_found_as_neighbours_and_as_documents_come():
    texts = ["the finance ops team", "ops finance", "Finance, Ops! finance ops", "finance ops2", ""]
    index = PhraseIndex()
    for count in (2, 5):
        index.add_many(tokenize(text) for text in texts[len(index) : count])
        documents, counts = index.phrase("finance ops", texts.__getitem__)
        assert dict(zip(documents.tolist(), counts.tolist(), strict=True)) == ({0: 1} if count == 2 else {0: 1, 2: 2})
    rows, scores = index.group_scores(("finance ops", "money team"), texts.__getitem__, None)
    assert rows.tolist() == [0, 2]
    assert scores[1] > scores[0] > 0
    assert len(index.group_scores(("finance ops",), texts.__getitem__, np.zeros(5, bool))[0]) == 0


def test_dense_memory_refuses_vectors_that_change_width():
    widths = iter([3, 3, 4])
    memory = DenseMemory(lambda texts: np.ones((len(texts), next(widths))))
    assert DenseMemory(HashingEmbedder()).search("x") == []
    memory.add(Message("blank", " ", "ana"))
    memory.add(Message("a", "x", "ana"))
    assert memory.search("x")[0].score == pytest.approx(1)
    with pytest.raises(InputError, match="width 4"):
        memory.add(Message("b", "x", "ana"))
    assert len(memory) == 2


def test_a_dense_memory_of_blanks_finds_nothing_but_answers():
    memory = DenseMemory(HashingEmbedder())
    memory.add(Message("blank", " ", "ana"))
    assert memory.search("x") == []


def test_bm25_memory_is_rank_bm25():
    messages = chat(60, hidden=0)
    hits = filled(BM25Memory, messages).search("alpha gamma instead", k=60)
    peer = rank_bm25.BM25Okapi([tokenize(message.content) for message in messages]).get_scores(
        ["alpha", "gamma", "instead"]
    )
    assert {hit.id: round(hit.score, 12) for hit in hits} == {
        m.id: round(s, 12) for m, s in zip(messages, peer, strict=True)
    }


def test_hybrid_scores_are_reciprocal_ranks():
    messages = [Message("a", "alpha", "ana"), Message("b", "beta", "ana"), Message("c", "gamma alpha", "ana")]
    hits = filled(lambda: HybridMemory(BM25Memory(), BM25Memory(), rrf_k=60), messages).search("beta", k=2)
    assert hits[0].id == "b"
    assert hits[0].score == pytest.approx(2 / 61)
    assert hits[1].score == pytest.approx(2 / 62)
    assert hits[1].why == {"ranks": {"BM25Memory 0": 2, "BM25Memory 1": 2}}


@given(st.integers(1, 40), st.integers(0, 99), st.integers(1, 6), st.integers(1, 9))
def test_hybrid_is_the_fusion_of_what_its_memories_find(n, seed, k, depth):
    messages = chat(n, seed)
    hybrid = filled(
        lambda: HybridMemory(BM25Memory(), DenseMemory(HashingEmbedder(16)), rrf_k=7, depth=depth), messages
    )
    for asker in (None, messages[0].author):
        found = [memory.search("alpha beta", asker=asker, k=max(k, depth)) for memory in hybrid.memories]
        peer = rrf([[hit.id for hit in hits] for hits in found], k=7)
        best = sorted(peer, key=lambda id_: (-peer[id_], hybrid.memories[0].tie_key(id_)))[:k]
        shown = {hit.id: hit.message for hits in found for hit in hits}
        hits = hybrid.search("alpha beta", asker=asker, k=k)
        assert [(hit.id, hit.score, hit.message) for hit in hits] == [(one, peer[one], shown[one]) for one in best]
