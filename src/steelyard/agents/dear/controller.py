"""``DEARController``: learned control of who reads whom (Who) and how each agent answers (How) from group evidence.

Source: reconstruction of what the abstract says: group evidence, a selection agent and a behaviour agent, trained
jointly by multi-agent reinforcement learning. At inference it sees no label; only ``fit`` reads one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from steelyard.agents.dear import actions, weights
from steelyard.agents.dear.actions import Choice
from steelyard.agents.dear.core import group_evidence
from steelyard.agents.dear.episodes import BEHAVIOURS, KEEP, REVISE, Backend, Bools, Ints, State, StopRule, VoteRule
from steelyard.agents.dear.network import MACROS, PolicyNet, Seen, Sizes, ValueNet
from steelyard.agents.dear.observation import Observation, observe
from steelyard.agents.dear.ppo import Trained, Trainer
from steelyard.agents.dear.reward import Reward, RewardFunction
from steelyard.agents.dear.rollout import Outcome, rollout
from steelyard.agents.dear.settings import ControllerSettings, PPOSettings
from steelyard.errors import InputError
from steelyard.rng import generator as stream
from steelyard.rng import torch_generator

Evidence = Callable[[State], NDArray[np.floating[Any]]]
"""Features of the group made by the user's own function: (B, G) from the public state of B debates."""


class DEARController:
    """Chooses, every round, whom each agent reads and how it answers; one policy shared by all agents.

    Args:
        d_max: Most peers an agent reads in a round; None: no cap.
        behaviours: What agents may do, out of keep, revise, critique, explore.
        identity: Tell agents apart by number. Only for a team that stays the same; off, the policy is equivariant.
        evidence: `group_evidence` (also True): the library's features; False: none; or your own `Evidence`.
        reward: What training pays for; default: `Reward` with an agent paid for what its own answer changed.
        hidden: Two widths of hidden layers.
        selection: "mask": a probability for each peer; "macro": one of none, all, disagreeing peers, one speaker of
            the majority, one speaker per rival answer.
        who: "random" replaces the chosen peers by as many random ones (ablation).
        how: "revise" lets everyone revise in every round (ablation).
        decision: "greedy" takes the likeliest decision, "sample" draws.
        early_stop: When its debates end: "unanimous", "stable" or "never".
        settings: PPO's settings.

    Raises:
        InputError: A value that cannot be used.
    """

    uses_labels = False
    vote_rule: VoteRule = "majority"

    def __init__(
        self, *, d_max: int | None = None, behaviours: Sequence[str] = BEHAVIOURS, identity: bool = False,
        evidence: Evidence | bool | Callable[..., Any] = group_evidence, reward: RewardFunction | None = None,
        hidden: tuple[int, int] = (64, 64), selection: Literal["mask", "macro"] = "mask",
        who: Literal["learned", "random"] = "learned", how: Literal["learned", "revise"] = "learned",
        decision: Literal["greedy", "sample"] = "greedy", early_stop: StopRule = "unanimous",
        settings: PPOSettings | None = None,
    ) -> None:  # fmt: skip
        own = callable(evidence) and evidence is not group_evidence
        kind = "own" if own else ("none" if evidence is False else "group")
        asked = {
            "d_max": d_max, "behaviours": tuple(behaviours), "identity": identity, "evidence": kind, "hidden": hidden,
            "selection": selection, "who": who, "how": how, "decision": decision, "early_stop": early_stop,
        }  # fmt: skip
        self.settings = _checked(asked)
        self.reward: RewardFunction = Reward(credit="difference") if reward is None else reward
        self.ppo = PPOSettings() if settings is None else settings
        self.history: list[Trained] = []
        self._evidence: Evidence | None = evidence if own else None  # type: ignore[assignment]
        self._policy: PolicyNet | None = None

    @property
    def identity(self) -> bool:
        """Whether it observes who is who."""
        return self.settings.identity

    @property
    def evidence(self) -> bool:
        """Whether it observes the library's group evidence."""
        return self.settings.evidence == "group"

    @property
    def early_stop(self) -> StopRule:
        """The stop rule of its debates."""
        return self.settings.early_stop

    def fit(
        self, env: Any, *, episodes: int = 5_000, algo: str = "ppo", lam: float | None = None,
        gamma: float | None = None, seed: int = 0, root: str = "training", items: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> DEARController:  # fmt: skip
        """Train on new debates of a back end; the only method that reads labels.

        Args:
            env: A `DebateEnv`, or a back end itself.
            episodes: Least number of debates to train on.
            algo: "ppo", multi-agent PPO with a central critic.
            lam: Price of a call-unit for an agent; default: the environment's, else .02.
            gamma: Discount; default: that of the settings, .99.
            seed: Of weights, questions, noise and decisions.
            root: Root of the random streams (see :mod:`steelyard.rng`).
            items: Items of the back end to train on; others stay unseen for `evaluate`.
            rounds: Rounds of a debate; default: the environment's, else 3.

        Returns:
            The controller itself.

        Raises:
            InputError: An argument that cannot be used, or fewer than two agents.
        """
        backend: Backend = getattr(env, "backend", env)
        if algo != "ppo":
            raise InputError(f"algo must be 'ppo', not {algo!r}; stable-baselines3 trains DebateEnv.as_gymnasium()")
        if episodes < 1:
            raise InputError(f"episodes must be at least 1, got {episodes}")
        if backend.n_agents < 2:
            raise InputError("a debate controller needs at least 2 agents; for one agent its answer is the vote")
        turns = int(getattr(env, "rounds", 3) if rounds is None else rounds)
        price = float(getattr(env, "lam", 0.02) if lam is None else lam)
        if not price >= 0:
            raise InputError(f"lam must be a number of at least 0, got {lam}")
        ppo = self.ppo if gamma is None else self.ppo.model_copy(update={"gamma": gamma})
        sizes = self._sizes(backend, turns, stream(root, "dear/sizes", seed), items)
        self.settings = _checked(
            {**self.settings.model_dump(), "rounds": turns, "seed": seed, "sizes": tuple(sizes),
             "trained_on": () if items is None else tuple(sorted({int(item) for item in items}))}
        )  # fmt: skip
        initial = torch_generator(root, "dear/weights", seed)
        self._policy = self._network(sizes, initial)
        critic = ValueNet(sizes, self.settings.hidden, initial)
        trainer = Trainer(self._policy, critic, self._speaks(), self._choose, self.reward, ppo)
        self.history = trainer.train(
            backend, episodes=episodes, rounds=turns, lam=price, early_stop=self.early_stop,
            generator=stream(root, "dear/debates", seed), items=None if items is None else np.asarray(items, np.int64),
        )  # fmt: skip
        return self

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        """Return who reads whom, bool (B, N, N), and how each agent answers, int64 (B, N) of `BEHAVIOURS`.

        Args:
            observation: Of the public state; see `observe`.
            state: The public state of B debates, without labels.
            generator: For ``decision="sample"`` and ``who="random"``; unused otherwise.
        """
        drawn = generator if self.settings.decision == "sample" else None
        _, reads, behaviours = self._decide(self._seen(observation, state), state, drawn, generator)
        return reads, behaviours

    def act(self, state: State) -> tuple[NDArray[np.int64], list[str]]:
        """Return the graph G int64 (N, N), G[i, j] = 1 when i reads j, and each agent's behaviour, for one live debate.

        Args:
            state: Public state of one debate (B = 1).
        """
        if state.batch != 1:
            raise InputError(f"act takes one debate, got {state.batch}; decide takes many")
        seen = observe(state, self.settings.rounds, identity=self.identity, evidence=self.evidence)
        reads, behaviours = self.decide(seen, state, stream("live", f"dear/{state.t}", self.settings.seed))
        return reads[0].astype(np.int64), [BEHAVIOURS[index] for index in behaviours[0]]

    def evaluate(
        self, backend: Backend, *, batch: int, generator: np.random.Generator, items: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Outcome:  # fmt: skip
        """Play ``batch`` debates and return their outcome.

        Raises:
            InputError: Some of ``items`` were trained on.
        """
        self.check_unseen(items)
        turns = self.settings.rounds if rounds is None else rounds
        player: Any = self  # the protocol asks for attributes that can be set; here they are properties
        return rollout(backend, player, batch=batch, rounds=turns, generator=generator, items=items)

    def check_unseen(self, items: Sequence[int] | None) -> None:
        """Refuse items that the controller was trained on.

        Raises:
            InputError: Some of them were, or the controller was trained on chosen items and none are given here.
        """
        known = set(self.settings.trained_on)
        if known and items is None:
            raise InputError("items must be given: the controller was trained on some of this back end's items")
        both = sorted(known & {int(item) for item in items or ()})
        if both:
            raise InputError(f"items: {len(both)} of them were trained on, the first is {both[0]}; evaluate on others")

    def save(self, path: str | Path) -> None:
        """Write ``config.json`` and ``controller.safetensors`` into the folder ``path``; no pickle."""
        weights.save(Path(path), self.settings, dict(self._trained().state_dict()))

    @classmethod
    def from_pretrained(cls, path: str | Path, *, evidence: Evidence | None = None) -> DEARController:
        """Return a stored controller; files are checked before they are used.

        Args:
            path: Folder that `save` has written.
            evidence: The function that it was trained with, if it was one of the user's own.

        Raises:
            InputError: A file is missing or damaged, or its names, shapes or sizes are not those of a controller.
        """
        settings = weights.read_settings(Path(path))
        if (settings.evidence == "own") != (evidence is not None):
            raise InputError("evidence must be given exactly when the controller was trained with a function of yours")
        made = cls()
        made.settings, made._evidence = settings, evidence
        assert settings.sizes is not None  # read_settings has seen to it
        made._policy = made._network(Sizes(*settings.sizes), torch_generator("live", "dear/weights", 0))
        weights.load_into(Path(path), made._policy)
        return made

    def _trained(self) -> PolicyNet:
        if self._policy is None:
            raise InputError("the controller is not trained: call fit, or load one with from_pretrained")
        return self._policy

    def _network(self, sizes: Sizes, generator: torch.Generator) -> PolicyNet:
        settings = self.settings
        choices = len(MACROS) if settings.selection == "macro" else 0
        return PolicyNet(sizes, settings.hidden, len(settings.behaviours), choices, generator)

    def _speaks(self) -> torch.Tensor:
        return torch.tensor([float(name != "keep") for name in self.settings.behaviours])

    def _sizes(self, backend: Backend, rounds: int, generator: np.random.Generator, items: Any) -> Sizes:
        state = backend.start(1, generator, items=None if items is None else [int(items[0])]).public()
        seen = self._seen(observe(state, rounds, identity=self.identity, evidence=self.evidence), state)
        return Sizes(*(int(values.shape[-1]) for values in seen))

    def _seen(self, observation: Observation, state: State) -> Seen:
        group = observation.group
        if self._evidence is not None:
            group = np.asarray(self._evidence(state), dtype=np.float32)
            if group.ndim != 2 or len(group) != state.batch or not np.isfinite(group).all():
                raise InputError(f"evidence must return finite numbers of shape ({state.batch}, G), got {group.shape}")
        arrays = (group, observation.own, observation.peers)
        return Seen(*(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)) for values in arrays))

    def _choose(self, state: State, generator: np.random.Generator) -> tuple[Seen, Choice, Bools, Ints]:
        """Draw decisions for training from the public part of ``state``."""
        public = state.public() if hasattr(state, "public") else state
        seen = self._seen(observe(public, self.settings.rounds, identity=self.identity, evidence=self.evidence), public)
        return seen, *self._decide(seen, public, generator, generator)

    def _decide(
        self, seen: Seen, state: State, drawn: np.random.Generator | None, generator: np.random.Generator
    ) -> tuple[Choice, Bools, Ints]:
        settings, policy = self.settings, self._trained()
        if state.n_agents < 2:
            raise InputError("a debate controller needs at least 2 agents; for one agent its answer is the vote")
        if settings.sizes != tuple(int(values.shape[-1]) for values in seen):
            raise InputError("observation has other features than the controller was trained on (identity, evidence?)")
        with torch.inference_mode():
            behaviour_logits, peer_logits = (logits.numpy() for logits in policy(seen))
        chosen = actions.draw_index(behaviour_logits, drawn)
        behaviours = np.array([BEHAVIOURS.index(name) for name in settings.behaviours])[chosen]
        if settings.how == "revise":
            behaviours = np.full_like(behaviours, REVISE)
        picks: NDArray[Any]
        if settings.selection == "macro":
            picks = actions.draw_index(peer_logits, drawn)
            reads = np.take_along_axis(actions.macro_masks(state), picks[:, :, None, None], axis=2)[:, :, 0]
            scores = np.zeros(reads.shape)
        else:
            picks = reads = actions.draw_mask(peer_logits, drawn)
            scores = peer_logits
        reads = actions.capped(reads, scores, settings.d_max, state.agent_tie)
        if settings.who == "random":
            reads = actions.random_peers(reads.sum(axis=-1), generator)
        return Choice(chosen, picks), reads & (behaviours != KEEP)[:, :, None], behaviours


def _checked(values: dict[str, Any]) -> ControllerSettings:
    try:
        settings = ControllerSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise InputError(f"{where.partition('.')[0]}: {first['msg']}, got {first['input']!r}") from None
    weights.check_settings(settings)
    return settings
