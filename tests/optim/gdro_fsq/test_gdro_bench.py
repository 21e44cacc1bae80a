import dataclasses
import json
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from steelyard.card import decision_of
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.optim.gdro_fsq import bench, networks, optimum, problems
from steelyard.optim.gdro_fsq.bench import BENCH, Options, user_task
from steelyard.optim.gdro_fsq.card import CARD, Config

SHORT = {"rounds": 200, "sweep_samples": 400, "steps": 30}


@pytest.fixture(scope="module")
def digits():
    arrays = problems.digits_by_class()
    return {**arrays, **optimum.prepare(arrays)}


def cell(arm, data, task="digits", seed=0, params=SHORT, options=None, root="evaluation", **config):
    return CellInput(task, arm, {**BENCH.arm(arm).config, **config}, params, options or {}, seed, data, root)


CONVEX_ARMS = [arm.name for arm in bench.CONVEX]


@pytest.mark.parametrize("arm", CONVEX_ARMS)
def test_every_convex_arm(arm, digits):
    found = BENCH.run(cell(arm, digits))
    assert all(np.isfinite(value) for value in found.metrics.values())
    assert found.metrics["gap"] >= 0
    assert set(found.metrics) <= {metric.name for metric in BENCH.metrics}
    assert set(found.traces) <= {trace.name for trace in BENCH.traces}
    again = BENCH.run(cell(arm, digits))
    for name, value in found.metrics.items():
        assert name == "time_ratio" or value == again.metrics[name]
    if arm not in ("start", "optimum"):
        assert BENCH.run(cell(arm, digits, seed=1)).metrics["gap"] != found.metrics["gap"]


@pytest.mark.parametrize("arm", bench.TORCH_ARMS)
def test_every_network_arm(arm, digits):
    found = BENCH.run(cell(arm, digits, "digits_mlp"))
    assert found.steps == 30
    assert 0 <= found.metrics["worst_accuracy"] <= found.metrics["accuracy"] <= 1
    assert found.metrics == BENCH.run(cell(arm, digits, "digits_mlp")).metrics
    assert "gap" not in found.metrics
    assert BENCH.run(cell(arm, digits, "digits_mlp", root="tuning")).metrics["gap"] >= 0


def test_arms_of_the_stream_use_equal_samples(digits):
    used = {arm: BENCH.run(cell(arm, digits)).metrics["samples"] for arm in ("fsq", "erm", "reweighted", "sagawa")}
    assert len(set(used.values())) == 1
    waited = BENCH.run(cell("smd_wait", digits)).metrics["samples"]
    assert used["fsq"] - 10 < waited <= used["fsq"]
    assert BENCH.run(cell("all_m", digits)).metrics["samples"] == 2000
    networks_use = {BENCH.run(cell(arm, digits, "digits_mlp")).metrics["samples"] for arm in bench.TORCH_ARMS}
    assert len(networks_use) == 1


def test_learning_network_beats_chance(digits):
    params = {**SHORT, "steps": 400}
    for arm in ("torch_fsq", "torch_erm"):
        assert BENCH.run(cell(arm, digits, "digits_mlp", params=params)).metrics["accuracy"] > 0.8


@pytest.mark.parametrize("seed", range(6))
def test_gap_stays_below_its_bound(seed, digits):
    for task, arrays in (("digits", digits), ("synthetic", _synthetic())):
        found = BENCH.run(cell("fsq_theory", arrays, task, seed))
        assert 0 < found.metrics["bound_ratio"] < 1


def _synthetic():
    arrays = problems.synthetic(0.5, 0.15, 2.0)
    return {**arrays, **optimum.prepare(arrays)}


def test_floor_method_and_ceiling(digits):
    gaps = {arm: BENCH.run(cell(arm, digits)).metrics["gap"] for arm in ("start", "fsq", "optimum")}
    assert gaps["optimum"] <= 1e-5 < gaps["fsq"] < gaps["start"]


def test_knobs_reach_the_arm(digits):
    base = BENCH.run(cell("fsq", digits)).metrics["gap"]
    for name, value in (
        ("c_q", 4.0), ("c_w", 3.0), ("mode", "auto"), ("gradient", "single"), ("round_weight", "samples"),
        ("output", "last"), ("lipschitz", "max"),
    ):  # fmt: skip
        assert BENCH.run(cell("fsq", digits, **{name: value})).metrics["gap"] != base
    uniform = BENCH.run(cell("fsq", digits, query="uniform", gradient="iw")).metrics["gap"]
    assert uniform != BENCH.run(cell("fsq", digits, gradient="iw")).metrics["gap"]
    ratios = [BENCH.run(cell("fsq_theory", digits, delta=delta)).metrics["bound_ratio"] for delta in (0.05, 0.5)]
    assert ratios[0] < ratios[1]


def test_options_reach_the_arms_but_not_the_bound(digits):
    options = Options(group="g", label="y", mode="auto", c_w=3.0, delta=0.5).model_dump(mode="json")
    assert (
        BENCH.run(cell("fsq", digits, options=options)).metrics["gap"]
        == (BENCH.run(cell("fsq", digits, mode="auto", c_w=3.0)).metrics["gap"])
    )
    assert (
        BENCH.run(cell("erm", digits, options=options)).metrics["gap"]
        == (BENCH.run(cell("erm", digits, c_w=3.0)).metrics["gap"])
    )
    theory = BENCH.run(cell("fsq_theory", digits, options=options)).metrics
    assert theory["gap"] == BENCH.run(cell("fsq_theory", digits)).metrics["gap"]


def test_tuning_on_your_own_data_uses_tuning_seeds(digits):
    options = Options(group="g", label="y", tune=True).model_dump(mode="json")
    found = BENCH.run(cell("smd_wait", digits, options=options)).metrics["gap"]
    candidates = {BENCH.run(cell("smd_wait", digits, **point)).metrics["gap"] for point in bench.grid_of("smd_wait")}
    assert found in candidates
    assert found <= sorted(candidates)[3]


def test_sweep_counts_its_steps(digits):
    found = BENCH.run(cell("fixed_r", digits))
    assert found.steps == 4 * 200 + (400 + 200 + 80 + 40) + 4 * (1000 + 100)
    assert found.traces["gap_by_r"][0] == [1.0, 2.0, 5.0, 10.0]
    assert found.metrics["time_ratio"] > 1
    assert found.metrics["gap_spread"] >= 1
    assert -1 <= found.metrics["spearman"] <= 1
    assert set(BENCH.run(cell("fixed_r", digits, root="tuning")).metrics) == {"gap"}


def test_spearman():
    assert bench._spearman([1, 2, 5, 10], [4.0, 3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert bench._spearman([1, 2, 5, 10], [3.0, 4.0, 2.0, 1.0]) == pytest.approx(-0.8)


@pytest.mark.parametrize("name", ["quick", "full"])
def test_declared_work_covers_the_cells(name):
    profile = BENCH.profiles[name]
    total = 0
    for block in profile.blocks:
        for task in block.tasks:
            m = {"digits": 10, "mnist": 10, "adult": 18}.get(task, 20)
            for arm in block.arms:
                if arm.startswith("torch_"):
                    total += profile.params["steps"]
                elif arm == "fixed_r":
                    counts = sorted({r for r in bench.FIXED_R if r < m} | {m})
                    total += profile.params["rounds"] * len(counts) + 4 * (1000 + 1000 // m)
                    total += sum(profile.params["sweep_samples"] // r for r in counts)
                else:
                    total += 1 if arm in ("start", "optimum") else profile.params["rounds"]
    assert 0.7 * profile.work < total * profile.seeds <= profile.work


def test_claims_and_blocks_name_what_exists():
    arms, metrics = {arm.name for arm in BENCH.arms}, {metric.name for metric in BENCH.metrics}
    for claim in CARD.claims:
        assert claim.arm in arms
        assert claim.metric in metrics
        assert isinstance(claim.versus, float) or claim.versus in arms
    for profile in BENCH.profiles.values():
        for block in profile.blocks:
            assert set(block.arms) <= arms
            assert all(BENCH.task(task) for task in block.tasks)


def test_ledger():
    ids = {decision.id for decision in CARD.decisions}
    assert {f"G{i}" for i in range(1, 14)} <= ids
    assert all(decision_of(Config, name) in ids for name in Config.model_fields)


def test_tuned_settings_are_the_best_of_the_same_grid():
    text = resources.files("steelyard.optim.gdro_fsq").joinpath("tuned.json").read_text()
    tasks = json.loads(text)
    assert set(tasks) == set(BENCH.tuning_tasks)
    for task, arms in tasks.items():
        blocks = [block for profile in BENCH.profiles.values() for block in profile.blocks if task in block.tasks]
        assert {arm for block in blocks for arm in block.arms} - set(bench.UNTUNED) <= set(arms)
        for arm, entry in arms.items():
            tried = entry["tried"]
            assert [one["config"] for one in tried] == [dict(point) for point in BENCH.grid[arm]]
            best = min(tried, key=lambda one: one["score"])
            assert (entry["config"], entry["score"]) == (best["config"], best["score"])
            assert entry["seeds"] == list(bench.TUNING_SEEDS)
            assert BENCH.tuned[task][arm] == entry["config"]


def test_network_leaves_the_global_streams_alone(digits):
    import torch

    state = torch.random.get_rng_state()
    BENCH.run(cell("torch_fsq", digits, "digits_mlp"))
    assert torch.equal(state, torch.random.get_rng_state())


def test_split_is_stratified(digits):
    parts = networks._split(cell("torch_erm", digits, "digits_mlp"))
    test = np.bincount(parts["test_groups"].numpy())
    whole = np.bincount(digits["groups"])
    assert np.abs(test / whole - 0.3).max() < 0.01
    assert len(parts["x"]) + len(parts["test_x"]) == 1797


CSV = """age,job,income,region,churn
30,clerk,100.5,north,yes
,nurse,80,south,no
41,,120,north,no
22,clerk,,east,yes
35,nurse,95,south,yes
60,judge,300,north,no
44,clerk,110,east,no
28,,70,,yes
51,judge,250,,no
33,nurse,88,north,yes
"""


def test_users_table_end_to_end(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    options = Options(group="region", label="churn", loss_range=6.0).model_dump(mode="json")
    task = user_task(str(path), **options)
    assert task.name == "user"
    assert "people.csv" in task.source
    arrays = dict(task.load())
    assert int(arrays["m"]) == 4
    arrays |= task.prepare(arrays)
    gaps = {}
    for arm in BENCH.profiles["quick"].blocks[0].arms:
        found = BENCH.run(cell(arm, arrays, "user", options=options))
        assert all(np.isfinite(value) for value in found.metrics.values())
        gaps[arm] = found.metrics["gap"]
    assert gaps["optimum"] <= 1e-4
    assert gaps["fsq"] < gaps["start"]


def test_users_frame_and_mapping(tmp_path):
    pandas = pytest.importorskip("pandas")
    (tmp_path / "people.csv").write_text(CSV)
    frame = pandas.read_csv(tmp_path / "people.csv")
    loaded = [user_task(source, group="region", label="churn").load() for source in (frame, tmp_path / "people.csv")]
    for name, value in loaded[0].items():
        assert np.allclose(value, loaded[1][name])


def test_two_groups_two_rows_each():
    table = {"x": np.array([0.1, 0.9, -0.5, 0.3]), "g": np.array(list("aabb")), "y": np.array([0.0, 1.0, 1.0, 0.0])}
    task = user_task(table, group="g", label="y")
    arrays = {**task.load(), **task.prepare(task.load())}
    found = BENCH.run(cell("fixed_r", arrays, "user"))
    assert found.traces["gap_by_r"][0] == [1.0, 2.0]
    assert found.metrics["spearman"] in (-1.0, 1.0) or np.isclose(abs(found.metrics["spearman"]), 1.0)


def test_missing_column_names_the_closest():
    with pytest.raises(InputError, match="Did you mean 'g'"):
        user_task({"x": [1.0, 2.0], "g": ["a", "b"], "y": [0.0, 1.0]}, group="gg", label="y")


def test_unknown_option_is_refused():
    with pytest.raises(ValueError, match="colour"):
        Options(group="g", label="y", colour=1)


def test_gpu_recipe_is_documented():
    assert "FlexGroupBatchSampler" in BENCH.profiles["gpu"].recipe
    assert dataclasses.is_dataclass(BENCH)


def test_card_usage_runs():
    found = subprocess.run([sys.executable, "-c", CARD.usage], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("[")
