"""What the acceptance test lets pass: the method, and nothing that only says that it is one."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from steelyard.quant.po2 import conformance
from steelyard.quant.po2.conformance import _Stored, acceptance
from steelyard.quant.po2.fitting import fit_grids
from steelyard.quant.po2.tensor import QuantizedTensor, quantize


class Understated(QuantizedTensor):
    """Parts of eight bytes too few, as it says."""

    @property
    def stored_bits_per_weight(self):
        return -1.0


def eight_bits(t):
    groups = t.reshape(-1, 16)
    unit = groups.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return _Stored(((groups / unit).round() * unit).reshape(t.shape), 4.5)


def understated(t):
    q = quantize(t)
    return Understated(**{field.name: getattr(q, field.name) for field in dataclasses.fields(q)})


def searched_learned(t):
    return quantize(t, fit_grids(t.reshape(-1, t.shape[-1]), n_grids=1, n_restarts=2).family, search="sweep")


@pytest.mark.parametrize("search", ["none", "sweep"])
def test_the_method_passes(search):
    acceptance(lambda t: quantize(t, search=search))


@pytest.mark.parametrize("name", ["constant", "random", "identity"])
def test_dummies_fail(name):
    with pytest.raises(AssertionError):
        acceptance(conformance.CONFORMANCE.dummies[name])


@pytest.mark.parametrize(
    ("impostor", "word"),
    [
        (lambda t: _Stored(t, 4.5), "size is not true"),
        (lambda t: _Stored(t, 1e9), "values relative"),
        (lambda t: _Stored(quantize(t).dequantize(), -1.0), "size is not true"),
        (lambda t: _Stored(quantize(t).dequantize(), 3.0), "size is not true"),
        (eight_bits, "size is not true"),
        (understated, "are claimed"),
        (lambda t: quantize(t, "nf4", search="sweep"), "relative error"),
        (lambda t: quantize(t, "lloyd1", search="sweep"), "relative error"),
        (searched_learned, "searched grid"),
        (lambda t: quantize(t, scale="fp16"), "bits are stored"),
        (lambda t: _Stored(torch.zeros_like(t), 4.5), "relative error"),
    ],
)
def test_impostors_fail(impostor, word):
    with pytest.raises(AssertionError, match=word):
        acceptance(impostor)
