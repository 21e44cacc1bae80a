"""Fixed controllers, votes, stop rules and whole debates."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.dear import episodes as ep
from steelyard.agents.dear import policies
from steelyard.agents.dear.core import conformity
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.simulator import SimAgents
from steelyard.errors import InputError
from steelyard.rng import generator


def started(batch=6, agents=5, options=4, seed=0):
    return SimAgents(agents, options).start(batch, generator("policies", "start", seed))


def with_answers(*history, options=3, tie=None, confidence=None):
    """One debate with these answers of each round."""
    rounds = tuple(np.array([each]) for each in history)
    base = started(1, len(history[0]), options)
    return replace(
        base,
        answers=rounds[-1],
        history=rounds,
        t=len(rounds) - 1,
        tie=base.tie if tie is None else np.array([tie]),
        confidence=None if confidence is None else np.array([confidence]),
    )


def test_vote_ties():
    assert ep.vote(with_answers([2, 2, 1])) == [2]
    assert ep.vote(with_answers([2, 1], tie=[0, 1, 2])) == [1]
    assert ep.vote(with_answers([2, 1], tie=[0, 2, 1])) == [2]
    for tie in ([0, 1, 2], [0, 2, 1]):  # agent 1 has held its answer longer
        assert ep.vote(with_answers([0, 1], [2, 1], tie=tie)) == [1]
        assert ep.vote(with_answers([2, 0], [2, 1], tie=tie)) == [2]
    assert ep.vote(with_answers([-1, -1])) == [ep.NO_ANSWER]
    assert ep.vote(with_answers([-1, 2])) == [2]


def test_vote_rules():
    state = with_answers([0, 0, 1], [1, 1, 0], [1, 0, 2], confidence=[0.95, 0.5, 1.0])
    assert ep.vote(state, "belief") == ep.vote(with_answers([0, 0, 1, 1, 1, 0, 1, 0, 2], tie=state.tie[0]), "belief")
    assert ep.vote(state, "reconcile") == [2]  # weights .8, .1 and 1
    with pytest.raises(InputError, match="confidence"):
        ep.vote(with_answers([0, 1]), "reconcile")
    with pytest.raises(InputError, match="vote rule"):
        ep.vote(state, "loudest")


def test_stop_rules():
    assert ep.is_finished(with_answers([1, 1]), "unanimous").all()
    assert not ep.is_finished(with_answers([1, 2]), "unanimous").any()
    assert not ep.is_finished(with_answers([-1, -1]), "unanimous").any()
    assert not ep.is_finished(with_answers([1, 1]), "never").any()
    assert not ep.is_finished(with_answers([1] * 20), "stable").any()  # nothing to compare with yet
    assert ep.is_finished(with_answers([1] * 20, [1] * 20), "stable").all()  # 40 / 43 >= .8
    assert not ep.is_finished(with_answers([1] * 5, [1] * 5), "stable").any()  # 10 / 13 < .8
    assert not ep.is_finished(with_answers([1] * 19 + [2], [1] * 20), "stable").any()
    with pytest.raises(InputError, match="early_stop"):
        ep.is_finished(with_answers([1]), "later")


def degrees(controller, agents=5):
    reads, behaviours = controller.decide(None, started(agents=agents), np.random.default_rng(0))
    assert not reads[:, np.arange(agents), np.arange(agents)].any()
    return reads.sum(axis=2), behaviours


def test_graphs():
    degree, behaviours = degrees(policies.FullyConnected())
    assert (degree == 4).all()
    assert (behaviours == ep.REVISE).all()
    assert (degrees(policies.CritiqueAll())[1] == ep.CRITIQUE).all()
    assert (degrees(policies.KeepAll())[0] == 0).all()
    assert (degrees(policies.RandomOne())[0] == 1).all()
    for degree in range(1, 5):
        assert (degrees(policies.Sparse(degree=degree))[0] == degree).all()
        assert (degrees(policies.RandomPeers(degree=degree))[0] == degree).all()
    ring, _ = policies.Sparse().decide(None, started(1), np.random.default_rng(0))
    assert np.array_equal(ring[0], np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1))


def test_random_peers_are_uniform():
    reads, _ = policies.RandomOne().decide(None, started(8000), np.random.default_rng(0))
    assert reads.mean(axis=0)[~np.eye(5, dtype=bool)] == pytest.approx(np.full(20, 0.25), abs=0.02)


def test_oracle_lets_one_right_agent_speak():
    state = started(200)
    reads, behaviours = policies.OracleSpeaker().decide(None, state, np.random.default_rng(0))
    right = state.answers == state.truth[:, None]
    some = right.any(axis=1)
    assert (reads.sum(axis=2)[some] == (behaviours[some] != ep.KEEP)).all()
    assert (reads.any(axis=1).sum(axis=1) == some).all()  # one speaker
    assert (right | ~reads.any(axis=1)).all()  # who was right
    assert not behaviours[~some].any()
    with pytest.raises(InputError, match="labels"):
        policies.OracleSpeaker().decide(None, state.public(), np.random.default_rng(0))


def test_oracle_beats_all_and_is_bounded_by_any_agent():
    sim, seed = SimAgents(), generator("policies", "oracle", 0)
    ceiling = policies.any_agent_correct(sim.start(4000, seed)).mean()
    accuracy = {
        name: rollout(sim, each, batch=4000, generator=generator("policies", "oracle", 1)).summary()["vote_accuracy"]
        for name, each in {"oracle": policies.OracleSpeaker(), "critique": policies.CritiqueAll()}.items()
    }
    assert accuracy["critique"] < accuracy["oracle"] <= ceiling + 0.02


def test_single_agents_and_chance():
    state = SimAgents().start(20_000, generator("policies", "single", 0))
    right = [(policies.best_single_agent(state, i) == state.truth).mean() for i in range(5)]
    assert right == sorted(right)  # skills rise
    chance = policies.random_answer(state, np.random.default_rng(0)) == state.truth
    assert chance.mean() == pytest.approx(0.25, abs=0.015)
    with pytest.raises(InputError, match="agent"):
        policies.best_single_agent(state, 5)


def test_self_consistency_takes_agents_in_turn():
    class Fixed:
        def __init__(self):
            self.draws = []

        def resample(self, state, draw, rng):
            self.draws.append(draw)
            return np.full_like(state.answers, 3)

    state, backend = started(2, 3, 4), Fixed()
    answers = np.array([[0, 0, 0], [0, 0, 0]])
    state = replace(state, answers=answers, history=(answers,))
    votes = policies.self_consistency(backend, state, np.array([5, 7]), np.random.default_rng(0))
    assert votes.tolist() == [0, 3]  # 3 : 2, and 3 : 4
    assert backend.draws == [1, 2]
    assert policies.self_consistency(backend, state, 3, np.random.default_rng(0)).tolist() == [0, 0]
    with pytest.raises(InputError, match="calls"):
        policies.self_consistency(backend, state, 2, np.random.default_rng(0))


def test_samples_left_over_go_by_the_debates_own_order_of_agents():
    class Names:
        """Agent i's further samples are option i."""

        def resample(self, state, draw, rng):
            return np.broadcast_to(np.arange(3), state.answers.shape)

    state = started(200, 3, 4)
    answers = np.full((200, 3), 3)
    answers[:, 1:] = [0, 1]  # 3, 0, 1, and one more sample decides, unless it is agent 2's
    state = replace(state, answers=answers, history=(answers,))
    votes = policies.self_consistency(Names(), state, 4, np.random.default_rng(0))
    first = state.agent_tie.argmin(axis=1)
    assert (votes[first < 2] == first[first < 2]).all()
    assert set(first.tolist()) == {0, 1, 2}


def test_self_consistency_of_the_simulator_changes_little():
    """Further samples are noise around the same belief: the vote stays within a point or two."""
    sim = SimAgents()
    state = sim.start(20_000, generator("policies", "sc", 0))
    more = (policies.self_consistency(sim, state, 20, generator("policies", "sc", 1)) == state.truth).mean()
    assert more == pytest.approx((ep.vote(state) == state.truth).mean(), abs=0.03)


def test_skill_vote_is_the_likelihood_of_independent_agents():
    """Against Bayes' rule written out: every option's likelihood when wrong answers are even."""
    state, accuracy = started(500, 4, 3), np.array([0.4, 0.55, 0.7, 0.9])
    hit = state.answers[:, :, None] == np.arange(3)
    likelihood = np.where(hit, accuracy[:, None], (1 - accuracy[:, None]) / 2).prod(axis=1)
    ordered = np.sort(likelihood, axis=1)
    clear = ordered[:, -1] > ordered[:, -2] * (1 + 1e-6)
    votes = policies.skill_vote(state, accuracy)
    assert clear.sum() > 400
    assert np.array_equal(votes[clear], likelihood.argmax(axis=1)[clear])
    nobody = policies.skill_vote(state, np.full(4, 0.1))  # no record speaks for an agent: the tie order decides
    assert np.array_equal(nobody, state.tie.argmin(axis=1))


def test_one_agent():
    sim = SimAgents(1, 3)
    outcome = rollout(sim, policies.KeepAll(), batch=9, generator=generator("policies", "one", 0))
    assert np.array_equal(outcome.vote, outcome.answers0[:, 0])
    for controller in (policies.FullyConnected(), policies.CritiqueAll(), policies.Sparse(), policies.RandomOne()):
        with pytest.raises(InputError, match="at least 2 agents"):
            rollout(sim, controller, batch=9, generator=generator("policies", "one", 0), early_stop="never")


def test_bad_controllers():
    with pytest.raises(InputError, match="behaviour"):
        policies.FullyConnected("shout")
    for controller in (policies.Sparse(degree=5), policies.RandomPeers(degree=0)):
        with pytest.raises(InputError, match="degree"):
            degrees(controller)
    with pytest.raises(InputError, match="rounds"):
        rollout(SimAgents(), policies.KeepAll(), batch=2, rounds=-1, generator=generator("p", "b", 0))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["never", "unanimous", "stable"]))
def test_outcomes_add_up(seed, early_stop):
    outcome = rollout(
        SimAgents(3, 3), policies.FullyConnected(), batch=30, rounds=2, trace=True,
        generator=generator("policies", "outcome", seed), early_stop=early_stop,
    )  # fmt: skip
    found = outcome.summary()
    change = conformity(outcome.answers0, outcome.answersT, outcome.truth)
    assert found["individual_accuracy"] == pytest.approx(
        found["initial_accuracy"] - change.harmful + change.beneficial, abs=1e-12
    )
    assert (outcome.calls <= 3 * (1 + 2)).all()
    assert np.array_equal(outcome.calls, 3 * (1 + outcome.rounds))
    assert np.array_equal(outcome.cost, 3 + outcome.rounds * 3 * 2.0)
    assert outcome.steps == 3 * outcome.rounds.sum()
    assert len(outcome.reads) == len(outcome.behaviours) == len(outcome.history) - 1 <= 2
    assert sum((behaviours != 0).sum() for behaviours in outcome.behaviours) == outcome.steps


def test_followers_of_a_wrong_majority_by_hand():
    outcome = rollout(SimAgents(3, 3), policies.KeepAll(), batch=2, generator=generator("policies", "x", 0))
    outcome = replace(
        outcome, truth=np.array([0, 1]), vote0=np.array([2, 1]), vote=np.array([2, 1]),
        answers0=np.array([[2, 2, 0], [1, 1, 1]]), answersT=np.array([[2, 2, 2], [1, 1, 0]]),
    )  # fmt: skip
    found = outcome.summary()
    assert found["wrong_majority_followed"] == 1.0
    assert found["harmful"] == pytest.approx(2 / 6)
    assert found["harmful_rate"] == pytest.approx(2 / 4)
    assert found["unanimous_wrong"] == 0
    assert found["vote_accuracy"] == 0.5
    calm = replace(outcome, vote0=outcome.truth)
    assert np.isnan(calm.summary()["wrong_majority_followed"])


def test_debates_that_are_all_over_are_not_played_on():
    sure = SimAgents(3, 2, skills=[50.0, 50.0, 50.0])
    outcome = rollout(sure, policies.CritiqueAll(), batch=4, generator=generator("p", "sure", 0))
    assert (outcome.rounds.max(), outcome.steps, outcome.calls.tolist()) == (0, 0, [3] * 4)


def test_no_debate_without_rounds():
    outcome = rollout(SimAgents(), policies.FullyConnected(), batch=4, rounds=0, generator=generator("p", "r", 0))
    assert outcome.cost.tolist() == [5.0] * 4
    assert np.array_equal(outcome.answers0, outcome.answersT)
