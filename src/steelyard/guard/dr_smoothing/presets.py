"""Defences by name, as a command line or a bench writes them, and one prompt shown with and without one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steelyard.errors import InputError, did_you_mean
from steelyard.guard.dr_smoothing.baselines import NoDefence, RectifyOnly
from steelyard.guard.dr_smoothing.core import disrupt_swap
from steelyard.guard.dr_smoothing.judges import LLMJudge, PrefixJudge
from steelyard.guard.dr_smoothing.rectifiers import Chain, LLMRectifier, SpellRectifier
from steelyard.guard.dr_smoothing.result import SmoothedResponse
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing

DEFENCES = ("none", "rectify", "smoothllm", "dr", "paper")
RECTIFIERS = ("spell", "llm", "both")
JUDGES = ("strict", "smoothllm", "llm")


def named_judge(name: str, lm: Any = None) -> Any:
    """Return the judge ``name``, one of ``JUDGES``; "llm" asks ``lm``.

    Raises:
        InputError: Another name.
    """
    if name == "llm":
        return LLMJudge(lm)
    _check("judge", name, JUDGES)
    return PrefixJudge(name)  # type: ignore[arg-type]


def named_rectifier(name: str, lm: Any = None) -> Any:
    """Return the rectifier ``name``, one of ``RECTIFIERS``; "llm" and "both" (spelling, then a paraphrase) ask ``lm``.

    Raises:
        InputError: Another name.
    """
    _check("rectify", name, RECTIFIERS)
    if name == "spell":
        return SpellRectifier()
    return LLMRectifier(lm) if name == "llm" else Chain(SpellRectifier(), LLMRectifier(lm))


def named_defence(
    name: str,
    lm: Any,
    *,
    n: int = 9,
    q: float = 0.10,
    rectify: str = "spell",
    judge: str = "strict",
    **options: Any,
) -> Any:
    """Return the defence ``name``, one of ``DEFENCES``, round ``lm``.

    Args:
        name: "none" (one call), "rectify" (repaired, one call), "smoothllm" (disrupted copies), "dr" (disrupted and
            rectified copies), or "paper" (a random disruption per copy, spelling, then a paraphrase by ``lm``).
        lm: The target; rectifier and judge by a language model ask it too.
        n: Copies, where there are copies.
        q: Share of the characters that are disrupted; at least one, if any.
        rectify: Name of the rectifier.
        judge: Name of the judge.
        **options: Further arguments of :class:`DRSmoothing`: seed, early_stop, sampling, …

    Raises:
        InputError: An unknown name, or an argument out of range.
    """
    _check("defence", name, DEFENCES)
    options["judge"] = named_judge(judge, lm)
    if name in ("none", "rectify"):
        kept = {key: value for key, value in options.items() if key in ("judge", "seed", "sampling")}
        return (
            NoDefence(lm, **kept) if name == "none" else RectifyOnly(lm, rectify=named_rectifier(rectify, lm), **kept)
        )
    if name == "paper":
        return DRSmoothing.paper(lm, n=n, **options)
    repair = named_rectifier(rectify, lm) if name == "dr" else None
    return DRSmoothing(lm, n=n, disrupt=disrupt_swap(q=q, min_chars=1), rectify=repair, **options)


def side_by_side(guard: DRSmoothing, prompt: str, confidence: float = 0.99) -> dict[str, Any]:
    """Return what a page shows of one prompt: the undefended answer, the vote, every copy, and the bound.

    Args:
        guard: A defence with a target of its own.
        prompt: Text.
        confidence: Of the certificate.
    """
    plain = NoDefence(guard.generate, judge=guard.judge, seed=guard.seed, sampling=guard.sampling)(prompt)
    found = guard(prompt)
    complied = sum(found.votes)
    verdict = "most copies complied" if found.jailbroken else "most copies did not: the model refuses"
    return {
        "undefended": plain.response,
        "response": found.response,
        "jailbroken": found.jailbroken,
        "verdict": f"{complied} of {len(found.votes)} copies complied: {verdict}",
        "bound": _bound(found, confidence),
        "chosen": found.chosen,
        "calls": plain.calls + found.calls,
        "notes": list(found.notes),
        "copies": [_shown(copy) for copy in found.copies],
    }


def _shown(copy: Any) -> Mapping[str, Any]:
    return {name: getattr(copy, name) for name in ("disrupted", "rectified", "response", "vote")}


def _bound(found: SmoothedResponse, confidence: float) -> str:
    if found.jailbroken:
        return "Most copies complied; nothing is certified."
    least = math.floor(1000 * found.certificate(confidence).success) / 1000  # not rounded up
    return (
        f"From these {len(found.votes)} copies, at {confidence:.0%} confidence: a fresh vote of {found.n} on this "
        f"prompt ends in a refusal with probability at least {least:.3f}. Few copies certify little; the bound speaks "
        "about this prompt only."
    )


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(f"{what} must be one of {', '.join(known)}, got '{name}'.{did_you_mean(name, known)}")
