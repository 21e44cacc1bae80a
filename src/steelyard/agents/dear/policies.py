"""Fixed controllers: the vote, debates over fixed graphs, and the controls that a trained controller must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.agents.dear.episodes import (
    BEHAVIOURS,
    CRITIQUE,
    KEEP,
    Backend,
    Bools,
    Episodes,
    Floats,
    Ints,
    State,
    StopRule,
    VoteRule,
    argmax_by,
    option_counts,
)
from steelyard.agents.dear.observation import Observation
from steelyard.errors import InputError


@dataclass(frozen=True)
class FixedController:
    """What fixed controllers share: they observe nothing that matters to them, and end as told.

    Args:
        behaviour: Of every agent that speaks: "revise", "critique" or "explore".
        early_stop: "never", "unanimous" or "stable".
        vote_rule: "majority", "belief" or "reconcile".
    """

    behaviour: str = "revise"
    early_stop: StopRule = "never"
    vote_rule: VoteRule = "majority"

    identity = False
    evidence = False
    uses_labels = False

    def __post_init__(self) -> None:
        if self.behaviour not in BEHAVIOURS:
            raise InputError(f"behaviour must be one of {', '.join(BEHAVIOURS)}, not {self.behaviour!r}.")

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        """Return who reads whom (B, N, N) and one behaviour for all (B, N)."""
        if state.n_agents < 2:
            raise InputError("a debate needs at least 2 agents; KeepAll takes one agent's answer as it is.")
        speaking = np.full(state.answers.shape, BEHAVIOURS.index(self.behaviour), dtype=np.int64)
        return self.reads(state, generator), speaking

    def reads(self, state: State, generator: np.random.Generator) -> Bools:
        """Return bool (B, N, N): here everyone reads everyone else."""
        agents = state.n_agents
        return np.broadcast_to(~np.eye(agents, dtype=bool), (state.batch, agents, agents))


@dataclass(frozen=True)
class KeepAll(FixedController):
    """No debate: the majority vote over first answers (works for one agent as well)."""

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        """Return no reading and "keep" for everyone."""
        agents = state.n_agents
        return np.zeros((state.batch, agents, agents), dtype=bool), np.full(state.answers.shape, KEEP, dtype=np.int64)


@dataclass(frozen=True)
class FullyConnected(FixedController):
    """Multi-agent debate, all read all (Du et al. 2023); with ``early_stop="unanimous"`` the cheaper form."""


@dataclass(frozen=True)
class CritiqueAll(FixedController):
    """All read all, everyone critiques, stop when unanimous: no learning, and the baseline to beat (reconstruction)."""

    behaviour: str = BEHAVIOURS[CRITIQUE]
    early_stop: StopRule = "unanimous"


@dataclass(frozen=True)
class ReConcile(FixedController):
    """All read all, and a vote weighted by recalibrated stated confidence (prior work)."""

    early_stop: StopRule = "unanimous"
    vote_rule: VoteRule = "reconcile"


@dataclass(frozen=True)
class Sparse(FixedController):
    """A regular ring (Li et al. 2024): agent i reads ``degree`` neighbours, alternating before and after it.

    Args:
        degree: Peers read, 1..N-1.
    """

    degree: int = 2

    def reads(self, state: State, generator: np.random.Generator) -> Bools:
        """Return the ring, the same for every debate."""
        agents = state.n_agents
        if not 1 <= self.degree < agents:
            raise InputError(f"degree must be 1..{agents - 1} for {agents} agents, not {self.degree}.")
        graph = np.zeros((agents, agents), dtype=bool)
        for step in range(1, self.degree + 1):
            offset = (step + 1) // 2 * (1 if step % 2 else -1)
            graph[np.arange(agents), (np.arange(agents) + offset) % agents] = True
        return np.broadcast_to(graph, (state.batch, agents, agents))


@dataclass(frozen=True)
class RandomPeers(FixedController):
    """Everyone reads ``degree`` random peers, drawn anew each round (a control; reconstruction).

    Args:
        degree: Peers read, 1..N-1.
    """

    degree: int = 1

    def reads(self, state: State, generator: np.random.Generator) -> Bools:
        """Return random graphs in which each agent reads ``degree`` others."""
        if not 1 <= self.degree < state.n_agents:
            raise InputError(f"degree must be 1..{state.n_agents - 1} for {state.n_agents} agents, not {self.degree}.")
        scores = generator.random((state.batch, state.n_agents, state.n_agents))
        scores[:, np.arange(state.n_agents), np.arange(state.n_agents)] = 2.0  # never oneself
        return scores.argsort(axis=2).argsort(axis=2) < self.degree


class RandomOne(RandomPeers):
    """Everyone reads one random peer a round."""


@dataclass(frozen=True)
class OracleSpeaker(FixedController):
    """Everyone reads one agent that was right at first, if there is one. Uses labels: a bound, no contestant."""

    uses_labels = True

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        """Return the speaker's column; the speaker keeps, and so do all where nobody was right."""
        if not isinstance(state, Episodes):
            raise InputError("OracleSpeaker needs labels, which a debate at inference does not have.")
        right = state.history[0] == state.truth[:, None]
        speaker = argmax_by(right, state.agent_tie)
        listens = right.any(axis=1)[:, None] & (np.arange(state.n_agents) != speaker[:, None])
        column = np.arange(state.n_agents) == speaker[:, None]
        return listens[:, :, None] & column[:, None, :], np.where(listens, BEHAVIOURS.index(self.behaviour), KEEP)


def self_consistency(backend: Backend, episodes: Episodes, calls: Ints, generator: np.random.Generator) -> Ints:
    """Return int64 (B,): the majority over first answers and further samples, ``calls`` in all.

    Agents take turns; whose turn comes first, and so who gets one sample more, is the debate's own order of agents.

    Args:
        backend: Where further samples come from.
        episodes: Started debates.
        calls: int (B,) or one number: the calls of the arm compared with, at least N.
        generator: For the samples.

    Raises:
        InputError: Fewer calls than agents.
    """
    budget = np.broadcast_to(np.asarray(calls), (episodes.batch,))
    agents = episodes.n_agents
    if (budget < agents).any():
        raise InputError(f"calls must be at least {agents}, one first answer an agent.")
    counts = option_counts(episodes.history[0], episodes.options)
    for draw in range(1, -(-int(budget.max()) // agents)):
        taken = episodes.agent_tie + draw * agents < budget[:, None]
        further = backend.resample(episodes, draw, generator)
        counts = counts + option_counts(np.where(taken, further, -1), episodes.options)
    return argmax_by(counts, episodes.tie)


def any_agent_correct(episodes: Episodes) -> Bools:
    """Return bool (B,): was anyone right at first? Uses labels: a ceiling for picking among first answers."""
    found: Bools = (episodes.history[0] == episodes.truth[:, None]).any(axis=1)
    return found


def best_single_agent(episodes: Episodes, agent: int) -> Ints:
    """Return the first answers of ``agent``, which must have been chosen on other questions than these."""
    if not 0 <= agent < episodes.n_agents:
        raise InputError(f"agent must be 0..{episodes.n_agents - 1}, not {agent}.")
    return episodes.history[0][:, agent]


def skill_vote(episodes: Episodes, accuracy: Floats) -> Ints:
    """Return int64 (B,): first answers voted on with each agent's record as its weight, ties by the tie order.

    The weight is the log-odds of being right against one given wrong option, ln[a (K - 1) / (1 - a)], which is best
    for agents that err independently and evenly; a record worse than chance counts nothing.

    Args:
        episodes: Started debates.
        accuracy: float64 (N,), the share of right first answers of each agent on other questions than these.
    """
    share = np.clip(accuracy, 1e-3, 1 - 1e-3)
    weights = np.maximum(np.log(share * (episodes.options - 1) / (1 - share)), 0.0)
    given = episodes.history[0][..., None] == np.arange(episodes.options)
    return argmax_by((np.rint(1e6 * weights)[:, None] * given).sum(axis=1), episodes.tie)  # whole numbers: exact ties


def random_answer(episodes: Episodes, generator: np.random.Generator) -> Ints:
    """Return a uniform option for each debate, int64 (B,): chance."""
    return generator.integers(episodes.options, size=episodes.batch)
