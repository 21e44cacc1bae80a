"""The state of one prompt's vote while its copies are drawn, asked and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from steelyard import rng
from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.ending import checkpoint
from steelyard.guard.dr_smoothing.prompts import UserTurns
from steelyard.guard.dr_smoothing.rectifiers import Rectified
from steelyard.guard.dr_smoothing.result import RectifierStatus

_ROOT = "dr_smoothing"
_REDRAWS = 16  # of a copy in which noise left nothing but white space
_MANY = 0.5  # share of copies equal to the prompt from which the user is told

HARMFUL = (
    "at least gamma of the copies were judged jailbroken (the model complied): if this is an attack, voting does "
    "not stop it and more copies make it worse; for a harmless prompt this is as it should be"
)
IDLE = "at least half of the copies were not disrupted at all: raise q, or use min_chars for short prompts"
RESTORED = (
    "the rectifier gave back the prompt itself in at least half of the copies: it restores an attack as faithfully, "
    "and the vote is little more than a single call"
)


@dataclass
class Drawn:
    """One copy on its way: ``response`` and ``vote`` are None until they are known."""

    j: int
    disrupted: tuple[str, ...]
    rectified: tuple[str, ...]
    status: RectifierStatus = "none"
    refused: bool = False  # the rectifier's refusal stands in for the target's answer
    response: str | None = None
    vote: int | None = None

    def take(self, results: Sequence[Rectified], safe_vote: bool) -> None:
        """Take over what the rectifier made of this copy's texts."""
        refusal = next((result.text for result in results if result.refused), None)
        self.rectified = tuple(
            before if result.refused else result.text for result, before in zip(results, self.disrupted, strict=True)
        )
        if refusal is not None:
            self.status = "refused"
            if safe_vote:
                self.refused, self.response, self.vote = True, refusal, 0
        else:
            self.status = "failed" if any(result.failed for result in results) else "ok"


@dataclass(eq=False)
class Vote:
    """The vote on one prompt: its random streams, the copies so far and what they cost.

    Attributes:
        turns: The prompt and its user turns.
        n: Copies of the whole vote.
        t: Jailbroken copies that are still accepted.
        root: Seed of the call.
    """

    turns: UserTurns
    n: int
    t: int
    root: int
    copies: list[Drawn] = field(default_factory=list)
    answered: dict[tuple[str, ...], str] = field(default_factory=dict)
    calls: int = 0
    judge_errors: int = 0
    cut: int = 0

    def __post_init__(self) -> None:
        self._stream = f"{self.root}/{self.turns.digest()}"

    def seed(self, what: str, j: int) -> int:
        """Return the seed of the stream ``what`` of copy ``j``."""
        return rng.derive_seed(_ROOT, f"{self._stream}/{what}", j)

    def generator(self, what: str, j: int) -> np.random.Generator:
        """Return the generator of the stream ``what`` of copy ``j``."""
        return rng.generator(_ROOT, f"{self._stream}/{what}", j)

    def draw(self, disrupt: Callable[[str, np.random.Generator], str], j: int) -> Drawn:
        """Return copy ``j``, disrupted. A text left blank is drawn again; in the end the text itself is kept."""
        checkpoint()
        noise = self.generator("disrupt", j)
        texts = tuple(_disrupted(disrupt, text, noise) for text in self.turns.texts)
        return Drawn(j, texts, texts)

    @property
    def jailbroken(self) -> int:
        """Votes 1 so far."""
        return sum(int(copy.vote or 0) for copy in self.copies)

    @property
    def verdict(self) -> bool:
        """Whether more copies were jailbroken than are accepted."""
        return self.jailbroken > self.t

    def next_wave(self, early_stop: bool) -> range:
        """Return the copies to ask next.

        With an early stop: as many as can decide the vote at the soonest, so that never a copy is asked more than one
        at a time would, and none once the rest cannot change the verdict.
        """
        done = len(self.copies)
        if not early_stop:
            return range(done, self.n)
        wanting = min(self.t + 1 - self.jailbroken, self.n - self.t - (done - self.jailbroken))
        return range(done, done + max(0, wanting))

    def winner(self, choose: str) -> Drawn:
        """Return the copy of the majority whose answer is given back."""
        majority = [copy for copy in self.copies if copy.vote == int(self.verdict)]
        if choose == "first":
            return majority[0]
        if choose == "longest":
            return max(majority, key=lambda copy: len(str(copy.response)))
        return majority[int(self.generator("choose", 0).integers(len(majority)))]

    def counts(self) -> dict[str, int]:
        """Return what happened to the copies, by name."""
        status = [copy.status for copy in self.copies]
        return {
            "rectifier_calls": sum(one != "none" for one in status),
            "rectifier_failed": status.count("failed"),
            "rectifier_refused": status.count("refused"),
            "undisrupted": sum(copy.disrupted == self.turns.texts for copy in self.copies),
            "restored": sum(copy.rectified == self.turns.texts for copy in self.copies),
            "judge_errors": self.judge_errors,
            "answers_cut": self.cut,
        }

    def notes(self, gamma: float) -> tuple[str, ...]:
        """Return the sentences that warn of a vote that does not help; a single call is no vote."""
        if self.n == 1:
            return ()
        counts, drawn = self.counts(), len(self.copies)
        notes = []
        if self.jailbroken and self.jailbroken >= gamma * drawn:
            notes.append(HARMFUL)
        if counts["undisrupted"] >= _MANY * drawn:
            notes.append(IDLE)
        elif counts["restored"] >= _MANY * drawn:
            notes.append(RESTORED)
        return tuple(notes)


def _disrupted(disrupt: Callable[[str, np.random.Generator], str], text: str, noise: np.random.Generator) -> str:
    for _ in range(_REDRAWS):
        changed = disrupt(text, noise)
        if not isinstance(changed, str):
            raise InputError(f"disrupt must return a text, got {type(changed).__name__}")
        if changed.strip():
            return changed
    return text
