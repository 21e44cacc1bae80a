"""The audit passes on honest debates and finds every leak that was ever built in on purpose."""

from dataclasses import replace

import numpy as np
import pytest
from pettingzoo.utils.wrappers import BaseParallelWrapper

from steelyard.agents.dear import audit
from steelyard.agents.dear.audit import LabelLeakError, audit_label_leak
from steelyard.agents.dear.committee import CommitteeAgents
from steelyard.agents.dear.env import DebateEnv
from steelyard.agents.dear.episodes import option_counts
from steelyard.agents.dear.observation import observe
from steelyard.agents.dear.policies import CritiqueAll, OracleSpeaker, RandomOne, Sparse
from steelyard.agents.dear.simulator import SimAgents, stated_confidence
from steelyard.errors import InputError


@pytest.mark.parametrize(
    "target",
    [
        SimAgents(),
        SimAgents(8, 2, conformity=0, arguments=False),
        SimAgents(1, 3),
        SimAgents(4, 3, skills=[-2.0, 9.0, 9.0, 9.0]),  # the votes nearly give correctness away, and may
        CommitteeAgents(),
        DebateEnv(SimAgents()),
        DebateEnv(CommitteeAgents("controller"), identity=True, early_stop="stable"),
    ],
    ids=["simulator", "two options", "alone", "one weak", "committee", "environment", "identity"],
)
def test_honest_debates_pass(target):
    report = audit_label_leak(target)
    assert report.passed
    assert report.features == ()
    assert "observation ignores the truth" in report.checks


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_false_alarm(seed):
    assert audit_label_leak(DebateEnv(SimAgents(5, 4)), seed=seed, on_leak="report").leaks == []


@pytest.mark.parametrize("controller", [CritiqueAll(), RandomOne(), Sparse()])
def test_honest_controllers_pass(controller):
    assert audit_label_leak(SimAgents(), controller=controller, episodes=500).passed


class Changed:
    """The simulator with its start changed."""

    def __init__(self, change):
        self.inner, self.change = SimAgents(), change
        self.n_agents, self.n_options = self.inner.n_agents, self.inner.n_options
        self.advance = self.inner.advance

    def start(self, batch, generator, *, items=None):
        return self.change(self.inner.start(batch, generator, items=items))


def truth_first(state):
    """The first trial's storage: the right option is number 0."""
    names = (np.arange(state.options) - state.truth[:, None]) % state.options
    return audit.relabel_options(state, names)


def tie_for_truth(state):
    """The truth comes first in every tie order."""
    places = np.where(np.arange(state.options) == state.truth[:, None], -1, state.tie)
    return replace(state, tie=places.argsort(axis=1).argsort(axis=1))


def ties_to_truth(state):
    """Tied beliefs answer with the truth, as when the truth is moved to 0 before argmax."""
    private = np.round(state.private * 2) / 2
    top = private == private.max(axis=2, keepdims=True)
    right = np.take_along_axis(top, np.broadcast_to(state.truth[:, None, None], (*state.answers.shape, 1)), 2)[..., 0]
    answers = np.where(right, state.truth[:, None], state.answers)
    return replace(state, private=private, answers=answers, history=(answers,))


def telling_confidence(state):
    right = state.answers == state.truth[:, None]
    return replace(state, confidence=np.where(right, 0.9, 0.6) + 0.01 * state.confidence)


def telling_agent_tie(state):
    order = (state.agent_tie[:, :1] * 0) + state.truth[:, None] + np.arange(state.n_agents)
    return replace(state, agent_tie=order)


def is_right(state):
    return state.answers == state.truth[:, None]


def right_agents_first(state):
    """Whoever is right comes early in the order of agents, yet not always as early."""
    return replace(state, agent_tie=(state.agent_tie - 2 * is_right(state)).argsort(axis=1).argsort(axis=1))


def telling_tokens(state):
    return replace(state, tokens=np.where(is_right(state), 100, 90))


def telling_calls(state):
    return replace(state, calls=np.where(is_right(state), 1, 2))


def telling_similarity(state):
    right = is_right(state)
    return replace(state, similarity=np.where(right[:, :, None] & right[:, None, :], 0.9, 0.2))


def sorted_by_truth(state):
    order = state.truth.argsort(kind="stable")
    moved = {key: getattr(state, key)[order] for key in ("answers", "truth", "tie", "agent_tie", "private", "items")}
    return replace(state, **moved, confidence=None, history=(state.answers[order],))


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        (right_agents_first, "agent_tie"),
        (telling_tokens, "tokens of agent 0"),
        (telling_calls, "calls of agent 0"),
        (telling_similarity, "similarity to those alike of agent 0"),
        (sorted_by_truth, "place in the batch of agent 0"),
        (truth_first, "truth"),
        (tie_for_truth, "tie"),
        (ties_to_truth, "answers"),
        (telling_confidence, "confidence of agent 0"),
        (telling_agent_tie, "agent_tie of agent 0"),
    ],
)
def test_leaky_back_ends(change, feature):
    report = audit_label_leak(Changed(change), on_leak="report")
    assert feature in report.features
    with pytest.raises(LabelLeakError, match="labels leak"):
        audit_label_leak(Changed(change))


class UsesTruth(Changed):
    """A step in which everybody comes a little nearer to the truth."""

    def __init__(self):
        super().__init__(lambda state: state)
        self.advance = self._advance

    def _advance(self, state, reads, behaviours, noise=None, generator=None):
        bonus = 3.0 * (np.arange(state.options) == state.truth[:, None])[:, None]
        after = self.inner.advance(replace(state, private=state.private + bonus), reads, behaviours, noise, generator)
        return replace(after, private=state.private)


def test_leaky_step():
    report = audit_label_leak(UsesTruth(), on_leak="report")
    assert "step ignores the truth" in {leak.check for leak in report.leaks}


class PriceOfTruth(UsesTruth):
    def _advance(self, *arguments, **named):
        after = self.inner.advance(*arguments, **named)
        return replace(after, cost=after.cost + 0.001 * is_right(after))


def test_step_whose_bookkeeping_knows_the_truth():
    report = audit_label_leak(PriceOfTruth(), on_leak="report")
    assert ("step ignores the truth", "cost") in {(leak.check, leak.feature) for leak in report.leaks}


class FavoursLast(UsesTruth):
    def _advance(self, state, reads, behaviours, noise=None, generator=None):
        tilt = np.arange(state.options) * 0.5
        after = self.inner.advance(replace(state, private=state.private + tilt), reads, behaviours, noise, generator)
        return replace(after, private=state.private)


def test_step_that_prefers_a_place():
    report = audit_label_leak(FavoursLast(), on_leak="report")
    assert "step is equivariant" in {leak.check for leak in report.leaks}


def argmax_majority(state):
    """The first trial's feature: ties of the majority go to the option stored first."""
    first = option_counts(state.answers, state.options).argmax(axis=1)
    return np.concatenate([observe(state, 3).own[..., 0], state.answers == first[:, None]], axis=1)


def test_argmax_ties_in_a_feature():
    report = audit_label_leak(SimAgents(), observer=argmax_majority, on_leak="report")
    assert {leak.check for leak in report.leaks} == {"observation is equivariant"}
    assert set(report.features) == {f"feature {column}" for column in range(5, 10)}


def test_truth_inside_a_feature():
    report = audit_label_leak(
        SimAgents(), observer=lambda state: (state.answers == state.truth[:, None]) * 1.0, on_leak="report"
    )
    checks = {leak.check for leak in report.leaks}
    assert {"observation ignores the truth", "no feature gives correctness away"} <= checks
    place = audit_label_leak(SimAgents(), observer=lambda state: state.truth[:, None], on_leak="report")
    assert "features know nothing of the truth's place" in {leak.check for leak in place.leaks}


class TruthInFeatures(DebateEnv):
    def features(self, episodes):
        seen = super().features(episodes)
        seen[..., 0] = (episodes.answers == episodes.truth[:, None]) * 0.1
        return seen


class RewardInObservation(DebateEnv):
    """What `features` says is clean; what `step` returns is not."""

    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        for agent, values in seen.items():
            values[3] = np.clip(rewards[agent], -1, 1)
        return (seen, rewards, *rest)


class TruthInInfos(DebateEnv):
    def reset(self, seed=None, options=None):
        seen, infos = super().reset(seed, options)
        return seen, {agent: {"answer": {"right": [self._episodes.truth]}} for agent in infos}


class StopsWhenRight(DebateEnv):
    def step(self, actions):
        seen, rewards, ends, *rest = super().step(actions)
        done = bool((self._episodes.answers == self._episodes.truth[0]).any())
        return (seen, rewards, {agent: end or done for agent, end in ends.items()}, *rest)


class TruthInState(DebateEnv):
    def state(self):
        return np.append(super().state(), self._episodes.truth)


@pytest.mark.parametrize(
    ("kind", "feature"),
    [
        (TruthInFeatures, "consensus"),
        (RewardInObservation, "clusters"),
        (TruthInInfos, "infos"),
        (StopsWhenRight, "ends"),
        (TruthInState, "state"),
    ],
)
def test_leaky_environments(kind, feature):
    report = audit_label_leak(kind(SimAgents()), on_leak="report")
    assert feature in report.features
    assert set(report.features) <= {feature, "state"}  # what agents see is part of the state
    assert "environment's observations ignore the truth" in {leak.check for leak in report.leaks}


class OtherBackend(DebateEnv):
    """It tells the truth, of debates of a back end that the audit cannot reach."""

    def __init__(self, backend):
        super().__init__(backend)
        self._real = backend

    def reset(self, seed=None, options=None):
        kept, self.backend = self.backend, self._real
        seen, infos = super().reset(seed, options)
        self.backend = kept
        return {agent: np.append(values, self._episodes.truth) for agent, values in seen.items()}, infos


@pytest.mark.parametrize("target", [OtherBackend(SimAgents()), BaseParallelWrapper(DebateEnv(SimAgents()))])
def test_an_environment_that_plays_on_something_else_is_refused(target):
    with pytest.raises(InputError, match=r"backend\.start"):
        audit_label_leak(target, on_leak="report")


class CodedConfidence(SimAgents):
    """The last digit of a confidence is even where the answer is right; no threshold tells."""

    def start(self, *args, **kwargs):
        state = super().start(*args, **kwargs)
        wrong = state.answers != state.truth[:, None]
        digits = np.random.default_rng(1).integers(1, 5, size=wrong.shape) * 2
        return replace(state, confidence=(digits + wrong) / 10)


def test_a_code_for_right_and_wrong_is_found():
    report = audit_label_leak(CodedConfidence(), on_leak="report")
    assert "no feature gives correctness away" in {leak.check for leak in report.leaks}
    assert any("confidence" in feature for feature in report.features)


class ArgmaxSpeaker(CritiqueAll):
    """Everybody reads those who hold the option stored first among the most frequent."""

    def reads(self, state, generator):
        first = option_counts(state.answers, state.options).argmax(axis=1)
        reads = np.broadcast_to((state.answers == first[:, None])[:, None], (state.batch, 5, 5)).copy()
        reads[:, np.arange(5), np.arange(5)] = False
        return reads


@pytest.mark.parametrize(
    ("controller", "check"),
    [(OracleSpeaker(), "controller ignores the truth"), (ArgmaxSpeaker(), "controller is equivariant")],
)
def test_leaky_controllers(controller, check):
    report = audit_label_leak(SimAgents(), controller=controller, episodes=500, on_leak="report")
    assert check in {leak.check for leak in report.leaks}
    assert "reads" in report.features


def test_report_names_what_was_found():
    report = audit_label_leak(SimAgents(), observer=lambda state: state.truth[:, None], on_leak="report")
    assert not report.passed
    with pytest.raises(LabelLeakError, match=r"feature 0.*and \d+ more"):
        report.raise_for_leaks()
    report.leaks = report.leaks[:1]
    with pytest.raises(LabelLeakError, match="round 0"):
        report.raise_for_leaks()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: audit_label_leak(object()), "target"),
        (lambda: audit_label_leak(SimAgents(), episodes=10), "episodes"),
        (lambda: audit_label_leak(SimAgents(), rounds=-1), "rounds"),
        (lambda: audit_label_leak(SimAgents(), on_leak="x"), "on_leak"),
    ],
)
def test_bad_input(call, names):
    with pytest.raises(InputError, match=names):
        call()


def test_confidence_may_go_along_with_correctness():
    """A stated confidence that is informative, yet not a label in disguise, is no leak."""
    state = SimAgents().start(500, np.random.default_rng(0))
    assert np.array_equal(state.confidence, stated_confidence(state.private, state.answers))
    right = state.answers == state.truth[:, None]
    assert state.confidence[right].mean() > state.confidence[~right].mean()
