"""The Triton path: its kernel in the interpreter, its compilation for GPUs that are not there, and its self-check."""

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from steelyard.quant.po2 import matmul as module
from steelyard.quant.po2 import triton_kernels
from steelyard.quant.po2.matmul import matmul
from steelyard.quant.po2.packed_matrix import GroupMajor, dense, pack
from steelyard.quant.po2.tensor import quantize


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def fresh():
    """No device has been checked or refused yet."""
    triton_kernels._check.cache_clear()
    triton_kernels._refused.clear()
    yield
    triton_kernels._check.cache_clear()
    triton_kernels._refused.clear()


class FakeKernel:
    """Computes by torch what the kernel should, with the kernel's own arguments, and then spoils it."""

    def __init__(self, spoil=lambda y: y):
        self.spoil, self.calls = spoil, []

    def __getitem__(self, grid):
        def run(x, codes, scales, scale_of, selector_of, grids, y, batch, rows, columns, words, per_group, **tiles):
            assert grid == (-(-rows // tiles["ROWS"]) * -(-batch // tiles["TILE"]),)
            assert (words, per_group) == (len(codes), len(codes) // len(scales))
            weight = GroupMajor(codes, scales, scale_of, selector_of, grids, (rows, columns))
            y.copy_(self.spoil(x.float() @ dense(weight).T))
            self.calls.append((batch, rows, columns))

        return run


def fake(monkeypatch, *spoil):
    kernel = FakeKernel(*spoil)
    monkeypatch.setattr(triton_kernels, "product_kernel", kernel)
    monkeypatch.setattr(module, "_triton", lambda device: triton_kernels)
    return kernel


def test_the_kernel_in_the_interpreter():
    """The whole of triton_interpreted.py, in a process that imports Triton with its interpreter on."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = Path(__file__).with_name("triton_interpreted.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" not in run.stdout


@pytest.mark.parametrize(
    ("target", "dtype", "tile"),
    [
        (("cuda", 80, 32), "fp32", triton_kernels.FEW), (("cuda", 90, 32), "bf16", triton_kernels.MANY),
        (("hip", "gfx942", 64), "fp16", triton_kernels.MANY),
    ],
)  # fmt: skip
def test_the_kernel_compiles_for_a_gpu(monkeypatch, tmp_path, target, dtype, tile):
    """Down to machine code, without the device: what may still fail there is loading, launching and computing."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    pointers = {
        "x": dtype, "codes": "u8", "scales": "u8", "scale_of": "fp32", "selector_of": "u8", "grids": "fp32", "y": "fp32"
    }  # fmt: skip
    signature = {name: "*" + kind for name, kind in pointers.items()} | dict.fromkeys(triton_kernels.SIZES, "i32")
    constants = {"TILE": tile, "ROWS": triton_kernels.ROWS}
    signature |= dict.fromkeys(constants, "constexpr")
    source = compiler.ASTSource(triton_kernels.product_kernel, signature, constants)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Triton's word on a default of its next version
        compiled = triton.compile(source, target=backends.GPUTarget(*target))
    assert compiled.asm["cubin" if target[0] == "cuda" else "hsaco"]
    assert "tf32" not in compiled.asm.get("ptx", "")  # float32 products are not shortened


def test_without_a_gpu_the_first_use_warns_and_torch_takes_over(monkeypatch):
    """Here Triton finds no driver (or, where a GPU is, refuses a CPU tensor): a failure as real as any."""
    monkeypatch.setattr(module, "_triton", lambda device: triton_kernels)
    weight = quantize(normal(70, 48))
    x = normal(3, 48, seed=1)
    with pytest.warns(RuntimeWarning, match="Packed products on cpu are left to torch") as seen:
        found = matmul(x, pack(weight))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(matmul(x, pack(weight)), found)
    torch.testing.assert_close(found, x @ weight.dequantize().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spoil", [lambda y: y * 1.0001, lambda y: y * torch.nan, torch.zeros_like])
def test_a_kernel_with_other_results_is_given_up(monkeypatch, spoil):
    kernel = fake(monkeypatch, spoil)
    weight = quantize(normal(70, 48))
    x = normal(3, 48, seed=1)
    with pytest.warns(RuntimeWarning, match=r"cannot be used there: a torch.float32 product is off by") as seen:
        found = matmul(x, pack(weight))
    assert len(seen) == 1
    torch.testing.assert_close(found, x @ weight.dequantize().T, rtol=1e-4, atol=1e-4)
    matmul(x.bfloat16(), pack(weight))
    assert len(kernel.calls) == 1


def test_every_variant_is_checked_once(monkeypatch):
    kernel = fake(monkeypatch)
    weight = quantize(normal(70, 48))
    packed, x = pack(weight), normal(65, 48, seed=1)
    for dtype in triton_kernels.DTYPES:
        for batch in (1, 16, 17, 65):
            found = matmul(x[:batch].to(dtype), packed)
            assert found.dtype == dtype
            torch.testing.assert_close(
                found, (x[:batch].to(dtype).float() @ weight.dequantize().T).to(dtype), rtol=1e-2, atol=1e-2
            )
    assert [call[0] for call in kernel.calls if call[1:] != (70, 48)] == [3, triton_kernels.MANY + 1] * 3
    assert len(kernel.calls) == 3 * (4 + 2)


def test_a_full_memory_is_no_reason_to_give_up(monkeypatch):
    def full(y):
        raise torch.OutOfMemoryError("full")

    fake(monkeypatch, full)
    with pytest.raises(torch.OutOfMemoryError):
        matmul(normal(3, 48), pack(quantize(normal(70, 48))))
    assert not triton_kernels._refused


def test_only_cuda_devices_and_only_with_triton(monkeypatch):
    module._triton.cache_clear()
    try:
        assert module._triton(torch.device("cpu")) is None
        assert module._triton(torch.device("cuda", 0)) is triton_kernels
        module._triton.cache_clear()
        monkeypatch.delattr("steelyard.quant.po2.triton_kernels")
        monkeypatch.setitem(sys.modules, "steelyard.quant.po2.triton_kernels", None)
        assert module._triton(torch.device("cuda", 0)) is None
    finally:
        module._triton.cache_clear()
