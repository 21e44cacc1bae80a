"""Estimator of the gradient autocorrelation of a training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import core
from steelyard.optim.greedy_momentum.core import Floats
from steelyard.optim.greedy_momentum.greedy import exact


class GradAutocorrelation:
    """Estimates rho[n] = E<g_t, g_{t-n}> for n = 0..lags from the gradients of a training run.

    Call :meth:`update` after ``backward()``. Keeps the last ``lags`` gradients: lags x parameters numbers.

    Args:
        lags: Largest lag, at least 1.

    Raises:
        InputError: ``lags`` is not a whole number of at least 1.
    """

    def __init__(self, lags: int) -> None:
        if isinstance(lags, bool) or not isinstance(lags, int) or lags < 1:
            raise InputError(f"lags must be a whole number of at least 1, got {lags!r}.")
        self.lags = lags
        self.steps = 0
        self._sums = np.zeros(lags + 1)
        self._ring: Tensor | None = None  # [lags + 1, parameters]; row t % (lags + 1) holds step t

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """Record the gradients of ``parameters``, the same ones at every call; a missing gradient counts as zero.

        Raises:
            InputError: There is no parameter, their number has changed, or a gradient is not finite.
        """
        flat = [exact((torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).reshape(-1)) for p in parameters]
        if not flat:
            raise InputError("parameters must hold at least one tensor.")
        gradient = torch.cat(flat)
        if self._ring is None:
            self._ring = gradient.new_zeros(self.lags + 1, gradient.numel())
        if self._ring.shape[1] != gradient.numel():
            raise InputError(
                f"parameters must be the same at every call: {self._ring.shape[1]} numbers before, "
                f"{gradient.numel()} now."
            )
        row = self.steps % (self.lags + 1)
        self._ring[row] = gradient
        products = torch.mv(self._ring, gradient).to("cpu", torch.float64).numpy()
        if not np.isfinite(products[row]):
            self._ring[row] = 0
            raise InputError("parameters must have finite gradients; this step was not recorded.")
        known = min(self.steps, self.lags) + 1
        self._sums[:known] += products[(row - np.arange(known)) % (self.lags + 1)]
        self.steps += 1

    @property
    def rho(self) -> Floats:
        """rho[n] for n = 0..lags, each lag averaged over the pairs seen; lags without a pair yet are left out."""
        known = min(self.steps, self.lags + 1)
        return self._sums[:known] / (self.steps - np.arange(known))

    def curve(self, candidates: Sequence[float]) -> Floats:
        """Return the alignment J of each candidate on the recorded gradients (see :func:`alignment_curve`).

        The filter's norm is taken over the recorded lags, so that few lags do not favour a small momentum.

        Raises:
            InputError: Nothing was recorded, or a candidate is outside [0, 1).
        """
        if self.steps == 0:
            raise InputError("rho has no gradient yet: call update() after backward().")
        return core.alignment_curve(self.rho, candidates, normalization="truncated")
