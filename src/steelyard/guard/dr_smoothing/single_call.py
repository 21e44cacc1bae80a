"""The common part of all defences that ask the target at most once per prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard import rng
from steelyard.guard.dr_smoothing.arguments import check_count, check_one_of
from steelyard.guard.dr_smoothing.judges import PrefixJudge, as_judge
from steelyard.guard.dr_smoothing.prompts import UserTurns
from steelyard.guard.dr_smoothing.result import Copy, SmoothedResponse
from steelyard.guard.dr_smoothing.smoothing import (
    OnJudgeError,
    answers,
    checked_sampling,
    fresh_seed,
    judged,
    read_prompts,
    target,
)
from steelyard.models.protocols import CausalLM, Prompt, as_lm

REFUSAL = "I'm sorry, but I can't help with that."
"""What a filter answers in the place of the target."""


class Baseline:
    """A defence that asks the target at most once per prompt; as it is, it asks the prompt unchanged.

    Args:
        generate: The target: a language model, or a function from a list of prompts to a list of texts.
        judge: A judge, or a function from an answer to a bool (True: complied).
        seed: Root of all draws; None draws a fresh one per call.
        on_judge_error: What an answer without a verdict counts as: "raise", "safe" or "jailbroken".
        sampling: max_new_tokens, temperature, top_p and stop for the target.
    """

    def __init__(
        self,
        generate: Any = None,
        *,
        judge: Any = None,
        seed: int | None = 0,
        on_judge_error: OnJudgeError = "raise",
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        check_one_of("on_judge_error", on_judge_error, ("raise", "safe", "jailbroken"))
        self.generate = None if generate is None else as_lm(generate)
        self.judge = as_judge(PrefixJudge() if judge is None else judge, catch=on_judge_error != "raise")
        self.seed, self.on_judge_error = seed, on_judge_error
        self.sampling = checked_sampling(sampling)

    def __call__(self, prompt: Prompt, *, generate: Any = None, seed: int | None = None) -> SmoothedResponse:
        """Return the defended answer to one prompt; see :meth:`batch`."""
        return self.batch([prompt], generate=generate, seed=seed)[0]

    def batch(
        self, prompts: Sequence[Prompt], *, generate: Any = None, seed: int | None = None
    ) -> list[SmoothedResponse]:
        """Return the defended answers to many prompts from one call of the target.

        Args:
            prompts: Texts or chat messages.
            generate: A target in the place of the defence's own.
            seed: A seed in the place of the defence's own.

        Raises:
            InputError: A prompt is empty or holds no user text, or no target is known.
        """
        lm = target(self.generate, generate)
        root = fresh_seed(self.seed if seed is None else seed)
        turns = read_prompts(prompts)
        blocked = self._flag([each.request for each in turns], lm) if turns else []
        sent = [each for each, block in zip(turns, blocked, strict=True) if not block]
        seeds = [rng.derive_seed("dr_smoothing", f"{root}/{each.digest()}/respond", 0) for each in sent]
        replies = answers(lm, [self._prompt(each) for each in sent], seeds, self.sampling)
        withheld = self._flag_answers(replies, lm) if replies else []
        verdicts = judged(self.judge, replies, [each.request for each in sent], self.on_judge_error)
        asked = iter(zip(replies, withheld, verdicts, strict=True))
        return [
            self._filtered(each, root, 0) if block else self._answered(each, root, *next(asked))
            for each, block in zip(turns, blocked, strict=True)
        ]

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, generate: Any = None, seed: int | None = None
    ) -> list[SmoothedResponse]:
        """Return what :meth:`batch` does: there is one call and no copy to draw; ``n`` must be at least 1."""
        check_count("n", n, least=1)
        return self.batch(prompts, generate=generate, seed=seed)

    def draw(self, prompts: Sequence[Prompt], n: int | None = None, *, seed: int | None = None) -> list[list[Prompt]]:
        """Return what the target would be asked for each prompt, ``n`` times the same (1 when left out)."""
        return [[self._prompt(each)] * (1 if n is None else n) for each in read_prompts(prompts)]

    def _prompt(self, turns: UserTurns) -> Prompt:
        """Return what the target is asked."""
        return turns.prompt

    def _flag(self, texts: list[str], lm: CausalLM) -> list[bool]:
        """Return which requests are refused without asking the target."""
        return [False] * len(texts)

    def _flag_answers(self, texts: list[str], lm: CausalLM) -> list[bool]:
        """Return which answers are withheld."""
        return [False] * len(texts)

    def _answered(
        self, turns: UserTurns, root: int, reply: str, withhold: bool, verdict: tuple[int, bool]
    ) -> SmoothedResponse:
        if withhold:
            return self._filtered(turns, root, 1)
        vote, failed = verdict
        copy = Copy(self._prompt(turns), turns.request, turns.request, reply, vote)
        counts = {"filtered": 0, "judge_errors": int(failed)}
        return SmoothedResponse(reply, bool(vote), (vote,), (copy,), 1, 0.5, 0, 1, counts, root)

    def _filtered(self, turns: UserTurns, root: int, calls: int) -> SmoothedResponse:
        copy = Copy(self._prompt(turns), turns.request, turns.request, REFUSAL, 0)
        return SmoothedResponse(REFUSAL, False, (0,), (copy,), 1, 0.5, None, calls, {"filtered": 1}, root)
