"""Sentence encoders: MiniLM as its authors pool it, token states, what is too long, and hashed n-grams."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.models import HashingEmbedder, TokenStates, TransformersEmbedder, minilm
from steelyard.models.embedders import unit_rows

TEXTS = [
    "A man is eating food.",
    "A man eats a piece of bread.",
    "The girl carries a baby through the park while it rains, and nobody minds.",
    "Cheetahs run.",
]


@pytest.fixture(scope="module")
def parts():
    torch.set_num_threads(1)
    return minilm.load(), minilm.tokenizer()


@pytest.fixture(scope="module")
def encoder(parts):
    return TransformersEmbedder(*parts)


@pytest.fixture(scope="module")
def short(parts):
    """One that takes eight tokens: the start, six of the text, the end."""
    return lambda **options: TransformersEmbedder(*parts, max_length=8, **options)


def test_it_pools_as_the_package_says(encoder, parts):
    found = encoder.encode(TEXTS, batch_size=3)
    expected = minilm.embed(parts[0], *minilm.tokenise(TEXTS)).numpy()
    assert found.shape == (4, encoder.width) == (4, 384)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert (found @ found.T)[0].argsort()[-2] == 1  # bread is closest to food


def test_no_texts_and_an_empty_text(encoder):
    assert encoder.encode([]).shape == (0, 384)
    assert encoder.encode_tokens([]) == []
    assert np.linalg.norm(encoder.encode(["", "a"])[0]) == pytest.approx(1)


def test_padding_and_order_change_nothing(encoder):
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    for batch_size in (1, 2, 64):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size), alone, atol=2e-6)


def test_states_of_tokens(encoder):
    (one,) = encoder.encode_tokens(["The sky is blue. It rains."])
    assert isinstance(one, TokenStates)
    words = ["The sky is blue. It rains."[start:end] for start, end in one.offsets.tolist()]
    assert words == ["", "The", "sky", "is", "blue", ".", "It", "rains", ".", ""]
    assert (one.states.shape, one.states.dtype) == ((10, 384), np.float32)
    whole = unit_rows(one.states.mean(0, keepdims=True))
    np.testing.assert_allclose(whole, encoder.encode(["The sky is blue. It rains."]), atol=2e-6)


def test_late_chunking(encoder):
    """The mean over the tokens of a span, each encoded with the whole text around it."""
    text, start = "The sky is blue. It rains.", 17
    one = encoder.encode_tokens([text])[0]
    np.testing.assert_allclose(one.span(start, len(text)), unit_rows(one.states[6:9].mean(0)[None])[0], atol=1e-6)
    assert one.span(start, len(text)) @ encoder.encode(["It rains."])[0] < 0.999  # the sky is in it as well
    np.testing.assert_array_equal(one.span(18, 19), one.span(17, 19))  # part of a word is the word
    for empty in ((3, 4), (40, 50), (5, 5)):
        with pytest.raises(InputError, match="no token of the text lies in the characters"):
            one.span(*empty)


def test_a_text_that_is_too_long_is_cut_with_one_warning(short):
    one = short()
    long = "one two three four five six seven eight nine"
    with pytest.warns(UserWarning, match=r"texts\[1\] has more than 8 tokens") as caught:
        found = one.encode(["short", long])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = one.encode([long])
        exact = one.encode(["one two three four five six"])  # eight tokens with the two special ones: not too long
    np.testing.assert_allclose(found[1], exact[0], atol=2e-6)
    np.testing.assert_allclose(found[1], again[0], atol=2e-6)


def test_the_warning_of_token_states_names_the_caller(short):
    with pytest.warns(UserWarning, match="more than 8 tokens") as caught:
        short().encode_tokens(["one two three four five six seven"])
    assert caught[0].filename == __file__


def test_or_refused(short):
    with pytest.raises(InputError, match=r"texts\[1\] has more than 8 tokens; shorten it"):
        short(truncate="error").encode(["a", "one two three four five six seven"])


@pytest.mark.filterwarnings("ignore:texts")
def test_either_end_can_be_kept(short):
    one, text = short(), "one two three four five six seven eight nine"
    kept = {
        keep: [text[start:end] for start, end in one.encode_tokens([text], keep=keep)[0].offsets.tolist()]
        for keep in ("start", "end")
    }
    assert kept["start"] == ["", "one", "two", "three", "four", "five", "six", ""]
    assert kept["end"] == ["", "four", "five", "six", "seven", "eight", "nine", ""]


def test_threads_share_one(encoder):
    expected = encoder.encode(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(encoder.encode, [TEXTS] * 8):
            np.testing.assert_allclose(found, expected, atol=2e-6)
    assert threading.active_count() >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 513}, "max_length must be from 3 to the encoder's 512 positions, got 513"),
        ({"max_length": 2}, "max_length must be from 3"),
        ({"truncate": "yes"}, "truncate must be 'warn' or 'error'"),
        ({"tokenizer": object()}, "tokenizer must be a fast tokenizer"),
    ],
)
def test_settings_out_of_range(parts, options, message):
    with pytest.raises(InputError, match=message):
        TransformersEmbedder(**{"model": parts[0], "tokenizer": parts[1], **options})


@pytest.mark.parametrize("make", ["encoder", "hashing"])
def test_what_are_no_texts(encoder, make):
    one = encoder if make == "encoder" else HashingEmbedder()
    with pytest.raises(InputError, match=r"write \[text\]"):
        one.encode("one string")
    with pytest.raises(InputError, match=r"texts\[1\] must be text, got int"):
        one.encode(["a", 3])
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        one.encode(["a"], batch_size=0)


def test_which_end():
    one = object.__new__(TransformersEmbedder)
    one._tokenizers = {"start": None, "end": None}
    with pytest.raises(InputError, match="keep must be 'start' or 'end'"):
        one.encode_tokens(["a"], keep="middle")


def test_a_text_without_tokens(parts):
    """A tokenizer without special tokens has none for an empty text."""
    one = TransformersEmbedder(*parts)
    one._tokenise = lambda texts, keep, limit: [type("C", (), {"ids": [], "offsets": []})() for _ in texts]
    with pytest.raises(InputError, match=r"texts\[0\] has no tokens; leave it out"):
        one.encode([""])


# --- hashed n-grams --------------------------------------------------------------------------------------------------

some_text = st.text(max_size=80)


@given(st.lists(some_text, max_size=6), st.integers(8, 600))
def test_unit_length_whatever_the_text(texts, dim):
    found = HashingEmbedder(dim).encode(texts)
    assert found.shape == (len(texts), dim)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.ones(len(texts)), atol=1e-5)


@given(some_text, some_text)
def test_a_text_does_not_depend_on_its_neighbours(one, other):
    encoder = HashingEmbedder()
    np.testing.assert_array_equal(encoder.encode([one, other])[0], encoder.encode([one])[0])


@given(st.lists(st.sampled_from(["Bread", "and", "BUTTER", "früh", "x"]), min_size=1, max_size=8))
def test_case_and_white_space_do_not_count(words):
    encoder = HashingEmbedder()
    one, other = encoder.encode([" ".join(words), "\n\t " + "  ".join(word.swapcase() for word in words)])
    np.testing.assert_array_equal(one, other)


def test_shared_words_are_close():
    bake, bread, physics = HashingEmbedder().encode(
        ["how do I bake bread", "how do I bake a bread?", "quantum field theory"]
    )
    assert bake @ bread > 0.6 > 0.3 > abs(bake @ physics)


def test_texts_that_share_nothing_are_orthogonal_on_average():
    """The sign comes from the hash: the mean of the products of disjoint random words is 0 within its error."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), 12)) for _ in range(400)]
    found = HashingEmbedder(64).encode(words)
    products = (found @ found.T)[np.triu_indices(400, 1)]
    assert abs(products.mean()) < 0.01
    assert products.std() == pytest.approx(64**-0.5, rel=0.2)


@pytest.mark.parametrize("dim", [7, (1 << 20) + 1])
def test_dimensions(dim):
    with pytest.raises(InputError, match="dim must be from 8"):
        HashingEmbedder(dim)
