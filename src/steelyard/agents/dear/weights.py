"""A controller on disk: ``config.json`` and ``controller.safetensors`` in a folder. Both are hostile until checked."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from steelyard.agents.dear.settings import MAX_FEATURES, MAX_WIDTH, ControllerSettings
from steelyard.errors import InputError
from steelyard.models.paths import check_links, usable_path
from steelyard.models.safefile import SafeFile, parse_json, write_safe, write_whole

CONFIG, WEIGHTS = "config.json", "controller.safetensors"
_MAX_CONFIG = 16_000_000  # bytes; a million trained items fit


def check_settings(settings: ControllerSettings) -> None:
    """Refuse settings that contradict each other or would ask for a network out of proportion.

    Raises:
        InputError: They do.
    """
    if not settings.behaviours or len(set(settings.behaviours)) != len(settings.behaviours):
        raise InputError(f"behaviours must name each choice once and at least one, got {settings.behaviours!r}")
    if not all(1 <= width <= MAX_WIDTH for width in settings.hidden):
        raise InputError(f"hidden must be two widths from 1 to {MAX_WIDTH}, got {settings.hidden}")
    if settings.sizes is not None and not all(1 <= size <= MAX_FEATURES for size in settings.sizes):
        raise InputError(f"sizes must be three numbers of features from 1 to {MAX_FEATURES}, got {settings.sizes}")
    if settings.who == "random" and settings.selection == "macro":
        raise InputError("who='random' replaces a mask over peers; with selection='macro' there is none")


def save(folder: Path, settings: ControllerSettings, tensors: dict[str, Tensor]) -> None:
    """Write both files; each appears under its name only when it is whole.

    Raises:
        InputError: The folder cannot be made or written to.
    """
    folder = usable_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"path {folder} cannot be made a folder: {error.strerror}") from None
    write_safe(folder / WEIGHTS, {name: tensor.detach().clone() for name, tensor in tensors.items()}, {})
    write_whole(folder / CONFIG, [settings.model_dump_json(indent=1).encode() + b"\n"])


def read_settings(folder: Path) -> ControllerSettings:
    """Return the settings of a stored controller.

    Raises:
        InputError: ``config.json`` is missing, too large, no JSON, or no settings of a trained controller.
    """
    folder = usable_path(folder)
    if not folder.is_dir():
        raise InputError(f"path {folder} is not a folder with {CONFIG} and {WEIGHTS}")
    check_links(folder)
    path = folder / CONFIG
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise InputError(f"{path} has more than {_MAX_CONFIG} bytes; it is no controller's configuration")
        found = parse_json(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold one JSON table")
    try:
        settings = ControllerSettings(**found)
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("",), "msg": "bad names"}
        where = ".".join(str(part)[:40] for part in first["loc"])
        raise InputError(f"{path}: '{where}': {first['msg']}") from None
    check_settings(settings)
    if settings.sizes is None:
        raise InputError(f"{path}: 'sizes' is missing, so this is no trained controller")
    return settings


def load_into(folder: Path, network: nn.Module) -> None:
    """Fill ``network`` from the stored weights, which must be its own names and shapes in finite float32.

    Raises:
        InputError: They are not.
    """
    file = SafeFile(folder / WEIGHTS)
    wanted = network.state_dict()
    if set(file.spans) != set(wanted):
        odd = sorted(set(file.spans) ^ set(wanted))[0]
        raise InputError(f"{file.path}: the tensors are not those of its configuration; '{odd[:80]}' is odd")
    for name, tensor in wanted.items():
        span = file.spans[name]
        if span.dtype != "F32" or span.shape != tuple(tensor.shape):
            raise InputError(
                f"{file.path}: '{name}' is {span.dtype} {span.shape}, not the configuration's F32 {tuple(tensor.shape)}"
            )
    read = {name: file.read(name).clone() for name in wanted}
    for name, tensor in read.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{file.path}: '{name}' holds a value that is not finite")
    network.load_state_dict(read)
