"""From settings to quantisers: controls of the selector, GGUF blocks, learned grids; parity with peers."""

from __future__ import annotations

import bitsandbytes
import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2.baselines import gguf_blocks, quantiser
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.families import FAMILIES, MPO2, NF4, NVFP4, SFP4, GridFamily, sfp4_family
from steelyard.quant.po2.tensor import fake_quantize, quantize


def values(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def make(pool=(), seed=0, **config):
    return quantiser(Config(**config), pool, seed, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_family_is_the_core_itself(family):
    t = values(1, 6, 50)
    ours = make(family=family)
    assert torch.equal(ours(t), fake_quantize(t, family))
    assert ours.bits_per_weight == quantize(t, family).bits_per_weight
    assert ours.grids == FAMILIES[family].n_grids


@pytest.mark.parametrize(("kind", "bits"), [("q4_0", 4.5), ("q4_1", 5.0)])
def test_gguf_blocks_are_those_of_the_library(kind, bits):
    t = values(2, 3, 4, 96)
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    expected = gguf.dequantize(gguf.quantize(t.reshape(12, 96).numpy(), type_), type_)
    np.testing.assert_array_equal(make(family=kind)(t).reshape(12, 96).numpy(), expected)
    assert make(family=kind).bits_per_weight == bits == gguf.quantize(t.numpy(), type_).nbytes * 8 / t.numel()
    assert gguf_blocks(t[..., :40], kind).shape == (3, 4, 40)  # filled up to 64


def test_nf4_in_blocks_of_64_is_that_of_bitsandbytes():
    t = values(3, 8, 256)
    codes, state = bitsandbytes.functional.quantize_4bit(t, blocksize=64, quant_type="nf4")
    theirs = bitsandbytes.functional.dequantize_4bit(codes, state)
    ours = make(family="nf4", group_size=64, scale="fp32")
    assert ours.bits_per_weight == 4.5
    torch.testing.assert_close(ours(t), theirs, rtol=2e-6, atol=1e-7)


@given(st.integers(0, 200), st.integers(1, 4), st.integers(1, 70))
def test_by_lot_every_group_has_one_of_the_grids(seed, rows, columns):
    t = values(seed, rows, columns)
    found = make(seed=seed, selector="random")(t)
    each = [fake_quantize(t, GridFamily("one", (grid,))) for grid in MPO2.grids]
    for start in range(0, columns, 16):
        part = slice(start, start + 16)
        for row in range(rows):
            assert any(torch.equal(found[row, part], one[row, part]) for one in each)


def test_lots_are_drawn_from_the_generator():
    t = values(4, 50, 160)
    draws = [make(seed=seed, selector="random")(t) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    first = make(selector="first")(t)
    share = (draws[0] == first).reshape(50, 10, 16).all(2).double().mean()
    assert 0.4 < share < 0.6
    assert torch.equal(first, fake_quantize(t, GridFamily("first", MPO2.grids[:1])))


@given(st.integers(0, 100))
def test_choosing_is_at_least_as_good_as_any_lot(seed):
    t = values(seed, 4, 64)
    best, lot, first = (make(selector=selector)(t) for selector in ("best", "random", "first"))
    assert (best - t).square().sum() <= (lot - t).square().sum() * (1 + 1e-6)
    assert (best - t).square().sum() <= (first - t).square().sum() * (1 + 1e-6)


def test_settings_reach_the_family():
    assert make(family="sfp4", shift=0.375).family == sfp4_family(0.375, name="sfp4")
    assert make(family="sfp4_pair", shift=0.25).family == sfp4_family(0.25, pair=True, name="sfp4_pair")
    assert make(family="sfp4").family == SFP4
    assert make(family="nvfp4", cap=256).family.cap == 256
    assert make(family="mpo2", rule="fit").family.rule == "fit"
    assert make(family="if4", criterion="mae").family.criterion == "mae"
    assert make(family="mpo2", scale="e4m3_side").bits_per_weight == 4.5625
    assert make(family="mxfp4", rule="fit").family.rule == "ocp"  # the rule is what MXFP4 is
    t = values(5, 4, 64)
    for setting in ({"cap": 200.0}, {"scale": "e3m4"}, {"search": "sweep"}, {"group_size": 8}, {"rule": "fit"}):
        assert not torch.equal(make(**setting)(t), make()(t))
    weights = torch.linspace(0.1, 3, 64)
    assert not torch.equal(make()(t, weights), make()(t))


@given(st.integers(0, 20), st.integers(1, 4))
def test_learned_grids_come_from_the_pool(seed, grids):
    pool = [values(seed, 30, 64)]
    ours = make(pool, seed=seed, family="learned", n_grids=grids, n_restarts=1, tol=1e-2)
    assert ours.grids == grids
    assert ours.bits_per_weight == 4.5
    assert make(pool, seed=seed, family="learned", n_grids=grids, n_restarts=1, tol=1e-2).family == ours.family


def test_a_learned_companion_keeps_the_first_grid():
    pool = [values(6, 200, 64)]
    nf4 = make(pool, family="po2_nf4", companion="learned", init="residual").family
    assert nf4.grids[0] == NF4.grids[0]
    assert nf4.rule == "fit"
    split = make(pool, family="po2_split87", companion="learned", explicit_zero=True).family
    assert split.grids[0] == FAMILIES["po2_split87"].grids[0]
    assert 0.0 in split.grids[1]
    mirrored = make(pool, family="learned", mirror=True).family
    assert mirrored.signed_scale
    pinned = make(pool, family="learned", pin_ends=True).family
    assert {grid[0] for grid in pinned.grids} == {-1.0}


def test_unquantised():
    t = values(7, 3, 5)
    ours = make(family="none")
    assert ours(t) is t
    assert (ours.bits_per_weight, ours.grids) == (32.0, 1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"family": "nf5"}, "Did you mean 'nf4'"),
        ({"family": "nvfp4", "companion": "learned"}, "companion='learned' needs a family of two grids, not 'nvfp4'"),
        ({"family": "sfp4", "companion": "learned"}, "two grids"),
        ({"family": "learned", "n_grids": 8, "scale": "e4m3"}, "scale='e4m3' holds at most 4 grids"),
    ],
)
def test_settings_that_do_not_go_together(config, says):
    with pytest.raises(InputError, match=says):
        make([values(8, 40, 64)], **config)


def test_one_more_mantissa_bit_buys_little():
    t = values(9, 1250, 256)
    errors = [float((make(family="nvfp4", scale=scale)(t) - t).square().sum()) for scale in ("e4m3", "e3m4")]
    assert 0.97 < errors[1] / errors[0] < 1.0
    assert NVFP4.n_grids == 1
