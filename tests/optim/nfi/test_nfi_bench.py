"""The bench's own parts: spike count, reference step, curves, baselines, the user's data, a broken model."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from steelyard import catalog
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.optim.nfi import bench
from steelyard.optim.nfi.baselines import (
    float64_cross_entropy,
    loss_function,
    orthogonalize_gradients_,
    stablemax_cross_entropy,
)
from steelyard.optim.nfi.card import Config

PARAMS = {**bench.BENCH.profiles["quick"].params, "steps": 300}


def cell(arm: str = "exact", task=None, seed: int = 0, **params) -> CellInput:
    task = task or bench.BENCH.task("digits")
    options = {"samples": 20} if task.name == "user" else {}
    return CellInput(task.name, arm, bench.BENCH.arm(arm).config, {**PARAMS, **params}, options, seed, task.load())


def test_spikes_are_counted_once_each():
    loss = np.array([1.0, 1e-5, 1e-3, 0.5, 0.9, 1e-3, 0.8, 1e-5, 2e-2, 1e-6])
    assert bench.count_spikes(loss) == 2
    assert bench.count_spikes(loss, low=1e-6) == 0
    assert bench.count_spikes(np.array([1.0, 0.5])) == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from([1e-6, 1e-3, 1.0]), min_size=1, max_size=40))
def test_spike_count_ignores_what_lies_between_the_limits(values):
    ends = [value for value in values if value != 1e-3]
    assert bench.count_spikes(np.array(values)) == bench.count_spikes(np.array(ends))
    assert bench.count_spikes(np.array(values)) <= sum(value == 1.0 for value in values)


def test_curves_keep_the_peaks():
    values = np.full(3000, 1e-9)
    values[1234] = 5.0
    x, y = bench._binned(values)
    assert len(x) == len(y) == bench.POINTS
    assert (1235.0, 5.0) in zip(x, y, strict=True)
    assert x == sorted(x)
    assert bench._binned(np.zeros(3)) == ([1.0, 2.0, 3.0], [1e-30] * 3)


def test_growth_is_counted_from_the_first_small_loss():
    loss, collapsed = np.array([1.0, 1e-5, 1.0]), np.array([0.0, 0.5, 0.95])
    assert bench._reference_step(Config(), loss, collapsed) == (1, {})
    assert bench._reference_step(Config(growth_from="collapse"), loss, collapsed) == (2, {})
    step, notes = bench._reference_step(Config(), np.array([1.0, 0.5, 0.7]), collapsed)
    assert step == 1
    assert "step 2" in notes["growth counted from"]


def test_a_cell_gives_every_metric_the_same_twice_and_leaves_the_global_stream_alone():
    state = torch.get_rng_state()
    first, again, other = bench.run(cell()), bench.run(cell()), bench.run(cell(seed=1))
    assert set(first.metrics) == {metric.name for metric in bench.METRICS}
    assert all(math.isfinite(value) for value in first.metrics.values())
    assert first == again
    assert first.metrics != other.metrics
    assert first.steps == 300
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("arm", [arm.name for arm in bench.ARMS])
def test_every_arm_runs_and_starts_from_the_same_weights(arm):
    measured = bench.run(cell(arm, steps=30))
    assert measured.steps == 30
    if arm != "batch_norm":
        assert measured.traces["mu_norm"][1][0] == bench.run(cell("f32", steps=30)).traces["mu_norm"][1][0]


def test_other_tasks_run():
    minibatch = bench.BENCH.task("digits_minibatch")
    measured = bench.run(cell("f32", minibatch, steps=30, samples=500, batch=64))
    assert measured.steps == 30
    assert not {"spikes", "peak_loss"} & set(measured.metrics)  # of a batch's own loss they say nothing
    division = bench.BENCH.task("division")
    arrays = division.load()
    a, b = arrays["features"][:, :97].argmax(1), arrays["features"][:, 97:].argmax(1)
    assert np.array_equal(arrays["labels"] * b % 97, a)
    assert len(np.unique(a * 97 + b)) == 97 * 96
    assert bench.run(cell("exact", division, steps=20, samples=4656, batch=512, width=32, depth=2)).steps == 20


def test_a_model_that_breaks_counts_as_worst_not_as_failed():
    broken = bench.run(cell(), loss=lambda logits, target: (logits * torch.inf).sum())
    assert broken.metrics["accuracy"] == 0.1
    assert broken.metrics["spikes"] == 1000
    assert set(broken.metrics) == {metric.name for metric in bench.METRICS}
    assert "stopped" in broken.notes
    assert broken.steps < 300


def table(n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    return {"a": x, "b": rng.normal(size=n), "kind": np.where(x > 0, "yes", "no")}


def test_the_users_table_or_arrays():
    columns = table()
    tasks = [
        bench.user_task(columns, label="kind", samples=20),
        bench.user_task({"X": np.stack([columns["a"], columns["b"]], 1), "y": columns["kind"]}),
        bench.user_task((np.stack([columns["a"], columns["b"]], 1), columns["kind"])),
    ]
    for task in tasks:
        arrays = task.load()
        assert arrays["features"].shape == (60, 2)
        assert set(arrays["labels"]) == {0, 1}
        np.testing.assert_allclose(arrays["features"], tasks[0].load()["features"])
    measured = bench.run(cell("exact", tasks[0], steps=200))
    assert measured.metrics["accuracy"] > 0.7


@pytest.mark.parametrize(
    ("data", "label", "message"),
    [
        (table(), "nothing", "nothing"),
        ({**table(), "kind": np.array(["", *["a", "b"] * 29, "a"])}, "kind", "no value in row 0"),
        ({**table(), "kind": np.array(["a"] * 60)}, "kind", "one class only"),
        (table(4), "kind", "4 rows"),
        ({"X": np.zeros((6, 2)), "y": np.arange(6)}, "z", "no key 'z'"),
        ({"X": np.zeros((6, 2)), "y": np.arange(5)}, "y", "'y' has shape"),
        ({"X": np.array([[0.0], [1.0], [np.nan], [2.0], [3.0]]), "y": np.arange(5)}, "y", "row 2"),
    ],
)
def test_the_users_bad_data(data, label, message):
    with pytest.raises(InputError, match=message):
        bench.user_task(data, label=label)


def test_card_bench_and_profiles_fit_together():
    card = catalog.load_card("nfi")
    arms, metrics = {arm.name for arm in bench.ARMS}, {metric.name for metric in bench.METRICS}
    for claim in card.claims:
        assert claim.arm in arms
        assert claim.metric in metrics
    assert {f"N{i}" for i in range(1, 12)} <= {decision.id for decision in card.decisions}
    for arm in bench.ARMS:
        Config(**arm.config)
    quick, full = bench.BENCH.profiles["quick"], bench.BENCH.profiles["full"]
    assert quick.work == 6 * 3 * 3000
    assert {arm for block in full.blocks for arm in block.arms} == arms


def test_the_cards_snippet_runs():
    usage = catalog.load_card("nfi").usage
    done = subprocess.run([sys.executable, "-c", usage], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.0 ")


def test_stablemax_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.0]])
    mass = torch.tensor([3.0, 0.5, 1.0])
    for true in range(3):
        value = stablemax_cross_entropy(logits, torch.tensor([true]))
        assert float(value) == pytest.approx(-math.log(float(mass[true] / mass.sum())))
    leaf = torch.tensor([[3.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: stablemax_cross_entropy(z, torch.tensor([1])), (leaf,))


def test_perpgrad_is_orthogonal_and_agrees_with_the_library():
    from steelyard.extras import require

    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(4, 3, generator=generator), torch.randn(5, generator=generator), torch.zeros(2)]
    gradients = [torch.randn(w.shape, generator=generator) for w in ours]
    theirs = [torch.nn.Parameter(w.clone()) for w in ours[:2]]
    for w, g in zip(ours, gradients, strict=True):
        w.grad = g.clone()
    for w, g in zip(theirs, gradients[:2], strict=True):
        w.grad = g.clone()
    orthogonalize_gradients_([*ours, torch.zeros(1)])
    base = torch.optim.SGD(theirs, lr=1.0)
    require("pytorch_optimizer", "dev").OrthoGrad(base).step()
    for w, g, other in zip(ours, gradients, theirs, strict=False):
        assert float((w * w.grad).sum()) == pytest.approx(0, abs=1e-5)
        assert float(w.grad.norm()) == pytest.approx(float(g.norm()), rel=1e-5)
        torch.testing.assert_close(other.detach(), w - w.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours[2].grad, gradients[2])


def test_losses_by_name():
    logits, target = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    for name in ("exact", "f32", "f64"):
        assert float(loss_function(name)(logits, target)) == pytest.approx(
            float(functional.cross_entropy(logits, target)), rel=1e-6
        )
    assert float64_cross_entropy(logits, target).dtype == torch.float64
    smoothed = loss_function("f32", 0.1)(logits, target)
    assert torch.equal(smoothed, functional.cross_entropy(logits, target, label_smoothing=0.1))
    with pytest.raises(InputError, match="loss must be one of"):
        loss_function("f16")
    with pytest.raises(InputError, match="label_smoothing needs"):
        loss_function("exact", 0.1)
