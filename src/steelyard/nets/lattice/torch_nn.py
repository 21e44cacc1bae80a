"""The lattice network as ``nn.Module`` and its costs as plain tensors for any training loop."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from steelyard import rng
from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.core import PositionWeight
from steelyard.nets.lattice.kernels import Kernel, make_kernel

TimeSelection = Literal["adaptive", "fixed"]
_RECURRENT_INIT = 0.5  # lateral and top-down weights start smaller, else the states grow from step to step


class LatticeOutput(NamedTuple):
    """What a forward pass gives, for B inputs, T steps and K classes.

    Attributes:
        logits: log sum_t p_t softmax(y_t), log-probabilities of shape (B, K).
        step_logits: The readouts y_t, shape (B, T, K).
        p_time: Halting distributions, shape (B, T); they sum to 1.
        expected_time: E[t] in steps from 1 to T, shape (B,).
        log_p_time: log p_time, for losses; shape (B, T).
    """

    logits: Tensor
    step_logits: Tensor
    p_time: Tensor
    expected_time: Tensor
    log_p_time: Tensor


class LatticeRCNN(nn.Module):
    """A finite box of the lattice of units (channel, layer, time); weights are shared over time.

    h_{l,t} = relu(Wbu_l * h_{l-1,t-1} + Wlat_l * h_{l,t-1} + Wtd_l * h_{l+1,t-1} + b_l) with h_{0,t} the image,
    h_{l,0} = 0 and 3x3 'same' convolutions; y_t = sum_l R_l pool(h_{l,t}) + bias. Bottom-up, lateral and top-down
    connections and the fixed or adaptive choice of time are second hand, the formulas are a reconstruction.

    Args:
        in_channels: Channels of the image.
        n_classes: Number of classes, at least 2.
        max_channels: Channels of every layer, or one number per layer.
        max_layers: L.
        max_steps: T, at least L: the deepest layer sees the image at step L.
        time: "adaptive" (hazards that depend on the readout's entropy) or "fixed" (one distribution for all inputs).
        pool: States are averaged over pool x pool regions before the readout.
        stride: Spatial stride of each layer: one number for all, one per layer, or None for 1.
        halting_bound: The soft clip of the hazards' logits; None for no clip.
        halting_start: Where the hazards' logits b_t start.
        state_term: Add a learned linear function of the pooled states to the hazards' logits.
        readout_scale: Factor of the pooled states.
        input_range: Images outside of it are refused; None allows any finite value.
        seed: Of the initial weights, or a torch.Generator to draw them from.

    Raises:
        InputError: A size that cannot be, T < L, an unknown ``time``.
    """

    def __init__(
        self,
        in_channels: int,
        n_classes: int,
        max_channels: int | Sequence[int],
        max_layers: int,
        max_steps: int,
        time: TimeSelection = "adaptive",
        pool: int = 2,
        stride: int | Sequence[int] | None = None,
        *,
        halting_bound: float | None = 6.0,
        halting_start: float = -1.5,
        state_term: bool = False,
        readout_scale: float = 3.0,
        input_range: tuple[float, float] | None = (0.0, 1.0),
        seed: int | torch.Generator = 0,
    ) -> None:
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels)
        self.n_classes = whole_number("n_classes", n_classes, 2)
        layers = whole_number("max_layers", max_layers)
        self.widths = _per_layer("max_channels", max_channels, layers)
        self.strides = _per_layer("stride", 1 if stride is None else stride, layers)
        self.max_steps, self.pool = whole_number("max_steps", max_steps), whole_number("pool", pool)
        _check_time(time, self.max_steps, layers, halting_bound, halting_start)
        if not core.is_number(readout_scale) or not 0 < readout_scale < math.inf:
            raise InputError(f"readout_scale must be a positive number, not {readout_scale!r}.")
        _check_range(input_range)
        self.time: TimeSelection = time
        self.halting_bound, self.halting_start, self.state_term = halting_bound, halting_start, state_term
        self.readout_scale, self.input_range = readout_scale, input_range
        self._build(torch_generator("init", seed))

    def _build(self, generator: torch.Generator) -> None:
        weights = []
        for index, width in enumerate(self.widths):
            parts = self.fan_in(index)
            scales = (1.0, _RECURRENT_INIT, _RECURRENT_INIT)
            drawn = [
                torch.randn(width, part, 3, 3, generator=generator) * (scale * math.sqrt(2 / (9 * part)))
                for part, scale in zip(parts, scales, strict=True)
                if part
            ]
            weights.append(nn.Parameter(torch.cat(drawn, 1)))
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(width)) for width in self.widths])
        pooled = self.pooled_size
        self.readout = nn.Parameter(torch.randn(self.n_classes, pooled, generator=generator) / math.sqrt(pooled))
        self.readout_bias = nn.Parameter(torch.zeros(self.n_classes))
        if self.time == "fixed":
            self.theta = nn.Parameter(torch.zeros(self.max_steps))
            return
        self.halting_bias = nn.Parameter(torch.full((self.max_steps - 1,), self.halting_start))
        self.kappa = nn.Parameter(torch.zeros(()))
        if self.state_term:
            self.halting_state = nn.Parameter(torch.zeros(pooled))

    @property
    def n_layers(self) -> int:
        """Number of layers L of the box."""
        return len(self.widths)

    @property
    def pooled_size(self) -> int:
        """How many pooled numbers the readout sees."""
        return sum(self.widths) * self.pool**2

    def fan_in(self, layer: int) -> tuple[int, int, int]:
        """Return the input channels of layer ``layer`` (from 0): from below, its own, from above (0: none)."""
        below = self.widths[layer - 1] if layer else self.in_channels
        above = self.widths[layer + 1] if layer + 1 < len(self.widths) else 0
        return below, self.widths[layer], above

    def halting_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the time selection, which train at their own rate."""
        names = ("theta", "halting_bias", "kappa", "halting_state")
        return [parameter for name, parameter in self.named_parameters() if name in names]

    def readout_by_channel(self) -> list[Tensor]:
        """Return the readout columns of each layer's channels: views of shape (C_l, K, pool * pool)."""
        columns = self.readout.view(self.n_classes, -1, self.pool**2).transpose(0, 1)
        return list(torch.split(columns, list(self.widths)))

    def channel_squares(self, readout: bool = True) -> list[Tensor]:
        """Return n_{l,c}^2 per layer, (C_l,): squared incoming weights (bottom-up, lateral, top-down), biases left out.

        Args:
            readout: Count the channel's readout columns too. That closes the dodge of small incoming and large
                outgoing weights, which a ReLU network may use to evade a cost on norms.
        """
        squares = [weight.flatten(1).square().sum(1) for weight in self.weights]
        if not readout:
            return squares
        return [
            square + columns.flatten(1).square().sum(1)
            for square, columns in zip(squares, self.readout_by_channel(), strict=True)
        ]

    def forward(self, x: Tensor) -> LatticeOutput:
        """Run all steps.

        Args:
            x: Images of shape (B, in_channels, H, W), B >= 1, inside ``input_range``.

        Raises:
            InputError: A shape that does not fit, NaN, values outside ``input_range``.
        """
        kernel = self.begin(x)
        state = kernel.first()
        pooled = [self.pooled(state)]
        for _ in range(self.max_steps - 1):
            state = kernel.step(state)
            pooled.append(self.pooled(state))
        features = torch.stack(pooled, 1)
        step_logits = self.read(features)
        log_p = self.log_p_time(step_logits, features)
        p = log_p.exp()
        return LatticeOutput(core.mixture_log_probs(step_logits, log_p), step_logits, p, core.expected_steps(p), log_p)

    def begin(self, x: Tensor) -> Kernel:
        """Return the recurrent step for these images, after checking them."""
        self._check(x)
        return make_kernel(x, list(self.weights), list(self.biases), self.strides)

    def pooled(self, state: list[Tensor]) -> Tensor:
        """Return what the readout sees of a state: (B, pooled_size)."""
        parts = [_pool(h, self.pool).flatten(1) for h in state]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def read(self, pooled: Tensor) -> Tensor:
        """Return the readout y of pooled states (..., pooled_size): (..., K)."""
        return functional.linear(pooled, self.readout * self.readout_scale, self.readout_bias)

    def log_p_time(self, step_logits: Tensor, features: Tensor) -> Tensor:
        """Return log p_t of shape (B, T) from all readouts (B, T, K) and pooled states (B, T, pooled_size)."""
        if self.time == "fixed":
            return core.fixed_log_p(self.theta, step_logits.shape[0])
        term = features[:, :-1] @ self.halting_state if self.state_term else None
        z = core.halting_logits(self.halting_bias, self.kappa, step_logits[:, :-1], term, self.halting_bound)
        return core.adaptive_log_p(z)

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return each layer's (height, width) for images of this size."""
        return core.layer_sizes(height, width, self.strides)

    def macs_per_step(self, height: int, width: int, active: Sequence[int] | None = None) -> tuple[int, int, int]:
        """Return the multiply-adds of one image: (image term, recurrent step, readout of one step).

        Args:
            height: Of the image.
            width: Of the image.
            active: Active channels per layer; None for all.
        """
        active = self.widths if active is None else active
        outputs = self.n_classes + int(self.state_term)
        return core.macs_per_step(
            active, self.sizes(height, width), self.in_channels, outputs * sum(active) * self.pool**2
        )

    def _check(self, x: Tensor) -> None:
        dense = isinstance(x, Tensor) and x.layout == torch.strided
        if not dense or not x.is_floating_point() or x.ndim != 4 or x.shape[0] == 0:
            raise InputError(
                "x must be a dense floating tensor of images (batch, channels, height, width), batch at least 1."
            )
        if x.shape[1] != self.in_channels:
            raise InputError(f"x has {x.shape[1]} channels, but the network takes in_channels = {self.in_channels}.")
        if x.dtype != self.readout.dtype or x.device != self.readout.device:
            raise InputError(
                f"x is {x.dtype} on {x.device}, but the network is {self.readout.dtype} on {self.readout.device}."
            )
        if min(x.shape[2:]) < 1 or min(self.sizes(*x.shape[2:])[-1]) < self.pool:
            raise InputError(f"x is {tuple(x.shape[2:])} pixels: its deepest layer is smaller than pool = {self.pool}.")
        lowest, highest = (float(value) for value in x.detach().aminmax())
        if not math.isfinite(lowest) or not math.isfinite(highest):
            raise InputError("x holds NaN or infinite values.")
        if self.input_range is not None and (lowest < self.input_range[0] or highest > self.input_range[1]):
            raise InputError(
                f"x has values from {lowest:g} to {highest:g}, outside input_range = {self.input_range}; rescale the "
                "images, or build the network with another input_range."
            )


@dataclass(frozen=True)
class ResourceCost:
    """The price of breadth, depth and time, as tensors to add to the loss of any training loop.

    Args:
        breadth: lamB, weight of the rank-weighted channel norms.
        depth: lamD, weight of the layer-weighted channel norms.
        time: lamT, weight of the expected number of steps.
        q: Power of the norms, 1 (group lasso, drives channels to zero) or 2 (weight decay).
        ramp: All prices rise linearly over this share of the training; 0 for none. A price of time from the first
            step makes the network answer before it has learned anything.
        breadth_weight: Price of a rank: "linear" r / C, "uniform" or a function of (ranks, C).
        depth_weight: Price of a layer: "linear" l / L, "uniform" or a function of (layer numbers, L).
        time_prior: None prices E[t]; a rate in (0, 1) prices the divergence from a geometric prior (PonderNet).
        readout_in_norms: Count a channel's readout columns in its norm.
        readout_decay: Weight of the readout's squared norm, the other way to close the same dodge.

    Raises:
        InputError: A weight that is negative or not finite, an unknown q, a ramp outside [0, 1].
    """

    breadth: float = 0.0
    depth: float = 0.0
    time: float = 0.0
    q: int = 1
    ramp: float = 0.4
    breadth_weight: PositionWeight = "linear"
    depth_weight: PositionWeight = "linear"
    time_prior: float | None = None
    readout_in_norms: bool = True
    readout_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("breadth", "depth", "time", "readout_decay"):
            check_price(name, getattr(self, name))
        if self.q not in (1, 2):
            raise InputError(f"q must be 1 (group lasso) or 2 (weight decay), not {self.q!r}.")
        if not core.is_number(self.ramp) or not 0 <= self.ramp <= 1:
            raise InputError(f"ramp must be a share of the training between 0 and 1, not {self.ramp!r}.")
        prior = self.time_prior
        if prior is not None and not (core.is_number(prior) and 0 < prior < 1):
            raise InputError(f"time_prior must be a rate between 0 and 1 or None, not {prior!r}.")
        for name in ("breadth_weight", "depth_weight"):
            core.position_weights(torch.ones(1), 1, getattr(self, name))

    def __call__(self, model: nn.Module, output: LatticeOutput, progress: float = 1.0) -> dict[str, Tensor]:
        """Return the weighted terms "breadth", "depth", "time" and "readout"; add their sum to the loss.

        A price of zero gives a constant zero, so the loss keeps its bits.

        Args:
            model: A LatticeRCNN.
            output: What the model returned for the batch.
            progress: Share of the training done, from 0 to 1, for the ramp.

        Raises:
            InputError: The model has a batch norm (its weights have no scale, so a cost on norms means nothing), is no
                LatticeRCNN, or ``progress`` is outside [0, 1].
        """
        net = _lattice(model)
        if not core.is_number(progress) or not 0 <= progress <= 1:
            raise InputError(f"progress must be between 0 and 1, not {progress!r}.")
        factor = min(1.0, progress / self.ramp) if self.ramp else 1.0
        zero = net.readout.new_zeros(())
        terms = {"breadth": zero, "depth": zero, "time": zero, "readout": zero}
        if factor == 0.0:
            return terms
        if self.breadth or self.depth:
            powers = core.norm_powers(net.channel_squares(self.readout_in_norms), self.q)
            if self.breadth:
                terms["breadth"] = factor * self.breadth * core.breadth_of_norms(powers, self.breadth_weight)
            if self.depth:
                terms["depth"] = factor * self.depth * core.depth_of_norms(powers, self.depth_weight)
        if self.time:
            terms["time"] = factor * self.time * self._time(output)
        if self.readout_decay:
            terms["readout"] = factor * self.readout_decay * net.readout.square().sum()
        return terms

    def _time(self, output: LatticeOutput) -> Tensor:
        if self.time_prior is None:
            return output.expected_time.mean()
        return core.geometric_divergence(output.p_time, self.time_prior)


def refuse_overridden(model: LatticeRCNN, *methods: str) -> None:
    """Refuse a network of a subclass that computes otherwise what the caller writes out for LatticeRCNN.

    Raises:
        InputError: The model is no LatticeRCNN, or its class has a method of its own under one of these names.
    """
    if not isinstance(model, LatticeRCNN):
        raise InputError(f"model must be a LatticeRCNN, not {type(model).__name__}.")
    own = [name for name in methods if getattr(type(model), name) is not getattr(LatticeRCNN, name)]
    if own:
        raise InputError(
            f"model is a {type(model).__name__}, which has its own {own[0]}: that is not known here and would be left "
            "out; pass a LatticeRCNN."
        )


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse a network with batch (or instance) norm: it makes the scale of weights, hence their cost, meaningless."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase):
            raise InputError(
                f"model has the batch norm '{name}': it makes weights scale-free, so costs on norms mean nothing; "
                "fold it into the weights or leave it out."
            )


def _lattice(model: nn.Module) -> LatticeRCNN:
    refuse_batch_norm(model)
    net = getattr(model, "module", model)  # inside DataParallel or DistributedDataParallel
    if not isinstance(net, LatticeRCNN):
        raise InputError(
            f"model must be a LatticeRCNN, not {type(model).__name__}; for other networks add breadth_cost and "
            "depth_cost of their weights to the loss."
        )
    return net


def _check_time(time: str, steps: int, layers: int, bound: float | None, start: float) -> None:
    if steps < layers:
        raise InputError(
            f"max_steps = {steps} is smaller than max_layers = {layers}: the deepest layers would never reach the "
            "readout; give at least one step per layer."
        )
    if time not in ("adaptive", "fixed"):
        raise InputError(f"time must be 'adaptive' or 'fixed', not {time!r}.")
    if bound is not None and not (core.is_number(bound) and 0 < bound < math.inf):
        raise InputError(f"halting_bound must be a positive number or None, not {bound!r}.")
    if not core.is_number(start) or not math.isfinite(start):
        raise InputError(f"halting_start must be a finite number, not {start!r}.")


def _check_range(limits: tuple[float, float] | None) -> None:
    if limits is None:
        return
    pair = list(limits) if isinstance(limits, Sequence) else []
    if len(pair) != 2 or not all(map(core.is_number, pair)) or not pair[0] < pair[1]:
        raise InputError(f"input_range must be (lowest, highest) or None, not {limits!r}.")


def _pool(h: Tensor, regions: int) -> Tensor:
    """Average over regions x regions; equal regions take the kernel whose gradient needs no copy."""
    height, width = h.shape[2:]
    if height % regions or width % regions:
        return functional.adaptive_avg_pool2d(h, regions)
    return functional.avg_pool2d(h, (height // regions, width // regions))


def check_price(name: str, value: Any) -> None:
    """Refuse a price that is no number, negative or not finite."""
    if not core.is_number(value) or not 0 <= value < math.inf:
        raise InputError(f"{name} must be a price that is finite and not negative, not {value!r}.")


def torch_generator(stream: str, seed: int | torch.Generator) -> torch.Generator:
    """Return ``seed`` if it is a generator, else the one of this method's ``stream`` and the seed."""
    if isinstance(seed, torch.Generator):
        return seed
    number: Any = seed  # callers need not check their types
    if not isinstance(number, numbers.Integral):
        raise InputError(f"seed must be a whole number or a torch.Generator, not {seed!r}.")
    return rng.torch_generator("lattice", stream, int(seed))


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int (numpy's integers are taken too), or refuse it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def _per_layer(name: str, value: int | Sequence[int], layers: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Iterable) else (value,) * layers
    if len(values) != layers:
        raise InputError(f"{name} lists {len(values)} numbers, but max_layers = {layers}.")
    return tuple(whole_number(name, one) for one in values)
