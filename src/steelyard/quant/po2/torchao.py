"""PO2 grids for torchao: ``torchao.quantize_(model, PO2WeightOnlyConfig(...))``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from steelyard.extras import require
from steelyard.quant.po2 import core
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.layers import QuantizedLinear
from steelyard.quant.po2.torch_nn import quantizable

_quantization = require("torchao.quantization", "torchao")
_transform = require("torchao.quantization.transform_module", "torchao")
_config = require("torchao.core.config", "torchao")


@dataclass
class PO2WeightOnlyConfig(_config.AOBaseConfig):  # type: ignore[misc, name-defined]
    """Weight-only quantisation of linear layers on PO2 grids, for torchao's ``quantize_``.

    ``quantize_`` replaces every ``nn.Linear`` that its ``filter_fn`` takes, which by default includes output heads.

    Attributes:
        family: Name or family of grids.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window".

    Raises:
        InputError: An unknown name or an option out of range.
    """

    family: str | GridFamily = "mpo2"
    group_size: int | None = None
    scale: str | None = None
    search: str = "none"

    def __post_init__(self) -> None:
        core.plan(find_family(self.family), self.group_size, self.scale, self.search)


@_transform.register_quantize_module_handler(PO2WeightOnlyConfig)  # type: ignore[untyped-decorator]
def _quantize_module(module: nn.Module, config: PO2WeightOnlyConfig) -> nn.Module:
    """Return the packed layer; what is no plain ``nn.Linear`` stays as it is."""
    if not isinstance(module, nn.Linear) or not quantizable(module):
        return module
    return QuantizedLinear.from_float(module, config.family, config.group_size, config.scale, config.search)


# The seam: the registry that quantize_ looks the handler up in.
assert _transform._QUANTIZE_CONFIG_HANDLER[PO2WeightOnlyConfig] is _quantize_module
assert callable(_quantization.quantize_)
