"""A GGUF model as a folder of float32 safetensors in the cache, made once: a reload then only maps the file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.data.cache import cache_folder, file_sha256
from steelyard.errors import ChecksumError, InputError
from steelyard.extras import require
from steelyard.models.gguf import GGUFFile, UnknownArchitectureError
from steelyard.models.hugging_face import load_causal_lm, load_tokenizer, one_line

_LAYOUT = "2"  # of the folder; another number is another folder
_WEIGHTS, _SIZES, _UNFINISHED = "model.safetensors", "sizes.json", "unfinished-"
_NEEDED = {_WEIGHTS, "config.json", "tokenizer_config.json"}


def float32_copy(source: str | Path, sha256: str | None = None) -> Path:
    """Return a Hugging Face folder (config, tokenizer, float32 weights) that holds the model of a GGUF file.

    The folder lies below the cache folder (``STEELYARD_DATA``) under the file's checksum. It is written beside its
    place and moved there when it is whole; one in which a file is missing or cut short is made again (bits that flip
    on a disk are not noticed: a checksum of everything would take longer than the loading). Processes that ask at once
    wait for the one that makes it.

    Args:
        source: The GGUF file, with its tokenizer inside. Architectures that :class:`GGUFFile` does not read go through
            transformers' own reader, which takes longer.
        sha256: The file's checksum, when the caller knows it already.

    Raises:
        ChecksumError: The file has another checksum than ``sha256``.
        InputError: The file cannot be read as a model, or the cache cannot be written.
        MissingExtraError: transformers, gguf or safetensors is not installed.
    """
    source = Path(source)
    digest = sha256 or _digest(source)
    if (ready := finished_copy(source.name, digest)) is not None:
        return ready
    folder = _folder(source.name, digest)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder.parent) as alone:
            for left in folder.parent.glob(f"{_UNFINISHED}*") if alone else ():  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            if not _is_whole(folder):  # another process was faster
                _make(source, digest, folder)
    except (OSError, require("safetensors", "models").SafetensorError) as error:  # its writer wraps a full disk
        raise InputError(
            f"the cache {folder.parent} cannot be written ({getattr(error, 'strerror', None) or one_line(error)}); "
            "free space there or set STEELYARD_DATA to another folder"
        ) from None
    return folder


def finished_copy(name: str, sha256: str) -> Path | None:
    """Return the folder that :func:`float32_copy` made of the GGUF file with this name and checksum, if it has."""
    folder = _folder(name, sha256)
    return folder if _is_whole(folder) else None


def _folder(name: str, digest: str) -> Path:
    return cache_folder() / "models" / f"{Path(name).stem[:64]}-float32-v{_LAYOUT}-{digest[:16]}"


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[bool]:
    """Hold a lock on a folder and yield True; where the system has none, yield False.

    Two may then do the same work, and the last one's result stays.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(handle)


def _make(source: Path, digest: str, folder: Path) -> None:
    if _digest(source) != digest:
        raise ChecksumError(f"{source} has other bytes than its checksum {digest[:12]}… says; get the file again")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as unfinished:
        made = Path(unfinished) / "made"
        made.mkdir()
        _write(source, made)
        (made / _SIZES).write_text(json.dumps({path.name: path.stat().st_size for path in made.iterdir()}))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)


def _digest(source: Path) -> str:
    try:
        return file_sha256(source)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from None


def _is_whole(folder: Path) -> bool:
    """Say whether every file has the size that it was written with, and the header of the weights can be read."""
    safetensors = require("safetensors", "models")
    try:
        sizes = json.loads((folder / _SIZES).read_bytes())
        with safetensors.safe_open(folder / _WEIGHTS, "pt"):
            return sizes.keys() >= _NEEDED and all((folder / name).stat().st_size == sizes[name] for name in sizes)
    except (OSError, ValueError, AttributeError, safetensors.SafetensorError):
        return False


def _write(source: Path, folder: Path) -> None:
    try:
        file = GGUFFile(source)
    except UnknownArchitectureError:
        _save(load_causal_lm(source), folder)
    else:
        torch = require("torch", "models")
        weights = {name: torch.from_numpy(file.read(name)) for name in file.tensors}
        require("safetensors.torch", "models").save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(file.config(), indent=1) + "\n")
    load_tokenizer(source).save_pretrained(folder)


def _save(model: Any, folder: Path) -> None:
    """Write a model that transformers read from GGUF, which it would refuse to save as long as it is called quantised.

    Its weights are float32 by then.
    """
    model.hf_quantizer = None
    model.quantization_method = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of the writer
        model.save_pretrained(folder, max_shard_size="1TB")
