"""What a batch of generated texts costs in forward passes, before it is run (reconstruction; no clock is read)."""

from __future__ import annotations

from typing import NamedTuple

from steelyard.errors import InputError

SMOLLM2_PARAMETERS = 134_515_008


class Cost(NamedTuple):
    """Work of one call.

    Attributes:
        prefill_tokens: Prompt tokens that go through the model; bound by arithmetic.
        decode_tokens: Further tokens, one at a time per text; the first new one comes with the prompt.
        decode_steps: Passes over all weights for them, whatever the batch; bound by memory.
        flops: 2 operations per parameter and token; attention over the context is left out.
    """

    prefill_tokens: int
    decode_tokens: int
    decode_steps: int
    flops: int

    @property
    def tokens(self) -> int:
        """All tokens that go through the model."""
        return self.prefill_tokens + self.decode_tokens


def estimate_cost(
    prompt_len: int, shared_len: int, n: int, new_tokens: int, parameters: int = SMOLLM2_PARAMETERS
) -> Cost:
    """Return the cost of ``n`` texts from prompts of one length whose start is run once, in one batch.

    Args:
        prompt_len: Tokens of each prompt.
        shared_len: How many of them are the same in all and run once; 0 without sharing.
        n: Texts.
        new_tokens: Tokens of each text.
        parameters: Of the model; SmolLM2-135M by default.

    Raises:
        InputError: A number is out of range.
    """
    if min(prompt_len, n, new_tokens, parameters) < 1:
        raise InputError("prompt_len, n, new_tokens and parameters must be at least 1")
    if not 0 <= shared_len < prompt_len:
        raise InputError(f"shared_len must be from 0 to prompt_len - 1 = {prompt_len - 1}, got {shared_len}")
    prefill = shared_len + n * (prompt_len - shared_len)
    decode = n * (new_tokens - 1)
    return Cost(prefill, decode, new_tokens - 1, 2 * parameters * (prefill + decode))
