"""Small probes of the exact cross-entropy for the checks that every method passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steelyard.contracts import Arrays, BadInput, CellInput, Conformance
from steelyard.optim.nfi.baselines import LOSSES
from steelyard.optim.nfi.binary import exact_bce_with_logits
from steelyard.optim.nfi.core import exact_cross_entropy
from steelyard.optim.nfi.monitor import AlarmRule, NFIMonitor
from steelyard.optim.nfi.theory import collapse_threshold, simulate_nfi
from steelyard.optim.nfi.torch_nn import ExactCrossEntropyLoss, center_head_
from steelyard.rng import torch_generator

LossFunction = Callable[[Tensor, Tensor], Tensor]


def _problem(seed: int, dtype: torch.dtype, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch_generator("conformance", "nfi", seed)
    logits = torch.randn(12, 7, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 7, (12,), generator=generator)
    logits.scatter_add_(1, target.unsqueeze(1), torch.full((12, 1), margin, dtype=torch.float64))
    return logits.to(dtype), target


def _loss_and_gradient(loss: LossFunction, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, target)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def _run(seed: int, dtype: str) -> Arrays:
    logits, target = _problem(seed, getattr(torch, dtype), margin=20.0)
    value, gradient = _loss_and_gradient(exact_cross_entropy, logits, target)
    assert value.dtype == gradient.dtype == logits.dtype
    if value.dtype in (torch.bfloat16, torch.float16):  # kept, as just asserted; numpy knows no bfloat16
        value, gradient = value.float(), gradient.float()
    return {"loss": value.numpy(), "gradient": gradient.numpy()}


def _noop() -> tuple[Arrays, Arrays]:
    """With label smoothing nothing can collapse, so the standard cross-entropy is used as it is."""
    logits, target = _problem(0, torch.float32)
    arms: tuple[LossFunction, LossFunction] = (
        lambda z, t: exact_cross_entropy(z, t, label_smoothing=0.1),
        lambda z, t: functional.cross_entropy(z, t, label_smoothing=0.1),
    )
    return _both(arms, logits, target)


def _effect() -> tuple[Arrays, Arrays]:
    logits, target = _problem(0, torch.float32, margin=30.0)
    return _both((exact_cross_entropy, functional.cross_entropy), logits, target)


def _both(arms: tuple[LossFunction, LossFunction], logits: Tensor, target: Tensor) -> tuple[Arrays, Arrays]:
    ours, baseline = (_loss_and_gradient(arm, logits, target) for arm in arms)
    names = ("loss", "gradient")
    return (
        {name: value.numpy() for name, value in zip(names, ours, strict=True)},
        {name: value.numpy() for name, value in zip(names, baseline, strict=True)},
    )


def _training() -> tuple[torch.nn.Linear, torch.optim.Adam, NFIMonitor]:
    head: torch.nn.Linear = torch.nn.utils.skip_init(torch.nn.Linear, 7, 7)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(torch.eye(7))
        head.bias.zero_()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    return head, optimizer, NFIMonitor(head, optimizer, rule=AlarmRule(window=5))


def _advance(training: tuple[torch.nn.Linear, torch.optim.Adam, NFIMonitor], steps: int) -> None:
    head, optimizer, monitor = training
    features, target = _problem(0, torch.float32)
    loss_of = ExactCrossEntropyLoss()
    with monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(head(features), target).backward()
            optimizer.step()


def _outcome(training: tuple[torch.nn.Linear, torch.optim.Adam, NFIMonitor]) -> Arrays:
    head, _, monitor = training
    numbers = [[record.eps, record.cosine, record.mu_norm, record.update_ratio] for record in monitor.history]
    return {"weight": head.weight.detach().numpy(), "history": np.nan_to_num(np.array(numbers))}


def _resumed() -> tuple[Arrays, Arrays]:
    whole, first, second = _training(), _training(), _training()
    _advance(whole, 20)
    _advance(first, 10)
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    second[2].load_state_dict(first[2].state_dict())
    _advance(second, 10)
    return _outcome(whole), _outcome(second)


def _untouched() -> tuple[Arrays, Arrays]:
    logits, target = _problem(0, torch.float32, margin=25.0)
    before = {"logits": logits.numpy().copy(), "target": target.numpy().copy()}
    exact_cross_entropy(logits.requires_grad_(), target, weight=torch.ones(7)).backward()  # type: ignore[no-untyped-call]
    return before, {"logits": logits.detach().numpy(), "target": target.numpy()}


def acceptance(implementation: LossFunction) -> None:
    """Train on real digits far past fit with ``implementation`` as the loss: right gradients, learning, no spike.

    Args:
        implementation: (logits (N, K), class indices (N,)) -> mean loss.

    Raises:
        AssertionError: A collapsed row's gradient is wrong, the model does not learn, or the loss spikes.
    """
    logits, target = _problem(1, torch.float32, margin=25.0)
    _, gradient = _loss_and_gradient(implementation, logits, target)
    _, reference = _loss_and_gradient(functional.cross_entropy, logits.double(), target)
    worst = float(((gradient.double() - reference) / reference).abs().max())
    assert worst < 1e-4, f"gradients of confident samples are off by {worst:.2g} relative"
    course = _digits_run(implementation)
    assert course["final_loss"] < 1e-8, f"does not learn: final loss {course['final_loss']:.2g}"
    assert course["accuracy"] > 0.7, f"does not learn: accuracy {course['accuracy']:.2f}"
    assert course["spikes"] == 0, f"{course['spikes']:.0f} loss spikes"


def _digits_run(implementation: LossFunction) -> dict[str, float]:
    from steelyard.optim.nfi import bench

    params = {**bench.BENCH.profiles["quick"].params, "steps": 1500}
    cell = CellInput("digits", "exact", {}, params, {}, 0, bench.BENCH.task("digits").load(), root="acceptance")
    return bench.run(cell, loss=implementation).metrics


def _constant(logits: Tensor, target: Tensor) -> Tensor:
    return logits.sum() * 0.0


def _random(logits: Tensor, target: Tensor) -> Tensor:
    noise = torch.randn(logits.shape, generator=torch_generator("conformance", "nfi/dummy", 0))
    return (logits * noise.to(logits)).sum()


def _bad_inputs() -> tuple[BadInput, ...]:
    logits, target = _problem(0, torch.float32)
    linear: torch.nn.Linear = torch.nn.utils.skip_init(torch.nn.Linear, 3, 2)  # type: ignore[no-untyped-call]
    nan = logits.clone()
    nan[3, 2] = math.nan
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("soft targets", lambda: exact_cross_entropy(logits, torch.softmax(logits, 1)), "target"),
        ("target out of range", lambda: exact_cross_entropy(logits, target + 7), "target"),
        ("negative target", lambda: exact_cross_entropy(logits, target - 7), "target"),
        ("one class", lambda: exact_cross_entropy(logits[:, :1], target * 0), "logits"),
        ("NaN logits", lambda: exact_cross_entropy(nan, target), "logits"),
        ("integer logits", lambda: exact_cross_entropy(logits.long(), target), "logits"),
        ("target of another length", lambda: exact_cross_entropy(logits, target[:5]), "target"),
        ("weight of another length", lambda: exact_cross_entropy(logits, target, torch.ones(3)), "weight"),
        ("unknown reduction", lambda: exact_cross_entropy(logits, target, reduction=_any("max")), "reduction"),
        ("soft binary target", lambda: exact_bce_with_logits(logits[:, 0], torch.full((12,), 0.3)), "target"),
        ("dtype", lambda: collapse_threshold(torch.int64, 10), "dtype"),
        ("K", lambda: simulate_nfi(1, 0.1, 0.1), "K"),
        ("monitor interval", lambda: NFIMonitor(linear, every=0), "every"),
        ("head without weight", lambda: center_head_(torch.nn.ReLU()), "linear"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


def _any(value: Any) -> Any:
    return value


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=LOSSES["exact"],
    acceptance=acceptance,
    dummies={"constant": _constant, "random": _random, "identity": functional.cross_entropy},
)
