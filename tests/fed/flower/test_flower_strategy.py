"""The strategy against a grid in this process: real messages as bytes, nodes that fail, lie, vanish and come back."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from grids import FakeGrid, learner, node, start, target
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed import AdaptiveMix, GAdapHeadStrategy
from steelyard.fed.gadaphead import checkpoints
from steelyard.fed.gadaphead import flower_client as client_side

pytestmark = pytest.mark.usefixtures("task")

CLIENTS = range(6)


def strategy(**settings) -> GAdapHeadStrategy:
    mixing = settings.pop("mixing", None) or AdaptiveMix(warmup=0)
    return GAdapHeadStrategy(**{"head_keys": ["head.weight"], "mixing": mixing, **settings})


def grid_of(**odd) -> FakeGrid:
    """Node 100 + c is client c."""
    return FakeGrid({100 + client: node(learner(client, **odd), client) for client in CLIENTS})


def one_round(ours, grid: FakeGrid, evaluate: bool = False):
    messages = ours.configure_train(1, start(), ConfigRecord(), grid)
    answer = ours.aggregate_train(1, grid.send_and_receive(messages))
    if evaluate:
        ours.aggregate_evaluate(1, grid.send_and_receive(ours.configure_evaluate(1, start(), ConfigRecord(), grid)))
    return answer


def got(grid: FakeGrid, number: int) -> np.ndarray:
    """The head in the last message of a node."""
    return grid.nodes[number].received[-1].content["arrays"]["head.weight"].numpy()


def test_groups_are_found_and_each_client_gets_its_own_head() -> None:
    ours, grid = strategy(), grid_of(variance=1e-3)
    result = ours.start(grid, start(), num_rounds=4)
    last = ours.rounds[-1]
    assert [last.groups[client] for client in CLIENTS] == [last.groups[0]] * 3 + [last.groups[3]] * 3
    assert last.groups[0] != last.groups[3]
    assert all(0 < lam <= 1 for lam in last.lam.values())
    for client in CLIENTS:
        np.testing.assert_array_equal(got(grid, 100 + client), ours.client_arrays(client)["head.weight"])
        assert np.abs(ours.client_arrays(client)["head.weight"] - target(client)).max() < 0.5
    assert len({ours.client_arrays(client)["head.weight"].tobytes() for client in CLIENTS}) == len(CLIENTS)
    np.testing.assert_array_equal(result.arrays["head.weight"].numpy(), np.zeros((1, 3)))
    assert ours.rounds_done == 4


def test_another_groups_head_never_leaks() -> None:
    """What clients 0-2 receive does not depend by a bit on what the other group learns."""
    heads = []
    for factor in (1.0, 3.0):
        ours, grid = strategy(), grid_of()
        for client in (3, 4, 5):
            true = learner(client)

            def train(message, context, true=true, factor=factor):
                reply = true(message, context)
                record = reply.content["arrays"]
                record["head.weight"] = client_side.Array(record["head.weight"].numpy() * np.float32(factor))
                return reply

            grid.nodes[100 + client] = node(train, client)
        ours.start(grid, start(), num_rounds=3)
        assert ours.rounds[-1].groups[0] != ours.rounds[-1].groups[3]
        heads.append([got(grid, 100 + client).tobytes() for client in (0, 1, 2)])
    assert heads[0] == heads[1]


def test_the_trunk_is_what_flowers_fedavg_makes_of_it() -> None:
    theirs = FedAvg().start(grid_of(), start(), num_rounds=3)
    ours = strategy().start(grid_of(), start(), num_rounds=3)
    np.testing.assert_allclose(ours.arrays["trunk"].numpy(), theirs.arrays["trunk"].numpy(), rtol=1e-6)
    assert ours.arrays["trunk"].dtype == "float32"
    assert ours.arrays["seen"].dtype == "int64"
    assert ours.arrays["seen"].numpy() == 3
    assert ours.train_metrics_clientapp[3]["loss"] == pytest.approx(theirs.train_metrics_clientapp[3]["loss"])


def test_evaluation_is_averaged_as_flowers_fedavg_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    replies = grid.send_and_receive(ours.configure_evaluate(1, start(), ConfigRecord(), grid))
    theirs = FedAvg().aggregate_evaluate(1, replies)
    assert ours.aggregate_evaluate(1, replies)["first"] == pytest.approx(theirs["first"])
    by_client = ours.rounds[-1].evaluation
    assert {client: row["first"] for client, row in by_client.items()} == {
        client: float(ours.client_arrays(client)["head.weight"][0, 0]) for client in CLIENTS
    }
    assert ours.aggregate_evaluate(1, []) is None


def test_evaluation_skips_errors_and_can_be_switched_off() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    messages = ours.configure_evaluate(1, start(), ConfigRecord(), grid)
    grid.lost = {100, 101}
    ours.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert sorted(ours.rounds[-1].evaluation) == [2, 3, 4, 5]
    off = strategy(fraction_evaluate=0.0)
    one_round(off, grid_of())
    assert list(off.configure_evaluate(1, start(), ConfigRecord(), grid_of())) == []


def test_a_failed_client_is_named_and_keeps_its_head() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    kept = ours.client_arrays(2)["head.weight"]
    grid.lost, grid.silent = {102}, {103}
    arrays, metrics = one_round(ours, grid)
    assert arrays is not None
    assert metrics["loss"] == pytest.approx(np.mean([0, 1, 4, 5]))
    assert {who[:8] for who in ours.rounds[-1].failures} == {"client 2", "client 3"}
    assert "the node is gone" in ours.rounds[-1].failures["client 2 (node 102)"]
    assert sorted(ours.rounds[-1].lam) == [0, 1, 4, 5]
    np.testing.assert_array_equal(ours.client_arrays(2)["head.weight"], kept)
    grid.lost, grid.silent = set(), set()
    one_round(ours, grid)
    np.testing.assert_array_equal(got(grid, 102), kept)
    assert not ours.rounds[-1].failures


@pytest.mark.parametrize("introduces", [True, False])
def test_a_restarted_node_gets_the_head_of_its_client_back(introduces: bool) -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    one_round(ours, grid)
    own = ours.client_arrays(4)["head.weight"]
    del grid.nodes[104]
    grid.nodes[7] = node(learner(4), 4, introduces)  # another node id, and the lowest
    one_round(ours, grid)
    if introduces:
        np.testing.assert_array_equal(got(grid, 7), own)
        assert not ours.rounds[-1].failures
    else:
        np.testing.assert_array_equal(got(grid, 7), np.zeros((1, 3)))
        assert "which was not known" in ours.rounds[-1].failures["node 7"]
        np.testing.assert_array_equal(ours.client_arrays(4)["head.weight"], own)
        one_round(ours, grid)
        np.testing.assert_array_equal(got(grid, 7), own)


def test_a_client_that_comes_later_starts_anew() -> None:
    ours, grid = strategy(), grid_of()
    late = grid.nodes.pop(105)
    one_round(ours, grid)
    grid.nodes[105] = late
    one_round(ours, grid)
    np.testing.assert_array_equal(got(grid, 105), np.zeros((1, 3)))
    assert 5 in ours.rounds[-1].lam
    trunk = grid.nodes[105].received[-1].content["arrays"]["trunk"].numpy()
    np.testing.assert_allclose(trunk, np.mean([0, 1, 2, 3, 4]))


def test_a_node_that_became_another_client_refuses_the_head_and_is_asked_again() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    grid.nodes[100].config["partition-id"], grid.nodes[101].config["partition-id"] = 1, 0
    one_round(ours, grid)
    assert "holds the head of client 0, but this is client 1" in ours.rounds[-1].failures["client 0 (node 100)"]
    one_round(ours, grid)
    assert not ours.rounds[-1].failures
    for number, client in ((100, 1), (101, 0)):
        assert grid.nodes[number].received[-1].content["config"]["partition-id"] == client


def test_an_answer_from_the_wrong_client_is_not_used() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)

    def lies(message, context):
        context.node_config["partition-id"] = 0
        reply = learner(0)(message, context)
        reply.content["metrics"]["partition-id"] = 1
        return reply

    grid.nodes[100] = node(lies, 0)
    one_round(ours, grid)
    assert "was sent the head of client 0" in ours.rounds[-1].failures["client 0 (node 100)"]
    assert ours.rounds[-1].metrics[1] == {"loss": 1.0}


def test_two_nodes_with_one_number() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    grid.nodes[1] = node(learner(0), 0)
    one_round(ours, grid)
    assert "another node has answered as client 0" in ours.rounds[-1].failures["client 0 (node 100)"]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"arrays": {"head.weight": np.array([[1.0, np.nan, 0.0]])}}, "'head.weight' holds values that are not finite"),
        ({"arrays": {"trunk": np.array([np.inf, 0.0])}}, "'trunk' holds values that are not finite"),
        ({"arrays": {"head.weight": np.zeros((1, 4))}}, r"'head.weight' has shape \(1, 4\), not \(1, 3\)"),
        ({"arrays": {"extra": np.zeros(1)}}, "hold 'extra', which the model does not have"),
        ({"variance": float("nan")}, "'head-variance' must be a finite number"),
        ({"variance": -1.0}, "'head-variance' must be a finite number of at least 0, got -1.0"),
        ({"num_examples": 0}, "num-examples=0, which must be a number of at least 1"),
        ({"second_moment": np.eye(2)}, r"second moment has shape \(2, 2\), but heads have 3 features"),
        ({"arrays": {"trunk": np.array([1e300, 0.0])}}, "'trunk' holds values that are not finite"),
        ({"second_moment": np.triu(np.ones((3, 3)))}, "sigma must be symmetric"),
        ({"second_moment": np.full((3, 3), np.nan)}, "second moment holds values that are not finite"),
        ({"second_moment": np.diag([1.0, 1.0, -1e-3])}, "sigma must be positive semidefinite"),
    ],
)
def test_an_unusable_answer_is_skipped_and_named(odd: dict, words: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    ours, grid = strategy(), grid_of()
    grid.nodes[101] = node(learner(1, **odd), 1)
    one_round(ours, grid)
    ((who, why),) = ours.rounds[-1].failures.items()
    assert "101" in who
    assert re.search(words, why)
    with pytest.raises(InputError, match="client 1 has not reported yet"):
        ours.client_arrays(1)
    assert f"round 1: {who} was skipped: {why}" in caplog.text
    assert sorted(ours.rounds[-1].lam) == [0, 2, 3, 4, 5]


def content(arrays: ArrayRecord | None, **metrics: float) -> RecordDict:
    records = RecordDict({"metrics": MetricRecord(metrics)} if metrics else {})
    if arrays is not None:
        records["arrays"] = arrays
    return records


def corrupt() -> ArrayRecord:
    arrays = start()
    arrays["trunk"] = client_side.Array("float32", (2,), "numpy.ndarray", b"no array")
    return arrays


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (lambda: content(start()), "holds 0 metric records"),
        (lambda: content(start(), **{"num-examples": 3}), "partition-id=None"),
        (lambda: content(start(), **{"num-examples": 3, "partition-id": 0}), "no 'head-variance'"),
        (
            lambda: content(start(), **{"num-examples": 3, "partition-id": 0, "head-variance": [1.0]}),
            "must be a finite",
        ),
        (lambda: content(None, **{"num-examples": 3, "partition-id": 0, "head-variance": 1.0}), "no arrays under"),
        (lambda: content(corrupt(), **{"num-examples": 3, "partition-id": 0, "head-variance": 1.0}), "cannot be read"),
        (lambda: content(start(), **{"partition-id": 0, "head-variance": 1.0}), "num-examples=None"),
    ],
)
def test_answers_made_by_hand(records, words: str) -> None:
    """In a first round in which nobody's answer fits, the run stops and says why."""
    grid = FakeGrid({n: node(lambda m, c: Message(records(), reply_to=m), 0) for n in (1, 2)})
    with pytest.raises(InputError, match=f"no answer of the first round can be used; node 1.*{words}"):
        one_round(strategy(), grid)


def test_a_first_round_that_all_nodes_fail_is_repeated() -> None:
    ours, grid = strategy(), grid_of()
    grid.lost = set(grid.nodes)
    assert one_round(ours, grid) == (None, None)
    grid.lost = set()
    arrays, _ = one_round(ours, grid)
    assert arrays is not None


def test_mixed_feature_moments_and_packed_heads_with_a_bias() -> None:
    """The head of torch's nn.Linear with a bias; the moment counts the bias as one more feature."""
    arrays = client_side.array_record({"t": np.zeros(1), "w": np.zeros((2, 3)), "b": np.zeros(2)})

    def train(message, context):
        model = client_side.received_arrays(message, context)
        new = {**model, "w": model["w"] + 1.0, "b": model["b"] + client_side.partition_id(context)}
        return client_side.train_reply(message, context, new, num_examples=1, variance=0.5, second_moment=np.eye(4))

    grid = FakeGrid({n: node(train, n) for n in range(3)})
    ours = GAdapHeadStrategy(head_predicate=lambda name: name in ("w", "b"), mixing=AdaptiveMix(strength=1.0, warmup=0))
    ours.aggregate_train(1, grid.send_and_receive(ours.configure_train(1, arrays, ConfigRecord(), grid)))
    np.testing.assert_array_equal(ours.client_arrays(0)["w"], np.ones((2, 3)))
    np.testing.assert_allclose(ours.client_arrays(0)["b"], [1.5, 1.5])


def test_no_mixing_is_fedper_and_mixing_fully_is_the_prototype() -> None:
    """Strength 0 gives back the very head that was sent, and 1 the mean of the others of its group."""
    for strength in (0.0, 1.0):
        ours, grid = strategy(mixing=AdaptiveMix(strength=strength, warmup=0)), grid_of()
        one_round(ours, grid)
        sent = {client: (0.5 * target(client)[None]).astype(np.float32) for client in CLIENTS}
        for client in CLIENTS:
            others = [sent[other] for other in CLIENTS if other // 3 == client // 3 and other != client]
            expected = sent[client] if strength == 0 else np.mean(others, axis=0)
            np.testing.assert_allclose(ours.client_arrays(client)["head.weight"], expected, rtol=1e-6)


@settings(max_examples=20)
@given(st.permutations(list(CLIENTS)))
def test_the_order_of_answers_does_not_matter(order: list[int]) -> None:
    heads = []
    for wanted in (list(CLIENTS), order):
        ours, grid = strategy(), grid_of()
        for _ in range(2):
            replies = grid.send_and_receive(ours.configure_train(1, start(), ConfigRecord(), grid))
            by_node = {reply.metadata.src_node_id: reply for reply in replies}
            ours.aggregate_train(1, [by_node[100 + client] for client in wanted])
        heads.append([ours.client_arrays(client)["head.weight"].tobytes() for client in CLIENTS])
    assert heads[0] == heads[1]


def test_sampling_is_by_client_and_seeded() -> None:
    def sampled(shift: int, seed: int) -> list[list[int]]:
        ours = strategy(fraction_train=0.5, seed=seed)
        grid = FakeGrid({shift * (client + 1): node(learner(client), client) for client in CLIENTS})
        for _ in range(6):
            one_round(ours, grid)
        return [sorted(now.metrics) for now in ours.rounds]

    assert sampled(10, 0) == sampled(3, 0)
    assert sampled(10, 0) != sampled(10, 1)
    assert all(len(clients) == 3 for clients in sampled(10, 0))
    assert list(strategy(fraction_train=0.0).configure_train(1, start(), ConfigRecord(), grid_of())) == []


def test_a_round_waits_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    naps = []

    def arrive(seconds: float) -> None:
        naps.append(seconds)
        grid.nodes[len(naps)] = node(learner(len(naps)), len(naps))

    monkeypatch.setattr("steelyard.fed.gadaphead.flower.time.sleep", arrive)
    assert len(list(strategy(min_available_nodes=3).configure_train(1, start(), ConfigRecord(), grid))) == 3
    assert naps == [1.0, 1.0, 1.0]


def test_a_resumed_run_is_the_run_that_was_not_broken(tmp_path: Path) -> None:
    whole = strategy()
    whole.start(grid_of(), start(), num_rounds=5)
    path = tmp_path / "folder" / "state.npz"
    first = strategy(checkpoint=path)
    first.start(grid_of(), start(), num_rounds=3)
    second, grid = strategy(checkpoint=path), grid_of()
    assert second.rounds_done == 3
    second.start(grid, start(), num_rounds=5 - second.rounds_done)
    assert second.rounds_done == 5
    np.testing.assert_array_equal(
        grid.nodes[100].received[1].content["arrays"]["head.weight"].numpy(), first.client_arrays(0)["head.weight"]
    )
    assert second.rounds[-1].groups == whole.rounds[-1].groups
    assert second.rounds[-1].lam == whole.rounds[-1].lam
    for client in CLIENTS:
        for name, values in whole.client_arrays(client).items():
            np.testing.assert_array_equal(second.client_arrays(client)[name], values)
    assert [file.name for file in path.parent.iterdir()] == ["state.npz"]


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    strategy(checkpoint=path).start(grid_of(), start(), num_rounds=1)
    other = client_side.array_record({"trunk": np.zeros(2), "seen": np.array(0), "head.weight": np.zeros((1, 5))})
    with pytest.raises(InputError, match="of another model"):
        strategy(checkpoint=path).configure_train(1, other, ConfigRecord(), grid_of())
    other = client_side.array_record({"trunk": np.zeros(4), "seen": np.array(0), "head.weight": np.zeros((1, 3))})
    with pytest.raises(InputError, match="'trunk' has shape"):
        strategy(checkpoint=path).configure_train(1, other, ConfigRecord(), grid_of())
    path.write_bytes(b"no npz")
    with pytest.raises(InputError, match="cannot be read"):
        strategy(checkpoint=path)
    for text in ("{}", "[", json.dumps({"rounds": None}), '{"rounds": -1}', '{"rounds": Infinity}', "[" * 100_000):
        checkpoints.write(path, "GAdapHeadStrategy", {}, text)
        with pytest.raises(InputError, match="cannot be read"):
            strategy(checkpoint=path)
    checkpoints.write(path, "GAdapHeadStrategy", {}, json.dumps({"rounds": 1}))
    with pytest.raises(InputError, match="of another model"):
        strategy(checkpoint=path).configure_train(1, start(), ConfigRecord(), grid_of())


def test_a_head_too_large_to_be_averaged_is_skipped_and_named() -> None:
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    odd = np.full((1, 3), 3e38, dtype=np.float32)
    grid.nodes[101] = node(learner(1, arrays={"head.weight": odd}), 1)
    one_round(ours, grid)
    (said,) = ours.rounds[-1].failures.items()
    assert said[0] == "client 1 (node 101)"
    assert "'head.weight' holds values that are not finite numbers, or too large to be averaged" in said[1]
    assert sorted(ours.rounds[-1].lam) == [0, 2, 3, 4, 5]


def test_checkpoints_that_were_changed(tmp_path: Path) -> None:
    """Whatever stands in the place of an array: the run goes on, or an InputError says that the file is at fault."""
    path = tmp_path / "state.npz"
    strategy(checkpoint=path).start(grid_of(second_moment=np.eye(3)), start(), num_rounds=2)
    parts, text = checkpoints.read(path, "GAdapHeadStrategy")
    refused = 0
    for part, name in [(part, name) for part, own in parts.items() for name in own]:
        for odd in (np.array(["a"]), np.full(np.shape(parts[part][name]), -7.0), np.array(3.5), np.zeros(5)):
            changed = {**parts, part: {**parts[part], name: odd}}
            checkpoints.write(path, "GAdapHeadStrategy", changed, text)
            try:
                one_round(strategy(checkpoint=path), grid_of())
            except InputError:
                refused += 1
    assert refused > 50


def test_the_summary_and_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    caplog.set_level(logging.INFO, "flwr")
    strategy().summary()
    assert "head.weight" in caplog.text
    GAdapHeadStrategy(head_predicate=bool).summary()
    assert "by predicate" in caplog.text
    for odd, words in (
        ({"fraction_train": 1.5}, "fraction_train must be in"),
        ({"fraction_evaluate": -0.1}, "fraction_evaluate must be in"),
        ({"head_predicate": bool}, "either head_keys or head_predicate"),
        ({"head_keys": None}, "either head_keys or head_predicate"),
        ({"min_available_nodes": 0}, "min_available_nodes must be at least 1"),
        ({"query_timeout": 0.0}, "query_timeout above 0 seconds, got 2 and 0.0"),
    ):
        with pytest.raises(InputError, match=words):
            strategy(**odd)
    with pytest.raises(InputError, match="matches none of the model's arrays: trunk, seen, head"):
        GAdapHeadStrategy(head_predicate=lambda name: False).configure_train(1, start(), ConfigRecord(), grid_of())
    with pytest.raises(InputError, match="has not trained yet"):
        strategy().aggregate_train(1, [])


def test_the_clients_side_says_what_is_wrong() -> None:
    message = Message(RecordDict({"arrays": start()}), 5, "train")
    nobody = Context(1, 5, {}, RecordDict(), {})
    with pytest.raises(InputError, match="start the SuperNode with --node-config"):
        client_side.introduction(message, nobody)
    for odd in (True, -1, "3"):
        with pytest.raises(InputError, match="partition-id="):
            client_side.partition_id(Context(1, 5, {"partition-id": odd}, RecordDict(), {}))
    somebody = Context(1, 5, {"partition-id": 2}, RecordDict(), {})
    assert set(client_side.received_arrays(message, somebody)) == {"trunk", "seen", "head.weight"}
    for name in ("partition-id", "num-examples", "head-variance"):
        with pytest.raises(InputError, match=f"metrics may not hold '{name}'"):
            client_side.evaluate_reply(message, somebody, {name: 1.0}, num_examples=1)


def test_a_query_that_fails_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    ours, grid = strategy(), grid_of()
    one_round(ours, grid)
    grid.nodes[9] = node(learner(0), None)
    one_round(ours, grid)
    assert "node 9 did not say who it is: it failed" in caplog.text
    assert "it failed" in ours.rounds[-1].failures["node 9"]


def test_no_torch_is_needed() -> None:
    code = "import sys, steelyard.fed.gadaphead.flower; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
