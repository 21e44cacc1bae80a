"""What counts as the same state: keys for grouping steps, and checks that show when a key is no state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import factorise
from steelyard.policy.steps import StepBatch

AnchorKey = Literal["state", "obs"] | Callable[[TextEnv, str, dict[str, Any]], Hashable]
MANY_SINGLETONS = 0.5
GIANT_SHARE = 0.5
MUCH_ALIASED = 0.05


class AnchorWrapper:
    """An environment that writes into ``info["anchor"]`` what the present state is grouped by.

    Args:
        env: Any text environment.
        key: ``"state"`` (its own `state_key`: simulator state, to be disclosed where results are told), ``"obs"`` (the
            observation's text), or a function of environment, observation and info.
        history: How many entries of the alternating history of observations and actions join the key: 2 are the
            previous observation and action, one turn.

    Raises:
        InputError: ``key`` or ``history`` cannot be used.
    """

    def __init__(self, env: TextEnv, key: AnchorKey = "state", history: int = 0) -> None:
        if key not in ("state", "obs") and not callable(key):
            raise InputError(f"key must be 'state', 'obs' or a function, got {key!r}")
        if not isinstance(history, int) or isinstance(history, bool) or history < 0:
            raise InputError(f"history must be a whole number of at least 0, got {history!r}")
        self.env, self.key = env, key
        self._past: deque[str] = deque(maxlen=history)
        self._seen = ""

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation and ``info`` with the anchor."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._past.clear()
        self._seen = observation
        return observation, self._anchored(observation, info)

    def step(self, command: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a command; the anchor is that of the state that it led to."""
        observation, reward, terminated, truncated, info = self.env.step(command)
        self._past.extend((self._seen, command))
        self._seen = observation
        return observation, reward, terminated, truncated, self._anchored(observation, info)

    def state_key(self, full: bool = False) -> Hashable:
        """Return the environment's own key."""
        return self.env.state_key(full)

    def _anchored(self, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        if callable(self.key):
            key = self.key(self.env, observation, info)
        else:
            key = observation if self.key == "obs" else self.env.state_key()
        return {**info, "anchor": (key, *self._past) if self._past.maxlen else key}


class AliasReport(NamedTuple):
    """How well anchors serve as states.

    Attributes:
        steps: Number of steps.
        nodes: Number of different (task, anchor).
        mean_size: Steps a node.
        singleton_fraction: Share of steps at a node of their own.
        largest_share: Share of steps at the largest node of their task.
        trajectories: Mean number of different rollouts a node.
        aliased_share: Share of steps whose anchor occurs with several sets of admissible actions; None: not known.
        warnings: What follows, a sentence each.
    """

    steps: int
    nodes: int
    mean_size: float
    singleton_fraction: float
    largest_share: float
    trajectories: float
    aliased_share: float | None
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report as lines."""
        aliased = (
            "not known, for want of admissible actions"
            if self.aliased_share is None
            else f"{self.aliased_share:.0%} of the steps"
        )
        return [
            f"{self.steps:,} steps at {self.nodes:,} nodes, {self.mean_size:.1f} a node from "
            f"{self.trajectories:.1f} rollouts",
            f"alone at their node: {self.singleton_fraction:.0%} of the steps; at their task's largest: "
            f"{self.largest_share:.0%}",
            f"anchors met with different admissible actions: {aliased}",
            *(f"warning: {sentence}" for sentence in self.warnings),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary of plain values."""
        return {**self._asdict(), "warnings": list(self.warnings)}


def alias_report(batch: StepBatch | Sequence[Any], admissible_sets: Sequence[Any] | None = None) -> AliasReport:
    """Return how well a batch's anchors serve as states.

    Args:
        batch: Steps with anchors; or the observations of one rollout, which then are the anchors.
        admissible_sets: Of each step the actions that were admissible, or None where that is not known. The same anchor
            with different sets is not one state: a cheap test that needs nothing of the simulator (reconstruction).

    Raises:
        InputError: No anchors, no steps, or sets of another number than the steps.
    """
    if not isinstance(batch, StepBatch):
        if not isinstance(batch, Sequence) or isinstance(batch, str):
            raise InputError(f"batch must be a StepBatch or a list of observations, got {type(batch).__name__}")
        size = len(batch)
        batch = StepBatch([0] * size, [0] * size, range(size), [0.0] * size, batch)
    if not len(batch):
        raise InputError("batch: there are no steps to look at")
    nodes, count = batch.nodes
    visits = np.unique(nodes * np.int64(len(batch.layout.starts)) + batch.layout.traj)
    alone, largest = node_shares(batch)
    aliased = None if admissible_sets is None else _aliased(batch, admissible_sets)
    said = list(oddities(batch))
    if aliased is not None and aliased > MUCH_ALIASED:
        said.append(
            f"{aliased:.0%} of the steps are at an anchor that was met with different admissible actions, so that it "
            "mixes different states and credit along edges can have the wrong sign: add history or state to the anchor"
        )
    return AliasReport(len(batch), count, len(batch) / count, alone, largest, len(visits) / count, aliased, tuple(said))


def node_shares(batch: StepBatch) -> tuple[float, float]:
    """Return the shares of steps that are alone at their node, and that are at the largest node of their task."""
    nodes, count = batch.nodes
    size = np.bincount(nodes, minlength=count)
    task = np.empty(count, np.int64)
    task[nodes] = batch.layout.task
    largest = np.zeros(batch.layout.tasks, np.int64)
    np.maximum.at(largest, task, size)
    return float((size == 1).sum()) / len(batch), float(largest.sum()) / len(batch)


def oddities(batch: StepBatch) -> tuple[str, ...]:
    """Return what makes values of the nodes useless, a sentence each."""
    if not len(batch):
        return ()
    alone, largest = node_shares(batch)
    said = []
    if alone > MANY_SINGLETONS:
        said.append(
            f"{alone:.0%} of the steps are at a node of their own: their values are single samples and actions have "
            "nothing to be compared with; use a coarser anchor, or more rollouts a task"
        )
    # Rollouts of one step are all where their task begins, and rightly so.
    if largest > GIANT_SHARE and len(batch) > len(batch.layout.starts):
        said.append(
            f"{largest:.0%} of the steps are at the largest node of their task: the anchor hardly tells states apart; "
            "use a finer one"
        )
    return tuple(said)


def _aliased(batch: StepBatch, admissible_sets: Sequence[Any]) -> float | None:
    """Return the share of steps at nodes with several sets of admissible actions, of those whose set is known."""
    if len(admissible_sets) != len(batch):
        raise InputError(f"admissible_sets: it has {len(admissible_sets)} entries, the batch {len(batch)} steps")
    try:
        known = [None if actions is None else frozenset(actions) for actions in admissible_sets]
    except TypeError:
        raise InputError("admissible_sets: each entry must be a list of commands, or None") from None
    kept = np.array([actions is not None for actions in known])
    if not kept.any():
        return None
    nodes, count = batch.nodes
    nodes = nodes[batch.layout.place][kept]
    codes, kinds = factorise([actions for actions in known if actions is not None])
    pairs = np.unique(nodes * np.int64(kinds) + codes)
    several = np.bincount(pairs // kinds, minlength=count) > 1
    return float(several[nodes].mean())
