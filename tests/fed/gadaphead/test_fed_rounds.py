"""Rounds in one process: isolation, failures, absences, checkpoints, what is counted, bad input."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed import Clustered, FedAvg, GAdapHead, Local, SharedTrunk, federated_rounds
from steelyard.fed.gadaphead import checkpoints
from steelyard.fed.gadaphead.rounds import Broadcast, ClientUpdate, rounds_from_json, uploaded_bytes

STRATEGIES = [Local, FedAvg, SharedTrunk, Clustered, GAdapHead]
START = ({"weight": np.zeros((2, 2)), "bias": np.zeros(2)}, np.zeros(3))
TARGETS = np.array([[1.0, 0, 0], [1.0, 0.2, 0], [0, 0, 1.0], [0, 0.2, 1.0]])


class Learner:
    """A client that pulls its head towards a target, draws noise, and counts its rounds; some rounds go wrong."""

    def __init__(self, target, fails=(), absent=(), spoil=None, **extra):
        self.target, self.fails, self.absent, self.spoil, self.extra = target, fails, absent, spoil, extra
        self.count = 0

    def __call__(self, trunk, head, round, generator):
        if round in self.absent:
            return None
        if round in self.fails:
            if self.spoil is None:
                raise RuntimeError("the simulator crashed")
            return self.spoil(ClientUpdate(trunk, head, None, 0.1, 5))
        self.count += 1
        for values in trunk.values():
            values += generator.normal(size=values.shape)  # in place: what a client gets is its own
        head += 0.5 * (self.target - head) + 0.1 * generator.normal(size=3) + 0.01 * self.count
        return ClientUpdate(trunk, head, None, 0.05, 10, metrics={"count": self.count}, **self.extra)

    def state_dict(self):
        return {"count": np.array(self.count)}

    def load_state_dict(self, state):
        self.count = int(state["count"])


def learners(**odd):
    return [Learner(target, **odd.get(f"c{i}", {})) for i, target in enumerate(TARGETS)]


def same(first, second):
    assert first.to_json() == second.to_json()
    assert first.rounds == second.rounds
    for client, sent in first.final.items():
        assert sent.head.tobytes() == second.final[client].head.tobytes()
        assert list(sent.trunk) == list(second.final[client].trunk)
        for name, values in sent.trunk.items():
            assert values.tobytes() == second.final[client].trunk[name].tobytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_equal_seeds_give_equal_results(strategy):
    first = federated_rounds(learners(), 4, strategy(), 3, initial=START)
    same(first, federated_rounds(learners(), 4, strategy(), 3, initial=START))
    other = federated_rounds(learners(), 4, strategy(), 4, initial=START)
    assert first.final[0].head.tobytes() != other.final[0].head.tobytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_run_is_the_same_run(strategy, tmp_path):
    odd = {"c1": {"absent": (2, 4)}, "c3": {"fails": (3,)}}
    whole = federated_rounds(learners(**odd), 6, strategy(), 0, initial=START)
    path = tmp_path / "deep" / "run.npz"
    federated_rounds(learners(**odd), 3, strategy(), 0, initial=START, checkpoint=path)
    resumed = federated_rounds(learners(**odd), 6, strategy(), 0, initial=START, checkpoint=path)
    same(whole, resumed)
    seen = []
    again = federated_rounds(learners(**odd), 6, strategy(), 0, initial=START, checkpoint=path, on_round=seen.append)
    same(whole, again)  # nothing is left to do
    assert seen == []
    assert [file.name for file in path.parent.iterdir()] == ["run.npz"]


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 4), st.sampled_from(STRATEGIES))
def test_any_cut_gives_the_same_run(tmp_path_factory, seed, cut, strategy):
    generator = np.random.default_rng(seed)
    odd = {f"c{i}": {"absent": tuple(generator.choice(5, 2) + 1)} for i in range(3)}
    path = tmp_path_factory.mktemp("run") / "run.npz"
    federated_rounds(learners(**odd), cut, strategy(), seed, initial=START, checkpoint=path)
    resumed = federated_rounds(learners(**odd), 5, strategy(), seed, initial=START, checkpoint=path)
    same(federated_rounds(learners(**odd), 5, strategy(), seed, initial=START), resumed)


def test_one_client_is_local_training():
    local = federated_rounds(learners()[:1], 5, Local(), 0, initial=START)
    for strategy in STRATEGIES[1:]:
        found = federated_rounds(learners()[:1], 5, strategy(), 0, initial=START)
        assert found.final[0].head.tobytes() == local.final[0].head.tobytes()
        for name, values in local.final[0].trunk.items():
            assert found.final[0].trunk[name].tobytes() == values.tobytes()


def test_a_client_draws_the_same_whoever_else_is_there():
    four = federated_rounds(learners(), 3, Local(), 0, initial=START)
    two = federated_rounds(learners()[:2], 3, Local(), 0, initial=START)
    assert four.final[1].head.tobytes() == two.final[1].head.tobytes()


def test_history():
    seen = []
    history = federated_rounds(learners(), 3, GAdapHead(), 0, initial=START, on_round=seen.append)
    assert list(history.rounds) == seen
    assert [record.round for record in seen] == [1, 2, 3]
    assert seen[2].metrics == {client: {"count": 3.0} for client in range(4)}
    assert set(seen[2].groups) == set(seen[2].lam) == {0, 1, 2, 3}
    assert seen[0].lam == dict.fromkeys(range(4), 0.0)  # warm-up
    assert rounds_from_json(history.to_json()) == history.rounds
    assert json.loads(history.to_json())[0]["round"] == 1


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(Local(), 0), (SharedTrunk(), 48), (FedAvg(), 72), (GAdapHead(), 80), (Clustered(), 72)],
    ids=lambda value: type(value).__name__,
)
def test_uploaded_bytes(strategy, expected):
    """A trunk of 6 numbers, a head of 3, a variance."""
    history = federated_rounds(learners(), 1, strategy, 0, initial=START)
    assert history.rounds[0].uploaded_bytes == 4 * expected


def test_what_is_sent_beside_the_head_counts_where_it_is_needed():
    update = ClientUpdate({}, np.zeros(3), np.zeros(3), 0.0, 1, np.eye(3, dtype=np.float32))
    assert uploaded_bytes(update, frozenset({"head"})) == 24
    assert uploaded_bytes(update, GAdapHead().uploads) == 24 + 24 + 8 + 36


BAD = {
    "values": (lambda u: ClientUpdate(u.trunk, np.array([1.0, np.nan, 0]), None, 0.1, 5), "head holds values"),
    "trunk values": (
        lambda u: ClientUpdate({**u.trunk, "bias": np.array([np.inf, 0])}, u.head, None, 0.1, 5),
        "'bias'",
    ),
    "update": (lambda u: ClientUpdate(u.trunk, u.head, np.array([np.nan, 0, 0]), 0.1, 5), "update holds values"),
    "shape": (lambda u: ClientUpdate(u.trunk, np.zeros(4), None, 0.1, 5), "head must have shape (3,), got (4,)"),
    "names": (lambda u: ClientUpdate({"weight": u.trunk["weight"]}, u.head, None, 0.1, 5), "'bias' is missing"),
    "variance": (lambda u: ClientUpdate(u.trunk, u.head, None, -1.0, 5), "variance must be a finite number"),
    "no variance": (lambda u: ClientUpdate(u.trunk, u.head, None, np.nan, 5), "variance must be a finite number"),
    "steps": (lambda u: ClientUpdate(u.trunk, u.head, None, 0.1, -5), "n_steps must be at least 0"),
    "moment": (lambda u: ClientUpdate(u.trunk, u.head, None, 0.1, 5, np.eye(2)), "feature_second_moment must have"),
    "indefinite": (
        lambda u: ClientUpdate(u.trunk, u.head, None, 0.1, 5, np.diag([1.0, 1.0, -0.1])),
        "feature_second_moment must be positive semidefinite",
    ),
    "too many steps": (lambda u: ClientUpdate(u.trunk, u.head, None, 0.1, 10**400), "n_steps must be at least 0 and"),
    "metrics": (
        lambda u: ClientUpdate(u.trunk, u.head, None, 0.1, 5, metrics={"a": "b"}),
        "metrics must be numbers",
    ),
    "kind": (lambda u: u.head, "must answer a ClientUpdate or None, got ndarray"),
    "text": (lambda u: ClientUpdate(u.trunk, np.array(["a", "b", "c"]), None, 0.1, 5), "head must be an array of num"),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_unusable_update_is_skipped_and_named(kind):
    spoil, said = BAD[kind]
    odd = {"c2": {"fails": (2,), "spoil": spoil}}
    history = federated_rounds(learners(**odd), 3, GAdapHead(), 0, initial=START)
    assert set(history.rounds[1].failures) == {2}
    assert history.rounds[1].failures[2].startswith("InputError: client 2")
    assert said in history.rounds[1].failures[2]
    assert set(history.rounds[1].metrics) == {0, 1, 3}
    assert history.rounds[2].failures == {}
    with pytest.raises(InputError, match="client 2"):
        federated_rounds(learners(**odd), 3, GAdapHead(), 0, initial=START, skip_failures=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_failures_and_absences_keep_the_head(strategy):
    sent = {}
    odd = {"c1": {"fails": (2,)}, "c2": {"absent": (2,)}}
    for rounds in (1, 2):
        history = federated_rounds(learners(**odd), rounds, strategy(), 0, initial=START)
        sent[rounds] = history.final
    assert history.rounds[1].failures == {1: "RuntimeError: the simulator crashed"}
    assert set(history.rounds[1].metrics) == {0, 3}
    for client in (1, 2):
        kept = sent[1][client].head.tobytes() == sent[2][client].head.tobytes()
        assert kept == (strategy is not FedAvg)
        shared = sent[2][client].trunk["bias"].tobytes() == sent[2][0].trunk["bias"].tobytes()
        assert shared == (strategy is not Local)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_that_never_reports_keeps_its_start(strategy):
    starts = [(START[0], np.full(3, float(i))) for i in range(4)]
    history = federated_rounds(learners(c3={"absent": range(9)}), 4, strategy(), 0, initial=starts)
    if strategy is not FedAvg:
        assert history.final[3].head.tolist() == [3, 3, 3]
    assert 3 not in history.rounds[-1].lam
    assert history.rounds[-1].failures == {}


def test_all_clients_fail():
    odd = {f"c{i}": {"fails": (2,)} for i in range(4)}
    with pytest.warns(RuntimeWarning, match="round 2: all .* clients failed"):
        history = federated_rounds(learners(**odd), 3, GAdapHead(), 0, initial=START)
    assert set(history.rounds[1].failures) == {0, 1, 2, 3}
    assert history.rounds[1].uploaded_bytes == 0
    assert history.rounds[1].lam == {}
    odd = {f"c{i}": {"fails": (1, 2, 3)} for i in range(4)}
    with pytest.raises(InputError, match="no client has sent a usable update by round 1; client 0: RuntimeError"):
        federated_rounds(learners(**odd), 3, GAdapHead(), 0, initial=START)


def test_all_clients_sit_out_a_round():
    odd = {f"c{i}": {"absent": (1,)} for i in range(4)}
    history = federated_rounds(learners(**odd), 1, GAdapHead(), 0, initial=START)
    assert history.rounds[0].failures == {}
    assert history.final[0].head.tolist() == [0, 0, 0]


def test_a_head_out_of_range_is_skipped_and_named():
    def client(trunk, head, round, generator):
        return ClientUpdate(trunk, np.full(3, (0.0, 1.7e308)[round - 1]), None, 0.1, 1)

    history = federated_rounds([client, learners()[0]], 2, GAdapHead(), 0, initial=START)
    assert history.rounds[0].failures == {}
    assert "head holds values that are not finite, or too large" in history.rounds[1].failures[0]


def test_clients_share_no_memory():
    kept = []

    def client(trunk, head, round, generator):
        kept.append((trunk["weight"], head))
        head += 1.0
        return ClientUpdate(trunk, head, None, 0.1, 1)

    start = ({"weight": np.zeros(2)}, np.zeros(3))
    first = federated_rounds([client, client], 1, SharedTrunk(), 0, initial=start)
    for weight, head in kept:
        weight += 100.0
        head += 100.0
    assert first.final[0].head.tolist() == [1, 1, 1]
    assert first.final[0].trunk["weight"].tolist() == [0, 0]
    assert start[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 0}, "rounds and clients must be at least 1"),
        ({"clients": []}, "rounds and clients must be at least 1"),
        ({"initial": [START, START]}, "initial must be one (trunk, head), or one for each of 4 clients, got 2"),
        ({"initial": ({}, np.float64(1.0))}, "initial head of client 0 must have shape"),
        ({"initial": ({}, np.array([np.nan]))}, "initial head of client 0 holds values"),
        ({"initial": ({"a": np.array("x")}, np.ones(3))}, "initial trunk 'a' of client 0 must be an array of numbers"),
    ],
)
def test_bad_settings(change, said):
    given_ = {"clients": learners(), "rounds": 1, "strategy": Local(), "seed": 0, "initial": START, **change}
    with pytest.raises(InputError) as caught:
        federated_rounds(**given_)
    assert said in str(caught.value)


def test_bad_checkpoints(tmp_path):
    path = tmp_path / "run.npz"

    def run(strategy=Local, seed=0):
        return federated_rounds(learners(), 1, strategy(), seed, initial=START, checkpoint=path)

    run()
    for other in ({"strategy": FedAvg}, {"seed": 1}):
        with pytest.raises(InputError, match="is of another run"):
            run(**other)
    whole = path.read_bytes()
    for broken in (b"", b"not a zip", whole[: len(whole) // 2], whole[:300] + bytes(200) + whole[500:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"run\.npz cannot be read"):
            run()
    np.savez(path, run=np.array("x"))
    with pytest.raises(InputError, match="cannot be read"):
        run()
    path.write_bytes(whole)
    parts, text = checkpoints.read(path, "Local, 4 clients, seed 0")
    for odd, said in (
        ({"head 0": {"": np.zeros(4)}}, "head must have shape"),
        ({"head 0": {"": np.full(3, np.nan)}}, "head holds values that are not finite"),
        ({"trunk 1": {"weight": np.zeros((2, 2))}}, "client 1 is of another model"),
        ({"head 2": {"": np.array(["a", "b", "c"])}}, "client 2 is of another model"),
    ):
        checkpoints.write(path, "Local, 4 clients, seed 0", {**parts, **odd}, text)
        with pytest.raises(InputError, match=said):
            run()
    checkpoints.write(path, "Local, 4 clients, seed 0", parts, text.replace('"round": 1', '"round": 3'))
    with pytest.raises(InputError, match="does not hold the rounds from 1 on"):
        run()
    np.savez_compressed(path, run=np.zeros(100_000))
    with pytest.raises(InputError, match="compressed or overlaps"):
        run()
    checkpoints.write(path, "Local, 4 clients, seed 0", {}, "[]")
    with pytest.raises(InputError, match="lacks 'head 0'"):
        run()
    with pytest.raises(InputError, match="history cannot be read"):
        rounds_from_json("{")
    with pytest.raises(InputError, match="history cannot be read"):
        rounds_from_json('[{"round": 1}]')


def test_a_shared_trunk_is_stored_once(tmp_path):
    path, trunk = tmp_path / "run.npz", {"w": np.zeros(20_000)}

    def client(trunk, head, round, generator):
        return ClientUpdate(trunk, head + 1.0, None, 0.1, 1)

    federated_rounds([client] * 10, 2, GAdapHead(), 0, initial=(trunk, np.zeros(3)), checkpoint=path)
    assert path.stat().st_size < 2 * trunk["w"].nbytes


def test_a_checkpoint_holds_any_names(tmp_path):
    path = tmp_path / "run.npz"
    parts = {"a": {"../b/c": np.ones(2), "": np.zeros((0, 3))}, "d": {"é": np.array(4)}}
    checkpoints.write(path, "run", parts, "text")
    found, text = checkpoints.read(path, "run")
    assert text == "text"
    assert {part: set(own) for part, own in found.items()} == {part: set(own) for part, own in parts.items()}
    assert found["a"][""].shape == (0, 3)
    assert found["d"]["é"] == 4
    assert Broadcast({}, np.ones(1)).trunk == {}


@pytest.mark.parametrize(
    ("trunk", "head", "said"),
    [
        (np.full(3, 1), np.zeros(2), "client 1: trunk 'w' must be int64 as it was sent, got float64"),
        (np.zeros(3), np.zeros(2), None),
        (np.zeros(3, np.float32), np.zeros(2), None),
    ],
)
def test_no_client_changes_the_type_of_what_is_shared(trunk, head, said):
    def learner(value):
        def learn(trunk, head, round, generator):
            return ClientUpdate({"w": np.full(3, value)}, head + 1.0, None, 0.1, 10)

        return learn

    done = federated_rounds([learner(1), learner(2.5)], 1, FedAvg(), 0, initial=({"w": trunk}, head))
    failures = done.rounds[0].failures
    if said is None:
        assert not failures
        assert done.final[0].trunk["w"].dtype == trunk.dtype
        np.testing.assert_allclose(done.final[0].trunk["w"], 1.75)
    else:
        assert said in failures[1]
        np.testing.assert_array_equal(done.final[0].trunk["w"], [1, 1, 1])


def test_a_start_of_whole_numbers_is_mixed_as_numbers_and_odd_heads_cost_their_client_only():
    def plus_half(trunk, head, round, generator):
        return ClientUpdate({}, head + 0.5, None, 0.1, 10)

    def truth(trunk, head, round, generator):
        return ClientUpdate({}, np.array([True, False]), None, 0.1, 10)

    def huge(trunk, head, round, generator):
        return ClientUpdate({}, np.array([1.7e308, -1.7e308]), None, 0.1, 10)

    done = federated_rounds([plus_half, truth, huge], 2, FedAvg(), 0, initial=({}, np.array([1, 1])))
    assert done.final[0].head.dtype == np.float64
    assert np.isfinite(done.final[0].head).all()
    for record in done.rounds:
        assert set(record.failures) == {2}
        assert "too large for float64 to be averaged" in record.failures[2]


def test_a_start_that_is_no_pair_is_named():
    with pytest.raises(InputError, match=r"initial of client 0 must be \(trunk, head\)"):
        federated_rounds([lambda *_: None], 1, Local(), 0, initial=[np.zeros(2)])
