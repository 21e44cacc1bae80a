import itertools
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.optim import PLAPlayer
from steelyard.optim.gdro_fsq.baselines import Exp3IX
from steelyard.optim.gdro_fsq.player import Proposal, check_gradient, gradient_weights, schedule


def proposal(q, indices, probs=None):
    q, indices = np.asarray(q, float), np.asarray(indices)
    return Proposal(indices, np.ones(len(indices)) if probs is None else probs, q, 0.1, 0.05, 1.0)


def inclusion(q, r):
    return q + (1 - q) * (r - 1) / (len(q) - 1)


def losses_of(groups, t):
    return 0.5 + 0.5 * np.sin(groups * 1.7 + t / 5)


def hedge(m, rounds, explore):
    """Hedge with eta_t = sqrt(ln m/t) on s, or on s/(1 + eta_t/2) when ``explore``."""
    sums, strategies = np.zeros(m), []
    for t in range(1, rounds + 1):
        eta = math.sqrt(math.log(m) / t)
        q = np.exp(-eta * (sums - sums.min()))
        strategies.append(q / q.sum())
        sums += (1 - losses_of(np.arange(m), t)) / (1 + explore * eta / 2)
    return np.stack(strategies)


def strategies_of(player, r, rounds, rng):
    found = []
    for t in range(1, rounds + 1):
        _, groups, _ = player.propose(r, rng)
        found.append(player.open_proposals[0].q)
        player.update(losses_of(groups, t))
    return np.stack(found)


def test_all_groups_in_mode_auto_is_hedge():
    found = strategies_of(PLAPlayer(7, mode="auto"), 7, 300, np.random.default_rng(0))
    assert np.abs(found - hedge(7, 300, explore=False)).max() <= 1e-15 * 10


def test_all_groups_in_mode_ix_is_hedge_on_discounted_losses():
    found = strategies_of(PLAPlayer(7), 7, 300, np.random.default_rng(0))
    assert np.abs(found - hedge(7, 300, explore=True)).max() <= 1e-14
    assert 1e-3 < np.abs(found[:200] - hedge(7, 200, explore=False)).max() < 0.1


@pytest.mark.parametrize("mode", ["ix", "auto"])
def test_one_group_is_exp3_ix(mode):
    player, peer, rng = PLAPlayer(5, mode=mode), Exp3IX(5, 1.0, 400), np.random.default_rng(1)
    for t in range(1, 401):
        anchor, groups, probs = player.propose(1, rng)
        q = peer.strategy()
        assert np.allclose(player.open_proposals[0].q, q, rtol=0, atol=1e-13)
        assert groups.tolist() == [anchor]
        assert probs[0] == player.open_proposals[0].q[anchor]
        loss = float(losses_of(anchor, t))
        player.update([loss])
        peer.learn(anchor, float(q[anchor]), loss)


def test_learning_rate_counts_the_current_round():
    player, rng = PLAPlayer(6, c_q=2.0), np.random.default_rng(0)
    load = 0.0
    for r in (1, 6, 3, 2):
        player.propose(r, rng)
        load += 6 / r
        assert player.open_proposals[0].eta == pytest.approx(2 * math.sqrt(math.log(6) / load), rel=1e-15)
        player.update(np.full(r, 0.5))


def test_sample_weighted_rounds():
    player, rng = PLAPlayer(4, round_weight="samples"), np.random.default_rng(0)
    player.propose(2, rng)
    first = player.open_proposals[0]
    assert first.omega == 0.5
    assert first.eta == pytest.approx(math.sqrt(math.log(4) / (0.25 * 4 / 2)))
    assert first.gamma == pytest.approx(0.5 * first.eta / 2)


def test_exploration_of_the_modes():
    rng = np.random.default_rng(0)
    for mode, r, explores in (("ix", 1, True), ("ix", 3, True), ("auto", 1, True), ("auto", 2, False)):
        player = PLAPlayer(3, mode=mode)
        player.propose(r, rng)
        one = player.open_proposals[0]
        assert one.gamma == (one.eta / 2 if explores else 0.0)


def test_first_strategy_is_uniform_and_estimates_follow_the_formula():
    player, rng = PLAPlayer(4), np.random.default_rng(3)
    assert player.weights.tolist() == [0.25] * 4
    _, groups, probs = player.propose(2, rng)
    one = player.open_proposals[0]
    assert probs == pytest.approx(inclusion(one.q, 2)[groups])
    player.update([0.2, 0.9])
    expected = np.zeros(4)
    expected[groups] = (1 - np.array([0.2, 0.9])) / (probs + one.gamma)
    expected -= expected.min()
    assert player.state_dict()["S"] == pytest.approx(expected.tolist())


def test_inclusion_probabilities_match_the_draws():
    player, rng, draws = PLAPlayer(5), np.random.default_rng(0), 20000
    for t in range(30):
        _, groups, _ = player.propose(3, rng)
        player.update(losses_of(groups, t))
    seen = np.zeros(5)
    player.propose(3, rng)
    q = player.open_proposals[0].q
    state = player.state_dict()
    state["open"] = []
    for _ in range(draws):
        twin = PLAPlayer(5)
        twin.load_state_dict(state)
        twin._V -= 5 / 3  # the same round again
        _, groups, _ = twin.propose(3, rng)
        assert len(set(groups.tolist())) == 3
        seen[groups] += 1
    expected = inclusion(q, 3)
    assert expected.sum() == pytest.approx(3)
    assert np.abs(seen / draws - expected).max() < 5 * 0.5 / math.sqrt(draws)


@given(st.integers(2, 40), st.data())
def test_inclusion_probabilities_sum_to_r(m, data):
    r = data.draw(st.integers(1, m))
    player, rng = PLAPlayer(m, c_q=data.draw(st.floats(0.1, 5))), np.random.default_rng(data.draw(st.integers(0, 99)))
    for t in range(data.draw(st.integers(0, 20))):
        _, groups, _ = player.propose(r, rng)
        player.update(losses_of(groups, t))
    anchor, groups, probs = player.propose(r, rng)
    q = player.open_proposals[0].q
    assert groups[0] == anchor
    assert len(set(groups.tolist())) == r
    assert inclusion(q, r).sum() == pytest.approx(r, rel=1e-12)
    assert np.allclose(probs, inclusion(q, r)[groups], rtol=1e-12)


@given(
    st.integers(1, 12), st.integers(0, 2**20), st.sampled_from(["ix", "auto"]), st.sampled_from(["anchor", "uniform"])
)
def test_weights_stay_a_mixed_strategy(m, seed, mode, query):
    rng = np.random.default_rng(seed)
    player = PLAPlayer(m, mode, c_q=4.0, query=query)
    for _ in range(30):
        _, groups, probs = player.propose(int(rng.integers(1, m + 1)), rng)
        assert np.all(probs > 0)
        assert np.all(probs <= 1 + 1e-12)
        player.update(rng.integers(0, 2, len(groups)))
        assert player.weights.min() >= 0
        assert player.weights.sum() == pytest.approx(1)
        assert min(player.state_dict()["S"]) == 0


@given(st.integers(2, 8), st.integers(0, 999))
def test_saved_and_restored_it_continues_alike(m, seed):
    rng = np.random.default_rng(seed)
    player = PLAPlayer(m)
    for t in range(10):
        _, groups, _ = player.propose(int(rng.integers(1, m + 1)), rng)
        player.update(losses_of(groups, t))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        player.propose(1, rng)
        _, second, _ = player.propose(m, rng)
    twin = PLAPlayer(m)
    twin.load_state_dict(json.loads(json.dumps(player.state_dict())))  # plain values only
    for one in (player, twin):
        one.update([0.25])
        one.update(losses_of(second, 3))
        one.propose(m, np.random.default_rng(0))
    assert player.state_dict() == twin.state_dict()


def all_draws(q, r):
    """Yield (probability, anchor, the other groups) of every outcome of the query draw."""
    m = len(q)
    for anchor in range(m):
        others = [i for i in range(m) if i != anchor]
        subsets = list(itertools.combinations(others, r - 1))
        for subset in subsets:
            yield q[anchor] / len(subsets), [anchor, *subset]


@pytest.mark.parametrize("gradient", ["rb", "single", "iw"])
@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_gradient_estimators_are_unbiased_by_enumeration(gradient, r):
    q = np.array([0.55, 0.25, 0.15, 0.05])
    mean = np.zeros(4)
    for probability, groups in all_draws(q, r):
        mean[groups] += probability * gradient_weights(proposal(q, groups, inclusion(q, r)[groups]), gradient)
    assert np.abs(mean - q).max() < 1e-15


def test_rao_blackwell_has_the_smaller_second_moment():
    q, r = np.array([0.4, 0.3, 0.2, 0.1]), 3
    gradients = np.random.default_rng(0).standard_normal((4, 3))
    moments = {
        kind: sum(
            p * float(np.sum((gradient_weights(proposal(q, groups), kind) @ gradients[groups]) ** 2))
            for p, groups in all_draws(q, r)
        )
        for kind in ("rb", "single")
    }
    assert moments["rb"] < 0.8 * moments["single"]


def test_enumerated_inclusion_probabilities_and_their_load():
    q = np.array([0.55, 0.25, 0.15, 0.05])
    for r in (1, 2, 3, 4):
        found = np.zeros(4)
        for probability, groups in all_draws(q, r):
            found[groups] += probability
        assert np.allclose(found, inclusion(q, r), atol=1e-15)
        assert (q / found).sum() <= 4 / r + 1e-12


def test_gradient_weights_at_the_ends():
    q = np.array([0.5, 0.3, 0.2])
    assert gradient_weights(proposal(q, [0, 1, 2]), "rb") == pytest.approx(q)
    assert gradient_weights(proposal(q, [2]), "rb") == pytest.approx([1.0])


def test_uniform_query_ignores_the_strategy():
    player, rng = PLAPlayer(6, query="uniform"), np.random.default_rng(0)
    _, groups, probs = player.propose(2, rng)
    assert probs.tolist() == [2 / 6] * 2
    assert len(set(groups.tolist())) == 2
    assert check_gradient("iw", "ix", "uniform") == "iw"
    with pytest.raises(InputError, match="query='uniform' use gradient='iw'"):
        check_gradient("rb", "ix", "uniform")


def test_floyd_sampling_above_the_limit():
    player, rng = PLAPlayer(30_000), np.random.default_rng(0)
    for r in (1, 5, 20_000):
        anchor, groups, _ = player.propose(r, rng)
        assert groups[0] == anchor
        assert len(np.unique(groups)) == r
        assert 0 <= groups.min() <= groups.max() < 30_000
        player.update(np.full(r, 0.5))


def test_underflowed_groups_are_never_divided_by():
    player, rng = PLAPlayer(3, c_q=50.0), np.random.default_rng(0)
    with np.errstate(divide="raise", invalid="raise"):
        for _ in range(2000):
            _, groups, _ = player.propose(1, rng)
            player.update(np.where(groups == 0, 1.0, 0.0))
    assert np.isfinite(player.state_dict()["S"]).all()
    assert player.weights[0] > 0.9


def test_one_group_needs_no_choice():
    player, rng = PLAPlayer(1), np.random.default_rng(0)
    anchor, groups, probs = player.propose(1, rng)
    assert (anchor, groups.tolist(), probs.tolist()) == (0, [0], [1.0])
    player.update([0.3])
    assert player.weights.tolist() == [1.0]


def test_open_proposals_close_in_order_and_warn_once():
    player, rng = PLAPlayer(4), np.random.default_rng(0)
    player.propose(1, rng)
    with pytest.warns(UserWarning, match="2 proposals are open at once"):
        _, second, _ = player.propose(3, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        player.propose(2, rng)
    player.update([0.5])
    assert player.open_proposals[0].indices.tolist() == second.tolist()
    assert player.discard_open() == 2
    assert player.open_proposals == ()


def test_refused_losses_leave_the_round_open():
    player = PLAPlayer(4)
    player.propose(2, np.random.default_rng(0))
    for losses, words in (
        ([0.5], "2 values"),
        ([0.5, 1.0001], "outside"),
        ([-1e-9, 0.5], "outside"),
        ([np.nan, 0.5], "nan"),
        ([[0.5, 0.5]], "shape"),
    ):
        with pytest.raises(InputError, match=words):
            player.update(losses)
    assert len(player.open_proposals) == 1
    player.update([0.0, 1.0])


def test_update_before_propose():
    with pytest.raises(RuntimeError, match="propose"):
        PLAPlayer(3).update([0.5])


@pytest.mark.parametrize("r", [0, 5, -1, 1.0, "2", True, np.True_, None])
def test_wrong_r(r):
    with pytest.raises(InputError, match="r must be an integer"):
        PLAPlayer(4).propose(r, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"m": 0}, "m must"),
        ({"m": True}, "m must"),
        ({"m": 3, "mode": "hedge"}, "mode"),
        ({"m": 3, "c_q": 0.0}, "c_q"),
        ({"m": 3, "c_q": float("nan")}, "c_q"),
        ({"m": 3, "c_q": True}, "c_q"),
        ({"m": 3, "query": "all"}, "query"),
        ({"m": 3, "round_weight": "sample"}, "Did you mean 'samples'"),
    ],
)
def test_wrong_settings(arguments, word):
    with pytest.raises(InputError, match=word):
        PLAPlayer(**arguments)


def test_state_of_another_player_is_refused():
    with pytest.raises(InputError, match="m = 4"):
        PLAPlayer(3).load_state_dict(PLAPlayer(4).state_dict())


def test_observed_batches():
    player = PLAPlayer(4, "observed")
    player.observe([3, 1], [0.5, 0.5, 0.25, 0.5])
    one = player.open_proposals[0]
    assert one.probs.tolist() == [0.5, 0.5]
    assert one.eta == pytest.approx(math.sqrt(math.log(4) / 4))
    assert one.gamma == one.eta / 2
    player.update([0.0, 1.0])
    assert player.weights.argmin() == 3
    weighted = PLAPlayer(4, "observed", round_weight="samples")
    weighted.observe([3, 1], np.full(4, 0.5))
    assert weighted.open_proposals[0].omega == 0.5


@pytest.mark.parametrize(
    ("indices", "probs", "word"),
    [
        ([1, 1], [1.0] * 3, "group 1 appears 2 times"),
        ([0, 3], [1.0] * 3, "group 3 is outside"),
        ([-1], [1.0] * 3, "group -1"),
        ([], [1.0] * 3, "non-empty"),
        ([0.5], [1.0] * 3, "integer"),
        ([0], [1.0] * 2, "inclusion_probs"),
        ([0], [1.0, 0.0, 1.0], "inclusion_probs"),
        ([0], [1.0, 1.5, 1.0], "inclusion_probs"),
        ([0], [1.0, np.nan, 1.0], "inclusion_probs"),
    ],
)
def test_bad_observations(indices, probs, word):
    with pytest.raises(InputError, match=word):
        PLAPlayer(3, "observed").observe(indices, probs)


def test_observing_and_proposing_do_not_mix():
    with pytest.raises(InputError, match="mode='observed'"):
        PLAPlayer(3).observe([0], [1.0] * 3)
    with pytest.raises(InputError, match="observe"):
        PLAPlayer(3, "observed").propose(1, np.random.default_rng(0))
    with pytest.raises(InputError, match="mode='observed'"):
        check_gradient("rb", "observed", "anchor")


def test_schedules():
    assert list(itertools.islice(schedule(3), 4)) == [3, 3, 3, 3]
    assert list(schedule([1, 2])) == [1, 2]
    assert list(itertools.islice(schedule(lambda t: 2 * t), 3)) == [2, 4, 6]
    with pytest.raises(InputError, match="r_schedule"):
        schedule(0)
    with pytest.raises(InputError, match="r_schedule"):
        schedule(2.5)


def test_negative_association_of_the_draw():
    """Neu's lemma with several observed arms needs E prod(1 + a_i 1[i in C]) <= prod(1 + a_i P_i)."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        m = int(rng.integers(2, 6))
        r = int(rng.integers(1, m + 1))
        q, a = rng.dirichlet(np.full(m, 0.5)), rng.exponential(2.0, m)
        mean = sum(p * np.prod(1 + a[groups]) for p, groups in all_draws(q, r))
        assert mean <= np.prod(1 + a * inclusion(q, r)) * (1 + 1e-12)
