"""The same bits on every processor: with and without AVX-512, on a generic one, and without numba at all."""

import os
import subprocess
import sys

import pytest

_PROBE = """
import hashlib, sys
if "without" in sys.argv:
    sys.modules["numba"] = None
import torch
torch.set_num_threads(1)
from steelyard.quant.po2 import matmul, packed_matrix, tensor
x = torch.randn(160, 80, generator=torch.Generator().manual_seed(0))
whole = hashlib.sha256()
for family, search in (("mpo2", "none"), ("nvfp4", "sweep"), ("sfp4", "none")):
    q = tensor.quantize(x, family, search=search)
    for part in (q.codes, q.scales, q.dequantize(), tensor.fake_quantize(x, family, 8)):
        whole.update(part.numpy().tobytes())
packed = packed_matrix.pack(q)
whole.update(packed_matrix.dense(packed).numpy().tobytes())
error = (matmul.matmul(x[:1], packed) - x[:1] @ q.dequantize().T).abs().max()
assert error < 1e-4, error
fast = tensor._kernels()
print(fast is not None, fast is not None and fast.has_permute(), whole.hexdigest())
"""


def probe(*arguments, **environment):
    """Return whether a fresh interpreter compiles, whether it permutes, and a digest of what it made of a tensor."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *arguments], env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def here():
    """What this machine makes of it."""
    return probe()


@pytest.mark.parametrize(
    "environment",
    [
        {"NUMBA_ENABLE_AVX": "0"},  # LLVM would end the process over an instruction that it was told to leave out
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},  # vectors of sixteen are taken apart, as on ARM
    ],
)
def test_other_processors_make_the_same_bits(here, environment):
    assert probe(**environment) == ["True", "False", here[2]]


def test_without_numba_the_same_bits(here):
    assert here[0] == "True"
    assert probe("without") == ["False", "False", here[2]]
