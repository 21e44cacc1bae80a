"""What layers see on calibration data: second moments of their inputs, for importance weights and for GPTQ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import InputError

Batches = Iterable[Any]


def run_batches(model: nn.Module, batches: Batches) -> int:
    """Run ``model`` in evaluation mode, without gradient, over ``batches``; its mode is put back.

    Args:
        model: Any module.
        batches: Each a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.

    Returns:
        How many batches there were.

    Raises:
        InputError: There is no batch.
    """
    count = 0
    with evaluating(model), torch.no_grad():
        for batch in batches:
            call(model, batch)
            count += 1
    if not count:
        raise InputError("calibration must hold at least one batch; an iterator can be used up only once, pass a list")
    return count


def call(model: nn.Module, batch: Any) -> Any:
    """Return what ``model`` makes of a batch: a mapping of keyword arguments, a tuple or list, or one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all parts of ``model`` into evaluation mode for a while."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def contraction_rows(module: nn.Module, x: Tensor) -> Tensor:
    """Return a layer's input as rows of what its weight's rows are multiplied with, float32 (n, columns).

    Args:
        module: A linear layer, or a convolution with one group, whose patches are unfolded in the weight's order.
        x: Its input.
    """
    x = x.detach().float()
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.reshape(-1, x.shape[-1])
    spatial = len(module.kernel_size)
    if x.ndim == spatial + 1:
        x = x[None]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = nn.functional.pad(x, module._reversed_padding_repeated_twice, mode)
    if spatial == 1:
        x = x[:, :, None]
    kernel, stride, dilation = (
        (1,) * (2 - spatial) + tuple(v) for v in (module.kernel_size, module.stride, module.dilation)
    )
    patches = nn.functional.unfold(x, kernel, dilation=dilation, stride=stride)
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])


def second_moments(
    model: nn.Module, layers: Mapping[str, nn.Module], batches: Batches, full: bool = False
) -> dict[str, Tensor]:
    """Return the second moments of what ``layers`` of ``model`` see.

    Args:
        model: The model that the layers are part of.
        layers: Name -> linear layer or convolution with one group.
        batches: As in :func:`run_batches`.
        full: The whole X^T X, (columns, columns), where otherwise E[x_j^2], (columns,), is given.

    Returns:
        Name -> float64 moments. A layer that is never called is left out.

    Raises:
        InputError: No batch, or an input that holds NaN or infinity.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            rows = contraction_rows(module, arguments[0])
            moment = (rows.T @ rows if full else rows.square().sum(0)).double()
            sums[name] = sums[name] + moment if name in sums else moment
            counts[name] = counts.get(name, 0) + len(rows)

        return hook

    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        run_batches(model, batches)
    finally:
        for handle in handles:
            handle.remove()
    for name, moment in sums.items():
        if not bool(moment.isfinite().all()):
            raise InputError(f"calibration makes NaN or infinity at the input of layer '{name}'; check its batches")
    return sums if full else {name: moment / max(1, counts[name]) for name, moment in sums.items()}
