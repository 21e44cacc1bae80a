"""From an arm's settings to a defence, with the library's own classes."""

from __future__ import annotations

from typing import Any

from steelyard.guard.dr_smoothing.config import Config
from steelyard.guard.dr_smoothing.core import (
    disrupt_delete_words,
    disrupt_insert,
    disrupt_mask_words,
    disrupt_patch,
    disrupt_random,
    disrupt_swap,
)
from steelyard.guard.dr_smoothing.kernels import unchanged
from steelyard.guard.dr_smoothing.rectifiers import Chain, LLMRectifier, SpellRectifier
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing


def kernel(config: Config) -> Any:
    """Return the disruption that ``config`` describes."""
    if config.disrupt == "swap":
        return disrupt_swap(config.q, config.alphabet)
    if config.disrupt == "insert":
        return disrupt_insert(config.q, config.alphabet, quirk=config.quirk)
    if config.disrupt == "patch":
        return disrupt_patch(config.q, config.alphabet)
    if config.disrupt == "mask_words":
        return disrupt_mask_words(config.rate)
    if config.disrupt == "delete_words":
        return disrupt_delete_words(config.rate)
    return disrupt_random(config.q, config.rate, config.alphabet)


def rectifier(config: Config, lm: Any = None) -> Any:
    """Return the rectifier that ``config`` describes, None for none; ``lm`` is the model of those that need one."""
    if config.rectify == "none":
        return None
    spell = SpellRectifier(config.coherence, config.min_unigram)
    if config.rectify == "spell":
        return spell
    model = LLMRectifier(lm, temperature=config.temperature)
    return model if config.rectify == "llm" else Chain(spell, model)


def smoothing(config: Config, generate: Any, judge: Any, seed: int, lm: Any = None, **options: Any) -> DRSmoothing:
    """Return the smoothing defence of an arm of kind ``smoothing``, ``none`` or ``rectify_only``.

    The last two are the same loop with one undisturbed copy, so that all arms are judged and counted alike.

    Args:
        config: The settings.
        generate: The target.
        judge: Whether an answer complied.
        seed: Root of all draws.
        lm: The model of a rectifier that needs one.
        **options: Further arguments of the class.
    """
    alone = config.kind in ("none", "rectify_only")
    return DRSmoothing(
        generate,
        disrupt=unchanged if alone else kernel(config),
        rectify=None if config.kind == "none" else rectifier(config, lm),
        judge=judge,
        n=1 if alone else config.n,
        gamma=config.gamma,
        seed=seed,
        choose=config.choose,
        on_rectifier_refusal=config.on_rectifier_refusal,
        **options,
    )
