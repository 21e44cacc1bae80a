"""Quantise the layers of any ``nn.Module``; the door to everything of this method that works on modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from steelyard.errors import InputError, NoEffectWarning
from steelyard.quant.po2 import core
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer
from steelyard.quant.po2.activations import ActivationHandle, fit_activation_grids, quantize_activations
from steelyard.quant.po2.calibration import Batches, second_moments
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.gptq import gptq as gptq_matrix
from steelyard.quant.po2.layers import PackedLayer, QuantizedConv, QuantizedLinear, leave_fused_paths
from steelyard.quant.po2.selection import Filter, default_filter, matrix_of, quantizable
from steelyard.quant.po2.tensor import QuantizedTensor, quantize

__all__ = [
    "ActivationHandle", "ActivationQuantizer", "QuantizedConv", "QuantizedLinear", "default_filter",
    "fit_activation_grids", "matrix_of", "quantizable", "quantize_activations", "quantize_model",
]  # fmt: skip

Progress = Callable[[int, int, str], None]
_HESSIAN_BYTES = 2**29  # of Hessians held at once; more layers are calibrated in several passes

# The seams: what these layers' replacements take over.
assert tuple(nn.Conv1d(1, 1, 3, padding=1, device="meta")._reversed_padding_repeated_twice) == (1, 1)
assert hasattr(nn.TransformerEncoderLayer(2, 1, 2, device="meta"), "activation_relu_or_gelu")


@dataclass(frozen=True)
class _Options:
    family: GridFamily
    group_size: int | None
    scale: str | None
    search: str
    activations: str | GridFamily | None


def quantize_model(
    model: nn.Module,
    family: str | GridFamily = "mpo2",
    group_size: int | None = None,
    filter_fn: Filter | None = None,
    search: str = "none",
    activations: str | GridFamily | None = None,
    importance: Mapping[str, Tensor] | bool | None = None,
    calibration: Batches | None = None,
    gptq: bool = False,
    damping: float = 0.01,
    scale: str | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """Replace layers of ``model`` by packed ones, in place, and return it (the convention of torchao's quantize_).

    Take ``copy.deepcopy(model)`` first to keep the original. All other parameters stay as they are and trainable; a
    weight that several layers share is packed once and stays shared. If ``model`` itself is a layer, the packed one
    is returned and ``model`` is left alone.

    Args:
        model: Any module.
        family: Grids of the weights.
        group_size: Elements that share a scale, along the inputs; None takes the family's.
        filter_fn: (module, name) -> whether to quantise, asked for layers that can be packed only. None:
            :func:`default_filter`.
        search: "none", "4o6", "sweep" or "window".
        activations: Family for the inputs of these layers (W4A4, dynamic); None leaves them alone (W4A16).
        importance: Layer name -> weights >= 0 of its input columns, or True: E[x_j^2] over ``calibration``.
        calibration: Batches for ``importance=True`` or ``gptq``: each a tensor, a tuple of arguments or a mapping.
        gptq: Quantise with :func:`steelyard.quant.po2.gptq.gptq`, in as many passes over ``calibration`` as the
            Hessians need. Layers without calibration (grouped convolutions, layers that are never called) are rounded.
        damping: Of GPTQ, in units of the mean diagonal.
        scale: Format of the group scales; None takes the family's.
        progress: Called with (layers done, layers in all, name).

    Returns:
        ``model``.

    Raises:
        InputError: An unknown name, an option out of range, calibration that is missing or unused, or a weight that
            cannot be quantised; its layer is named.
    """
    options = _Options(find_family(family), group_size, scale, search, activations)
    core.plan(options.family, group_size, scale, search)
    _check_calibration(importance, calibration, gptq)
    names = _targets(model, filter_fn)
    if not names:
        warnings.warn("quantize_model found no layer to quantise", NoEffectWarning, stacklevel=2)
        return model
    if empty := [name for module, name in names.items() if matrix_of(module).is_meta]:
        raise InputError(f"model: the weight of layer '{empty[0]}' lies on the meta device; load its values first")
    hints: Mapping[str, Tensor] = importance if isinstance(importance, Mapping) else {}
    if unknown := sorted(set(hints) - set(names.values())):
        raise InputError(
            f"importance names '{unknown[0]}', which is no layer to quantise; use names of named_modules()"
        )
    if importance is True and calibration is not None:
        hints = second_moments(model, _measurable(names), calibration)
    packed: dict[int, PackedLayer] = {}
    done = 0
    for chunk in _chunks(names) if gptq else [names]:
        hessians: Mapping[str, Tensor] = {}
        if gptq and calibration is not None:
            hessians = second_moments(model, _measurable(chunk), calibration, full=True)
        made = {}
        for module, name in chunk.items():
            made[module] = _pack(module, name, options, hints.get(name), hessians.get(name), damping, packed)
            done += 1
            if progress is not None:
                progress(done, len(names), name)
        for module, layer in made.items():  # after all have been made: an error leaves the model as it was
            model = _replace(model, module, layer)
    leave_fused_paths(model)
    return model


def _check_calibration(importance: object, calibration: object, gptq: bool) -> None:
    if gptq and importance is not None:
        raise InputError("importance is not used with gptq, which takes it from its Hessians; leave one of the two out")
    if importance is not None and not isinstance(importance, bool | Mapping):
        kind = type(importance).__name__
        raise InputError(f"importance must be a mapping of layer names to weights, True or None; got {kind}")
    needed = gptq or importance is True
    if needed and calibration is None:
        raise InputError("calibration is missing: gptq and importance=True need batches of inputs")
    if not needed and calibration is not None:
        raise InputError("calibration is given but not used: set gptq=True or importance=True")
    if needed and iter(calibration) is calibration:  # type: ignore[call-overload]
        raise InputError("calibration must be a list or another iterable that can be run over again")


def _targets(model: nn.Module, filter_fn: Filter | None) -> dict[nn.Module, str]:
    """Return the layers to quantise, each once, under their first name."""
    keep = default_filter(model) if filter_fn is None else filter_fn
    return {module: name for name, module in model.named_modules() if quantizable(module) and keep(module, name)}


def _measurable(names: Mapping[nn.Module, str]) -> dict[str, nn.Module]:
    """Return the layers whose rows all see the same inputs: grouped convolutions are left out."""
    return {name: module for module, name in names.items() if getattr(module, "groups", 1) == 1}


def _chunks(names: dict[nn.Module, str]) -> list[dict[nn.Module, str]]:
    """Cut layers, in order, so that the float64 Hessians of each part stay within bounds."""
    chunks: list[dict[nn.Module, str]] = [{}]
    held = 0
    for module, name in names.items():
        size = 8 * matrix_of(module).shape[1] ** 2
        if chunks[-1] and held + size > _HESSIAN_BYTES:
            chunks.append({})
            held = 0
        chunks[-1][module] = name
        held += size
    return chunks


def _pack(
    module: nn.Module,
    name: str,
    options: _Options,
    importance: Tensor | None,
    hessian: Tensor | None,
    damping: float,
    packed: dict[int, PackedLayer],
) -> PackedLayer:
    """Return the packed layer for ``module``; one that shares its weight lends its buffers."""
    weight: Any = module.weight
    twin = packed.get(id(weight))
    try:
        if twin is None:
            matrix = matrix_of(module)
            found = _quantize(matrix, options, importance, hessian, damping)
        else:
            found = twin.weight
        made = _layer(module, found, options.activations)
    except InputError as error:
        raise InputError(f"layer '{name}' ({type(module).__name__}): {error}") from None
    if twin is None:
        packed[id(weight)] = made
    else:
        made.share_weight(twin)
    made.train(module.training)
    for hooks in (
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
    ):
        setattr(made, hooks, getattr(module, hooks))  # the same dictionary: handles of hooks still work
    return made


def _quantize(
    matrix: Tensor, options: _Options, importance: Tensor | None, hessian: Tensor | None, damping: float
) -> QuantizedTensor:
    family, size, scale, search = options.family, options.group_size, options.scale, options.search
    if hessian is not None:
        return gptq_matrix(matrix, hessian, family, size, scale, search, damping)
    return quantize(matrix, family, size, scale, search, importance=importance)


def _layer(module: nn.Module, weight: QuantizedTensor, activations: str | GridFamily | None) -> PackedLayer:
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return QuantizedConv(module, weight, activations)
    bias: Any = module.bias
    return QuantizedLinear.from_quantized(weight, bias, activations)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put ``new`` wherever ``old`` is a child, and return the root."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    return model
