"""Layers whose weight stays packed: QuantizedLinear and QuantizedConv.

Memory of a weight: 4 bits an element and one scale a group (4.5 bits in all for groups of 16), kept once, in the order
of :mod:`steelyard.quant.po2.matmul`. ``weight`` and ``state_dict`` give the canonical order. Changes of device move
the packed bytes, changes of dtype touch the bias only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import InputError
from steelyard.quant.po2 import core
from steelyard.quant.po2.activation_quantizer import ActivationQuantizer, as_quantizer
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.matmul import matmul
from steelyard.quant.po2.packed_matrix import GroupMajor, PackedMatrix, dense, group_major, pack
from steelyard.quant.po2.scales import side_bytes
from steelyard.quant.po2.tensor import QuantizedTensor, quantize

_WEIGHT = "weight."


def empty_weight(
    rows: int, columns: int, family: str | GridFamily, group_size: int | None, scale: str | None
) -> QuantizedTensor:
    """Return a packed matrix of zeros, on the default device, to be filled by ``load_state_dict``.

    Raises:
        InputError: An unknown name or an option out of range.
    """
    if rows < 1 or columns < 1:
        raise InputError(f"A quantised layer needs at least one input and one output; got {columns} and {rows}")
    options = core.plan(find_family(family), group_size, scale, "none")
    size, form = options.group_size, options.form
    groups = -(-columns // size)
    side = torch.zeros(side_bytes(form, rows * groups), dtype=torch.uint8) if form.side else None
    codes = torch.zeros(rows, (groups * size + 1) // 2, dtype=torch.uint8)
    empty = torch.zeros(rows, groups, dtype=form.dtype)
    return QuantizedTensor(codes, empty, 1.0, options.family, size, form.name, (rows, columns), 1, side)


class PackedLayer(nn.Module):
    """Holds a packed matrix as integer buffers, and reads and writes it in ``state_dict`` as ``weight.*``."""

    codes: Tensor
    scales: Tensor
    side: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.activations: ActivationQuantizer | None = None
        self._matrix: PackedMatrix | None = None

    @property
    def weight(self) -> QuantizedTensor:
        """The packed weight (rows, columns) in canonical order, made on demand."""
        template, codes, held = self._template, self.codes, self.scales
        if codes.ndim == 3:
            canonical = codes.transpose(0, 1).reshape(codes.shape[1], -1)
            return dataclasses.replace(template, codes=canonical, scales=held.T.contiguous())
        return dataclasses.replace(template, codes=codes, scales=held.view(template.scales.dtype), side=self.side)

    def set_weight(self, weight: QuantizedTensor) -> None:
        """Take a packed matrix; of the caller's copy nothing is kept where its order is another.

        Raises:
            InputError: ``weight`` is no matrix with its groups along the columns.
        """
        if len(weight.shape) != 2 or weight.axis != 1:
            raise InputError(f"weight must be a matrix packed along axis 1; got {weight.shape}, axis {weight.axis}")
        matrix = pack(weight)
        none = torch.empty(0, dtype=weight.scales.dtype)
        self._template = dataclasses.replace(weight, codes=none, scales=none, side=None)
        if isinstance(matrix, GroupMajor):
            codes, held = matrix.codes, matrix.scales
        else:
            codes, held = weight.codes, weight.scales.view(torch.uint8)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", held, persistent=False)
        self.register_buffer("side", weight.side, persistent=False)
        self._matrix = matrix if isinstance(matrix, GroupMajor) else None

    def share_weight(self, other: PackedLayer) -> None:
        """Hold the very bytes of ``other``, as layers with tied weights do."""
        self._template = other._template
        for name in ("codes", "scales", "side"):
            self.register_buffer(name, getattr(other, name), persistent=False)
        self._matrix = other._matrix

    @property
    def matrix(self) -> PackedMatrix:
        """The weight ready for products; its tables are made anew after a change of device."""
        if self._matrix is None:
            template = self._template
            if self.codes.is_meta:
                raise InputError("the packed weight lies on the meta device; fill it with load_state_dict(assign=True)")
            if self.codes.ndim == 3:
                rows, columns = template.shape
                self._matrix = group_major(
                    self.codes, self.scales, template.family, template.scale_format, template.tensor_scale,
                    (rows, columns),
                )  # fmt: skip
            else:
                self._matrix = pack(self.weight)
        return self._matrix

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weight as held."""
        parts = (self.codes, self.scales, self.side)
        return sum(part.numel() for part in parts if part is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        self._matrix = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_matrix": None}  # copies and pickles would hold the bytes twice

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        tensors, text = self.weight.to_tensors()
        for name, tensor in tensors.items():
            destination[prefix + _WEIGHT + name] = tensor
        header = bytearray(json.dumps(text).encode())
        destination[prefix + _WEIGHT + "header"] = torch.frombuffer(header, dtype=torch.uint8)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        start = prefix + _WEIGHT
        parts = {name[len(start) :]: value for name, value in state_dict.items() if name.startswith(start)}
        others = {name: value for name, value in state_dict.items() if not name.startswith(start)}
        if parts:
            try:
                self._load_weight(parts, bool((local_metadata or {}).get("assign_to_params_buffers")))
            except InputError as error:
                error_msgs.append(f"{prefix}weight: {error}")
        else:
            missing_keys.append(prefix + "weight.codes")
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _load_weight(self, parts: dict[str, Tensor], assign: bool) -> None:
        if self.codes.is_meta and not assign:
            raise InputError("the layer lies on the meta device; load with assign=True, or call to_empty() before")
        header = parts.pop("header", None)
        if not isinstance(header, Tensor) or header.is_meta:
            raise InputError("the part 'header' of a quantised layer is missing")
        try:
            text = json.loads(bytes(header.flatten().tolist()))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"the part 'header' of a quantised layer cannot be read ({error})") from None
        if not isinstance(text, dict):
            raise InputError("the part 'header' of a quantised layer must hold a JSON table")
        if not self.codes.is_meta:
            parts = {name: t.to(self.codes.device) if isinstance(t, Tensor) else t for name, t in parts.items()}
        weight = QuantizedTensor.from_tensors(parts, text)
        if weight.shape != self._template.shape:
            raise InputError(f"the layer has shape {self._template.shape}, the saved weight {weight.shape}")
        self.set_weight(weight)


def leave_fused_paths(model: nn.Module) -> None:
    """Turn off the fused inference path of torch's transformer encoders that hold packed layers: it reads floats."""
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            continue
        if not any(isinstance(part, PackedLayer) for part in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # this is the switch
        else:
            module.use_nested_tensor = False  # only the fused path reads nested tensors, made of padded inputs


class QuantizedLinear(PackedLayer):
    """``nn.Linear`` with a packed 4-bit weight: y = x W^T + b, W never held as floats.

    Inputs keep their dtype; gradients reach the input and the bias, the weight is constant.

    Args:
        in_features: Columns of W.
        out_features: Rows of W.
        bias: Whether there is a bias.
        family: Grids of the weight.
        group_size: Elements that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        activations: Family or ActivationQuantizer for the input (W4A4); None leaves it alone.
        device: Device of weight and bias; "meta" for a layer that ``load_state_dict(..., assign=True)`` fills.
        dtype: Dtype of the bias.

    Raises:
        InputError: An unknown name or an option out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        family: str | GridFamily = "mpo2",
        group_size: int | None = None,
        scale: str | None = None,
        activations: str | GridFamily | ActivationQuantizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        place = torch.device(device) if device is not None else torch.get_default_device()
        with torch.device("cpu" if place.type == "meta" else place):  # tables of scales are made from values
            self.set_weight(empty_weight(out_features, in_features, family, group_size, scale))
        if place.type == "meta":
            self.to(place)
        start = torch.zeros(out_features, dtype=dtype, device=place) if bias else None
        self.bias = None if start is None else nn.Parameter(start)
        self.activations = as_quantizer(activations)

    @classmethod
    def from_quantized(
        cls,
        weight: QuantizedTensor,
        bias: nn.Parameter | None = None,
        activations: str | GridFamily | ActivationQuantizer | None = None,
    ) -> QuantizedLinear:
        """Return a layer around a packed (out_features, in_features) and a bias, which is taken as it is."""
        made = cls(1, 1, bias=False, family=weight.family, activations=activations)
        made.set_weight(weight)
        made.out_features, made.in_features = weight.shape
        made.bias = bias
        return made

    @classmethod
    def from_float(
        cls,
        linear: nn.Linear,
        family: str | GridFamily = "mpo2",
        group_size: int | None = None,
        scale: str | None = None,
        search: str = "none",
        importance: Tensor | None = None,
        activations: str | GridFamily | ActivationQuantizer | None = None,
    ) -> QuantizedLinear:
        """Return ``linear`` with its weight quantised along ``in_features``; the bias is shared.

        Raises:
            InputError: What :func:`quantize` refuses.
        """
        weight = quantize(linear.weight, family, group_size, scale, search, importance=importance)
        return cls.from_quantized(weight, linear.bias, activations)

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b for ``x`` (..., in_features), in its dtype.

        Raises:
            InputError: ``x`` has another number of features or is not floating.
        """
        if self.activations is not None:
            x = self.activations(x)
        y = matmul(x, self.matrix)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return sizes and format for ``repr``."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, {_format_of(self._template)}"


class QuantizedConv(PackedLayer):
    """``nn.Conv1d`` or ``nn.Conv2d`` with a packed weight, grouped along in_channels / groups * kernel, in that order.

    The weight is decoded for the time of a call (and kept by autograd until the backward pass): it saves memory at
    rest, not time.

    Args:
        conv: The convolution, whose geometry and bias are taken over.
        weight: Its packed weight, (out_channels, in_channels / groups * kernel).
        activations: Family or ActivationQuantizer for the input, whose groups lie along the channels.

    Raises:
        InputError: Another kind of layer, or a weight of another shape.
    """

    def __init__(
        self,
        conv: nn.Conv1d | nn.Conv2d,
        weight: QuantizedTensor,
        activations: str | GridFamily | ActivationQuantizer | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(conv, nn.Conv1d | nn.Conv2d) or conv.transposed:
            raise InputError(f"conv must be nn.Conv1d or nn.Conv2d; got {type(conv).__name__}")
        self.kernel_shape = tuple(conv.weight.shape)
        expected = (self.kernel_shape[0], conv.weight[0].numel())
        if tuple(weight.shape) != expected:
            raise InputError(f"weight must have shape {expected} for this convolution; got {tuple(weight.shape)}")
        self.in_channels, self.out_channels, self.groups = conv.in_channels, conv.out_channels, conv.groups
        self.stride, self.dilation = conv.stride, conv.dilation
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        self._around = list(conv._reversed_padding_repeated_twice)
        self.set_weight(weight)
        self.bias = conv.bias
        self.activations = as_quantizer(activations, axis=1 - len(self.kernel_shape))

    @classmethod
    def from_float(
        cls,
        conv: nn.Conv1d | nn.Conv2d,
        family: str | GridFamily = "mpo2",
        group_size: int | None = None,
        scale: str | None = None,
        search: str = "none",
        importance: Tensor | None = None,
        activations: str | GridFamily | ActivationQuantizer | None = None,
    ) -> QuantizedConv:
        """Return ``conv`` with its weight quantised along in_channels / groups * kernel; the bias is shared.

        Raises:
            InputError: What :func:`quantize` refuses.
        """
        weight = quantize(conv.weight.flatten(1), family, group_size, scale, search, importance=importance)
        return cls(conv, weight, activations)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``x`` (N, in_channels, ...) or (in_channels, ...), in its dtype."""
        if self.activations is not None:
            x = self.activations(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = nn.functional.pad(x, self._around, self.padding_mode), (0,) * len(self.stride)
        weight = dense(self.matrix, x.dtype).reshape(self.kernel_shape)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        convolve: Callable[..., Tensor] = nn.functional.conv2d if len(self.kernel_shape) == 4 else nn.functional.conv1d
        return convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """Return sizes and format for ``repr``."""
        kernel = self.kernel_shape[2:]
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={kernel}, stride={self.stride}, "
            f"groups={self.groups}, {_format_of(self._template)}"
        )


def _format_of(weight: QuantizedTensor) -> str:
    return f"family={weight.family.name}, group_size={weight.group_size}, bits={weight.bits_per_weight:g}"
