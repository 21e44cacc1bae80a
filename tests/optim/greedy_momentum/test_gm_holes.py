"""Closed forms for what plausible mistakes would change; each was written after such a mistake went unseen."""

import copy
import math

import numpy as np
import pytest
import torch

from steelyard.optim import GreedyAdamW, GreedySGD
from steelyard.optim.greedy_momentum import core, greedy


def test_smoothing_weighs_the_past_by_j_ema():
    memory = core.new_memory(1, 2)
    for J in ([8.0, 0.0], [0.0, 4.0]):
        memory, _ = core.select(memory, np.array([J]), 0.75)
    assert memory.alignment.tolist() == [[0.75 * 0.25 * 8, 0.25 * 4]]


def test_the_choice_is_that_of_the_smoothed_score():
    memory = core.new_memory(1, 2)
    for J in ([8.0, 0.0], [0.0, 4.0]):  # smoothed (1.5, 1.0): the last raw score alone would take the second
        memory, _ = core.select(memory, np.array([J]), 0.75)
    assert memory.choice.tolist() == [0]


def test_hysteresis_asks_the_raw_score_and_moves_to_the_smoothed_best_only():
    memory = core.new_memory(1, 3)
    first, _ = core.select(memory, np.array([[0.0, 0.0, 8.0]]), 0.75, 2)
    assert (first.leader.tolist(), first.streak.tolist(), first.choice.tolist()) == ([2], [1], [0])
    second, _ = core.select(first, np.array([[0.0, 1.0, 0.0]]), 0.75, 2)
    assert (second.leader.tolist(), second.streak.tolist(), second.choice.tolist()) == ([1], [1], [0])
    third, _ = core.select(second, np.array([[0.0, 1.0, 0.0]]), 0.75, 2)  # smoothed best is still 2, the raw streak 1's
    assert third.alignment.argmax() == 2
    assert (third.leader.tolist(), third.streak.tolist(), third.choice.tolist()) == ([1], [2], [0])


def test_each_lag_is_averaged_over_its_own_pairs():
    rho = core.autocorrelation(np.array([[1.0], [2.0], [3.0]]), 2)
    assert rho.tolist() == pytest.approx([14 / 3, 8 / 2, 3 / 1])


def test_each_tensor_moves_by_its_own_choice():
    a, b = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = GreedySGD([a, b], 1.0, (0.5, 0.9), selection="per_param", normalization="none")
    for first, second in ((1.0, 1.0), (-1.0, 1.0)):  # a turns round, b goes on
        a.grad, b.grad = torch.full_like(a, first), torch.full_like(b, second)
        optimizer.step()
    assert [choice.value for choice in optimizer.last_choice] == [0.5, 0.9]
    assert a.item() == pytest.approx(-1 - (0.5 - 1))
    assert b.item() == pytest.approx(-1 - (0.9 + 1))


def test_global_scores_add_up_over_groups():
    a, b = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = GreedySGD([{"params": [a]}, {"params": [b]}], 0.1, (0.5, 0.9), normalization="none")
    for first, second in ((1.0, 1.0), (-1.0, 3.0)):
        a.grad, b.grad = torch.full_like(a, first), torch.full_like(b, second)
        optimizer.step()
    assert optimizer.alignment.tolist() == pytest.approx([-(m - 1) + 3 * (m + 3) for m in (0.5, 0.9)])


def test_one_w_over_all_tensors_weighs_them_by_their_size():
    a, b = torch.zeros(1, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    params = [a.requires_grad_(), b.requires_grad_()]
    optimizer = GreedyAdamW(
        [{"params": [a]}, {"params": [b]}], 0.0, (0.5, 0.9), 0.0, 0.0, 0.0, w_scope="all", normalization="literal"
    )
    a.grad, b.grad = torch.full_like(a, 4.0), torch.full_like(b, 0.5)
    optimizer.step()
    mean = (1 / 4 + 3 / 0.5) / 4
    inner = 4.0 * 1 + 3 * 0.5 * 1  # the first update is the sign of the gradient
    assert len(params) == 2
    assert optimizer.alignment.tolist() == pytest.approx(
        [inner * math.sqrt(1 - m * m) / math.sqrt(mean) for m in (0.5, 0.9)]
    )


def test_half_precision_is_widened_before_it_is_summed():
    half = torch.full((3,), 300.0, dtype=torch.float16)
    assert greedy.exact(half).dtype == torch.float32
    assert greedy.inner_products(half.unsqueeze(0), half).tolist() == [270_000.0]  # above float16's range
    assert greedy.exact(half.double()).dtype == torch.float64


@pytest.mark.parametrize("make", [GreedySGD, GreedyAdamW])
def test_a_copy_steps_as_the_original_does(make):
    layer = torch.nn.Linear(3, 2)
    optimizer = make(layer.parameters(), 0.1)
    twin, other = copy.deepcopy((layer, optimizer))
    for model, stepper in ((layer, optimizer), (twin, other)):
        for _ in range(3):
            stepper.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            stepper.step()
    assert torch.equal(layer.weight, twin.weight)
    assert optimizer.last_choice == other.last_choice


def test_adam_corrects_the_moment_of_the_chosen_candidate():
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = GreedyAdamW([p], 0.1, (0.5, 0.9), 0.99, 1e-3, 0.0)
    m = {0.5: 0.0, 0.9: 0.0}
    v = x = 0.0
    for t, g in enumerate((1.0, 3.0, 2.0), start=1):
        p.grad = torch.full_like(p, g)
        optimizer.step()
        m, v = {b: b * old + (1 - b) * g for b, old in m.items()}, 0.99 * v + 0.01 * g * g
        assert optimizer.last_choice.value == 0.9
        x -= 0.1 * m[0.9] / (1 - 0.9**t) / (math.sqrt(v / (1 - 0.99**t)) + 1e-3)
        assert p.item() == pytest.approx(x, rel=1e-12)


def test_groups_share_one_memory_whichever_has_gradients():
    a, b = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = GreedySGD([a], 0.1, (0.5, 0.9), normalization="none", j_ema=0.75)
    a.grad = torch.full_like(a, 2.0)
    optimizer.step()
    J = np.full(2, 0.25 * 4)
    optimizer.add_param_group({"params": [b]})  # it takes the memory over
    a.grad, b.grad = None, torch.full_like(b, 3.0)
    optimizer.step()
    J = 0.75 * J + 0.25 * 9
    assert optimizer.alignment.tolist() == pytest.approx(J)
    a.grad, b.grad = torch.full_like(a, 1.0), None
    optimizer.step()
    J = 0.75 * J + 0.25 * (1 + 2 * np.array([0.5, 0.9]))
    assert optimizer.alignment.tolist() == pytest.approx(J)


@pytest.mark.parametrize("corrected", [True, False])
def test_each_tensor_keeps_its_own_count_and_the_update_is_torchs(corrected):
    a, b = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = GreedyAdamW([a, b], 0.1, (0.5, 0.9), 0.9, 1e-3, 0.1, bias_corrected_score=corrected)
    count, m, v, x = 0, {0.5: 0.0, 0.9: 0.0}, 0.0, 1.0
    for step, g in enumerate((1.0, 3.0, 2.0, 2.0)):
        a.grad = torch.full_like(a, 1.0)
        b.grad = None if step == 0 else torch.full_like(b, g)  # b starts one step later
        optimizer.step()
        if step == 0:
            continue
        count += 1
        chosen = optimizer.last_choice.value
        m, v = {beta: beta * old + (1 - beta) * g for beta, old in m.items()}, 0.9 * v + 0.1 * g * g
        x *= 1 - 0.1 * 0.1
        x -= 0.1 * m[chosen] / (1 - chosen**count) / (math.sqrt(v / (1 - 0.9**count)) + 1e-3)
        assert b.tolist() == pytest.approx([x, x], rel=1e-12)
