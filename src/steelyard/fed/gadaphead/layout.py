"""How a model's named arrays divide into a shared trunk and a personal head, and how the head becomes one array."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError, did_you_mean
from steelyard.fed.gadaphead.rows import can_be_averaged

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class HeadLayout:
    """Names, shapes and types of a model's arrays, and which of them are the head.

    Linear layers on the same features, as ``torch.nn.Linear`` stores them (weight (k, f), bias (k,)), become one head
    (f, k), or (f + 1, k) with the biases as the row of a constant feature; several layers stand side by side. One
    array (d,) stays as it is. Anything else is laid flat, (d,), and has no feature second moment.

    Attributes:
        shapes: Name -> shape, in the model's order.
        types: Name -> numpy type.
        head: Names of the head's arrays, in the model's order.
        weights: Those of them that are matrices of linear layers; empty when the head is laid flat.
        features_last: A weight is (outputs, features), as in torch; False for (features, outputs).
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    head: tuple[str, ...]
    weights: tuple[str, ...]
    features_last: bool = True

    @property
    def trunk(self) -> tuple[str, ...]:
        """Names of the shared arrays, in the model's order."""
        return tuple(name for name in self.shapes if name not in self.head)

    @property
    def biases(self) -> tuple[str, ...]:
        """Names of the biases that go with ``weights``."""
        return tuple(name for name in self.head if name not in self.weights) if self.weights else ()

    @property
    def head_shape(self) -> tuple[int, ...]:
        """Shape of the packed head, (d,) or (d, k)."""
        if not self.weights:
            return (sum(int(np.prod(self.shapes[name])) for name in self.head),)
        features = self.shapes[self.weights[0]][1 if self.features_last else 0]
        outputs = sum(self.shapes[name][0 if self.features_last else 1] for name in self.weights)
        return (features + bool(self.biases), outputs)

    def split(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[Arrays, NDArray[Any]]:
        """Return the trunk's arrays and the packed head of a model that ``check`` accepts."""
        trunk = {name: arrays[name] for name in self.trunk}
        if not self.weights:
            return trunk, np.concatenate([np.ravel(arrays[name]) for name in self.head])
        turned = [arrays[name].T if self.features_last else arrays[name] for name in self.weights]
        head = np.concatenate(turned, axis=1)
        if self.biases:
            head = np.concatenate([head, np.concatenate([arrays[name] for name in self.biases])[None]])
        return trunk, np.ascontiguousarray(head)

    def unpack(self, head: NDArray[Any]) -> Arrays:
        """Return the head's arrays, with their own shapes and types, from a packed head."""
        if not self.weights:
            ends = np.cumsum([int(np.prod(self.shapes[name])) for name in self.head])
            parts = np.split(head, ends[:-1])
            return {name: self._typed(name, part) for name, part in zip(self.head, parts, strict=True)}
        axis = 0 if self.features_last else 1
        ends = np.cumsum([self.shapes[name][axis] for name in self.weights])
        columns = np.split(head, ends[:-1], axis=1)
        arrays: Arrays = {}
        for weight, part in zip(self.weights, columns, strict=True):
            matrix = part[:-1] if self.biases else part
            arrays[weight] = self._typed(weight, matrix.T if self.features_last else matrix)
        for bias, part in zip(self.biases, columns, strict=False):
            arrays[bias] = self._typed(bias, part[-1])
        return arrays

    def typed(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return arrays that ``check`` accepts in the model's own types; whole numbers are rounded."""
        return {name: self._typed(name, arrays[name]) for name in self.shapes}

    def _typed(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        kind = self.types[name]
        if kind.kind in "iu" and values.dtype.kind == "f":
            values = np.rint(values)
        shape = self.shapes[name]
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which ``check`` refuses
            return np.ascontiguousarray(np.reshape(values, shape), dtype=kind).reshape(shape)

    def check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise ``InputError`` unless ``arrays`` has this model's names and shapes and only finite numbers."""
        if missing := [name for name in self.shapes if name not in arrays]:
            raise InputError(f"the arrays lack {missing[0]!r}; a model here has {_listed(self.shapes)}")
        if more := [name for name in arrays if name not in self.shapes]:
            raise InputError(f"the arrays hold {more[0]!r}, which the model does not have: {_listed(self.shapes)}")
        for name, shape in self.shapes.items():
            if arrays[name].shape != shape:
                raise InputError(f"array {name!r} has shape {arrays[name].shape}, not {shape}")
            kind = arrays[name].dtype.kind
            if kind not in "fiub" or (kind == "f" and not can_be_averaged(arrays[name])):
                raise InputError(
                    f"array {name!r} holds values that are not finite numbers, or too large to be averaged"
                )


def head_layout(
    arrays: Mapping[str, NDArray[Any]],
    *,
    head_keys: Collection[str] | None = None,
    head_predicate: Callable[[str], bool] | None = None,
    features_last: bool = True,
) -> HeadLayout:
    """Divide a model into trunk and head.

    Args:
        arrays: The model by name, e.g. a state dictionary as numpy arrays.
        head_keys: Names of the head's arrays; or
        head_predicate: Says of a name whether its array belongs to the head.
        features_last: Weights are (outputs, features), as torch stores them; False for (features, outputs).

    Raises:
        InputError: Not exactly one of the two is given, a key is unknown, or the head is nothing or everything; the
            message lists the names.
    """
    if (head_keys is None) == (head_predicate is None):
        raise InputError("give either head_keys or head_predicate, to say which arrays are the head")
    if head_keys is not None:
        if isinstance(head_keys, str):
            raise InputError(
                f"head_keys must be a collection of names, got the text {head_keys!r}; write [{head_keys!r}]"
            )
        for key in head_keys:
            if key not in arrays:
                raise InputError(
                    f"head_keys names {key!r}, which is not in the model: {_listed(arrays)}.{did_you_mean(key, arrays)}"
                )
        head = tuple(name for name in arrays if name in head_keys)
    else:
        assert head_predicate is not None
        head = tuple(name for name in arrays if head_predicate(name))
    given = "head_keys" if head_keys is not None else "head_predicate"
    if not head:
        raise InputError(f"{given} matches none of the model's arrays: {_listed(arrays)}")
    if len(head) == len(arrays):
        raise InputError(
            f"{given} matches all of the model's arrays, so that nothing would be shared: {_listed(arrays)}"
        )
    if odd := [name for name in head if arrays[name].dtype.kind != "f"]:
        raise InputError(f"array {odd[0]!r} of the head holds {arrays[odd[0]].dtype}, which cannot be mixed")
    shapes = {name: tuple(values.shape) for name, values in arrays.items()}
    types = {name: values.dtype for name, values in arrays.items()}
    return HeadLayout(shapes, types, head, _linear_weights(shapes, head, features_last), features_last)


def _linear_weights(
    shapes: Mapping[str, tuple[int, ...]], head: tuple[str, ...], features_last: bool
) -> tuple[str, ...]:
    """Return the weights when the head is linear layers on the same features, all with or all without a bias."""
    weights = tuple(name for name in head if len(shapes[name]) == 2)
    biases = tuple(name for name in head if len(shapes[name]) == 1)
    outputs = [shapes[name][0 if features_last else 1] for name in weights]
    features = {shapes[name][1 if features_last else 0] for name in weights}
    paired = not biases or [shapes[name][0] for name in biases] == outputs
    whole = len(weights) + len(biases) == len(head)
    return weights if whole and paired and len(features) == 1 else ()


def _listed(names: Collection[str], most: int = 20) -> str:
    shown = ", ".join(list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
