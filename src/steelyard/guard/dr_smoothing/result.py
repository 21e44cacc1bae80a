"""What a defence returns: the answer, the vote behind it, and every copy that was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.arguments import check_open_fraction
from steelyard.guard.dr_smoothing.certificates import SampleCertificate, certificate_of
from steelyard.models.protocols import Prompt

RectifierStatus = Literal["none", "ok", "failed", "refused"]


class SmoothingWarning(UserWarning):
    """Smoothing does not help here, or makes things worse."""


@dataclass(frozen=True)
class Copy:
    """One copy of a prompt on its way through a defence.

    Attributes:
        prompt: What the target was asked (system and earlier turns as they came).
        disrupted: The user's text after the noise (several turns: one a line).
        rectified: The user's text after the rectifier, or its fallback.
        response: The target's answer (the rectifier's refusal when that stood in for it).
        vote: 1 = judged jailbroken, 0 = not.
        rectifier: How the rectifier fared.
    """

    prompt: Prompt
    disrupted: str
    rectified: str
    response: str
    vote: int
    rectifier: RectifierStatus = "none"


@dataclass(frozen=True)
class SmoothedResponse:
    """An answer and the vote that chose it.

    Attributes:
        response: The answer; always one whose vote is the majority's.
        jailbroken: The verdict: more than floor(gamma n) of n copies jailbroken (a tie is not, at gamma = 1/2).
        votes: 0 or 1 for every copy that was evaluated; fewer than ``n`` after an early stop.
        copies: The copies, in the order of the votes.
        n: Copies that the rule is about.
        gamma: Vote threshold.
        chosen: Index of the copy whose answer is returned; None when a filter answered without asking the target.
        calls: Prompts that the target was asked, after de-duplication.
        counts: Named counts: rectifier calls, failures and refusals, copies equal to the prompt, judge errors.
        seed: Seed from which all of it can be drawn again.
        notes: Warnings about this prompt, as sentences.
        vote_n: Copies of the defence's own vote, where ``n`` samples were drawn to learn about it; None: ``n``.
    """

    response: str
    jailbroken: bool
    votes: tuple[int, ...]
    copies: tuple[Copy, ...]
    n: int
    gamma: float
    chosen: int | None
    calls: int
    counts: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None
    notes: tuple[str, ...] = ()
    vote_n: int | None = None

    @property
    def p_hat(self) -> float:
        """Share of the evaluated copies that were judged jailbroken; biased after an early stop."""
        return sum(self.votes) / len(self.votes) if self.votes else 0.0

    def certificate(self, confidence: float = 0.99) -> SampleCertificate:
        """Return the certificate that these votes give for this prompt (Clopper-Pearson).

        It speaks about a fresh vote of the defence's own number of copies on the prompt as it was sampled, also when
        ``sample`` drew more of them, and is void when these copies were also used to choose a setting.

        Raises:
            InputError: An early stop ended the sampling, so that the votes are no plain sample, or ``confidence`` is
                out of range.
        """
        check_open_fraction("confidence", confidence)
        if len(self.votes) != self.n:
            raise InputError(
                f"votes: {len(self.votes)} of {self.n} copies were evaluated; a certificate needs early_stop=False"
            )
        vote_n = self.n if self.vote_n is None else self.vote_n
        return certificate_of(sum(self.votes), len(self.votes), vote_n, confidence, self.gamma)

    def to_dict(self, confidence: float = 0.99) -> dict[str, Any]:
        """Return the record that a proxy adds to an answer; it holds no text of the prompt or of the answers.

        ``complied`` is the verdict: the model did what it was asked, which is right for a harmless prompt.
        ``certified`` is the certified probability of a successful defence, or None for a single call and after an
        early stop.
        """
        sampled = self.n > 1 and len(self.votes) == self.n
        return {
            "n": self.n,
            "gamma": self.gamma,
            "votes": list(self.votes),
            "complied": self.jailbroken,
            "p_hat": self.p_hat,
            "certified": self.certificate(confidence).success if sampled else None,
            "confidence": confidence,
            "calls": self.calls,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }
