"""Which layers of a model can be packed, and which of them are by default."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Filter = Callable[[nn.Module, str], bool]
"""(module, name) -> whether it is meant."""

_HEADS = ("lm_head", "embed_out")


def quantizable(module: nn.Module) -> bool:
    """Return whether ``module`` is a layer that :func:`quantize_model` can pack.

    That is ``nn.Linear``, ``nn.Conv1d``, ``nn.Conv2d`` and transformers' ``Conv1D`` themselves; subclasses may use
    their weight in ways of their own (as the output projection of ``nn.MultiheadAttention`` does) and are left alone,
    as are layers whose weight is made by a parametrisation or a hook.
    """
    if "weight" not in module._parameters or module.weight is None:
        return False
    return type(module) in (nn.Linear, nn.Conv1d, nn.Conv2d) or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """Return whether this is transformers' Conv1D, a linear layer whose weight is stored (in, out)."""
    utilities = sys.modules.get("transformers.pytorch_utils")
    return utilities is not None and type(module) is utilities.Conv1D


def output_heads(model: nn.Module) -> Filter:
    """Return the rule for output heads: what ``get_output_embeddings`` names, and layers with a head's name."""
    find_head = getattr(model, "get_output_embeddings", None)
    head = find_head() if callable(find_head) else None
    return lambda module, name: module is head or name.rpartition(".")[2] in _HEADS


def default_filter(model: nn.Module) -> Filter:
    """Return the default rule for a model: all layers that can be packed, except these.

    - Output heads: what ``get_output_embeddings`` names and layers called ``lm_head`` or ``embed_out``.
    - Weights shared with a module that stays as it is, such as an embedding or a head.
    - Convolutions whose contraction (in_channels / groups * kernel) is below 16, depthwise ones above all.
    """
    is_head = output_heads(model)

    def wanted(module: nn.Module, name: str) -> bool:
        if not quantizable(module) or is_head(module, name):
            return False
        weight: Any = module.weight
        return bool(weight.ndim == 2 or weight[0].numel() >= 16)

    kept = {id(p) for name, m in model.named_modules() if not wanted(m, name) for p in m.parameters(recurse=False)}

    def keep(module: nn.Module, name: str) -> bool:
        return wanted(module, name) and id(module.weight) not in kept

    return keep


def matrix_of(module: nn.Module) -> Tensor:
    """Return a layer's weight as (outputs, contraction), a view where possible."""
    weight: Any = module.weight
    matrix: Tensor = weight.t() if is_conv1d(module) else weight.flatten(1)
    return matrix
