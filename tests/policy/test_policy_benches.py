"""The benches of the policy room: every arm runs, arms share games and chance, nothing held out is trained on."""

import numpy as np
import pytest

from steelyard import catalog
from steelyard.contracts import CellInput
from steelyard.policy.arc import cells as arc_cells
from steelyard.policy.g2po import cells
from steelyard.policy.g2po.arms import CREDIT, FIXED, LEARNERS
from steelyard.policy.games import games_of

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"groups": 2, "iterations": 2, "tasks": 3, "rollouts": 3, "max_steps": 12}


def cell(method, task, arm, seed=0, root="evaluation", **params):
    spec = catalog.load_bench(method)
    return CellInput(task, arm, spec.arm(arm).config, {**SMALL, **params}, {}, seed, spec.task(task).load(), root)


@pytest.mark.parametrize("arm", CREDIT)
def test_every_arm_of_credit(arm):
    measured = cells.run_chain(cell("g2po", "chain", arm))
    assert -1 <= measured.metrics["credit"] <= 1
    assert measured.steps > 0
    assert (measured.metrics["credit"] > 0.999) == (arm == "expert")
    assert bool(measured.diagrams) == (arm in ("g2po", "g2po_obs"))


@pytest.mark.parametrize("arm", [*LEARNERS, *FIXED])
def test_every_arm_that_learns(arm):
    measured = cells.run_games(cell("g2po", "household", arm))
    assert 0 <= measured.metrics["success"] <= 1
    if arm in LEARNERS:
        assert len(measured.traces["learning"][0]) == SMALL["iterations"]
        assert {"auc", "aliased", "singletons", "overhead", "train_steps"} <= set(measured.metrics)
    assert measured.metrics["success"] == 1 or arm != "expert"


@pytest.mark.parametrize("arm", [arm.name for arm in catalog.load_bench("arc").arms])
def test_every_arm_of_commitments(arm):
    measured = arc_cells.run_games(cell("arc", "household", arm))
    assert 0 <= measured.metrics["success"] <= 1
    if arm not in ("random", "expert", "true_state"):
        assert 0 <= measured.metrics["inconsistency"] <= 1
        assert measured.metrics["statements"] == pytest.approx(1 - measured.metrics["inconsistency"])
    assert bool(measured.diagrams) == (arm in ("arc", "outcome"))


@pytest.mark.parametrize("method", ["g2po", "arc"])
def test_equal_seeds_measure_alike(method):
    run = {"g2po": cells.run_games, "arc": arc_cells.run_games}[method]
    one, two, other = (run(cell(method, "household", method, seed)).metrics for seed in (0, 0, 1))
    one.pop("overhead", None), two.pop("overhead", None), other.pop("overhead", None)
    assert one == two
    assert one != other


def test_games_are_for_one_use_and_the_same_for_all_arms():
    one, two = (games_of(cell("g2po", "household", arm, seed=3)) for arm in ("g2po", "grpo"))
    texts = [game.pddl_problem for use in one for game in use]
    assert len(set(texts)) == len(texts)
    assert texts == [game.pddl_problem for use in two for game in use]
    tuning = games_of(cell("g2po", "household", "g2po", seed=3, root="tuning"))
    assert not {game.pddl_problem for use in tuning for game in use} & set(texts)


def test_official_games_are_divided_and_tuned_on_others(mirror):
    held, tuned = (games_of(cell("g2po", "alfworld", "g2po", root=root)) for root in ("evaluation", "tuning"))
    assert (len(held.imitate), len(held.train), len(held.hold_out), len(tuned.hold_out)) == (40, 560, 134, 140)
    assert {game.split for game in held.hold_out} == {"valid_unseen"}
    assert {game.split for game in tuned.hold_out} == {"valid_seen"}
    names = [game.trial for use in (held.imitate, held.train) for game in use]
    assert len(set(names)) == 600


def test_tuned_settings_are_those_of_the_grid():
    for method in ("g2po", "arc"):
        spec = catalog.load_bench(method)
        for arms in spec.tuned.values():
            alike = {"g2po_ec", "g2po_nc"} if method == "g2po" else set()
            assert set(arms) == set(spec.grid) | alike
            for arm in spec.grid:
                assert arms[arm] in list(spec.grid[arm])
            assert all(arms[arm] == arms["g2po"] for arm in alike), "arms without a term differ in nothing else"
        assert np.isfinite(spec.profiles["full"].work)
