"""Groups by the cosine of updates: worked example, invariances, odd updates, hysteresis, state, bad input."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from steelyard.errors import InputError
from steelyard.fed import UpdateCosine, group_clients
from steelyard.fed.gadaphead.grouping import members_of

UPDATES = np.array([(2, 1), (1, 0.4), (0.5, -2), (0.2, -1.1), (-1, 0.1)])
seeds = st.integers(0, 10_000)


def planted(seed, d=30, noise=0.3):
    generator = np.random.default_rng(seed)
    return np.repeat(generator.normal(size=(3, d)), 4, axis=0) + noise * generator.normal(size=(12, d))


@pytest.mark.parametrize("linkage", ["average", "sattler"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_worked_example(linkage, dtype):
    found = group_clients(UPDATES.astype(dtype), threshold=1.0, linkage=linkage)
    assert found.labels.tolist() == [0, 0, 1, 1, 2]
    assert found.cosine[0, 1] == pytest.approx(0.9965, abs=5e-4)
    assert found.cosine[2, 3] == pytest.approx(0.9979, abs=5e-4)
    rest = [found.cosine[i, j] for i in range(5) for j in range(i) if (j, i) not in ((0, 1), (2, 3))]
    assert max(rest) < -0.13
    assert (np.diag(found.cosine) == 1).all()
    assert found.clients == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("threshold", [0.1, 0.4, 0.6, 1.0, 1.5, 2.0])
@given(seed=seeds)
def test_average_linkage_agrees_with_scikit_learn(threshold, seed):
    updates = np.random.default_rng(seed).normal(size=(9, 3))
    found = group_clients(updates, threshold=threshold)
    peer = AgglomerativeClustering(None, metric="precomputed", linkage="average", distance_threshold=threshold)
    theirs = peer.fit_predict(1 - found.cosine)
    assert ((found.labels[:, None] == found.labels) == (theirs[:, None] == theirs)).all()


@given(seeds, st.permutations(range(12)))
def test_groups_do_not_depend_on_order(seed, order):
    updates = planted(seed, noise=0.8)
    found, moved = group_clients(updates), group_clients(updates[order])
    together = found.labels[:, None] == found.labels
    assert (together[np.ix_(order, order)] == (moved.labels[:, None] == moved.labels)).all()


@given(seeds, st.floats(1e-3, 1e3))
def test_groups_do_not_depend_on_lengths(seed, unit):
    updates = planted(seed)
    lengths = np.random.default_rng(seed + 1).uniform(0.1, 10, size=(12, 1))
    assert group_clients(unit * lengths * updates).labels.tolist() == group_clients(updates).labels.tolist()


@pytest.mark.parametrize("linkage", ["average", "sattler"])
def test_planted_groups_are_found(linkage):
    found = group_clients(planted(0), threshold=0.6, linkage=linkage)
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_sattler_splits_only_what_wants_to_move_apart():
    assert group_clients(UPDATES, linkage="sattler", moving=3.0).labels.tolist() == [0] * 5
    assert group_clients(UPDATES, linkage="sattler", stationary=0.1).labels.tolist() == [0] * 5
    together = np.array([(1.0, 0.1), (1.0, -0.1), (1.0, 0.0)])
    assert group_clients(together, linkage="sattler").labels.tolist() == [0, 0, 0]
    wide = np.array([(1.0, 0.9), (1.0, -0.9), (-1.0, 0.0)])  # want apart, but no pair across is far enough
    assert group_clients(wide, linkage="sattler", threshold=1.9).labels.tolist() == [0, 0, 0]


def test_sattler_cuts_where_the_largest_cosine_across_is_smallest():
    updates = np.random.default_rng(3).normal(size=(7, 3))
    found = group_clients(updates, linkage="sattler", threshold=1e-6, stationary=10.0)
    first = group_clients(updates, linkage="sattler", threshold=1e-6, stationary=10.0, moving=0.0)
    assert found.labels.tolist() == first.labels.tolist() == list(range(7))  # no cosine is 1: all split in the end
    crossing = {}
    for mask in range(1, 64):
        side = np.array([mask >> i & 1 for i in range(7)], dtype=bool)
        crossing[mask] = found.cosine[np.ix_(side, ~side)].max()
    best = min(crossing.values())
    once = group_clients(updates, linkage="sattler", threshold=1 - best - 1e-12, stationary=10.0)
    side = once.labels == once.labels[0]
    assert found.cosine[np.ix_(side, ~side)].max() == pytest.approx(best)


@pytest.mark.parametrize("linkage", ["average", "sattler"])
def test_zero_updates_are_alone(linkage):
    updates = np.vstack([UPDATES[:2], np.zeros((2, 2))])
    found = group_clients(updates, linkage=linkage, threshold=2.0)
    assert found.labels.tolist() == [0, 0, 1, 2]
    assert found.cosine[2].tolist() == [0, 0, 1, 0]
    assert group_clients(np.zeros((2, 3)), linkage=linkage).labels.tolist() == [0, 1]
    assert group_clients([[1.0, 2.0]], linkage=linkage).labels.tolist() == [0]


@pytest.mark.parametrize(("dtype", "big", "small"), [(np.float32, 1e30, 1e-30), (np.float64, 1e250, 1e-250)])
def test_updates_of_any_length(dtype, big, small):
    lengths = np.array([big, 1.0, small, big, small])[:, None]
    found = group_clients((UPDATES * lengths).astype(dtype))
    assert found.labels.tolist() == [0, 0, 1, 1, 2]
    assert found.cosine[0, 1] == pytest.approx(0.9965, abs=1e-4)


def test_one_tiny_update_does_not_change_how_others_split():
    """The bipartition asks whether clients want to move as far together as alone: lengths count."""
    lengths = np.array([1.0, 1.0, 0.05, 0.05, 1e-20])[:, None]
    updates = (np.eye(3)[[0, 0, 1, 1, 2]] * lengths).astype(np.float32)
    for count in (4, 5):
        found = group_clients(updates[:count], linkage="sattler", stationary=0.6, threshold=0.5)
        assert found.labels.tolist()[:4] == [0, 0, 1, 1]
    kept = group_clients(updates, linkage="sattler", stationary=0.3, threshold=0.5).labels.tolist()
    assert kept == [0] * 5  # of length 0.4, beside a longest of 1


def test_more_dimensions_and_integers():
    found = group_clients([np.array([[2, 1]]), np.array([[4, 2]]), np.array([[-1, 0]])])
    assert found.labels.tolist() == [0, 0, 1]


def test_input_is_left_alone():
    updates = UPDATES.copy()
    group_clients(updates)
    UpdateCosine().assign(dict(enumerate(updates)))
    assert (updates == UPDATES).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: group_clients(UPDATES, threshold=0.0), "threshold must lie in (0, 2]"),
        (lambda: group_clients(UPDATES, threshold=2.1), "threshold must lie in (0, 2]"),
        (lambda: group_clients(UPDATES, threshold=float("nan")), "threshold must lie in (0, 2]"),
        (lambda: group_clients(UPDATES, linkage="ward"), "linkage must be one of average, sattler"),
        (lambda: group_clients([]), "updates must be one for each of at least one client"),
        (lambda: group_clients(UPDATES, clients=[1]), "updates must be one for each"),
        (lambda: group_clients([[1.0, 2.0], [1.0]]), "(2,) (client 0), (1,) (client 1)"),
        (lambda: group_clients([[1.0], [np.nan]], clients=[4, 7]), "update of client 7 holds values"),
        (lambda: group_clients(np.array([[1.0], [np.inf]])), "update of client 1 holds values"),
        (lambda: group_clients([["a"], ["b"]]), "updates must be an array of numbers"),
        (lambda: UpdateCosine(threshold=3), "threshold"),
        (lambda: UpdateCosine(linkage="x"), "linkage"),
        (lambda: UpdateCosine(ema=1.0), "ema must lie in [0, 1)"),
        (lambda: UpdateCosine(every=0), "every and hysteresis must be at least 1"),
        (lambda: UpdateCosine(signal="trunk"), "signal must be one of update, head"),
        (lambda: UpdateCosine().assign({}), "signals hold no client"),
        (lambda: UpdateCosine().assign({3: [np.nan]}), "update of client 3"),
        (lambda: UpdateCosine().load_state_dict({}), "state of the grouping cannot be read"),
    ],
)  # fmt: skip
def test_bad_input(call, said):
    with pytest.raises(InputError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("odd", [{"smoothed/0": np.array([np.nan, 1.0])}, {"smoothed/0": np.ones(3)}])
def test_a_state_that_does_not_fit_changes_nothing(odd):
    grouping = UpdateCosine()
    grouping.assign({0: [1.0, 0.0], 1: [1.0, 0.0]})
    before = grouping.state_dict()
    with pytest.raises(InputError, match="not finite or of two shapes a group"):
        grouping.load_state_dict({**before, **odd})
    assert all((before[name] == values).all() for name, values in grouping.state_dict().items())


def test_a_bad_signal_changes_nothing():
    grouping = UpdateCosine()
    grouping.assign({0: [1.0, 0.0], 1: [0.0, 1.0]})
    before = grouping.state_dict()
    with pytest.raises(InputError, match="client 1"):
        grouping.assign({0: [1.0, 5.0], 1: [np.nan, 0.0]})
    with pytest.raises(InputError, match=r"client 0 has shape \(3,\), before it had \(2,\)"):
        grouping.assign({0: [1.0, 5.0, 1.0]})
    after = grouping.state_dict()
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


A, B = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def test_a_client_moves_when_the_new_group_lasts():
    grouping = UpdateCosine(threshold=0.5, ema=0.0, hysteresis=2)
    for _ in range(2):
        assert grouping.assign({0: A, 1: A, 2: B, 3: B, 4: A}).labels.tolist() == [0, 0, 1, 1, 0]
    assert grouping.assign({0: A, 1: A, 2: B, 3: B, 4: B}).labels.tolist() == [0, 0, 1, 1, 0]
    assert grouping.assign({0: A, 1: A, 2: B, 3: B, 4: A}).labels.tolist() == [0, 0, 1, 1, 0]  # a whim
    assert grouping.assign({0: A, 1: A, 2: B, 3: B, 4: B}).labels.tolist() == [0, 0, 1, 1, 0]
    assert grouping.assign({0: A, 1: A, 2: B, 3: B, 4: B}).labels.tolist() == [0, 0, 1, 1, 1]
    at_once = UpdateCosine(threshold=0.5, ema=0.0, hysteresis=1)
    at_once.assign({0: A, 1: A, 2: B, 3: B, 4: A})
    assert at_once.assign({0: A, 1: A, 2: B, 3: B, 4: B}).labels.tolist() == [0, 0, 1, 1, 1]


def test_a_group_that_splits_takes_a_new_name_after_it_lasts():
    grouping = UpdateCosine(threshold=0.5, ema=0.0, hysteresis=2)
    assert grouping.assign({0: A, 1: A, 2: A}).labels.tolist() == [0, 0, 0]
    assert grouping.assign({0: A, 1: A, 2: B}).labels.tolist() == [0, 0, 0]
    assert grouping.assign({0: A, 1: A, 2: B}).labels.tolist() == [0, 0, 1]
    assert grouping.assign({0: A, 1: A, 2: A}).labels.tolist() == [0, 0, 1]
    assert grouping.assign({0: A, 1: A, 2: A}).labels.tolist() == [0, 0, 0]


def test_updates_are_smoothed():
    grouping = UpdateCosine(ema=0.7)
    grouping.assign({0: A, 1: B})
    found = grouping.assign({0: B, 1: B})
    assert found.cosine[0, 1] == pytest.approx(0.3 / np.hypot(0.7, 0.3))
    found = grouping.assign({1: np.zeros(2)})  # absent, and a round without training: both keep their past
    assert found.cosine[0, 1] == pytest.approx(0.3 / np.hypot(0.7, 0.3))
    assert found.clients == (0, 1)


def test_a_zero_update_gives_way_to_the_first_real_one():
    grouping = UpdateCosine(hysteresis=1)
    assert grouping.assign({0: A, 1: np.zeros(2)}).labels.tolist() == [0, 1]
    assert grouping.assign({0: A, 1: A}).labels.tolist() == [0, 0]


def test_groups_are_kept_between_groupings():
    grouping = UpdateCosine(threshold=0.5, ema=0.0, every=2, hysteresis=1)
    assert grouping.assign({0: A, 1: B}).labels.tolist() == [0, 1]
    assert grouping.assign({0: A, 1: A, 2: A}).labels.tolist() == [0, 1, 2]  # a newcomer is alone till the next
    assert grouping.assign({0: A, 1: A, 2: A}).labels.tolist() == [0, 0, 0]


def test_heads_of_different_shapes_are_never_together():
    found = UpdateCosine().assign({0: A, 1: np.ones(3), 2: 2 * A, 3: np.ones((1, 2)), 4: np.ones((1, 2))})
    assert members_of(found.labels)[0].tolist() == [0, 2]
    assert found.labels.tolist() == [0, 1, 0, 2, 2]
    assert found.cosine[0, 1] == 0
    assert found.cosine[0, 2] == 1


@given(seeds, st.integers(1, 5))
def test_a_restored_state_goes_on_alike(seed, rounds):
    generator = np.random.default_rng(seed)
    first = UpdateCosine(threshold=0.8, every=2)
    for _ in range(rounds):
        first.assign({c: generator.normal(size=3) for c in generator.choice(6, size=4, replace=False).tolist()})
    second = UpdateCosine(threshold=0.8, every=2)
    state = {name: np.array(json.loads(json.dumps(values.tolist()))) for name, values in first.state_dict().items()}
    second.load_state_dict(state)
    for _ in range(3):
        signals = {c: generator.normal(size=3) for c in range(7)}
        one, two = first.assign(signals), second.assign(signals)
        assert one.labels.tolist() == two.labels.tolist()
        assert one.cosine.tobytes() == two.cosine.tobytes()


@given(seeds)
def test_arrival_order_of_a_round_does_not_matter(seed):
    updates = planted(seed, noise=1.0)
    first, second = UpdateCosine(), UpdateCosine()
    one = first.assign(dict(enumerate(updates)))
    two = second.assign({c: updates[c] for c in reversed(range(12))})
    assert one.labels.tolist() == two.labels.tolist()
    assert one.cosine.tobytes() == two.cosine.tobytes()
