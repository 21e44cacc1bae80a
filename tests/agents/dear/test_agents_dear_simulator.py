"""The simulator: its published figures, exact equivariance, and the batched contract."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.dear import episodes as ep
from steelyard.agents.dear.core import debate_cost
from steelyard.agents.dear.observation import feature_names, observe
from steelyard.agents.dear.policies import CritiqueAll, FullyConnected, KeepAll, Sparse
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.simulator import SimAgents
from steelyard.errors import InputError, NoEffectWarning
from steelyard.rng import generator

seeds = st.integers(0, 2**32 - 1)


def figures(sim, controller):
    runs = [
        rollout(sim, controller, batch=20_000, generator=generator("figures", "sim", seed)).summary() for seed in (0, 1)
    ]
    return {name: np.mean([run[name] for run in runs]) for name in runs[0]}


@pytest.mark.parametrize(
    ("controller", "vote", "harmful", "beneficial", "cost"),
    [
        (KeepAll(), 0.682, 0.0, 0.0, 5.0),
        (FullyConnected(), 0.698, 0.073, 0.208, 50.0),
        (FullyConnected(early_stop="unanimous"), 0.699, 0.073, 0.208, 21.7),
        (CritiqueAll(), 0.707, 0.065, 0.208, 23.6),
    ],
)
def test_reference_figures(controller, vote, harmful, beneficial, cost):
    """Measured elsewhere with 20,000 episodes x 2 seeds; four standard errors of the difference are .013 at most."""
    found = figures(SimAgents(), controller)
    assert found["vote_accuracy"] == pytest.approx(vote, abs=0.01)
    assert found["harmful"] == pytest.approx(harmful, abs=0.005)
    assert found["beneficial"] == pytest.approx(beneficial, abs=0.007)
    assert found["cost"] == pytest.approx(cost, abs=0.4)


def test_reference_figures_of_the_controls():
    off = SimAgents(conformity=0, arguments=False)
    assert figures(off, FullyConnected())["vote_accuracy"] == pytest.approx(0.675, abs=0.01)
    assert figures(off, CritiqueAll())["vote_accuracy"] == pytest.approx(0.680, abs=0.01)
    assert figures(SimAgents(conformity=0), FullyConnected())["vote_accuracy"] == pytest.approx(0.692, abs=0.01)


def random_actions(rng, batch, agents):
    reads = rng.random((batch, agents, agents)) < 0.5
    reads[:, np.arange(agents), np.arange(agents)] = False
    return reads, rng.integers(4, size=(batch, agents))


def played(seed, batch=20, agents=4, options=3, rounds=2):
    """A simulated debate after ``rounds`` random rounds, and the actions and noise of one more."""
    rng, sim = np.random.default_rng(seed), SimAgents(agents, options)
    state = sim.start(batch, rng)
    for _ in range(rounds):
        state = sim.advance(state, *random_actions(rng, batch, agents), generator=rng)
    return rng, sim, state, random_actions(rng, batch, agents), rng.gumbel(size=(batch, agents, options))


def assert_same_debates(left, right):
    for name in ("answers", "truth", "tie", "agent_tie", "flips", "cost", "calls", "confidence", "private"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    assert all(np.array_equal(a, b) for a, b in zip(left.history, right.history, strict=True))


@given(seeds)
def test_options_may_be_renamed_exactly(seed):
    rng, sim, state, (reads, behaviours), noise = played(seed)
    mapping = ep.random_order(state.batch, state.options, rng)
    renamed = ep.relabel_options(state, mapping)
    moved = np.take_along_axis(noise, np.broadcast_to(mapping.argsort(1)[:, None], noise.shape), axis=2)
    after = sim.advance(state, reads, behaviours, noise)
    assert_same_debates(sim.advance(renamed, reads, behaviours, moved), ep.relabel_options(after, mapping))
    for left, right in zip(observe(state, 3), observe(renamed, 3), strict=True):
        assert np.array_equal(left, right)
    for rule in ("majority", "belief", "reconcile"):
        vote, other = ep.vote(after, rule), ep.vote(ep.relabel_options(after, mapping), rule)
        assert np.array_equal(np.take_along_axis(mapping, vote[:, None], axis=1)[:, 0], other)


@given(seeds)
def test_agents_may_change_places_exactly(seed):
    rng, sim, state, (reads, behaviours), noise = played(seed)
    order = rng.permutation(state.n_agents)
    moved = ep.permute_agents(state, order)
    after = sim.advance(state, reads, behaviours, noise)
    other = sim.advance(moved, reads[:, order][:, :, order], behaviours[:, order], noise[:, order])
    assert_same_debates(other, ep.permute_agents(after, order))
    here, there = observe(state, 3), observe(moved, 3)
    assert np.array_equal(there.group, here.group)
    assert np.array_equal(there.own, here.own[:, order])
    assert np.array_equal(there.peers, here.peers[:, order][:, :, order])
    for rule in ("majority", "belief", "reconcile"):
        assert np.array_equal(ep.vote(after, rule), ep.vote(other, rule))


@given(seeds)
def test_a_start_is_equivariant_in_its_draws(seed):
    rng, sim = np.random.default_rng(seed), SimAgents(4, 3)
    draws = sim.draw(10, rng)
    mapping = ep.random_order(10, 3, rng)
    back = mapping.argsort(axis=1)

    def named(values):
        rows = np.take_along_axis(mapping, values.reshape(10, -1), axis=1)
        return rows.reshape(values.shape)

    renamed = draws._replace(
        truth=named(draws.truth), lure=named(draws.lure), stray=named(draws.stray),
        noise=np.take_along_axis(draws.noise, np.broadcast_to(back[:, None], draws.noise.shape), axis=2),
        tie=np.take_along_axis(draws.tie, back, axis=1),
    )  # fmt: skip
    plain = sim.start_from(draws, np.random.default_rng(seed))
    assert_same_debates(sim.start_from(renamed, np.random.default_rng(seed)), ep.relabel_options(plain, mapping))


@given(seeds)
def test_costs_and_calls_match_the_theory(seed):
    rng = np.random.default_rng(seed)
    sim, batch, agents, rounds = SimAgents(4, 3), 5, 4, 3
    state, acts = sim.start(batch, rng), []
    for _ in range(rounds):
        acts.append(random_actions(rng, batch, agents))
        state = sim.advance(state, *acts[-1], generator=rng)
    for b in range(batch):
        expected = debate_cost([reads[b] for reads, _ in acts], [behaviours[b] for _, behaviours in acts])
        assert (state.cost[b].sum(), state.calls[b].sum()) == expected
    changed = np.sum([a != b for a, b in zip(state.history, state.history[1:], strict=False)], axis=0)
    assert np.array_equal(state.flips, changed)
    assert (state.calls <= 1 + rounds).all()


def test_truth_and_ties_are_uniform():
    state = SimAgents().start(20_000, generator("uniform", "sim", 0))
    rank = np.take_along_axis(state.tie, state.truth[:, None], axis=1)
    for values in (state.truth, rank):
        assert np.bincount(values.ravel(), minlength=4) / 20_000 == pytest.approx([0.25] * 4, abs=0.02)
    assert state.answers.min() >= 0
    assert not (SimAgents().draw(50, generator("uniform", "draw", 0)).lure == state.truth[:50]).all()


def test_stopped_debates_and_keeping_agents_do_not_move():
    _, sim, state, (reads, behaviours), noise = played(3)
    frozen = sim.advance(replace(state, active=np.zeros(state.batch, bool)), reads, behaviours, noise)
    assert np.array_equal(frozen.answers, state.answers)
    assert np.array_equal(frozen.cost, state.cost)
    kept = sim.advance(state, reads, np.zeros_like(behaviours), noise)
    assert np.array_equal(kept.answers, state.answers)
    assert np.array_equal(kept.cost, state.cost)
    assert np.array_equal(kept.confidence, state.confidence)


def test_equal_seeds_equal_results_and_equal_noise():
    sim = SimAgents()
    first, second = (rollout(sim, FullyConnected(), batch=50, generator=generator("a", "b", 1)).vote for _ in range(2))
    assert np.array_equal(first, second)
    runs = [rollout(sim, c, batch=50, generator=generator("a", "b", 1)) for c in (KeepAll(), Sparse())]
    assert np.array_equal(runs[0].answers0, runs[1].answers0)
    never, stops = (
        rollout(sim, FullyConnected(), batch=200, generator=generator("a", "b", 1), early_stop=rule)
        for rule in ("never", "unanimous")
    )
    live = stops.rounds == 3
    assert np.array_equal(never.answersT[live], stops.answersT[live])  # noise does not depend on who still speaks


def test_more_exploration_means_more_flips():
    flips = [
        rollout(
            SimAgents(conformity=0, arguments=False, explore_scale=scale), FullyConnected("explore"),
            batch=2000, generator=generator("explore", "sim", 0),
        ).flips.mean()
        for scale in (0.0, 0.8, 2.0)
    ]  # fmt: skip
    assert flips[0] == 0
    assert flips[0] < flips[1] < flips[2]


def test_pull_of_one_reader_by_hand():
    """One agent reads two that agree: belief + .3 on its own + 3.5 * 2/1.5 on theirs + half of .45 * conviction."""
    private = np.array([[[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]])
    base = SimAgents(3, 2).start(1, np.random.default_rng(0))
    answers = np.array([[0, 1, 1]])
    state = replace(base, answers=answers, history=(answers,), private=private)
    reads = np.zeros((1, 3, 3), bool)
    reads[0, 0, 1:] = True
    added = SimAgents(3, 2)._social(state, reads, np.array([[1, 0, 0]]))[0, 0]
    assert added == pytest.approx([0.3, 3.5 * 2 / 1.5 + 0.5 * 0.45 * (1.0 + 2.0)])
    added = SimAgents(3, 2)._social(state, reads, np.array([[2, 0, 0]]))[0, 0]
    assert added == pytest.approx([0.3, 0.35 * 3.5 * 2 / 1.5 + 0.45 * (1.0 + 2.0)])


def test_features_are_named_and_bounded():
    _, _, state, _, _ = played(5)
    seen = observe(state, 3, identity=True)
    names = feature_names(4, identity=True)
    assert [each.shape[-1] for each in seen] == [len(each) for each in names]
    assert all(np.abs(each).max() <= 1 and each.dtype == np.float32 for each in seen)
    assert not seen.peers[:, np.arange(4), np.arange(4)].any()
    assert not observe(state, 3, evidence=False).group.any()
    assert np.array_equal(observe(state, 3, evidence=False).own, observe(state, 3).own)


def test_public_state_holds_no_label():
    _, _, state, _, _ = played(5)
    public = state.public()
    assert not isinstance(public, ep.Episodes)
    assert not any(hasattr(public, name) for name in ("truth", "private", "items"))


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: SimAgents(0), "n_agents"),
        (lambda: SimAgents(3, 1), "n_options"),
        (lambda: SimAgents(conformity=-1), "conformity"),
        (lambda: SimAgents(conformity=float("nan")), "conformity"),
        (lambda: SimAgents(explore_scale=-1), "explore_scale"),
        (lambda: SimAgents(lure=2), "lure"),
        (lambda: SimAgents(skills=[1.0]), "skills"),
        (lambda: SimAgents().start(0, np.random.default_rng(0)), "batch"),
        (lambda: SimAgents().start(1, np.random.default_rng(0), items=[0]), "items"),
    ],
)
def test_bad_settings(call, names):
    with pytest.raises(InputError, match=names):
        call()


def test_bad_actions():
    sim = SimAgents(3, 2)
    state = sim.start(2, np.random.default_rng(0))
    reads, behaviours, noise = np.zeros((2, 3, 3), bool), np.ones((2, 3), int), np.zeros((2, 3, 2))
    for bad in (reads[:1], np.zeros((2, 3))):
        with pytest.raises(InputError, match="reads has shape"):
            sim.advance(state, bad, behaviours, noise)
    with pytest.raises(InputError, match="only 0 and 1"):
        sim.advance(state, np.full((2, 3, 3), 2), behaviours, noise)
    with pytest.raises(InputError, match="behaviours has shape"):
        sim.advance(state, reads, behaviours[:1], noise)
    for bad in (behaviours + 3, behaviours - 2, behaviours * 1.0):
        with pytest.raises(InputError, match="behaviours must"):
            sim.advance(state, reads, bad, noise)
    with pytest.raises(InputError, match="noise or generator"):
        sim.advance(state, reads, behaviours)
    with pytest.raises(InputError, match="noise has shape"):
        sim.advance(state, reads, behaviours, noise[:1])
    with pytest.raises(InputError, match="start"):
        sim.advance(replace(state, private=None), reads, behaviours, noise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after = sim.advance(state, np.ones((2, 3, 3), int), behaviours, noise)
    assert [each.category for each in caught] == [NoEffectWarning]
    assert after.cost.tolist() == [[3.0] * 3] * 2  # 1 + 1 + 2 / 2: the self-loops did not count
