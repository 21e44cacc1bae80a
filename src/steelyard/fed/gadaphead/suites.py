"""The reinforcement learners of the bench: pairs of clients on MiniGrid levels, and pendulums of two signs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from steelyard.contracts import CellInput
from steelyard.fed.gadaphead import control
from steelyard.fed.gadaphead.dqn import Centralised, DiscreteEnv, DqnClient, DqnSettings, evaluate, random_policy
from steelyard.fed.gadaphead.linear import Ints
from steelyard.fed.gadaphead.minigrid import GridEnv, grid_tasks
from steelyard.fed.gadaphead.rounds import Broadcast


class QSuite:
    """A suite of Q-learners, one for each environment; see :class:`steelyard.fed.gadaphead.deep.Suite`.

    Args:
        cell: Steps of a round and episodes of an evaluation are its parameters.
        envs: An environment for each client.
        names: Of the clients.
        planted: Which of them can share, shape (N,).
        kinds: Number of each client's task, shape (N,).
        settings: Of the learners.
    """

    def __init__(
        self,
        cell: CellInput,
        envs: Sequence[DiscreteEnv],
        names: Sequence[str],
        planted: Ints,
        kinds: Ints,
        settings: DqnSettings,
    ) -> None:
        self.envs, self.names, self.planted, self.kinds = tuple(envs), tuple(names), planted, kinds
        self.settings = dataclasses.replace(settings, steps=int(cell.params["steps"]))
        self.episodes = int(cell.params["episodes"])

    def clients(self, **changes: Any) -> list[DqnClient]:
        """Return fresh clients."""
        settings = dataclasses.replace(self.settings, **changes)
        return [DqnClient(env.fresh(), settings) for env in self.envs]

    def initial(self, generator: np.random.Generator) -> Broadcast:
        """Return the network that all start from."""
        return Broadcast(*DqnClient(self.envs[0], self.settings).initial(generator))

    def returned(self, client: int, learner: DqnClient, generator: np.random.Generator) -> float:
        """Return the mean greedy return of a client's own network."""
        return evaluate(self.envs[client], learner.learner.network, generator, self.episodes).mean_return

    def central(self, generator: np.random.Generator, **changes: Any) -> CentralLearner:
        """Return a central learner that is told the task."""
        settings = dataclasses.replace(self.settings, **changes)
        return CentralLearner(Centralised([env.fresh() for env in self.envs], settings, generator), self.episodes)

    def at_random(self, client: int, generator: np.random.Generator) -> float:
        """Return the mean return of random actions."""
        return random_policy(self.envs[client], generator, self.episodes).mean_return


class CentralLearner:
    """A central Q-learner on all tasks."""

    def __init__(self, learner: Centralised, episodes: int) -> None:
        self.learner, self.episodes = learner, episodes

    def advance(self, generator: np.random.Generator) -> None:
        """Train as long as a round of all clients."""
        self.learner.advance(generator)

    def returns(self, generator: Callable[[int], np.random.Generator]) -> list[float]:
        """Return the mean greedy return on each task."""
        return [
            self.learner.evaluate(task, generator(task), self.episodes).mean_return
            for task in range(len(self.learner.envs))
        ]


def minigrid(cell: CellInput) -> QSuite:
    """Return several clients for each level, which draw layouts of their own; a level is a planted group."""
    levels, copies = [str(level) for level in cell.data["levels"]], int(cell.data["copies"])
    envs = [GridEnv(task) for task in grid_tasks(levels, groups=1) for _ in range(copies)]
    names = [f"{level} {copy + 1}" for level in levels for copy in range(copies)]
    planted = np.repeat(np.arange(len(levels)), copies)
    return QSuite(cell, envs, names, planted, planted, DqnSettings())


def pendulum(cell: CellInput) -> QSuite:
    """Return a client for each gravity and sign of the force; the sign is the planted group."""
    tasks = [
        control.PendulumTask(
            f"g{gravity:g}{'+' if sign > 0 else '-'}", float(gravity), int(sign), int(cell.data["length"])
        )
        for sign in cell.data["signs"]
        for gravity in cell.data["gravities"]
    ]
    planted = np.array([task.group for task in tasks])
    names = [task.name for task in tasks]
    return QSuite(
        cell, [control.PendulumEnv(t) for t in tasks], names, planted, np.arange(len(tasks)), control.SETTINGS
    )
