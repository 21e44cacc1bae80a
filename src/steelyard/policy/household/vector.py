"""Several household games side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.policy.household.env import HouseholdEnv
from steelyard.policy.household.game import HouseholdGame


class HouseholdVectorEnv:
    """Games that are played in lockstep; one that has ended stays out until all are reset.

    Args:
        games: One environment each; several rollouts of a game are that game several times.
        max_steps: Of each.
        reward: Of winning.

    Raises:
        InputError: There is no game.
    """

    def __init__(self, games: Sequence[HouseholdGame], max_steps: int = 30, reward: float = 1.0) -> None:
        if not games:
            raise InputError("games: there is none")
        self.envs = [HouseholdEnv(game, max_steps, reward) for game in games]

    @property
    def live(self) -> list[int]:
        """Numbers of the environments that have not ended."""
        return [number for number, env in enumerate(self.envs) if not env.over]

    def reset(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Return every environment's first observation and ``info``."""
        begun = [env.reset() for env in self.envs]
        return [observation for observation, _ in begun], [info for _, info in begun]

    def step(
        self, commands: Sequence[str]
    ) -> tuple[list[str], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Carry out one command in each environment of :attr:`live`, in that order.

        Returns:
            Observations, rewards, whether each ended, whether its time ran out, and infos, of the same environments.

        Raises:
            InputError: Another number of commands than live environments.
        """
        live = self.live
        if len(commands) != len(live):
            raise InputError(f"commands: {len(commands)} for {len(live)} live environments")
        answers = [self.envs[number].step(command) for number, command in zip(live, commands, strict=True)]
        observations, rewards, terminated, truncated, infos = (list(part) for part in zip(*answers, strict=True))
        return observations, rewards, terminated, truncated, infos
