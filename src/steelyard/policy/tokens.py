"""From steps to the tokens of a language model: every token of a turn gets its step's advantage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.groups import plain


def broadcast_to_tokens(advantage: Any, mask: Any) -> Any:
    """Return advantages of tokens, shape (S, L).

    Args:
        advantage: Shape (S,), or a mapping from segment (``"progress"``, ``"action"`` …) to arrays of shape (S,).
        mask: Shape (S, L), 1 where a token belongs to the response; for a mapping of advantages, a mapping from segment
            to such masks, which must not overlap. Tensors give a tensor of the same device.

    Returns:
        The advantage of its step (and segment) at every token under the mask, exactly 0 elsewhere.

    Raises:
        InputError: Shapes do not fit, segments differ or overlap.
    """
    if isinstance(advantage, Mapping) != isinstance(mask, Mapping):
        raise InputError("mask: advantages by segment need masks by segment, and the other way round")
    if not isinstance(advantage, Mapping):
        return _spread(advantage, mask, "mask")
    if not set(mask) <= set(advantage):
        raise InputError(f"mask: no advantage for the segments {sorted(set(mask) - set(advantage))}")
    total, covered = None, None
    for name in sorted(mask):
        part = _spread(advantage[name], mask[name], f"mask['{name}']")
        under = np.asarray(plain(mask[name])) != 0
        if covered is not None and covered.shape != under.shape:
            raise InputError(f"mask['{name}']: it has shape {under.shape}, that of other segments {covered.shape}")
        if covered is not None and bool((covered & under).any()):
            raise InputError(f"mask['{name}']: a token belongs to two segments")
        covered = under if covered is None else covered | under
        total = part if total is None else total + part
    if total is None:
        raise InputError("mask: it names no segment")
    return total


def _spread(advantage: Any, mask: Any, name: str) -> Any:
    try:
        advantage, mask = (value if hasattr(value, "detach") else np.asarray(value) for value in (advantage, mask))
    except ValueError:
        raise InputError(f"{name}: it must be a table with rows of one length, the advantages a list") from None
    if mask.ndim != 2 or advantage.ndim != 1 or len(advantage) != len(mask):
        raise InputError(
            f"{name}: it must have a row for each of the advantages {tuple(advantage.shape)}, got {tuple(mask.shape)}"
        )
    tensor = next((value for value in (mask, advantage) if hasattr(value, "detach")), None)
    if tensor is None:
        return np.where(mask != 0, advantage[:, None], 0.0)
    import torch

    values, under = (torch.as_tensor(value, device=tensor.device) for value in (advantage, mask))
    return torch.where(under != 0, values[:, None], torch.zeros((), dtype=values.dtype, device=values.device))
