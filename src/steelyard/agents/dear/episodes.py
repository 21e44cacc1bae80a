"""The batched contract of a debate: what is public, what only training sees, and the bookkeeping of one round.

B debates of N agents over K options run at once as numpy arrays. ``State`` is what a controller may see; ``Episodes``
adds the truth and the agents' private beliefs, which only back ends, training and the oracle touch. Every tie is
broken by a permutation that belongs to the episode, never by the order in which options or agents are stored.

Source: reconstruction (the paper gives no interface); the behaviours and the cost unit are named after its stages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.core import reconcile_weight
from steelyard.errors import InputError, NoEffectWarning

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
VoteRule = Literal["majority", "belief", "reconcile"]
StopRule = Literal["never", "unanimous", "stable"]

BEHAVIOURS = ("keep", "revise", "critique", "explore")
KEEP, REVISE, CRITIQUE, EXPLORE = range(4)
NO_ANSWER = -1  # an unparsable answer or a failed agent: never a vote
_STABLE_BELIEF = 0.8  # stop rule "stable": this much belief in one answer, and nobody moved


@dataclass(frozen=True, kw_only=True)
class State:
    """What a controller sees of B debates: no label, no private belief.

    Attributes:
        answers: int64 (B, N), each 0..K-1 or -1 for no answer.
        options: K.
        tie: int64 (B, K), the place of each option in its episode's tie order; the lowest place wins a tie.
        agent_tie: int64 (B, N), the same for agents.
        flips: int64 (B, N), how often each agent changed its answer.
        history: The answers of rounds 0..t, each (B, N); the last is ``answers``.
        t: Rounds played.
        cost: float64 (B, N), call-units spent: 1 for a call and 1/2 for each peer's message in it.
        calls: int64 (B, N), calls made, the first answer included.
        active: bool (B,), False once a debate has stopped.
        confidence: float64 (B, N), what each agent says about its own answer, or None.
        similarity: float64 (B, N, N), cosine of the agents' rationales, or None.
        tokens: int64 (B, N), prompt and completion tokens spent, or None where no language model answers.
    """

    answers: Ints
    options: int
    tie: Ints
    agent_tie: Ints
    flips: Ints
    history: tuple[Ints, ...]
    t: int
    cost: Floats
    calls: Ints
    active: Bools
    confidence: Floats | None = None
    similarity: Floats | None = None
    tokens: Ints | None = None

    @property
    def batch(self) -> int:
        """Number of debates B."""
        return int(self.answers.shape[0])

    @property
    def n_agents(self) -> int:
        """Number of agents N."""
        return int(self.answers.shape[1])


@dataclass(frozen=True, kw_only=True)
class Episodes(State):
    """Debates with what a controller must not see.

    Attributes:
        truth: int64 (B,), the right option.
        private: The back end's own array; its last axis is the options, and its second the agents if it has three.
        items: int64 (B,), which item of the back end's data each debate is about.
    """

    truth: Ints
    items: Ints
    private: NDArray[Any] | None = None

    def public(self) -> State:
        """Return the same debates without truth, private beliefs and item numbers."""
        return State(**{field.name: getattr(self, field.name) for field in fields(State)})


class Backend(Protocol):
    """Agents that answer: simulated, classifiers, or recorded language models."""

    n_agents: int
    n_options: int

    def start(self, batch: int, generator: np.random.Generator, *, items: Sequence[int] | None = None) -> Episodes:
        """Return ``batch`` new debates with every agent's first answer."""
        ...

    def advance(
        self,
        episodes: Episodes,
        reads: Bools,
        behaviours: Ints,
        noise: Floats | None = None,
        generator: np.random.Generator | None = None,
    ) -> Episodes:
        """Return the debates after one round; ``reads[b, i, j]``: agent i reads j."""
        ...

    def resample(self, episodes: Episodes, draw: int, generator: np.random.Generator) -> Ints:
        """Return a further independent first answer of every agent, int64 (B, N); ``draw`` counts from 1."""
        ...


def random_order(rows: int, size: int, generator: np.random.Generator) -> Ints:
    """Return int64 (rows, size): in each row a uniform permutation of 0..size-1."""
    return generator.random((rows, size)).argsort(axis=1).argsort(axis=1)


def argmax_by(values: NDArray[Any], tie: Ints) -> Ints:
    """Return the index of the largest value along the last axis; ties go to the lowest ``tie`` place.

    Args:
        values: (B, ..., K).
        tie: (B, K), a permutation of places for each row.
    """
    places = tie.reshape(tie.shape[0], *(1,) * (values.ndim - 2), tie.shape[1])
    top = values == values.max(axis=-1, keepdims=True)
    first: Ints = np.where(top, places, tie.shape[1]).argmin(axis=-1)
    return first


def option_counts(answers: Ints, options: int) -> Ints:
    """Return int64 (..., K): how many of the agents (last axis) gave each option; no answer counts nowhere."""
    counts: Ints = (answers[..., None] == np.arange(options)).sum(axis=-2)
    return counts


def majority(state: State) -> Ints:
    """Return int64 (B,): the most frequent option, ties by the episode's tie order."""
    return argmax_by(option_counts(state.answers, state.options), state.tie)


def stable_since(state: State) -> Ints:
    """Return int64 (B, N): the round since which each agent has held its present answer."""
    since = np.zeros_like(state.answers)
    for t in range(1, len(state.history)):
        since[state.history[t] != state.history[t - 1]] = t
    return since


def vote(state: State, rule: VoteRule = "majority") -> Ints:
    """Return int64 (B,): each debate's answer, -1 where nobody answered.

    Args:
        state: B debates.
        rule: "majority": most agents, ties by the earliest stable agent. "belief": most evidence over all rounds.
            "reconcile": stated confidences with ReConcile's weights. Ties that remain go by the episode's tie order.

    Raises:
        InputError: An unknown rule, or "reconcile" without stated confidences.
    """
    options = state.options
    counts = option_counts(state.answers, options)
    if rule == "majority":
        return majority_vote(state.answers, stable_since(state), state)
    if rule == "belief":
        score = np.sum([option_counts(answers, options) for answers in state.history], axis=0)
    elif rule == "reconcile":
        if state.confidence is None:
            raise InputError("vote rule 'reconcile' needs agents that state a confidence.")
        tenths = np.rint(10 * reconcile_weight(np.clip(state.confidence, 0.0, 1.0)))  # whole numbers: exact ties
        score = (tenths[..., None] * (state.answers[..., None] == np.arange(options))).sum(axis=1)
    else:
        raise InputError(f"vote rule must be 'majority', 'belief' or 'reconcile', not {rule!r}.")
    return np.where(counts.sum(axis=1) > 0, argmax_by(score, state.tie), NO_ANSWER)


def majority_vote(answers: Ints, since: Ints, state: State) -> Ints:
    """Return int64 (B, ...): most agents, ties by the earliest stable agent, then by the tie order; -1 if none answers.

    Args:
        answers: int64 (B, ..., N), those of ``state`` or others in their place.
        since: int64 (B, ..., N), the round since which each agent holds its answer.
        state: B debates, for their options, tie order and round.
    """
    counts = option_counts(answers, state.options)
    held = answers[..., None] == np.arange(state.options)
    first = np.where(held, since[..., None], state.t + 1).min(axis=-2)
    score = counts * (state.t + 2) + (state.t + 1 - first)  # the count first, then who stood firm longest
    return np.where(counts.sum(axis=-1) > 0, argmax_by(score, state.tie), NO_ANSWER)


def begin(
    answers: Ints,
    truth: Ints,
    options: int,
    generator: np.random.Generator,
    *,
    private: NDArray[Any] | None = None,
    items: Ints | None = None,
    confidence: Floats | None = None,
    tokens: Ints | None = None,
    tie: Ints | None = None,
) -> Episodes:
    """Return the state after the first answers: one call an agent, nobody has read anybody."""
    batch, agents = answers.shape
    return Episodes(
        answers=answers,
        options=options,
        tie=random_order(batch, options, generator) if tie is None else tie,
        agent_tie=random_order(batch, agents, generator),
        flips=np.zeros_like(answers),
        history=(answers,),
        t=0,
        cost=np.ones(answers.shape),
        calls=np.ones_like(answers),
        active=np.ones(batch, dtype=bool),
        confidence=confidence,
        tokens=tokens,
        truth=truth,
        private=private,
        items=np.arange(batch) if items is None else items,
    )


def checked_actions(state: State, reads: NDArray[Any], behaviours: NDArray[Any]) -> tuple[Bools, Ints]:
    """Return the actions with self-loops removed and with nothing done in debates that have stopped.

    Raises:
        InputError: A wrong shape, a value of ``reads`` other than 0 and 1, or an unknown behaviour.
    """
    batch, agents = state.answers.shape
    reads, behaviours = np.asarray(reads), np.asarray(behaviours)
    if reads.shape != (batch, agents, agents):
        raise InputError(f"reads has shape {reads.shape}, but the debates ask for {(batch, agents, agents)}.")
    if behaviours.shape != (batch, agents):
        raise InputError(f"behaviours has shape {behaviours.shape}, but the debates ask for {(batch, agents)}.")
    if reads.dtype != bool:
        if not np.isin(reads, (0, 1)).all():
            raise InputError("reads may hold only 0 and 1 (agent i reads j or not).")
        reads = reads.astype(bool)
    if behaviours.dtype.kind not in "iu" or behaviours.min() < 0 or behaviours.max() >= len(BEHAVIOURS):
        raise InputError(f"behaviours must be integers 0..{len(BEHAVIOURS) - 1}, in the order {', '.join(BEHAVIOURS)}.")
    own = np.eye(agents, dtype=bool)
    if (reads & own).any():
        warnings.warn("reads has agents that read themselves; these entries are ignored.", NoEffectWarning, 3)
    speaking = np.where(state.active[:, None], behaviours, KEEP)
    return reads & ~own & (speaking != KEEP)[:, :, None], speaking.astype(np.int64)


def settle(
    episodes: Episodes,
    answers: Ints,
    reads: Bools,
    behaviours: Ints,
    confidence: Floats | None = None,
    tokens: Ints | None = None,
) -> Episodes:
    """Return the debates after a round with these checked actions; an agent that keeps says nothing and costs nothing.

    Args:
        episodes: Before the round.
        answers: int64 (B, N), what each agent would answer if it spoke.
        reads: From `checked_actions`.
        behaviours: From `checked_actions`.
        confidence: float64 (B, N) of the new answers, or None.
        tokens: int64 (B, N) of the calls of this round, or None.
    """
    spoke = behaviours != KEEP
    answers = np.where(spoke, answers, episodes.answers)
    if confidence is not None and episodes.confidence is not None:
        confidence = np.where(spoke, confidence, episodes.confidence)
    return replace(
        episodes,
        answers=answers,
        flips=episodes.flips + (answers != episodes.answers),
        history=(*episodes.history, answers),
        t=episodes.t + 1,
        cost=episodes.cost + spoke + 0.5 * reads.sum(axis=2),
        calls=episodes.calls + spoke,
        confidence=confidence,
        tokens=None if episodes.tokens is None or tokens is None else episodes.tokens + tokens,
    )


def is_finished(state: State, rule: StopRule) -> Bools:
    """Return bool (B,): which debates the stop rule ends now.

    "unanimous": all agents give one answer. "stable": one answer has belief >= .8 and nobody moved in the last round.
    """
    if rule == "never":
        return np.zeros(state.batch, dtype=bool)
    if rule == "unanimous":
        first = state.answers[:, :1]
        same: Bools = ((state.answers == first) & (first != NO_ANSWER)).all(axis=1)
        return same
    if rule != "stable":
        raise InputError(f"early_stop must be 'never', 'unanimous' or 'stable', not {rule!r}.")
    if state.t == 0:
        return np.zeros(state.batch, dtype=bool)
    evidence = np.sum([option_counts(answers, state.options) for answers in state.history], axis=0)
    belief = evidence.max(axis=1) / (evidence.sum(axis=1) + state.options)
    settled: Bools = (belief >= _STABLE_BELIEF) & (state.history[-1] == state.history[-2]).all(axis=1)
    return settled


def relabel_options(episodes: Episodes, mapping: Ints) -> Episodes:
    """Return the same debates with option k called ``mapping[b, k]``; tie order and beliefs are carried along."""
    back = mapping.argsort(axis=1)

    def named(answers: Ints) -> Ints:
        rows = np.take_along_axis(mapping, np.maximum(answers, 0).reshape(len(mapping), -1), axis=1)
        return np.where(answers == NO_ANSWER, NO_ANSWER, rows.reshape(answers.shape))

    private = episodes.private
    if private is not None:
        index = back.reshape(len(back), *(1,) * (private.ndim - 2), back.shape[1])
        private = np.take_along_axis(private, np.broadcast_to(index, private.shape), axis=-1)
    return replace(
        episodes,
        answers=named(episodes.answers),
        truth=named(episodes.truth),
        tie=np.take_along_axis(episodes.tie, back, axis=1),
        history=tuple(named(answers) for answers in episodes.history),
        private=private,
    )


def permute_agents(episodes: Episodes, order: Ints) -> Episodes:
    """Return the same debates where agent i is the former agent ``order[i]``."""

    def moved(values: NDArray[Any] | None) -> Any:
        return None if values is None else values[:, order]

    private, similarity = episodes.private, episodes.similarity
    return replace(
        episodes,
        answers=moved(episodes.answers),
        agent_tie=moved(episodes.agent_tie),
        flips=moved(episodes.flips),
        history=tuple(moved(answers) for answers in episodes.history),
        cost=moved(episodes.cost),
        calls=moved(episodes.calls),
        confidence=moved(episodes.confidence),
        tokens=moved(episodes.tokens),
        similarity=None if similarity is None else similarity[:, order][:, :, order],
        private=moved(private) if private is not None and private.ndim == 3 else private,
    )
