"""What a score costs beside generation and beside methods that sample more answers (reconstruction)."""

from __future__ import annotations

from typing import NamedTuple

from steelyard.errors import InputError


class DetectorCost(NamedTuple):
    """What scoring one answer costs beside drawing k more answers, for T tokens."""

    forward_tokens: float
    sampling_forward_tokens: float
    decode_steps: float
    sampling_decode_steps: float
    flops_ratio: float
    time_ratio: float


def detector_cost(T: int, prompt_len: int, k: int = 10, reuse_states: bool = True, shared: bool = True) -> DetectorCost:
    """Return the cost of one score and of ``k`` samples; ratios say how many times dearer sampling is.

    Where a decode step is bound by memory, as on a GPU, the detector's pass over T tokens is counted as 2 of them (it
    takes about 1 to 3) and the time ratio is k T / 2; a context pass that is not reused counts 2 more. On a processor
    reading a long prompt takes as long as its operations do, so there ``time_ratio`` flatters two passes. The ratio of
    operations is k where the samples share the prompt's cache and k (1 + prompt/T) where each encodes it again.

    Args:
        T: Tokens of the answer.
        prompt_len: Tokens of the prompt.
        k: Samples of the method compared with.
        reuse_states: The context states come from the generation, so that only the answer alone is run.
        shared: The samples share the prompt's cache.
    """
    for name, value in (("T", T), ("prompt_len", prompt_len), ("k", k)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    own = float(1 + T if reuse_states else 1 + prompt_len + 2 * T)
    sampled = float(k * T if shared else k * (T + prompt_len))
    steps = 2.0 if reuse_states else 4.0
    answer_tokens = T if reuse_states else 2 * T + prompt_len
    return DetectorCost(own, sampled, steps, float(k * T), sampled / answer_tokens, k * T / steps)
