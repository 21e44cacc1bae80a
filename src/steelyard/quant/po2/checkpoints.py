"""Checkpoints of any kind, tensor by tensor: a safetensors file, a Hugging Face folder, a GGUF file.

Everything here comes from files of users and is not trusted: names in an index stay inside its folder, pickles are not
opened, and a damaged file ends in one sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.models.gguf import GGUFFile
from steelyard.models.paths import check_links, printable, usable_path
from steelyard.models.safefile import DTYPES, SafeFile, parse_json

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_COUNTS = (torch.int64, torch.int32, torch.bool)  # buffers such as position ids: carried along
_BLOCK = 1 << 22
_NAME = 255  # bytes of a file name, on every file system in use


class Entry(NamedTuple):
    """A tensor of a checkpoint: its shape and the dtype that :meth:`Checkpoint.read` gives it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Checkpoint(NamedTuple):
    """An opened checkpoint.

    Attributes:
        path: What the user named: a file or a folder.
        entries: Tensor name -> shape and dtype, in the order of the file or files.
        config: The Hugging Face configuration; None for a bare safetensors file.
        folder: Where tokenizer files lie beside the weights; None where there is no such folder.
        fetch: Tensor name -> tensor, on the file's own pages where that is possible.
        identity: Digest of what the checkpoint holds; another path to the same content has the same.
    """

    path: Path
    entries: dict[str, Entry]
    config: dict[str, Any] | None
    folder: Path | None
    fetch: Callable[[str], Tensor]
    identity: str

    def read(self, name: str) -> Tensor:
        """Return a tensor.

        Raises:
            InputError: A value in it is NaN or infinite.
        """
        tensor = self.fetch(name)
        if tensor.is_floating_point():
            flat = tensor.reshape(-1)
            for start in range(0, flat.numel(), _BLOCK):
                if not torch.isfinite(flat[start : start + _BLOCK]).all():
                    raise InputError(f"{self.path}: the tensor '{name}' holds NaN or infinite values")
        return tensor


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Args:
        path: A ``.safetensors`` file, a ``.gguf`` file, or a Hugging Face folder with one or several shards.

    Raises:
        InputError: There is no such checkpoint, it is damaged, already quantised, or a pickle.
        MissingExtraError: It is a GGUF file and the package gguf is not installed.
    """
    path = usable_path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise InputError(f"there is no checkpoint at {path}")
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix in _PICKLES:
        raise InputError(_pickle_sentence(path))
    if path.suffix != ".safetensors":
        raise InputError(f"{path} is no checkpoint: give a .safetensors file, a .gguf file or a Hugging Face folder")
    file = SafeFile(path)
    return _of_files(path, dict.fromkeys(file.spans, file), None, None)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    entries = {name: Entry(tensor.shape, torch.float32) for name, tensor in file.tensors.items()}
    identity = hashlib.sha256(file.fingerprint()).hexdigest()
    return Checkpoint(path, entries, file.config(), None, lambda name: torch.from_numpy(file.read(name)), identity)


def _open_folder(folder: Path) -> Checkpoint:
    check_links(folder)
    config = json_table(folder / "config.json") if (folder / "config.json").exists() else None
    if config is not None and config.get("quantization_config") is not None:
        raise InputError(f"{folder} is quantised already, says the quantization_config of its config.json")
    if (folder / INDEX).exists():
        return _of_files(folder, _indexed(folder), config, folder)
    candidates = [folder / _SINGLE] if (folder / _SINGLE).exists() else sorted(folder.glob("*.safetensors"))
    if not all(file.name.isprintable() for file in candidates):
        raise InputError(f"{folder} holds a .safetensors file whose name cannot be printed; rename it")
    if len(candidates) == 1:
        file = SafeFile(candidates[0])
        return _of_files(folder, dict.fromkeys(file.spans, file), config, folder)
    if candidates:
        raise InputError(f"{folder} holds {len(candidates)} .safetensors files and no {INDEX}; name one of the files")
    pickles = sorted(file for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise InputError(_pickle_sentence(pickles[0]))
    raise InputError(f"{folder} holds no weights: neither {_SINGLE} nor {INDEX}")


def _indexed(folder: Path) -> dict[str, SafeFile]:
    """Return tensor name -> file of a sharded checkpoint; nothing outside ``folder`` is opened."""
    places = read_index(folder)
    files = {path: SafeFile(path) for path in sorted(set(places.values()))}
    holder: dict[str, SafeFile] = {}
    for file in files.values():
        for name in file.spans:
            if name in holder:
                raise InputError(f"the tensor '{name[:80]}' is in {holder[name].path} and again in {file.path}")
            holder[name] = file
    for name, path in places.items():
        if holder.get(name) is not files[path]:
            raise InputError(f"{folder / INDEX} says that the tensor '{name[:80]}' is in {path.name}, but it is not")
    return {name: file for name, file in holder.items() if name in places}


def read_index(folder: Path) -> dict[str, Path]:
    """Return tensor name -> shard of a sharded checkpoint; the index is not trusted and leads nowhere else.

    Raises:
        InputError: The index is damaged, or names a file outside the folder or one that is missing.
    """
    where = folder / INDEX
    places = json_table(where).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise InputError(f"{where} needs a weight_map from names of tensors to names of files")
    if not all(name.isprintable() for name in places):
        raise InputError(f"{where} names tensors with characters that cannot be printed; it is damaged")
    for name in sorted(set(places.values())):
        plain = (
            name.isprintable()
            and "/" not in name
            and "\\" not in name
            and not name.startswith(".")
            and len(name.encode()) <= _NAME
        )
        if not (plain and name.endswith(".safetensors")):
            raise InputError(f"{where} names the file {name[:80]!r}; a plain name of a .safetensors file is needed")
        if not (folder / name).exists():
            raise InputError(f"{where} names the shard {name}, which is missing; fetch it again")
    return {tensor: folder / name for tensor, name in places.items()}


def _of_files(
    path: Path, holder: dict[str, SafeFile], config: dict[str, Any] | None, folder: Path | None
) -> Checkpoint:
    if not holder:
        raise InputError(f"{path} holds no tensors")
    entries: dict[str, Entry] = {}
    for name, file in holder.items():
        span = file.spans[name]
        dtype = DTYPES[span.dtype]
        if dtype not in _FLOATS + _COUNTS:
            raise InputError(
                f"{file.path}: the tensor '{name[:80]}' has the dtype {span.dtype}; weights of float32, float16 or "
                "bfloat16 are needed, not quantised ones"
            )
        entries[name] = Entry(span.shape, dtype)
    digest = hashlib.sha256()
    for file in {file.path: file for file in holder.values()}.values():
        digest.update(file.fingerprint())
    digest.update(repr(sorted((config or {}).items())).encode())
    return Checkpoint(path, entries, config, folder, lambda name: holder[name].read(name), digest.hexdigest())


def json_table(path: Path) -> dict[str, Any]:
    """Return the JSON table in an untrusted file.

    Raises:
        InputError: It cannot be read, or holds no table.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    table = parse_json(text, path)
    if not isinstance(table, dict):
        raise InputError(f"{path} is damaged: it holds no JSON table")
    return table


def _pickle_sentence(path: Path) -> str:
    return (
        f"{printable(str(path))} may be a pickle, which can run any code when it is opened and is not read here; "
        "convert it to safetensors first (save_pretrained of transformers writes that)"
    )
