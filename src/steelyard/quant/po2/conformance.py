"""Probes for the checks that every method passes; the acceptance test takes a quantiser in any form."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard import rng
from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.quant.po2 import digits
from steelyard.quant.po2.baselines import Quantiser, quantiser
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.evaluate import compare, kl_of_rows, token_windows
from steelyard.quant.po2.families import MPO2, NF4, GridFamily
from steelyard.quant.po2.fitting import fit_grids
from steelyard.quant.po2.tensor import QuantizedTensor, fake_quantize, quantize
from steelyard.quant.po2.theory import breakeven_gain, clark_min, expected_gain
from steelyard.quant.po2.torch_nn import quantize_model
from steelyard.quant.po2.user import user_task
from steelyard.quant.po2.weight_tasks import relative_error

_SPARE = 0.9  # of the best single grid's error: what a choice of grids must come below
_SPARE_SEARCHED = 0.95  # of one learned grid's with scale search: no choice of grids, but fifteen scales
_RATIOS = 256  # 4 grids of 16 values, times 4 codes that a group's largest value may have; MPO2 has about 60


def _values(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng.generator("conformance", "values", seed).standard_normal(shape))


def _run(seed: int, dtype: str) -> Arrays:
    """Quantise by four families, one of them learned, in the tensor's own dtype."""
    t = _values(seed, 24, 40).to(getattr(torch, dtype))
    pair = fit_grids(t.float(), seed=seed, n_restarts=4).family
    found = {}
    for family in ("nvfp4", "mpo2", "sfp4", pair):
        name = family if isinstance(family, str) else "learned"
        found[name] = fake_quantize(t, family).float() if dtype == "bfloat16" else fake_quantize(t, family)
    return {name: value.numpy() for name, value in found.items()}


def _noop() -> tuple[Arrays, Arrays]:
    """With the same grid twice there is nothing to choose: codes and values are those of the one grid."""
    t = _values(0, 32, 64).float()
    twice = quantize(t, GridFamily("twice", (NF4.grids[0],) * 2))
    once = quantize(t, NF4)
    return _parts(twice), _parts(once)


def _parts(q: QuantizedTensor) -> Arrays:
    return {"codes": q.codes.numpy(), "scales": q.scales.numpy(), "values": q.dequantize().numpy()}


def _effect() -> tuple[Arrays, Arrays]:
    t = _values(0, 32, 64).float()
    return {"values": fake_quantize(t, MPO2).numpy()}, {
        "values": fake_quantize(t, GridFamily("first", MPO2.grids[:1])).numpy()
    }


def _resumed() -> tuple[Arrays, Arrays]:
    """Half a matrix is quantised, stored and read again; the other half goes on with its tensor scale."""
    t = _values(5, 40, 48).float()
    first = quantize(t[:20], "sfp4")
    restored = QuantizedTensor.from_tensors(*first.to_tensors())
    return tuple(  # type: ignore[return-value]
        {**_parts(half), **{f"rest_{name}": part for name, part in _parts(quantize(t[20:], "sfp4", like=half)).items()}}
        for half in (first, restored)
    )


def _untouched() -> tuple[Arrays, Arrays]:
    t, importance = _values(1, 20, 64).float(), torch.rand(64, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.Linear(64, 20, device="meta")
    layer.weight = torch.nn.Parameter(t.clone())
    layer.bias = torch.nn.Parameter(torch.zeros(20))
    before = {"t": t.numpy().copy(), "importance": importance.numpy().copy(), "weight": t.numpy().copy()}
    quantize(t, "mpo2", importance=importance, search="sweep")
    fit_grids(t, fixed=(NF4,))
    quantize_model(layer)
    return before, {"t": t.numpy(), "importance": importance.numpy(), "weight": layer.weight.detach().numpy()}


@functools.cache
def _networks() -> Arrays:
    arrays = digits.load()
    return {**arrays, **digits.prepare(arrays)}


def acceptance(implementation: Any) -> None:
    """Demand of a quantiser what the method is for, on networks trained on scikit-learn's digits.

    ``implementation(t)`` returns what has ``dequantize()`` and ``stored_bits_per_weight``, as ``quantize`` does. At no
    more than NVFP4's size, the weights' error must be at least a tenth below that of NVFP4, of four over six and of one
    learned grid, and a twentieth below that of one learned grid with scale search; the outputs must diverge less than
    NVFP4's. Sizes are measured where the parts are at hand (``to_tensors()``); claims are held against the values.
    """
    _check_size_is_true(implementation)
    data = _networks()
    weights = [torch.from_numpy(data[f"weight{layer}"]) for layer in range(3)]
    ours = [implementation(weight) for weight in weights]
    size = sum(8 * q.stored_bytes for q in (quantize(weight, "nvfp4") for weight in weights))
    bits = sum(_bits(q, weight.numel()) for q, weight in zip(ours, weights, strict=True))
    assert bits <= size, f"{bits:.0f} bits are stored, NVFP4 needs {size}"
    error = relative_error(weights, [q.dequantize() for q in ours])
    for rival in ("nvfp4", "four_over_six", "lloyd1"):
        theirs = relative_error(weights, [fake_quantize(weight, rival) for weight in weights])
        assert error <= _SPARE * theirs, f"relative error {error:.5f}, {rival} has {theirs:.5f}"
    searched = relative_error(weights, [fake_quantize(weight, "lloyd1", search="sweep") for weight in weights])
    assert error <= _SPARE_SEARCHED * searched, f"relative error {error:.5f}, a searched grid has {searched:.5f}"
    drift = _drift(data, [q.dequantize() for q in ours])
    theirs = _drift(data, [fake_quantize(weight, "nvfp4") for weight in weights])
    assert drift < theirs, f"the outputs diverge by {drift:.5f} (geometric mean), with NVFP4 by {theirs:.5f}"


def _bits(q: Any, n: int) -> float:
    """Return the bits of ``n`` quantised values: those of the parts, or as claimed where there are none to count."""
    claimed = float(q.stored_bits_per_weight) * n
    if not hasattr(q, "to_tensors"):
        return claimed
    parts = q.to_tensors()[0].values()
    held = float(sum(8 * part.numel() * part.element_size() for part in parts))
    assert abs(claimed - held) < 1e-6 * held, f"{claimed:.0f} bits are claimed, {held:.0f} are stored"
    return held


def _check_size_is_true(implementation: Any) -> None:
    """Hold the claimed size against what is decoded from a Gaussian tensor.

    R bits a value leave a relative error of at least 2^-2R of independent Gaussian values (Shannon's rate-distortion
    bound); and groups of 16 on at most four grids of 16 values have few values relative to their largest.
    """
    t = _values(6, 256, 256).float()
    q = implementation(t)
    rate, decoded = _bits(q, t.numel()) / t.numel(), q.dequantize()
    error, least = relative_error([t], [decoded]), 2.0 ** (-2 * rate)
    assert error >= least, f"relative error {error:.5f} at {rate:.2f} bits: below {least:.5f}, so the size is not true"
    groups = decoded.reshape(-1, 16)
    largest = groups.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    ratios = int((groups / largest * 1e4).round().unique().numel())
    assert ratios <= _RATIOS, f"groups take {ratios} values relative to their largest; four grids have {_RATIOS}"


def _drift(data: Arrays, weights: list[Tensor]) -> float:
    """Return the geometric mean over networks of the divergence of their outputs on test images."""
    x = torch.from_numpy(np.stack([data["x"][rows] for rows in data["test"]]))
    biases = [torch.from_numpy(data[f"bias{layer}"]) for layer in range(3)]
    truth = digits.forward(x, [torch.from_numpy(data[f"weight{layer}"]) for layer in range(3)], biases).log_softmax(-1)
    ours = digits.forward(x, weights, biases).log_softmax(-1)
    kl = kl_of_rows(truth, ours).double().mean(1)
    return float(kl.clamp(min=1e-12).log().mean().exp())


@dataclass(frozen=True)
class _Stored:
    """Values with a claimed size."""

    values: Tensor
    stored_bits_per_weight: float

    def dequantize(self) -> Tensor:
        return self.values


def _identity(t: Tensor) -> _Stored:
    """Identity: hands on what it is given, at its full size."""
    return _Stored(t, 32.0)


def _constant(t: Tensor) -> QuantizedTensor:
    """Constant: every group takes the first grid."""
    return quantize(t, GridFamily("first", MPO2.grids[:1]))


def _random(t: Tensor) -> _Stored:
    """Random: every group takes a grid by lot."""
    lots: Quantiser = quantiser(Config(selector="random"), [], 0, torch.Generator().manual_seed(3))
    return _Stored(lots(t), quantize(t, "mpo2").stored_bits_per_weight)


_T = torch.ones(4, 32)
_NAN = torch.tensor([[1.0, float("nan")]])

BAD_INPUTS = (
    BadInput("NaN", lambda: quantize(_NAN), "NaN"),
    BadInput("infinity", lambda: quantize(torch.tensor([float("inf")])), "infinity"),
    BadInput("empty tensor", lambda: quantize(torch.empty(0, 16)), "t must"),
    BadInput("0-d tensor", lambda: quantize(torch.tensor(1.0)), "t must"),
    BadInput("whole numbers", lambda: quantize(torch.ones(4, 16, dtype=torch.int64)), "t must"),
    BadInput("axis out of range", lambda: quantize(_T, axis=2), "axis"),
    BadInput("unknown family", lambda: quantize(_T, "mpo3"), "mpo2"),
    BadInput("unknown scale", lambda: quantize(_T, scale="e5m2"), "scale"),
    BadInput("unknown search", lambda: quantize(_T, search="grid"), "search"),
    BadInput("group size 0", lambda: quantize(_T, group_size=0), "group_size"),
    BadInput("importance of another length", lambda: quantize(_T, importance=torch.ones(4)), "importance"),
    BadInput("negative importance", lambda: quantize(_T, importance=-torch.ones(32)), "importance"),
    BadInput("grid of 17 values", lambda: GridFamily("x", (tuple(range(-8, 9)),)), "16"),
    BadInput("grid that is not sorted", lambda: GridFamily("x", ((1.0, -1.0),)), "ascending"),
    BadInput("five grids in a byte", lambda: GridFamily("x", ((-1.0, 1.0),) * 5), "5 grids"),
    BadInput("too few samples", lambda: fit_grids(torch.ones(3, 16)), "samples"),
    BadInput("unknown start", lambda: fit_grids(_T, init="kmeans"), "init"),
    BadInput("errors of different groups", lambda: expected_gain([1.0, 2.0], [1.0]), "e1"),
    BadInput("negative deviation", lambda: clark_min(1.0, 1.0, -1.0), "theta"),
    BadInput("group size below 1", lambda: breakeven_gain(0), "group_size"),
    BadInput("too short a text", lambda: token_windows(torch.arange(3), 8), "tokens"),
    BadInput("windows of one token", lambda: compare(abs, {}, torch.ones(1, 1, dtype=torch.int64)), "windows"),
    BadInput("model that is not there", lambda: user_task(__file__, model="/nonexistent"), "model"),
    BadInput("tensors that are no file", lambda: user_task("/nonexistent.npz"), "npz"),
)

CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float32", "float64", "bfloat16"),
    bad_inputs=BAD_INPUTS,
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=quantize,
    acceptance=acceptance,
    dummies={"constant": _constant, "random": _random, "identity": _identity},
)
