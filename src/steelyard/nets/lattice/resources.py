"""What a trained network uses of its box, and whether the box is large enough (reconstruction)."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.torch_nn import LatticeRCNN
from steelyard.nets.lattice.training import refuse_dead_input

_BINDING = 0.05  # share of weight in the outermost channel, layer or step above which the box binds


class BoxWarning(UserWarning):
    """The outermost channel, layer or step carries weight: a larger box would be used."""


@dataclass(frozen=True)
class UsedResources:
    """What a network uses.

    Attributes:
        breadth: Per layer, channels whose norm is above the threshold times the network's largest.
        participation: Per layer, (sum n)^2 / sum n^2, a count of channels without a threshold; 0 for a dead layer.
        norms: Per layer, the sum of its channels' norms.
        depth: Number of layers with breadth above 0.
        depth_centre: Mean layer number, from 1, weighted with ``norms``.
        expected_time: Mean E[t]; None for adaptive time without images.
        macs: Multiply-adds of one image at E[t] with the used channels; None without images.
        seconds: Wall time of the full forward pass per image; None without images.
    """

    breadth: tuple[int, ...]
    participation: tuple[float, ...]
    norms: tuple[float, ...]
    depth: int
    depth_centre: float
    expected_time: float | None
    macs: float | None
    seconds: float | None


@dataclass(frozen=True)
class BoxCheck:
    """How much weight the outermost parts of the box carry, each from 0 to 1.

    Attributes:
        channel: Per layer, its smallest channel norm over its largest.
        layer: Norm of the last layer over that of the heaviest.
        step: Mean p_T; None for adaptive time without images.
        binding: Which of "channel", "layer" and "step" are above the limit.
    """

    channel: tuple[float, ...]
    layer: float
    step: float | None
    binding: tuple[str, ...]


def check_share(threshold: float) -> None:
    """Refuse a threshold outside [0, 1)."""
    if not core.is_number(threshold) or not 0 <= threshold < 1:
        raise InputError(f"threshold must be a share of the largest norm, at least 0 and below 1, not {threshold!r}.")


def channel_norms(model: LatticeRCNN, readout: bool) -> list[Tensor]:
    """Return every layer's channel norms without gradient; exactly 0 where all weights are 0."""
    with torch.no_grad():
        return [square.sqrt() for square in model.channel_squares(readout)]


def used_resources(
    model: LatticeRCNN, threshold: float = 0.05, images: Tensor | None = None, readout: bool = True
) -> UsedResources:
    """Return what the network uses of its box.

    Args:
        model: The network.
        threshold: Share of the network's largest channel norm below which a channel counts as unused.
        images: Images (B, C, H, W) to measure time, multiply-adds and seconds on.
        readout: Count readout columns in the norms.

    Raises:
        InputError: A threshold outside [0, 1), images that do not fit, or all of layer 1 dead.
    """
    check_share(threshold)
    refuse_dead_input(model)
    norms = channel_norms(model, readout)
    limit = threshold * max(float(norm.max()) for norm in norms)
    breadth = tuple(int((norm > limit).sum()) for norm in norms)
    sums = [float(norm.sum()) for norm in norms]
    centre = sum(layer * total for layer, total in enumerate(sums, 1)) / sum(sums)
    p, seconds = _measure_time(model, images)
    expected = None if p is None else float(core.expected_steps(p).mean())
    macs = None
    if images is not None and expected is not None:
        per_step = model.macs_per_step(images.shape[2], images.shape[3], breadth)
        macs = float(core.total_macs(per_step, torch.tensor(expected)))
    return UsedResources(
        breadth,
        tuple(_participation(norm) for norm in norms),
        tuple(sums),
        sum(count > 0 for count in breadth),
        centre,
        expected,
        macs,
        seconds,
    )


def box_check(model: LatticeRCNN, images: Tensor | None = None, readout: bool = True) -> BoxCheck:
    """Return the weight left in the outermost channels, layer and step, and warn when a larger box would be used.

    Args:
        model: The network.
        images: Images (B, C, H, W), needed to judge the last step of adaptive time.
        readout: Count readout columns in the norms.

    Raises:
        InputError: Images that do not fit, or all of layer 1 dead.

    Warns:
        BoxWarning: The outermost channel, layer or step carries more than 5 %.
    """
    refuse_dead_input(model)
    norms = channel_norms(model, readout)
    channel = tuple(float(norm.min() / norm.max()) if bool(norm.any()) else 0.0 for norm in norms)
    sums = [float(norm.sum()) for norm in norms]
    p, _ = _measure_time(model, images)
    step = None if p is None else float(p[:, -1].mean())
    shares = {"channel": max(channel), "layer": sums[-1] / max(sums), "step": 0.0 if step is None else step}
    binding = tuple(name for name, share in shares.items() if share > _BINDING)
    if binding:
        told = ", ".join(f"the last {name} carries {shares[name]:.0%}" for name in binding)
        warnings.warn(f"box too small: {told}; enlarge it or raise the price.", BoxWarning, stacklevel=2)
    return BoxCheck(channel, shares["layer"], step, binding)


def _measure_time(model: LatticeRCNN, images: Tensor | None) -> tuple[Tensor | None, float | None]:
    with torch.no_grad():
        if images is not None:
            start = time.perf_counter()
            p: Tensor = model(images).p_time
            return p, (time.perf_counter() - start) / len(images)
        if model.time == "fixed":
            return core.fixed_log_p(model.theta, 1).exp(), None
    return None, None


def _participation(norm: Tensor) -> float:
    square = float(norm.square().sum())
    return float(norm.sum()) ** 2 / square if square else 0.0
