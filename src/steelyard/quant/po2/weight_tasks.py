"""Tasks on tensors alone: the error of generated tensors, of real weights and of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from steelyard import rng
from steelyard.contracts import Arrays, CellInput, Measured
from steelyard.data.binary import read_arrays
from steelyard.errors import InputError
from steelyard.models import llama2c, minilm
from steelyard.quant.po2.cells import config_of, linear_layers, quantiser_of

SHAPE = (1250, 256)  # 20,000 groups of 16
SHARES = 16  # disjoint shares of the rows of real weights, one a seed
_WEIGHED = 10  # shares that the profiles' seeds read; tuning keeps to the others
_POOL_SHARE = 4  # grids are learned on a quarter as many values
_POOL_ROWS = 8  # of every matrix that grids are learned on
_MAX_BYTES = 1 << 31

Floats = npt.NDArray[np.float64]
_DRAWS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "gaussian": lambda stream, shape: stream.standard_normal(shape),
    "t5": lambda stream, shape: stream.standard_t(5, shape),
    "t3": lambda stream, shape: stream.standard_t(3, shape),
    "laplace": lambda stream, shape: stream.laplace(size=shape),
}


def generated() -> Arrays:
    """Return the shape of a generated tensor; its values are drawn in the cell."""
    return {"shape": np.array(SHAPE)}


def run_generated(cell: CellInput) -> Measured:
    """Quantise a tensor drawn from the task's distribution; grids are learned on another draw, of the tuning stream."""
    draw = _DRAWS[cell.task]
    shape = tuple(int(size) for size in cell.data["shape"])
    tensor = torch.from_numpy(draw(cell.rng("values"), shape)).float()
    fewer = (max(1, shape[0] // _POOL_SHARE), *shape[1:])
    pool = torch.from_numpy(draw(rng.generator("tuning", f"{cell.task}/pool", cell.seed), fewer)).float()
    return _measured(cell, [tensor], [pool])


def run_weights(cell: CellInput) -> Measured:
    """Quantise the seed's share of the rows of every matrix; grids are learned on the rows of another share."""
    matrices = _matrices(cell)
    if config_of(cell).importance:
        raise InputError("importance needs a model whose layers see data; give one with --model")
    weighed, learned = _shares(cell)
    ours = [_share(matrix, weighed) for matrix in matrices]
    others = [_share(matrix, learned)[:_POOL_ROWS] for matrix in matrices]
    return _measured(cell, ours, others)


def _shares(cell: CellInput) -> tuple[int, int]:
    """Return the share that is quantised and the one that grids are learned on.

    Of evaluation a seed is a share. Tuning draws among the shares that evaluation reaches from its eleventh seed on.
    """
    if cell.root == "evaluation":
        return cell.seed, cell.seed + SHARES // 2
    free = SHARES - _WEIGHED
    return _WEIGHED + cell.seed % free, _WEIGHED + (cell.seed + free // 2) % free


def _matrices(cell: CellInput) -> list[Tensor]:
    if cell.task in _OPEN:
        return [layer.weight for layer in linear_layers(_OPEN[cell.task]()).values()]
    return [torch.from_numpy(array) for array in cell.data.values()]


def _share(matrix: Tensor, seed: int) -> Tensor:
    """Return the rows of one share of the matrix."""
    return matrix.reshape(-1, matrix.shape[-1])[seed % SHARES :: SHARES]


def rows_of(array: npt.NDArray[Any]) -> int:
    """Return how many rows there are along the last axis; below ``SHARES`` a seed would have none of its own."""
    return int(array.size // array.shape[-1])


def _measured(cell: CellInput, tensors: Sequence[Tensor], pool: Sequence[Tensor]) -> Measured:
    quantise = quantiser_of(cell, pool)
    error = relative_error(tensors, map(quantise, tensors))
    elements = sum(tensor.numel() for tensor in tensors)
    return Measured({"weight_error": error, "bits": quantise.bits_per_weight}, steps=max(1, elements // 1000))


def relative_error(truth: Iterable[Tensor], ours: Iterable[Tensor]) -> float:
    """Return the squared error of tensors taken together over their energy, summed in float64; 0 where all are 0."""
    error = power = 0.0
    for true, our in zip(truth, ours, strict=True):
        error += float((our - true).double().square().sum())
        power += float(true.double().square().sum())
    return error / power if power else 0.0


_OPEN: Mapping[str, Callable[[], Any]] = {"stories_weights": llama2c.stories260k, "minilm_weights": minilm.load}


def read_tensors(path: str | Path) -> Arrays:
    """Return the floating arrays of an npz file as float32; nothing is unpickled.

    Raises:
        InputError: Not such a file, too large, without floating arrays, or with values that are not finite.
    """
    path = Path(path)
    try:
        found = read_arrays(path, _MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path} is not a sound npz file ({error.strerror}); write it with numpy.savez") from None
    floats = {name: array for name, array in found.items() if array.dtype.kind == "f" and array.ndim}
    weights = {name: array.astype(np.float32) for name, array in floats.items()}
    if not weights:
        raise InputError(f"{path} holds no floating array with at least one dimension")
    for name, array in weights.items():
        if array.size == 0 or not np.isfinite(array).all():
            raise InputError(f"{path}, array '{name}': it is empty or holds values that are not finite")
    return weights
