"""Prototypes and mixed heads: closed forms, exact ends, no leak, oracle, metrics, state, bad input."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from steelyard.errors import InputError, NoEffectWarning
from steelyard.fed import (
    AdaptiveMix,
    group_clients,
    head_prototypes,
    mix_heads,
    optimal_sharing_strength,
    plug_in_strength,
)
from steelyard.fed.gadaphead import rows

GROUPS = np.array([0, 1, 0, 2, 1, 0])
seeds = st.integers(0, 10_000)
huge = st.floats(-1e300, 1e300, allow_subnormal=True)


def heads_of(seed, shape=(6, 5), dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def plain_prototypes(heads, groups, leave_one_out):
    out = heads.copy()
    for i, own in enumerate(groups):
        others = [heads[j] for j in range(len(heads)) if groups[j] == own and not (leave_one_out and j == i)]
        if others:
            out[i] = np.mean(others, axis=0)
    return out


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 4), (6, 1), (6, 9000)])
@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_prototypes(shape, leave_one_out, dtype, tolerance):
    heads = heads_of(0, shape, dtype)
    proto = head_prototypes(heads, GROUPS, leave_one_out)
    assert proto.dtype == dtype
    np.testing.assert_allclose(proto, plain_prototypes(heads, GROUPS, leave_one_out), atol=tolerance)
    assert proto[3].tobytes() == heads[3].tobytes()  # alone


def test_prototypes_by_weight():
    heads = np.array([[0.0], [1.0], [4.0]])
    proto = head_prototypes(heads, [0, 0, 0], weights=[1.0, 3.0, 1.0])
    np.testing.assert_allclose(proto, [[7 / 4], [2.0], [3 / 4]])


@given(arrays.arrays(np.float64, (6, 3), elements=huge), st.booleans())
def test_ends_are_exact(heads, leave_one_out):
    kept = mix_heads(heads, GROUPS, mode="fixed", strength=0.0, leave_one_out=leave_one_out)
    assert kept.heads.tobytes() == heads.tobytes()
    whole = mix_heads(heads, GROUPS, mode="fixed", strength=1.0, leave_one_out=leave_one_out)
    assert whole.proto.tobytes() == head_prototypes(heads, GROUPS, leave_one_out).tobytes()
    assert whole.heads.tobytes() == whole.proto.tobytes()
    assert whole.lam.tolist() == [1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 1000, 4096, 4097, 10_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_are_exact_at_any_length(d, dtype):
    heads = heads_of(d, (23, d), dtype)
    groups, share = np.arange(23) % 4, np.tile([0.0, 1.0, 0.3], 8)[:23]
    mixed = mix_heads(heads, groups, mode="fixed", strength=share)
    proto = head_prototypes(heads, groups)
    assert mixed.heads[share == 0].tobytes() == heads[share == 0].tobytes()
    assert mixed.heads[share == 1].tobytes() == proto[share == 1].tobytes()
    np.testing.assert_allclose(mixed.heads, (1 - share)[:, None] * heads + share[:, None] * proto, atol=1e-5)


@given(arrays.arrays(np.float64, (6, 3), elements=huge), seeds, st.booleans(), st.booleans())
def test_no_head_of_another_group_leaks(foreign, seed, leave_one_out, valued):
    """Heads of groups 1 and 2 change in any way: what group 0 gets stays the same to the last bit."""
    heads = heads_of(seed, (6, 3))
    sigma = np.diag([1.0, 0.5, 2.0]) if valued else None
    first = mix_heads(heads, GROUPS, np.ones(6), sigma, leave_one_out=leave_one_out)
    changed = np.where((GROUPS == 0)[:, None], heads, foreign)
    with np.errstate(over="ignore", invalid="ignore"):
        second = mix_heads(changed, GROUPS, np.ones(6), sigma, leave_one_out=leave_one_out)
    for one, two in zip(first, second, strict=True):
        assert one[GROUPS == 0].tobytes() == two[GROUPS == 0].tobytes()


@given(seeds, st.floats(0, 5))
def test_plug_in_is_that_of_the_theory(seed, V):
    heads = heads_of(seed, (6, 4, 2))
    sigma = np.cov(heads_of(seed + 1, (4, 30)))
    for moment in (None, sigma):
        mixed = mix_heads(heads, GROUPS, np.full(6, V), moment)
        expected = [plug_in_strength(h, p, V, moment) for h, p in zip(heads, mixed.proto, strict=True)]
        expected[3] = 0.0
        np.testing.assert_allclose(mixed.lam, expected, rtol=1e-9)
        share = mixed.lam[:, None, None]
        np.testing.assert_allclose(mixed.heads, (1 - share) * heads + share * mixed.proto, atol=1e-12)


@given(seeds, st.floats(0.01, 0.2))
def test_including_oneself_gives_the_same_heads(seed, V):
    heads = heads_of(seed)
    left_out = mix_heads(heads, GROUPS, np.full(6, V))
    with_self = mix_heads(heads, GROUPS, np.full(6, V), leave_one_out=False)
    free = with_self.lam < 1
    np.testing.assert_allclose(with_self.heads[free], left_out.heads[free], atol=1e-12)
    sizes = np.array([3, 2, 3, 1, 2, 3])
    np.testing.assert_allclose(left_out.lam[free], ((sizes - 1) / sizes * with_self.lam)[free], rtol=1e-9)


@given(seeds, st.floats(0.01, 5), st.booleans())
def test_a_debiased_strength_is_the_closed_form_at_the_debiased_mismatch(seed, V, valued):
    heads = heads_of(seed)
    variances = V * np.random.default_rng(seed).uniform(0.2, 1, 6)
    mixed = mix_heads(heads, GROUPS, variances, np.diag([1.0, 0.5, 2.0, 0.1, 1.0]) if valued else None, "debiased")
    for i in (0, 1, 2, 4, 5):
        others = [j for j in range(6) if GROUPS[j] == GROUPS[i] and j != i]
        shared = variances[others].mean() / len(others)
        expected = optimal_sharing_strength(variances[i], shared, mixed.mismatch[i])
        assert mixed.lam[i] == pytest.approx(expected, rel=1e-9)
        assert mixed.lam[i] <= variances[i] / (variances[i] + shared) + 1e-12
    plain = mix_heads(heads, GROUPS, variances, np.diag([1.0, 0.5, 2.0, 0.1, 1.0]) if valued else None)
    assert (mixed.lam <= plain.lam + 1e-12).all()


def test_two_equally_unsure_clients_meet_in_the_middle():
    heads = np.array([[1.0, 0.0], [0.9, 0.1]])
    assert mix_heads(heads, [0, 0], [9.0, 9.0]).lam.tolist() == [1, 1]  # they swap
    met = mix_heads(heads, [0, 0], [9.0, 9.0], mode="debiased")
    assert met.lam.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(met.heads, np.tile(heads.mean(axis=0), (2, 1)))
    assert mix_heads(heads, [0, 0], [0.0, 0.0], mode="debiased").lam.tolist() == [0, 0]


def test_mismatch_is_unbiased_before_it_is_cut_off():
    generator, n, d, V, delta2 = np.random.default_rng(4), 5, 200, 0.5, 3.0
    found = {True: [], False: []}
    for _ in range(300):
        heads = np.sqrt(V / d) * generator.normal(size=(n, d))
        heads[1:] += np.sqrt(delta2 / d)
        for left_out, values in found.items():
            values.append(mix_heads(heads, np.zeros(n), np.full(n, V), leave_one_out=left_out).mismatch[0])
    assert np.mean(found[True]) == pytest.approx(delta2, rel=0.02)
    assert np.mean(found[False]) == pytest.approx(delta2 * ((n - 1) / n) ** 2, rel=0.02)


@pytest.mark.parametrize("valued", [False, True])
def test_oracle_is_the_best_share(valued):
    heads, truth = heads_of(1, (6, 4, 2)), heads_of(2, (6, 4, 2))
    sigma = np.diag([1.0, 2.0, 0.1, 1.0]) if valued else np.eye(4)
    mixed = mix_heads(heads, GROUPS, sigma=sigma if valued else None, mode="oracle", truth=truth)
    grid = np.linspace(0, 1, 1001)[:, None, None]
    for i in (0, 1, 2, 4, 5):
        errors = (1 - grid) * heads[i] + grid * mixed.proto[i] - truth[i]
        risk = np.einsum("gfo,fh,gho->g", errors, sigma, errors)
        assert mixed.lam[i] == pytest.approx(np.linspace(0, 1, 1001)[risk.argmin()], abs=1e-3)
    assert mixed.lam[3] == 0


def test_one_second_moment_for_each_client():
    heads = heads_of(3)
    own = [np.diag(np.full(5, float(i + 1))) if i != 2 else None for i in range(6)]
    mixed, plain = mix_heads(heads, GROUPS, np.full(6, 0.1), own), mix_heads(heads, GROUPS, np.full(6, 0.1))
    np.testing.assert_allclose(mixed.lam * [1, 2, 1, 1, 5, 6], plain.lam, rtol=1e-9)


def test_identical_heads_and_distance_zero():
    heads = np.ones((3, 4))
    assert mix_heads(heads, [0, 0, 0], [1.0, 0.0, 2.0]).lam.tolist() == [1, 0, 1]
    assert (mix_heads(heads, [0, 0, 0], [1.0, 0.0, 2.0]).heads == heads).all()
    blind = np.diag([1.0, 0.0])
    apart = np.array([[1.0, 5.0], [1.0, 7.0]])
    mixed = mix_heads(apart, [0, 0], [1.0, 1.0], blind)
    assert mixed.lam.tolist() == [0, 0]
    assert mixed.heads.tobytes() == apart.tobytes()


def test_huge_heads_keep_themselves():
    heads = np.array([[1e200, 0.0], [-1e200, 1.0], [1e250, 0.0]])
    mixed = mix_heads(heads, [0, 0, 0], np.ones(3))
    assert mixed.lam.tolist() == [0, 0, 0]
    assert mixed.heads.tobytes() == heads.tobytes()
    single = mix_heads(np.array([[3e38, -3e38], [3e38, 3e38], [-3e38, 1]], np.float32), [0, 0, 0], np.ones(3))
    assert np.isfinite(single.lam).all()


def test_distances_survive_a_large_common_part():
    """float32 heads that differ by a hundred-thousandth of their size."""
    base = 1.0 + heads_of(5, (1, 20_000), np.float64)
    heads = (base + 1e-3 * heads_of(6, (4, 20_000))).astype(np.float32)
    exact = mix_heads(heads.astype(np.float64), [0, 0, 0, 0], np.full(4, 0.01))
    mixed = mix_heads(heads, [0, 0, 0, 0], np.full(4, 0.01))
    np.testing.assert_allclose(mixed.lam, exact.lam, rtol=1e-4)
    assert mixed.heads.dtype == np.float32


def test_variances_at_the_end_of_the_range():
    heads = np.array([[1e200, 0.0], [-1e200, 1.0]])
    for mode in ("plugin", "debiased"):
        mixed = mix_heads(heads, [0, 0], [1.7e308, 1.7e308], mode=mode)
        assert np.isfinite(mixed.heads).all()
        assert (mixed.mismatch == 0).all()
        assert ((mixed.lam >= 0) & (mixed.lam <= 1)).all()


def test_clip():
    heads = heads_of(7)
    assert (mix_heads(heads, GROUPS, np.full(6, 1e6), clip=(0.2, 0.4)).lam == [0.4, 0.4, 0.4, 0, 0.4, 0.4]).all()
    assert (mix_heads(heads, GROUPS, np.zeros(6), clip=(0.2, 0.4)).lam == [0.2, 0.2, 0.2, 0, 0.2, 0.2]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_dtype_and_inputs_are_kept(dtype):
    heads = np.arange(12).reshape(6, 2).astype(dtype)
    before = heads.copy()
    mixed = mix_heads(heads, group_clients(heads + 1), np.ones(6))
    assert mixed.heads.dtype == {"e": np.float32, "f": np.float32, "d": np.float64, "l": np.float64}[heads.dtype.char]
    assert (heads == before).all()


def test_rows_beyond_one_block(monkeypatch):
    heads = heads_of(8, (6, 50), np.float32)
    whole = mix_heads(heads, GROUPS, np.ones(6))
    monkeypatch.setattr(rows, "_BLOCK", 1)
    monkeypatch.setattr(rows, "_NARROWEST", 7)
    parts = mix_heads(heads, GROUPS, np.ones(6))
    np.testing.assert_allclose(parts.heads, whole.heads, atol=1e-6)
    np.testing.assert_allclose(group_clients(heads).cosine, np.corrcoef(heads) * 0 + group_clients(list(heads)).cosine)


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(("count", "length"), [(2, 40_000), (13, 5_000), (50, 4_321), (70, 1_500)])
def test_products_in_pieces(count, length, leave_one_out):
    """Rows so many and so long that their products are made in pieces, or too many for that."""
    heads = heads_of(count, (count, length), np.float32)
    proto, groups = head_prototypes(heads, np.zeros(count), leave_one_out), np.zeros(count)
    whole = heads.sum(axis=0, dtype=np.float64)
    expected = (whole - heads) / (count - 1) if leave_one_out else np.tile(whole / count, (count, 1))
    np.testing.assert_allclose(proto, expected, atol=1e-5)
    mixed = mix_heads(heads, groups, np.full(count, 0.3 * length), leave_one_out=leave_one_out)
    assert mixed.proto.tobytes() == proto.tobytes()
    apart = ((heads - expected) ** 2).sum(axis=1)
    lam = 0.3 * length / apart * (1 if leave_one_out else 1 - 1 / count)
    np.testing.assert_allclose(mixed.lam, lam, rtol=1e-5)
    share = mixed.lam[:, None]
    np.testing.assert_allclose(mixed.heads, (1 - share) * heads + share * expected, atol=1e-5)


@pytest.mark.parametrize("weight", [1e-100, 1e-9, 0.3, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distance_from_the_others_at_any_weight(weight, dtype):
    """Where one head has all the weight, the mean of all is that head, and its distance from the others is not lost."""
    heads, weights = heads_of(11, (4, 30), dtype), np.array([1.0, weight, weight, 2 * weight])
    mixed = mix_heads(heads, np.zeros(4), np.full(4, 0.7), weights=weights)
    apart = [((heads[i] - np.average(np.delete(heads, i, 0), 0, np.delete(weights, i))) ** 2).sum() for i in range(4)]
    np.testing.assert_allclose(mixed.lam, 0.7 / np.array(apart), rtol=1e-5 if dtype is np.float32 else 1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: head_prototypes([[1.0], [1.0, 2.0]], [0, 0]), "heads must have one shape"),
        (lambda: head_prototypes([], []), "got none"),
        (lambda: head_prototypes(np.ones((2, 2, 2, 2)), [0, 0]), "heads must have one shape"),
        (lambda: head_prototypes([[1.0], [np.inf]], [0, 0]), "head of client 1 holds values that are not finite"),
        (lambda: head_prototypes([[1.0], [2.0]], [0]), "groups must label each of the 2 heads"),
        (lambda: head_prototypes([[1.0], [2.0]], [0, 0], weights=[1.0, 0.0]), "weights must be 2 finite numbers"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0]), "variances are needed"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, -1.0]), "variance of client 1 must be a finite number"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, np.nan]), "variance of client 1"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, 1.0, 1.0]), "one for each of 2 heads"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="learned"), "mode must be one of plugin, debiased, "),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="fixed"), "strength is needed"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="fixed", strength=1.5), "strength must lie in [0, 1]"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="oracle"), "truth is needed"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, 1.0], clip=(0.5, 0.2)), "clip must be"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, 1.0], np.eye(2)), "sigma must be the (1, 1)"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, 1.0], [np.eye(1)] * 3), "or one for each of 2 heads, got 3"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], [1.0, 1.0], [np.eye(1), -np.eye(1)]), "sigma must be positive"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="oracle", truth=[[1.0], [np.nan]]), "truth must be finite"),
        (lambda: AdaptiveMix().load_state_dict({"clients": np.ones(1), "variances": -np.ones(1)}), "is negative or"),
        (lambda: AdaptiveMix(variance="bootstrap"), "variance must be one of refit, split, iterates"),
        (lambda: mix_heads([[1.0], [2.0]], [0, 0], mode="debiased"), "variances are needed for mode 'debiased'"),
        (lambda: AdaptiveMix(estimate="mean"), "estimate must be one of plugin, debiased"),
        (lambda: AdaptiveMix(warmup=-1), "warmup"),
        (lambda: AdaptiveMix(ema=1.0), "ema must lie in [0, 1)"),
        (lambda: AdaptiveMix(staleness=0.0), "staleness must lie in (0, 1]"),
        (lambda: AdaptiveMix(strength=2.0), "strength must lie in [0, 1]"),
        (lambda: AdaptiveMix(clip=(0.0, 2.0)), "clip must be"),
        (lambda: AdaptiveMix().load_state_dict({}), "state of the mixing cannot be read"),
    ],
)  # fmt: skip
def test_bad_input(call, said):
    with pytest.raises(InputError) as caught:
        call()
    assert said in str(caught.value)


def test_iterates_are_warned_of():
    with pytest.warns(NoEffectWarning, match="Adam"):
        AdaptiveMix(variance="iterates")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AdaptiveMix(variance="split")


def mix(mixing, number, heads, groups=None, ages=None):
    clients = range(len(heads))
    return mixing.mix(
        number,
        dict(enumerate(heads)),
        dict.fromkeys(clients, 0) if groups is None else dict(enumerate(groups)),
        dict.fromkeys(clients),
        dict.fromkeys(clients, 0) if ages is None else dict(enumerate(ages)),
    )


def test_warm_up_and_smoothing():
    heads, mixing = np.array([[0.0], [2.0]]), AdaptiveMix(warmup=1, ema=0.75)
    mixing.smooth({0: 1.0, 1: 2.0})
    mixed, lam, mismatch = mix(mixing, 1, heads)
    assert (list(lam.values()), mixed[0].tolist(), mismatch[0]) == ([0, 0], [0.0], 1.0)
    mixing.smooth({0: 3.0})
    mixed, lam, _ = mix(mixing, 2, heads)
    assert lam == {0: 1.5 / 4, 1: 0.5}
    assert mixed[0] == pytest.approx(0.75)


def test_old_heads_count_less():
    heads, mixing = np.array([[0.0], [1.0], [4.0]]), AdaptiveMix(warmup=0, strength=1.0, staleness=0.5)
    mixing.smooth(dict.fromkeys(range(3), 1.0))
    mixed, _, _ = mix(mixing, 1, heads, ages=[0, 0, 2])
    assert mixed[0] == pytest.approx((1 + 0.25 * 4) / 1.25)
    mixed, _, _ = mix(mixing, 1, heads, ages=[0, 10_000, 10_000])
    assert mixed[0] == pytest.approx(2.5)  # nothing but old heads: their mean


def test_mix_over_rounds_is_mix_heads():
    heads, V = heads_of(9, (6, 3, 2), np.float32), np.linspace(0.1, 1, 6)
    mixing = AdaptiveMix(warmup=0)
    mixing.smooth(dict(enumerate(V)))
    mixed, lam, mismatch = mix(mixing, 1, heads, GROUPS)
    expected = mix_heads(heads, GROUPS, V, mode="debiased")
    assert np.stack([mixed[i] for i in range(6)]).tobytes() == expected.heads.tobytes()
    assert [lam[i] for i in range(6)] == expected.lam.tolist()
    assert [mismatch[i] for i in range(6)] == expected.mismatch.tolist()


def test_values_count_only_if_asked():
    heads, moment = {0: np.array([0.0, 1.0]), 1: np.array([1.0, 1.0])}, np.diag([4.0, 1.0])
    shares = []
    for sigma in (True, False):
        mixing = AdaptiveMix(warmup=0, sigma=sigma)
        mixing.smooth({0: 0.4, 1: 0.4})
        shares.append(mixing.mix(1, heads, {0: 0, 1: 0}, {0: moment, 1: moment}, {0: 0, 1: 0})[1][0])
    assert shares == pytest.approx([0.1, 0.4])


def test_state():
    first, second = AdaptiveMix(warmup=0), AdaptiveMix(warmup=0)
    first.smooth({3: 1.0, 1: 0.1})
    second.load_state_dict(first.state_dict())
    for mixing in (first, second):
        mixing.smooth({3: 2.0})
    assert first.state_dict()["variances"].tolist() == second.state_dict()["variances"].tolist() == [0.1, 1.1]
