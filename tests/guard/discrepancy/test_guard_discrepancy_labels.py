"""Labels: ROUGE-L on cases worked by hand, normalised gold answers."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.guard.discrepancy.labels import contains_gold, label_answers, normalise, rouge_l

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=7)


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ("police kill the gunman", "police killed the gunman", 3 / 4),  # Lin 2004: common police, the, gunman
        ("the gunman kill police", "police killed the gunman", 2 / 4),  # common the, gunman
        ("Paris.", "paris", 1.0),
        ("The capital is Paris", "Paris", 2 / 5),  # 1 of 4 and 1 of 1
        ("x y z", "a b c", 0.0),
        ("", "a", 0.0),
        ("a b a c", "a a c", 6 / 7),
        ("Zürich-West", "zürich west", 1.0),
    ],
)
def test_rouge_l_by_hand(candidate, reference, expected):
    assert rouge_l(candidate, reference) == pytest.approx(expected)


def common(a, b):
    @functools.cache
    def at(i, j):
        if i == len(a) or j == len(b):
            return 0
        return 1 + at(i + 1, j + 1) if a[i] == b[j] else max(at(i + 1, j), at(i, j + 1))

    return at(0, 0)


@given(WORDS, WORDS)
def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence(a, b):
    expected = 2 * common(tuple(a), tuple(b)) / (len(a) + len(b)) if a and b else 0.0
    assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(expected)
    assert rouge_l(" ".join(b), " ".join(a)) == pytest.approx(expected)


@given(WORDS)
def test_a_text_with_words_is_its_own_best_match(a):
    text = " ".join(a)
    assert rouge_l(text, text.upper()) == (1.0 if a else 0.0)


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(once) == once
    assert once == " ".join(once.split())


def test_gold_answers():
    assert normalise("The  U.S.A., an ally!") == "usa ally"
    assert contains_gold("It was built in 1931, they say.", ["1931"])
    assert contains_gold("The Eiffel-Tower", ["eiffeltower"])
    assert not contains_gold("It was built in 1931.", ["193", "1"])
    assert not contains_gold("anything", ["the", "!"])
    assert contains_gold("the red harbour", ["blue", "a red  Harbour"])


def test_labels_are_both_rules():
    found = label_answers(
        ["Paris", "It is the city of Paris in France", "", "Rome or Milan"],
        [["Paris"], ["Paris"], ["Paris"], ["Oslo", "Rome"]],
    )
    assert found.contains.tolist() == [True, True, False, True]
    assert found.rouge_l.tolist() == [True, False, False, False]  # the last is 1/2, which is not above .5
    assert label_answers([], []).contains.shape == (0,)


@pytest.mark.parametrize(
    ("answers", "golds", "message"),
    [
        (["a"], [], "equally long"),
        (["a"], ["Paris"], r"golds\[0\] must be a list"),
        (["a", "b"], [["x"], ["the", "?"]], r"golds\[1\] holds no gold answer"),
        (["a"], [[]], r"golds\[0\] holds no gold answer"),
    ],
)
def test_bad_input(answers, golds, message):
    with pytest.raises(InputError, match=message):
        label_answers(answers, golds)
