"""Okapi BM25 against rank_bm25, on random collections and on real chat; the index grows as it likes."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from steelyard import data
from steelyard.agents.bm25 import BM25Index, okapi_bm25, tokenize
from steelyard.data.irc import irc_message
from steelyard.errors import InputError

words = st.sampled_from([f"w{i}" for i in range(12)])
documents = st.lists(st.lists(words, max_size=7), min_size=1, max_size=14).filter(any)
queries = st.lists(words | st.just("never seen"), max_size=8)


def peer(docs, query, **parameters):
    return BM25Okapi(docs, **parameters).get_scores(query)


@given(documents, queries)
def test_equals_rank_bm25(docs, query):
    np.testing.assert_allclose(okapi_bm25(docs, query), peer(docs, query), rtol=0, atol=1e-9)


@given(documents, queries, st.floats(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_equals_rank_bm25_for_other_parameters(docs, query, k1, b, epsilon):
    if k1 == 0:
        k1 = 0.5  # rank_bm25 divides 0 by 0 there
    expected = peer(docs, query, k1=k1, b=b, epsilon=epsilon)
    np.testing.assert_allclose(okapi_bm25(docs, query, k1, b, epsilon), expected, rtol=0, atol=1e-9)


@given(documents, queries, st.integers(1, 5), st.booleans())
def test_growing_in_pieces_changes_nothing(docs, query, step, search_between):
    index = BM25Index()
    for start in range(0, len(docs), step):
        index.add_many(docs[start : start + step])
        if search_between:
            index.scores(query)
    assert len(index) == len(docs)
    np.testing.assert_array_equal(index.scores(query), okapi_bm25(docs, query))


@given(documents, queries, st.integers(1, 20), st.randoms(use_true_random=False))
def test_top_is_the_sorted_head_with_ties_by_order(docs, query, k, random):
    index = BM25Index()
    index.add_many(docs)
    order = np.array(random.sample(range(len(docs)), len(docs)))
    allowed = np.array([random.random() < 0.6 for _ in docs])
    scores = index.scores(query)
    expected = sorted(np.flatnonzero(allowed).tolist(), key=lambda i: (-scores[i], order[i]))[:k]
    found, values = index.top(query, k, allowed=allowed, order=order)
    assert found.tolist() == expected
    np.testing.assert_array_equal(values, scores[expected])


def test_by_hand():
    docs = [["cat", "sat"], ["dog"], ["dog", "ran", "far"], []]
    # N = 4, avgdl = 6/4; "cat" lies in one document: idf = ln(3.5 / 1.5).
    expected = np.log(3.5 / 1.5) * 1 * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / 1.5))
    np.testing.assert_allclose(okapi_bm25(docs, ["cat"]), [expected, 0, 0, 0], atol=1e-12)


def test_details_that_parity_hangs_on():
    half = [["a"], ["b"]]  # each term lies in half of the documents: idf exactly 0, not replaced
    assert okapi_bm25(half, ["a"]).tolist() == [0, 0]
    tiny = [["a", "b"], ["a", "b"], ["a", "b"], ["c"]]  # a and b are negative, the average is too, and used as it is
    average = (2 * np.log(1.5 / 3.5) + np.log(3.5 / 1.5)) / 3
    assert average < 0
    assert okapi_bm25(tiny, ["a"])[0] < 0
    np.testing.assert_allclose(okapi_bm25(tiny, ["a"]), peer(tiny, ["a"]), atol=1e-12)
    docs = [["a", "b"], ["c"], ["d"], ["e"]]
    np.testing.assert_allclose(okapi_bm25(docs, ["a", "a"]), 2 * okapi_bm25(docs, ["a"]))
    assert okapi_bm25(docs, ["unknown"]).tolist() == [0] * 4
    assert okapi_bm25(docs, []).tolist() == [0] * 4
    longer = [*docs, [], []]  # empty documents count for avgdl and N
    np.testing.assert_allclose(okapi_bm25(longer, ["a"]), peer(longer, ["a"]), atol=1e-12)


def test_empty_collections():
    assert okapi_bm25([], ["a"]).shape == (0,)
    assert okapi_bm25([[], []], ["a"]).tolist() == [0, 0]
    found, scores = BM25Index().top(["a"], 3)
    assert len(found) == len(scores) == 0
    index = BM25Index()
    index.add_many([[], ["a"], []])
    index.add_many([[]])
    assert index.scores(["a"]).argmax() == 1


def test_k1_zero_only_asks_whether_a_term_is_there():
    docs = [["a", "a", "b"], ["a"], ["c"], ["d"], ["e"]]
    scores = okapi_bm25(docs, ["a"], k1=0)
    assert scores[0] == scores[1] > 0


def test_long_repetitions_do_not_overflow():
    docs = [["a"] * 70_000, ["b"], ["c"]]
    np.testing.assert_allclose(okapi_bm25(docs, ["a"]), peer(docs, ["a"]), atol=1e-9)


def test_real_chat(monkeypatch):
    if not os.environ.get("STEELYARD_DATA_MIRROR"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs a mirror folder: set STEELYARD_DATA_MIRROR")
    said = [found[1] for log in data.irc_logs("test") for line in log.lines if (found := irc_message(line))]
    docs = [tokenize(text) for text in said]
    assert len(docs) > 10_000
    index, reference = BM25Index(), BM25Okapi(docs)
    index.add_many(docs)
    for query in docs[:: len(docs) // 40]:
        np.testing.assert_allclose(index.scores(query), reference.get_scores(query), rtol=0, atol=1e-9)


def test_tokens():
    assert tokenize("Hello, WORLD_2: it's 3.5!") == ["hello", "world_2", "it", "s", "3", "5"]
    assert tokenize("Caf\u00e9 \u212aelvin") == ["caf", "elvin"]  # matched first: the Kelvin sign is no ASCII letter
    assert tokenize("") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k1": -1}, "k1 must be"),
        ({"k1": float("nan")}, "k1 must be"),
        ({"b": 1.5}, "b must lie"),
        ({"epsilon": float("inf")}, "epsilon must be"),
    ],
)
def test_parameters_out_of_range(arguments, message):
    with pytest.raises(InputError, match=message):
        BM25Index(**arguments)


def test_strings_are_not_tokens():
    index = BM25Index()
    with pytest.raises(InputError, match="document 1 is a string"):
        index.add_many([["a"], "text"])
    with pytest.raises(InputError, match="query is a string"):
        index.scores("text")
    with pytest.raises(InputError, match="k must be at least 1"):
        index.top(["a"], 0)
    with pytest.raises(InputError, match="order has shape"):
        index.top(["a"], 1, order=np.arange(3))
