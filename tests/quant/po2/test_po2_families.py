"""Grids, their options, and what a family refuses."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from steelyard.errors import InputError
from steelyard.quant.po2 import families
from steelyard.quant.po2.families import E2M1, E2M1_CODES, FAMILIES, GridFamily, family, register_family, sfp4_family
from steelyard.quant.po2.fitting import fit_grids

ASCENDING = (
    st.lists(st.floats(-8, 8, allow_nan=False).filter(lambda v: abs(v) > 1e-3), min_size=2, max_size=16, unique=True)
    .map(sorted)
    .filter(lambda grid: grid[0] < 0 < grid[-1])
)


@pytest.fixture
def registry():
    """Let a test register families and forget them."""
    known = dict(FAMILIES)
    yield FAMILIES
    FAMILIES.clear()
    FAMILIES.update(known)


def test_nf4_is_the_published_definition():
    offset = 0.9677083
    positive = norm.ppf(np.linspace(offset, 0.5, 9)[:-1])
    negative = -norm.ppf(np.linspace(offset, 0.5, 8)[:-1])
    values = np.sort(np.concatenate([positive, [0.0], negative]))
    assert np.abs(values / values.max() - families.NF4_GRID).max() < 1e-6


def test_e2m1_and_its_hardware_codes():
    """OCP MX 1.0: sign, 2 exponent bits with bias 1, 1 mantissa bit."""
    for index, code in enumerate(E2M1_CODES):
        sign, exponent, mantissa = code >> 3, (code >> 1) & 3, code & 1
        size = (1 + mantissa / 2) * 2 ** (exponent - 1) if exponent else mantissa / 2
        assert E2M1[index] == (-size if sign else size)
    assert np.signbit(E2M1[7])
    assert not np.signbit(E2M1[8])


def test_every_family_is_well_formed():
    for name, member in FAMILIES.items():
        assert member.name == name
        assert family(name) is member
        assert family(member) is member
        for grid in member.search_grids:
            assert len(grid) in (15, 16)
            assert list(grid) == sorted(grid)
            assert max(-grid[0], grid[-1]) <= 1.1 * member.unit


def test_mirror_pairs_and_shifts():
    for member in (families.MPO2, families.PO2_SPLIT87, families.SFP4_PAIR):
        first, second = member.grids
        assert second == tuple(-value for value in reversed(first))
    assert families.SFP4.n_grids == 3
    assert families.SFP4_PAIR.n_grids == 2
    for grid, shift in zip(sfp4_family(0.375).grids, (0, 0.375, -0.375), strict=True):
        assert np.allclose(np.subtract(grid, shift), E2M1)
    assert all(0.0 in grid for grid in families.SFP4.grids)
    assert not any(0.0 in grid for grid in sfp4_family(0.375, pair=True).grids)


def test_mixfp4_holds_the_values_of_if4():
    assert sorted(set(families.MIXFP4.grids[1])) == pytest.approx(families.IF4.grids[1])


def test_signed_scale_is_a_mirror_pair_on_one_table():
    member = GridFamily("one", (families.MPO2.grids[0],), signed_scale=True)
    assert member.n_grids == 2
    assert member.search_grids == families.MPO2.grids
    assert member.decode_grids[1] == tuple(-value for value in member.grids[0])


@given(st.lists(ASCENDING, min_size=1, max_size=4), st.sampled_from(["absmax", "fit", "ocp"]), st.floats(0.1, 448))
def test_json_round_trip(grids, rule, cap):
    member = GridFamily("learned", tuple(map(tuple, grids)), rule=rule, cap=cap)
    assert GridFamily.from_json(member.to_json()) == member


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"name": "x"}', "[" * 100_000, '{"grids": 1}'])
def test_json_that_is_no_family(text):
    with pytest.raises(InputError):
        GridFamily.from_json(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grids", [[float("nan"), 1.0]]), ("grids", [["a", "b"]]), ("grids", [[-1.0, 1.0]] * 5), ("rule", "max"),
        ("scale_format", []), ("candidates", [0.0]), ("candidates", [1.0] * 65), ("cap", 1e9), ("name", 3),
        ("default_group", 2.5), ("unknown", 1), ("cap", 10**400), ("grids", [[-(10**400), 1]]),
        ("default_group", 10**9), ("criterion", "rms"),
    ],
)  # fmt: skip
def test_hostile_json(field, value):
    fields = json.loads(families.MPO2.to_json()) | {field: value}
    with pytest.raises(InputError):
        GridFamily.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"grids": ()}, "1 to 8 grids"),
        ({"grids": ((0.0,),)}, "2 to 16 values"),
        ({"grids": (tuple(range(-8, 9)),)}, "2 to 16 values"),
        ({"grids": ((-1.0, 1.0, 0.5),)}, "ascending"),
        ({"grids": ((-1.0, float("inf")),)}, "finite"),
        ({"grids": ((0.0, 1.0),)}, "below and above 0"),
        ({"grids": ((-1.0, 1e-43),)}, "below and above 0"),
        ({"grids": ((-1.0, 1.0),), "ties": "even"}, "15 or 16"),
        ({"grids": ((-1.0, 1.0),) * 5}, "1 to 4"),
        ({"grids": ((-1.0, 1.0),) * 2, "signed_scale": True}, "single grid"),
        ({"rule": "best"}, "'absmax', 'fit', 'ocp'"),
        ({"ties": "up"}, "'even', 'down'"),
        ({"scale_format": "e5m2"}, "'e4m3'"),
        ({"default_group": 0}, ">= 1"),
        ({"default_group": True}, ">= 1"),
        ({"cap": 449.0}, "448"),
        ({"unit": 0.0}, "positive"),
        ({"unit": "six"}, "numbers"),
        ({"candidates": ()}, "positive"),
        ({"name": ""}, "name"),
    ],
)
def test_what_a_family_refuses(changes, word):
    with pytest.raises(InputError, match=word):
        dataclasses.replace(families.LLOYD1, **changes)


def test_eight_grids_need_a_wide_scale():
    grids = tuple((-1.0, 0.1 * step, 1.0) for step in range(8))
    assert GridFamily("eight", grids, scale_format="fp16").n_grids == 8


def test_register(registry):
    learned = GridFamily("learned4", families.MPO2.grids + families.MPO2_ROBUST.grids)
    assert register_family(learned) is learned
    assert family("learned4") is learned
    assert register_family(dataclasses.replace(learned)) == learned
    with pytest.raises(InputError, match="registered already"):
        register_family(dataclasses.replace(learned, rule="fit"))
    with pytest.raises(InputError, match="takes a GridFamily"):
        register_family("learned4")


def test_unknown_names_say_what_is_known():
    with pytest.raises(InputError, match=r"nvfp4.*Did you mean 'mpo2'\?"):
        family("mpo")
    with pytest.raises(InputError, match="sfp4_pair"):
        family(4)


@pytest.mark.parametrize("shift", [-0.5, 6.0, float("nan")])
def test_shifts_that_leave_one_sign_without_values(shift):
    with pytest.raises(InputError, match="shift"):
        sfp4_family(shift)


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202egrid", "x" * 101])
def test_names_that_would_garble_a_terminal(name):
    with pytest.raises(InputError, match="printable"):
        GridFamily(name, families.NF4.grids)
    text = json.dumps({**json.loads(families.NF4.to_json()), "name": name})
    with pytest.raises(InputError, match="printable"):
        GridFamily.from_json(text)


def test_a_name_in_capitals_and_what_fit_grids_returns_are_answered_with_what_to_write():
    with pytest.raises(InputError, match=r"got 'MPO2'. Did you mean 'mpo2'\?"):
        family("MPO2")
    fit = fit_grids(torch.randn(400, 16, generator=torch.Generator().manual_seed(0)), n_restarts=1, iters=3)
    with pytest.raises(InputError, match=r"got a GridFit: give its \.family"):
        family(fit)
    assert family(fit.family) is fit.family
