"""What files of quantised tensors hold: bits, errors and the choice of grids, layer by layer and in all."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from steelyard.quant.po2.packed_files import PackedFile
from steelyard.quant.po2.tensor import entropy


@dataclass(frozen=True)
class Layer:
    """One quantised weight.

    Attributes:
        name: Its name.
        family: Name of its grids.
        shape: Its shape.
        group_size: Weights that share a scale.
        scale_format: Format of the group scales.
        relative_mse: ||w - q||^2 / ||w||^2 at quantisation; None where the file does not tell.
        bits_per_weight: Nominal.
        stored_bits_per_weight: 8 * bytes in the file / weights.
        histogram: How many groups chose each grid.
        selector_entropy: Entropy of that choice in bits, 0 where one grid takes every group.
        raised: Whether groups so small beside the largest were met that their scale had to be raised.
    """

    name: str
    family: str
    shape: tuple[int, ...]
    group_size: int
    scale_format: str
    relative_mse: float | None
    bits_per_weight: float
    stored_bits_per_weight: float
    histogram: tuple[int, ...]
    selector_entropy: float
    raised: bool

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Summary:
    """All layers of one or several files, and their sums.

    Attributes:
        layers: The quantised weights.
        kept: Names of the tensors that are stored as they are.
        weights: Quantised weights.
        relative_mse: Squared error of all of them over their squared norm; None where the files do not tell.
        bits_per_weight: Nominal bits of a quantised weight.
        stored_bits_per_weight: 8 * bytes in the files / quantised weights.
        data_bytes: Bytes of all tensors in the files.
        file_bytes: Bytes of the files.
        places: Name of a tensor in a file -> name of that file.
    """

    layers: tuple[Layer, ...]
    kept: tuple[str, ...]
    weights: int
    relative_mse: float | None
    bits_per_weight: float
    stored_bits_per_weight: float
    data_bytes: int
    file_bytes: int
    places: dict[str, str]


def summarize(files: Iterable[PackedFile]) -> Summary:
    """Return what the files hold; each is opened once, tensors are looked at one at a time.

    Raises:
        InputError: A quantised tensor is damaged.
    """
    layers: list[Layer] = []
    kept: list[str] = []
    places: dict[str, str] = {}
    nominal = stored = error = power = 0.0
    data_bytes = file_bytes = 0
    complete = True
    for file in files:
        kept += file.plain
        places |= dict.fromkeys(file.file.spans, file.file.path.name)
        data_bytes += sum(span.end - span.begin for span in file.file.spans.values())
        file_bytes += file.file.path.stat().st_size
        for name in file.table:
            layer, sums = _layer(file, name)
            layers.append(layer)
            nominal += layer.bits_per_weight * layer.weights
            stored += 8 * file.stored_bytes(name)
            complete = complete and sums is not None
            error += sums[0] if sums else 0.0
            power += sums[1] if sums else 0.0
    weights = sum(layer.weights for layer in layers)
    relative = _ratio(error, power) if complete and weights else None
    return Summary(
        tuple(layers), tuple(kept), weights, relative, nominal / max(weights, 1), stored / max(weights, 1), data_bytes,
        file_bytes, places,
    )  # fmt: skip


def _layer(file: PackedFile, name: str) -> tuple[Layer, tuple[float, float] | None]:
    packed, report = file.read(name), file.table[name].get("report", {})
    error, power = _number(report.get("error")), _number(report.get("power"))
    sums = None if error is None or power is None else (error, power)
    histogram = packed.selector_histogram()
    layer = Layer(
        name=name,
        family=packed.family.name,
        shape=packed.shape,
        group_size=packed.group_size,
        scale_format=packed.scale_format,
        relative_mse=None if sums is None else _ratio(*sums),
        bits_per_weight=packed.bits_per_weight,
        stored_bits_per_weight=8 * file.stored_bytes(name) / math.prod(packed.shape),
        histogram=tuple(histogram.tolist()),
        selector_entropy=entropy(histogram),
        raised=report.get("raised") is True,
    )
    return layer, sums


def _number(value: Any) -> float | None:
    """Return a finite number >= 0 out of a report that came from a file; None for anything else."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    return float(value) if usable else None


def _ratio(error: float, power: float) -> float:
    return error / power if power else 0.0
