"""Simulated agents: private beliefs of unequal skill, a shared lure, and a tunable pull towards what peers say.

Everything about the social response is a model, so results on it model that response and no language model. The right
option's index is drawn per episode, and every tie is broken by the episode's permutation. Reconstruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from steelyard.agents.dear.episodes import (
    Bools,
    Episodes,
    Floats,
    Ints,
    argmax_by,
    begin,
    checked_actions,
    random_order,
    settle,
)
from steelyard.errors import InputError

_OWN_PULL = 0.3  # on the agent's present answer
_ARGUMENT = 0.45  # weight of a peer's conviction in its answer
_CRITIQUE_PULL = 0.35  # share of the conformity that is left when only arguments are shown
_REVISE_ARGUMENT = 0.5
_GUMBEL = {"revise": 0.35, "critique": 0.25}
_RESAMPLE = 0.35


class Draws(NamedTuple):
    """All random numbers of a start: inject permuted ones to test equivariance exactly."""

    truth: Ints  # (B,)
    lure: Ints  # (B,), a wrong option
    stray: Ints  # (B, N), a wrong option each
    difficulty: Floats  # (B,)
    hit: Floats  # (B, N), uniform
    lured: Floats  # (B, N), uniform
    noise: Floats  # (B, N, K), standard normal
    strength: Floats  # (B, N), standard normal
    tie: Ints  # (B, K)


class SocialAgents:
    """One debate step of agents with private logits, shared by the simulator and the committee.

    Args:
        n_agents: N, at least 1.
        n_options: K, at least 2.
        conformity: Pull of peers' answers, the simulator's main knob; 3.5 is the headline, 0 the control.
        arguments: Whether peers' convictions reach a reader beside their answers.
        explore_scale: Gumbel scale of "explore" (a larger temperature; not in the paper's sources).
    """

    def __init__(
        self, n_agents: int, n_options: int, *, conformity: float, arguments: bool, explore_scale: float
    ) -> None:
        if n_agents < 1 or n_options < 2:
            raise InputError(f"n_agents = {n_agents} and n_options = {n_options}: at least 1 and 2 are needed.")
        if not (np.isfinite(conformity) and conformity >= 0):
            raise InputError(f"conformity must be at least 0, not {conformity}.")
        if not (np.isfinite(explore_scale) and explore_scale >= 0):
            raise InputError(f"explore_scale must be at least 0, not {explore_scale}.")
        self.n_agents = n_agents
        self.n_options = n_options
        self.conformity = conformity
        self.arguments = arguments
        self.explore_scale = explore_scale

    def advance(
        self,
        episodes: Episodes,
        reads: Bools,
        behaviours: Ints,
        noise: Floats | None = None,
        generator: np.random.Generator | None = None,
    ) -> Episodes:
        """Return the debates after one round.

        Args:
            episodes: From `start`.
            reads: bool (B, N, N), agent i reads j.
            behaviours: int (B, N), indices of BEHAVIOURS.
            noise: Standard Gumbel (B, N, K), or None to draw it from ``generator``.
            generator: Drawn from at full size whoever speaks, so that arms with equal seeds meet equal noise.

        Raises:
            InputError: Actions that cannot be used, or neither noise nor generator.
        """
        reads, behaviours = checked_actions(episodes, reads, behaviours)
        private = _beliefs(episodes)
        if noise is None:
            if generator is None:
                raise InputError("advance needs noise or generator.")
            noise = generator.gumbel(size=private.shape)
        elif noise.shape != private.shape:
            raise InputError(f"noise has shape {noise.shape}, but the debates ask for {private.shape}.")
        scales = np.array([0.0, _GUMBEL["revise"], _GUMBEL["critique"], self.explore_scale])
        logits = private + self._social(episodes, reads, behaviours)
        answers = argmax_by(logits + scales[behaviours][..., None] * noise, episodes.tie)
        return settle(episodes, answers, reads, behaviours, stated_confidence(logits, answers))

    def _social(self, episodes: Episodes, reads: Bools, behaviours: Ints) -> Floats:
        """Return what the own answer and the peers' add to the private logits, (B, N, K)."""
        private = _beliefs(episodes)
        given = (episodes.answers[..., None] == np.arange(episodes.options)).astype(float)
        followed = np.array([0.0, 1.0, _CRITIQUE_PULL, 1.0])[behaviours] * self.conformity
        read = reads.astype(float)
        degree = read.sum(axis=2)
        votes = read @ given  # whole numbers: the order of summation does not matter
        crowd = followed * np.minimum(degree, 3.0) / 1.5 / np.maximum(degree, 1.0)
        added: Floats = _OWN_PULL * given + crowd[..., None] * votes
        if not self.arguments:
            return added
        heard = np.array([0.0, _REVISE_ARGUMENT, 1.0, _REVISE_ARGUMENT])[behaviours]
        belief = np.take_along_axis(private, episodes.answers[..., None], axis=2)[..., 0]
        conviction = np.maximum(belief - mean_in_any_order(private), 0.0)
        said = sum_in_any_order(read[..., None] * (given * conviction[..., None])[:, None])
        added += _ARGUMENT * heard[..., None] * said
        return added

    def resample(self, episodes: Episodes, draw: int, generator: np.random.Generator) -> Ints:
        """Return further first answers: argmax of belief plus Gumbel noise of scale .35 (reconstruction)."""
        private = _beliefs(episodes)
        return argmax_by(private + _RESAMPLE * generator.gumbel(size=private.shape), episodes.tie)


class SimAgents(SocialAgents):
    """The reference simulator.

    An agent's private evidence points at the truth with probability sigmoid(skill - difficulty), otherwise at the
    question's common lure with probability ``lure``, else at a random wrong option; right reasons are slightly
    stronger on average. "explore" is modelled as more Gumbel noise.

    Args:
        n_agents: N.
        n_options: K.
        conformity: Pull of peers' answers: 3.5 headline, 1.6 milder, 0 none.
        arguments: Argument channel; off together with conformity 0 nothing can be gained by debating.
        lure: Probability that wrong evidence points at the common lure.
        skills: (N,), evenly spaced from -.3 to 1.3 by default.
        explore_scale: Gumbel scale of "explore".
    """

    def __init__(
        self,
        n_agents: int = 5,
        n_options: int = 4,
        *,
        conformity: float = 3.5,
        arguments: bool = True,
        lure: float = 0.55,
        skills: Sequence[float] | None = None,
        explore_scale: float = 0.8,
    ) -> None:
        super().__init__(n_agents, n_options, conformity=conformity, arguments=arguments, explore_scale=explore_scale)
        if not 0.0 <= lure <= 1.0:
            raise InputError(f"lure must be a probability, not {lure}.")
        self.lure = lure
        self.skills = np.linspace(-0.3, 1.3, n_agents) if skills is None else np.asarray(skills, dtype=float)
        if self.skills.shape != (n_agents,) or not np.isfinite(self.skills).all():
            raise InputError(f"skills must hold {n_agents} finite numbers, one an agent.")

    def draw(self, batch: int, generator: np.random.Generator) -> Draws:
        """Return the random numbers of ``batch`` episodes."""
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}.")
        agents, options = self.n_agents, self.n_options
        truth = generator.integers(options, size=batch)
        return Draws(
            truth=truth,
            lure=(truth + generator.integers(1, options, size=batch)) % options,
            stray=(truth[:, None] + generator.integers(1, options, size=(batch, agents))) % options,
            difficulty=generator.normal(0.15, 1.0, size=batch),
            hit=generator.random((batch, agents)),
            lured=generator.random((batch, agents)),
            noise=generator.normal(size=(batch, agents, options)),
            strength=generator.normal(size=(batch, agents)),
            tie=random_order(batch, options, generator),
        )

    def start(self, batch: int, generator: np.random.Generator, *, items: Sequence[int] | None = None) -> Episodes:
        """Return ``batch`` new debates; ``items`` is refused, as simulated questions are drawn, not stored."""
        if items is not None:
            raise InputError("items cannot be chosen: the simulator draws its questions.")
        return self.start_from(self.draw(batch, generator), generator)

    def start_from(self, draws: Draws, generator: np.random.Generator) -> Episodes:
        """Return the debates of these draws (``generator`` orders the agents for ties only)."""
        p_truth = 1.0 / (1.0 + np.exp(draws.difficulty[:, None] - self.skills))
        right = draws.hit < p_truth
        wrong = np.where(draws.lured < self.lure, draws.lure[:, None], draws.stray)
        target = np.where(right, draws.truth[:, None], wrong)
        strength = np.abs(np.where(right, 1.4, 1.1) + 0.6 * draws.strength) + 0.2
        logits = 0.3 * draws.noise
        logits += strength[..., None] * (target[..., None] == np.arange(self.n_options))
        answers = argmax_by(logits, draws.tie)
        return begin(
            answers,
            draws.truth,
            self.n_options,
            generator,
            private=logits,
            confidence=stated_confidence(logits, answers),
            tie=draws.tie,
        )


def stated_confidence(logits: Floats, answers: Ints) -> Floats:
    """Return softmax of ``logits`` (B, N, K) at ``answers`` (B, N), what a simulated agent says it is sure of."""
    raised = np.exp(np.sort(logits - logits.max(axis=-1, keepdims=True), axis=-1))
    chosen = np.take_along_axis(logits, answers[..., None], axis=-1)[..., 0]
    confidence: Floats = np.exp(chosen - logits.max(axis=-1)) / raised.sum(axis=-1)
    return confidence


def mean_in_any_order(values: Floats) -> Floats:
    """Return the mean over the last axis, equal to the last bit whatever the order of the options."""
    mean: Floats = np.sort(values, axis=-1).mean(axis=-1)
    return mean


def sum_in_any_order(values: Floats) -> Floats:
    """Return the sum over axis 2 of (B, N, N, K), equal to the last bit whatever the order of the agents."""
    total: Floats = np.sort(values, axis=2).sum(axis=2)
    return total


def _beliefs(episodes: Episodes) -> Any:
    if episodes.private is None or episodes.private.ndim != 3:
        raise InputError("episodes must come from this back end's start.")
    return episodes.private
