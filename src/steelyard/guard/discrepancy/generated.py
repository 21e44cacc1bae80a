"""The states of an answer's tokens out of what ``generate`` of transformers returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from steelyard.errors import InputError
from steelyard.guard.discrepancy.core import Array, as_float


def states_of_output(out: Any, layers: Sequence[int], ends: set[int]) -> tuple[list[Array], list[list[int]]]:
    """Return for each row of ``out`` the states (layers, T, d) and the ids of its T answer tokens.

    Step t of ``generate`` feeds answer token t, so its states at that token are those of step t; step 0 feeds the
    prompt. The last token is fed only when another one, such as EOS, was asked for after it.

    Args:
        out: A decoder-only output with ``sequences`` and ``hidden_states``.
        layers: Indices of the hidden states.
        ends: Tokens that end an answer and do not belong to it.

    Raises:
        InputError: No states, other layers, beams, or a row without a token whose states are there.
    """
    steps = getattr(out, "hidden_states", None)
    if not steps:
        raise InputError(
            "out holds no hidden states; call generate(output_hidden_states=True, return_dict_in_generate=True)"
        )
    if getattr(out, "beam_indices", None) is not None:
        raise InputError("out comes from a beam search, whose states belong to other beams; generate with num_beams=1")
    for layer in layers:
        if layer >= len(steps[0]) or steps[0][layer] is None:
            raise InputError(f"out holds no states of layer {layer}; pass output_hidden_states=True")
    prompt = steps[0][layers[0]].shape[1]
    found, answers = [], []
    for row, sequence in enumerate(out.sequences):
        new = sequence[prompt:].tolist()
        length = next((place for place, token in enumerate(new) if token in ends), len(new))
        fed = min(length, len(steps) - 1)
        if not fed:
            raise InputError(
                f"out.sequences[{row}] has no answer token with states; leave it out, or generate one token more"
            )
        kept = [torch.stack([step[layer][row, -1] for layer in layers]) for step in steps[1 : fed + 1]]
        found.append(as_float(torch.stack(kept, dim=1)))
        answers.append(new[:fed])
    return found, answers
