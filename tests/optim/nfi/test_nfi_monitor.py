"""NFIMonitor: its numbers by hand, its hooks, its alarms, its state."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim import NFIMonitor, exact_cross_entropy, zero_sum_hook
from steelyard.optim.nfi.monitor import ACTIVE, IMMINENT, AlarmRule, NFIRecord


def collapsed_head(margin: float = 25.0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """Three classes on orthogonal features; every sample leads by ``margin``."""
    head = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3) * margin)
    return head, torch.eye(3), torch.arange(3)


def step(head, optimizer, x, y, loss=functional.cross_entropy, guard=None):
    optimizer.zero_grad()
    logits = head(x)
    if guard:
        guard(logits)
    loss(logits, y).backward()
    optimizer.step()


def test_numbers_of_a_collapsed_batch():
    head, x, y = collapsed_head()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    before = head.weight.detach().clone()
    with NFIMonitor(head, optimizer) as monitor:
        step(head, optimizer, x, y)
    record = monitor.history[-1]
    eps = 2 * math.exp(-25)
    assert record.step == 1
    assert record.sc_frac == 1.0
    assert record.eps == pytest.approx(eps, rel=1e-5)
    assert record.zero_sum_defect == pytest.approx(eps * math.sqrt(3) / 3, rel=1e-5)
    assert record.mu_norm == pytest.approx(1 / math.sqrt(3))
    assert record.cosine == pytest.approx(1.0)
    assert record.predicted_growth == pytest.approx(1 + 0.5 * eps / math.sqrt(3))
    assert record.update_norm == pytest.approx(float((head.weight.detach() - before).norm()))
    assert math.isnan(record.measured_growth)
    assert math.isnan(record.effective_lr)
    assert not head._forward_hooks


def test_exact_loss_is_silent_and_a_guard_does_not_hide_the_collapse():
    for loss, guard, share in (
        (exact_cross_entropy, None, 0.0),
        (functional.cross_entropy, zero_sum_hook, 1.0),
        (functional.cross_entropy, None, 1.0),
    ):
        head, x, y = collapsed_head()
        optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
        with NFIMonitor(head, optimizer) as monitor:
            step(head, optimizer, x, y, loss, guard)
        assert monitor.history[-1].sc_frac == share
    assert monitor.history[-1].predicted_growth > 1.0


def test_scaled_summed_and_accumulated_losses_give_the_same_numbers():
    records = []
    for kind in ("plain", "scaled", "sum", "accumulated"):
        head, x, y = collapsed_head(10.0)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
        scale = 1024.0 if kind == "scaled" else 1.0
        reduction = "sum" if kind == "sum" else "mean"
        with NFIMonitor(head, optimizer, reduction=reduction, loss_scale=lambda scale=scale: scale) as monitor:
            for _ in range(2 if kind == "accumulated" else 1):
                (functional.cross_entropy(head(x), y, reduction=reduction) * scale).backward()
            optimizer.step()
        record = monitor.history[-1]
        records.append((record.sc_frac, record.eps, record.zero_sum_defect, record.mu_norm))
    for other in records[1:]:
        assert other == pytest.approx(records[0], rel=1e-4, abs=1e-9)


def test_records_every_so_many_steps_and_in_windows():
    head, x, y = collapsed_head(2.0)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    with NFIMonitor(head, optimizer, every=3, watch="head", keep=2) as monitor:
        for _ in range(10):
            step(head, optimizer, x * 1.5, y)
    assert [record.step for record in monitor.history] == [6, 9]
    assert monitor.history[-1].measured_growth == pytest.approx(1.0)
    assert monitor.history[-1].window_growth == pytest.approx(1.0)
    assert monitor.history[-1].effective_lr > 0.1
    v = optimizer.state[head.weight]["exp_avg_sq"].min() / (1 - 0.999**10)
    assert monitor.history[-1].effective_lr == pytest.approx(0.1 / (math.sqrt(v) + 1e-8), rel=0.2)


def test_without_an_optimizer_backward_passes_count():
    head, x, y = collapsed_head(2.0)
    with NFIMonitor(head, every=2) as monitor:
        for _ in range(5):
            functional.cross_entropy(head(x), y).backward()
        with torch.no_grad():
            head(x)
    assert [record.step for record in monitor.history] == [2, 4]
    assert math.isnan(monitor.history[-1].update_norm)
    assert math.isnan(monitor.history[-1].predicted_growth)


def test_alarms_set_in_once(caplog):
    rule = AlarmRule(sc_frac=0.5, cosine=-0.5, growth=2.0, window=4, update_ratio=5.0)
    head, x, y = collapsed_head()
    with torch.no_grad():
        head.weight.sub_(head.weight.mean(0) * 2)  # W_G against mu_G
    optimizer = torch.optim.SGD(head.parameters(), lr=0.0)
    with caplog.at_level(logging.WARNING, "steelyard.nfi"), NFIMonitor(head, optimizer, rule=rule) as monitor:
        for scale in (1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0):
            step(head, optimizer, x * scale, y)
    active = [ACTIVE in record.alarms for record in monitor.history]
    assert active == [False, False, True, True, True, True, False]  # the window has moved on
    assert monitor.alarms == [(3, ACTIVE)]
    assert len(caplog.records) == 1
    assert "NFI active" in caplog.text


def test_spike_imminent_when_the_update_jumps():
    head, x, y = collapsed_head(1.0)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    seen: list[NFIRecord] = []
    with NFIMonitor(head, optimizer, on_alarm=seen.append) as monitor:
        for _ in range(5):
            step(head, optimizer, x, y)
        optimizer.param_groups[0]["lr"] = 1.0
        step(head, optimizer, x, y)
    assert [record.alarms for record in seen] == [(IMMINENT,)]
    assert monitor.history[-1].update_ratio > 100


def test_state_round_trip():
    head, x, y = collapsed_head(1.0)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with NFIMonitor(head, optimizer) as monitor:
        for _ in range(3):
            step(head, optimizer, x, y)
    other = NFIMonitor(head, optimizer)
    other.load_state_dict(monitor.state_dict())
    assert [r.step for r in other.history] == [1, 2, 3]
    assert other.state_dict()["history"][1:] == monitor.state_dict()["history"][1:]
    with other:
        step(head, optimizer, x, y)
    assert other.history[-1].step == 4
    assert not math.isnan(other.history[-1].measured_growth)


def test_frozen_head_and_frozen_weights_are_left_alone():
    head, x, y = collapsed_head(1.0)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with NFIMonitor(head, optimizer) as monitor:
        optimizer.step()
        assert monitor.step == 1
        assert not monitor.history
    with torch.no_grad():
        head.weight.zero_()
    with NFIMonitor(head, optimizer) as monitor:
        step(head, optimizer, x * 0, y)
    assert monitor.history[-1].cosine == 0.0


def test_bad_input():
    head, _, _ = collapsed_head()
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    for arguments, message in (
        ({"head": nn.ReLU()}, "head must have a weight"),
        ({"every": 0}, "every and keep"),
        ({"reduction": "none"}, "reduction must be"),
        ({"watch": "body"}, "watch must be"),
        ({"optimizer": other}, "optimizer does not hold"),
    ):
        with pytest.raises(InputError, match=message):
            NFIMonitor(**{"head": head, **arguments})
    with pytest.raises(InputError, match="window"):
        AlarmRule(window=0)
    with NFIMonitor(head) as monitor, pytest.raises(InputError, match="attached already"):
        monitor.__enter__()
