"""PO2 grids for transformers: folders with ``quant_method: "po2"`` load packed, and float ones are packed on loading.

Importing this module registers the method; then ``AutoModel.from_pretrained(folder)`` does the rest.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from steelyard.errors import InputError
from steelyard.quant.po2 import core
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.layers import PackedLayer, QuantizedLinear, empty_weight
from steelyard.quant.po2.tensor import QuantizedTensor
from steelyard.quant.po2.torch_nn import quantize_model

METHOD = "po2"
FORMAT = "1"
_LOADED = "_is_hf_initialized"

# The seams: what transformers calls while it loads a model.
assert {"is_serializable", "is_trainable"} <= HfQuantizer.__abstractmethods__
assert {"_process_model_before_weight_loading", "_process_model_after_weight_loading"} <= set(vars(HfQuantizer))
assert "model" in inspect.signature(HfQuantizer.get_state_dict_and_metadata).parameters


@register_quantization_config(METHOD)
class PO2Config(QuantizationConfigMixin):  # type: ignore[misc]
    """The ``quantization_config`` of a model on PO2 grids.

    Args:
        family: Name, family or its fields as JSON gives them.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window"; used when a float model is quantised on loading.
        modules: Names of the packed layers; filled in when a float model was quantised.
        format: Version of the stored format.
        others: Fields of other tools, ignored.

    Raises:
        InputError: An unknown name, an option out of range, or another format version.
    """

    def __init__(
        self,
        family: str | GridFamily | dict[str, Any] = "mpo2",
        group_size: int | None = None,
        scale: str | None = None,
        search: str = "none",
        modules: Sequence[str] = (),
        format: str = FORMAT,
        **others: Any,
    ) -> None:
        if format != FORMAT:
            raise InputError(
                f"quantization_config has the format {format!r}; this version of steelyard reads {FORMAT!r}"
            )
        if not isinstance(modules, list | tuple) or not all(isinstance(name, str) for name in modules):
            raise InputError("modules of quantization_config must be a list of names of layers")
        known = GridFamily.from_json(json.dumps(family)) if isinstance(family, dict) else find_family(family)
        options = core.plan(known, group_size, scale, search)
        self.quant_method = METHOD
        self.format = format
        self.family = dataclasses.asdict(known)
        self.group_size = options.group_size
        self.scale = options.form.name
        self.search = search
        self.modules = list(modules)

    @property
    def grid_family(self) -> GridFamily:
        """The family, rebuilt from its fields."""
        return GridFamily.from_json(json.dumps(self.family))


class _Slot(nn.Module):
    """Stands for a linear layer while a checkpoint is read: its buffers have the names and shapes of the parts."""

    def __init__(self, linear: nn.Linear, config: PO2Config) -> None:
        super().__init__()
        with torch.device("meta"):
            empty = empty_weight(
                linear.out_features, linear.in_features, config.grid_family, config.group_size, config.scale
            )
            tensors, self.text = empty.to_tensors()
            self.weight = nn.Module()
            for name, part in tensors.items():
                self.weight.register_buffer(name, part.to("meta"))
        self.bias = linear.bias

    def packed(self, name: str) -> QuantizedLinear:
        """Return the layer that the loaded parts make.

        transformers fills parts that the checkpoint lacks with whatever memory held, and only warns; it marks those
        that it has loaded.
        """
        absent = [part for part, value in self.weight.named_buffers() if not getattr(value, _LOADED, False)]
        if absent:
            raise InputError(f"layer '{name}' of the checkpoint lacks {', '.join(absent)}; the folder is not whole")
        try:
            weight = QuantizedTensor.from_tensors(dict(self.weight.named_buffers()), self.text)
        except InputError as error:
            raise InputError(f"layer '{name}' of the checkpoint: {error}") from None
        return QuantizedLinear.from_quantized(weight, self.bias)


@register_quantizer(METHOD)
class PO2Quantizer(HfQuantizer):  # type: ignore[misc]
    """Loads, quantises and saves models on PO2 grids for ``from_pretrained`` and ``save_pretrained``."""

    quantization_config: PO2Config

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Put a slot in the place of every packed layer that the configuration names."""
        if not self.pre_quantized:
            return model
        names = set(self.quantization_config.modules)
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        found = 0
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and names & {name, prefix + name, name.removeprefix(prefix)}:
                model.set_submodule(name, _Slot(module, self.quantization_config))
                found += 1
        if not found:
            raise InputError("quantization_config names no linear layer of this model; it was made for another one")
        return model

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Turn slots into packed layers, or quantise the float model that was loaded."""
        config = self.quantization_config
        if not self.pre_quantized:
            quantize_model(model, config.grid_family, config.group_size, search=config.search, scale=config.scale)
            config.modules = [name for name, module in model.named_modules() if isinstance(module, PackedLayer)]
            return model
        for name, module in list(model.named_modules()):
            if isinstance(module, _Slot):
                model.set_submodule(name, module.packed(name).train(module.training))
        return model

    def get_state_dict_and_metadata(self, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the state without the layers' headers, which the configuration stands for."""
        headers = {f"{name}.weight.header" for name, part in model.named_modules() if isinstance(part, PackedLayer)}
        return {name: value for name, value in model.state_dict().items() if name not in headers}, {}

    def is_serializable(self) -> bool:
        """Return True: packed layers are saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """False: packed weights are constant (what stays float can be trained outside of transformers' Trainer)."""
        return False
