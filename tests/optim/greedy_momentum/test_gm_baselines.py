import math

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import baselines


def quadratic(make, steps=60, shapes=((3,), (2, 2))):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    optimizer = make(params)
    for _ in range(steps):
        for p in params:
            p.grad = p.detach().clone()
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("name", baselines.RIVALS)
def test_every_rival_descends_a_quadratic(name):
    params, _ = quadratic(lambda params: baselines.RIVALS[name](params, 0.1, 60))
    assert sum(float((p.detach() ** 2).sum()) for p in params) < 0.3


@pytest.mark.parametrize("name", [name for name in baselines.RIVALS if name not in ("one_cycle", "demon")])
def test_closures_and_bad_rates_are_refused(name):
    params = [torch.zeros(2, requires_grad=True)]
    with pytest.raises(InputError, match="closure"):
        baselines.RIVALS[name](params, 0.1, 10).step(lambda: 0.0)
    with pytest.raises(InputError, match="lr"):
        baselines.RIVALS[name](params, -0.1, 10)


def test_heavy_ball_refuses_a_momentum_of_one():
    with pytest.raises(InputError, match="momentum"):
        baselines.CautiousSGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=1.0)


def test_one_cycle_is_the_momentum_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
    for step in range(40):
        assert baselines.one_cycle(step, 40) == pytest.approx(optimizer.param_groups[0]["momentum"], abs=1e-12)
        optimizer.step()
        if step < 39:
            schedule.step()


def test_demon_decays_from_its_initial_value_to_nothing():
    values = [baselines.demon(step, 100) for step in range(101)]
    assert values[0] == pytest.approx(0.9)
    assert values[-1] == 0
    assert values[50] == pytest.approx(0.9 * 0.5 / (0.1 + 0.9 * 0.5))
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("call", "name"), [
    (lambda: baselines.demon(11, 10), "step"), (lambda: baselines.demon(0, 0), "step"),
    (lambda: baselines.demon(1, 10, 1.0), "initial"), (lambda: baselines.one_cycle(-1, 10), "step"),
])  # fmt: skip
def test_schedules_refuse(call, name):
    with pytest.raises(InputError, match=name):
        call()


def test_scheduled_sgd_uses_the_scheduled_momentum():
    params, optimizer = quadratic(lambda params: baselines.ScheduledSGD(params, 0.1, lambda step, total: 0.5, 60))
    theirs, _ = quadratic(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5))
    assert all(torch.equal(a, b) for a, b in zip(params, theirs, strict=True))
    assert optimizer.param_groups[0]["momentum"] == 0.5


def test_random_candidates_are_uniform_and_follow_their_generator():
    found = []
    for _ in range(2):
        seen = []
        params = [torch.ones(2, requires_grad=True)]
        optimizer = baselines.RandomSGD(params, lr=0.0, generator=np.random.default_rng(3))
        for _ in range(600):
            params[0].grad = torch.ones(2)
            optimizer.step()
            seen.append(optimizer.last_choice.index)
        found.append(seen)
    assert found[0] == found[1]
    assert np.bincount(found[0]) / 600 == pytest.approx([1 / 3] * 3, abs=0.06)
    params = [torch.ones(2, requires_grad=True)]
    params[0].grad = torch.ones(2)
    adam = baselines.RandomAdamW(params, lr=0.1, generator=np.random.default_rng(3))
    adam.step()
    assert adam.last_choice.index == found[0][0]


@pytest.mark.parametrize("p", [1e-8, 1e-3, 0.5, 10.0, 1e6])
def test_yellowfin_cubic(p):
    x = baselines._cubic_root(p)
    assert 0 <= x <= 1
    assert p * x == pytest.approx((1 - x) ** 3, rel=1e-3, abs=1e-7)


def test_yellowfin_reaches_the_momentum_of_the_curvature_range():
    """Gradient norms that alternate 1 and 10: h_max/h_min = 100, so sqrt(mu) is at least (10 - 1)/(10 + 1)."""
    params = [torch.zeros(1, dtype=torch.float64, requires_grad=True)]
    optimizer = baselines.YellowFin(params, lr=0.0, beta=0.9)
    for step in range(200):
        params[0].grad = torch.tensor([10.0 if step % 2 else 1.0], dtype=torch.float64)
        optimizer.step()
    assert optimizer.param_groups[0]["momentum"] >= (9 / 11) ** 2 - 0.01


def test_yellowfin_ignores_gradients_that_are_zero_or_not_finite():
    params = [torch.zeros(1, requires_grad=True)]
    optimizer = baselines.YellowFin(params, lr=0.1)
    for value in (0.0, math.inf):
        params[0].grad = torch.tensor([value])
        optimizer.step()
    assert optimizer.param_groups[0]["momentum"] == 0.0


def test_hypergradient_moves_the_rate_along_the_inner_product():
    params = [torch.zeros(2, requires_grad=True)]
    optimizer = baselines.HypergradientSGD(params, lr=0.1, hyper_lr=0.01, momentum=0.0)
    for gradient in ([1.0, 2.0], [3.0, 1.0]):
        params[0].grad = torch.tensor(gradient)
        optimizer.step()
    assert optimizer.param_groups[0]["lr_shift"] == pytest.approx(0.05)
    assert params[0].tolist() == pytest.approx([-0.1 - 0.15 * 3, -0.2 - 0.15 * 1])


def test_cautious_masks_and_rescales():
    params = [torch.zeros(2, requires_grad=True)]
    optimizer = baselines.CautiousSGD(params, lr=1.0, momentum=0.9)
    for gradient in ([1.0, 1.0], [-0.5, 1.0]):
        params[0].grad = torch.tensor(gradient)
        optimizer.step()
    # buffer (0.4, 1.9): the first coordinate disagrees with its gradient, the second counts twice
    assert params[0].tolist() == pytest.approx([-1.0, -1.0 - 2 * 1.9])


def test_sgdf_of_a_constant_gradient_is_sgd():
    params = [torch.zeros(2, dtype=torch.float64, requires_grad=True)]
    optimizer = baselines.SGDF(params, lr=0.1)
    for _ in range(10):
        params[0].grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
        optimizer.step()
    assert params[0].tolist() == pytest.approx([-1.0, 2.0], rel=1e-6)


def test_adaptive_memory_takes_the_shortest_vector_between_the_planes():
    params = [torch.zeros(2, requires_grad=True)]
    optimizer = baselines.AdaptiveMemorySGD(params, lr=1.0)
    for gradient, beta, memory in (
        ([1.0, 0.0], 0.0, [1.0, 0.0]),
        ([0.0, 1.0], 0.5, [0.5, 0.5]),
    ):
        params[0].grad = torch.tensor(gradient)
        optimizer.step()
        assert optimizer.param_groups[0]["momentum"] == pytest.approx(beta)
        assert optimizer.state[params[0]]["memory"].tolist() == pytest.approx(memory)


def test_parameters_without_a_gradient_are_left_alone():
    params = [torch.ones(2, requires_grad=True)]
    baselines.CautiousSGD(params, lr=1.0).step()
    assert params[0].tolist() == [1, 1]
