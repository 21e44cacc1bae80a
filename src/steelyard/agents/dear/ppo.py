"""Multi-agent PPO for the controller: shared policy, central critic, a clipped ratio per agent.

Source: reconstruction (the paper is known to train its two agents jointly by multi-agent reinforcement learning;
nothing else is stated). A general library's PPO, such as stable-baselines3's on ``DebateEnv.as_gymnasium()``, trains
one agent with one joint ratio, draws from the global random state and has no critic for several agents.
Every random number here comes from the generators that are passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.agents.dear.actions import Choice, log_likelihood
from steelyard.agents.dear.episodes import (
    Backend,
    Bools,
    Episodes,
    Floats,
    Ints,
    State,
    StopRule,
    is_finished,
    vote,
)
from steelyard.agents.dear.network import PolicyNet, Seen, ValueNet
from steelyard.agents.dear.reward import RewardFunction
from steelyard.agents.dear.settings import PPOSettings

Chooser = Callable[[State, np.random.Generator], tuple[Seen, Choice, Bools, Ints]]
"""(state, generator) -> observation, decisions as drawn, reads (B, N, N), behaviours (B, N) for the back end."""


class Trained(NamedTuple):
    """One iteration of training: episodes so far and, over the batch, what was paid, right votes and call-units."""

    episodes: int
    reward: float
    vote: float
    cost: float


class Rollout(NamedTuple):
    """One batch of debates as flat rows (one per debate and round in which it was active)."""

    seen: Seen
    behaviours: Tensor
    picks: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    summary: tuple[float, float, float]


class Trainer:
    """Policy, critic and optimizer of one training run.

    Args:
        policy: Shared by all agents; trained in place.
        critic: Central; thrown away afterwards.
        speaks: float32 (A,), 1 for behaviours that make a call.
        choose: Draws decisions by the present policy.
        reward: What is paid.
        settings: Clip, rates and sizes.
    """

    def __init__(
        self, policy: PolicyNet, critic: ValueNet, speaks: Tensor, choose: Chooser, reward: RewardFunction,
        settings: PPOSettings,
    ) -> None:  # fmt: skip
        self.policy, self.critic, self.speaks = policy, critic, speaks
        self.choose, self.reward, self.settings = choose, reward, settings
        self._entropy = settings.entropy
        self._weights = [*policy.parameters(), *critic.parameters()]
        self._optimizer = torch.optim.Adam(self._weights, lr=settings.learning_rate, eps=1e-5)

    def train(
        self, backend: Backend, *, episodes: int, rounds: int, lam: float, early_stop: StopRule,
        generator: np.random.Generator, items: Ints | None = None,
    ) -> list[Trained]:  # fmt: skip
        """Train on at least ``episodes`` new debates and return how it went, one row per iteration."""
        batch, history = self.settings.batch, []
        iterations = -(-episodes // batch)
        for turn in range(iterations):
            left = 1 - turn / iterations if self.settings.anneal else 1.0
            self._entropy = self.settings.entropy * left
            for group in self._optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * left
            drawn = None if items is None else items[generator.integers(len(items), size=batch)]
            start = backend.start(batch, generator, items=None if drawn is None else drawn.tolist())
            rollout = self.collect(backend, start, rounds, lam, early_stop, generator)
            if len(rollout.log_prob):
                self.update(rollout, generator)
            history.append(Trained((turn + 1) * batch, *rollout.summary))
        return history

    def collect(
        self, backend: Backend, start: Episodes, rounds: int, lam: float, early_stop: StopRule,
        generator: np.random.Generator,
    ) -> Rollout:  # fmt: skip
        """Play one batch to its end by the present policy."""
        state = stopped(start, early_stop)
        steps: list[tuple[Seen, Choice, Bools]] = []
        rewards, paid, ends = [], np.zeros(start.batch), []
        for turn in range(rounds):
            seen, choice, reads, behaviours = self.choose(state, generator)
            after = stopped(backend.advance(state, reads, behaviours, generator=generator), early_stop)
            ended = state.active & (~after.active | (turn == rounds - 1))
            reward = np.where(state.active[:, None], self.reward(state, after, ended, lam), 0.0)
            steps.append((seen, choice, state.active))
            rewards.append(reward)
            ends.append(ended)
            paid += reward.mean(axis=1)
            state = after
        values = [self._value(seen) for seen, _, _ in steps]
        advantages = gae(rewards, values, ends, self.settings.gamma, self.settings.gae)
        right = float((vote(state) == state.truth).mean())
        return self._flat(steps, values, advantages, (float(paid.mean()), right, float(state.cost.sum(axis=1).mean())))

    def update(self, rollout: Rollout, generator: np.random.Generator) -> None:
        """Take the clipped steps of all epochs on one batch."""
        rows, parts = len(rollout.log_prob), self.settings.minibatches
        spread = rollout.advantage.std(correction=0)
        advantage = (rollout.advantage - rollout.advantage.mean()) / (spread + 1e-8)
        for _ in range(self.settings.epochs):
            for part in np.array_split(generator.permutation(rows), min(parts, rows)):
                self._step(rollout, advantage, torch.from_numpy(part))

    def _step(self, rollout: Rollout, advantage: Tensor, rows: Tensor) -> None:
        settings = self.settings
        seen = Seen(*(values[rows] for values in rollout.seen))
        log_prob, entropy = log_likelihood(
            self.policy(seen), rollout.behaviours[rows], rollout.picks[rows], self.speaks
        )
        ratio, gain = (log_prob - rollout.log_prob[rows]).exp(), advantage[rows]
        held = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        error = nn.functional.mse_loss(self.critic(seen), rollout.target[rows])
        loss = -torch.minimum(ratio * gain, held * gain).mean() + settings.value_weight * error
        loss = loss - self._entropy * entropy.mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._weights, settings.max_grad_norm)
        self._optimizer.step()

    @torch.no_grad()
    def _value(self, seen: Seen) -> Floats:
        values: Floats = self.critic(seen).numpy().astype(np.float64)
        return values

    @torch.no_grad()
    def _flat(
        self, steps: list[tuple[Seen, Choice, Bools]], values: list[Floats], advantages: list[Floats],
        summary: tuple[float, float, float],
    ) -> Rollout:  # fmt: skip
        active = [live for _, _, live in steps]
        kept = [torch.from_numpy(np.flatnonzero(live)) for live in active]
        seen = Seen(*(
            torch.cat([getattr(one, name)[rows] for (one, _, _), rows in zip(steps, kept, strict=True)])
            for name in Seen._fields
        ))  # fmt: skip
        behaviours = _rows([choice.behaviours for _, choice, _ in steps], active)
        picks = _rows([choice.picks for _, choice, _ in steps], active)
        picks = picks if picks.dtype == torch.int64 else picks.to(torch.float32)
        log_prob, _ = log_likelihood(self.policy(seen), behaviours, picks, self.speaks)
        gained = _rows(advantages, active).to(torch.float32)
        target = gained + _rows(values, active).to(torch.float32)
        return Rollout(seen, behaviours, picks, log_prob, gained, target, summary)


def gae(rewards: list[Floats], values: list[Floats], ends: list[Bools], gamma: float, lam: float) -> list[Floats]:
    """Return the generalised advantage estimates of each round, float64 (B, N) each.

    Args:
        rewards: Of each round, (B, N).
        values: Critic's values before each round, (B, N).
        ends: bool (B,), whether the debate ended with that round; nothing after it counts.
        gamma: Discount.
        lam: The estimate's own decay.
    """
    found: list[Floats] = []
    following, next_value = np.zeros_like(rewards[-1]), np.zeros_like(rewards[-1])
    for reward, value, ended in zip(reversed(rewards), reversed(values), reversed(ends), strict=True):
        goes_on = ~ended[:, None]
        delta = reward + gamma * next_value * goes_on - value
        following = delta + gamma * lam * following * goes_on
        next_value = value
        found.append(following)
    return found[::-1]


def stopped(episodes: Episodes, rule: StopRule) -> Episodes:
    """Return the debates with those that the stop rule ends marked inactive."""
    changes: dict[str, Any] = {"active": episodes.active & ~is_finished(episodes, rule)}
    return type(episodes)(**{**vars(episodes), **changes})


def _rows(arrays: list[NDArray[Any]], active: list[Bools]) -> Tensor:
    return torch.from_numpy(np.concatenate([array[live] for array, live in zip(arrays, active, strict=True)]))
