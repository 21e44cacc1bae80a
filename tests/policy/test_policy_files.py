"""Rollouts in files, verl's rows, the graph to look at, and the user's own rollouts weighed."""

import json
import types

import numpy as np
import pytest

from steelyard import catalog
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.policy import (
    LogLinearPolicy,
    StepBatch,
    TransitionGraph,
    batch_of,
    collect,
    g2po_advantage,
    generate_games,
    gigpo,
    grpo,
    patch_verl,
    read_trajectories,
    side_table_estimator,
)
from steelyard.policy.arc import user as arc_user
from steelyard.policy.arc.heads import CommitmentPolicy, committed
from steelyard.policy.chain import KeyDoorChain, Wanderer
from steelyard.policy.g2po import user
from steelyard.policy.g2po.arms import USER
from steelyard.policy.g2po.graph import END, WON
from steelyard.policy.g2po.picture import MOST_NODES, ends, graph_picture, words
from steelyard.policy.training import anchored
from steelyard.policy.trajectories import anchored_episodes, write_table
from steelyard.policy.verl import row_batch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
STEP = {"task": "a", "traj": 1, "t": 0, "reward": 1.0, "anchor": "s", "action": "go", "observation": "here"}


def written(tmp_path, *rows):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_steps_and_episodes_read_alike(tmp_path):
    steps = [{**STEP, "t": t, "traj": traj, "reward": float(t)} for traj in (1, 2) for t in (1, 0)]
    whole = [
        {"task": "a", "traj": traj, "steps": [{**STEP, "traj": traj, "t": t, "reward": float(t)} for t in (0, 1)]}
        for traj in (1, 2)
    ]
    one, two = read_trajectories(written(tmp_path, *steps)), read_trajectories(written(tmp_path, *whole))
    assert one == two
    assert [[step["t"] for step in episode] for episode in one] == [[0, 1], [0, 1]]
    assert len(batch_of(one)) == 4
    nameless = {"task": "a", "success": True, "steps": [{"reward": 1, "anchor": [1, {"b": 2}]}]}
    read = read_trajectories(written(tmp_path, nameless, nameless))
    assert len(read) == 2
    assert read[0][0]["anchor"] == '[1, {"b": 2}]'
    assert read[0][0]["success"] is True


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (['{"task": 1'], "row 1"),
        ([{"task": 1, "reward": 0}], "'traj' is missing"),
        ([{**STEP, "reward": None}], "'reward'"),
        (['{"traj": 1, "reward": NaN}'], "'reward'"),
        ([{k: v for k, v in STEP.items() if k != "reward"}], "'reward' is missing"),
        ([STEP, STEP], "'t' is 0, as in another"),
        ([STEP, {**STEP, "t": 2}], "has no step 1"),
        ([{**STEP, "t": 5}], "has no step 0"),
        ([{**STEP, "t": -1}], "'t'"),
        ([{**STEP, "t": 0.5}], "'t'"),
        ([STEP, {**STEP, "t": 1, "task": "b"}], "'task' is 'b'"),
        ([{**STEP, "observation": 3}], "'observation'"),
        ([{**STEP, "success": "yes"}], "'success'"),
        ([{**STEP, "admissible": "look"}], "'admissible'"),
        ([{**STEP, "process": [1]}], "'process'"),
        ([{**STEP, "process": {"progress": "high"}}], "'progress'"),
        ([{**STEP, "anchor": None}], "'anchor'"),
        ([{"steps": []}], "'steps'"),
        ([{"steps": [3]}], "step 0"),
        ([""], "no steps"),
        (['{"traj": 1, "reward": 1' + "0" * 4000 + "}"], "'reward' .* a whole number of 13\\d+ bits"),
        (['{"traj": 1, "t": 1' + "0" * 4000 + ', "reward": 0}'], "'t' .* bits"),
        ([{**STEP, "reward": 1e101}], "'reward' must be a finite number of at most 1e"),
        ([{**STEP, "observation": "half \ud83d"}], "'observation' holds half a surrogate pair"),
        ([{**STEP, "anchor": "\udc00"}], "'anchor' holds half"),
        ([{**STEP, "process": {"progress": 1e300}}], "'progress'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path, rows, words):
    with pytest.raises(InputError, match=words):
        read_trajectories(written(tmp_path, *rows))


def test_anchors_are_chosen(tmp_path):
    episode = [{**STEP, "observation": "x", "action": "go"}, {**STEP, "t": 1, "observation": "y"}]
    assert [step["anchor"] for step in anchored_episodes([episode], "observation")[0]] == ["x", "y"]
    assert [step["anchor"] for step in anchored_episodes([episode], "history")[0]] == [("x",), ("y", "x", "go")]
    with pytest.raises(InputError, match="anchor must be"):
        anchored_episodes([episode], "state")
    with pytest.raises(InputError, match="trajectory 1, step 0: the field 'anchor'"):
        anchored_episodes([[{"reward": 1}]], "anchor")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_tables_are_written(tmp_path, ending):
    path = write_table(tmp_path / f"out.{ending}", {"task": ["a", "b"], "advantage": np.array([0.5, -1.0])})
    if ending == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(path).to_pydict() == {"task": ["a", "b"], "advantage": [0.5, -1.0]}
    else:
        assert "-1.0" in path.read_text()
    with pytest.raises(InputError, match="must end in"):
        write_table(tmp_path / "out.txt", {})
    with pytest.raises(InputError, match="cannot be written"):
        write_table(tmp_path / "none" / f"out.{ending}", {"a": [1]})


class _Tensor:
    """What verl hands over: rewards of tokens and a mask, as torch tensors."""

    @staticmethod
    def rows(batch, width=4):
        import torch

        rewards = torch.zeros(len(batch), width, dtype=torch.float64)
        rewards[:, -1] = torch.as_tensor(batch.reward)
        return rewards, torch.ones(len(batch), width)


def rows_of(episodes):
    batch = StepBatch.from_episodes(episodes)
    fields = {
        "uid": np.array([f"task {one}" for one in batch.task], dtype=object),
        "traj_uid": np.array([f"traj {one}" for one in batch.traj], dtype=object),
        "anchor_obs": np.array([str(one) for one in batch.anchor], dtype=object),
        "step": batch.t,
    }
    return batch, fields


CHAIN = collect([(n // 4, anchored(KeyDoorChain(reward=10.0), "state")) for n in range(8)], Wanderer(),
                np.random.default_rng(0))  # fmt: skip


def test_verl_rows_get_the_advantages_of_their_steps():
    batch, fields = rows_of(CHAIN)
    rewards, mask = _Tensor.rows(batch)
    for name, rule in (("g2po", g2po_advantage), ("gigpo", gigpo)):
        table = {str(row): {field: values[row] for field, values in fields.items()} for row in range(len(batch))}
        estimate = side_table_estimator(name, table)
        found, _ = estimate(rewards, mask, None, index=[str(row) for row in range(len(batch))])
        np.testing.assert_allclose(found[:, 0].numpy(), rule(batch), atol=1e-9)
        doubled = np.r_[np.arange(len(batch)), 3, 5]
        again, step = row_batch(rewards[doubled], {key: values[doubled] for key, values in fields.items()})
        assert len(again) == len(batch)
        assert step[-2:].tolist() == [3, 5]
    with pytest.raises(InputError, match="no row 'x'"):
        estimate(rewards, mask, None, index=["x"])
    with pytest.raises(InputError, match="anchor_obs"):
        row_batch(rewards, {"uid": [], "traj_uid": []})
    timed = row_batch(rewards, {key: values for key, values in fields.items() if key != "step"})[0]
    assert timed.t.tolist() == batch.t.tolist()


def test_verl_is_patched_and_put_back():
    """A stand-in with the documented signature: compute_advantage(data, adv_estimator, ...)."""
    batch, fields = rows_of(CHAIN)
    rewards, mask = _Tensor.rows(batch)
    module = types.ModuleType("ray_trainer")

    def own(data, adv_estimator, gamma=1.0, lam=1.0, num_repeat=1, norm_adv_by_std_in_grpo=True, config=None):
        data.batch["advantages"] = "own"
        return data

    module.compute_advantage = own
    data = types.SimpleNamespace(batch={"token_level_rewards": rewards, "response_mask": mask}, non_tensor_batch=fields)
    with patch_verl(module, w=0.5):
        module.compute_advantage(data, adv_estimator="g2po", gamma=1.0)
        np.testing.assert_allclose(data.batch["advantages"][:, 0].numpy(), g2po_advantage(batch, w=0.5), atol=1e-9)
        module.compute_advantage(data, types.SimpleNamespace(value="grpo"))
        assert data.batch["advantages"] == "own"
    assert module.compute_advantage is own
    for bad, said in ((types.ModuleType("x"), "no compute_advantage"), (None, "not installed")):
        with pytest.raises(InputError, match=said), patch_verl(bad):
            pass


def test_the_graph_counts_what_was_walked():
    batch = StepBatch([0] * 6, [0] * 3 + [1] * 3, [0, 1, 2] * 2, [0, 0, 10.0, 0, 0, 0], list("ABCABB"))
    graph = TransitionGraph.from_batch(batch)
    edges = {tuple(edge): int(count) for edge, count in zip(graph.edges.tolist(), graph.counts, strict=True)}
    assert edges == {(0, 1): 2, (1, 2): 1, (2, END): 1, (1, 1): 1, (1, END): 1}
    assert graph.anchors == ("A", "B", "C")
    assert graph.depths().tolist() == [0, 1, 2]
    best = graph.edges[graph.critical_edges(1)[0]].tolist()
    assert best == [1, 2]
    assert graph.alias_report().nodes == 3
    net = graph.to_networkx()
    assert net.nodes[2]["anchor"] == "C"
    assert net.edges[0, 1]["count"] == 2
    assert graph.to_json()["edges"][0]["steps"] == 2
    picture = graph_picture(graph)
    assert {node.id for node in picture.nodes} == {"n0", "n1", "n2", "end"}
    assert all(edge.strong == (edge.kind != "dashed") for edge in picture.edges)
    assert any(edge.strong and edge.source == "n1" and edge.target == "n2" for edge in picture.edges)
    with pytest.raises(InputError, match="task"):
        TransitionGraph.from_batch(batch, task=5)
    two = StepBatch([0, 1], [0, 1], [0, 0], [0.0, 0.0], ["a", "b"])
    with pytest.raises(InputError, match="2 tasks"):
        TransitionGraph.from_batch(two)
    assert words(("a" * 99, 1)).endswith("…")


def test_taking_the_key_is_credited_and_large_graphs_are_cut():
    graph = TransitionGraph.from_batch(StepBatch.from_episodes(CHAIN), task=0)
    ranked = np.abs(graph.credit[graph.critical_edges(4)])
    assert ranked.min() >= np.sort(np.abs(graph.credit))[-4]
    key = graph.edges.tolist().index([graph.anchors.index((0, False)), graph.anchors.index((0, True))])
    assert graph.credit[key] > 0, "taking the key is credited"
    draws = np.random.default_rng(0)
    many = StepBatch(
        [0] * 200, [0] * 100 + [1] * 100, [*range(100)] * 2, [0.0] * 199 + [1.0], draws.integers(0, 90, 200)
    )
    graph = TransitionGraph.from_batch(many)
    picture = graph_picture(graph)
    drawn = {node.id for node in picture.nodes}
    assert len(picture.nodes) <= MOST_NODES + 1
    assert f"Not drawn: {len(graph.value) - MOST_NODES} states" in picture.caption
    assert sum(edge.strong for edge in picture.edges) == 8, "the steps of the largest credit are always drawn"
    assert all({edge.source, edge.target} <= drawn and edge.source != edge.target for edge in picture.edges)


def test_rollouts_that_won_end_apart_from_those_that_did_not():
    batch = StepBatch([0] * 4, [0, 0, 1, 1], [0, 1, 0, 1], [0.0, 1.0, 0.0, 0.0], list("abac"),
                      success=[True, True, False, False])  # fmt: skip
    graph = TransitionGraph.from_batch(batch)
    assert {(graph.anchors[source], target) for source, target in graph.edges.tolist() if target < 0} == {
        ("b", WON), ("c", END)
    }  # fmt: skip
    assert {edge["to"] for edge in graph.to_json()["edges"]} >= {"won", "end"}
    assert {data["anchor"] for _, data in graph.to_networkx().nodes(data=True)} == {"a", "b", "c", "won", "end"}
    assert {node.id for node in graph_picture(graph).nodes} >= {"won", "end"}
    assert graph.depths().tolist() == [0, 1, 1]
    assert [ends(graph, edge)[1] for edge in graph.critical_edges(9)].count("won") == 1


def test_a_state_seen_late_first_is_as_near_as_the_shortest_way_to_it():
    """Rollout 0 goes a b c d, rollout 1 d a: from where rollouts began, d is 0 away and c 2."""
    batch = StepBatch([0] * 6, [0, 0, 0, 0, 1, 1], [0, 1, 2, 3, 0, 1], [0.0] * 5 + [1.0], list("abcdda"))
    graph = TransitionGraph.from_batch(batch)
    depth = dict(zip(graph.anchors, graph.depths().tolist(), strict=True))
    assert depth == {"a": 0, "b": 1, "c": 2, "d": 0}


def cell(bench, arm, arrays, seed=0, **options):
    spec = catalog.load_bench(bench)
    config = next((one.config for one in spec.user_arms if one.name == arm), spec.arm(arm).config)
    return CellInput("user", arm, config, {}, options, seed, arrays)


@pytest.fixture(scope="module")
def rollouts():
    games = generate_games(6, 5)
    policy = LogLinearPolicy()
    policy.fit_bc(games, 8)
    envs = [(game.task, anchored(game.make_env(15, 10.0), "state")) for game in games for _ in range(8)]
    return collect(envs, policy, np.random.default_rng(0))


def test_the_users_rollouts_order_estimators_as_their_error_does():
    """On the chain the truth is known: agreement between halves must rank rules as the exact advantage does."""
    envs = [(task, anchored(KeyDoorChain(reward=10.0), "state")) for task in range(6) for _ in range(16)]
    episodes = collect(envs, Wanderer(), np.random.default_rng(3))
    arrays = user.user_task(episodes).load()
    found = {
        arm: np.mean([user.run(cell("g2po", arm, arrays, seed)).metrics["agreement"] for seed in range(3)])
        for arm in ("g2po", "grpo", "random")
    }
    assert found["g2po"] > found["grpo"] + 0.1 > 0.1
    assert abs(found["random"]) < 0.2


def test_the_users_rollouts_are_measured(rollouts, tmp_path):
    path = written(tmp_path, *({k: s[k] for k in ("task", "traj", "t", "reward", "observation", "action", "admissible",
                                                  "success")} for e in rollouts for s in e))  # fmt: skip
    task = user.user_task(path, anchor="history")
    assert "6 tasks" in task.label
    for arm in [arm.name for arm in USER]:
        measured = user.run(cell("g2po", arm, task.load(), anchor="history"))
        assert set(measured.metrics) == {"agreement", "spread", "singletons", "aliased"}
        assert measured.steps == len(task.load()["t"])
    for arm in ("g2po_obs", "g2po_history", "expert"):
        with pytest.raises(InputError, match="not measured"):
            user.run(cell("g2po", arm, task.load(), anchor="history"))
    for action in ({}, {"action": None}):
        with pytest.raises(InputError, match="action"):
            user.user_task([[{"reward": 1.0, "anchor": 1, **action}]] * 4)
    silent = [[{"reward": 1.0, "anchor": 1, "action": "go", "observation": None}]] * 4
    assert len(user.user_task(silent).load()["t"]) == 4, "an observation that is not needed may be unknown"


def test_the_users_commitments_are_measured():
    games = generate_games(3, 5)
    policy = CommitmentPolicy()
    policy.fit_bc(games)
    envs = [(game.task, committed(game.make_env(12, 10.0))) for game in games for _ in range(6)]
    task = arc_user.user_task(collect(envs, policy, np.random.default_rng(0)))
    found = {arm: arc_user.run(cell("arc", arm, task.load())).metrics for arm in ("arc", "coupled", "outcome")}
    assert found["arc"]["own_weight"] > 0.8
    assert found["outcome"]["own_weight"] == 0.0
    assert found["arc"]["own_weight"] > found["coupled"]["own_weight"]
    with pytest.raises(InputError, match="not measured"):
        arc_user.run(cell("arc", "freeform", task.load()))
    with pytest.raises(InputError, match="two rollouts"):
        arc_user.user_task([[{"reward": 1.0, "process": {"progress": 1, "prediction": 0}}]])


def test_grpo_needs_no_anchor():
    assert grpo(StepBatch([0, 0], [0, 1], [0, 0], [1.0, 0.0])).tolist() == pytest.approx([0.7071, -0.7071], abs=1e-3)
