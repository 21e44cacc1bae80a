"""The arithmetic: walks against networkx and a dense solve, coverage against brute force, scores by hand."""

from __future__ import annotations

import itertools
import math

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from steelyard.agents.goskills import core
from steelyard.errors import InputError


def random_graph(seed, size=60, share=0.06):
    rng = np.random.default_rng(seed)
    weights = rng.random((size, size)) * (rng.random((size, size)) < share)
    np.fill_diagonal(weights, 0.0)
    weights[rng.choice(size, 5, replace=False)] = 0.0  # dangling rows
    return weights, rng.random(size) * (rng.random(size) < 0.3) + np.eye(size)[0]


def with_loops(weights):
    looped = weights.copy()
    looped[np.diag_indices(len(weights))] = (weights.sum(axis=1) == 0).astype(float)
    return looped


@pytest.mark.parametrize("seed", range(5))
def test_pagerank_is_that_of_networkx_once_dangling_rows_have_loops(seed):
    weights, restart = random_graph(seed)
    ours = core.personalised_pagerank(sparse.csr_array(weights), restart, iters=1000, tol=1e-14)
    graph = networkx.from_numpy_array(with_loops(weights), create_using=networkx.DiGraph)
    theirs = networkx.pagerank(
        graph,
        alpha=0.8,
        personalization=dict(enumerate(restart / restart.sum())),
        weight="weight",
        tol=1e-15,
        max_iter=2000,
    )
    assert np.abs(ours - np.array([theirs[node] for node in range(len(ours))])).max() < 1e-9


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.05, 1.0))
def test_pagerank_is_the_fixed_point_and_keeps_the_sum(seed, size, alpha):
    rng = np.random.default_rng(seed)
    weights = rng.random((size, size)) * (rng.random((size, size)) < 0.4)
    restart = rng.random(size) + 1e-3
    ours = core.personalised_pagerank(weights, restart, alpha=alpha, iters=2000, tol=1e-15)
    looped = with_loops(weights) if (weights.sum(axis=1) == 0).any() else weights
    looped = np.where((weights.sum(axis=1) == 0)[:, None], np.eye(size), weights)
    step = looped / looped.sum(axis=1, keepdims=True)
    solved = alpha * np.linalg.solve(np.eye(size) - (1 - alpha) * step.T, restart / restart.sum())
    assert np.abs(ours - solved).max() < 1e-9
    assert math.isclose(ours.sum(), 1.0, abs_tol=1e-12)


def test_pagerank_after_its_default_steps_is_near():
    weights, restart = random_graph(9)
    near = core.personalised_pagerank(weights, restart)
    exact = core.personalised_pagerank(weights, restart, iters=5000, tol=0.0)
    assert np.abs(near - exact).sum() < 3e-5


@pytest.mark.parametrize(
    ("csr", "restart", "options", "part"),
    [
        (np.ones((2, 3)), [1, 1], {}, "(N, N)"),
        (np.ones((2, 2)), [1, 1, 1], {}, "(N, N)"),
        (-np.ones((2, 2)), [1, 1], {}, "csr must hold"),
        (np.full((2, 2), np.nan), [1, 1], {}, "csr must hold"),
        (np.ones((2, 2)), [0, 0], {}, "restart must hold"),
        (np.ones((2, 2)), [1, -1], {}, "restart must hold"),
        (np.ones((2, 2)), [1, np.inf], {}, "restart must hold"),
        (np.ones((2, 2)), [1, 1], {"alpha": 0}, "alpha"),
        (np.ones((2, 2)), [1, 1], {"iters": 0}, "iters"),
    ],
)
def test_pagerank_refuses(csr, restart, options, part):
    with pytest.raises(InputError) as caught:
        core.personalised_pagerank(csr, restart, **options)
    assert part in str(caught.value)


tables = st.integers(1, 7).flatmap(
    lambda skills: st.integers(1, 5).flatmap(
        lambda features: st.lists(
            st.lists(st.floats(0, 1), min_size=features, max_size=features), min_size=skills, max_size=skills
        )
    )
)


@given(tables, st.data())
def test_coverage_is_monotone_and_submodular(cover, data):
    skills = range(len(cover))
    small = data.draw(st.sets(st.sampled_from(skills)))
    large = small | data.draw(st.sets(st.sampled_from(skills)))
    more = data.draw(st.sampled_from(skills))
    value = {True: core.coverage(large, None, cover), False: core.coverage(small, None, cover)}
    assert value[True] >= value[False] - 1e-12
    gains = [core.coverage(one | {more}, None, cover) - core.coverage(one, None, cover) for one in (small, large)]
    assert gains[0] >= gains[1] - 1e-12


@given(tables, st.integers(1, 7))
def test_greedy_reaches_its_bound(cover, budget):
    greedy = core.coverage(core.greedy_coverage(None, cover, budget), None, cover)
    best = core.coverage(core.brute_force_coverage(None, cover, budget), None, cover)
    assert (1 - 1 / math.e) * best - 1e-12 <= greedy <= best + 1e-12


@given(tables, st.data())
def test_what_is_covered_and_what_is_owed_add_up(cover, data):
    features = range(len(cover[0]))
    selected = data.draw(st.sets(st.sampled_from(range(len(cover)))))
    req = data.draw(st.sets(st.sampled_from(features), min_size=1))
    theta = data.draw(st.floats(0.01, 1.0))
    debt = core.coverage_debt(selected, req, cover, theta)
    share = core.visible_requirement_coverage(selected, req, cover, theta)
    assert share == (1 - len(debt) / len(req), False)
    assert set(debt) <= req
    assert set(core.coverage_debt(range(len(cover)), req, cover, theta)) <= set(debt)


def test_brute_force_is_the_best_of_all_subsets_and_ties_go_by_row():
    cover = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0.5]])
    assert core.brute_force_coverage(None, cover, 2) == (0, 1)
    assert core.greedy_coverage(None, cover, 3) == [0, 1, 3]
    assert core.greedy_coverage([2], cover, 9) == [3, 0, 1, 2]
    assert core.brute_force_coverage([1, 2], cover, 2) == (1, 3)
    values = [core.coverage(rows, None, cover) for rows in itertools.combinations(range(4), 2)]
    assert max(values) == core.coverage((0, 1), None, cover) == 2.0
    with pytest.raises(InputError, match="21 skills"):
        core.brute_force_coverage(None, np.zeros((21, 1)), 2)


def test_coverage_by_hand():
    cover = [[0.2, 1.0], [0.6, 0.0]]
    assert core.coverage([], None, cover) == 0
    assert core.coverage([0, 1, 1], None, cover) == 1.6
    assert core.coverage([0, 1], [0], cover) == 0.6
    assert core.coverage_debt([0], None, cover) == [0]
    assert core.coverage_debt([1], [0], cover, theta=0.6) == []
    assert core.visible_requirement_coverage([0], None, cover) == (0.5, False)
    assert core.visible_requirement_coverage([0], [], cover) == (1.0, True)
    assert core.visible_requirement_coverage([], None, np.zeros((2, 0))) == (1.0, True)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: core.coverage([2], None, [[0.1], [0.2]]), "rows of cover, 0 to 1"),
        (lambda: core.coverage([-1], None, [[0.1], [0.2]]), "rows of cover"),
        (lambda: core.coverage([0], None, [0.1]), "(skills, features)"),
        (lambda: core.coverage([0], None, [[1.1]]), "[0, 1]"),
        (lambda: core.coverage([0], None, [[np.nan]]), "[0, 1]"),
        (lambda: core.coverage_debt([0], None, [[1.0]], theta=0), "theta"),
        (lambda: core.gold_recall(["a"], ["a"], 0), "budget"),
        (lambda: core.chance_recall(3, 4, 1), "gold"),
        (lambda: core.chance_recall(3, 1, 0), "budget"),
        (lambda: core.Weights(anchor_lex=-1.0), "weights.anchor_lex"),
        (lambda: core.Weights(pay_cov=float("nan")), "weights.pay_cov"),
    ],
)
def test_bad_arguments(call, part):
    with pytest.raises(InputError) as caught:
        call()
    assert part in str(caught.value)


def test_recall_and_must_hit():
    assert core.gold_recall(["a", "b", "c"], ["a", "x", "b"], 2) == 0.5
    assert core.gold_recall(["a", "b", "c"], ["a", "x", "b"]) == pytest.approx(2 / 3)
    assert core.gold_recall(["a"], ["x", "a"], 1) == 0
    assert math.isnan(core.gold_recall([], ["a"], 1))
    assert core.must_hit(["a", "b"], ["b", "c"], 8) == 0.5
    assert core.must_hit(["a", "b"], ["b", "c"], 8, "indicator") == 0.0
    assert core.must_hit(["b"], ["b"], 8, "indicator") == 1.0
    assert math.isnan(core.must_hit([], ["b"], 8, "indicator"))


def test_the_chance_floor_is_the_mean_over_all_draws():
    draws = list(itertools.combinations("abcdef", 2))
    mean = sum(core.gold_recall({"a", "b", "c"}, draw, 2) for draw in draws) / len(draws)
    assert core.chance_recall(6, 3, 2) == pytest.approx(mean)
    assert core.chance_recall(328, 9, 8) == pytest.approx(8 * 9 / 328 / 8)
    assert core.chance_recall(2, 1, 8) == 1.0


def test_scores_are_the_weighted_sums_of_the_card():
    one = core.anchor_score(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert float(one) == pytest.approx(1.0)
    assert float(core.anchor_score(0.5, 0.4, 0.3, 0.2, 0.1, 0.6, 1.0)) == pytest.approx(
        0.15 + 0.12 + 0.06 + 0.02 + 0.005 + 0.03 - 0.30
    )
    apart = core.Weights(anchor_centrality=0.2, anchor_group_bonus=0.5)
    assert float(core.anchor_score(0.0, 0.0, 0.0, centrality=0.1, group_bonus=1.0, weights=apart)) == pytest.approx(
        0.52
    )
    assert float(core.expansion_gain(0.2, -1.0, 0.5)) == pytest.approx(0.1 - 0.3 + 0.1)
    assert core.bottleneck_gain([0.1, 0.0], [0.5, 0.5], [False, True]).tolist() == pytest.approx([0.25, 1.15])
    assert float(core.bottleneck_gain(0.1, 0.5, False, cost=2.0)) == pytest.approx(0.125)
    assert float(core.anchor_score(1.0, 0.0, 0.0, weights=core.Weights(anchor_lex=0.7))) == 0.7
