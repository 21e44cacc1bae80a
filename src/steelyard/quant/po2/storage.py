"""Save a quantised model and load it back, without loss: codes, scales, grids and everything that stayed a float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.models.paths import printable, usable_path
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.layers import PackedLayer, QuantizedConv, QuantizedLinear, leave_fused_paths
from steelyard.quant.po2.packed_files import PackedFile, packed_files, write_packed
from steelyard.quant.po2.tensor import QuantizedTensor
from steelyard.quant.po2.torch_nn import matrix_of, quantizable


def save_quantized(model: nn.Module, path: str | Path) -> None:
    """Write a model with packed layers into one safetensors file; the file appears when it is whole.

    Tensors that several layers share are stored once. Activation quantisers of the layers are kept with what they
    have observed.

    Args:
        model: Any module; its :class:`QuantizedLinear` and :class:`QuantizedConv` layers stay packed.
        path: The file.

    Raises:
        InputError: The model's state holds something else than tensors, or the disk refuses.
    """
    layers = {name: module for name, module in model.named_modules(remove_duplicate=False) if _is_packed(module)}
    tied: dict[str, str] = {}
    quantized: dict[str, QuantizedTensor] = {}
    held: dict[int, str] = {}
    for name, layer in layers.items():
        first = held.setdefault(layer.codes.data_ptr(), weight := _weight(name))
        if first == weight:
            quantized[weight] = layer.weight
        else:
            tied[weight] = first
    plain, shared = _plain(model)
    activations = {name: _described(layer.activations) for name, layer in layers.items() if layer.activations}
    about = {"tied": {**tied, **shared}, "activations": activations}
    write_packed(usable_path(path), quantized, plain, model=about)


def load_quantized(path: str | Path, model: nn.Module | None = None) -> Any:
    """Read what :func:`save_quantized` or the converter wrote.

    Args:
        path: A file, or a converted folder.
        model: A model of the same architecture, quantised or not; its layers are replaced by packed ones in place.
            Parameters on the meta device take the tensors of the file themselves, others are copied into.

    Returns:
        ``model``; without one a dictionary, name -> :class:`QuantizedTensor` or tensor.

    Raises:
        InputError: The file is damaged or has another format version, or the model does not fit to it.
    """
    path = usable_path(path)
    files = packed_files(path)
    quantized: dict[str, QuantizedTensor] = {}
    plain: dict[str, Tensor] = {}
    for file in files:
        file.check()
        quantized |= {name: file.read(name) for name in file.table}
        plain |= {name: file.file.read(name) for name in file.plain}
    activations: dict[str, Any] = {}
    tied: dict[str, Any] = {}
    for file in files:
        activations |= _table(file, "activations")
        tied |= _table(file, "tied")
    for alias, name in tied.items():
        if not isinstance(name, str):
            raise InputError(f"{path} is damaged: its header ties '{alias[:80]}' to something that is no name")
        if name in quantized:
            quantized[alias] = quantized[name]
        elif name in plain:
            plain[alias] = plain[name]
    if model is None:
        return {**plain, **quantized}
    layers: dict[int, PackedLayer] = {}
    for name, weight in quantized.items():
        model = _with_layer(model, name, weight, path)
        layer: Any = model.get_submodule(name.rpartition(".")[0])
        if (first := layers.setdefault(id(weight), layer)) is not layer:
            layer.share_weight(first)
    for name, described in activations.items():
        _set_activations(model, name, described, path)
    _fill(model, plain, path)
    leave_fused_paths(model)
    return model


def _is_packed(module: nn.Module) -> bool:
    return isinstance(module, PackedLayer)


def _weight(name: str) -> str:
    return f"{name}.weight" if name else "weight"


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers that are not packed weights, under all their names.

    As ``state_dict``, which would make canonical copies of all packed weights at once.
    """
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(f"'{name}', a {type(module).__name__}, has an extra state; only tensors can be stored")
        start = f"{name}." if name else ""
        kept = {key: value for key, value in module._buffers.items() if key not in module._non_persistent_buffers_set}
        both = {**module._parameters, **kept}
        found |= {f"{start}{key}": value for key, value in both.items() if value is not None}
    return found


def _plain(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what is not packed, each storage once, and alias -> name of the rest."""
    plain: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, value in _state(model).items():
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else (name,)
        first = seen.setdefault(key, name)
        if first == name:
            plain[name] = value
        else:
            tied[name] = first
    return plain, tied


def _described(quantizer: ActivationQuantizer) -> dict[str, Any]:
    options = quantizer.plan
    return {
        "family": options.family.to_json(),
        "group_size": options.group_size,
        "scale": options.form.name,
        "search": quantizer.search,
        "axis": quantizer.axis,
    }


def _table(file: PackedFile, key: str) -> dict[str, Any]:
    table = file.model.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{file.file.path} is damaged: '{key}' of its header is no table")
    if not all(name.isprintable() for name in table):
        raise InputError(f"{file.file.path} is damaged: '{key}' of its header has names that cannot be printed")
    return table


def _with_layer(model: nn.Module, name: str, weight: QuantizedTensor, path: Path) -> nn.Module:
    """Return ``model`` with the layer of that weight packed; the model itself where it is that layer."""
    place, _, last = name.rpartition(".")
    where = f"{path} holds the quantised weight '{name[:80]}'"
    try:
        module = model.get_submodule(place)
    except AttributeError:
        raise InputError(f"{where}, but the model has no layer '{place[:80]}'; load it into its own kind") from None
    if last != "weight" or not (_is_packed(module) or quantizable(module)):
        raise InputError(f"{where}, but that layer of the model is a {type(module).__name__}, which cannot hold one")
    shape = module.weight.shape if isinstance(module, PackedLayer) else matrix_of(module).shape
    if tuple(shape) != weight.shape:
        raise InputError(f"{where} of shape {weight.shape}, but the model has {tuple(shape)} there")
    if isinstance(module, PackedLayer):
        module.set_weight(weight)
        return model
    made: PackedLayer
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        made = QuantizedConv(module, weight)
    else:
        bias: Any = module.bias
        made = QuantizedLinear.from_quantized(weight, bias)
    made.train(module.training)
    if not place:
        return made
    parent, _, child = place.rpartition(".")
    setattr(model.get_submodule(parent), child, made)
    return model


def _set_activations(model: nn.Module, name: str, described: Any, path: Path) -> None:
    try:
        layer = model.get_submodule(name)
        family = GridFamily.from_json(described["family"])
        made = ActivationQuantizer(
            family, described["group_size"], described["scale"], described["search"], int(described["axis"])
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # InputError is a ValueError
        raise InputError(
            f"{path} is damaged: the activation quantiser of '{name[:80]}': {printable(str(error))}"
        ) from None
    if not isinstance(layer, PackedLayer):
        raise InputError(f"{path} is damaged: '{name[:80]}' has an activation quantiser but no packed weight")
    layer.activations = made


def _fill(model: nn.Module, plain: dict[str, Tensor], path: Path) -> None:
    """Put the tensors that are not packed into the model, once it is sure that none is missing or surplus."""
    wanted = _state(model)
    same: dict[int, list[str]] = {}
    for name, value in wanted.items():
        same.setdefault(id(value), []).append(name)
    groups = [names for names in same.values() if len(names) > 1]  # tied: a file may hold one name of them only
    filled = {name for names in groups if any(name in plain for name in names) for name in names}
    for name in sorted(wanted.keys() | plain.keys()):
        ours = tuple(wanted[name].shape) if name in wanted else "no such tensor"
        theirs = tuple(plain[name].shape) if name in plain else "no such tensor"
        if ours != theirs and (name in plain or name not in filled):
            raise InputError(f"{path} does not fit to the model: '{name[:80]}' is {theirs} there, {ours} in the model")
    assign = any(value.is_meta for value in wanted.values())
    model.load_state_dict(plain, strict=False, assign=assign)
    for names in groups if assign else ():
        _tie(model, [name for name in names if name in plain] + names)


def _tie(model: nn.Module, names: list[str]) -> None:
    """Make every named parameter or buffer the first one."""
    place, _, last = names[0].rpartition(".")
    first = getattr(model.get_submodule(place), last)
    for name in names[1:]:
        place, _, last = name.rpartition(".")
        setattr(model.get_submodule(place), last, first)
