"""The user's own model and text, or the user's own tensors, as a task."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from steelyard.card import Frozen
from steelyard.contracts import Arrays, Task
from steelyard.data.cache import file_sha256
from steelyard.errors import InputError
from steelyard.models.float32_copy import float32_copy
from steelyard.models.hugging_face import token_ids
from steelyard.quant.po2.checkpoints import json_table
from steelyard.quant.po2.weight_tasks import SHARES, read_tensors, rows_of

_MAX_TEXT = 1 << 26  # bytes
_MIN_WINDOWS = 9  # eight seeds and one for what grids are learned on


class Options(Frozen):
    """What the bench takes beside a text or tensors of your own."""

    model: str | None = Field(default=None, description="Hugging Face folder or GGUF file of a causal language model")
    window: int = Field(default=128, ge=2, le=4096, description="tokens of the window that a seed reads")
    group_size: int | None = Field(default=None, ge=1, description="elements that share a scale, all arms")
    search: Literal["none", "4o6", "sweep"] | None = Field(default=None, description="scale search of all arms")
    importance: bool | None = Field(default=None, description="weigh errors by the mean square of the inputs")
    layers: Literal["inner", "all"] | None = Field(default=None, description="all: the output layer is quantised too")
    activation_scale: Literal["actual", "calibrated"] | None = Field(
        default=None, description="FP32 scale of inputs: of the tensor at hand, or fixed on the first window"
    )
    pin_ends: bool | None = Field(default=None, description="learned grids keep -1 and +1")
    explicit_zero: bool | None = Field(default=None, description="learned grids keep an exact 0")
    shift: float | None = Field(default=None, ge=0, lt=6, description="shift c of the SFP4 arms")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's model and text, or of a user's tensors.

    Args:
        data: Path of a text file when a model is given; else of an npz file of weights, or a mapping of arrays.
        options: Fields of ``Options``.

    Raises:
        InputError: A file cannot be read or used, or the text is too short.
    """
    chosen = Options(**options)
    arrays: Arrays
    if chosen.model is None:
        every = dict(_tensors(data))
        # Fewer rows than shares: seeds would weigh the same rows, and grids be learned on what they are judged by.
        arrays = {name: array for name, array in every.items() if rows_of(array) >= SHARES}
        if not arrays:
            raise InputError(f"data has no array of at least {SHARES} rows, of which every seed takes some of its own")
        name = "user_weights"
        small = f", {len(every) - len(arrays)} of fewer than {SHARES} rows left out" if len(arrays) < len(every) else ""
        label = f"your tensors ({len(arrays)}{small})"
    else:
        arrays = _text_and_model(data, chosen)
        name = "user"
        label = f"{Path(chosen.model).name} on your text"
    return Task(name, label, lambda: arrays, "your own")


def _tensors(data: Any) -> Arrays:
    if isinstance(data, str | Path):
        return read_tensors(data)
    try:
        arrays = {str(name): np.asarray(value, dtype=np.float32) for name, value in dict(data).items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"data must be an npz file or a mapping of floating arrays ({error})") from None
    for name, array in arrays.items():
        if array.ndim == 0 or array.size == 0 or not np.isfinite(array).all():
            raise InputError(f"data, array '{name}': it must have a dimension and hold finite values only")
    if not arrays:
        raise InputError("data holds no arrays")
    return arrays


def _text_and_model(data: Any, options: Options) -> Arrays:
    """Return the tokens, the first window of them kept for tuning, and the model's folder with its checksum."""
    assert options.model is not None
    text = _text(data)
    folder = _folder(Path(options.model).expanduser())
    tokens = np.array(token_ids(folder, text), dtype=np.int32)
    if len(tokens) < _MIN_WINDOWS * options.window:
        raise InputError(
            f"data has {len(tokens)} tokens, too few for {_MIN_WINDOWS} windows of {options.window}; "
            "give more text or a smaller --window"
        )
    checksum = _checksum(folder)
    vocabulary = _vocabulary(folder)
    if vocabulary is not None and int(tokens.max()) >= vocabulary:
        raise InputError(
            f"model {folder}: the tokenizer gives the token {int(tokens.max())}, beyond the model's {vocabulary}; "
            "they do not belong together"
        )
    return {
        "folder": np.array(str(folder)),
        "checksum": np.array(checksum),
        "tuning": tokens[: options.window],
        "tokens": tokens[options.window :],
    }


def _text(data: Any) -> str:
    try:
        path = Path(data)
        if path.stat().st_size > _MAX_TEXT:
            raise InputError(f"{path} has more than {_MAX_TEXT} bytes; a few hundred thousand are enough")
        return path.read_text(encoding="utf-8")
    except TypeError:
        kind = type(data).__name__
        raise InputError(f"data must be the path of a text file when a model is given, got {kind}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{data} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"data {data} cannot be read: {error.strerror}") from None


def _folder(model: Path) -> Path:
    if model.is_dir():
        return model.resolve()
    if model.is_file() and model.suffix.lower() == ".gguf":
        return float32_copy(model)
    raise InputError(f"model {model} is neither a folder nor a .gguf file; give one of the two")


def _checksum(folder: Path) -> str:
    """Return a SHA-256 over the weights, so that another model is another cell."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"model {folder} holds no .safetensors file; other formats are not loaded")
    digest = hashlib.sha256()
    for file in [*files, folder / "config.json"]:
        try:
            digest.update(file_sha256(file).encode())
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _vocabulary(folder: Path) -> int | None:
    """Return the size of the model's vocabulary as its configuration has it, or None."""
    size = json_table(folder / "config.json").get("vocab_size")
    return size if isinstance(size, int) else None
