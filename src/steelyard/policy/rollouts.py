"""Playing episodes: what a policy offers, and many episodes played side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import Floats, plain

Episode = list[dict[str, Any]]


class Turn(NamedTuple):
    """What a policy says, and what it needs to learn from it later."""

    command: str
    trace: Any


class Policy(Protocol):
    """An agent that plays text games and learns from advantages.

    ``segments`` are the decisions of a turn, such as ``("action",)``; a memory is the policy's own, one an episode.
    """

    segments: tuple[str, ...]

    def begin(self, observation: str, info: Mapping[str, Any]) -> Any:
        """Return the memory of a new episode."""
        ...

    def act(
        self,
        memories: Sequence[Any],
        observations: Sequence[str],
        admissible: Sequence[Sequence[str]],
        rng: np.random.Generator,
        temperature: float,
    ) -> list[Turn]:
        """Return a turn for each of several episodes."""
        ...

    def observe(self, memory: Any, turn: Turn, observation: str, info: Mapping[str, Any]) -> None:
        """Take in what a turn was answered."""
        ...

    def ascend(self, traces: Sequence[Any], advantages: Floats | Mapping[str, Floats]) -> None:
        """Take one step up the mean over turns of advantage times log probability; advantages of shape (S,)."""
        ...

    def copy(self) -> Self:
        """Return a policy with the same weights that goes its own way."""
        ...


def run_policy(
    env: TextEnv,
    policy: Policy,
    rng: np.random.Generator,
    *,
    temperature: float = 1.0,
    task: Hashable = 0,
    max_steps: int | None = None,
) -> Episode:
    """Return one episode of ``policy`` in ``env``: a step a dict, as :meth:`StepBatch.from_episodes` takes them.

    Takes and raises what :func:`collect` does.
    """
    return collect([(task, env)], policy, rng, temperature=temperature, max_steps=max_steps)[0]


def collect(
    envs: Sequence[tuple[Hashable, TextEnv]],
    policy: Policy,
    rng: np.random.Generator,
    *,
    temperature: float = 1.0,
    max_steps: int | None = None,
) -> list[Episode]:
    """Play one episode in every environment, all of them side by side until the last has ended.

    Args:
        envs: (task, environment); environments of one task are rollouts of one group, each with one of its own.
        policy: Acts for all live episodes in one call a turn.
        rng: Of the policy's choices.
        temperature: Of the policy's choices; 0 takes the likeliest, from which nothing can be learned.
        max_steps: Cut episodes off after so many steps, as ``truncated``; None: the environments alone end them.

    Returns:
        An episode for every environment: steps with task, traj, t, observation, anchor, admissible, action, reward,
        valid, success, truncated, process, next_observation, and the policy's trace.

    Raises:
        InputError: A number out of range, an environment that is there twice or, going on, offers no command.
    """
    check_number("temperature", temperature, low=0.0)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    _check_apart([env for _, env in envs])
    episodes: list[Episode] = [[] for _ in envs]
    begun = [env.reset() for _, env in envs]
    seen = [observation for observation, _ in begun]
    infos = [info for _, info in begun]
    memories = [policy.begin(observation, info) for observation, info in begun]
    live = list(range(len(envs)))
    while live:
        offered = [infos[n].get("admissible", ()) for n in live]
        if not all(offered):
            raise InputError(f"envs: {live[[*map(bool, offered)].index(False)]} offers no admissible command")
        turns = policy.act([memories[n] for n in live], [seen[n] for n in live], offered, rng, temperature)
        going = []
        for number, turn in zip(live, turns, strict=True):
            step, over, following = _taken(*envs[number], turn, seen[number], infos[number])
            if not over and len(episodes[number]) + 1 == max_steps:
                step["truncated"] = over = True
            episodes[number].append({**step, "traj": number, "t": len(episodes[number])})
            seen[number], infos[number] = step["next_observation"], following
            policy.observe(memories[number], turn, seen[number], following)
            if not over:
                going.append(number)
        live = going
    return episodes


def _taken(
    task: Hashable, env: TextEnv, turn: Turn, seen: str, info: dict[str, Any]
) -> tuple[dict[str, Any], bool, dict[str, Any]]:
    """Carry out a turn; return its step, whether the episode has ended, and the ``info`` that follows."""
    anchor = info["anchor"] if "anchor" in info else env.state_key()
    after, reward, terminated, truncated, following = env.step(turn.command)
    step = {
        "task": task,
        "observation": seen,
        "anchor": anchor,
        "admissible": info["admissible"],
        "action": turn.command,
        "reward": float(reward),
        "valid": following.get("valid", True),
        "success": bool(following.get("won", False)),
        "truncated": bool(truncated),
        "process": following.get("process", {}),
        "next_observation": after,
        "trace": turn.trace,
    }
    return step, bool(terminated or truncated), following


def _check_apart(envs: Sequence[TextEnv]) -> None:
    """Refuse an environment that would have to play two episodes at once."""
    first: dict[int, int] = {}
    for number, env in enumerate(envs):
        if first.setdefault(id(env), number) != number:
            raise InputError(f"envs: {number} is the same environment as {first[id(env)]}; make one for every episode")


def check_count(name: str, value: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")


def credit_of(traces: Sequence[Any], advantages: Floats | Mapping[str, Floats]) -> Floats:
    """Return the advantages of choices as one array, (S,); of a mapping those of "action".

    Args:
        traces: The choices, each with the ``temperature`` that it was drawn at.
        advantages: One a choice, or such arrays by segment.

    Raises:
        InputError: No choice, another number of advantages, or a choice at temperature 0: it was not drawn, so that
            there is no probability to follow the gradient of.
    """
    if not len(traces):
        raise InputError("traces: there is no turn to learn from")
    if any(trace.temperature == 0 for trace in traces):
        raise InputError(
            "traces: a turn taken at temperature 0 has no gradient; play at a temperature above 0 to learn"
        )
    if isinstance(advantages, Mapping):
        if "action" not in advantages:
            raise InputError(f"advantages: there are none for 'action', only for {sorted(advantages)}")
        advantages = advantages["action"]
    try:
        values = np.asarray(plain(advantages), np.float64)
    except (TypeError, ValueError):
        raise InputError("advantages: they must be one number a turn") from None
    if values.shape != (len(traces),):
        raise InputError(f"advantages: they must be one a turn, {(len(traces),)}, got shape {values.shape}")
    return values
