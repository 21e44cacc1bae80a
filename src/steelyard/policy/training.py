"""Training a small policy on text games with any rule of credit: one on-policy gradient an iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from steelyard import rng
from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.anchors import AnchorKey, AnchorWrapper
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import Floats
from steelyard.policy.rollouts import Episode, Policy, check_count, collect
from steelyard.policy.steps import StepBatch

Estimator = Callable[[StepBatch], Floats | Mapping[str, Floats]]
Wrap = Callable[[TextEnv], TextEnv]
HISTORY = "history"


class Game(Protocol):
    """Something that can be played."""

    def make_env(self, max_steps: int = 30, reward: float = 1.0) -> TextEnv:
        """Return an environment that plays it."""
        ...


class Evaluation(NamedTuple):
    """How a policy did: the iteration, the share of games that it won, and its episodes."""

    iteration: int
    success: float
    episodes: list[Episode]


class Iteration(NamedTuple):
    """What an iteration was made of, for those who want to look: its number, steps, episodes and advantages."""

    number: int
    batch: StepBatch
    episodes: list[Episode]
    advantages: Floats | Mapping[str, Floats]


@dataclass
class TrainingLog:
    """What a training came to.

    Attributes:
        train_success: Share of rollouts that won, one an iteration.
        evaluations: On the games that were held out.
        steps: Commands given in training.
        advantage_seconds: Processor time spent on advantages.
        seconds: Processor time of the whole training.
    """

    train_success: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    steps: int = 0
    advantage_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def area(self) -> float:
        """Mean success in training over all iterations: the area under the learning curve."""
        return float(np.mean(self.train_success)) if self.train_success else 0.0

    @property
    def success(self) -> float:
        """Share of held-out games won in the last evaluation."""
        return self.evaluations[-1].success if self.evaluations else float("nan")


@dataclass(frozen=True)
class Streams:
    """Where the randomness of a training comes from; trainings with the same streams pair."""

    tasks: np.random.Generator
    actions: np.random.Generator
    evaluation: np.random.Generator

    @classmethod
    def of(cls, seed: int, root: str = "training") -> Streams:
        """Return the three streams of a seed; what is no whole number raises InputError."""
        if not isinstance(seed, int | np.integer):
            raise InputError(f"seed must be a whole number, got {seed!r}")
        return cls(*(rng.generator(root, name, seed) for name in ("tasks", "actions", "evaluation")))


def anchored(env: TextEnv, anchor: AnchorKey | str) -> AnchorWrapper:
    """Return ``env`` with the anchor of that name: "state", "obs", "history" (one turn of it), or a function."""
    if anchor == HISTORY:
        return AnchorWrapper(env, "obs", history=2)
    return AnchorWrapper(env, anchor)  # type: ignore[arg-type]


def train_household(
    policy: Policy,
    games: Sequence[Game],
    estimator: Estimator,
    *,
    iterations: int = 30,
    tasks: int = 8,
    rollouts: int = 8,
    max_steps: int = 30,
    anchor: AnchorKey | str = "state",
    wrap: Wrap | None = None,
    reward: float = 10.0,
    temperature: float = 1.0,
    seed: int = 0,
    streams: Streams | None = None,
    evaluate_on: Sequence[Game] = (),
    evaluate_every: int | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingLog:
    """Train ``policy`` in place: in each iteration a few games, several rollouts of each, one step up the gradient.

    Args:
        policy: Learns; `LogLinearPolicy`, `TransformerPolicy`, ARC's `CommitmentPolicy`, or your own.
        games: To train on; those of an iteration are drawn without replacement.
        estimator: From the steps of an iteration to their advantages, (S,) or one such array a segment.
        iterations: How many.
        tasks: Games an iteration.
        rollouts: Episodes a game.
        max_steps: Of an episode.
        anchor: What steps are grouped by: "state", "obs", "history" or a function, as :class:`AnchorWrapper` takes it.
        wrap: Wraps each environment, below the anchor.
        reward: Of winning.
        temperature: Of rollouts, above 0: what is played without chance has no gradient.
        seed: Of the streams, where none are given.
        streams: Of the draws of tasks, of rollouts and of evaluations. Every evaluation begins the last one
            anew, so that evaluations pair with each other, however often a training makes them.
        evaluate_on: Games that are played at the end.
        evaluate_every: Play them after every so many iterations, too.
        on_iteration: Sees every iteration.
        progress: Called with (iterations done, all).

    Raises:
        InputError: A number out of range, or fewer games than tasks.
    """
    counts = {"iterations": iterations, "tasks": tasks, "rollouts": rollouts, "max_steps": max_steps}
    for name, number in (counts if evaluate_every is None else counts | {"evaluate_every": evaluate_every}).items():
        check_count(name, number)
    check_number("temperature", temperature, low=0.0, above=True)
    check_number("reward", reward)
    if len(games) < tasks:
        raise InputError(f"games: {len(games)} are fewer than the {tasks} tasks of an iteration")
    streams = streams or Streams.of(seed)
    log, began = TrainingLog(), time.process_time()

    def environment(game: Game) -> TextEnv:
        env = game.make_env(max_steps=max_steps, reward=reward)
        return anchored(env if wrap is None else wrap(env), anchor)

    for number in range(1, iterations + 1):
        drawn = streams.tasks.choice(len(games), tasks, replace=False).tolist()
        envs = [(task, environment(games[task])) for task in drawn for _ in range(rollouts)]
        episodes = collect(envs, policy, streams.actions, temperature=temperature)
        done = _learned(number, episodes, policy, estimator, log)
        if on_iteration is not None:
            on_iteration(done)
        if len(evaluate_on) and (number == iterations or (evaluate_every and number % evaluate_every == 0)):
            draws = deepcopy(streams.evaluation)
            rate, played = evaluate(policy, evaluate_on, draws, max_steps=max_steps, wrap=wrap)
            log.evaluations.append(Evaluation(number, rate, played))
        if progress is not None:
            progress(number, iterations)
    log.seconds = time.process_time() - began
    return log


def _learned(number: int, episodes: list[Episode], policy: Policy, estimator: Estimator, log: TrainingLog) -> Iteration:
    """Take one step up the gradient and write down what it was made of."""
    batch = StepBatch.from_episodes(episodes)
    started = time.process_time()
    advantages = estimator(batch)
    log.advantage_seconds += time.process_time() - started
    for name, values in (advantages if isinstance(advantages, Mapping) else {"action": advantages}).items():
        if np.shape(values) != (len(batch),) or not np.isfinite(values).all():
            raise InputError(f"estimator: it must return one finite number a step, ({len(batch)},), for {name}")
    policy.ascend([step["trace"] for episode in episodes for step in episode], advantages)
    log.train_success.append(float(np.mean([episode[-1]["success"] for episode in episodes])))
    log.steps += len(batch)
    return Iteration(number, batch, episodes, advantages)


def evaluate(
    policy: Policy,
    games: Sequence[Game],
    generator: np.random.Generator,
    *,
    temperature: float = 0.4,
    max_steps: int = 30,
    wrap: Wrap | None = None,
) -> tuple[float, list[Episode]]:
    """Play every game once and return the share won, and the episodes.

    Args:
        policy: Plays.
        games: What is played.
        generator: Of the policy's choices.
        temperature: Of them; 0 takes the likeliest.
        max_steps: Of an episode.
        wrap: Wraps each environment.

    Raises:
        InputError: No game, or a number out of range.
    """
    check_count("max_steps", max_steps)
    if not len(games):
        raise InputError("games: there is none to play")
    envs = [game.make_env(max_steps=max_steps) for game in games]
    played = collect(
        [(place, env if wrap is None else wrap(env)) for place, env in enumerate(envs)],
        policy,
        generator,
        temperature=temperature,
    )
    return float(np.mean([episode[-1]["success"] for episode in played])), played
