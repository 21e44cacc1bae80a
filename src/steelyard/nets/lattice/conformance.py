"""Probes for the checks that every method passes; the acceptance test takes the costs' constructor."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard import rng
from steelyard.contracts import Arrays, BadInput, CellInput, Conformance
from steelyard.nets.lattice import core, measure, tasks
from steelyard.nets.lattice.inference import stop_early
from steelyard.nets.lattice.reaction_time import reaction_time_correlation
from steelyard.nets.lattice.resources import used_resources
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.torch_nn import LatticeOutput, LatticeRCNN, ResourceCost
from steelyard.nets.lattice.training import HaltingWarning, train_lattice

MakeCost = Callable[..., Any]  # (breadth=0, depth=0, time=0) -> cost(model, output, progress) -> dict of terms
PRICED = ResourceCost(breadth=0.05, depth=0.05, time=0.1)


def _images(seed: int, dtype: torch.dtype = torch.float32, count: int = 24) -> tuple[Tensor, Tensor]:
    generator = rng.torch_generator("conformance", "lattice", seed)
    x = torch.rand((count, 1, 6, 6), generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (count,), generator=generator)


def _network(seed: int = 0) -> LatticeRCNN:
    return LatticeRCNN(1, 3, max_channels=4, max_layers=2, max_steps=4, seed=seed)


def _loss(model: LatticeRCNN, x: Tensor, y: Tensor, cost: ResourceCost | None, progress: float) -> Tensor:
    output = model(x)
    loss = core.task_loss(output.step_logits, output.log_p_time, y)
    return loss if cost is None else loss + torch.stack(list(cost(model, output, progress).values())).sum()


def _run(seed: int, dtype: str) -> Arrays:
    """Outputs, costs and gradients of one batch."""
    kind = getattr(torch, dtype)
    model = _network(seed).to(kind)
    x, y = _images(seed, kind)
    output = model(x)
    terms = PRICED(model, output)
    loss = core.task_loss(output.step_logits, output.log_p_time, y) + torch.stack(list(terms.values())).sum()
    torch.autograd.backward(loss)
    named = {"logits": output.logits, "p": output.p_time, "time": output.expected_time, "loss": loss, **terms}
    named |= {f"gradient {name}": weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert all(value.dtype == kind for value in named.values())
    return {name: value.detach().numpy() for name, value in named.items()}


def _plain(
    model: LatticeRCNN, updates: int, optimizer: torch.optim.Adam, first: int, cost: ResourceCost | None
) -> None:
    """Train on whole batches without anything of this library's recipe but the loss."""
    x, y = _images(0)
    generator = rng.torch_generator("conformance", "order", 0)
    orders = [torch.randperm(len(x), generator=generator) for _ in range(first + updates)]
    for number, order in enumerate(orders[first:], start=first):
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(_loss(model, x[order], y[order], cost, number / 8))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


def _adam(model: LatticeRCNN) -> torch.optim.Adam:
    halting = {id(parameter) for parameter in model.halting_parameters()}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in halting]
    return torch.optim.Adam([{"params": rest, "lr": 4e-3}, {"params": model.halting_parameters(), "lr": 2e-2}])


def _weights(model: LatticeRCNN) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in model.named_parameters()}


def _against_plain(cost: ResourceCost) -> tuple[Arrays, Arrays]:
    """Return the weights of the recipe with ``cost`` and of a plain loop without costs."""
    ours, plain = _network(), _network()
    x, y = _images(0)
    order = rng.torch_generator("conformance", "order", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltingWarning)  # eight updates do not teach it when to stop
        train_lattice(ours, (x, y), cost, updates=8, batch_size=len(x), occlusion=None, seed=order)
    _plain(plain, 8, _adam(plain), 0, None)
    return _weights(ours), _weights(plain)


def _resumed() -> tuple[Arrays, Arrays]:
    whole, half, restored = _network(), _network(), _network(1)
    _plain(whole, 8, _adam(whole), 0, PRICED)
    optimizer = _adam(half)
    _plain(half, 4, optimizer, 0, PRICED)
    restored.load_state_dict(half.state_dict())
    again = _adam(restored)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _plain(restored, 4, again, 4, PRICED)
    return _weights(whole), _weights(restored)


def _untouched() -> tuple[Arrays, Arrays]:
    x, _ = _images(0)
    model = _network()
    before = {"x": x.numpy().copy(), **{name: value.copy() for name, value in _weights(model).items()}}
    core.occlude(x, 3, generator=rng.torch_generator("conformance", "occluder", 0))
    stop_early(model, x)
    shrink(model, threshold=0.2)
    used_resources(model, images=x)
    return before, {"x": x.numpy(), **_weights(model)}


def check_positions(make_cost: MakeCost) -> None:
    """A channel costs r / C by its rank, a layer l / L by its number; norms near 1 make that hold for any power q.

    Raises:
        AssertionError: Another rule.
    """
    model, channels, layers = LatticeRCNN(1, 3, 4, 3, 4), 4, 3
    order = torch.tensor([3, 1, 4, 2])  # the rank of each channel
    with torch.no_grad():
        model.readout.zero_()  # whether it counts in the norms is a choice
        for weight in model.weights:
            rows = weight.flatten(1)
            rows *= ((1 - 1e-3 * order) / rows.norm(dim=1)).unsqueeze(1)
    ranks = order.expand(layers, channels) / channels
    numbers = (torch.arange(1, layers + 1).unsqueeze(1) / layers).expand(layers, channels)
    for resource, wanted in (("breadth", ranks), ("depth", numbers)):
        term = make_cost(**{resource: 1.0})(model, model(_images(0)[0]), 1.0)[resource]
        value = float(term.detach())
        assert abs(value / float(wanted.sum()) - 1) < 0.01, f"{resource} of known norms costs {value:.3f}"
        assert term.requires_grad, f"the price of {resource} reaches no weight"
        gradients = torch.autograd.grad(term, list(model.weights), materialize_grads=True)
        pairs = zip(gradients, model.weights, strict=True)
        marginal = torch.stack([(gradient * weight).detach().flatten(1).sum(1) for gradient, weight in pairs])
        shares = marginal / marginal.max()
        assert torch.allclose(shares, wanted, atol=0.01), f"the marginal prices of {resource} are {shares.tolist()}"


def check_time_price(make_cost: MakeCost) -> None:
    """Time costs E[t], and its gradient reaches all that decides when to halt.

    Raises:
        AssertionError: Another price or gradient.
    """
    model = _network()
    with torch.no_grad():
        model.kappa.fill_(0.7)
    output = model(_images(0)[0])
    steps = torch.arange(1, model.max_steps + 1)
    expected = (output.p_time * steps).sum(1).mean()
    term = make_cost(time=1.0)(model, output, 1.0)["time"]
    told, wanted_value = float(term.detach()), float(expected.detach())
    assert abs(told - wanted_value) < 1e-4, f"the time of {wanted_value:.3f} steps costs {told:.3f}"
    assert term.requires_grad, "the price of time reaches no weight"
    halting = model.halting_parameters()
    found = torch.autograd.grad(term, halting, retain_graph=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected, halting)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5), "the price of time does not move the halting as E[t] does"


def acceptance(make_cost: MakeCost, updates: int = 120) -> None:
    """Check the prices' closed forms, then train on digits with each and without: each lowers its own term.

    Raises:
        AssertionError: A price without its rule, or that changes nothing, an untrained network, a time that is blind to
            difficulty.
    """
    check_positions(make_cost)
    check_time_price(make_cost)
    parts = tasks.split(CellInput("digits", "acceptance", {}, {}, {}, 0, tasks.digits(), root="acceptance"))
    plain, _ = _trained(make_cost(), parts, updates)
    timed, hasty = _trained(make_cost(time=0.1), parts, updates)
    drop = plain["time"] - timed["time"]
    assert drop > 0.5, f"the price of time lowers the expected time by {drop:.2f} steps only"
    assert timed["accuracy"] > 75, f"the network does not learn: {timed['accuracy']:.1f} % correct"
    rank = measure.rank_correlation(hasty.expected_time, core.entropy(hasty.logits))
    assert rank > 0.5, f"expected time does not follow the network's uncertainty: rank correlation {rank:.2f}"
    for resource in ("breadth", "depth"):
        cheap, _ = _trained(make_cost(**{resource: 0.1}), parts, updates)
        ratio = cheap[resource] / plain[resource]
        assert ratio < 0.9, f"the price of {resource} leaves {ratio:.0%} of its own term"


def _trained(cost: Any, parts: tasks.Split, updates: int) -> tuple[dict[str, float], LatticeOutput]:
    model = LatticeRCNN(1, 10, max_channels=6, max_layers=2, max_steps=5, seed=0)
    data = (parts.train_x, parts.train_y)
    train_lattice(model, data, cost, updates=updates, batch_size=64, occlusion=(0, 4), seed=0)
    output = measure.look(model, parts.test_x)
    norms = [square.detach().sqrt() for square in model.channel_squares()]
    found = {
        "accuracy": measure.percent(output.logits, parts.test_y),
        "time": measure.mean(output.expected_time),
        "breadth": float(core.breadth_of_norms(norms)),
        "depth": float(core.depth_of_norms(norms)),
    }
    return found, output


class _Dummy:
    """Terms of the right names that no weight answers to."""

    def __init__(self, value: Callable[[], float]) -> None:
        self._value = value

    def __call__(self, model: LatticeRCNN, output: LatticeOutput, progress: float) -> dict[str, Tensor]:
        return {name: model.readout.new_tensor(self._value()) for name in ("breadth", "depth", "time", "readout")}


def _random(**prices: float) -> _Dummy:
    generator = rng.generator("conformance", "random costs", 0)
    return _Dummy(lambda: float(generator.random()))


DUMMIES: Mapping[str, MakeCost] = {
    "constant": lambda **prices: _Dummy(lambda: 1.0),
    "random": _random,
    "identity": lambda **prices: ResourceCost(),  # the loss stays as it is
}


def _bad_inputs() -> tuple[BadInput, ...]:
    x, y = _images(0)
    nan = x.clone()
    nan[3, 0, 2, 2] = torch.nan
    norm = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    output = _network()(x)
    rt = np.array([0.5, 0.6, 0.7])
    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("NaN in the input", lambda: _network()(nan), "x holds NaN"),
        ("an empty batch", lambda: _network()(x[:0]), "x must be"),
        ("input outside its range", lambda: _network()(2 * x), "input_range"),
        ("other channels", lambda: _network()(torch.cat((x, x), 1)), "in_channels"),
        ("fewer steps than layers", lambda: LatticeRCNN(1, 3, 4, 3, 2), "max_steps"),
        ("one class", lambda: LatticeRCNN(1, 1, 4, 2, 2), "n_classes"),
        ("an unknown choice of time", lambda: LatticeRCNN(1, 3, 4, 2, 2, time=_any("learned")), "time"),
        ("a negative price", lambda: ResourceCost(breadth=-1.0), "breadth"),
        ("an infinite price", lambda: ResourceCost(time=float("inf")), "time"),
        ("an unknown power", lambda: ResourceCost(q=3), "q must be"),
        ("batch norm", lambda: ResourceCost(breadth=0.1)(norm, output), "batch norm"),
        ("a p without its rest", lambda: core.time_cost(torch.tensor([0.5, 0.2])), "p must"),
        ("no weights", lambda: core.breadth_cost([]), "weights"),
        ("an occluder larger than the image", lambda: core.occlude(x, 7), "size"),
        ("an occluder of negative size", lambda: core.occlude(x, -1), "size"),
        ("classes out of range", lambda: train_lattice(_network(), (x, y + 3), updates=1), "classes"),
        ("images without classes", lambda: train_lattice(_network(), (x, y[:3]), updates=1), "classes"),
        ("an unknown rule", lambda: stop_early(_network(), x, rule=_any("never")), "rule"),
        ("a mass above 1", lambda: stop_early(_network(), x, threshold=1.5), "threshold"),
        ("shrinking everything", lambda: shrink(_network(), threshold=1.0), "threshold"),
        ("two conditions", lambda: reaction_time_correlation(rt, rt, ["a", "b", "a"]), "conditions"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


def _any(value: Any) -> Any:
    return value


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float32", "float64"),
    bad_inputs=_bad_inputs(),
    noop=lambda: _against_plain(ResourceCost()),
    effect=lambda: _against_plain(PRICED),
    resumed=_resumed,
    untouched=_untouched,
    implementation=ResourceCost,
    acceptance=acceptance,
    dummies=DUMMIES,
)
