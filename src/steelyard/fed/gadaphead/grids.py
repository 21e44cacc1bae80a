"""The MiniGrid clients of the bench: several for each level, which draw layouts of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard.contracts import CellInput
from steelyard.fed.gadaphead.dqn import Centralised, DqnClient, DqnSettings, evaluate, random_policy
from steelyard.fed.gadaphead.linear import Ints
from steelyard.fed.gadaphead.minigrid import GridEnv, grid_tasks
from steelyard.fed.gadaphead.rounds import Broadcast


class GridSuite:
    """The suite of a MiniGrid cell; see :class:`steelyard.fed.gadaphead.deep.Suite`."""

    def __init__(self, cell: CellInput) -> None:
        levels, copies = [str(level) for level in cell.data["levels"]], int(cell.data["copies"])
        self.tasks = tuple(task for task in grid_tasks(levels, groups=1) for _ in range(copies))
        self.names = tuple(f"{level} {copy + 1}" for level in levels for copy in range(copies))
        self.planted: Ints = np.repeat(np.arange(len(levels)), copies)
        self.kinds = self.planted
        self.settings = DqnSettings(steps=int(cell.params["steps"]))
        self.episodes = int(cell.params["episodes"])

    def clients(self, **changes: Any) -> list[DqnClient]:
        """Return fresh clients."""
        settings = dataclasses.replace(self.settings, **changes)
        return [DqnClient(GridEnv(task), settings) for task in self.tasks]

    def initial(self, generator: np.random.Generator) -> Broadcast:
        """Return the network that all start from."""
        return Broadcast(*DqnClient(GridEnv(self.tasks[0]), self.settings).initial(generator))

    def returned(self, client: int, learner: DqnClient, generator: np.random.Generator) -> float:
        """Return the mean greedy return of a client's own network."""
        return evaluate(learner.env, learner.learner.network, generator, self.episodes).mean_return

    def central(self, generator: np.random.Generator, **changes: Any) -> CentralGrid:
        """Return a central learner that is told the task."""
        settings = dataclasses.replace(self.settings, **changes)
        return CentralGrid(Centralised([GridEnv(task) for task in self.tasks], settings, generator), self.episodes)

    def at_random(self, client: int, generator: np.random.Generator) -> float:
        """Return the mean return of random actions."""
        return random_policy(GridEnv(self.tasks[client]), generator, self.episodes).mean_return


class CentralGrid:
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
