"""Deep Q-learning clients for ``federated_rounds``: a linear Q head on a trunk that is shared with the server.

A client keeps what is its own between rounds (environment, replay, optimiser moments of the trunk, step counts) and
takes trunk and head from the server. Right after it took them it forgets the head's optimiser moments and copies the
network to its target network, because both belong to the head before it was mixed. Beside the head a client uploads
the sandwich variance of an LSTD refit on its replay and the features' second moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from steelyard.errors import InputError
from steelyard.fed.gadaphead.features import Adam, Array, HeadRefit, Network, Part, dense_inputs, refit_head
from steelyard.fed.gadaphead.rounds import ClientUpdate


class DiscreteEnv(Protocol):
    """An environment of finitely many actions, whose observation is a float vector or a list of active inputs."""

    inputs: int
    actions: int
    active: int | None

    def fresh(self) -> DiscreteEnv:
        """Return another environment of the same task, e.g. to evaluate beside an episode that is under way."""
        ...

    def reset(self, generator: np.random.Generator) -> Array:
        """Start an episode, drawn from the generator, and return its first observation."""
        ...

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Act; return observation, reward, whether the episode ended, and whether its time ran out."""
        ...

    def state(self) -> Hashable | None:
        """Return the whole state where transitions are deterministic (time aside), else None."""
        ...


@dataclass(frozen=True)
class DqnSettings:
    """Settings of a Q-learning client; the defaults were chosen on tuning seeds of the MiniGrid tasks.

    Attributes:
        hidden: widths of the trunk's layers.
        steps: environment steps of a round.
        learning_rate: of Adam, for trunk and head.
        discount: per environment step.
        horizon: steps of reward that a target sums before it bootstraps (n-step targets).
        batch: transitions of an update.
        update_every: environment steps between updates.
        target_every: environment steps between copies to the target network.
        buffer: transitions of the replay.
        warmup: transitions before the first update.
        exploration: environment steps over which the share of random actions falls from 1 to ``epsilon``.
        epsilon: share of random actions after that.
        prox_mu: weight of (mu / 2) times the squared distance to what the server sent (FedProx), 0 for none.
        alternate: whether a round trains first the head on a frozen trunk, then the trunk under a frozen head (FedRep).
        head_share: share of the round that is given to the head when alternating.
        refit_samples: transitions of the replay minibatch that the variance is computed on.
        ridge: relative ridge of the refit.
        whole_replay: scale the variance of the minibatch's refit by its share of the replay, because the head was
            trained on all of it. On a tuning stream it then is 1 to 12 times the spread of heads after one more round
            from the same state; False, the variance of a fit on the minibatch alone, is 10 to 100 times that.
        pseudo_reward: size of the residual that the refit adds as though seen once (see ``refit_head``).
    """

    hidden: tuple[int, ...] = (64, 32)
    steps: int = 500
    learning_rate: float = 1e-3
    discount: float = 0.97
    horizon: int = 3
    batch: int = 64
    update_every: int = 4
    target_every: int = 250
    buffer: int = 10_000
    warmup: int = 64
    exploration: int = 3_000
    epsilon: float = 0.05
    prox_mu: float = 0.0
    alternate: bool = False
    head_share: float = 0.5
    refit_samples: int = 512
    ridge: float = 1e-2
    pseudo_reward: float = 1.0
    whole_replay: bool = True

    def __post_init__(self) -> None:
        """Refuse settings outside their range."""
        for name in ("steps", "horizon", "batch", "update_every", "target_every", "buffer", "warmup", "refit_samples"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.discount <= 1.0:
            raise InputError(f"discount must lie in (0, 1], got {self.discount}")
        for name in ("epsilon", "head_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.prox_mu < 0.0 or self.exploration < 0:
            raise InputError(f"prox_mu and exploration must not be negative, got {self.prox_mu} and {self.exploration}")


class Batch(NamedTuple):
    """Transitions: observations (n, ...), actions, summed rewards, observations after, discounts (0 at an end)."""

    observations: Array
    actions: Array
    rewards: Array
    after: Array
    discounts: Array


class Replay:
    """Ring buffer of n-step transitions."""

    def __init__(self, capacity: int, example: Array) -> None:
        self.capacity, self.size, self._next = capacity, 0, 0
        dtype = np.int16 if example.dtype.kind in "iu" else np.float32
        self._data = Batch(
            np.zeros((capacity, *example.shape), dtype),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, *example.shape), dtype),
            np.zeros(capacity, np.float32),
        )

    def add(self, observation: Array, action: int, reward: float, after: Array, discount: float) -> None:
        """Store a transition in the place of the oldest."""
        place = self._next
        for column, value in zip(self._data, (observation, action, reward, after, discount), strict=True):
            column[place] = value
        self._next = (place + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, count: int, generator: np.random.Generator) -> Batch:
        """Draw transitions with replacement."""
        return self.take(generator.integers(0, self.size, count))

    def take(self, places: Array) -> Batch:
        """Return the transitions at the given places."""
        return Batch(*(column[places] for column in self._data))


class Runner:
    """One environment's running episode, written to a replay as n-step transitions."""

    def __init__(self, env: DiscreteEnv, replay: Replay, discount: float, horizon: int) -> None:
        self.env, self.replay, self.discount, self.horizon = env, replay, discount, horizon
        self.observation: Array | None = None
        self.pending: deque[tuple[Array, int, float]] = deque()

    def step(self, network: Network, explore: bool, random_action: int, generator: np.random.Generator) -> None:
        """Act once, greedily or at random, and store what became complete."""
        if self.observation is None:
            self.observation = self.env.reset(generator)
        action = random_action if explore else int(network.value(self.observation).argmax())
        after, reward, terminated, truncated = self.env.step(action)
        self.pending.append((self.observation, action, reward))
        if len(self.pending) == self.horizon:
            self._store(after, terminated)
        if terminated or truncated:
            while self.pending:
                self._store(after, terminated)
        self.observation = None if terminated or truncated else after

    def _store(self, after: Array, terminated: bool) -> None:
        total, factor = 0.0, 1.0
        for _, _, reward in self.pending:
            total += factor * reward
            factor *= self.discount
        observation, action, _ = self.pending.popleft()
        self.replay.add(observation, action, total, after, 0.0 if terminated else factor)


class QLearner:
    """Network, target network, optimiser and the update rule of Q-learning with n-step targets and a Huber loss."""

    def __init__(self, inputs: int, actions: int, settings: DqnSettings) -> None:
        self.settings = settings
        self.network = Network(inputs, settings.hidden, actions)
        self.target = Network(inputs, settings.hidden, actions)
        self.anchor = self.network.flat.copy()
        self.gradient = np.zeros_like(self.network.flat)
        self.adam = Adam(self.network, settings.learning_rate)

    def receive(self, trunk: Mapping[str, Array], head: Array) -> None:
        """Take the server's parameters: head moments reset, target network re-synchronised."""
        self.network.load(trunk, head)
        self.adam.reset("head")
        self.synchronise()
        self.anchor[:] = self.network.flat

    def synchronise(self) -> None:
        """Copy the network to its target network."""
        self.target.flat[:] = self.network.flat

    def update(self, batch: Batch, part: Part = "all") -> float:
        """Take one optimiser step on a batch and return its mean absolute temporal-difference error."""
        rows = np.arange(len(batch.actions))
        goal = batch.rewards + batch.discounts * self.target.values(batch.after).max(axis=1)
        layers = self.network.activations(dense_inputs(batch.observations, self.network.inputs))
        values = self.network.outputs_of(layers[-1])
        error = values[rows, batch.actions] - goal
        slope = np.zeros_like(values)
        slope[rows, batch.actions] = np.clip(error, -1.0, 1.0) / len(rows)
        self.network.backward(layers, slope, self.gradient)
        if self.settings.prox_mu:
            self.gradient += self.settings.prox_mu * (self.network.flat - self.anchor)
        self.adam.step(self.gradient, part)
        return float(np.abs(error).mean())

    def refit(self, batch: Batch) -> HeadRefit:
        """Return variance and second moment of the head's refit on transitions."""
        return refit_head(
            self.network.features(batch.observations),
            batch.actions,
            batch.rewards.astype(np.float64),
            self.network.features(batch.after),
            self.network.values(batch.after).argmax(axis=1),
            batch.discounts.astype(np.float64),
            self.network.outputs,
            ridge=self.settings.ridge,
            pseudo_reward=self.settings.pseudo_reward,
        )


def exploration_rates(settings: DqnSettings, done: int, count: int) -> Array:
    """Return the shares of random actions (count,) for the steps after ``done`` ones."""
    progress = (done + np.arange(count)) / max(settings.exploration, 1)
    rates: Array = np.maximum(settings.epsilon, 1.0 - (1.0 - settings.epsilon) * progress)
    return rates


class DqnClient:
    """A client of ``federated_rounds`` that learns one environment; deterministic given the rounds' generators.

    Args:
        env: the client's environment.
        settings: of the learner.
    """

    def __init__(self, env: DiscreteEnv, settings: DqnSettings | None = None) -> None:
        self.env, self.settings = env, settings or DqnSettings()
        self.learner = QLearner(env.inputs, env.actions, self.settings)
        self.runner: Runner | None = None
        self.n_steps = 0

    def initial(self, generator: np.random.Generator) -> tuple[dict[str, Array], Array]:
        """Return a freshly drawn trunk and head for ``federated_rounds(initial=...)``."""
        network = Network(self.env.inputs, self.settings.hidden, self.env.actions)
        network.initialise(generator, self.env.active)
        return network.trunk(), network.head.copy()

    def __call__(
        self, trunk: Mapping[str, Array], head: Array, round: int, generator: np.random.Generator
    ) -> ClientUpdate:
        """Train for one round from the server's trunk and head.

        Raises:
            InputError: a trunk or head of another shape than this client's, or with values that are not finite.
        """
        self.learner.receive(trunk, head)
        runner = self._running(generator)
        error = self._train(runner, generator)
        count = min(self.settings.refit_samples, runner.replay.size)
        refit = self.learner.refit(runner.replay.take(generator.choice(runner.replay.size, count, replace=False)))
        after = self.learner.network.head.copy()
        return ClientUpdate(
            trunk=self.learner.network.trunk(),
            head=after,
            update=after - head,
            variance=refit.variance * (count / runner.replay.size if self.settings.whole_replay else 1.0),
            n_steps=self.settings.steps,
            feature_second_moment=refit.second_moment,
            metrics={"td_error": error},
        )

    def _running(self, generator: np.random.Generator) -> Runner:
        if self.runner is None:
            observation = self.env.reset(generator)
            replay = Replay(self.settings.buffer, observation)
            self.runner = Runner(self.env, replay, self.settings.discount, self.settings.horizon)
            self.runner.observation = observation
        return self.runner

    def _train(self, runner: Runner, generator: np.random.Generator) -> float:
        chosen, learner, errors = self.settings, self.learner, [0.0]
        explore = generator.random(chosen.steps) < exploration_rates(chosen, self.n_steps, chosen.steps)
        actions = generator.integers(0, self.env.actions, chosen.steps)
        for step in range(chosen.steps):
            runner.step(learner.network, bool(explore[step]), int(actions[step]), generator)
            self.n_steps += 1
            if self.n_steps % chosen.update_every == 0 and runner.replay.size >= chosen.warmup:
                errors.append(learner.update(runner.replay.sample(chosen.batch, generator), self._part(step)))
            if self.n_steps % chosen.target_every == 0:
                learner.synchronise()
        return float(np.mean(errors[1:] or errors))

    def _part(self, step: int) -> Part:
        if not self.settings.alternate:
            return "all"
        return "head" if step < self.settings.head_share * self.settings.steps else "trunk"


class Centralised:
    """The reference that is not federated: one network on all tasks' data, with the task as one-hot input.

    One ``advance`` makes as many environment steps and updates as a round of all clients together.
    """

    def __init__(
        self, envs: Sequence[DiscreteEnv], settings: DqnSettings | None, generator: np.random.Generator
    ) -> None:
        check_alike(envs)
        self.settings = settings or DqnSettings()
        self.envs = [TaskInput(env, task, len(envs)) for task, env in enumerate(envs)]
        first = self.envs[0]
        self.learner = QLearner(first.inputs, first.actions, self.settings)
        self.learner.network.initialise(generator, first.active)
        self.learner.synchronise()
        starts = [env.reset(generator) for env in self.envs]
        self.replay = Replay(self.settings.buffer * len(envs), starts[0])
        self.runners = [Runner(env, self.replay, self.settings.discount, self.settings.horizon) for env in self.envs]
        for runner, start in zip(self.runners, starts, strict=True):
            runner.observation = start
        self.n_steps = 0

    def advance(self, generator: np.random.Generator) -> None:
        """Train as long as a round of the federated clients."""
        chosen, count = self.settings, len(self.runners)
        explore = (
            generator.random((chosen.steps, count)) < exploration_rates(chosen, self.n_steps, chosen.steps)[:, None]
        )
        actions = generator.integers(0, self.envs[0].actions, (chosen.steps, count))
        for step in range(chosen.steps):
            for task, runner in enumerate(self.runners):
                runner.step(self.learner.network, bool(explore[step, task]), int(actions[step, task]), generator)
            self.n_steps += 1
            if self.n_steps % chosen.update_every == 0 and self.replay.size >= chosen.warmup:
                for _ in range(count):
                    self.learner.update(self.replay.sample(chosen.batch, generator))
            if self.n_steps % chosen.target_every == 0:
                self.learner.synchronise()

    def evaluate(self, task: int, generator: np.random.Generator, episodes: int = 20) -> Evaluation:
        """Evaluate the network greedily on one task."""
        return evaluate(self.envs[task], self.learner.network, generator, episodes)


class TaskInput:
    """An environment whose observation also holds, as one-hot input, which task it is."""

    def __init__(self, env: DiscreteEnv, task: int, count: int) -> None:
        self.env, self.task, self.count = env, task, count
        self.inputs, self.actions = env.inputs + count, env.actions
        self.active = None if env.active is None else env.active + 1

    def _extend(self, observation: Array) -> Array:
        if observation.dtype.kind in "iu":
            return np.append(observation, self.env.inputs + self.task)
        hot = np.zeros(self.count, observation.dtype)
        hot[self.task] = 1.0
        return np.concatenate([observation, hot])

    def fresh(self) -> TaskInput:
        """Return another environment of the same task."""
        return TaskInput(self.env.fresh(), self.task, self.count)

    def reset(self, generator: np.random.Generator) -> Array:
        """Start an episode."""
        return self._extend(self.env.reset(generator))

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Act."""
        after, reward, terminated, truncated = self.env.step(action)
        return self._extend(after), reward, terminated, truncated

    def state(self) -> Hashable | None:
        """Return the environment's state."""
        return self.env.state()


class Evaluation(NamedTuple):
    """Greedy episodes: mean return, share of episodes with a positive return, and each return."""

    mean_return: float
    success_rate: float
    returns: tuple[float, ...]


def check_alike(envs: Sequence[DiscreteEnv]) -> None:
    """Refuse environments whose heads could not be averaged.

    Raises:
        InputError: no environment, or inputs or action spaces of different size, naming the two.
    """
    if not envs:
        raise InputError("envs: at least one environment is needed")
    for place, env in enumerate(envs):
        for name in ("inputs", "actions"):
            if getattr(env, name) != getattr(envs[0], name):
                raise InputError(
                    f"environment {place} has {getattr(env, name)} {name} and environment 0 has "
                    f"{getattr(envs[0], name)}: their heads cannot be averaged; use one size or groups of equal size"
                )


def evaluate(env: DiscreteEnv, network: Network, generator: np.random.Generator, episodes: int = 20) -> Evaluation:
    """Run greedy episodes; equal generators give equal episodes, so that arms are compared on the same ones.

    A greedy policy that comes back to a state of a deterministic environment stays in that loop until the time is
    over without a reward, because in such environments here only the last step has one; the episode is cut short.
    The episodes run in an environment of their own: one that a client trains in is not disturbed.
    """
    env, returns = env.fresh(), list[float]()
    for _ in range(episodes):
        observation, total, seen = env.reset(generator), 0.0, set[Hashable]()
        while True:
            state = env.state()
            if state is not None and state in seen:
                break
            seen.add(state)
            observation, reward, terminated, truncated = env.step(int(network.value(observation).argmax()))
            total += reward
            if terminated or truncated:
                break
        returns.append(float(total))
    return Evaluation(float(np.mean(returns)), float(np.mean([value > 0.0 for value in returns])), tuple(returns))


def evaluate_head(
    env: DiscreteEnv,
    trunk: Mapping[str, Array],
    head: Array,
    hidden: Sequence[int],
    generator: np.random.Generator,
    episodes: int = 20,
) -> Evaluation:
    """Evaluate a trunk and head as they come from the server."""
    network = Network(env.inputs, hidden, env.actions)
    network.load(trunk, head)
    return evaluate(env, network, generator, episodes)


def random_policy(env: DiscreteEnv, generator: np.random.Generator, episodes: int = 20) -> Evaluation:
    """Return the floor: episodes of uniformly random actions."""
    returns: list[float] = []
    for _ in range(episodes):
        env.reset(generator)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated = env.step(int(generator.integers(0, env.actions)))
            total += reward
            over = terminated or truncated
        returns.append(float(total))
    return Evaluation(float(np.mean(returns)), float(np.mean([value > 0.0 for value in returns])), tuple(returns))
