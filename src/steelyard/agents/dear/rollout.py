"""Play whole debates: a back end, a controller, a stop rule and a vote, for B episodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from steelyard.agents.dear.core import conformity
from steelyard.agents.dear.episodes import (
    NO_ANSWER,
    Backend,
    Bools,
    Episodes,
    Floats,
    Ints,
    State,
    StopRule,
    VoteRule,
    is_finished,
    vote,
)
from steelyard.agents.dear.observation import Observation, observe
from steelyard.errors import InputError


class Controller(Protocol):
    """Decides who reads whom and how each agent answers.

    ``identity`` and ``evidence`` say what it wants to observe; ``early_stop`` and ``vote_rule`` how its debates end.
    A controller with ``uses_labels`` gets `Episodes` instead of `State` and is no fair contestant.
    """

    identity: bool
    evidence: bool
    early_stop: StopRule
    vote_rule: VoteRule
    uses_labels: bool

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        """Return ``reads`` bool (B, N, N) and ``behaviours`` int (B, N)."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Results of B debates.

    Attributes:
        answers0: First answers, int64 (B, N).
        answersT: Last answers, int64 (B, N).
        vote0: Vote over the first answers, int64 (B,).
        vote: Final vote, int64 (B,).
        truth: Right options, int64 (B,).
        cost: Call-units of a whole debate, float64 (B,).
        calls: Calls of a whole debate, int64 (B,).
        flips: Changes of answer, int64 (B, N).
        rounds: Rounds played before the debate stopped, int64 (B,).
        items: Item numbers of the back end, int64 (B,).
        tokens: Tokens of a whole debate, int64 (B,), or None.
        steps: Agent-steps computed: agents times rounds, summed over debates that were still going.
        reads: Who read whom in each round, (B, N, N) each; empty unless a trace was asked for.
        behaviours: (B, N) of each round, likewise.
        history: Answers of each round, likewise.
    """

    answers0: Ints
    answersT: Ints  # noqa: N815 - the end is round T
    vote0: Ints
    vote: Ints
    truth: Ints
    cost: Floats
    calls: Ints
    flips: Ints
    rounds: Ints
    items: Ints
    steps: int
    tokens: Ints | None = None
    reads: tuple[Bools, ...] = ()
    behaviours: tuple[Ints, ...] = ()
    history: tuple[Ints, ...] = ()

    @property
    def unparsable(self) -> float:
        """Share of agents without a usable answer at the end; they had no vote."""
        return float((self.answersT == NO_ANSWER).mean())

    def summary(self) -> dict[str, float]:
        """Return the means: accuracies, joint and conditional conformity, cost, calls, tokens where counted.

        ``wrong_majority_followed``: among first answers that were right while the first vote was wrong, the share that
        ended on that wrong answer (NaN if there are none). ``unanimous_wrong``: debates no controller can mend.
        """
        right = self.truth[:, None]
        change = conformity(self.answers0, self.answersT, self.truth)
        exposed = (self.answers0 == right) & (self.vote0 != self.truth)[:, None] & (self.vote0 != NO_ANSWER)[:, None]
        followed = exposed & (self.answersT == self.vote0[:, None])
        same = ((self.answers0 == self.answers0[:, :1]) & (self.answers0 != NO_ANSWER)).all(axis=1)
        spent = {} if self.tokens is None else {"tokens": float(self.tokens.mean())}
        return {
            **spent,
            "vote_accuracy": float((self.vote == self.truth).mean()),
            "individual_accuracy": float((self.answersT == right).mean()),
            "initial_accuracy": float((self.answers0 == right).mean()),
            "harmful": change.harmful,
            "beneficial": change.beneficial,
            "harmful_rate": change.harmful_rate,
            "beneficial_rate": change.beneficial_rate,
            "wrong_majority_followed": float(followed.sum() / exposed.sum()) if exposed.any() else float("nan"),
            "unanimous_wrong": float((same & (self.answers0[:, 0] != self.truth)).mean()),
            "cost": float(self.cost.mean()),
            "calls": float(self.calls.mean()),
            "rounds": float(self.rounds.mean()),
        }


def rollout(
    backend: Backend,
    controller: Controller,
    *,
    batch: int,
    rounds: int = 3,
    generator: np.random.Generator,
    early_stop: StopRule | None = None,
    items: Sequence[int] | None = None,
    trace: bool = False,
) -> Outcome:
    """Start ``batch`` debates and play them.

    Questions, the agents' noise and the controller's own draws come from three streams spawned from ``generator``, so
    two controllers with equal seeds meet the same questions and noise.

    Args:
        backend: The agents.
        controller: Who reads whom, and how.
        batch: B.
        rounds: T, at least 0.
        generator: Source of all randomness.
        early_stop: Overrides the controller's own rule.
        items: Items of a back end with stored questions.
        trace: Keep who read whom in each round.
    """
    opening, noise, policy = generator.spawn(3)
    episodes = backend.start(batch, opening, items=items)
    return play(
        backend, episodes, controller, rounds=rounds, noise=noise, policy=policy, early_stop=early_stop, trace=trace
    )


def play(
    backend: Backend,
    episodes: Episodes,
    controller: Controller,
    *,
    rounds: int,
    noise: np.random.Generator,
    policy: np.random.Generator,
    early_stop: StopRule | None = None,
    trace: bool = False,
) -> Outcome:
    """Play started debates to their end; see `rollout`."""
    if rounds < 0:
        raise InputError(f"rounds must be at least 0, not {rounds}.")
    rule = controller.early_stop if early_stop is None else early_stop
    first, played = episodes, np.zeros(episodes.batch, dtype=np.int64)
    made: list[tuple[Bools, Ints]] = []
    for _ in range(rounds):
        episodes = replace(episodes, active=episodes.active & ~is_finished(episodes, rule))
        if not episodes.active.any():
            break
        played += episodes.active
        seen = observe(episodes, rounds, identity=controller.identity, evidence=controller.evidence)
        view = episodes if controller.uses_labels else episodes.public()
        reads, behaviours = controller.decide(seen, view, policy)
        if trace:
            made.append((reads & episodes.active[:, None, None], np.where(episodes.active[:, None], behaviours, 0)))
        episodes = backend.advance(episodes, reads, behaviours, generator=noise)
    return Outcome(
        answers0=first.answers,
        answersT=episodes.answers,
        vote0=vote(first, "majority"),
        vote=vote(episodes, controller.vote_rule),
        truth=episodes.truth,
        cost=episodes.cost.sum(axis=1),
        calls=episodes.calls.sum(axis=1),
        flips=episodes.flips,
        rounds=played,
        items=episodes.items,
        steps=int(played.sum()) * episodes.n_agents,
        tokens=None if episodes.tokens is None else episodes.tokens.sum(axis=1),
        reads=tuple(reads for reads, _ in made),
        behaviours=tuple(behaviours for _, behaviours in made),
        history=episodes.history if trace else (),
    )
