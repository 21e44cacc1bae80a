"""Encoders of any origin, what is refused of them, and the cache of their vectors."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.embedding import EmbeddingCache, as_encoder
from steelyard.errors import InputError, StoreError
from steelyard.models.embedders import HashingEmbedder


def lengths(texts):
    return [[len(text), 1.0] for text in texts]


def test_an_embedder_and_a_function_give_unit_rows():
    for source in (HashingEmbedder(32), lengths):
        rows = as_encoder(source)(["one", "three"])
        assert rows.dtype == np.float32
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert as_encoder(lengths)([]).shape == (0, 0)
    assert as_encoder(lambda texts: [[0.0, 0.0]])(["a"]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ([[1.0, 2.0]], "(2, width), and gave shape (1, 2): texts[1] ('two\\x1b')"),
        ([1.0, 2.0], "texts[0] ('one')"),
        ([[1.0], [2.0], [3.0]], "gave shape (3, 1)"),
        ([[], []], "gave shape (2, 0)"),
        (None, "texts[0] ('one')"),
        ([[1.0, 2.0], [1.0]], "texts[1] ('two\\x1b')"),
        ([[1.0], ["x"]], "texts[1]"),
        (["x", "y"], "texts[0] ('one')"),
        ({"a": 1}, "texts[0] ('one')"),
        ([[1.0], [np.nan]], "not finite for texts[1]"),
        ([[np.inf], [np.nan]], "not finite for texts[0]"),
        ([[1e31], [1.0]], "not finite for texts[0]"),
    ],
)
def test_the_first_text_at_fault_is_named(answer, part):
    with pytest.raises(InputError) as caught:
        as_encoder(lambda texts: answer)(["one", "two\x1b"])
    assert part in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_is_no_embedder():
    with pytest.raises(InputError, match="embedder must be an Embedder"):
        as_encoder(3)
    with pytest.raises(InputError, match="name must tell"):
        EmbeddingCache(lengths, name=" ")


@pytest.fixture(params=["memory", "file"])
def path(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "vectors.db"


def test_texts_are_encoded_once(path):
    asked = []

    def encoder(texts):
        asked.extend(texts)
        return lengths(texts)

    cache = EmbeddingCache(encoder, path, name="lengths")
    first = cache(["a", "bb", "a"])
    assert cache.encode(["bb", "ccc"]).tolist()[0] == first.tolist()[1]
    assert asked == ["a", "bb", "ccc"]
    assert np.array_equal(first, as_encoder(lengths)(["a", "bb", "a"]))
    assert cache([]).shape == (0, 0)


def test_a_file_serves_the_next_process_and_names_keep_encoders_apart(tmp_path):
    path = tmp_path / "vectors.db"
    first = EmbeddingCache(lengths, path, name="lengths")(["a", "bb"])

    def fail(texts):
        raise AssertionError(texts)

    assert np.array_equal(EmbeddingCache(fail, path, name="lengths")(["bb", "a"]), first[::-1])
    with pytest.raises(AssertionError):
        EmbeddingCache(fail, path, name="other")(["a"])


def test_damaged_entries_are_encoded_again_and_other_widths_are_refused(tmp_path):
    path = tmp_path / "vectors.db"
    cache = EmbeddingCache(lengths, path, name="lengths")
    whole = cache(["a", "bb", "ccc"])
    with sqlite3.connect(path) as connection:
        (keys,) = zip(*connection.execute("SELECT key FROM vectors"), strict=True)
        connection.execute("UPDATE vectors SET vector = ? WHERE key = ?", (b"123", keys[0]))
        connection.execute(
            "UPDATE vectors SET vector = ? WHERE key = ?", (np.full(2, np.nan, "<f4").tobytes(), keys[1])
        )
    assert np.array_equal(cache(["a", "bb", "ccc"]), whole)
    with pytest.raises(InputError, match="another width under the name 'lengths'"):
        EmbeddingCache(lambda texts: [[1.0, 2.0, 3.0]] * len(texts), path, name="lengths")(["a", "new"])


def test_a_file_that_is_no_cache(tmp_path):
    path = tmp_path / "other.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        EmbeddingCache(lengths, path, name="x")


@given(st.lists(st.text(max_size=10), max_size=8), st.lists(st.text(max_size=10), max_size=8))
def test_a_cache_changes_nothing(first, second):
    cache = EmbeddingCache(HashingEmbedder(16), name="hash")
    for texts in (first, second):
        assert np.array_equal(cache(texts), as_encoder(HashingEmbedder(16))(texts))
