"""Attacks that optimise against the expectation over a defence's own noise (expectation over transformation, EOT).

Reconstruction: the paper claims adaptive scenarios without saying which. The attacker draws ``m`` samples of (disrupt,
rectify), averages the target's loss over them and keeps a candidate when the average improves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard import rng
from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.arguments import check_count
from steelyard.guard.dr_smoothing.prompts import user_turns
from steelyard.guard.dr_smoothing.result import SmoothedResponse
from steelyard.models.protocols import Prompt

Loss = Callable[[list[Prompt]], Sequence[float]]
"""The attacker's loss of each copy that the target would be asked; lower is nearer to success."""


class Defence(Protocol):
    """What an attack needs of a defence; all defences of this room have it."""

    def batch(self, prompts: Sequence[Prompt], *, seed: int | None = None) -> list[SmoothedResponse]:
        """Return the defended answers."""
        ...

    def sample(self, prompts: Sequence[Prompt], n: int, *, seed: int | None = None) -> list[SmoothedResponse]:
        """Return the votes of ``n`` copies of each prompt."""
        ...

    def draw(self, prompts: Sequence[Prompt], n: int | None = None, *, seed: int | None = None) -> list[list[Prompt]]:
        """Return ``n`` copies of each prompt as the target would be asked them."""
        ...


class Objective:
    """The attacker's expected loss, estimated from fresh samples of the defence's noise at every call.

    Args:
        defence: The defence under attack.
        n_samples: Samples m of (disrupt, rectify) per candidate.
        loss: White box: the loss of each copy. None: black box, the share of copies that were *not* jailbroken.
        stream: Name of the random stream.
    """

    def __init__(self, defence: Defence, n_samples: int, loss: Loss | None, stream: str) -> None:
        self.defence, self.n_samples, self.loss, self._stream = defence, n_samples, loss, stream
        self.queries = 0
        self._calls = 0

    def __call__(self, candidates: Sequence[Prompt]) -> NDArray[np.float64]:
        """Return the mean loss of each candidate, shape (candidates,).

        Raises:
            InputError: The loss did not give one finite number per copy.
        """
        seed = rng.derive_seed("dr_smoothing", self._stream, self._calls)
        self._calls += 1
        if self.loss is None:
            results = self.defence.sample(candidates, self.n_samples, seed=seed)
            self.queries += sum(result.calls for result in results)
            return np.array([1 - result.p_hat for result in results])
        copies = self.defence.draw(candidates, self.n_samples, seed=seed)
        flat = [copy for many in copies for copy in many]
        self.queries += len(flat)
        losses = np.asarray(self.loss(flat), dtype=np.float64)
        if losses.shape != (len(flat),) or not np.isfinite(losses).all():
            raise InputError(f"loss must return one finite number per copy: {len(flat)} copies were asked for")
        return np.asarray(losses.reshape(len(candidates), -1).mean(axis=1))


Attack = Callable[[str, Objective], str]
"""An attack: from a prompt and its objective to the prompt that it found."""


@dataclass(frozen=True)
class AdaptiveReport:
    """What an adaptive attack achieved.

    Attributes:
        attacked: The prompts that the attack found.
        results: The defence's votes on them, with noise that the attack had not seen.
        clean: The defence's votes on the prompts as they were.
        queries: Copies that the attack looked at.
    """

    attacked: tuple[str, ...]
    results: tuple[SmoothedResponse, ...]
    clean: tuple[SmoothedResponse, ...]
    queries: int

    @property
    def success_rate(self) -> float:
        """Share of the attacked prompts whose vote came out as jailbroken."""
        return sum(result.jailbroken for result in self.results) / len(self.results)

    @property
    def clean_rate(self) -> float:
        """The same of the prompts as they were."""
        return sum(result.jailbroken for result in self.clean) / len(self.clean)


def adaptive_eval(
    defence: Defence,
    attack: Attack,
    *,
    prompts: Sequence[str],
    n_samples: int = 4,
    loss: Loss | None = None,
    seed: int = 0,
) -> AdaptiveReport:
    """Let an attack optimise each prompt against a defence, then judge what it found with fresh noise.

    Args:
        defence: The defence, with a target of its own.
        attack: Called with (prompt, objective), returns the attacked prompt; see :class:`SuffixSearch`.
        prompts: Harmful prompts, texts.
        n_samples: Samples of (disrupt, rectify) per candidate.
        loss: White box: the loss of each copy; None: the vote itself (black box).
        seed: Root of all draws.

    Raises:
        InputError: No prompt, an argument out of range, or an attack that returns no text.
    """
    check_count("n_samples", n_samples, least=1)
    check_count("seed", seed, least=0)
    if isinstance(prompts, str) or not len(prompts):
        raise InputError("prompts must be a list of at least one text")
    attacked, queries = [], 0
    for index, prompt in enumerate(prompts):
        objective = Objective(defence, n_samples, loss, f"{seed}/adaptive/{index}")
        found = attack(prompt, objective)
        if not isinstance(found, str) or not found.strip():
            raise InputError(f"attack must return a text for prompts[{index}], got {type(found).__name__}")
        attacked.append(found)
        queries += objective.queries
    fresh = rng.derive_seed("dr_smoothing", f"{seed}/verdict", 0)
    return AdaptiveReport(
        tuple(attacked),
        tuple(defence.batch(attacked, seed=fresh)),
        tuple(defence.batch(list(prompts), seed=fresh)),
        queries,
    )


class SuffixSearch:
    """A small black-box attack: words of a suffix are replaced at random, what lowers the mean loss is kept.

    Among equals the newest is kept, so that the search wanders where no vote changes instead of standing still.
    Needs no gradient, so it runs against any endpoint; a gradient attack on a model of one's own is stronger.

    Args:
        vocabulary: Words that a suffix may hold.
        length: Words of the suffix.
        steps: Rounds.
        candidates: Suffixes tried per round; the best one so far is scored anew beside them.
        seed: Root of the draws.
    """

    def __init__(
        self, vocabulary: Sequence[str], length: int = 8, steps: int = 20, candidates: int = 8, seed: int = 0
    ) -> None:
        if isinstance(vocabulary, str) or not len(vocabulary):
            raise InputError("vocabulary must be a list of at least one word")
        check_count("length", length, least=1)
        check_count("steps", steps, least=1)
        check_count("candidates", candidates, least=1)
        self.vocabulary = list(vocabulary)
        self.length, self.steps, self.candidates, self.seed = length, steps, candidates, seed

    def __call__(self, prompt: str, objective: Callable[[Sequence[Prompt]], Any]) -> str:
        """Return the prompt with the best suffix found."""
        noise = rng.generator("dr_smoothing", f"{self.seed}/suffix/{user_turns(prompt).digest()}", 0)
        best = [self._word(noise) for _ in range(self.length)]
        for _ in range(self.steps):
            tried = [best, *(self._changed(best, noise) for _ in range(self.candidates))]
            losses = objective([" ".join([prompt, *suffix]) for suffix in tried])
            best = tried[len(tried) - 1 - int(np.argmin(np.asarray(losses)[::-1]))]
        return " ".join([prompt, *best])

    def _changed(self, suffix: list[str], noise: np.random.Generator) -> list[str]:
        changed = list(suffix)
        changed[int(noise.integers(self.length))] = self._word(noise)
        return changed

    def _word(self, noise: np.random.Generator) -> str:
        return self.vocabulary[int(noise.integers(len(self.vocabulary)))]
