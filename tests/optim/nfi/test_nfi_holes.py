"""Closed forms for what plausible mistakes would change; each was written after such a mistake went unseen."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard.optim import NFIMonitor, center_head_
from steelyard.optim.nfi.monitor import AlarmRule


def record_of(weight, x, y, make=torch.optim.SGD, lr=0.5, **more):
    """Return the head, its gradient and the record of one step on plain cross-entropy."""
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        head.weight.copy_(weight)
    optimizer = make(head.parameters(), lr=lr)
    with NFIMonitor(head, optimizer, **more) as monitor:
        functional.cross_entropy(head(x), y).backward()
        optimizer.step()
    assert head.weight.grad is not None
    return head, head.weight.grad, monitor.history[-1]


def test_an_ignored_row_is_no_collapsed_one():
    _, _, record = record_of(torch.eye(3), torch.eye(3)[:2], torch.tensor([0, -100]))
    assert record.sc_frac == 0.0


def test_rounding_of_the_sum_over_classes_is_no_collapse():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 6, generator=generator)
    _, gradient, record = record_of(torch.randn(10, 6, generator=generator), x, torch.arange(2000) % 10)
    assert gradient.isfinite().all()
    assert record.zero_sum_defect > 0
    assert record.sc_frac == 0.0


def test_a_small_gradient_of_the_true_class_is_no_lost_one():
    _, _, record = record_of(
        torch.eye(3) * 14, torch.eye(3), torch.arange(3)
    )  # 1 - p is about 2e-6, a third of it here
    assert record.eps == pytest.approx(2 * math.exp(-14), rel=0.1)
    assert record.sc_frac == 0.0


def test_growth_is_predicted_from_the_collapsed_samples_alone():
    x = torch.stack([torch.eye(3)[0], torch.zeros(3)])  # one leads by 25 and has collapsed, one knows nothing
    y = torch.tensor([0, 1])
    head, _, record = record_of(torch.eye(3) * 25, x, y, lr=1e12)
    mass = 2 * math.exp(-25) / 2  # per sample of the batch
    assert record.sc_frac == 0.5
    assert record.eps == pytest.approx(1 / 3)
    assert record.predicted_growth == pytest.approx(1 + 1e12 * mass / math.sqrt(3), rel=1e-5)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3) * 25)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e12)
    with NFIMonitor(head, optimizer) as monitor:
        for _ in range(2):  # two passes of one step
            functional.cross_entropy(head(x), y).backward()
        optimizer.step()
    assert monitor.history[-1].predicted_growth == pytest.approx(record.predicted_growth, rel=1e-5)


def test_growth_is_measured_per_step():
    head = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    with NFIMonitor(head, optimizer, every=2) as monitor:
        for scale in (1.0, 1.0, 9.0, 9.0):
            functional.cross_entropy(head(scale * torch.eye(3)), torch.arange(3)).backward()
            optimizer.step()
    assert monitor.history[-1].measured_growth == pytest.approx(3.0)
    assert monitor.history[-1].window_growth == pytest.approx(9.0)


def test_effective_rate_is_that_of_the_weight_with_the_smallest_second_moment():
    x = torch.tensor([[1.0, 1e-3]])
    _, gradient, record = record_of(torch.eye(2), x, torch.tensor([1]), torch.optim.Adam, 0.01)
    assert record.effective_lr == pytest.approx(0.01 / (float(gradient.abs().min()) + 1e-8), rel=1e-4)


def test_eps_bounds_the_effective_rate():
    x = torch.tensor([[1.0, 0.0]])  # the second weight has no gradient
    _, _, record = record_of(torch.eye(2), x, torch.tensor([1]), torch.optim.Adam, 0.01)
    assert record.effective_lr == pytest.approx(0.01 / 1e-8, rel=1e-6)


def test_norm_of_the_mean_row():
    _, _, record = record_of(torch.tensor([[3.0, 0.0], [3.0, 0.0]]), torch.eye(2), torch.arange(2), lr=0.0)
    assert record.w_norm == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("signs", "active"),
    [((0.6, -0.6, 3.0), True), ((0.4, -0.6, 3.0), False), ((0.6, -0.4, 3.0), False), ((0.6, -0.6, 1.0), False)],
)
def test_inflation_needs_all_three_signs(signs, active):
    assert AlarmRule().active(*signs) is active


def test_an_update_is_compared_with_the_median_of_the_window():
    head = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
    with NFIMonitor(head, optimizer) as monitor:
        for size in (1.0, 1.0, 100.0, 5.0):
            functional.cross_entropy(head(torch.eye(2)), torch.arange(2)).backward()
            head.weight.grad = torch.tensor([[size, 0.0], [0.0, 0.0]])
            optimizer.step()
    assert monitor.history[-1].update_ratio == pytest.approx(5.0, rel=1e-4)


def test_half_precision_features_are_summed_in_float32():
    head = nn.Linear(2, 2, bias=False).half()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    x = torch.full((400, 2), 300.0, dtype=torch.float16)  # their sum is above float16's range
    with NFIMonitor(head, optimizer) as monitor:
        functional.cross_entropy(head(x), torch.arange(400) % 2).backward()
        optimizer.step()
    assert monitor.history[-1].mu_norm == pytest.approx(300 * math.sqrt(2))


def test_a_wrapped_optimizer_is_watched_where_the_step_is_taken():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    head = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with NFIMonitor(head, Wrapper(optimizer)) as monitor:
        functional.cross_entropy(head(torch.eye(2)), torch.arange(2)).backward()
        optimizer.step()
    assert len(monitor.history) == 1


def test_centering_averages_half_precision_in_float32():
    head = nn.Linear(1, 4, bias=False).half()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[60_000.0], [60_000.0], [0.0], [0.0]]))  # the sum is above float16's range
    center_head_(head)
    assert head.weight.flatten().tolist() == [30_000.0, 30_000.0, -30_000.0, -30_000.0]
