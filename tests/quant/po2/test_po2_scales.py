"""Scale formats against closed forms and torch's casts; selector bits; the tensor scale and its headroom."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2 import scales
from steelyard.quant.po2.families import FAMILIES, MPO2, MXFP4, NVFP4, SFP4, GridFamily
from steelyard.quant.po2.scales import layout, pack_scales, round_scales, unpack_scales
from steelyard.quant.po2.tensor import QuantizedTensor, quantize

MINI = ("e4m3", "e3m3", "e4m2", "e3m4")


def test_e4m3_is_torchs():
    codes = torch.arange(127, dtype=torch.uint8)
    assert layout("e4m3", 1).values == tuple(codes.view(torch.float8_e4m3fn).float().tolist())


def test_ranges_of_the_small_formats():
    e3m3 = layout("e3m3", 3)
    assert (e3m3.top, e3m3.values[8], e3m3.values[1]) == (1.875 * 2**7, 2.0, 0.25)
    assert (e3m3.top / e3m3.values[8], e3m3.top / e3m3.values[1]) == (120, 960)
    assert layout("e4m2", 4).top == 448
    assert layout("e3m4", 2).values[1] == 0.125


@pytest.mark.parametrize(
    ("name", "n_grids", "inside", "side"),
    [
        ("e4m3", 1, 0, 0), ("e4m3", 2, 1, 0), ("e4m3", 3, 1, 1), ("e4m3", 4, 1, 1), ("e3m3", 4, 2, 0),
        ("e4m2", 3, 2, 0), ("e3m4", 2, 1, 0), ("e8m0", 1, 0, 0), ("e8m0", 2, 1, 0), ("e8m0", 4, 2, 0),
        ("fp16", 8, 1, 2), ("fp32", 2, 1, 0),
    ],
)  # fmt: skip
def test_where_the_selector_lives(name, n_grids, inside, side):
    form = layout(name, n_grids)
    assert (form.inside, form.side) == (inside, side)


def test_unknown_format():
    with pytest.raises(InputError, match="'e8m0'"):
        layout("e5m2", 1)
    with pytest.raises(InputError, match="1 to 4"):
        scales.resolve(GridFamily("five", ((-1.0, 1.0),) * 5, scale_format="fp16"), "e4m3")


@given(st.sampled_from(MINI), st.floats(0, 2000, width=32))
def test_rounding_is_to_the_nearest_and_ties_to_even(name, value):
    form = layout(name, 1)
    codes, values = round_scales(NVFP4, form, torch.tensor([[value]]))
    table = np.array(form.values)
    distance = np.abs(table - value)
    nearest = np.flatnonzero(distance == distance.min())
    best = nearest[0] if len(nearest) == 1 else nearest[nearest % 2 == 0][0]
    assert int(codes) == (max(best, 1) if value > 0 else 0)
    assert float(values) == form.values[int(codes)]


def test_every_threshold_of_the_small_formats():
    for name in MINI:
        table = np.array(layout(name, 1).values)
        middle = torch.tensor((table[1:] + table[:-1]) / 2, dtype=torch.float32)
        codes = round_scales(NVFP4, layout(name, 1), middle)[0]
        expected = [max(k if k % 2 == 0 else k + 1, 1) for k in range(len(middle))]
        assert codes.tolist() == expected
        up = torch.nextafter(middle, torch.tensor(math.inf))
        assert round_scales(NVFP4, layout(name, 1), up)[0].tolist() == list(range(1, len(table)))


def test_e8m0_floor_and_ceiling():
    absmax = torch.tensor([[0.0], [4.0], [6.0], [7.99], [8.0], [2.0**-140], [3e38]])
    codes, values = round_scales(MXFP4, layout("e8m0", 1), absmax)
    assert values[:, 0].tolist() == [0, 1, 1, 1, 2, 2.0**-126, 2.0**125]
    assert codes[1:5, 0].tolist() == [127, 127, 127, 128]
    ceiling = round_scales(MPO2, layout("e8m0", 2), torch.tensor([[0.0], [1.0], [0.51], [0.5], [3.0], [1e-38]]))[1]
    assert ceiling[:, 0].tolist() == [0, 1, 1, 0.5, 1, 2.0**-126]


def test_wide_formats_keep_positive_scales_positive():
    half, values = round_scales(MPO2, layout("fp16", 2), torch.tensor([[1e-20], [0.0], [1e9], [0.1]]))
    assert half.dtype == torch.float16
    assert values[:, 0].tolist() == [2.0**-24, 0, 65504, float(np.float16(0.1))]
    assert scales.count_raised(layout("fp16", 2), torch.tensor([[1e-20], [0.0], [0.1]])) == 1
    assert scales.count_raised(layout("fp32", 2), torch.tensor([[1e-40]])) == 0


@given(
    st.sampled_from(sorted(scales.SCALE_FORMATS)), st.integers(1, 8), st.integers(1, 5), st.integers(1, 9), st.data()
)
def test_selectors_survive_packing(name, n_grids, rows, groups, data):
    if n_grids > 4 and name not in ("fp16", "fp32"):
        n_grids = 4
    form = layout(name, n_grids)
    count = rows * groups
    selectors = data.draw(st.lists(st.integers(0, n_grids - 1), min_size=count, max_size=count))
    ratios = data.draw(st.lists(st.floats(0, 400, width=32), min_size=count, max_size=count))
    codes, values = round_scales(MPO2, form, torch.tensor(ratios).reshape(rows, groups))
    chosen = torch.tensor(selectors, dtype=torch.uint8).reshape(rows, groups)
    stored, side = pack_scales(form, codes, chosen)
    back, found = unpack_scales(form, stored, side)
    assert torch.equal(found, chosen)
    assert torch.equal(back, values)
    assert (side is None) == (form.side == 0)
    assert side is None or side.numel() == scales.side_bytes(form, count)


@given(
    st.sampled_from(sorted(FAMILIES)), st.sampled_from(sorted(scales.SCALE_FORMATS)),
    st.sampled_from([(1.0,), (1.0, 1.5), (0.72, 1.5)]), st.floats(-1e4, 0, width=32), st.floats(0, 1e4, width=32),
)  # fmt: skip
def test_the_largest_group_never_saturates(name, scale, factors, low, high):
    member = FAMILIES[name]
    form = layout(scale, member.n_grids)
    t = scales.tensor_scale(member, form, low, high, member.cap, factors)
    base = scales.group_scales(member, form, torch.tensor([low]), torch.tensor([high]))
    largest = float(base.max()) * max(factors) / t
    floors = member.rule == "ocp" and scale == "e8m0"
    assert largest <= form.top * (8 if floors else 1) * (1 + 1e-6)


def test_nvfp4_tensor_scale():
    t = scales.tensor_scale(NVFP4, layout("e4m3", 1), -1.0, 3.7, 448.0, (1.0,))
    assert t == np.float32(np.float32(3.7) / np.float32(6 * 448)) or t == np.float32(3.7 / (6 * 448))
    assert scales.tensor_scale(NVFP4, layout("e4m3", 1), -3.7, 1.0, 256.0, (1.0, 1.5)) == np.float32(3.7 / (6 * 256))
    assert scales.tensor_scale(MXFP4, layout("e8m0", 1), -3.7, 1.0, 448.0, (1.0,)) == 1
    for low, high in itertools.product((0.0,), (0.0,)):
        assert scales.tensor_scale(NVFP4, layout("fp32", 1), low, high, 448.0, (1.0,)) == 1


def test_fit_covers_both_ends():
    base = scales.group_scales(SFP4, layout("e3m3", 3), torch.tensor([-5.5]), torch.tensor([6.5]))
    assert base[0].tolist() == pytest.approx([6.5 / 6, 1.0, 6.5 / 5.5])


def test_neighbours_stop_at_the_ends():
    form = layout("e4m3", 1)
    codes, values = scales.neighbours(form, torch.tensor([[0], [2], [126]], dtype=torch.uint8), 3)
    assert codes.tolist() == [[0] * 7, [1, 1, 1, 2, 3, 4, 5], [123, 124, 125, 126, 126, 126, 126]]
    assert values[2, -1] == 448


@pytest.mark.parametrize(("family", "bits"), [("nvfp4", 4.5), ("mpo2", 4.5625), ("sfp4", 4.625)])
def test_a_selector_beside_the_scale_changes_storage_only(family, bits):
    """The bytes are plain E4M3, as hardware reads them; values and choices are those of the sign bit."""
    x = torch.randn(30, 48, generator=torch.Generator().manual_seed(0))
    inside, beside = quantize(x, family, scale="e4m3"), quantize(x, family, scale="e4m3_side")
    assert beside.bits_per_weight == bits
    assert torch.equal(beside.dequantize(), inside.dequantize())
    assert torch.equal(beside.selectors(), inside.selectors())
    plain = beside.scales.view(torch.float8_e4m3fn).float() * beside.tensor_scale
    assert torch.equal(plain, beside.group_scales())
    tensors, text = beside.to_tensors()
    again = QuantizedTensor.from_tensors(tensors, text)
    assert torch.equal(again.dequantize(), beside.dequantize())
    tensors["scales"] = tensors["scales"] | 128
    with pytest.raises(InputError, match="a byte that is no scale"):
        QuantizedTensor.from_tensors(tensors, text)
