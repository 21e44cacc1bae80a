"""The bench as a whole: arms, sizes of rivals, profiles, derived arms, and that a broken network is no failed cell."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard import catalog, checks
from steelyard.card import Source
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.nets.lattice import bench, measure, people, tasks
from steelyard.nets.lattice.card import CARD, Config

SPEC = bench.BENCH
TRAINED = [arm.name for arm in SPEC.arms if not arm.derived and arm.name not in ("shuffled", "halves", "chance")]
PARAMS = {**bench.PARAMS, "updates": 2, "digits_updates": 2, "class_updates": 2, "class_images": 40}
KNOWN = {metric.name for metric in bench.METRICS}


def images(count: int = 150, classes: int = 10, size: int = 8):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    pixels = rng.random((count, 1, size, size)).astype(np.float32) * 0.2
    pixels += (labels / classes)[:, None, None, None].astype(np.float32) * 0.8
    return {"images": pixels.astype(np.float32), "labels": labels}


def cell(arm: str, task: str = "digits", seed: int = 0, arrays=None, options=None, **params) -> CellInput:
    config = SPEC.arm(arm).config
    return CellInput(task, arm, config, {**PARAMS, **params}, options or {}, seed, arrays or images())


@pytest.mark.parametrize("arm", [name for name in TRAINED if not name.startswith(("contrast", "classes"))])
def test_every_arm_runs_and_gives_finite_metrics(arm):
    measured = bench.run(cell(arm))
    assert set(measured.metrics) <= KNOWN
    assert {"accuracy", "macs", "time", "rise", "breadth_cost", "depth_cost"} <= set(measured.metrics)
    assert all(math.isfinite(value) for value in measured.metrics.values())
    assert measured.steps == 2
    assert {trace.name for trace in bench.TRACES} > set(measured.traces)


def test_equal_seeds_are_equal_and_the_global_stream_is_left_alone():
    state = torch.get_rng_state()
    assert bench.run(cell("time")) == bench.run(cell("time"))
    assert bench.run(cell("time")).metrics != bench.run(cell("time", seed=1)).metrics
    assert torch.equal(state, torch.get_rng_state())


def test_arms_share_weights_batches_and_occluders(monkeypatch):
    seen = {}

    def remember(model, parts, config, updates, generator, augment=None):
        seen[name] = (model.weights[0].detach().clone(), model.readout.detach().clone(), generator.get_state())
        return "stopped here"

    monkeypatch.setattr(measure, "train", remember)
    for name in ("time", "time_high", "breadth", "depth", "entropy", "uniform", "act", "blt"):
        bench.run(cell(name))
    first, *others = seen.values()
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_floor():
    measured = bench.run(cell("chance"))
    assert measured.metrics["accuracy"] == tasks.split(cell("chance")).chance
    assert measured.metrics["macs"] == 0


def test_a_network_that_breaks_counts_as_the_worst(monkeypatch):
    monkeypatch.setattr(measure, "train", lambda *args, **kwargs: "the loss is not finite")
    for arm in ("time", "pruned"):
        measured = bench.run(cell(arm))
        assert measured.notes == {"stopped": "the loss is not finite"}
        assert measured.metrics["time"] == bench.MAX_STEPS
        assert measured.metrics["accuracy"] == measured.metrics["accuracy_occluded"] == tasks.split(cell(arm)).chance
        assert set(measured.metrics) == {metric.name for metric in bench.METRICS if metric.worst is not None}


def test_a_network_of_which_nothing_is_left_counts_as_the_worst(monkeypatch):
    def kill(model, *args, **kwargs):
        with torch.no_grad():
            model.weights[0][:, :1] = 0
        return ""

    monkeypatch.setattr(measure, "train", kill)
    measured = bench.run(cell("breadth_high"))
    assert "layer 1 is dead" in measured.notes["stopped"]
    assert measured.metrics["breadth_cost"] == 1e6


def test_digits_have_a_box_of_their_own():
    assert bench.settings(cell("time"))[1].steps == 6
    assert bench.settings(cell("time", "mnist"))[1].steps == 8
    assert bench.settings(cell("fixed_4_2_3", "mnist"))[1].steps == 3


def test_rivals_are_sized_by_the_lattices_steps():
    for task, steps in (("digits", 4.2), ("mnist", 5.5)):
        name = "equal_steps_digits" if task == "digits" else "equal_steps"
        params = {name: steps}
        assert bench.settings(cell("fixed_steps", task, **params))[1].steps == round(steps)
        assert bench.settings(cell("entropy", task, **params))[0]["entropy_steps"] == steps
        assert bench.settings(cell("blt", task, **params))[0] == {"kind": "blt", "entropy_steps": steps}
        width = bench.settings(cell("feed_forward", task, **params))[1].channels
        assert width == measure.feed_forward_width(Config(), steps, 8, 1, 10)
    assert bench.equal_compute("fixed_steps", "", 1.2, 14, 1, 10) == {"steps": 3}  # no fewer steps than layers


def test_the_feed_forward_rival_is_sized_for_the_users_images():
    """Three colours and 40 classes cost more than grey digits: the width is chosen for what will run."""
    arrays = {"images": np.zeros((80, 3, 14, 14), dtype=np.float32), "labels": np.arange(80) % 40}
    config = bench.settings(cell("feed_forward", "own", arrays=arrays, equal_steps=4.8))[1]
    assert config.channels == measure.feed_forward_width(Config(), 4.8, 14, 3, 40)


def test_uniform_decay_has_the_ranks_mean_price():
    ranked, uniform = SPEC.arm("breadth_high").config, SPEC.arm("uniform").config
    channels = Config().channels
    mean = sum(rank / channels for rank in range(1, channels + 1)) / channels
    assert uniform["breadth"] == pytest.approx(ranked["breadth"] * mean)


def test_pruning_splits_the_updates():
    assert bench.run(cell("pruned", digits_updates=10)).steps == 10


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_fewer_classes(classes):
    measured = bench.run(cell(f"classes_{classes}", "mnist_classes"))
    assert len(measured.traces["time_by_class"][0]) == classes


def test_dimensions_that_grow_are_counted():
    def arms(*rows):
        return {
            f"classes_{n}": dict(zip(("participation", "depth", "time"), row, strict=True))
            for n, row in zip((2, 5, 10), rows, strict=True)
        }

    assert bench.derive(arms((1, 1, 1), (2, 1, 1), (3, 1, 2)))["classes_10"] == {"grown": 3.0}
    assert bench.derive(arms((1, 2, 1), (2, 1, 3), (3, 3, 2)))["classes_10"] == {"grown": 1.0}
    assert bench.derive({"classes_2": {"time": 1.0}, "classes_5": {}}) == {}


def test_the_ceiling_is_the_box_without_costs_at_its_best_step():
    row = {"accuracy_best_step": 97.0, "accuracy_occluded": 70.0, "accuracy": 90.0}
    assert bench.derive({"entropy": row})["full_box"]["accuracy"] == 97.0
    assert bench.derive({"time": row}) == {}


@given(st.sampled_from(sorted(SPEC.profiles)))
def test_profiles_name_what_there_is_and_stay_inside_their_work(name):
    profile = SPEC.profiles[name]
    params = profile.params
    work = 0
    for block in profile.blocks:
        for task in block.tasks:
            SPEC.task(task)
            for arm in block.arms:
                trained = arm in TRAINED
                assert not SPEC.arm(arm).derived or arm == "full_box"
                updates = bench.updates_of(CellInput(task, arm, {}, params, {}, 0, {}))
                work += (updates if trained else 1) * profile.seeds
    assert work <= profile.work


def test_claims_fit_the_bench_and_the_ledger_is_whole():
    checks.check_card_is_complete(checks.Subject("lattice"))
    ledger = {decision.id for decision in CARD.decisions}
    assert {f"L-{number}" for number in range(1, 22)} == ledger
    for arm in SPEC.arms:
        Config(**{name: value for name, value in arm.config.items() if name in Config.model_fields})
    assert any(decision.source is Source.SECOND_HAND for decision in CARD.decisions)
    assert sum(claim.paper_scale_only for claim in CARD.claims) == 1


def test_three_levels_of_each_price_are_claimed():
    levels = {claim.id: (claim.arm, claim.versus) for claim in CARD.claims if "_level_" in claim.id}
    for resource in ("breadth", "depth"):
        chain = [levels[f"{resource}_level_{n}"] for n in (1, 2, 3)]
        assert [versus for _, versus in chain] == ["time", *(arm for arm, _ in chain[:-1])]
        prices = [SPEC.arm(arm).config[resource] for arm, _ in chain]
        assert prices == sorted(prices)
    assert [SPEC.arm(name).config["time"] for name in ("time_low", "time", "time_high")] == [0.01, 0.03, 0.1]


def test_the_users_own_images(tmp_path):
    arrays = images(60, 3, 9)
    np.savez(tmp_path / "own.npz", images=arrays["images"][:, 0], y=arrays["labels"])
    task = SPEC.user_task(str(tmp_path / "own.npz"), size=8)
    measured = bench.run(cell("time", "own", arrays=task.load()))
    assert 0 <= measured.metrics["accuracy"] <= 100
    with pytest.raises(InputError, match="there is no folder"):
        SPEC.user_task(str(tmp_path / "nothing"))


@pytest.mark.parametrize("module", ["bench", "card"])
def test_modules_load_alone(module):
    code = f"import steelyard.nets.lattice.{module}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_people_run_through_the_same_door(monkeypatch):
    monkeypatch.setattr(people, "run", lambda cell: cell.arm)
    assert bench.run(cell("contrast", "mnist_contrast")) == "contrast"


def test_the_cards_snippet_runs():
    done = subprocess.run([sys.executable, "-c", CARD.usage], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UsedResources(")


def test_the_catalog_knows_it():
    assert catalog.load_bench("lattice") is SPEC
    assert catalog.entry("lattice").room == "nets"
