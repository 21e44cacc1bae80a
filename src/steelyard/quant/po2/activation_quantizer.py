"""A module that puts activations on 4-bit grids, group by group along the features of every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.tensor import fake_quantize


class ActivationQuantizer(nn.Module):
    """Quantise and dequantise activations; the gradient passes straight through (reconstruction of the paper's W4A4).

    Groups lie along ``axis``, so every token has its own; the FP32 scale is one for the tensor, from its actual
    extremes, or from ``amax`` once :meth:`observe` has seen data.

    Args:
        family: Name or family of grids; grids for activations should be learned on activations.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window".
        axis: Axis along which groups lie, -1 for features last.

    Attributes:
        amax: float32, the largest magnitude observed, 0 before; kept float32 when the model changes its dtype.

    Raises:
        InputError: An unknown name or an option out of range.
    """

    amax: Tensor

    def __init__(
        self,
        family: str | GridFamily = "sfp4",
        group_size: int | None = None,
        scale: str | None = None,
        search: str = "none",
        axis: int = -1,
    ) -> None:
        super().__init__()
        self.plan = core.plan(find_family(family), group_size, scale, search)
        self.search = search
        self.axis = axis
        self.register_buffer("amax", torch.zeros((), dtype=torch.float32))

    def observe(self, x: Tensor) -> None:
        """Raise ``amax`` to the largest magnitude in ``x``.

        Raises:
            InputError: ``x`` holds NaN or infinity.
        """
        if x.numel():
            seen = x.detach().abs().amax().float()
            if not bool(seen.isfinite()):
                raise InputError("x must be finite, but the activations hold NaN or infinity; calibrate on sound data")
            self.amax = torch.maximum(self.amax, seen.to(self.amax.device))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` on the grids, in its shape and dtype.

        Raises:
            InputError: ``x`` holds NaN or infinity.
        """
        if not x.numel():
            return x
        options, largest = self.plan, float(self.amax)
        fixed = None
        if largest:
            fixed = scales.tensor_scale(options.family, options.form, -largest, largest, options.cap, options.factors)
        quantized = fake_quantize(
            x, options.family, options.group_size, options.form.name, self.search, tensor_scale=fixed, axis=self.axis
        )
        return x + (quantized - x).detach() if x.requires_grad else quantized

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        kept = self.amax
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.amax = kept.to(self.amax.device)
        return self

    def extra_repr(self) -> str:
        """Return the options for ``repr``."""
        return f"{self.plan.family.name}, group_size={self.plan.group_size}, scale={self.plan.form.name}"


def as_quantizer(activations: Any, axis: int = -1) -> ActivationQuantizer | None:
    """Return a new quantiser for a family, or None for None; a quantiser is taken as it is."""
    if activations is None or isinstance(activations, ActivationQuantizer):
        return activations
    return ActivationQuantizer(activations, axis=axis)
