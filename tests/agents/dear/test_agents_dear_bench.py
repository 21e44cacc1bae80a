"""The bench: what a cell measures, and that arms share debates."""

import numpy as np
import pytest

from steelyard.agents.dear import arms, bench, card, cells, sweeps, tasks, user
from steelyard.agents.dear.diagrams import _tied, debate_diagrams
from steelyard.agents.dear.policies import CritiqueAll, FullyConnected, KeepAll, RandomOne
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.simulator import SimAgents
from steelyard.contracts import CellInput
from steelyard.rng import generator

SMALL = {
    "controller": {"batch": 64, "minibatches": 2, "epochs": 1, "learning_rate": 1e-3, "lam": 0.002,
                   "credit": "difference"},
    "fixed": {"ring": {"degree": 2}, "reconcile": {}},
    "episodes": 128, "debates": 200, "repeats": 1, "prices": (0.0, 5.0), "strengths": (0.0, 3.5), "curve_episodes": 64,
}  # fmt: skip


def cell(task, arm, seed=0, root="tuning", **params):
    spec = bench.BENCH
    return CellInput(task, arm, spec.arm(arm).config, {**SMALL, **params}, {}, seed, spec.task(task).load(), root)


@pytest.fixture(scope="module")
def sim():
    return bench.run(cell("sim", "dear"))


def test_a_cell_holds_all_fixed_policies(sim):
    found = arms.derive({"dear": sim.metrics})
    assert set(found) == {arm.name for arm in arms.FIXED}
    assert found["mad"]["cost"] == 50.0
    assert found["mad"]["calls"] == 20.0
    assert found["vote"]["cost"] == 5.0
    assert found["vote"]["harmful"] == 0.0
    assert found["any_right"]["vote_accuracy"] >= found["vote"]["vote_accuracy"]
    assert {metric.name for metric in arms.METRICS} >= {name for name in sim.metrics if ":" not in name}
    assert sim.steps > 200
    assert {picture.name for picture in sim.diagrams} <= {"mended", "broken"}


def test_chance_is_one_in_four():
    found = bench.run(cell("sim", "chance", debates=4_000)).metrics
    assert found["vote_accuracy"] == pytest.approx(0.25, abs=0.03)


def test_joint_rates_add_up(sim):
    for values in [sim.metrics, *arms.derive({"dear": sim.metrics}).values()]:
        if "harmful" in values:
            final = values["initial_accuracy"] - values["harmful"] + values["beneficial"]
            assert values["individual_accuracy"] == pytest.approx(final)


def test_arms_meet_the_same_debates():
    where = tasks.sides(cell("sim", "dear"))
    one, other = (cells.play(cell("sim", "dear"), where, policy) for policy in (FullyConnected(), KeepAll()))
    np.testing.assert_array_equal(one.answers0, other.answers0)
    np.testing.assert_array_equal(cells.started(cell("sim", "dear"), where).answers, one.answers0)
    fewer = cells.play(cell("sim", "dear"), where, FullyConnected(early_stop="unanimous"))
    assert (fewer.cost <= one.cost).all()


def test_self_consistency_spends_equal_calls():
    given = cell("sim", "dear", debates=4_000)
    where = tasks.sides(given)
    episodes = cells.started(given, where)
    found = cells.equal_calls(given, where, episodes, np.full(4_000, 8))
    assert found["calls"] == found["cost"] == 8.0


@pytest.mark.parametrize("arm", ["no_who", "no_how", "no_evidence", "team_credit", "macro", "identity"])
def test_ablations_are_trained_in_cells_of_their_own(arm):
    found = bench.run(cell("sim", arm)).metrics
    assert {"vote_accuracy", "cost", "train_cpu"} <= set(found)
    assert not any(":" in name for name in found)


def test_the_committee_is_judged_on_images_it_was_not_trained_on():
    where = tasks.sides(cell("committee", "dear", root="evaluation"))
    assert (where.train.split, where.test.split) == ("controller", "test")
    assert where.train.pixel_seed == where.test.pixel_seed == 0
    tuning = tasks.sides(cell("committee", "dear"))
    assert tuning.test.split == "controller"
    found = bench.run(cell("committee", "dear", seed=1)).metrics
    assert found["any_right:vote_accuracy"] > found["vote:vote_accuracy"] > 0.5


def test_the_recording_is_split_in_halves():
    given = cell("recorded", "dear", repeats=2)
    where = tasks.sides(given)
    assert not set(where.train_items) & set(where.test_items)
    assert len(where.train_items) + len(where.test_items) == len(where.test.questions)
    assert "vote_accuracy" in bench.run(given).metrics


@pytest.mark.parametrize("arm", arms.CURVE_NAMES)
def test_curves(arm):
    found = bench.run(cell("sweeps", arm))
    x, y = found.traces["budget"]
    assert len(x) == len(y) >= 2
    assert x == sorted(x)
    assert ("by_conformity" in found.traces) == (arm in ("dear_curve", "mad_curve", "critique_curve"))
    if arm == "dear_curve":
        assert found.traces["cost_by_price"][0] == [0.0, 5.0]
    if arm == "mad_curve":
        assert x[0] == 5.0  # no round is the vote


def test_pictures_show_who_read_whom():
    outcome = rollout(
        SimAgents(n_agents=3), RandomOne(), batch=300, generator=generator("test", "dear/pictures", 0), trace=True
    )
    for picture in debate_diagrams(outcome):
        assert len(picture.nodes) == 3 * len(picture.columns)
        assert len(picture.edges) == 3 * (len(picture.columns) - 1)
        assert {node.kind for node in picture.nodes} <= {"good", "bad"}
    silent = rollout(SimAgents(), KeepAll(), batch=50, generator=generator("test", "dear/pictures", 0), trace=True)
    assert debate_diagrams(silent) == ()
    untraced = rollout(SimAgents(), CritiqueAll(), batch=5, generator=generator("test", "dear/pictures", 0))
    assert debate_diagrams(untraced) == ()


def test_the_card_is_whole():
    assert [decision.id for decision in card.CARD.decisions if decision.id.startswith("D1")]
    assert {f"D{n}" for n in range(1, 18)} <= {decision.id for decision in card.CARD.decisions}
    ids = [claim.id for claim in card.CARD.claims]
    assert len(set(ids)) == len(ids)
    for claim in card.CARD.claims:
        assert claim.paper
        assert claim.tasks is None or set(claim.tasks) <= {task.name for task in bench.BENCH.tasks} | {user.TASK}


def test_tuned_settings_name_their_seeds():
    for name in ("dear", "ring", "reconcile"):
        row = bench.TUNED[name]
        assert row["seeds"]
        assert row["config"] in [one["config"] for one in row["tried"]]


def test_points_are_sorted_by_cost():
    assert sweeps._line([(3.0, 0.1), (1.0, 0.2)]) == ([1.0, 3.0], [0.2, 0.1])


def test_a_picture_is_of_a_debate_whose_votes_are_clear():
    answers = [[0, 0, 1, 1, 2], [0, 0, 0, 1, 1], [0, 1, 2, 3, 4], [0, 0, -1, -1, -1], [0, 1, -1, -1, -1]]
    assert _tied(np.array(answers)).tolist() == [True, False, True, False, True]
