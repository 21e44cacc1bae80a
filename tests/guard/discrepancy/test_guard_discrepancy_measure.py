"""Areas under the curve: ties, lengths, pooling, the probe; against scikit-learn and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from steelyard.errors import InputError
from steelyard.guard.discrepancy.measure import auroc, auroc_within_lengths, pooled_auroc, probe_scores

SCORES = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({wrong for _, wrong in rows}) == 2
)


@given(SCORES)
def test_the_area_is_scikit_learns_also_with_ties(rows):
    scores, wrong = (np.array(column) for column in zip(*rows, strict=True))
    assert auroc(scores, wrong) == pytest.approx(roc_auc_score(wrong, scores), abs=1e-12)


@given(SCORES)
def test_turning_the_scores_round_turns_the_area_round(rows):
    scores, wrong = (np.array(column) for column in zip(*rows, strict=True))
    assert auroc(-scores, wrong) == pytest.approx(1 - auroc(scores, wrong), abs=1e-12)


@given(SCORES)
def test_only_the_order_of_scores_counts(rows):
    scores, wrong = (np.array(column) for column in zip(*rows, strict=True))
    assert auroc(np.exp(scores.astype(float)) + 3, wrong) == auroc(scores, wrong)


@given(SCORES, st.integers(1, 50))
def test_answers_of_one_length_are_all_compared(rows, length):
    scores, wrong = (np.array(column) for column in zip(*rows, strict=True))
    assert auroc_within_lengths(scores, wrong, np.full(len(scores), length)) == auroc(scores, wrong)


@given(SCORES)
def test_a_score_by_length_alone_is_near_chance_within_lengths(rows):
    """Lengths 1, 2, 4, …: no two different ones are alike, so only ties are left."""
    power, wrong = (np.array(column) for column in zip(*rows, strict=True))
    lengths = 2.0 ** (power + 4)
    assert auroc_within_lengths(lengths, wrong, lengths) == 0.5


def test_a_constant_score_is_chance():
    assert auroc(np.zeros(5), [True, False, True, False, False]) == 0.5


def test_like_lengths_differ_by_a_quarter_at_most():
    wrong = np.array([True, False, False])
    assert auroc_within_lengths([1.0, 0.0, 2.0], wrong, [4, 5, 6]) == 1.0  # 6 tokens are half as many again
    assert auroc_within_lengths([1.0, 0.0, 2.0], wrong, [4, 8, 9]) == 0.5  # nothing is alike


def test_pooled_interval_holds_the_area_and_keeps_questions_together():
    draws = np.random.default_rng(0)
    wrong = np.tile([True, False], 60)
    scores = draws.normal(size=120) + wrong
    found = pooled_auroc(scores, wrong, np.repeat(np.arange(60), 2), np.random.default_rng(1), draws=400)
    assert found.low < found.auroc < found.high
    assert (found.answers, found.auroc) == (120, auroc(scores, wrong))
    again = pooled_auroc(scores, wrong, np.repeat(np.arange(60), 2), np.random.default_rng(1), draws=400)
    assert again == found
    # The same answers six times over say no more than once, as long as they count as one question's.
    times = pooled_auroc(
        np.tile(scores, 6), np.tile(wrong, 6), np.tile(np.repeat(np.arange(60), 2), 6), np.random.default_rng(1), 400
    )
    assert times.high - times.low == pytest.approx(found.high - found.low, rel=0.2)


def test_the_probe_finds_a_direction_and_never_learns_from_the_question_it_is_asked_about():
    draws = np.random.default_rng(0)
    wrong = np.tile([True, False], 20)
    states = draws.normal(size=(40, 6))
    states[:, 2] += 4 * wrong
    assert auroc(probe_scores(states, wrong, np.arange(40)), wrong) > 0.95
    noise = np.repeat(draws.normal(size=(20, 200)), 2, axis=0)  # two equal rows a question, one of each class
    assert auroc(probe_scores(noise, wrong, np.repeat(np.arange(20), 2)), wrong) == 0.5


def test_the_probe_without_two_answers_of_a_class_has_no_opinion():
    scores = probe_scores(np.ones((4, 2)), [True, False, False, False], np.arange(4))
    assert (scores == 0).all()


def test_the_probe_leaves_out_folds_that_have_one_class_only():
    states = np.random.default_rng(0).normal(size=(6, 3))
    wrong = np.array([True, True, True, False, False, False])
    assert (probe_scores(states, wrong, [0, 0, 0, 1, 1, 1]) == 0).all()


@pytest.mark.parametrize(
    ("scores", "wrong", "says"),
    [
        ([1.0, 2.0], [True], "one length"),
        ([[1.0, 2.0]], [[True, False]], "one length"),
        ([1.0, np.nan], [True, False], "nan at index 1"),
        ([1.0, 2.0], [True, True], "both classes"),
        ([1.0, 2.0], [False, False], "both classes"),
        ([1.0, 2.0], [0, 2], "True \\(hallucinated\\) or False"),
        ([1.0, 2.0], ["a", "b"], "True \\(hallucinated\\) or False"),
    ],
)
def test_what_has_no_area(scores, wrong, says):
    with pytest.raises(InputError, match=says):
        auroc(scores, wrong)


def test_lengths_and_questions_must_fit():
    with pytest.raises(InputError, match="lengths must hold"):
        auroc_within_lengths([1.0, 2.0], [True, False], [1])
    with pytest.raises(InputError, match="lengths must hold"):
        auroc_within_lengths([1.0, 2.0], [True, False], [0, 1])
    with pytest.raises(InputError, match="questions must hold"):
        pooled_auroc([1.0, 2.0], [True, False], [1], np.random.default_rng(0))
