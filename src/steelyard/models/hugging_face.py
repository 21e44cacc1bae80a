"""Tokenizers and causal language models in local Hugging Face folders and GGUF files; no code of theirs is run."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import check_links, printable, usable_path
from steelyard.models.safefile import parse_json

_OTHER_MODELS = ("backbone", "use_pretrained_backbone", "pretrained_backbone", "use_timm_backbone")
_NOISY = ("torchao", "torch.utils._pytree")  # loggers of torchao's import, which transformers imports where it is there


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keep the warnings of torchao's import, about kernels of other machines, from the user; errors pass."""

    def severe(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    loggers = [logging.getLogger(name) for name in _NOISY]
    for logger in loggers:
        logger.addFilter(severe)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(severe)


def import_transformers(module: str = "transformers.modeling_utils") -> Any:
    """Import a module of transformers quietly and return transformers itself.

    The default is the module with which torchao comes: transformers loads its names at their first use.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    with quiet_import():
        require(module, "models")
    return require("transformers", "models")


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep huggingface_hub off the network: what transformers would fetch in spite of ``local_files_only`` fails."""
    with mock.patch.object(require("huggingface_hub.constants", "models"), "HF_HUB_OFFLINE", True):
        yield


def names_other_model(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration, or a table in it, asks for the weights or the code of another model.

    ``backbone`` names one of the hub or of timm, which has downloads of its own.
    """
    tables: list[Mapping[str, Any]] = [config]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, Mapping):
                tables.append(value)
            elif key in _OTHER_MODELS and value:
                return True
    return False


def load_tokenizer(path: str | Path) -> Any:
    """Return the tokenizer of a Hugging Face folder or a GGUF file.

    Raises:
        InputError: There is none that can be read.
    """
    transformers = require("transformers", "models")
    path = Path(path)
    place, options = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    try:
        with offline(), quiet_import():
            return transformers.AutoTokenizer.from_pretrained(
                str(place), local_files_only=True, trust_remote_code=False, **options
            )
    except Exception as error:  # tokenizers raises bare ones
        advice = "; give a Hugging Face folder" if options else ""
        raise InputError(f"{path}: its tokenizer cannot be read ({one_line(error)}){advice}") from error


def token_ids(folder: str | Path, text: str) -> list[int]:
    """Return the tokens of ``text`` by the tokenizer of a Hugging Face folder.

    Raises:
        InputError: There is none that can be read, or it fails on the text.
    """
    if usable_path(folder).is_dir():
        check_links(Path(folder))
    tokenizer = load_tokenizer(folder)
    try:
        ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    except Exception as error:
        raise InputError(f"{folder}: its tokenizer cannot be used ({one_line(error)})") from error
    return ids


def load_causal_lm(path: str | Path) -> Any:
    """Return a causal language model whole, in float32 and for evaluation; weights from safetensors or GGUF only.

    Args:
        path: A Hugging Face folder or a GGUF file.

    Raises:
        InputError: It cannot be read, needs code of its own, or lacks weights.
        MissingExtraError: transformers, or for GGUF accelerate, is not installed.
    """
    torch, transformers = require("torch", "models"), import_transformers()
    path = usable_path(path)
    if path.is_dir():
        _check_folder(path)
        place, options = path, dict[str, Any](use_safetensors=True)
    elif path.suffix == ".gguf" and path.is_file():
        require("accelerate", "models")
        place, options = path.parent, dict[str, Any](gguf_file=path.name)
    else:
        raise InputError(f"{path} is neither a Hugging Face folder nor a GGUF file")
    failed = f"{path} cannot be loaded as a causal language model"
    try:
        with offline(), contextlib.redirect_stderr(io.StringIO()):  # bars of the loader; its warnings go another way
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                str(place), dtype=torch.float32, local_files_only=True, trust_remote_code=False,
                output_loading_info=True, **options,
            )  # fmt: skip
    except Exception as error:  # transformers raises whatever it meets in a configuration that it refuses
        raise InputError(f"{failed}: {one_line(error)}") from error
    absent = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if absent:  # transformers would go on with random numbers there
        raise InputError(f"{failed}: it lacks {printable(absent[0][:100])}")
    return model.requires_grad_(False).eval()


def _check_folder(folder: Path) -> None:
    check_links(folder)
    try:
        config = parse_json((folder / "config.json").read_bytes(), folder / "config.json")
    except OSError:  # none, most often: the loader says so
        return
    if isinstance(config, dict) and names_other_model(config):
        raise InputError(f"{folder / 'config.json'} names another model (backbone), which is not fetched")


def one_line(error: Exception) -> str:
    """Return what an error says, on one line of bounded length and without characters that steer a terminal."""
    return printable(" ".join(str(error).split())[:300])
