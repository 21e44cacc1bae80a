"""A GGUF model as a folder of float32 safetensors in the cache, made once: a reload then only maps the file."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from steelyard.data.cache import cache_folder, file_sha256
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.gguf import GGUFFile
from steelyard.models.hugging_face import offline, one_line

_LAYOUT = "1"  # of the folder; another number is another folder
_WEIGHTS = "model.safetensors"


def float32_copy(source: str | Path, sha256: str | None = None) -> Path:
    """Return a Hugging Face folder (config, tokenizer, float32 weights) that holds the model of a GGUF file.

    The folder lies below the cache folder (``STEELYARD_DATA``) under the file's checksum. It is written beside its
    place and moved there when it is whole; a damaged one is made again.

    Args:
        source: The GGUF file, with its tokenizer inside.
        sha256: The file's checksum, when the caller knows it already.

    Raises:
        InputError: The file cannot be read as a model, or the cache cannot be written.
        MissingExtraError: transformers, gguf or safetensors is not installed.
    """
    source = Path(source)
    digest = sha256 or _digest(source)
    folder = cache_folder() / "models" / f"{source.stem[:64]}-float32-v{_LAYOUT}-{digest[:16]}"
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as unfinished:
            made = Path(unfinished) / "made"
            made.mkdir()
            _write(source, made)
            shutil.rmtree(folder, ignore_errors=True)
            if not _is_whole(folder):
                os.replace(made, folder)
    except OSError as error:
        if not _is_whole(folder):  # else another process was faster
            raise InputError(
                f"the cache {folder.parent} cannot be written ({error.strerror or error}); "
                "free space there or set STEELYARD_DATA to another folder"
            ) from None
    return folder


def _digest(source: Path) -> str:
    try:
        return file_sha256(source)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from None


def _is_whole(folder: Path) -> bool:
    """Say whether the weights can be opened: safetensors compares the header with the size of the file."""
    safetensors = require("safetensors", "models")
    try:
        with safetensors.safe_open(folder / _WEIGHTS, "pt"):
            return (folder / "config.json").is_file()
    except (OSError, safetensors.SafetensorError):
        return False


def _write(source: Path, folder: Path) -> None:
    torch, transformers = require("torch", "models"), require("transformers", "models")
    file = GGUFFile(source)
    weights = {name: torch.from_numpy(file.read(name)) for name in file.tensors}
    require("safetensors.torch", "models").save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(file.config(), indent=1) + "\n")
    try:
        with offline():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source.parent, gguf_file=source.name, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # tokenizers raises bare ones
        raise InputError(
            f"{source}: its tokenizer cannot be read ({one_line(error)}); give a Hugging Face folder"
        ) from error
    tokenizer.save_pretrained(folder)
