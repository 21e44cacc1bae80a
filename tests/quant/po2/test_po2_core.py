"""The encoder against brute force: every grid, factor and code; ties; order of sums; warnings about small groups."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.families import E2M1, E2M1_CODES, FAMILIES, IF4, LLOYD1, MPO2, NVFP4, SFP4, GridFamily
from steelyard.quant.po2.tensor import fake_quantize, quantize
from steelyard.rng import torch_generator

SEARCHES = st.sampled_from(core.SEARCHES)
NAMES = st.sampled_from(sorted(FAMILIES))


def draw(seed, n=6, size=16, kind="gauss"):
    stream = torch_generator("test", f"po2 core {kind}", seed)
    x = torch.randn(n, size, generator=stream)
    return x * x.abs() ** 3 if kind == "heavy" else x


def encode(options, groups, scale=None, importance=None):
    low, high = float(groups.min()), float(groups.max())
    if scale is None:
        scale = scales.tensor_scale(options.family, options.form, low, high, options.cap, options.factors)
    return core.encode(options, groups, scale, importance), scale


def values_of(options, encoded, scale):
    if options.form.width == 8:
        held = scales.code_values(options.form, encoded.scale_codes)
    else:
        held = encoded.scale_codes.float()
    return core.decode(options.family, encoded.codes, held * scale, encoded.selectors)


def least_error(options, groups, scale, importance=None):
    """Return the least error of every group over all grids, scales and codes, in float64."""
    tried = core.trials(options, *core.extrema(groups), scale)
    weights = np.ones(groups.shape) if importance is None else importance.double().numpy()
    best = np.full(len(groups), np.inf)
    for grid, column in core.pair_columns(options, tried):
        steps = tried.values[:, column].double().numpy() * scale
        levels = steps[:, None, None] * np.array(options.family.search_grids[grid])
        distance = (groups.double().numpy()[:, :, None] - levels) ** 2
        best = np.minimum(best, (distance.min(2) * weights).sum(1))
    return best


@given(NAMES, SEARCHES, st.integers(0, 10**6), st.sampled_from([1, 3, 16, 20, 32]), st.sampled_from(["gauss", "heavy"]))
def test_no_grid_factor_or_code_does_better(name, search, seed, size, kind):
    options = core.plan(FAMILIES[name], size, None, search)
    groups = draw(seed, size=size, kind=kind)
    encoded, scale = encode(options, groups)
    error = (values_of(options, encoded, scale) - groups).double().square().sum(1).numpy()
    best = least_error(options, groups, scale)
    assert (error <= best * (1 + 1e-4) + 1e-10).all()
    assert (error >= best * (1 - 1e-4) - 1e-10).all()


@given(st.sampled_from(["mpo2", "sfp4", "four_over_six"]), st.integers(0, 10**6))
def test_importance_decides(name, seed):
    options = core.plan(FAMILIES[name], 16, None, "sweep")
    groups = draw(seed)
    importance = draw(seed + 1).square()
    encoded, scale = encode(options, groups, importance=importance)
    error = ((values_of(options, encoded, scale) - groups).double().square() * importance.double()).sum(1).numpy()
    assert (error <= least_error(options, groups, scale, importance) * (1 + 1e-4) + 1e-10).all()


@given(st.integers(0, 10**6), st.sampled_from(["absmax", "fit"]), st.sampled_from(["gauss", "heavy"]))
def test_another_grid_or_factor_never_raises_a_groups_error(seed, rule, kind):
    groups = draw(seed, kind=kind)
    one = dataclasses.replace(LLOYD1, rule=rule)
    two = GridFamily("two", (*one.grids, *SFP4.grids[1:2]), rule=rule)
    pair = [core.plan(family, 16, None, "none") for family in (one, two)]
    scale = 2.0 * scales.tensor_scale(two, pair[1].form, float(groups.min()), float(groups.max()), 448.0, (1.5,))
    plans = [
        *pair,
        dataclasses.replace(pair[1], factors=(1.0, 1.5, 0.8)),
        dataclasses.replace(pair[1], factors=core.SWEEP),
    ]
    errors = []
    for options in plans:
        encoded, _ = encode(options, groups, scale)
        errors.append((values_of(options, encoded, scale) - groups).double().square().sum(1))
    for worse, better in itertools.pairwise(errors[:3]):
        assert (better <= worse * (1 + 1e-5) + 1e-12).all()
    assert (errors[3] <= errors[1] * (1 + 1e-5) + 1e-12).all()


def test_ties_of_e2m1_go_to_the_even_code():
    """As IEEE rounding and the hardware do: of two codes that differ in the last mantissa bit the one with bit 0."""
    middle = core.tables(NVFP4).midpoints[0]
    for index in range(15):
        exact = (E2M1[index] + E2M1[index + 1]) / 2
        code = int(torch.bucketize(torch.tensor(exact), middle))
        pair = (E2M1_CODES[index], E2M1_CODES[index + 1])
        assert E2M1_CODES[code] in pair
        assert E2M1_CODES[code] % 2 == 0
    assert E2M1_CODES[int(torch.bucketize(torch.tensor(0.0), middle))] == 0
    assert E2M1_CODES[int(torch.bucketize(torch.tensor(-1e-40), middle))] == 8


def test_ties_of_learned_grids_go_down():
    family = GridFamily("half", ((-1.0, -0.5, 0.0, 0.5, 1.0),))
    options = core.plan(family, 5, "fp32", "none")
    encoded, _ = encode(options, torch.tensor([[1.0, 0.75, 0.25, -0.25, -0.75]]))
    assert encoded.codes[0].tolist() == [4, 3, 2, 1, 0]


@given(st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=16), st.floats(-5, 5, width=32))
def test_thresholds_are_the_nearest_value_exactly(values, u):
    grid = sorted({*values, -4.0, 4.0})[:16]
    grid[-1] = 4.0
    member = GridFamily("any", (tuple(grid),))
    code = int(torch.bucketize(torch.tensor(u), core.tables(member).midpoints[0]))
    distance = [abs(np.float64(u) - np.float64(value)) for value in grid]
    assert code == distance.index(min(distance))


def test_ties_between_grids_go_to_the_first():
    twins = dataclasses.replace(MPO2, grids=(LLOYD1.grids[0], LLOYD1.grids[0]))
    encoded, _ = encode(core.plan(twins, 16, None, "sweep"), draw(3))
    assert not encoded.selectors.any()
    lone = torch.zeros(2, 16)
    lone[:, 3] = torch.tensor([1.0, -2.0])
    encoded, _ = encode(core.plan(IF4, 16, None, "none"), lone)
    assert not encoded.selectors.any()


def test_all_zero_groups_and_lone_values():
    for name, member in FAMILIES.items():
        for search in core.SEARCHES:
            groups = draw(1, n=3)
            groups[1] = 0
            groups[2] = 0
            groups[2, 5] = 1.5
            options = core.plan(member, 16, None, search)
            encoded, scale = encode(options, groups)
            values = values_of(options, encoded, scale)
            assert (values[1] == 0).all(), (name, search)
            assert int(encoded.scale_codes[1]) == 0
            assert values[2, 5] == pytest.approx(1.5, rel=0.35)  # the OCP floor clips up to a quarter


def test_small_groups_are_kept_and_counted():
    groups = torch.full((3, 16), 1.0)
    groups[1] *= 1e-7
    groups[2] *= 0
    options = core.plan(NVFP4, 16, None, "none")
    tried = core.trials(options, *core.extrema(groups), 1.0 / 2688)
    assert tried.raised == 1
    assert tried.codes[:, 0].tolist() == [126, 1, 0]


def test_mirror_codes_decode_alike():
    signed = GridFamily("signed", (MPO2.grids[0],), signed_scale=True)
    groups = draw(5, n=40)
    (pair, scale), (mirror, _) = (encode(core.plan(member, 16, None, "none"), groups) for member in (MPO2, signed))
    assert torch.equal(pair.selectors, mirror.selectors)
    options = [core.plan(member, 16, None, "none") for member in (MPO2, signed)]
    assert torch.equal(values_of(options[0], pair, scale), values_of(options[1], mirror, scale))
    flipped = mirror.selectors == 1
    assert torch.equal(mirror.codes[flipped], 15 - pair.codes[flipped])


@given(st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))
def test_codes_survive_packing(rows, cols, seed):
    codes = torch.randint(0, 16, (rows, cols), generator=torch_generator("test", "pack", seed), dtype=torch.uint8)
    packed = core.pack_codes(codes)
    assert packed.shape == (rows, math.ceil(cols / 2))
    assert torch.equal(core.unpack_codes(packed, cols), codes)
    assert torch.equal(packed[:, 0] & 15, codes[:, 0])


@pytest.mark.parametrize(
    ("size", "scale", "search", "word"),
    [
        (0, None, "none", "group_size"), (True, None, "none", "group_size"), (1.5, None, "none", "group_size"),
        (16, "e5m2", "none", "'fp32'"), (16, None, "best", "'none', '4o6', 'sweep', 'window'"),
        (16, "fp32", "window", "one byte"),
    ],
)  # fmt: skip
def test_options_that_are_refused(size, scale, search, word):
    with pytest.raises(InputError, match=word):
        core.plan(MPO2, size, scale, search)


def test_four_or_six_is_a_family_and_a_search():
    groups = draw(8, n=50)
    (family, t_family), (search, t_search) = (
        encode(core.plan(member, 16, None, how), groups)
        for member, how in ((FAMILIES["four_over_six"], "none"), (NVFP4, "4o6"))
    )
    assert t_family == t_search
    assert torch.equal(family.codes, search.codes)
    assert torch.equal(family.scale_codes, search.scale_codes)


@pytest.mark.parametrize("criterion", ["mse", "mae", "max"])
@pytest.mark.parametrize("search", ["none", "sweep"])
def test_the_criterion_is_what_the_choice_minimises(criterion, search):
    """Against all choices of grid and factor, each tried alone."""
    x = torch.randn(60, 20, generator=torch_generator("test", "po2 criterion", 0))
    weights = torch.rand(20, generator=torch_generator("test", "po2 criterion", 1)) + 0.1
    costs = {
        "mse": lambda miss: (miss.square() * weights).sum(1),
        "mae": lambda miss: (miss.abs() * weights).sum(1),
        "max": lambda miss: (miss.abs() * weights).amax(1),
    }
    family = dataclasses.replace(IF4, criterion=criterion, default_group=20)
    t_scale = quantize(x, family, search=search).tensor_scale
    factors = core.SWEEP if search == "sweep" else (1.0,)
    alone = [
        fake_quantize(x, dataclasses.replace(family, grids=(grid,), candidates=(factor,)), tensor_scale=t_scale)
        for grid in family.grids
        for factor in factors
    ]
    least = torch.stack([costs[criterion](x - one) for one in alone]).amin(0)
    found = fake_quantize(x, family, search=search, importance=weights)
    torch.testing.assert_close(costs[criterion](x - found), least, rtol=1e-5, atol=1e-6)
    for other in set(costs) - {criterion}:
        theirs = fake_quantize(x, dataclasses.replace(family, criterion=other), search=search, importance=weights)
        assert costs[criterion](x - found).sum() < costs[criterion](x - theirs).sum()
