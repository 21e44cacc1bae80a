"""Physical removal of what died: a smaller network with the same answers (reconstruction)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.resources import channel_norms, check_share
from steelyard.nets.lattice.torch_nn import LatticeRCNN, refuse_overridden
from steelyard.nets.lattice.training import refuse_dead_input


def shrink(
    model: LatticeRCNN, threshold: float = 0.0, images: Tensor | None = None, readout: bool = True
) -> LatticeRCNN:
    """Return a smaller copy without dead channels, top layers and last steps; ``model`` is not changed.

    With ``threshold=0`` only what cannot change any answer goes: channels that are never active, that reach no readout,
    or whose activity is one constant that the readout's bias can hold. The outputs are those of ``model`` up to
    rounding. Above 0, channels whose norm is at most ``threshold`` times the network's largest go too (what they would
    give with zero weights, relu(bias), moves into the biases), and so do the last steps whose halting mass together is
    at most ``threshold``.

    Args:
        model: The network.
        threshold: Share of the largest channel norm, and halting mass, in [0, 1).
        images: Images (B, C, H, W) to measure the halting mass on (the largest of them counts); None takes a bound
            that holds for every image.
        readout: Count readout columns in the norms.

    Raises:
        InputError: A threshold outside [0, 1), images that do not fit, all of layer 1 dead, or a subclass that halts or
            connects its layers in a way of its own.
    """
    check_share(threshold)
    refuse_overridden(model, "log_p_time", "fan_in")
    refuse_dead_input(model)
    with torch.no_grad():
        parts = _Parts.of(model)
        if threshold > 0:
            _silence(parts, model, threshold, readout)
        live = _live(parts, model)
        kept = [torch.nonzero(mask).flatten() for mask in torch.split(live, list(model.widths))]
        while len(kept) > 1 and len(kept[-1]) == 0:
            kept.pop()
        if not bool(parts.weights[0][kept[0], : model.in_channels].any()):
            raise InputError(f"all of layer 1 is dead at threshold = {threshold}: nothing of the image would be left.")
        # A dead layer below one that is kept alive by its biases must stay as a layer: one silent channel.
        kept = [index if len(index) else torch.tensor([0], device=live.device) for index in kept]
        steps = max(len(kept), _needed_steps(model, threshold, images))
        return _rebuild(parts, model, kept, steps)


@dataclass
class _Parts:
    """Copies of the parameters that removal changes. Readout columns by channel: (C, K, pool^2), unscaled."""

    weights: list[Tensor]
    biases: list[Tensor]
    columns: Tensor
    readout_bias: Tensor
    halting_bias: Tensor | None
    halting_state: Tensor | None

    @classmethod
    def of(cls, model: LatticeRCNN) -> _Parts:
        adaptive = model.time == "adaptive"
        return cls(
            [weight.detach().clone() for weight in model.weights],
            [bias.detach().clone() for bias in model.biases],
            torch.cat(model.readout_by_channel()).detach().clone(),
            model.readout_bias.detach().clone(),
            model.halting_bias.detach().clone() if adaptive else None,
            model.halting_state.detach().clone().view(-1, model.pool**2) if model.state_term and adaptive else None,
        )

    def fold_constant(self, channel: int, value: Tensor, scale: float) -> None:
        """Move a channel that always gives ``value`` into the biases of the readout and of the hazards."""
        self.readout_bias += scale * value * self.columns[channel].sum(1)
        self.columns[channel] = 0
        if self.halting_state is not None and self.halting_bias is not None:
            self.halting_bias += value * self.halting_state[channel].sum()
            self.halting_state[channel] = 0


def _silence(parts: _Parts, model: LatticeRCNN, threshold: float, readout: bool) -> None:
    """Turn channels below the threshold off, moving the constant that their bias gives into the other biases."""
    norms = channel_norms(model, readout)
    limit = threshold * max(float(norm.max()) for norm in norms)
    starts = _starts(model)
    for layer, norm in enumerate(norms):
        for c in torch.nonzero(norm <= limit).flatten().tolist():
            value = torch.relu(parts.biases[layer][c])
            parts.fold_constant(starts[layer] + c, value, model.readout_scale)
            for target in _neighbours(layer, model.n_layers):
                column = parts.weights[target][:, _inputs(model, target, layer)][:, c]
                parts.biases[target] += value * column.sum((1, 2))
                column.zero_()
            parts.weights[layer][c] = 0
            parts.biases[layer][c] = 0


def _live(parts: _Parts, model: LatticeRCNN) -> Tensor:
    """Return which channels can change an answer, (sum of channels,), after folding lonely constants away."""
    edges, image = _edges(parts, model)
    bias = torch.cat(parts.biases)
    active = _closure(image | (bias > 0), edges)
    seen = parts.columns.flatten(1).any(1)
    if parts.halting_state is not None:
        seen = seen | parts.halting_state.any(1)
    live = active & _closure(seen & active, (edges & active.unsqueeze(0) & active.unsqueeze(1)).t())
    inner = edges & live.unsqueeze(0) & live.unsqueeze(1)
    constant = live & ~image & ~inner.any(1) & ~inner.any(0)
    for channel in torch.nonzero(constant).flatten().tolist():
        parts.fold_constant(channel, torch.relu(bias[channel]), model.readout_scale)
    return live & ~constant


def _edges(parts: _Parts, model: LatticeRCNN) -> tuple[Tensor, Tensor]:
    """Return which channel (row) gets input from which (column), and which see the image."""
    starts, total = _starts(model), sum(model.widths)
    edges = torch.zeros(total, total, dtype=torch.bool, device=model.readout.device)
    for target, weight in enumerate(parts.weights):
        rows = slice(starts[target], starts[target] + model.widths[target])
        for source in _neighbours(target, model.n_layers):
            columns = slice(starts[source], starts[source] + model.widths[source])
            edges[rows, columns] = (weight[:, _inputs(model, target, source)] != 0).flatten(2).any(2)
    image = torch.zeros(total, dtype=torch.bool, device=model.readout.device)
    image[: model.widths[0]] = parts.weights[0][:, : model.in_channels].flatten(1).any(1)
    return edges, image


def _closure(seeds: Tensor, edges: Tensor) -> Tensor:
    """Return all rows that are seeds or reach one through the edges row <- column."""
    reached = seeds
    while True:
        wider = reached | (edges & reached.unsqueeze(0)).any(1)
        if bool((wider == reached).all()):
            return reached
        reached = wider


def _needed_steps(model: LatticeRCNN, threshold: float, images: Tensor | None) -> int:
    """Return the number of steps after which the halting mass left is at most ``threshold``."""
    if images is None and model.time == "adaptive":
        rest = [*_stay_at_most(model).tolist(), 0.0]
    else:
        p = torch.softmax(model.theta, 0).unsqueeze(0) if images is None else model(images).p_time
        rest = [*p.flip(1).cumsum(1).flip(1)[:, 1:].amax(0).tolist(), 0.0]  # summed from the end: zeros stay zeros
    return next(step for step, left in enumerate(rest, 1) if left <= threshold or step == model.max_steps)


def _stay_at_most(model: LatticeRCNN) -> Tensor:
    """Return a bound on the mass left after each step but the last, over all inputs: H is within 0 .. log K."""
    classes = torch.tensor(float(model.n_classes))
    lowest = model.halting_bias + torch.minimum(model.kappa, model.kappa * (1 - classes.log().to(model.kappa)))
    if model.state_term:
        lowest = torch.full_like(lowest, -torch.inf)
    return functional.logsigmoid(-core.bounded(lowest, model.halting_bound)).cumsum(0).exp()


def _rebuild(parts: _Parts, model: LatticeRCNN, kept: list[Tensor], steps: int) -> LatticeRCNN:
    small = LatticeRCNN(
        model.in_channels,
        model.n_classes,
        [len(index) for index in kept],
        len(kept),
        steps,
        model.time,
        model.pool,
        model.strides[: len(kept)],
        halting_bound=model.halting_bound,
        halting_start=model.halting_start,
        state_term=model.state_term,
        readout_scale=model.readout_scale,
        input_range=model.input_range,
    ).to(model.readout)
    image = torch.arange(model.in_channels, device=model.readout.device)
    for layer, index in enumerate(kept):
        sources = [] if layer else [image]
        for source in _neighbours(layer, len(kept)):
            sources.append(_inputs(model, layer, source).start + kept[source])
        small.weights[layer].copy_(parts.weights[layer][index][:, torch.cat(sources)])
        small.biases[layer].copy_(parts.biases[layer][index])
    channels = torch.cat([start + index for start, index in zip(_starts(model), kept, strict=False)])
    small.readout.copy_(parts.columns[channels].transpose(0, 1).reshape(small.readout.shape))
    small.readout_bias.copy_(parts.readout_bias)
    if parts.halting_bias is None:
        small.theta.copy_(model.theta[:steps])
        return small.train(model.training)
    small.halting_bias.copy_(parts.halting_bias[: steps - 1])
    small.kappa.copy_(model.kappa)
    if parts.halting_state is not None:
        small.halting_state.copy_(parts.halting_state[channels].flatten())
    return small.train(model.training)


def _starts(model: LatticeRCNN) -> list[int]:
    """Number of the first channel of each layer among all channels."""
    return [sum(model.widths[:layer]) for layer in range(model.n_layers)]


def _neighbours(layer: int, layers: int) -> range:
    return range(max(0, layer - 1), min(layers, layer + 2))


def _inputs(model: LatticeRCNN, target: int, source: int) -> slice:
    """Where the weights of layer ``target`` hold the inputs from layer ``source``."""
    below, own, _ = model.fan_in(target)
    start = {target - 1: 0, target: below, target + 1: below + own}[source]
    return slice(start, start + model.widths[source])
