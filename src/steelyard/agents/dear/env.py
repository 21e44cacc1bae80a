"""A debate as a PettingZoo parallel environment, and as one gymnasium environment over all agents.

An agent's action is ``MultiDiscrete([2] * (N - 1) + [behaviours])``: which peers it reads, in the order of the other
agents, and how it answers. Reconstruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo.utils.env import ParallelEnv

from steelyard.agents.dear.episodes import BEHAVIOURS, Backend, Bools, Episodes, Floats, Ints, StopRule, is_finished
from steelyard.agents.dear.observation import Features, feature_names, observe
from steelyard.agents.dear.reward import Reward
from steelyard.errors import InputError
from steelyard.rng import generator


class DebateEnv(ParallelEnv[str, Features, Ints]):  # type: ignore[misc]  # pettingzoo ships no types
    """One debate at a time.

    Rewards (per agent): ``shaping`` times the change of its own correctness, minus ``lam`` per call-unit it spent, and
    at the end 1 for a right vote and .3 for the share of right agents. A debate that is unanimous at once ends with
    the first step, in which nothing happens. Labels are used for rewards only; no observation or info holds them.

    Args:
        backend: At least 2 agents that answer.
        rounds: T.
        lam: Price of a call-unit.
        shaping: Weight of a change of correctness.
        seed: Of the debates, until `reset` gets another one.
        early_stop: "never", "unanimous" or "stable".
        identity: Add one-hot agent features (fixed teams only).
        behaviours: Which behaviours an agent can choose, in this order.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        rounds: int = 3,
        lam: float = 0.02,
        shaping: float = 0.5,
        seed: int = 0,
        early_stop: StopRule = "unanimous",
        identity: bool = False,
        behaviours: Sequence[str] = BEHAVIOURS,
    ) -> None:
        if backend.n_agents < 2:
            raise InputError(f"backend has {backend.n_agents} agent; a debate needs at least 2.")
        if rounds < 1:
            raise InputError(f"rounds must be at least 1, not {rounds}.")
        if not behaviours or not set(behaviours) <= set(BEHAVIOURS) or len(set(behaviours)) < len(behaviours):
            raise InputError(f"behaviours must be different ones of {', '.join(BEHAVIOURS)}.")
        self.metadata = {"name": "steelyard_debate_v0", "render_modes": []}
        self.render_mode = None
        self.backend, self.rounds, self.lam, self.shaping = backend, rounds, lam, shaping
        self.early_stop: StopRule = early_stop
        self.identity = identity
        self.behaviours = np.array([BEHAVIOURS.index(each) for each in behaviours])
        self.possible_agents = [f"agent_{i}" for i in range(backend.n_agents)]
        self.agents: list[str] = []
        self._random = generator("debate environment", "episodes", seed)
        self._reward = Reward(shaping=shaping)
        self._episodes: Episodes | None = None
        group, own, peer = feature_names(backend.n_agents, identity)
        self.feature_names = (*group, *own, *(f"{name}[{k}]" for k in range(backend.n_agents - 1) for name in peer))
        width, choices = len(self.feature_names), [2] * (backend.n_agents - 1) + [len(behaviours)]
        self.observation_spaces = {agent: spaces.Box(-1.0, 1.0, (width,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.MultiDiscrete(choices) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Box:
        """Return the agent's observation space: group, own, and the peers' features in the order of the others."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.MultiDiscrete:
        """Return the agent's action space."""
        return self.action_spaces[agent]

    def features(self, episodes: Episodes) -> Features:
        """Return what every agent observes, float32 (B, N, D); labels in ``episodes`` are not touched."""
        seen = observe(episodes.public(), self.rounds, identity=self.identity)
        batch, agents, _ = seen.own.shape
        others = np.array([[j for j in range(agents) if j != i] for i in range(agents)])
        peers = seen.peers[:, np.arange(agents)[:, None], others].reshape(batch, agents, -1)
        group = np.broadcast_to(seen.group[:, None], (batch, agents, seen.group.shape[1]))
        return np.concatenate([group, seen.own, peers], axis=-1)

    def state(self) -> Features:
        """Return what all agents together observe, float32 (N * D,)."""
        return self.features(self._current()).reshape(-1)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Features], dict[str, dict[str, Any]]]:
        """Start a debate; ``seed`` starts the stream of debates anew, ``options`` is not used."""
        if seed is not None:
            self._random = generator("debate environment", "episodes", seed)
        self._episodes = self._stopped(self.backend.start(1, self._random))
        self.agents = list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Features], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one round.

        Raises:
            InputError: An agent's action is missing or outside its space, or the debate is over.
        """
        before = self._current()
        if not self.agents:
            raise InputError("the debate is over; call reset.")
        reads, behaviours = self._decode(actions)
        after = self.backend.advance(before, reads, behaviours, generator=self._random)
        self._episodes = after = self._stopped(after)
        over = not after.active[0] or after.t >= self.rounds
        paid: Floats = self._reward(before, after, np.array([over]), self.lam)[0]
        agents = self.agents
        observations = self._observations()
        if over:
            self.agents = []
        return (
            observations,
            {agent: float(reward) for agent, reward in zip(agents, paid, strict=True)},
            dict.fromkeys(agents, over),
            dict.fromkeys(agents, False),
            {agent: {} for agent in agents},
        )

    def render(self) -> None:
        """Draw nothing: there is no render mode."""

    def as_gymnasium(self) -> JointDebate:
        """Return one environment whose action and observation are those of all agents in a row, for SB3 and others."""
        return JointDebate(self)

    def _current(self) -> Episodes:
        if self._episodes is None:
            raise InputError("there is no debate yet; call reset.")
        return self._episodes

    def _stopped(self, episodes: Episodes) -> Episodes:
        return replace(episodes, active=episodes.active & ~is_finished(episodes, self.early_stop))

    def _observations(self) -> dict[str, Features]:
        return dict(zip(self.possible_agents, self.features(self._current())[0], strict=True))

    def _decode(self, actions: Mapping[str, Any]) -> tuple[Bools, Ints]:
        count = len(self.possible_agents)
        reads = np.zeros((1, count, count), dtype=bool)
        behaviours = np.zeros((1, count), dtype=np.int64)
        for i, agent in enumerate(self.possible_agents):
            action = np.asarray(actions.get(agent, ()))
            if action.dtype.kind not in "iub" or not self.action_spaces[agent].contains(action.astype(np.int64)):
                raise InputError(f"actions[{agent!r}] must be {count} integers in {self.action_spaces[agent]}.")
            reads[0, i, np.arange(count) != i] = action[:-1] != 0
            behaviours[0, i] = self.behaviours[action[-1]]
        return reads, behaviours


class JointDebate(gymnasium.Env[Features, Ints]):  # type: ignore[misc]  # as it is seen here
    """All agents of a `DebateEnv` as one; the reward is the mean over the agents."""

    def __init__(self, env: DebateEnv) -> None:
        self.env = env
        self.metadata = dict(env.metadata)
        agents = env.possible_agents
        self.observation_space = spaces.Box(-1.0, 1.0, (len(agents) * len(env.feature_names),), np.float32)
        self.action_space = spaces.MultiDiscrete(np.concatenate([env.action_space(agent).nvec for agent in agents]))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Features, dict[str, Any]]:
        """Start a debate; see `DebateEnv.reset`."""
        super().reset(seed=seed)
        self.env.reset(seed=seed, options=options)
        return self.env.state(), {}

    def step(self, action: Ints) -> tuple[Features, float, bool, bool, dict[str, Any]]:
        """Play one round with the agents' actions in a row."""
        agents = self.env.possible_agents
        flat = np.asarray(action)
        if flat.shape != self.action_space.shape:
            raise InputError(f"action has shape {flat.shape}, but {self.action_space.shape} is asked for.")
        parts = dict(zip(agents, np.split(flat, len(agents)), strict=True))
        _, rewards, ended, _, _ = self.env.step(parts)
        return self.env.state(), float(np.mean(list(rewards.values()))), ended[agents[0]], False, {}
