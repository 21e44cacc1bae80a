"""A small transformer as a policy: it reads the task, the last turns and the observation, and scores commands.

Words become embeddings by a hash, so that there is no vocabulary to build; some tens of thousands of weights
(reconstruction). It trains in the same loop as the log-linear policy, more slowly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.groups import Floats
from steelyard.policy.rollouts import Turn, check_count, credit_of
from steelyard.rng import torch_generator

_WORD = re.compile(r"[a-z0-9]+")
_MOST_WORDS = 160
_TURNS = 2


class Shown(NamedTuple):
    """What a choice was made from: the words read, those of each command, which was taken, and the temperature."""

    context: list[int]
    commands: list[list[int]]
    chosen: int
    temperature: float = 1.0


@dataclass
class _Memory:
    task: list[int]
    past: list[list[int]] = field(default_factory=list)


class _Network(nn.Module):
    """Embeds words, attends over those of the context, and compares the result with each command."""

    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, width, padding_idx=words)
        self.place = nn.Embedding(_MOST_WORDS, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.command = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.width, self.padding = width, words

    def forward(self, context: Tensor, commands: Tensor, owner: Tensor) -> Tensor:
        """Return the score of each command, (C,).

        Args:
            context: Words of each context, (B, L).
            commands: Words of each command, (C, M).
            owner: Context of each command, (C,).
        """
        unused = context == self.padding
        read = self.encoder(
            self.embedding(context) + self.place.weight[: context.shape[1]], src_key_padding_mask=unused
        )
        kept = (~unused).unsqueeze(-1)
        state = (read * kept).sum(1) / kept.sum(1)
        used = (commands != self.padding).unsqueeze(-1)
        words = (self.embedding(commands) * used).sum(1) / used.sum(1)
        scores: Tensor = (state[owner] * self.command(words)).sum(-1) / self.width**0.5
        return scores


class TransformerPolicy:
    """A policy for the training loop, on torch.

    Args:
        width: Of embeddings; a multiple of ``heads``.
        layers: Of the encoder.
        heads: Of its attention.
        words: Number of hashed words.
        learning_rate: Of Adam.
        seed: Of the weights.

    Raises:
        InputError: A number below 1, or a width that the heads do not divide.
    """

    segments: tuple[str, ...] = ("action",)

    def __init__(
        self,
        width: int = 32,
        layers: int = 1,
        heads: int = 2,
        words: int = 2048,
        learning_rate: float = 3e-3,
        seed: int = 0,
    ) -> None:
        for name, number in (("width", width), ("layers", layers), ("heads", heads), ("words", words)):
            check_count(name, number)
        check_number("learning_rate", learning_rate, low=0.0)
        if width % heads:
            raise InputError(f"width must be a multiple of heads ({heads}), got {width}")
        self._made = {"width": width, "layers": layers, "heads": heads, "words": words, "learning_rate": learning_rate}
        self.words = words
        with torch.random.fork_rng(devices=[]):  # torch's layers draw from its global generator: it is put back after
            self.network = _Network(words, width, layers, heads)
        draws = torch_generator("transformer", "weights", seed)
        with torch.no_grad():
            for name, weights in self.network.named_parameters():
                if weights.dim() > 1:
                    weights.normal_(0.0, weights.shape[-1] ** -0.5, generator=draws)
                elif name.endswith("bias"):  # torch drew them from its global generator
                    weights.zero_()
            self.network.embedding.weight[words] = 0.0
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=learning_rate, betas=(0.9, 0.99), maximize=True)

    def begin(self, observation: str, info: Mapping[str, Any]) -> _Memory:
        """Return the memory of a new episode."""
        return _Memory(self._ids(info["task"]))

    def act(
        self,
        memories: Sequence[_Memory],
        observations: Sequence[str],
        admissible: Sequence[Sequence[str]],
        rng: np.random.Generator,
        temperature: float,
    ) -> list[Turn]:
        """Return a command for each episode, drawn at ``temperature``; 0 takes the likeliest."""
        shown = [
            Shown(self._context(memory, seen), [self._ids(command) for command in offered], 0, temperature)
            for memory, seen, offered in zip(memories, observations, admissible, strict=True)
        ]
        with torch.no_grad():
            scores = self._scores(shown)
        turns = []
        for one, own, offered in zip(shown, scores, admissible, strict=True):
            share = (own == own.max()).double() if temperature == 0 else torch.softmax(own.double() / temperature, 0)
            total = np.cumsum((share / share.sum()).numpy())
            chosen = min(int(np.searchsorted(total, rng.random() * total[-1], side="right")), len(total) - 1)
            turns.append(Turn(offered[chosen], one._replace(chosen=chosen)))
        return turns

    def observe(self, memory: _Memory, turn: Turn, observation: str, info: Mapping[str, Any]) -> None:
        """Take in what a turn was answered."""
        memory.past.append(self._ids(turn.command) + self._ids(observation))

    def ascend(self, traces: Sequence[Shown], advantages: Floats | Mapping[str, Floats]) -> None:
        """Take one step of Adam up :meth:`objective`, which says what it refuses."""
        objective = self.objective(traces, advantages)
        self.optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def objective(self, traces: Sequence[Shown], advantages: Floats | Mapping[str, Floats]) -> Tensor:
        """Return the mean over turns of advantage times log probability, at the temperature of the draw.

        Raises:
            InputError: No turn, one at temperature 0, or another number of advantages.
        """
        weights = torch.as_tensor(credit_of(traces, advantages), dtype=torch.float32)
        scores = self._scores(traces)
        logs = [
            torch.log_softmax(own / one.temperature, 0)[one.chosen] for one, own in zip(traces, scores, strict=True)
        ]
        return (torch.stack(logs) * weights).mean()

    def fit_bc(self, games: Sequence[Any], epochs: int = 60) -> None:
        """Imitate the games' walkthroughs by full-batch steps of Adam.

        Raises:
            InputError: No game, or a walkthrough's command is not admissible when its turn comes.
        """
        shown = [step for game in games for step in self._walked(game)]
        for _ in range(epochs):
            self.ascend(shown, np.ones(len(shown)))

    def _walked(self, game: Any) -> list[Shown]:
        env = game.make_env(max_steps=len(game.walkthrough) + 1)
        observation, info = env.reset()
        memory, steps = self.begin(observation, info), []
        for command in game.walkthrough:
            offered = info["admissible"]
            if command not in offered:
                raise InputError(f"games: the walkthrough's '{command}' is not admissible in {game.name}")
            words = [self._ids(one) for one in offered]
            steps.append(Shown(self._context(memory, observation), words, offered.index(command)))
            observation, _, _, _, info = env.step(command)
            self.observe(memory, Turn(command, None), observation, info)
        return steps

    def _context(self, memory: _Memory, observation: str) -> list[int]:
        past = [word for turn in memory.past[-_TURNS:] for word in turn]
        return (memory.task + self._ids(observation)[:60] + past)[:_MOST_WORDS]

    def _ids(self, text: str) -> list[int]:
        return [crc32(word.encode()) % self.words for word in _WORD.findall(text.lower())] or [0]

    def _scores(self, shown: Sequence[Shown]) -> list[Tensor]:
        """Return the scores of the commands of each choice."""
        owner = torch.tensor([place for place, one in enumerate(shown) for _ in one.commands])
        flat = [words for one in shown for words in one.commands]
        scores = self.network(self._padded([one.context for one in shown]), self._padded(flat), owner)
        return list(scores.split([len(one.commands) for one in shown]))

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([[*row, *[self.words] * (width - len(row))] for row in rows])

    def copy(self) -> TransformerPolicy:
        """Return a policy with the same weights, and an optimiser of its own that has taken no step."""
        other = TransformerPolicy(**self._made)  # type: ignore[arg-type]
        other.network.load_state_dict(self.network.state_dict())
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state of network and optimiser."""
        return deepcopy({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            InputError: It is no state, or that of a policy of other sizes; nothing of it is taken.
        """
        trial = deepcopy(self)
        try:
            trial.network.load_state_dict(state["network"])
            trial.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # torch would share its moments
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            raise InputError(f"state: it is not that of a policy with {self._made}") from None
        if not trial._sound():
            raise InputError("state: its weights or moments are not finite, or moments are not of their weights' shape")
        self.network.load_state_dict(trial.network.state_dict())
        self.optimizer.load_state_dict(trial.optimizer.state_dict())

    def _sound(self) -> bool:
        """Say whether weights and moments are finite, and each weight's moments, where it has any, of its shape."""
        for weights in self.network.parameters():
            moments = self.optimizer.state.get(weights)
            kept = [moments.get(name) for name in ("exp_avg", "exp_avg_sq")] if moments else []
            if any(not isinstance(one, Tensor) or one.shape != weights.shape for one in kept):
                return False
            if not all(bool(torch.isfinite(one).all()) for one in (weights, *kept)):
                return False
            if moments and not isinstance(moments.get("step"), Tensor):
                return False
        return True
