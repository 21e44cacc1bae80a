"""What quantising a model did: error, use of the grids and bits layer by layer, and the drift of its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.quant.po2.calibration import Batches, call, evaluating
from steelyard.quant.po2.evaluate import kl_of_rows
from steelyard.quant.po2.layers import PackedLayer
from steelyard.quant.po2.selection import matrix_of
from steelyard.quant.po2.tensor import entropy


@dataclass(frozen=True)
class LayerReport:
    """One packed weight.

    Attributes:
        name: Name of its module.
        shape: Rows and columns.
        family: Name of the family.
        group_size: Elements that share a scale.
        bits_per_weight: Nominal bits.
        stored_bits_per_weight: Bits really held over the number of weights.
        histogram: Groups by grid.
        selector_entropy: Entropy of the grid choice in bits, 0 where one grid takes all; at most log2 of the grids.
        relative_mse: ||w - q||^2 / ||w||^2 against the reference; None without one.
    """

    name: str
    shape: tuple[int, int]
    family: str
    group_size: int
    bits_per_weight: float
    stored_bits_per_weight: float
    histogram: tuple[int, ...]
    selector_entropy: float
    relative_mse: float | None


@dataclass(frozen=True)
class QuantizationReport:
    """All packed layers of a model.

    Attributes:
        layers: Layer by layer, in the model's order; a weight that layers share comes once.
        relative_mse: Squared error over squared norm of all weights together; None without a reference.
        bits_per_weight: Mean over the packed weights.
        stored_bits_per_weight: Mean over the packed weights.
        packed_share: Packed weights over all weights and other parameters of the model.
        kl: KL(reference || model) of the outputs, nats a position; None without reference or data.
        top1: Share of positions where both models' largest output is the same; None without reference or data.
    """

    layers: tuple[LayerReport, ...]
    relative_mse: float | None
    bits_per_weight: float
    stored_bits_per_weight: float
    packed_share: float
    kl: float | None
    top1: float | None

    def __str__(self) -> str:
        """Return a table, one layer a line, and the totals."""
        lines = [f"{'layer':<44}{'family':<15}{'bits':>6}{'stored':>8}{'entropy':>9}{'rel. MSE':>11}"]
        for layer in self.layers:
            mse = "-" if layer.relative_mse is None else f"{layer.relative_mse:.5f}"
            lines.append(
                f"{layer.name[-43:]:<44}{layer.family[:14]:<15}{layer.bits_per_weight:>6.4g}"
                f"{layer.stored_bits_per_weight:>8.4g}{layer.selector_entropy:>9.3f}{mse:>11}"
            )
        total = "-" if self.relative_mse is None else f"{self.relative_mse:.5f}"
        lines.append(
            f"{'all':<44}{'':<15}{self.bits_per_weight:>6.4g}{self.stored_bits_per_weight:>8.4g}{'':>9}{total:>11}"
        )
        lines.append(f"packed: {self.packed_share:.1%} of the parameters")
        if self.kl is not None and self.top1 is not None:
            lines.append(f"KL(reference || model): {self.kl:.4g} nats a position; same top-1: {self.top1:.1%}")
        return "\n".join(lines)


def quantization_report(
    model: nn.Module, reference: nn.Module | None = None, data: Batches | None = None
) -> QuantizationReport:
    """Report on a quantised model.

    Args:
        model: A model after :func:`steelyard.quant.quantize_model`.
        reference: The model before it; its layers have the same names.
        data: Batches for both models (a tensor, a tuple of arguments or a mapping each), whose outputs over the last
            dimension are compared as logits; needs ``reference``.

    Raises:
        InputError: No packed layer, a reference whose layers have other shapes, or data without a reference.
    """
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedLayer)}
    if not packed:
        raise InputError("model holds no quantised layer; call quantize_model(model) first")
    if data is not None and reference is None:
        raise InputError("data needs a reference, the unquantised model, to be compared with")
    floats = {} if reference is None else dict(reference.named_modules())
    rows, seen = [], set()
    error = power = nominal = stored = count = 0.0
    for name, module in packed.items():
        if id(module.codes) in seen:
            continue
        seen.add(id(module.codes))
        found, layer_error, layer_power = _layer(name, module, None if reference is None else floats)
        weights = math.prod(found.shape)
        rows.append(found)
        error, power, count = error + layer_error, power + layer_power, count + weights
        nominal += found.bits_per_weight * weights
        stored += found.stored_bits_per_weight * weights
    others = sum(parameter.numel() for parameter in model.parameters())
    kl, top1 = (None, None) if data is None or reference is None else output_divergence(reference, model, data)
    return QuantizationReport(
        layers=tuple(rows),
        relative_mse=None if reference is None else error / power if power else 0.0,
        bits_per_weight=nominal / count,
        stored_bits_per_weight=stored / count,
        packed_share=count / (count + others),
        kl=kl,
        top1=top1,
    )


def _layer(name: str, module: PackedLayer, floats: Mapping[str, nn.Module] | None) -> tuple[LayerReport, float, float]:
    """Return a layer's row, its squared error and its squared norm."""
    weight = module.weight
    histogram = weight.selector_histogram()
    error = power = 0.0
    if floats is not None:
        true = _float_matrix(name, floats.get(name), weight.shape)
        error = float((true - weight.dequantize(torch.float64)).square().sum())
        power = float(true.square().sum())
    rows, columns = weight.shape
    relative = error / power if power else 0.0
    found = LayerReport(
        name,
        (rows, columns),
        weight.family.name,
        weight.group_size,
        weight.bits_per_weight,
        weight.stored_bits_per_weight,
        tuple(histogram.tolist()),
        entropy(histogram),
        None if floats is None else relative,
    )
    return found, error, power


def _float_matrix(name: str, module: nn.Module | None, shape: tuple[int, ...]) -> Tensor:
    """Return the reference's weight as a float64 matrix; a transposed one (transformers' Conv1D) is turned."""
    weight = getattr(module, "weight", None)
    if module is None or not isinstance(weight, Tensor) or weight.ndim < 2:
        raise InputError(f"reference has no layer '{name}' with a float weight; give the model before quantisation")
    matrix = matrix_of(module).detach().double()
    if tuple(matrix.shape) != shape:
        raise InputError(f"layer '{name}' of the reference has shape {tuple(matrix.shape)}, the model's {shape}")
    return matrix


def kl_divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Return KL(softmax(reference) || softmax(logits)) over the last dimension, float64, in nats.

    Args:
        reference: Logits (..., classes).
        logits: Logits of the same shape.

    Raises:
        InputError: Other shapes, or logits that are not finite.
    """
    if reference.shape != logits.shape or reference.ndim == 0:
        raise InputError(
            f"logits must have the shape of the reference's, {tuple(reference.shape)}; got {tuple(logits.shape)}"
        )
    if not bool(reference.isfinite().all()) or not bool(logits.isfinite().all()):
        raise InputError("logits must be finite; the model or its reference gives NaN or infinity")
    return kl_of_rows(reference.double().log_softmax(-1), logits.double().log_softmax(-1))


def output_divergence(reference: nn.Module, model: nn.Module, data: Batches) -> tuple[float, float]:
    """Return the mean KL(reference || model) over all positions of all outputs, and how often the largest is the same.

    Args:
        reference: The unquantised model.
        model: The quantised model.
        data: Batches; each a tensor, a tuple of arguments or a mapping. Outputs are logits or have ``.logits``.

    Raises:
        InputError: No batch, or outputs that cannot be compared.
    """
    total, same, count = 0.0, 0, 0
    with evaluating(reference), evaluating(model), torch.no_grad():
        for batch in data:
            true, ours = (_logits(call(module, batch)) for module in (reference, model))
            divergence = kl_divergence(true, ours)
            total += float(divergence.sum())
            same += int((true.argmax(-1) == ours.argmax(-1)).sum())
            count += divergence.numel()
    if not count:
        raise InputError("data must hold at least one batch with outputs")
    return max(total / count, 0.0), same / count


def _logits(output: object) -> Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise InputError(f"outputs must be a tensor of logits or have .logits; got {type(output).__name__}")
    return logits
