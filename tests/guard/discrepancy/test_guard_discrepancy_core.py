"""The array core: distances, pools, layers, HSIC, EigenScore."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import (
    DISTANCES,
    POOLS,
    clip_features,
    discrepancy_from_states,
    distance,
    eigenscore,
    rbf_kernel,
    resolve_layers,
    score_from_states,
    token_discrepancy,
    unbiased_hsic,
)

NUMBERS = st.floats(-100, 100, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-6 else x)


def states(shape):
    return arrays(np.float64, shape, elements=NUMBERS)


@st.composite
def problems(draw):
    n, T, d = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, T), min_size=n, max_size=n))
    mask = np.arange(T) < np.array(lengths)[:, None]
    return draw(states((n, T, d))), draw(states((n, T, d))), mask


@pytest.fixture(autouse=True)
def _zero_norms_may_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


CHOICES = (st.sampled_from(POOLS), st.sampled_from(DISTANCES))


def rescale(states, factor, mask):
    """Scale the answers' own tokens; the padding stays."""
    return np.where(mask[..., None], states * factor, states)


@given(problems(), st.sampled_from(POOLS), st.floats(0.01, 100), st.floats(0.01, 100))
def test_cosine_lies_in_0_2_and_ignores_scale(problem, pool, a, b):
    x, y, mask = problem
    D = discrepancy_from_states(x, y, mask, pool)
    assert np.isfinite(D).all()
    assert (D >= 0).all()
    assert (D <= 2).all()
    pooled = [np.where(mask[..., None], s, 0).sum(1) for s in (x, y)]
    if pool != "mean" or all(np.linalg.norm(s, axis=-1).min() > 1e-3 for s in pooled):
        np.testing.assert_allclose(discrepancy_from_states(rescale(x, a, mask), y * b, mask, pool), D, atol=1e-7)


@given(problems(), *CHOICES)
def test_equal_states_have_no_discrepancy_at_all(problem, pool, dist):
    x, _, mask = problem
    assert (discrepancy_from_states(x, x, mask, pool, dist) == 0).all()


@given(problems(), st.randoms(use_true_random=False), *CHOICES)
def test_permuting_the_answers_permutes_the_scores(problem, random, pool, dist):
    x, y, mask = problem
    order = random.sample(range(len(x)), len(x))
    S = score_from_states(x, y, mask, pool, dist)
    np.testing.assert_array_equal(score_from_states(x[order], y[order], mask[order], pool, dist), S[order])


@given(problems(), *CHOICES, st.integers(0, 3), st.integers(0, 3))
def test_padding_on_either_side_changes_nothing(problem, pool, dist, left, right):
    x, y, mask = problem
    S = score_from_states(x, y, mask, pool, dist)
    wide = [np.pad(s, ((0, 0), (left, right), (0, 0)), constant_values=7.0) for s in (x, y)]
    on = np.pad(mask, ((0, 0), (left, right)))
    np.testing.assert_allclose(score_from_states(*wide, on, pool, dist), S, rtol=1e-9, atol=1e-9)
    for row in range(len(x)):  # one by one, without padding
        alone = score_from_states(x[row : row + 1, mask[row]], y[row : row + 1, mask[row]], None, pool, dist)
        np.testing.assert_allclose(alone, S[row : row + 1], rtol=1e-9, atol=1e-9)


@given(problems(), st.sampled_from(DISTANCES))
def test_token_aligned_is_the_mean_of_the_tokens_and_masked_tokens_are_zero(problem, dist):
    x, y, mask = problem
    tokens = token_discrepancy(x, y, mask, dist)
    assert (tokens[~mask] == 0).all()
    np.testing.assert_allclose(discrepancy_from_states(x, y, mask, "token", dist), tokens.sum(1) / mask.sum(1))


@given(states((3, 2, 4)), states((3, 2, 4)))
def test_cosine_and_l2_are_symmetric_and_relative_l2_is_l2_over_the_second_norm(x, y):
    for dist in ("cosine", "l2"):
        np.testing.assert_array_equal(distance(x, y, dist), distance(y, x, dist))
    norm = np.linalg.norm(y, axis=-1)
    expected = np.divide(distance(x, y, "l2"), norm, out=np.zeros_like(norm), where=norm > 0)
    np.testing.assert_allclose(distance(x, y, "rel_l2"), expected)


def test_closed_forms():
    x = np.array([[[1.0, 0.0], [0.0, 2.0]]])
    y = np.array([[[0.0, 3.0], [0.0, 5.0]]])
    assert discrepancy_from_states(x, y, pool="token")[0] == pytest.approx(0.5)
    assert discrepancy_from_states(x, y, pool="last")[0] == pytest.approx(0.0)
    assert discrepancy_from_states(x, y)[0] == pytest.approx(1 - 2 / math.sqrt(5))  # mean (.5, 1) against (0, 4)
    assert discrepancy_from_states(x, y, dist="l2")[0] == pytest.approx(math.hypot(0.5, 3))
    assert discrepancy_from_states(x, y, dist="rel_l2")[0] == pytest.approx(math.hypot(0.5, 3) / 4)
    assert score_from_states(x, -x)[0] == pytest.approx(-2.0)  # opposite: the largest discrepancy, the lowest score
    assert score_from_states(x, x)[0] == 0.0


def test_half_precision_and_tensors_are_computed_in_float64():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 8, generator=g).bfloat16(), torch.randn(2, 3, 8, generator=g).bfloat16()
    expected = discrepancy_from_states(x.double().numpy(), y.double().numpy())
    np.testing.assert_allclose(discrepancy_from_states(x.requires_grad_(), y), expected, rtol=1e-12)


@pytest.mark.parametrize("dist", ["cosine", "rel_l2"])
def test_a_zero_norm_gives_0_and_a_warning(dist):
    x, y = np.ones((1, 1, 3)), np.zeros((1, 1, 3))
    with pytest.warns(RuntimeWarning, match="norm zero"):
        assert discrepancy_from_states(x, y, dist=dist)[0] == 0.0
    assert discrepancy_from_states(y, x, dist="rel_l2")[0] == 1.0  # a zero numerator is no trouble
    assert discrepancy_from_states(x, y, dist="l2")[0] == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), np.ones((2, 3))), "answers, tokens, width"),
        ((np.ones((1, 2, 3)), np.ones((1, 2, 4))), "must both be"),
        ((np.ones((1, 2, 3)), np.ones((1, 2, 3)), np.ones((1, 3))), "mask must be"),
        ((np.ones((2, 2, 3)), np.ones((2, 2, 3)), [[1, 1], [0, 0]]), r"mask\[1\] leaves no token"),
        ((np.ones((1, 2, 3)), np.ones((1, 2, 3)), None, "max"), "pool must be one of"),
        ((np.ones((1, 2, 3)), np.ones((1, 2, 3)), None, "mean", "dot"), "dist must be one of"),
        ((np.full((1, 2, 3), np.nan), np.ones((1, 2, 3))), "h_ctx holds NaN"),
        ((np.ones((1, 2, 3)), np.full((1, 2, 3), np.inf)), "h_alone holds NaN or infinite"),
        ((np.ones((1, 2, 0)), np.ones((1, 2, 0))), "last axis"),
    ],
)
def test_bad_arrays(arguments, message):
    with pytest.raises(InputError, match=message):
        score_from_states(*arguments)


def test_distance_refuses_shapes_that_differ():
    with pytest.raises(InputError, match="one shape"):
        distance(np.ones(3), np.ones(4))


@pytest.mark.parametrize(
    ("layer", "L", "expected"),
    [
        ("0.75", 30, (22,)), (0.75, 18, (13,)), (1.0, 30, (30,)), ("1.0", 30, (30,)), (1, 30, (1,)), ("22", 30, (22,)),
        (0.01, 30, (1,)), (0.29, 100, (29,)), ((20, 22), 30, (20, 21, 22)), ((0.5, 0.6), 30, (15, 16, 17, 18)),
        (np.int64(3), 4, (3,)), ([2, 2], 4, (2,)),
    ],
)  # fmt: skip
def test_layers(layer, L, expected):
    assert resolve_layers(layer, L) == expected


@pytest.mark.parametrize(
    "layer", [0, -1, 31, 1.5, 0.0, "x", "0.x", True, None, (3, 2), (1, 2, 3), (0, 3), math.nan, "0"]
)
def test_layers_that_are_refused_name_the_argument(layer):
    with pytest.raises(InputError, match="layer"):
        resolve_layers(layer, 30)


def naive_hsic(K, L):
    """The U-statistic over all quadruples of distinct indices: the definition of the unbiased estimate."""
    n, total = len(K), 0.0
    for i, j, q, r in itertools.permutations(range(n), 4):
        total += K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q])
    return total / math.perm(n, 4)


@given(arrays(np.float64, (6, 3), elements=st.floats(-2, 2)), arrays(np.float64, (6, 2), elements=st.floats(-2, 2)))
def test_hsic_equals_the_sum_over_quadruples(X, Y):
    K, L = rbf_kernel(X, 0.3), rbf_kernel(Y, 0.7)
    assert unbiased_hsic(K, L) == pytest.approx(naive_hsic(K, L), rel=1e-9, abs=1e-12)
    order = np.array([3, 1, 4, 0, 5, 2])
    assert unbiased_hsic(K[order][:, order], L[order][:, order]) == pytest.approx(unbiased_hsic(K, L), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_hsic_does_not_look_at_the_diagonals(seed, on_k, on_l):
    draw = np.random.default_rng(seed)
    K, L = (part + part.T for part in draw.normal(size=(2, 6, 6)))
    bare = naive_hsic(K, L)
    np.fill_diagonal(K, on_k)
    np.fill_diagonal(L, on_l)
    assert unbiased_hsic(K, L) == pytest.approx(bare, rel=1e-9, abs=1e-9)


def test_hsic_leaves_its_arguments_alone_and_refuses_small_ones():
    K = rbf_kernel(np.arange(5.0)[:, None], 0.1)
    before = K.copy()
    assert unbiased_hsic(K, K) > 0
    np.testing.assert_array_equal(K, before)
    for shape in ((3, 3), (4, 5), (4,)):
        with pytest.raises(InputError, match="at least 4"):
            unbiased_hsic(np.ones(shape), np.ones(shape))


@given(arrays(np.float64, (4, 7), elements=st.floats(-3, 3)))
def test_eigenscore_is_the_mean_log10_of_the_eigenvalues(E):
    centred = E - E.mean(1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(centred @ centred.T / 6 + 1e-3 * np.eye(4))
    assert eigenscore(E) == pytest.approx(np.log10(eigenvalues).mean(), rel=1e-6, abs=1e-6)
    assert eigenscore(E[[2, 0, 3, 1]]) == pytest.approx(eigenscore(E), abs=1e-6)


def test_eigenscore_of_equal_answers_is_lower_than_of_different_ones():
    x = np.random.default_rng(0).normal(size=(5, 32))
    same = np.repeat(x[:1], 5, axis=0)
    variance = np.var(x[0], ddof=1)
    assert eigenscore(same) == pytest.approx((4 * -3 + math.log10(5 * variance + 1e-3)) / 5, rel=1e-6)
    assert eigenscore(same) < eigenscore(x)
    for bad in ({"states": x[:1]}, {"states": x[0]}, {"states": x, "alpha": 0}):
        with pytest.raises(InputError):
            eigenscore(**bad)


def test_clipping_cuts_at_the_banks_quantiles():
    bank = np.stack([np.linspace(0, 1, 1001), np.linspace(0, 10, 1001)], axis=1)
    np.testing.assert_allclose(clip_features([[-5.0, 20.0], [0.5, 5.0]], bank), [[0.002, 9.98], [0.5, 5.0]])
