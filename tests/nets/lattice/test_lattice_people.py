"""The reaction-time proxy: ranks by hand, the control, the floor, and people against people."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard import data
from steelyard.contracts import CellInput
from steelyard.data.table import Table
from steelyard.nets.lattice import bench, measure, people, tasks
from steelyard.nets.lattice.card import Config

LEVELS = (*tasks.CONTRASTS, 0.03)
MEDIANS = (0.50, 0.52, 0.51, 0.56, 0.58, 0.60, 0.40)  # 30 % faster than 50 %; 3 % fast because people guess


def trials(per_subject: int = 40):
    """Five people whose medians are as given, and whose accuracy at 3 % is a tenth."""
    rng = np.random.default_rng(0)
    columns: dict[str, list] = {"human_subject": [], "human_contrast": [], "human_time": [], "human_correct": []}
    for subject in range(5):
        for level, median in zip(LEVELS, MEDIANS, strict=True):
            noise = rng.normal(size=per_subject // 2) * 0.02
            columns["human_time"] += [*(median + np.abs(noise)), *(median - np.abs(noise))]
            columns["human_subject"] += [subject] * per_subject
            columns["human_contrast"] += [level] * per_subject
            columns["human_correct"] += [1.0 if i % 10 == 0 or level > 0.03 else 0.0 for i in range(per_subject)]
    images = rng.random((120, 1, 8, 8)).astype(np.float32)
    return {
        "images": images,
        "labels": np.arange(120) % 4,
        **{name: np.array(values) for name, values in columns.items()},
    }


ARRAYS = trials()
PARAMS = {**bench.PARAMS, "updates": 2}


def cell(arm: str = "contrast", seed: int = 0, **config) -> CellInput:
    chosen = {**bench.BENCH.arm(arm).config, "channels": 2, "layers": 1, "steps": 3, **config}
    return CellInput("mnist_contrast", arm, chosen, PARAMS, {}, seed, ARRAYS)


def test_conditions_near_chance_are_left_out_and_named():
    times = {level: -level for level in tasks.CONTRASTS}
    found = people.correlate(cell(), Config(), {**times, 0.03: 0.0})
    assert [float(name) for name in found.conditions] == list(tasks.CONTRASTS)
    assert "0.03" in found.dropped
    # Ranks 1 3 2 4 5 6 against 1..6: 1 - 6 * 2 / (6 * 35).
    assert found.spearman == pytest.approx(1 - 12 / 210)


def test_the_measured_record():
    measured = bench.run(cell())
    assert set(measured.metrics) == {"rt_spearman", "rt_pearson", "accuracy_contrasts"}
    contrasts, slow = measured.traces["slowness"]
    assert contrasts == list(tasks.CONTRASTS)
    assert measured.traces["time_by_contrast"][0] == list(tasks.SHOWN)
    assert "contrast 0.03: accuracy" in measured.notes["left out"]
    assert (min(slow), max(slow)) == (0.0, 1.0)
    assert measured == bench.run(cell())
    assert measured.steps == 2


@pytest.mark.parametrize("arm", ["contrast_entropy", "contrast_blt"])
def test_the_controls_spend_steps_by_entropy(arm):
    """Whole steps on each image: the mean is that of the threshold's own stops, not E[t]."""
    given = cell(arm, entropy_steps=2.0)
    parts = tasks.split(given)
    kind = given.config.get("kind", "lattice")
    model = measure.network(Config(channels=2, layers=1, steps=3), kind, 1, 4, torch.Generator().manual_seed(0),
                            input_range=people.RANGE)  # fmt: skip
    times, _ = people.model_times(model, parts, given)
    assert set(times) == set(tasks.SHOWN)
    count = len(parts.test_y)
    for steps in times.values():
        assert 1 <= steps <= 3
        assert steps * count == pytest.approx(round(steps * count)), "a mean of whole steps"
    assert len(set(times.values())) > 1


def test_the_floor_is_a_random_order():
    found = {bench.run(cell("shuffled", seed)).metrics["rt_spearman"] for seed in range(20)}
    assert len(found) > 5
    assert abs(np.mean(list(found))) < 0.5


def test_people_against_people():
    measured = bench.run(cell("halves"))
    assert measured.metrics["rt_spearman"] > 0.9
    assert measured.traces["slowness"][0] == list(tasks.CONTRASTS)


def test_a_time_that_does_not_depend_on_contrast_ranks_nothing():
    measured = people._compared(cell(), Config(), dict.fromkeys(tasks.SHOWN, 3.0), 5, {})
    assert measured.metrics == {"rt_spearman": 0.0, "rt_pearson": 0.0}
    assert measured.notes == {"times": "all equal"}


def test_a_broken_network_counts_as_the_worst(monkeypatch):
    monkeypatch.setattr(measure, "train", lambda *args, **kwargs: "the loss is not finite")
    measured = bench.run(cell())
    assert measured.metrics["rt_spearman"] == -1.0
    assert measured.notes == {"stopped": "the loss is not finite"}


def test_images_at_random_contrasts():
    x = torch.rand(200, 1, 4, 4)
    mixed = people.random_contrast(x, torch.Generator().manual_seed(0))
    levels = (mixed / (2 * x - 1)).flatten(1).mean(1)
    found = {round(float(level), 3) for level in levels}
    assert found == set(tasks.CONTRASTS)


def test_the_task_reads_people_and_digits(monkeypatch):
    columns = {
        "subject": np.array(["b", "a"]), "contrast": np.array([1.0, 0.5]), "reaction_time": np.array([0.5, 0.6]),
        "correct": np.array([1.0, 0.0]),
    }  # fmt: skip
    monkeypatch.setattr(data, "human_contrast", lambda: Table(columns, "test"))
    monkeypatch.setattr(tasks, "mnist", lambda: {"images": np.zeros(1), "labels": np.zeros(1)})
    arrays = tasks.mnist_and_people()
    assert arrays["human_subject"].tolist() == [1, 0]
    assert arrays["human_time"].tolist() == [0.5, 0.6]
