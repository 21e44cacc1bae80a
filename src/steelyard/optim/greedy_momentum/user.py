"""The user's own training task: two callables, named ``module:callable``, that make a model and its loaders."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from steelyard.card import Frozen
from steelyard.contracts import Arrays, Task
from steelyard.errors import InputError

RATES = {"sgd": (0.01, 0.03, 0.1, 0.3), "adamw": (1e-3, 3e-3)}
Loaders = tuple[Any, Any]


class UserOptions(Frozen):
    """What ``weigh greedy_momentum --data module:make_loaders`` takes beside the loaders."""

    model: str
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lrs: tuple[float, ...] | None = Field(default=None, max_length=4)
    steps: int = Field(default=200, ge=1)

    @field_validator("lrs", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return [part for part in value.replace(",", " ").split() if part] if isinstance(value, str) else value

    @field_validator("lrs")
    @classmethod
    def _positive_and_sorted(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (not value or min(value) <= 0 or sorted(set(value)) != list(value)):
            raise ValueError("learning rates must be above 0, sorted upwards, without duplicates")
        return value

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates, the optimizer's usual ones where none are given."""
        return self.lrs or RATES[self.optimizer]


def user_task(data: object, **options: Any) -> Task:
    """Return the task of the user's loaders ``data`` ("module:make_loaders") and ``model`` ("module:make_model").

    ``make_model()`` returns an nn.Module that maps inputs to class scores. ``make_loaders()`` or ``make_loaders(seed)``
    returns (training loader, test loader) of (inputs, labels). Both run under torch's global generator, which is set
    for each cell, so that arms start from equal weights and see equal batches.

    Raises:
        InputError: A name is not "module:callable", cannot be imported, or gives something else.
    """
    if not isinstance(data, str):
        raise InputError(f"data must be 'module:callable' that makes the loaders, got {type(data).__name__}.")
    chosen = UserOptions(**options)
    return Task("own", "your own task", load=lambda: _describe(data, chosen.model), source=data)


def _describe(data: str, model: str) -> Arrays:
    """Return the names and a hash of their source files, after one trial of both callables."""
    with _importable_from_here():
        callables = {"data": _resolve(data, "data"), "model": _resolve(model, "model")}
    digest = hashlib.sha256()
    for made in callables.values():
        file = inspect.getsourcefile(inspect.unwrap(made))
        digest.update(Path(file).read_bytes() if file else repr(made).encode())
    with own_randomness(torch.Generator().manual_seed(0)):
        network, (train_loader, _) = make(model, data, seed=0)
        inputs, labels = first_batch(train_loader, data)
        check_outputs(network(inputs), labels, model)
    return {"data": np.array(data), "model": np.array(model), "source_sha256": np.array(digest.hexdigest())}


@contextlib.contextmanager
def _importable_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported, as ``python -m`` would."""
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _resolve(name: str, what: str) -> Callable[..., Any]:
    """Import ``module:callable``."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(f"{what} must be written module:callable, got '{name}'.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InputError(f"{what}: module '{module_name}' needs '{error.name}', which is not installed.") from None
        raise InputError(
            f"{what}: there is no module '{module_name}'; run from the folder that holds it or set PYTHONPATH."
        ) from None
    except Exception as error:
        raise InputError(f"{what}: importing '{module_name}' failed with {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise InputError(f"{what}: module '{module_name}' has no callable '{attribute}'.")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Set torch's global CPU generator to the state of ``generator`` and restore it afterwards.

    The user's model and loaders draw from the global generator; there is no other way to give every arm the same
    weights, batches and dropout. Draws from numpy's or Python's generators are not covered.
    """
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        yield


def make(model: str, data: str, seed: int) -> tuple[nn.Module, Loaders]:
    """Call both callables and check what they return."""
    network = _resolve(model, "model")()
    if not isinstance(network, nn.Module):
        raise InputError(f"model: {model} must return a torch.nn.Module, got {type(network).__name__}.")
    make_loaders = _resolve(data, "data")
    takes_seed = "seed" in inspect.signature(make_loaders).parameters
    loaders = make_loaders(seed=seed) if takes_seed else make_loaders()
    if not (isinstance(loaders, tuple | list) and len(loaders) == 2 and all(hasattr(x, "__iter__") for x in loaders)):
        raise InputError(f"data: {data} must return two iterables, (training loader, test loader).")
    return network, (loaders[0], loaders[1])


def first_batch(loader: Any, data: str) -> tuple[Tensor, Tensor]:
    """Return the first batch of ``loader``, checked."""
    for batch in loader:
        return check_batch(batch, data)
    raise InputError(f"data: the training loader of {data} yields no batch.")


def check_batch(batch: Any, data: str) -> tuple[Tensor, Tensor]:
    """Return ``batch`` as (inputs, integer labels)."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)):
        raise InputError(f"data: the loaders of {data} must yield (inputs, labels) as two tensors.")
    inputs, labels = batch
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise InputError(f"data: the labels of {data} must be one whole number per row, got {tuple(labels.shape)} "
                         f"of {labels.dtype}.")  # fmt: skip
    return inputs, labels.long()


def check_outputs(outputs: object, labels: Tensor, model: str) -> None:
    """Refuse a model that does not give one score per row and class."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(labels):
        raise InputError(f"model: {model} must map a batch to scores [rows, classes].")
    if int(labels.max()) >= outputs.shape[1] or int(labels.min()) < 0:
        raise InputError(
            f"data: labels must be in 0..{outputs.shape[1] - 1}, since {model} gives {outputs.shape[1]} scores; "
            f"found {int(labels.min())}..{int(labels.max())}."
        )


def endless(loader: Any, steps: int, data: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``steps`` batches, starting the loader again when it ends."""
    taken = 0
    while taken < steps:
        before = taken
        for batch in loader:
            if taken == steps:
                return
            taken += 1
            yield check_batch(batch, data)
        if taken == before:
            raise InputError(f"data: the training loader of {data} yields no batch (a generator cannot start again).")
