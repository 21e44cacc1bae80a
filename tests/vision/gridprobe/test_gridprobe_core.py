"""The rule: map, shape, budget and frames against the paper's own pairs, closed forms and direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logsumexp, softmax
from scipy.stats import kurtosis, skew

from steelyard.errors import InputError
from steelyard.vision import (
    effective_budget,
    evidence_hit_rate,
    ghost_cells,
    importance_map,
    letter_posterior,
    merge_posteriors,
    select_frames,
    shape_statistic,
)
from steelyard.vision.gridprobe.core import MERGES, is_flat, normalised, otsu_threshold, probe_frames, uniform_frames

confidences = arrays(np.float64, st.integers(2, 16), elements=st.floats(0.2, 1.0))


def lit(k, m, low=0.25):
    """Confidences of a grid with m evidence frames in rows and columns of their own."""
    return np.where(np.arange(k) < m, 1.0, low)


@pytest.mark.parametrize(("sigma", "budget"), [(0.0, 144), (0.0096, 140), (0.0119, 140), (6.6, 7), (9.6, 5)])
def test_the_published_pairs(sigma, budget):
    assert effective_budget(sigma, 12) == budget


@pytest.mark.parametrize(("value", "share"), [(1, 4), (2, 7), (3, 10)])
def test_skew_alone_keeps_a_share(value, share):
    assert effective_budget(float(value), 12) == math.ceil(144 / share)


@pytest.mark.parametrize(
    ("k", "budgets"), [(12, [2, 4, 8, 13, 24, 37, 54, 98, 77, 40]), (8, [2, 4, 8, 17, 31, 35, 14])]
)
def test_budgets_of_evidence_in_several_rows(k, budgets):
    found = [effective_budget(importance_map(lit(k, m), lit(k, m))) for m in range(1, len(budgets) + 1)]
    assert found == budgets


@given(confidences, confidences, st.sampled_from([1.0, 0.01]))
def test_moments_factor(rows, columns, spread):
    size = min(len(rows), len(columns))
    rows, columns = (0.5 + spread * (one[:size] - 0.5) for one in (rows, columns))
    cells = importance_map(rows, columns)
    whole = shape_statistic(cells)
    if cells.std() < 1e-3 * spread:
        return  # nearly flat: the shape is that of rounding in either form
    fast = shape_statistic(row_conf=rows, col_conf=columns)
    assert fast == pytest.approx(whole, abs=1e-7, rel=1e-7)
    by_scipy = skew(cells.ravel()), kurtosis(cells.ravel())
    assert whole[:2] == pytest.approx(by_scipy, abs=1e-7)
    assert whole.sigma == pytest.approx(abs(by_scipy[0]) + max(0.0, by_scipy[1]) / 2, abs=1e-6)


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.01])
def test_moments_factor_to_the_last_digits(spread):
    draws = np.random.default_rng(0)
    for k in (6, 12, 32):
        rows, columns = (0.75 + spread * (draws.random(k) - 0.5) * 0.3 for _ in range(2))
        whole, fast = shape_statistic(importance_map(rows, columns)), shape_statistic(row_conf=rows, col_conf=columns)
        assert np.abs(np.subtract(whole, fast)).max() < 1e-12


def test_probes_read_every_frame_twice_in_time_order():
    cells = probe_frames(5)
    assert cells.shape == (10, 5)
    assert (np.diff(cells) > 0).all()
    assert (np.bincount(cells.ravel()) == 2).all()
    assert cells[1].tolist() == [5, 6, 7, 8, 9]
    assert cells[6].tolist() == [1, 6, 11, 16, 21]


def test_a_map_of_products_or_sums():
    rows, columns = [0.5, 1.0], [0.25, 0.75]
    assert importance_map(rows, columns).tolist() == [[0.125, 0.375], [0.25, 0.75]]
    assert importance_map(rows, columns, combine="sum").tolist() == [[0.75, 1.25], [1.25, 1.75]]


@given(arrays(np.float64, (6, 6), elements=st.floats(0, 1, width=16)), st.integers(1, 36))
def test_frames_of_the_highest_importance(cells, budget):
    chosen = select_frames(cells, budget)
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) == budget
    left = np.setdiff1d(np.arange(36), chosen)
    if len(left):
        assert cells.ravel()[chosen].min() >= cells.ravel()[left].max()
    ranked = select_frames(cells, budget, order="importance")
    assert (np.diff(cells.ravel()[ranked]) <= 0).all()
    assert np.sort(ranked).tolist() == chosen.tolist()


def test_of_equal_cells_the_earlier():
    assert select_frames(np.ones((3, 3)), 4).tolist() == [0, 1, 2, 3]


@given(confidences, st.floats(1e-3, 1e3))
def test_a_budget_does_not_depend_on_the_scale_of_a_map(rows, factor):
    cells = importance_map(rows, rows)
    if cells.std() > 1e-3 * cells.mean():
        assert abs(effective_budget(cells) - effective_budget(cells * factor)) <= 1  # ceil may fall either way


def test_flat_maps_keep_all():
    noise = 0.5 + 1e-8 * np.random.default_rng(0).random((6, 6))
    assert is_flat(noise)
    assert not is_flat(noise, strict=True)
    assert effective_budget(noise) == 36
    assert effective_budget(noise, strict=True) < 36
    assert effective_budget(np.full((6, 6), 0.3), max_frames=10) == 10


def test_bounds_and_alpha():
    cells = importance_map(lit(12, 1), lit(12, 1))
    assert effective_budget(cells, min_frames=5) == 5
    assert effective_budget(cells, alpha=0.0) == 144
    budgets = [effective_budget(cells, alpha=alpha, min_frames=1) for alpha in (0.1, 1.0, 3.0, 10.0)]
    assert budgets == sorted(budgets, reverse=True)


def test_other_rules():
    cells = importance_map(lit(8, 2), lit(8, 2))
    assert effective_budget(cells, rule="mean") == 4 + 24, "evidence, and its rows and columns"
    assert effective_budget(cells, rule="otsu") == 4
    assert effective_budget(cells, rule="participation") == 4
    assert effective_budget(np.full((4, 4), 0.5), rule="participation") == 2, "its floor where nothing stands out"
    assert effective_budget(np.full((4, 4), 0.5), rule="otsu") == 16
    weights = np.array([1.0, 0.5, 0.0, 0.0]).reshape(2, 2)
    assert effective_budget(weights, rule="participation", min_frames=1) == math.ceil(1.125**2 / (1 + 0.125**2))


def test_otsu_finds_the_gap():
    draws = np.random.default_rng(0)
    values = np.concatenate([draws.normal(0, 0.1, 300), draws.normal(3, 0.1, 100)])
    assert (values > otsu_threshold(values)).sum() == 100


@given(arrays(np.float64, 12, elements=st.floats(-30, 30)))
def test_letters_sum_the_distinct_forms(logits):
    variants = [[0, 1, 1], [2], [], [3, 0]]
    found = letter_posterior(logits, variants)
    by_hand = [logsumexp(logits[[0, 1]]), logits[2], -np.inf, logsumexp(logits[[0, 3]])]
    assert found == pytest.approx(softmax(by_hand), abs=1e-12)
    assert found[2] == 0


@given(arrays(np.float64, (5, 4), elements=st.floats(0.01, 1.0)))
def test_merging_keeps_what_all_agree_on(values):
    rows = values / values.sum(1, keepdims=True)
    assert merge_posteriors(rows) == pytest.approx(softmax(np.log(rows).mean(0)), abs=1e-12)
    same = np.repeat(rows[:1], 5, 0)
    for rule in MERGES:
        merged = merge_posteriors(same, rule)
        assert merged.sum() == pytest.approx(1)
        assert merged.argmax() == same[0].argmax() or np.ptp(same[0]) < 1e-9


def test_merging_rules_differ_as_they_should():
    rows = np.array([[0.98, 0.01, 0.01], [0.3, 0.4, 0.3], [0.3, 0.4, 0.3]])
    assert merge_posteriors(rows, "vote").argmax() == 1
    assert merge_posteriors(rows, "top_third") == pytest.approx(rows[0])
    confident = softmax(np.log(rows.max(1)))
    assert merge_posteriors(rows, "confidence") == pytest.approx(softmax(confident @ np.log(rows)))
    entropy = softmax((rows * np.log(rows)).sum(1))
    assert merge_posteriors(rows, "entropy") == pytest.approx(softmax(entropy @ np.log(rows)))
    centred = np.log(rows) - np.log(rows).mean(1, keepdims=True)
    assert merge_posteriors(rows, "centred") == pytest.approx(softmax(centred.mean(0)))


@given(st.sets(st.integers(0, 63), min_size=1, max_size=6))
def test_ghosts_are_where_rows_and_columns_of_evidence_cross(evidence):
    found = ghost_cells(8, evidence=sorted(evidence))
    rows, columns = {cell // 8 for cell in evidence}, {cell % 8 for cell in evidence}
    assert found.closure.tolist() == sorted(row * 8 + column for row in rows for column in columns)
    assert set(found.ghosts.tolist()) == set(found.closure.tolist()) - evidence
    assert found.needed == len(rows) * len(columns)


def test_ghosts_of_a_map():
    found = ghost_cells(8, importance=importance_map(lit(8, 3), lit(8, 3)))
    assert (found.needed, len(found.bright), len(found.ghosts)) == (9, 9, 0)
    one = ghost_cells(12, importance=importance_map(lit(12, 1), lit(12, 1)))
    assert one.bright.tolist() == [0]
    assert ghost_cells(4, importance=np.full((4, 4), 0.2)).needed == 16


def test_evidence_that_was_selected():
    assert evidence_hit_rate([1, 2, 3], [2, 3, 4, 5]) == 0.5
    assert math.isnan(evidence_hit_rate([1], []))


def test_uniform_frames_hold_both_ends():
    assert uniform_frames(100, 4).tolist() == [0, 33, 66, 99]
    assert uniform_frames(3, 5).tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: importance_map([0.5, 1.5], [0.5, 0.5]), "row_conf: probe 1"),
        (lambda: importance_map([0.5, 1.0], [0.5, 1.0], combine="max"), "combine"),
        (lambda: importance_map("ab", [0.5, 1.0]), "row_conf: it must hold numbers"),
        (lambda: shape_statistic(np.eye(3), row_conf=[1, 1], col_conf=[1, 1]), "importance: give"),
        (lambda: effective_budget(np.ones((2, 3))), "square"),
        (lambda: effective_budget([[np.nan, 1], [1, 1]]), "finite"),
        (lambda: effective_budget(np.eye(3), min_frames=0), "min_frames"),
        (lambda: effective_budget(np.eye(3), alpha=-1.0), "alpha"),
        (lambda: effective_budget(-1.0, 12), "sigma"),
        (lambda: effective_budget(1.0, 12, rule="mean"), "needs the map"),
        (lambda: select_frames(np.eye(2), 0), "budget"),
        (lambda: select_frames(np.eye(2), 1, order="best"), "order"),
        (lambda: letter_posterior([0.0, 1.0], [[0], [5]]), "option 1"),
        (lambda: letter_posterior([0.0, 1.0], [[0]]), "two options"),
        (lambda: letter_posterior([0.0, 1.0], [[], []]), "no possible option"),
        (lambda: normalised([0.5]), "at least two"),
        (lambda: merge_posteriors([0.5, 0.5]), "posteriors"),
        (lambda: ghost_cells(1, evidence=[0]), "k must be"),
        (lambda: ghost_cells(4), "evidence: give"),
        (lambda: ghost_cells(4, importance=np.eye(3)), "importance: it has 3"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
