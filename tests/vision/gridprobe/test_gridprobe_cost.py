"""Operations against the paper's curve, torch's own counter, and each other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steelyard.errors import InputError
from steelyard.models.vision.protocols import LMDims
from steelyard.models.vision.tiny_vlm import FULL, TinyVLM
from steelyard.vision import break_even_fraction, compute_ratio, forward_flops, gridprobe_flops

QWEN = LMDims(2048, 6144, 1024, 28, 151936)  # Qwen3-VL-2B
GROUP = 733  # tokens of two frames


@pytest.mark.parametrize(("k", "whole", "probes"), [(6, 85, 104), (8, 207, 193), (12, 820, 470), (16, 2342, 898)])
def test_the_published_curve(k, whole, probes):
    tokens = k * k / 2 * GROUP
    assert forward_flops(tokens, QWEN) / 1e12 == pytest.approx(whole, abs=0.6)
    free = gridprobe_flops(tokens, QWEN, k=k, fraction=0.0, rho=1.0)
    assert free / 1e12 == pytest.approx(probes, abs=0.6), "probes at full resolution"


def test_the_headline_cannot_be_had_with_fine_probes():
    assert compute_ratio(72 * GROUP, QWEN, k=12, fraction=0.0, rho=1.0) == pytest.approx(1.75, abs=0.01)


def test_generalised_sizes():
    tiny = LMDims(64, 128, 32, 2, 1000, d_q=128)
    blocks = 2 * (10 * (2 * (64 * 128 + 2 * 64 * 32) + 2 * 128 * 64 + 6 * 64 * 128) + 4 * 100 * 128)
    assert forward_flops(10, tiny) == blocks + 10 * 2 * 64 * 1000
    assert forward_flops(10, tiny, head="last") == blocks + 2 * 64 * 1000


def test_the_formula_counts_what_torch_counts():
    model, clip = TinyVLM(), torch.zeros(1, 24, 16, 16, 3)
    features = model.patches(clip, FULL)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.read(torch.zeros(1, 2, dtype=torch.long), features, torch.zeros(1, 24))
    times = 2 * 24 * 16 * 64  # the clock of frames, which the formula leaves out
    assert forward_flops(24 * 4 + 3, model.dims, head="last") == pytest.approx(
        counter.get_total_flops() - times, rel=0.01
    )


@given(st.floats(0.05, 1.0), st.integers(4, 20), st.floats(0, 200))
def test_at_the_break_even_both_cost_the_same(rho, k, text):
    tokens = k * k / 2 * GROUP
    share = break_even_fraction(tokens, QWEN, k=k, rho=rho, text_tokens=text)
    if 0 < share <= 1:
        assert compute_ratio(tokens, QWEN, k=k, fraction=share, rho=rho, text_tokens=text) == pytest.approx(1, abs=1e-6)
    elif share == 0:
        assert compute_ratio(tokens, QWEN, k=k, fraction=0.0, rho=rho, text_tokens=text) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: forward_flops(np.nan, QWEN), "n_tokens"),
        (lambda: forward_flops(1, QWEN, head="first"), "head"),
        (lambda: gridprobe_flops(1, QWEN, k=2, fraction=2.0, rho=1.0), "fraction"),
        (lambda: gridprobe_flops(1, QWEN, k=1, fraction=0.0, rho=1.0), "k must"),
        (lambda: gridprobe_flops(1, QWEN, k=2, fraction=0.0, rho=2.0), "rho"),
        (lambda: gridprobe_flops(1, QWEN, k=2, fraction=0.0, rho=1.0, text_tokens=-1), "text_tokens"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
