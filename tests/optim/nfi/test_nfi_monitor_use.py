"""The monitor in training loops that are not the plainest one."""

import math

import torch
import torch.nn.functional as F

from steelyard.optim import NFIMonitor


def head_and_batch():
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(4, 3)
    x = torch.randn(8, 4, generator=generator)
    y = torch.randint(0, 3, (8,), generator=generator)
    return head, torch.optim.SGD(head.parameters(), 0.1), x, y


def test_a_head_that_is_called_by_keyword():
    head, optimizer, x, y = head_and_batch()
    with NFIMonitor(head, optimizer) as monitor:
        F.cross_entropy(head(input=x), y).backward()
        optimizer.step()
    assert len(monitor.history) == 1


def test_a_step_that_the_scaler_skips_leaves_nothing_behind():
    head, optimizer, x, y = head_and_batch()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with NFIMonitor(head, optimizer, loss_scale=scaler.get_scale) as monitor:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(head(x) * factor, y)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(monitor.history) == 2
    assert all(math.isfinite(record.eps) for record in monitor.history)


def test_rows_that_the_loss_ignores_do_not_dilute_the_collapsed_share():
    head, optimizer, x, _ = head_and_batch()
    target = torch.full((8,), -100)
    target[:2] = 0
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([40.0, 0.0, 0.0]))  # far past the float32 threshold: both counted rows collapse
    with NFIMonitor(head, optimizer) as monitor:
        F.cross_entropy(head(x), target).backward()
        optimizer.step()
    assert monitor.history[0].sc_frac == 1.0
