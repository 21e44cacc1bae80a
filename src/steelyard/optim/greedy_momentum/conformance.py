"""Probes for the checks that every method passes; the acceptance test takes the optimizer's constructor."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard import rng
from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.optim.greedy_momentum import core, training
from steelyard.optim.greedy_momentum.baselines import RandomSGD
from steelyard.optim.greedy_momentum.bench import BENCH, CANDIDATES
from steelyard.optim.greedy_momentum.core import Choice
from steelyard.optim.greedy_momentum.torch_optim import GreedyAdamW, GreedySGD

Implementation = Callable[..., Any]  # (params, lr, momentum=candidates, **knobs) -> optimizer with last_choice
STEPS = 200
RATES = (0.01, 0.3)  # one that wants a large momentum and one that a large momentum ruins


def _quadratic(optimizer_of: Callable[[list[Tensor]], torch.optim.Optimizer], seed: int, dtype: str, steps: int = 20
               ) -> tuple[list[Tensor], torch.optim.Optimizer]:  # fmt: skip
    """Descend noisy quadratics of two tensors."""
    generator = torch.Generator().manual_seed(seed)
    params = [
        torch.randn(shape, generator=generator).to(getattr(torch, dtype)).requires_grad_() for shape in ((4, 3), (5,))
    ]
    optimizer = optimizer_of(params)
    _descend(params, optimizer, generator, steps)
    return params, optimizer


def _descend(params: list[Tensor], optimizer: torch.optim.Optimizer, generator: torch.Generator, steps: int) -> None:
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() + 0.3 * torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def _arrays(params: list[Tensor]) -> Arrays:
    """Return parameters as numpy arrays; numpy has no bfloat16, which widens to float32."""
    return {
        f"p{i}": (p.detach().float() if p.dtype == torch.bfloat16 else p.detach()).numpy().copy()
        for i, p in enumerate(params)
    }


def _run(seed: int, dtype: str) -> Arrays:
    sgd, _ = _quadratic(lambda params: GreedySGD(params, lr=0.05), seed, dtype)
    adam, _ = _quadratic(lambda params: GreedyAdamW(params, lr=0.05, preset="robust"), seed, dtype)
    for p in (*sgd, *adam):
        assert p.dtype == getattr(torch, dtype)
    return {
        f"{name}_{key}": value for name, ps in (("sgd", sgd), ("adamw", adam)) for key, value in _arrays(ps).items()
    }


def _against(ours: Callable[[list[Tensor]], torch.optim.Optimizer]) -> tuple[Arrays, Arrays]:
    theirs = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
    return _arrays(_quadratic(ours, 0, "float64")[0]), _arrays(_quadratic(theirs, 0, "float64")[0])


def _noop() -> tuple[Arrays, Arrays]:
    return _against(lambda params: GreedySGD(params, lr=0.05, momentum=0.9, weight_decay=0.01))


def _effect() -> tuple[Arrays, Arrays]:
    return _against(lambda params: GreedySGD(params, lr=0.05, weight_decay=0.01))


def _resumed() -> tuple[Arrays, Arrays]:
    def make(params: list[Tensor]) -> GreedySGD:
        return GreedySGD(params, lr=0.05, selection="per_param", j_ema=0.9, hysteresis=2)

    whole, _ = _quadratic(make, 0, "float32", steps=20)
    half, optimizer = _quadratic(make, 0, "float32", steps=10)
    generator = torch.Generator().manual_seed(0)  # replays the first half's draws
    for p in half:
        torch.randn(p.shape, generator=generator)
    for _ in range(10):
        for p in half:
            torch.randn(p.shape, generator=generator)
    fresh = [p.detach().clone().requires_grad_() for p in half]
    restored = make(fresh)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _descend(fresh, restored, generator, 10)
    return _arrays(whole), _arrays(fresh)


def _untouched() -> tuple[Arrays, Arrays]:
    rho = 0.8 ** np.arange(20.0)
    gradients = np.random.default_rng(0).normal(size=(30, 4))
    before = {"rho": rho.copy(), "gradients": gradients.copy()}
    core.alignment_curve(rho, CANDIDATES)
    core.autocorrelation(gradients, 5)
    return before, {"rho": rho, "gradients": gradients}


def _parameter() -> list[Tensor]:
    return [torch.zeros(3, requires_grad=True)]


def _step_with(gradient: Tensor) -> None:
    params = _parameter()
    optimizer = GreedySGD(params, lr=0.1)
    params[0].grad = gradient
    optimizer.step()


BAD_INPUTS = (
    BadInput("a candidate outside [0, 1)", lambda: GreedySGD(_parameter(), momentum=(0.5, 1.0)), "momentum"),
    BadInput("unsorted candidates", lambda: GreedySGD(_parameter(), momentum=(0.9, 0.5)), "momentum"),
    BadInput("duplicated candidates", lambda: GreedyAdamW(_parameter(), beta1=(0.9, 0.9)), "beta1"),
    BadInput("no candidate", lambda: GreedyAdamW(_parameter(), beta1=()), "beta1"),
    BadInput("a NaN candidate", lambda: GreedySGD(_parameter(), momentum=(float("nan"),)), "momentum"),
    BadInput("beta2 of 1", lambda: GreedyAdamW(_parameter(), beta2=1.0), "beta2"),
    BadInput("a negative learning rate", lambda: GreedySGD(_parameter(), lr=-0.1), "lr"),
    BadInput("an unknown score", lambda: GreedySGD(_parameter(), score="previous"), "score"),  # type: ignore[arg-type]
    BadInput("an unknown preset", lambda: GreedySGD(_parameter(), preset="best"), "preset"),  # type: ignore[arg-type]
    BadInput("smoothing of 1", lambda: GreedySGD(_parameter(), j_ema=1.0), "j_ema"),
    BadInput("a closure", lambda: GreedySGD(_parameter()).step(lambda: 0.0), "closure"),  # type: ignore[arg-type]
    BadInput("a sparse gradient", lambda: _step_with(torch.zeros(3).to_sparse()), "sparse"),
    BadInput("an empty autocorrelation", lambda: core.alignment_curve([], CANDIDATES), "rho"),
    BadInput("a NaN autocorrelation", lambda: core.alignment_curve([1.0, float("nan")], CANDIDATES), "rho"),
    BadInput("correlation of 1", lambda: core.optimal_momentum_ar1(1.0), "a"),
    BadInput("negative noise", lambda: core.optimal_momentum_signal_noise(1.0, -1.0, 0.5), "N"),
)


def acceptance(make: Implementation, seeds: tuple[int, ...] = (0, 1)) -> None:
    """Ask of ``make`` what no fixed and no random candidate can do.

    1. On gradient streams with correlation 0.5, 0.9 and 0.99 it mostly uses the matched candidate of each.
    2. On digits it comes within 6 points of the best fixed candidate both at a learning rate that wants a large
       momentum and at one that a large momentum ruins; every fixed candidate misses one of the two by far more.

    Raises:
        AssertionError: One of the two does not hold.
    """
    for seed in seeds:
        for a in CANDIDATES:
            share = _matched_share(make, a, seed)
            assert share > 0.6, f"correlation {a}: the matched candidate was used in {share:.0%} of the steps only"
        for lr in RATES:
            best = max(_digits(functools.partial(GreedySGD, momentum=m), lr, seed) for m in CANDIDATES)
            score = _digits(functools.partial(make, preset="robust"), lr, seed)
            assert score > best - 6, (
                f"learning rate {lr}: {score:.1f} % where the best fixed candidate has {best:.1f} %"
            )


def _matched_share(make: Implementation, a: float, seed: int, size: int = 4000, steps: int = 400) -> float:
    """Return how often the candidate ``a`` is used on an AR(1) stream of gradients, after a start-up."""
    generator = rng.torch_generator("acceptance", f"ar1/{a}", seed)
    parameter = torch.zeros(size, requires_grad=True)
    optimizer = make([parameter], lr=0.0, momentum=CANDIDATES, j_ema=0.9)
    gradient = torch.randn(size, generator=generator)
    hits = 0
    for step in range(steps):
        gradient = a * gradient + (1 - a * a) ** 0.5 * torch.randn(size, generator=generator)
        parameter.grad = gradient
        optimizer.step()
        hits += step >= steps // 2 and optimizer.last_choice.value == a
    return hits / (steps - steps // 2)


def _digits(make: Implementation, lr: float, seed: int) -> float:
    """Return the test accuracy after a short training on digits."""
    task = BENCH.task("digits_sgd")
    parts = training.split(_loaded(), 597, rng.generator("acceptance", "split", seed))
    network = training.small_cnn(rng.torch_generator("acceptance", "weights", seed))
    stream = training.batches(parts, STEPS, 64, rng.generator("acceptance", f"{task.name}/batches", seed))
    trained = training.train(network, stream, make, lr, STEPS)
    score = None if trained is None else training.accuracy(network, [(parts.test_x, parts.test_y)])
    return parts.chance if score is None else score


@functools.cache
def _loaded() -> Arrays:
    return BENCH.task("digits_sgd").load()


class _Idle(torch.optim.Optimizer):
    """Changes nothing and selects nothing."""

    def __init__(self, params: Any, lr: float, **knobs: Any) -> None:
        super().__init__(params, {"lr": lr})
        self.last_choice = Choice(0, CANDIDATES[0])

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Leave everything as it is."""


def _constant(params: Any, lr: float, **knobs: Any) -> GreedySGD:
    return GreedySGD(params, lr, momentum=0.9)


def _random(params: Any, lr: float, **knobs: Any) -> RandomSGD:
    return RandomSGD(params, lr, generator=rng.generator("acceptance", "random candidate", 0))


DUMMIES: Mapping[str, Implementation] = {
    "constant": _constant,
    "random": _random,
    "identity": _Idle,
}

CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float32", "float64", "bfloat16"),
    bad_inputs=BAD_INPUTS,
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=GreedySGD,
    acceptance=acceptance,
    dummies=DUMMIES,
)
