"""The compiled path gives the torch path's bits; it compiles where no cache can be written."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.quant.po2 import core, kernels, packed_matrix, scales, tensor
from steelyard.quant.po2.families import FAMILIES, LEAST_END, MPO2, NVFP4, GridFamily
from steelyard.quant.po2.tensor import QuantizedTensor, dequantize, quantize
from steelyard.rng import torch_generator

GRID = (
    st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=16)
    .map(sorted)
    .filter(lambda g: g[0] <= -LEAST_END and g[-1] >= LEAST_END)
)


@pytest.fixture
def torch_path(monkeypatch):
    """Return a function that quantises without numba."""

    def run(*args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(tensor, "_kernels", lambda: None)
            q = quantize(*args, **options)
            return q, q.dequantize()

    return run


def same(one: QuantizedTensor, other: QuantizedTensor) -> bool:
    sides = (one.side is None and other.side is None) or torch.equal(one.side, other.side)
    return (
        sides
        and one.tensor_scale == other.tensor_scale
        and torch.equal(one.codes, other.codes)
        and torch.equal(one.scales, other.scales)
    )


def data(seed, shape, dtype=torch.float32, kind=0):
    stream = torch_generator("test", "po2 kernels", seed)
    x = torch.randn(shape, generator=stream, dtype=torch.float64)
    x = (x, x * x.abs() ** 3, x * 1e-6, x * (torch.rand(shape, generator=stream) < 0.2))[kind]
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("search", core.SEARCHES)
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.filterwarnings("ignore:.*groups are so small")
def test_the_same_bits_for_every_family_search_and_dtype(torch_path, name, search, dtype):
    for kind in range(4):
        x = data(kind, (12, 96), dtype, kind)
        slow, values = torch_path(x, name, search=search)
        fast = quantize(x, name, search=search)
        assert same(slow, fast)
        assert torch.equal(fast.dequantize(), values)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 16, 24, 31, 32, 48, 128])
@pytest.mark.parametrize("scale", scales.SCALE_FORMATS)
@pytest.mark.filterwarnings("ignore:.*groups are so small")
def test_the_same_bits_for_every_scale_and_group_size(torch_path, scale, size):
    x = data(size, (5, 133))
    importance = data(size + 1, (133,)).square()
    for name, weights in (("sfp4", None), ("if4", importance)):
        slow, values = torch_path(x, name, size, scale, importance=weights)
        fast = quantize(x, name, size, scale, importance=weights)
        assert same(slow, fast)
        assert torch.equal(fast.dequantize(), values)


@given(st.lists(GRID, min_size=1, max_size=3), st.sampled_from(["absmax", "fit"]), st.integers(0, 10**6))
@settings(max_examples=60)
def test_the_same_bits_for_any_grids(grids, rule, seed):
    options = core.plan(GridFamily("any", tuple(map(tuple, grids)), rule=rule), 16, "fp32", "none")
    groups = data(seed, (20, 16))
    tried = core.trials(options, *core.extrema(groups), 1.0)
    for slow, fast in zip(
        core.search(options, groups, tried, None), kernels.search(options, groups, tried, None), strict=True
    ):
        assert torch.equal(slow, fast)


@given(GRID, st.integers(0, 10**6))
def test_codes_are_bucketize_around_every_threshold(grid, seed):
    """u itself is fed in: factor 1. Thresholds, their float neighbours, zeros, infinity and random values."""
    options = core.plan(GridFamily("any", (tuple(grid),)), 16, "fp32", "none")
    middle = core.tables(options.family).midpoints[0]
    real = middle[torch.isfinite(middle)]
    inf = torch.tensor(float("inf"))
    u = torch.cat(
        [
            real,
            torch.nextafter(real, inf),
            torch.nextafter(real, -inf),
            data(seed, (40,)),
            torch.tensor([0.0, -0.0, 3e38]),
        ]
    )
    groups = torch.nn.functional.pad(u, (0, -len(u) % 16)).reshape(-1, 16)
    ones = torch.ones(len(groups), 1)
    tried = core.Trials(ones.to(torch.uint8), ones, ones, ones, True, 0)
    codes = kernels.search(options, groups, tried, None).codes
    assert torch.equal(codes.int(), torch.bucketize(groups, middle, out_int32=True))
    assert torch.equal(core.search(options, groups, tried, None).codes, codes)


def test_every_byte_and_nibble_decodes_alike(monkeypatch):
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1).reshape(256, 256)
    held = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 32)
    held[held & 127 == 127] = 5  # NaN of E4M3
    q = QuantizedTensor(codes, held, 0.25, MPO2, 16, "e4m3", (256, 512), 1)
    fast = dequantize(q)
    monkeypatch.setattr(kernels, "has_permute", lambda: False)
    plain = dequantize(q)
    monkeypatch.setattr(tensor, "_kernels", lambda: None)
    assert torch.equal(fast, plain)
    assert torch.equal(fast, dequantize(q))


@pytest.mark.parametrize("scale", ["fp32", "fp16", "e4m3"])
@pytest.mark.parametrize("size", [16, 32])
def test_wide_scales_and_side_bits_decode_alike(monkeypatch, scale, size):
    q = quantize(data(9, (7, 70)), "sfp4", size, scale)
    fast = dequantize(q)
    monkeypatch.setattr(kernels, "has_permute", lambda: False)
    assert torch.equal(fast, dequantize(q))
    monkeypatch.setattr(tensor, "_kernels", lambda: None)
    assert torch.equal(fast, dequantize(q))


def test_blocks_of_rows_change_nothing(monkeypatch):
    x = data(4, (40, 50))
    whole = quantize(x, "sfp4")
    monkeypatch.setattr(tensor, "_BLOCK", 120)
    assert same(whole, quantize(x, "sfp4"))


def test_plain_loops_agree_with_their_machine_code():
    x = data(3, (9, 16)).numpy()
    found, plain = (np.empty((2, 9), np.float32) for _ in range(2))
    kernels._extrema(x, *found)
    kernels._extrema.py_func(x, *plain)
    assert (found == plain).all()
    codes = np.arange(32, dtype=np.uint8) % 16
    packed = np.empty((2, 16), np.uint8)
    kernels._pack(codes, packed[0])
    kernels._pack.py_func(codes, packed[1])
    assert (packed[0] == packed[1]).all()
    table, rows = data(4, (3, 16)).numpy(), np.array([2, 0], np.uint8)
    out = np.empty((2, 2, 16), np.float32)
    kernels._unpack(packed[0].reshape(2, 8), rows, table, out[0])
    kernels._unpack.py_func(packed[0].reshape(2, 8), rows, table, out[1])
    assert (out[0] == out[1]).all()
    for run in (kernels._keep_better, kernels._keep_better.py_func):
        best = np.array([1.0, 4.0, 5.0], np.float32)
        grids, columns = np.zeros(3, np.uint8), np.zeros(3, np.int64)
        run(np.array([1.0, 1.0, 1.0], np.float32), np.array([1.0, 2.0, 2.0], np.float32), 1, 7, best, grids, columns)
        assert (best.tolist(), grids.tolist(), columns.tolist()) == ([1, 4, 4], [0, 0, 1], [0, 0, 7])


def test_vectors_compiled_afresh_against_numpy():
    """Sixteen elements at a time against plain numpy: codes, sums of squares folded in halves, decoding."""

    def fresh(dispatcher):
        return kernels.numba.njit(error_model="numpy")(dispatcher.py_func)

    x, factors = data(5, (7, 16)).numpy(), np.linspace(0.2, 2, 7, dtype=np.float32)
    weights = data(6, (7, 16)).square().numpy()
    middle, values = (part[0] for part in kernels._arrays(MPO2))
    u = x * factors[:, None]
    expected = (u[:, :, None] > middle).sum(2)
    codes = np.empty((7, 16), np.uint8)
    fresh(kernels._encode)(x, factors, middle[None], np.zeros(7, np.uint8), codes)
    assert (codes == expected).all()
    squares = (u - values[expected]) ** 2
    for run, parts, extra in (
        (kernels._errors, squares, ()), (kernels._weighted_errors, squares * weights, (weights,))
    ):  # fmt: skip
        errors = np.empty(7, np.float32)
        fresh(run)(x, factors, middle, values, *extra, errors)
        while parts.shape[1] > 1:
            parts = parts[:, : parts.shape[1] // 2] + parts[:, parts.shape[1] // 2 :]
        assert (errors == parts[:, 0]).all()
    if kernels.has_permute():
        packed, rows = codes[:, ::2] | (codes[:, 1::2] << 4), np.zeros(7, np.uint8)
        out = np.empty((2, 7, 16), np.float32)
        fresh(kernels._unpack_permuted)(packed, rows, 1, values[None], out[0])
        fresh(kernels._unpack_permuted_scaled)(packed, rows, 1, values[None], factors, out[1])
        assert (out[0] == values[codes]).all()
        assert (out[1] == values[codes] * factors[:, None]).all()


def test_loops_over_chunks_with_numpy_in_the_vectors_place(monkeypatch):
    def write(packed, row, out, scale=1.0):
        out[:] = row[np.stack([packed & 15, packed >> 4], 1).ravel()] * scale

    monkeypatch.setattr(kernels, "_write_values", write)
    monkeypatch.setattr(kernels, "_write_scaled", write)
    packed = np.arange(32, dtype=np.uint8).reshape(4, 8)
    rows, table = np.array([1, 0], np.uint8), data(7, (2, 16)).numpy()
    scales = np.array([0.5, 3], np.float32)
    out = np.empty((3, 4, 16), np.float32)
    kernels._unpack_permuted.py_func(packed, rows, 2, table, out[0])
    kernels._unpack_permuted_scaled.py_func(packed, rows, 2, table, scales, out[1])
    kernels._unpack(packed.reshape(2, 16), rows, table, out[2].reshape(2, 32))
    assert (out[0] == out[2]).all()
    assert (out[1] == out[2] * np.repeat(scales, 2)[:, None]).all()


def test_without_a_folder_to_cache_in(monkeypatch):
    real, calls = kernels.numba.njit, []

    def njit(**options):
        calls.append(options.get("cache"))
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(kernels.numba, "njit", njit)
    double = kernels.compiled(lambda x: 2 * x)
    assert double(np.float32(3)) == 6
    assert calls == [True, None]


def test_numba_told_not_to_compile(monkeypatch):
    tensor.compiled_path.cache_clear()
    monkeypatch.setattr(kernels.numba.config, "DISABLE_JIT", 1)
    assert tensor._kernels() is None
    assert packed_matrix._kernels() is None
    monkeypatch.undo()
    tensor.compiled_path.cache_clear()
    assert tensor._kernels() is kernels


def test_without_numba(monkeypatch):
    def missing(name, error="numba"):
        raise ModuleNotFoundError(name=error)

    tensor.compiled_path.cache_clear()
    monkeypatch.setattr(tensor.importlib, "import_module", missing)
    assert tensor._kernels() is None
    assert packed_matrix._kernels() is None
    assert quantize(data(1, (4, 32)), NVFP4).codes.shape == (4, 16)
    tensor.compiled_path.cache_clear()
    monkeypatch.setattr(tensor.importlib, "import_module", lambda name: missing(name, "llvmlite"))
    with pytest.raises(ModuleNotFoundError):
        tensor._kernels()
    monkeypatch.undo()
    tensor.compiled_path.cache_clear()
