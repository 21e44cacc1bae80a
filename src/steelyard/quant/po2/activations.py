"""Activations on 4-bit grids without touching the weights: hooks before the layers of a model, and grids for them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steelyard.errors import InputError
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer
from steelyard.quant.po2.calibration import Batches, run_batches
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.fitting import GridFit, fit_grids
from steelyard.quant.po2.layers import QuantizedConv, QuantizedLinear
from steelyard.quant.po2.selection import Filter, is_conv1d, output_heads
from steelyard.rng import torch_generator

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, QuantizedLinear, QuantizedConv)


class ActivationHandle:
    """What :func:`quantize_activations` put into a model; ``remove()`` or the end of a ``with`` block takes it out.

    Attributes:
        quantizers: Layer name -> its quantiser.
    """

    def __init__(self, quantizers: dict[str, ActivationQuantizer], hooks: list[RemovableHandle]) -> None:
        self.quantizers = quantizers
        self._hooks = hooks

    def remove(self) -> None:
        """Take the hooks out; the model computes as before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> ActivationHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


def quantize_activations(
    model: nn.Module,
    family: str | GridFamily = "sfp4",
    filter_fn: Filter | None = None,
    calibrate: Batches | None = None,
    group_size: int | None = None,
    scale: str | None = None,
    search: str = "none",
) -> ActivationHandle:
    """Fake-quantise the inputs of a model's linear layers and convolutions by forward-pre hooks.

    Groups are dynamic, per token along the features (along the channels of a convolution). The FP32 scale is per
    tensor: of the actual extremes, so that a token's values depend on its batch, or fixed by ``calibrate``.

    Args:
        model: Any module, quantised before or not.
        family: Grids; see :func:`fit_activation_grids`.
        filter_fn: (module, name) -> whether to quantise its input, asked for linear layers and convolutions. None:
            all but output heads (``lm_head``, ``embed_out`` and what ``get_output_embeddings`` names).
        calibrate: Batches that the unquantised model is run on first, to fix each layer's FP32 scale.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window".

    Returns:
        A handle, also a context manager.

    Raises:
        InputError: An unknown name, an option out of range, no layer, or no batch.
    """
    layers = _layers(model, filter_fn)
    quantizers = {}
    for name, layer in layers.items():
        quantizers[name] = ActivationQuantizer(family, group_size, scale, search, _axis(layer))
    if calibrate is not None:
        watching = [_before(layer, quantizers[name].observe) for name, layer in layers.items()]
        with ActivationHandle(quantizers, watching):
            run_batches(model, calibrate)
    return ActivationHandle(quantizers, [_before(layer, quantizers[name]) for name, layer in layers.items()])


def fit_activation_grids(
    model: nn.Module,
    batches: Batches,
    filter_fn: Filter | None = None,
    group_size: int = 16,
    groups_per_layer: int = 2000,
    seed: int = 0,
    **options: Any,
) -> GridFit:
    """Learn grids on what a model's layers see, pooled; activations have outliers that weights have not.

    Args:
        model: Any module.
        batches: Batches to run it on.
        filter_fn: As in :func:`quantize_activations`.
        group_size: Size of the groups that are sampled.
        groups_per_layer: Groups kept of each layer, a uniform sample over all batches.
        seed: Of the sample and of the fit.
        options: For :func:`steelyard.quant.fit_grids`, e.g. ``n_grids`` or ``pin_ends``.

    Returns:
        The fit; its ``family`` goes into :func:`quantize_activations`.

    Raises:
        InputError: No layer, no batch, or what ``fit_grids`` refuses.
    """
    layers = _layers(model, filter_fn)
    kept: dict[str, Tensor] = {}
    ranks: dict[str, Tensor] = {}
    generators = {name: torch_generator("calibration", f"activation groups of {name}", seed) for name in layers}

    def watch(name: str, axis: int) -> Callable[[Tensor], None]:
        def keep(x: Tensor) -> None:
            rows = x.detach().float().movedim(axis, -1).reshape(-1, x.shape[axis])
            whole = rows[:, : rows.shape[1] // group_size * group_size].reshape(-1, group_size)
            rank = torch.rand(len(whole), generator=generators[name]).to(whole.device)
            if name in kept:
                whole, rank = torch.cat((kept[name], whole)), torch.cat((ranks[name], rank))
            ranks[name], best = rank.topk(min(groups_per_layer, len(rank)), largest=False, sorted=False)
            kept[name] = whole[best]

        return keep

    watching = [_before(layer, watch(name, _axis(layer))) for name, layer in layers.items()]
    with ActivationHandle({}, watching):
        run_batches(model, batches)
    pool = [kept[name].cpu() for name in layers if name in kept and kept[name].numel()]
    if not pool:
        raise InputError(f"no layer of the model has {group_size} or more inputs; choose a smaller group_size")
    return fit_grids(pool, group_size=group_size, seed=seed, **options)


def _layers(model: nn.Module, filter_fn: Filter | None) -> dict[str, nn.Module]:
    is_head = output_heads(model)
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        known = isinstance(module, _KINDS) or is_conv1d(module)
        if known and (not is_head(module, name) if filter_fn is None else filter_fn(module, name)):
            found[name] = module
    if not found:
        raise InputError("model has no linear layer or convolution whose inputs could be quantised; check filter_fn")
    return found


def _axis(layer: nn.Module) -> int:
    if isinstance(layer, QuantizedConv):
        return 1 - len(layer.kernel_shape)
    return -1 - len(layer.kernel_size) if isinstance(layer, nn.Conv1d | nn.Conv2d) else -1


def _before(layer: nn.Module, see: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        seen = see(arguments[0])
        return None if seen is None else (seen, *arguments[1:])

    return layer.register_forward_pre_hook(hook)
