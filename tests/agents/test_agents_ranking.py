"""Fusion, cuts, recall and intervals against closed forms, scipy and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from steelyard.agents.ranking import (
    binomial_interval,
    chance_recall,
    paired_bootstrap,
    recall_at_k,
    rrf,
    top_k,
)
from steelyard.errors import InputError

scores = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30)


@given(scores, st.integers(1, 40), st.randoms(use_true_random=False))
def test_top_k_is_a_sort(values, k, random):
    array = np.array(values)
    order = np.array(random.sample(range(len(values)), len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], order[i]))[:k]
    assert top_k(array, k, order).tolist() == expected
    assert top_k(array, k).tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


@given(scores, st.integers(1, 10), st.randoms(use_true_random=False))
def test_top_k_does_not_depend_on_the_order_of_arrival(values, k, random):
    order = np.array(random.sample(range(len(values)), len(values)))
    shuffle = np.array(random.sample(range(len(values)), len(values)))
    found = shuffle[top_k(np.array(values)[shuffle], k, order[shuffle])]
    assert found.tolist() == top_k(np.array(values), k, order).tolist()


def test_top_k_refuses():
    with pytest.raises(InputError, match="k must be at least 1"):
        top_k(np.zeros(2), 0)
    with pytest.raises(InputError, match="allowed has shape"):
        top_k(np.zeros(2), 1, allowed=np.ones(3, dtype=bool))


def test_rrf():
    fused = rrf([["a", "b"], ["b", "c"]])
    assert fused == pytest.approx({"a": 1 / 61, "b": 1 / 61 + 1 / 62, "c": 1 / 62})
    assert rrf([["x"]], k=0) == {"x": 1.0}
    with pytest.raises(InputError, match="ranking 1 names an id twice"):
        rrf([["a"], ["b", "b"]])
    with pytest.raises(InputError, match="above -1"):
        rrf([["a"]], k=-1)


@given(st.lists(st.permutations(range(5)), min_size=2, max_size=5))
def test_rrf_does_not_mind_the_order_of_the_rankings(rankings):
    assert rrf(rankings) == rrf(rankings[::-1])


def test_recall():
    assert recall_at_k({1, 2, 3}, [3, 9, 1, 2], 2) == 0.5
    assert recall_at_k([1], [2, 1], 2) == 1
    with pytest.raises(InputError, match="gold is empty"):
        recall_at_k([], [1], 1)
    with pytest.raises(InputError, match="k must be"):
        recall_at_k([1], [1], 0)


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 10))
def test_chance_recall_is_the_mean_over_all_places(gold, others, k):
    n = gold + others
    rng = np.random.default_rng(gold * 100 + others * 10 + k)
    mean = np.mean([recall_at_k(range(gold), rng.permutation(n).tolist(), k) for _ in range(800)])
    assert chance_recall(gold, n, k) == pytest.approx(mean, abs=0.08)


def test_chance_recall_by_hand():
    assert chance_recall(2, 100, 10) == pytest.approx(0.1)
    assert chance_recall(20, 100, 10) == pytest.approx(0.2)
    with pytest.raises(InputError, match="1 <= gold"):
        chance_recall(0, 5, 1)


@pytest.mark.parametrize(("correct", "n"), [(0, 15), (15, 15), (27, 107), (309, 715), (1, 2)])
def test_binomial_interval_is_clopper_and_pearson(correct, n):
    expected = binomtest(correct, n).proportion_ci(0.95, method="exact")
    assert binomial_interval(correct, n) == pytest.approx((correct / n, expected.low, expected.high), abs=1e-9)


def test_binomial_interval_refuses():
    with pytest.raises(InputError, match="correct and n"):
        binomial_interval(3, 2)


def test_paired_bootstrap():
    a, b = [1, 1, 1, 0] * 50, [0, 1, 0, 0] * 50
    found = paired_bootstrap(a, b, seed=1)
    assert found.estimate == 0.5
    error = 1.96 * 0.5 / np.sqrt(200)
    assert (found.low, found.high) == pytest.approx((0.5 - error, 0.5 + error), abs=0.01)
    assert found == paired_bootstrap(a, b, seed=1)
    assert found == paired_bootstrap(a[::-1], b[::-1], seed=1)
    assert paired_bootstrap([1, 1], [1, 1]) == (0, 0, 0)


def test_clusters_widen_the_interval():
    a, b = [1] * 40 + [0] * 40, [0] * 80
    alone = paired_bootstrap(a, b, n=2000)
    whole = paired_bootstrap(a, b, n=2000, clusters=[i // 20 for i in range(80)])
    assert alone.estimate == whole.estimate == 0.5
    assert whole.high - whole.low > 2 * (alone.high - alone.low)
    uneven = paired_bootstrap([1, 1, 0], [0, 0, 0], n=500, clusters=["x", "x", "y"])
    assert uneven.estimate == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [1, 2]), "equally long"),
        (([], []), "equally long"),
        (([np.nan], [1]), "not finite"),
    ],
)
def test_paired_bootstrap_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        paired_bootstrap(*arguments)
    with pytest.raises(InputError, match="n must be"):
        paired_bootstrap([1], [1], n=0)
    with pytest.raises(InputError, match="clusters has 1 entries"):
        paired_bootstrap([1, 2], [1, 2], clusters=["a"])
