import math

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import training
from steelyard.optim.greedy_momentum.bench import BENCH, derive
from steelyard.optim.greedy_momentum.card import CARD, Config

DATA = BENCH.task("digits_sgd").load()
SHORT = {**BENCH.profiles["quick"].params, "steps": 12}


def cell(arm, task="digits_sgd", seed=0, **changes):
    config = {**BENCH.arm(arm).config, **changes.pop("config", {})}
    return CellInput(task, arm, config, {**SHORT, **changes}, {}, seed, DATA)


@pytest.mark.parametrize("arm", [arm.name for arm in BENCH.arms if not arm.derived])
def test_every_arm_runs_and_repeats(arm):
    first, again = BENCH.run(cell(arm)), BENCH.run(cell(arm))
    assert first.metrics == again.metrics
    assert first.steps == 48
    assert set(first.metrics) == {"accuracy", *(f"accuracy_lr{slot}" for slot in (1, 2, 3, 4))}
    assert all(0 <= value <= 100 for value in first.metrics.values())
    assert set(first.traces) <= {trace.name for trace in BENCH.traces}


@pytest.mark.parametrize("arm", ["robust_global", "paper_per_param", "fixed_05", "random"])
def test_adamw_tasks_have_two_rates(arm):
    found = BENCH.run(cell(arm, "digits_adamw"))
    assert found.steps == 24
    assert set(found.metrics) == {"accuracy", "accuracy_lr1", "accuracy_lr2"}


def test_mnist_tasks_train_the_mlp():
    rng = np.random.default_rng(0)
    data = {"images": rng.normal(size=(200, 1, 28, 28)).astype(np.float32), "labels": rng.integers(0, 10, 200)}
    found = BENCH.run(CellInput("mnist_sgd", "fixed_09", {"momentum": 0.9}, {**SHORT, "mnist_test": 50}, {}, 0, data))
    assert found.steps == 48


def test_arms_share_weights_batches_and_split():
    """The first batch's loss is that of equal weights on equal inputs: one step of any momentum is the same step."""
    one = [BENCH.run(cell(arm, steps=1)).metrics for arm in ("fixed_05", "fixed_099", "paper_global", "best_single")]
    assert all(metrics == one[0] for metrics in one)


def test_always_the_smallest_candidate_is_that_fixed_arm():
    lone = BENCH.run(cell("paper_global", config={"hysteresis": 10**6}))
    assert lone.metrics == BENCH.run(cell("fixed_05")).metrics


def test_notes_and_curves():
    found = BENCH.run(cell("robust_global"))
    assert any(name.startswith("share of each candidate") for name in found.notes)
    curves = BENCH.run(cell("fixed_09", steps=40))
    grid, values = curves.traces["alignment_ar1"]
    assert grid[int(np.argmax(values))] == pytest.approx(0.8, abs=0.06)
    assert max(curves.traces["alignment"][1]) == 1.0
    assert "alignment" not in BENCH.run(cell("fixed_09", seed=1)).traces


def test_divergence_counts_as_chance():
    found = BENCH.run(cell("fixed_09", sgd_lrs=(1e6,)))
    assert found.metrics["accuracy_lr1"] == 10.0
    assert any("diverged" in str(note) for note in found.notes.values())


def arms(**accuracies):
    return {
        name: {"accuracy": float(np.mean(values)), "accuracy_lr1": values[0], "accuracy_lr2": values[1]}
        for name, values in accuracies.items()
    }


def test_derived_arms():
    three = arms(fixed_05=[50.0, 90.0], fixed_09=[70.0, 80.0], fixed_099=[90.0, 10.0], robust_global=[88.0, 91.0])
    found = derive(three)
    assert found["oracle"] == {"accuracy": 90.0, "regret": 0.0, "accuracy_lr1": 90.0, "accuracy_lr2": 90.0}
    assert found["worst_fixed"]["accuracy"] == 30.0
    assert found["mean_fixed"]["accuracy"] == pytest.approx(65.0)
    assert found["steadiest_fixed"]["regret"] == 20.0
    assert found["robust_global"] == {"regret": 2.0}
    assert found["fixed_099"] == {"regret": 80.0}
    assert "oracle_of_six" not in found
    six = derive({**three, **arms(fixed_00=[0.0, 95.0], fixed_08=[1.0, 1.0], fixed_095=[91.0, 1.0])})
    assert six["oracle_of_six"]["accuracy"] == 93.0
    assert six["oracle_of_six"]["regret"] == -1.0


def test_nothing_is_derived_from_an_incomplete_sweep():
    assert derive(arms(fixed_05=[1.0, 2.0], robust_global=[1.0, 2.0])) == {}


def test_tuned_settings_come_from_their_own_seeds():
    for task in BENCH.tuning_tasks:
        assert BENCH.tuned[task]["best_single"] in BENCH.grid["best_single"]
    tuning = CellInput("digits_sgd", "fixed_05", {}, SHORT, {}, 0, DATA, root="tuning")
    assert tuning.rng("batches").integers(2**60) != cell("fixed_05").rng("batches").integers(2**60)


def test_arm_configs_are_configs_of_the_card():
    for arm in BENCH.arms:
        if arm.role in ("method", "ablation"):
            Config(**arm.config)


def test_every_reconstruction_can_be_turned_by_a_config_field_that_has_an_effect():
    base = BENCH.run(cell("robust_global", "digits_adamw", steps=60)).metrics
    for config in ({"normalization": "literal"}, {"selection": "per_param"}, {"candidates": [0.5, 0.9]}):
        assert BENCH.run(cell("robust_global", "digits_adamw", steps=60, config=config)).metrics != base
    assert {decision.knob for decision in CARD.decisions if decision.knob} == set(Config.model_fields)


def test_profiles():
    for name in ("quick", "full"):
        for block in BENCH.profiles[name].blocks:
            for arm in block.arms:
                BENCH.arm(arm)
            for task in block.tasks:
                BENCH.task(task)
    assert BENCH.profiles["gpu"].recipe


def test_accuracy_of_a_network_that_gives_nan_is_none():
    network = nn.Linear(2, 3)
    with torch.no_grad():
        network.bias.fill_(math.nan)
    assert training.accuracy(network, [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))]) is None


def test_batches_cover_an_epoch():
    parts = training.split(DATA, 597, np.random.default_rng(0))
    taken = list(training.batches(parts, 25, 50, np.random.default_rng(1)))
    assert len(taken) == 25
    epoch = torch.cat(
        [inputs.reshape(50, -1).double() @ torch.arange(1.0, 65, dtype=torch.float64) for inputs, _ in taken[:24]]
    )
    everything = parts.train_x.reshape(1200, -1).double() @ torch.arange(1.0, 65, dtype=torch.float64)
    assert torch.equal(epoch.sort().values, everything.sort().values)


def test_smooth():
    steps, means = training.smooth([0.0, 1.0, 2.0, 3.0], points=2)
    assert (steps, means) == ([1.0, 3.0], [0.5, 2.5])


def test_bench_refuses_an_unknown_rival_through_its_config():
    with pytest.raises((InputError, ValueError)):
        BENCH.run(cell("robust_global", config={"no_such_knob": 1}))
