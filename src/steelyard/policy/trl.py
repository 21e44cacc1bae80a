"""Episodes of many turns inside TRL's GRPO trainer, with an advantage for every turn rather than for every episode.

One completion is a whole episode: the tokens of the model's turns, between them those of the environment's answers,
which are masked. TRL's loss takes advantages of shape (B, T); they are replaced after TRL has computed its own.
Written against TRL 1.16; what it rests on is asserted at import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import trl
from transformers import GenerationConfig

from steelyard.errors import InputError
from steelyard.policy.anchors import AnchorKey
from steelyard.policy.environment import TextEnv
from steelyard.policy.groups import Floats
from steelyard.policy.steps import StepBatch
from steelyard.policy.tokens import broadcast_to_tokens
from steelyard.policy.training import anchored
from steelyard.rng import torch_generator

_SEAMS = ("_generate_and_score_completions", "_compute_loss")
for _name in _SEAMS:
    if not hasattr(trl.GRPOTrainer, _name):
        raise ImportError(f"trl {trl.__version__} has no GRPOTrainer.{_name}; these trainers are written for trl 1.16")
if "rollout_func" not in inspect.signature(trl.GRPOTrainer.__init__).parameters:
    raise ImportError(
        f"trl {trl.__version__}: GRPOTrainer takes no rollout_func; these trainers are written for trl 1.16"
    )

MakeEnv = Callable[[str], TextEnv]
"""From a prompt of the data set to an environment of its own."""
Candidates = Callable[[str, Mapping[str, Any]], Sequence[str]]
"""From an observation and ``info`` to the turns among which the model chooses by their likelihood."""
Credit = Floats | Mapping[str, Floats]
_EPISODE, _SPANS, _RETURN, _SEGMENTS = "episode", "turn_spans", "episode_return", "turn_segments"


def admissible(observation: str, info: Mapping[str, Any]) -> list[str]:
    """Return the admissible commands as candidates."""
    return list(info["admissible"])


class _Live(NamedTuple):
    """An episode that is being played."""

    env: TextEnv
    prompt: list[int]
    completion: list[int]
    mask: list[int]
    steps: list[dict[str, Any]]
    spans: list[tuple[int, int]]
    segments: list[dict[str, list[int]]]


class EpisodeRollout:
    """TRL's ``rollout_func`` over text environments: all live episodes take their turns together.

    Args:
        make_env: Makes an episode's environment from its prompt, a text.
        anchor: What steps are grouped by, as in `AnchorWrapper`; "history" for the observation and one turn.
        max_turns: Turns after which an episode is cut off.
        turn_tokens: Most tokens of a generated turn.
        candidates: Turns among which the model draws by likelihood; None: it writes freely up to ``stop``.
        stop: Text that ends a written turn.
        segments: From the text of a turn and the characters of its tokens to the tokens of each segment; None: the
            whole turn is one.
        seed: Of the draws among candidates.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        *,
        anchor: AnchorKey | str = "state",
        max_turns: int = 30,
        turn_tokens: int = 64,
        candidates: Candidates | None = None,
        stop: str = "\n",
        segments: Callable[[str, Any], Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        for name, number in (("max_turns", max_turns), ("turn_tokens", turn_tokens)):
            if number < 1:
                raise InputError(f"{name} must be at least 1, got {number}")
        self.make_env, self.anchor, self.max_turns, self.turn_tokens = make_env, anchor, max_turns, turn_tokens
        self.candidates, self.stop, self.segments = candidates, stop, segments
        self._draws = torch_generator("trl", "turns", seed)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play an episode for each prompt; those of one group stand together, as TRL has them."""
        tokenizer = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)
        group = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        live = [self._begin(prompt, number // group, number, tokenizer) for number, prompt in enumerate(prompts)]
        playing, seen = [one[0] for one in live], [one[1] for one in live]
        going = list(range(len(live)))
        training = model.training
        model.eval()
        try:
            for _ in range(self.max_turns):
                if not going:
                    break
                turns = self._turns(model, tokenizer, [playing[n] for n in going], [seen[n] for n in going], trainer)
                going = [
                    n for n, turn in zip(going, turns, strict=True) if self._take(playing[n], seen[n], turn, tokenizer)
                ]
        finally:
            model.train(training)
        for number in going:
            playing[number].steps[-1]["truncated"] = True
        return {
            "prompt_ids": [one.prompt for one in playing],
            "completion_ids": [one.completion for one in playing],
            "logprobs": None,
            "env_mask": [one.mask for one in playing],
            _EPISODE: [one.steps for one in playing],
            _SPANS: [one.spans for one in playing],
            _SEGMENTS: [one.segments for one in playing],
            _RETURN: [sum(step["reward"] for step in one.steps) for one in playing],
        }

    def _begin(self, prompt: Any, task: int, number: int, tokenizer: Any) -> tuple[_Live, dict[str, Any]]:
        if not isinstance(prompt, str):
            raise InputError("prompt: it must be a text, not a list of messages; episodes write their own turns")
        env = anchored(self.make_env(prompt), self.anchor)
        observation, info = env.reset()
        ids = tokenizer(f"{prompt}\n{self._shown(observation, info)}").input_ids
        state = {"observation": observation, "info": info, "task": task, "traj": number}
        return _Live(env, list(ids), [], [], [], [], []), state

    def _shown(self, observation: str, info: Mapping[str, Any]) -> str:
        offered = info.get("admissible")
        listed = f"\nCommands: {' | '.join(offered)}" if offered else ""
        return f"{observation}{listed}\n> "

    def _turns(
        self, model: Any, tokenizer: Any, live: list[_Live], seen: list[dict[str, Any]], trainer: Any
    ) -> list[list[int]]:
        """Return the tokens of a turn for every live episode."""
        contexts = [one.prompt + one.completion for one in live]
        if self.candidates is None:
            return self._written(model, tokenizer, contexts, trainer.temperature)
        offered = [list(self.candidates(state["observation"], state["info"])) for state in seen]
        tokens = [
            [tokenizer(self._ended(text), add_special_tokens=False).input_ids for text in texts] for texts in offered
        ]
        scores = _likelihoods(model, tokenizer, contexts, tokens)
        return [
            choices[int(torch.multinomial(torch.softmax(score / trainer.temperature, 0), 1, generator=self._draws))]
            for choices, score in zip(tokens, scores, strict=True)
        ]

    def _ended(self, text: str) -> str:
        return text if text.endswith(self.stop) else text + self.stop

    def _written(self, model: Any, tokenizer: Any, contexts: list[list[int]], temperature: float) -> list[list[int]]:
        width = max(map(len, contexts))
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in contexts], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in contexts], device=model.device)
        settings = GenerationConfig(
            do_sample=True, temperature=temperature, max_new_tokens=self.turn_tokens, pad_token_id=pad,
            eos_token_id=tokenizer.eos_token_id, stop_strings=[self.stop],
        )  # fmt: skip
        with torch.no_grad():
            rows = model.generate(ids, attention_mask=mask, generation_config=settings, tokenizer=tokenizer)
        return [self._cut(row[width:].tolist(), tokenizer) for row in rows]

    def _cut(self, ids: list[int], tokenizer: Any) -> list[int]:
        """Return the tokens up to the one that completes ``stop`` or ends the text, at least one."""
        for count in range(1, len(ids) + 1):
            if ids[count - 1] == tokenizer.eos_token_id or self.stop in tokenizer.decode(ids[:count]):
                return ids[:count]
        return ids

    def _take(self, live: _Live, state: dict[str, Any], turn: list[int], tokenizer: Any) -> bool:
        """Carry out a turn and write down what came of it; return whether the episode goes on."""
        text = tokenizer.decode(turn, skip_special_tokens=True)
        command = text.split(self.stop)[0].strip() if self.stop == "\n" else text.strip()
        anchor, info = state["info"]["anchor"], state["info"]
        observation, reward, terminated, truncated, following = live.env.step(command)
        live.steps.append(
            {
                "task": state["task"], "traj": state["traj"], "t": len(live.steps), "anchor": anchor,
                "reward": float(reward), "success": bool(following.get("won", False)), "truncated": bool(truncated),
                "valid": bool(following.get("valid", command in info.get("admissible", (command,)))),
                "process": dict(following.get("process", {})), "action": command, "next_observation": observation,
            }
        )  # fmt: skip
        start = len(live.completion)
        live.completion.extend(turn)
        live.mask.extend([1] * len(turn))
        live.spans.append((start, len(live.completion)))
        if self.segments is not None:
            found = self.segments(text, token_offsets(tokenizer, turn))
            live.segments.append({name: np.flatnonzero(inside).tolist() for name, inside in found.items()})
        state["observation"], state["info"] = observation, following
        if terminated or truncated:
            return False
        answer = tokenizer(f"{self._shown(observation, following)}", add_special_tokens=False).input_ids
        if len(live.steps) < self.max_turns:  # the loss never sees what follows the last turn
            live.completion.extend(answer)
            live.mask.extend([0] * len(answer))
        return True


def token_offsets(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last character (exclusive) of each token in the decoded text."""
    ends = [len(tokenizer.decode(ids[: place + 1], skip_special_tokens=True)) for place in range(len(ids))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _likelihoods(
    model: Any, tokenizer: Any, contexts: list[list[int]], tokens: list[list[list[int]]], rows: int = 16
) -> list[torch.Tensor]:
    """Return the log probability of each episode's candidates after its context; only their logits are made."""
    flat = [
        (place, context + choice, len(choice)) for place, context in enumerate(contexts) for choice in tokens[place]
    ]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    found: list[list[torch.Tensor]] = [[] for _ in contexts]
    for begin in range(0, len(flat), rows):
        part = flat[begin : begin + rows]
        width, longest = max(len(ids) for _, ids, _ in part), max(count for _, _, count in part)
        batch = torch.tensor([[pad] * (width - len(ids)) + ids for _, ids, _ in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for _, ids, _ in part], device=model.device)
        with torch.no_grad():
            logits = model(
                input_ids=batch, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                logits_to_keep=longest + 1,
            ).logits  # fmt: skip
        logs = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, batch[:, -longest:, None])[..., 0]
        for row, (place, _, count) in enumerate(part):
            found[place].append(logs[row, longest - count :].sum().cpu())
    return [torch.stack(scores) for scores in found]


def episode_return(prompts: Any, completions: Any, episode_return: list[float], **_: Any) -> list[float]:
    """Return each episode's return, which TRL logs as the reward."""
    return episode_return


class TurnGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO trainer over text environments with an advantage a turn; subclasses say which.

    Everything that `GRPOTrainer` takes but ``reward_funcs`` and ``rollout_func`` is passed on; prompts are texts. The
    loss aggregates as ``GRPOConfig.loss_type`` says: TRL's default "dapo" is a mean over tokens, so that long turns and
    long episodes weigh more. The episodes of a group must be on one process.

    Args:
        rollout: Plays the episodes.
        model: As in `GRPOTrainer`.
        **options: Of `GRPOTrainer`.
    """

    def __init__(self, rollout: EpisodeRollout, model: Any, **options: Any) -> None:
        for name in ("reward_funcs", "rollout_func"):
            if name in options:
                raise InputError(f"{name}: episodes bring their own; give the environment's reward instead")
        self.rollout = rollout
        super().__init__(model=model, reward_funcs=[episode_return], rollout_func=rollout, **options)

    def turn_advantages(self, batch: StepBatch) -> Credit:
        """Return the advantage of every turn, (S,), or one such array for each segment."""
        raise TypeError("a subclass says which advantages turns get")

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch = StepBatch.from_episodes([row[_EPISODE] for row in inputs])
        credit = self.turn_advantages(batch)
        output["advantages"] = token_advantages(inputs, credit, output["completion_ids"])
        return output


def token_advantages(inputs: Sequence[Mapping[str, Any]], credit: Credit, like: torch.Tensor) -> torch.Tensor:
    """Return advantages of tokens (B, T) from those of turns, 0 at the environment's tokens.

    Args:
        inputs: Rows with the spans of their turns.
        credit: Of turns, (S,), in the order of the rows' turns; or by segment.
        like: The completions' tokens, (B, T).
    """
    rows = [row for row, one in enumerate(inputs) for _ in one[_SPANS]]
    spans = [span for one in inputs for span in one[_SPANS]]
    width = like.shape[1]

    def masked(tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        mask = torch.zeros((len(spans), width), dtype=torch.bool)
        for turn, (start, _) in enumerate(spans):
            mask[turn, [start + token for token in tokens[turn]]] = True
        return mask

    whole = [list(range(end - start)) for start, end in spans]
    if isinstance(credit, Mapping):
        named = [segments for one in inputs for segments in one[_SEGMENTS]]
        masks = {name: masked([segments.get(name, []) for segments in named]) for name in credit}
        covered = torch.stack(list(masks.values())).any(0)
        masks["action"] = masks["action"] | (masked(whole) & ~covered)  # what no segment has, as line ends
        spread = broadcast_to_tokens({name: torch.as_tensor(values) for name, values in credit.items()}, masks)
    else:
        spread = broadcast_to_tokens(torch.as_tensor(credit), masked(whole))
    result = torch.zeros(like.shape, dtype=torch.float32)
    result.index_add_(0, torch.tensor(rows), spread.to(torch.float32))
    return result.to(like.device)
