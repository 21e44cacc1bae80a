"""Quantised tensors: shapes and axes, sizes, round trips, hostile parts, bad input."""

import dataclasses
import json
import math
import warnings
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.families import FAMILIES, MPO2, SFP4, GridFamily
from steelyard.quant.po2.tensor import QuantizedTensor, dequantize, fake_quantize, from_codes, quantize
from steelyard.rng import torch_generator

PINNED = ("nvfp4", "mxfp4", "nf4", "if4", "mixfp4", "four_over_six", "mpo2_robust")


def draw(seed, shape=(40, 96)):
    return torch.randn(shape, generator=torch_generator("test", "po2 tensor", seed))


@pytest.mark.parametrize(
    ("family", "size", "scale", "bits"),
    [
        ("nvfp4", None, None, Fraction(9, 2)),
        ("mpo2", None, None, Fraction(9, 2)),
        ("mxfp4", None, None, Fraction(17, 4)),
        ("sfp4", None, None, Fraction(9, 2)),
        ("sfp4", 16, "e4m3", Fraction(73, 16)),
        ("sfp4_pair", 16, None, Fraction(9, 2)),
        ("mpo2", 10, None, Fraction(24, 5)),
        ("mpo2", 32, "fp16", Fraction(9, 2)),
        ("nf4", 64, "fp32", Fraction(9, 2)),
        ("mpo2", 32, "e8m0", Fraction(17, 4)),
    ],
)
def test_bits_per_weight(family, size, scale, bits):
    q = quantize(draw(0), family, size, scale)
    assert q.exact_bits_per_weight == bits
    assert q.bits_per_weight == float(bits)
    held = sum(part.numel() * part.element_size() for part in q.to_tensors()[0].values())
    assert q.stored_bytes == held
    assert q.stored_bits_per_weight == 8 * held / 3840


def test_stored_bits_see_the_padding():
    q = quantize(draw(0, (10, 172)), "mpo2")
    assert q.codes.shape == (10, 88)
    assert q.scales.shape == (10, 11)
    assert q.stored_bits_per_weight == 8 * (880 + 110 + 4) / 1720


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_quantising_again_with_the_old_tensor_scale_changes_nothing(family):
    for seed, kind in ((0, 1.0), (1, 1e3), (2, 1e-5)):
        values = quantize(kind * draw(seed), family).dequantize()
        first = quantize(kind * draw(seed), family)
        again = quantize(values, family, like=first)
        assert torch.equal(again.dequantize(), values)
        assert again.tensor_scale == first.tensor_scale


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_quantising_again_with_a_fresh_tensor_scale(family):
    """Grids pinned at both ends give the same values again, up to the last bit of the tensor scale."""
    first = quantize(draw(3), family)
    again = quantize(first.dequantize(), family)
    if family in PINNED:
        assert torch.equal(again.scales, first.scales)
        assert again.tensor_scale == pytest.approx(first.tensor_scale, rel=2**-22)
        assert torch.allclose(again.dequantize(), first.dequantize(), rtol=2**-21, atol=0)
    elif family in ("mpo2", "lloyd1"):  # no end at 1, so the largest value always shrinks
        assert not torch.equal(again.dequantize(), first.dequantize())


@given(st.sampled_from(sorted(FAMILIES)), st.sampled_from(core.SEARCHES), st.integers(0, 10**6), st.integers(1, 40))
def test_fake_quantize_is_quantize_and_dequantize(family, search, seed, cols):
    x = draw(seed, (3, cols))
    q = quantize(x, family, search=search)
    assert torch.equal(fake_quantize(x, family, search=search), q.dequantize())
    assert torch.equal(fake_quantize(x, family, search=search, tensor_scale=q.tensor_scale), q.dequantize())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_any_shape_and_axis(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = draw(sum(shape), tuple(shape))
    q = quantize(x, "if4", 4, axis=axis)
    moved = quantize(x.movedim(axis, -1).contiguous(), "if4", 4)
    assert torch.equal(q.dequantize().movedim(axis, -1), moved.dequantize())
    assert q.dequantize().shape == x.shape
    assert q.dequantize().is_contiguous()
    assert torch.equal(quantize(x.mT if x.ndim > 1 else x, "if4", 4).dequantize(),
                       quantize((x.mT if x.ndim > 1 else x).contiguous(), "if4", 4).dequantize())  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_computed_in_float32(dtype):
    x = draw(1).to(dtype)
    assert torch.equal(quantize(x).dequantize(), quantize(x.float()).dequantize())
    assert fake_quantize(x).dtype == dtype
    assert quantize(x).dequantize(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_and_device_do_not_matter(dtype):
    """Loaders of large models change both for a while; tables made then are kept."""
    x, member = draw(1, (4, 40)), dataclasses.replace(SFP4, name=f"fresh {dtype}")
    expected = [quantize(x, "sfp4", scale=scale, search="sweep") for scale in ("e3m3", "e4m2", "fp32")]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            found = [quantize(x, member, scale=scale, search="sweep") for scale in ("e3m3", "e4m2", "fp32")]
            values = [q.dequantize() for q in found]
            parts = found[0].to_tensors()[0]
    finally:
        torch.set_default_dtype(before)
    assert all(part.device.type == "cpu" for part in parts.values())
    for one, other, decoded in zip(expected, found, values, strict=True):
        assert torch.equal(one.codes, other.codes)
        assert torch.equal(one.scales, other.scales)
        assert torch.equal(decoded, one.dequantize())


@pytest.mark.parametrize(
    "x",
    [draw(2, (64,))[::2], draw(2, (1,)).expand(32), draw(2, (3, 64))[1, ::2], draw(2, (5, 1)).expand(5, 32), draw(2).T],
)
def test_strided_views(x):
    for family in ("nvfp4", "mpo2"):
        whole = x.contiguous()
        assert torch.equal(quantize(x, family, importance=draw(3, (x.shape[-1], 2)).square()[:, 0]).dequantize(),
                           quantize(whole, family, importance=draw(3, (x.shape[-1], 2)).square()[:, 0].contiguous())
                           .dequantize())  # fmt: skip
        assert torch.equal(quantize(x, family).dequantize(), quantize(whole, family).dequantize())


def test_parameters_are_detached():
    x = torch.nn.Parameter(draw(1))
    assert not quantize(x).dequantize().requires_grad
    assert not fake_quantize(x).requires_grad


def test_histogram_selectors_and_scales_describe_the_values():
    x = draw(2)
    q = quantize(x, "sfp4")
    assert q.selector_histogram().sum() == 240
    assert torch.equal(torch.bincount(q.selectors().flatten().int(), minlength=3), q.selector_histogram())
    index = q.unpacked_codes().reshape(40, 6, 16).long()
    levels = torch.stack([q.grids[q.selectors()[r, k].long(), index[r, k]] for r in range(40) for k in range(6)])
    values = levels.reshape(40, 6, 16) * q.group_scales()[:, :, None]
    assert torch.equal(values.reshape(40, 96), q.dequantize())
    assert q.mse(x) == pytest.approx(float((x - values.reshape(40, 96)).double().square().mean()))
    assert q.relative_mse(x) == pytest.approx(q.mse(x) / float(x.double().square().mean()))
    assert quantize(torch.zeros(2, 16)).relative_mse(torch.zeros(2, 16)) == 0
    assert quantize(x[:2, :16]).relative_mse(torch.zeros(2, 16)) == math.inf
    with pytest.raises(InputError, match="shape"):
        q.mse(x[0])


@pytest.mark.parametrize("family", ["sfp4", "sfp4_pair", "po2_split87", "po2_nf4"])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_group_saturates_under_fit(family, sign):
    """On skewed data a shifted grid needs a scale above absmax / unit; the tensor scale leaves room for it."""
    x = sign * draw(4).abs()
    q = quantize(x, family)
    options = core.plan(FAMILIES[family], None, None, "none")
    low, high = core.extrema(x.reshape(-1, 16))
    wanted = scales.group_scales(options.family, options.form, low, high)
    chosen = wanted.gather(1, q.selectors().reshape(-1, 1).long())[:, 0]
    assert (q.group_scales().flatten() >= chosen * (1 - 1 / 17)).all()  # rounding alone takes at most 1 / 17
    assert float((wanted / q.tensor_scale).max()) <= options.form.top * (1 + 1e-6)


def test_one_outlier_keeps_small_groups_and_warns():
    x = draw(5) * 1e-3
    x[0, 0] = 1e4
    with pytest.warns(RuntimeWarning, match="groups are so small"):
        q = quantize(x, "nvfp4")
    assert q.dequantize()[0, 0] == pytest.approx(1e4, rel=1e-6)
    assert (q.group_scales() > 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = quantize(x, "nvfp4", scale="fp32").dequantize()
    assert float((wide - x)[1:].square().sum() / x[1:].square().sum()) < 0.02


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_zeros_stay_zeros(family):
    x = draw(6)
    x[3] = 0
    x[5, 16:64] = -0.0
    values = quantize(x, family, search="sweep").dequantize()
    assert (values[3] == 0).all()
    assert (values[5, 32:64] == 0).all()
    assert not quantize(torch.zeros(3, 20), family).dequantize().any()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e30])
def test_extreme_magnitudes_stay_finite(scale):
    x = (draw(7).double() * scale).clamp(-8e37, 8e37).float()
    for family in ("nvfp4", "mpo2", "sfp4", "mxfp4"):
        for form in (None, "fp32", "fp16", "e8m0"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = fake_quantize(x, family, scale=form, search="4o6")
            assert values.isfinite().all()
            if scale >= 1e-30 and form is None:
                assert float((values.double() - x.double()).square().sum() / x.double().square().sum()) < 0.02


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_that_are_no_numbers(bad, dtype):
    x = draw(8).to(dtype)
    x[7, 7] = bad
    for call in (quantize, fake_quantize):
        with pytest.raises(InputError, match="NaN or infinity"):
            call(x)


@pytest.mark.parametrize(
    ("t", "word"),
    [
        (torch.tensor(1.0), "one dimension"),
        (torch.zeros(0, 16), "one element"),
        (torch.zeros(4, dtype=torch.int32), "dense tensor"),
        (torch.zeros(4).to(torch.float8_e4m3fn), "dense tensor"),
        (torch.eye(4).to_sparse(), "dense tensor"),
        ([1.0], "got list"),
        (torch.full((4,), 1e300, dtype=torch.float64), "rescale"),
    ],
)
def test_tensors_that_are_refused(t, word):
    for call in (quantize, fake_quantize):
        with pytest.raises(InputError, match=word):
            call(t)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"family": "nvfp5"}, "nvfp4"),
        ({"search": "all"}, "'sweep'"),
        ({"scale": "e5m2"}, "'e8m0'"),
        ({"group_size": 0}, "group_size"),
        ({"axis": 2}, "axis"),
        ({"importance": torch.ones(3)}, "importance"),
        ({"importance": -torch.ones(96)}, ">= 0"),
        ({"importance": torch.full((96,), math.nan)}, "finite"),
        ({"like": quantize(torch.ones(16), "mxfp4")}, "like"),
    ],
)
def test_options_that_are_refused(options, word):
    with pytest.raises(InputError, match=word):
        quantize(draw(0), **options)


@pytest.mark.parametrize("t_scale", [0.0, -1.0, math.nan, math.inf, 1e-40])
def test_tensor_scales_that_are_refused(t_scale):
    with pytest.raises(InputError, match="tensor_scale"):
        fake_quantize(draw(0), tensor_scale=t_scale)


def test_a_tensor_scale_too_small_clamps():
    values = fake_quantize(torch.full((1, 16), 100.0), "nvfp4", tensor_scale=1 / 2688)
    assert values.unique().tolist() == [pytest.approx(1.0)]


def test_importance_of_nothing_and_of_one():
    x = draw(9)
    assert torch.equal(quantize(x, importance=torch.ones(96)).codes, quantize(x).codes)
    sharp = torch.zeros(96)
    sharp[::16] = 1.0
    weighted, plain = (quantize(x, "nvfp4", search="sweep", importance=w).dequantize() for w in (sharp, None))
    assert (weighted - x)[:, ::16].square().sum() < 0.5 * (plain - x)[:, ::16].square().sum()


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("scale", [None, "fp16", "fp32"])
def test_parts_round_trip(family, scale):
    q = quantize(draw(10, (3, 5, 21)), family, scale=scale, axis=1, group_size=4)
    tensors, text = q.to_tensors()
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in text.items())
    back = QuantizedTensor.from_tensors(tensors, text)
    assert torch.equal(back.dequantize(), q.dequantize())
    assert (back.shape, back.axis, back.family, back.tensor_scale) == (q.shape, 1, q.family, q.tensor_scale)


def parts(family="sfp4", scale="e4m3"):
    return quantize(draw(11, (4, 32)), family, scale=scale).to_tensors()


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("codes", None, "missing"),
        ("codes", torch.zeros(4, 15, dtype=torch.uint8), "shape"),
        ("codes", torch.zeros(4, 16, dtype=torch.int8), "uint8"),
        ("scales", torch.zeros(4, 3, dtype=torch.uint8), "shape"),
        ("scales", torch.full((4, 2), 127, dtype=torch.uint8), "no scale"),
        ("side", torch.zeros(2, dtype=torch.uint8), "shape"),
        ("side", torch.full((1,), 255, dtype=torch.uint8), "selector"),
        ("tensor_scale", torch.tensor([math.nan]), "positive"),
        ("tensor_scale", torch.tensor([0.0]), "positive"),
        ("tensor_scale", torch.tensor(1.0), "shape"),
    ],
)
def test_hostile_parts(name, value, word):
    tensors, text = parts()
    tensors = tensors | {name: value}
    if name == "side" and word == "selector":
        tensors["scales"] = tensors["scales"] | 128
    with pytest.raises(InputError, match=word):
        QuantizedTensor.from_tensors(tensors, text)


def test_hostile_wide_scales():
    tensors, text = parts(scale="fp32")
    tensors["scales"] = torch.full_like(tensors["scales"], math.nan)
    with pytest.raises(InputError, match="NaN"):
        QuantizedTensor.from_tensors(tensors, text)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("version", "2", "format"),
        ("family", "{}", "family"),
        ("family", MPO2.to_json(), "side"),
        ("group_size", "x", "metadata"),
        ("group_size", "0", "group_size"),
        ("shape", "[4, 0]", "shape"),
        ("shape", "[4, true]", "shape"),
        ("shape", "3", "metadata"),
        ("shape", "[]", "shape"),
        ("shape", json.dumps([2**40, 2**40]), "shape"),
        ("shape", "[4, 64]", "part"),
        ("axis", "2", "axis"),
        ("axis", "-1", "axis"),
        ("scale_format", "e9m9", "scale"),
    ],
)
def test_hostile_metadata(key, value, word):
    tensors, text = parts()
    with pytest.raises(InputError, match=word):
        QuantizedTensor.from_tensors(tensors, text | {key: value})
    with pytest.raises(InputError):
        QuantizedTensor.from_tensors(tensors, {other: text[other] for other in text if other != key})


def test_from_codes_packs_what_an_encoder_chose():
    x = draw(12, (6, 20))
    q = quantize(x, "sfp4", axis=0)
    options = core.plan(SFP4, None, None, "none")
    held, selectors = q.scales & 63, q.selectors()
    again = from_codes(options, q.unpacked_codes(), held, selectors, q.tensor_scale, (6, 20), axis=0)
    assert torch.equal(dequantize(again), q.dequantize())


def test_odd_rows_and_mirror_storage():
    signed = GridFamily("signed", (MPO2.grids[0],), signed_scale=True)
    x = draw(13, (5, 27))
    for size in (3, 9, 16):
        assert torch.equal(quantize(x, signed, size).dequantize(), quantize(x, MPO2, size).dequantize())
    q = quantize(x, signed)
    real = q.scales.view(torch.float8_e4m3fn).float() * q.tensor_scale  # the byte is a signed E4M3 number
    values = torch.tensor(signed.grids[0])[q.unpacked_codes().long()].reshape(5, 2, 16) * real[:, :, None]
    assert torch.equal(values.reshape(5, 32)[:, :27], q.dequantize())


def test_one_grid_more_costs_nothing_at_the_same_tensor_scale():
    x = draw(14)
    both = quantize(x, "mpo2")
    one = fake_quantize(x, dataclasses.replace(MPO2, grids=MPO2.grids[:1]), tensor_scale=both.tensor_scale)
    groups = [(value - x).reshape(-1, 16).square().sum(1) for value in (both.dequantize(), one)]
    assert (groups[0] <= groups[1] * (1 + 1e-5)).all()
    assert scales.resolve(MPO2, None).side == 0


@pytest.mark.parametrize("search", ["none", "sweep"])
@pytest.mark.parametrize("compiled", [True, False])
def test_groups_without_importance_take_the_unweighted_error(search, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("steelyard.quant.po2.tensor._kernels", lambda: None)
    t, zeros = draw(3, (24, 40)), torch.zeros(40)  # the last group is padded
    assert torch.equal(
        quantize(t, search=search, importance=zeros).dequantize(), quantize(t, search=search).dequantize()
    )
    some = zeros.clone()
    some[:16] = torch.rand(16, generator=torch_generator("test", "importance", 0)) + 0.1
    mixed = quantize(t, "mpo2", search=search, importance=some, like=quantize(t, search=search)).dequantize()
    assert torch.equal(mixed[:, 16:], quantize(t, search=search).dequantize()[:, 16:])


@pytest.mark.parametrize("factor", [1e36, 1e-36, 1e300, 3.0])
def test_importance_is_free_of_scale(factor):
    t = draw(4, (24, 40)) * 100
    importance = torch.rand(40, generator=torch_generator("test", "importance", 1), dtype=torch.float64)
    plain = quantize(t, search="sweep", importance=importance)
    scaled = quantize(t, search="sweep", importance=importance * factor)
    ours, theirs = (((q.dequantize() - t).double().square() * importance).sum() for q in (scaled, plain))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)  # ties within a float's rounding may fall otherwise


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda t: quantize(t, axis=None), "axis"),
        (lambda t: quantize(t, axis=0.5), "axis"),
        (lambda t: quantize(t, axis="a"), "axis"),
        (lambda t: quantize(t, like="a"), "like"),
        (lambda t: quantize(t, importance="a"), "importance"),
        (lambda t: quantize(t, importance=torch.ones(32, dtype=torch.complex64)), "importance"),
        (lambda t: quantize(t, importance=torch.ones(32, device="meta")), "importance"),
        (lambda t: quantize(t.to("meta")), "meta"),
        (lambda t: quantize(torch.nested.as_nested_tensor([t, t[:2]])), "nested"),
        (lambda t: fake_quantize(t, tensor_scale="a"), "tensor_scale"),
        (lambda t: dequantize("a"), "dequantize"),
        (lambda t: dequantize(quantize(t), "float"), "dtype"),
        (lambda t: dequantize(quantize(t), torch.int8), "dtype"),
    ],
)
def test_wrong_types_are_refused(call, word):
    with pytest.raises(InputError, match=word):
        call(torch.ones(4, 32))


def test_a_short_representation():
    q = quantize(torch.ones(4, 32), "mpo2")
    assert repr(q) == "QuantizedTensor(shape=(4, 32), mpo2, group_size=16, scale=e4m3, bits_per_weight=4.5)"
