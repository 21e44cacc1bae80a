"""How likely a language model finds each of a few short answers behind many prompts that start alike.

The start that the prompts share runs once, what is left of each prompt once, and only the answers' own tokens once per
answer: several times cheaper than a pass per prompt and answer, with the same result up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.batches import Ids, common_start, padded
from steelyard.models.decoder import Decoder
from steelyard.models.generation import repeated, shared_start

if TYPE_CHECKING:
    from steelyard.models.transformers_lm import TransformersLM


def mean_log_probabilities(
    lm: TransformersLM, prompts: Sequence[Ids], answers: Sequence[Ids], batch_size: int = 16
) -> NDArray[np.float64]:
    """Return the mean log-probability per token of every answer behind every prompt, float64 (prompts, answers).

    The mean instead of the sum is the usual length normalisation: an answer of three tokens is not at a disadvantage.

    Args:
        lm: The model.
        prompts: Tokens of each prompt, at least one.
        answers: Tokens of each answer, at least one.
        batch_size: Prompts at a time.

    Raises:
        InputError: A prompt or an answer without tokens, or too long for the model together.
    """
    if not prompts or not answers or not all(map(len, prompts)) or not all(map(len, answers)):
        raise InputError("prompts and answers must hold at least one text each, none of them empty.")
    if max(map(len, prompts)) + max(map(len, answers)) > lm.context:
        raise InputError(f"a prompt and an answer are longer than the model's context of {lm.context} tokens.")
    shared = min(len(prompt) for prompt in prompts) - 1
    for prompt in prompts[1:]:
        shared = min(shared, common_start(prompts[0], prompt))
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)  # rows of one length need no padding
    found = np.empty((len(prompts), len(answers)))
    with lm.exclusive():
        decoder = Decoder(lm.model)
        start = shared_start(decoder, prompts[0][:shared])
        for members in by_length.values():
            for place in range(0, len(members), batch_size):
                batch = members[place : place + batch_size]
                tails = [prompts[index][shared:] for index in batch]
                found[batch] = _scores(decoder, start, shared, tails, answers)
    return found


def _scores(
    decoder: Decoder, start: Any, shared: int, tails: Sequence[Ids], answers: Sequence[Ids]
) -> NDArray[np.float64]:
    """Return the scores behind tails of one length, (tails, answers)."""
    torch = require("torch", "models")
    ids, mask = padded(tails, "left", decoder.device)
    mask = torch.cat([mask.new_ones((len(tails), shared)), mask], dim=1)
    logits, cache = decoder.logits(ids, mask, repeated(start, len(tails)))
    first = torch.log_softmax(logits[:, -1], -1)
    total = first[:, [answer[0] for answer in answers]].double()
    if max(map(len, answers)) > 1:
        cache.batch_repeat_interleave(len(answers))
        inputs, seen = padded([answer[:-1] or [0] for answer in answers] * len(tails), "right", decoder.device)
        whole = torch.cat([mask.repeat_interleave(len(answers), 0), seen], dim=1)
        logits, _ = decoder.logits(inputs, whole, cache, keep=inputs.shape[1])
        logs = torch.log_softmax(logits, -1).reshape(len(tails), len(answers), inputs.shape[1], -1)
        for column, answer in enumerate(answers):
            for step, token in enumerate(answer[1:]):
                total[:, column] += logs[:, column, step, token]
    lengths = torch.tensor([len(answer) for answer in answers], device=total.device)
    scores: NDArray[np.float64] = (total / lengths).cpu().numpy()
    return scores
