"""Federated continuous control that stands in for a robot benchmark: inverted pendulums of other gravity and sign.

Eight tasks: gravity times .7, 1, 1.3 or 1.6, and the force's sign kept or flipped. The sign is the planted group: a
head that balances one group pushes the other over, while the trunk can serve both. The clients are the Q-learners of
the MiniGrid tasks on a few levels of force (reconstruction: the paper's learner for this domain is not in its
abstract; a linear Q head over forces has the same geometry, its columns in the opposite order).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.fed.gadaphead.dqn import DqnSettings
from steelyard.fed.gadaphead.features import Array

ENV_ID = "InvertedPendulum-v5"
GRAVITIES = (0.7, 1.0, 1.3, 1.6)
FORCES = (-3.0, -1.0, 0.0, 1.0, 3.0)
REWARD = 0.01
"""What a step upright is worth, so that discounted values stay near 1; the library counts 1."""
SCALE = (1.0, 5.0, 0.5, 0.5)
"""Factors of position, angle, velocity and angular velocity in an observation: the angle's limit .2 becomes 1."""

SETTINGS = DqnSettings(
    hidden=(64, 64),
    discount=0.99,
    horizon=3,
    update_every=2,
    target_every=250,
    exploration=2_000,
    ridge=0.1,
    pseudo_reward=0.0,
    buffer=10_000,
)
"""Settings of a client, chosen on tuning seeds."""


@dataclass(frozen=True)
class PendulumTask:
    """A task: gravity relative to the library's, and the sign (+1 or -1) of the force.

    Attributes:
        name: of the client.
        gravity: factor of the gravity, positive.
        sign: +1 keeps the force, -1 flips it; the planted group.
        max_steps: length of an episode.
    """

    name: str
    gravity: float
    sign: int
    max_steps: int = 500

    def __post_init__(self) -> None:
        """Refuse a task that is none."""
        if not (np.isfinite(self.gravity) and self.gravity > 0.0):
            raise InputError(f"task {self.name!r}: gravity must be positive, got {self.gravity}")
        if self.sign not in (-1, 1):
            raise InputError(f"task {self.name!r}: sign must be 1 or -1, got {self.sign}")
        if self.max_steps < 1:
            raise InputError(f"task {self.name!r}: max_steps must be at least 1, got {self.max_steps}")

    @property
    def group(self) -> int:
        """Return the number of the planted group."""
        return 0 if self.sign == 1 else 1


def pendulum_tasks(max_steps: int = 500) -> tuple[PendulumTask, ...]:
    """Return the eight tasks, group by group."""
    return tuple(
        PendulumTask(f"g{gravity:g}{'+' if sign == 1 else '-'}", gravity, sign, max_steps)
        for sign in (1, -1)
        for gravity in GRAVITIES
    )


class PendulumEnv:
    """An inverted pendulum on five levels of force, with a scaled float32 observation (4,)."""

    inputs = len(SCALE)
    actions = len(FORCES)
    active: int | None = None

    def __init__(self, task: PendulumTask) -> None:
        self.task = task
        self._env = make_pendulum()
        self._env.model.opt.gravity[2] *= task.gravity
        self._forces = [np.array([task.sign * force]) for force in FORCES]
        self._scale = np.array(SCALE)
        self._steps = 0

    def fresh(self) -> PendulumEnv:
        """Return another environment of the same task."""
        return PendulumEnv(self.task)

    def reset(self, generator: np.random.Generator) -> Array:
        """Start an episode drawn from the generator."""
        self._env.np_random = generator
        observation, _ = self._env.reset()
        self._steps = 0
        return self._scaled(observation)

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Push with one of the levels of force."""
        observation, reward, terminated, _, _ = self._env.step(self._forces[action])
        self._steps += 1
        return self._scaled(observation), REWARD * float(reward), bool(terminated), self._steps >= self.task.max_steps

    def state(self) -> None:
        """Return None: a greedy episode is run to its end."""
        return

    def _scaled(self, observation: Array) -> Array:
        scaled: Array = (observation * self._scale).astype(np.float32)
        return scaled


def make_pendulum() -> Any:
    """Return the unwrapped library environment, without its time limit."""
    import gymnasium

    return gymnasium.make(ENV_ID, disable_env_checker=True).unwrapped
