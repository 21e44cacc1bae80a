"""The Slingshot on real digits: spikes with plain float32 cross-entropy, none with a guard; the monitor sees it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard import catalog
from steelyard.contracts import CellInput
from steelyard.optim import ExactCrossEntropyLoss, NFIMonitor
from steelyard.optim.nfi import bench, conformance
from steelyard.optim.nfi.monitor import ACTIVE

SEEDS = range(5)
GUARDED = ("exact", "f64", "zero_sum", "centering", "batch_norm", "adam_eps_1e-5")
DATA = bench.BENCH.task("digits").load()


def weigh(arm: str, seed: int, steps: int) -> dict[str, float]:
    params = {**bench.BENCH.profiles["quick"].params, "steps": steps}
    config = bench.BENCH.arm(arm).config
    return bench.run(CellInput("digits", arm, config, params, {}, seed, DATA)).metrics


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", SEEDS)
def test_plain_float32_spikes(seed):
    found = weigh("f32", seed, 1500)
    assert found["spikes"] >= 1
    assert found["cosine"] < -0.8
    assert found["growth"] > 5


@pytest.mark.acceptance
@pytest.mark.parametrize("arm", GUARDED)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_guard_spikes(arm, seed):
    found = weigh(arm, seed, 1500)
    assert found["spikes"] == 0
    assert found["final_loss"] < 1e-6
    assert found["accuracy"] > 0.7
    if arm in ("exact", "f64", "zero_sum", "centering"):
        assert found["growth"] <= 2
        assert found["abs_cosine"] <= 0.6


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["constant", "random", "identity"])
def test_acceptance_refuses_dummies(name):
    probes = catalog.load_conformance("nfi")
    with pytest.raises(AssertionError):
        probes.acceptance(probes.dummies[name])


@pytest.mark.acceptance
def test_acceptance_takes_the_method():
    conformance.acceptance(catalog.load_conformance("nfi").implementation)


def watch(loss) -> NFIMonitor:
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(DATA["labels"]), generator=generator)[:100]
    x, y = torch.from_numpy(DATA["features"]).float()[order], torch.from_numpy(DATA["labels"])[order]
    body, head = bench._model([64, 64, 64, 64, 64, 10], False, generator)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3, betas=(0.9, 0.95))
    model = nn.Sequential(body, head)
    with NFIMonitor(head, optimizer, on_alarm=lambda record: None) as monitor:
        for _ in range(1200):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return monitor


@pytest.mark.acceptance
def test_the_monitor_sees_it_and_is_silent_on_the_exact_loss():
    plain, exact = watch(functional.cross_entropy), watch(ExactCrossEntropyLoss())
    assert ACTIVE in [name for _, name in plain.alarms]
    assert ACTIVE not in [name for _, name in exact.alarms]
    assert max(record.sc_frac for record in exact.history) == 0
