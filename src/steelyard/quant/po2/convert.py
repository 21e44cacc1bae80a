"""Convert a checkpoint to 4 bits tensor by tensor: what is in memory is one tensor and one shard, never the model.

The output is a folder in the Hugging Face naming: numbered shards, an index, ``config.json`` and the tokenizer. Which
tensors go into which shard is known before the first is read. A shard carries the digest of this plan and of its own
bytes and appears under its name only when it is whole; a conversion that was interrupted goes on after the last one,
and its files are the same byte for byte as those of one that was not.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.models.paths import printable, usable_path
from steelyard.models.safefile import PART, write_whole
from steelyard.quant.po2 import core, scales
from steelyard.quant.po2.checkpoints import INDEX, Checkpoint, json_table, open_checkpoint
from steelyard.quant.po2.families import GridFamily
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.folder_lock import LOCK, locked
from steelyard.quant.po2.hf_files import linear_weights, tokenizer_files, write_config
from steelyard.quant.po2.memory import PeakMemory, give_back
from steelyard.quant.po2.packed_files import FORMAT, PackedFile, write_packed
from steelyard.quant.po2.summary import Summary, summarize
from steelyard.quant.po2.tensor import QuantizedTensor, quantize

MANIFEST = "conversion.json"
SHARD_BYTES = 1 << 26
Keep = Literal["same", "float32", "bfloat16"]
OnProgress = Callable[[int, int, str], None]
"""Called with weights done, weights in all and the name of the tensor that is next."""

_BEGUN = re.compile(rf"\..+\.\d+{re.escape(PART)}")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_KEPT = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Conversion:
    """The outcome of :func:`convert`.

    Attributes:
        output: The folder.
        summary: Layers, bits and errors, as the shards tell them.
        shards: Shards in all.
        reused: Shards that an earlier run had finished.
        seconds: Wall time.
        memory_start: RssAnon when it began, bytes; None where the system does not tell.
        memory_peak: The most RssAnon that was seen.
        largest_bytes: The largest tensor as float32.
        notes: What the user should know.
    """

    output: Path
    summary: Summary
    shards: int
    reused: int
    seconds: float
    memory_start: int | None
    memory_peak: int | None
    largest_bytes: int
    notes: tuple[str, ...]


class _Settings(NamedTuple):
    family: GridFamily
    group_size: int
    scale: str
    search: str
    filter: str | None
    keep: Keep
    shard_bytes: int


class _Item(NamedTuple):
    name: str
    quantize: bool
    numel: int


class _Job(NamedTuple):
    """A conversion as planned; ``plan`` is its identity, which every shard carries."""

    checkpoint: Checkpoint
    settings: _Settings
    batches: list[list[_Item]]
    output: Path
    plan: str

    def shard(self, number: int) -> Path:
        return self.output / f"model-{number + 1:05d}-of-{len(self.batches):05d}.safetensors"

    def mark(self, number: int) -> str:
        """What the header of a shard carries: whose it is and which."""
        return f"{self.plan}:{number}"


def convert(
    source: str | Path,
    output: str | Path,
    family: str | GridFamily = "mpo2",
    group_size: int | None = None,
    scale: str | None = None,
    search: str = "none",
    filter: str | None = None,
    keep: Keep = "same",
    shard_bytes: int = SHARD_BYTES,
    force: bool = False,
    progress: OnProgress | None = None,
) -> Conversion:
    """Quantise the linear weights of a checkpoint into a new folder; embeddings, norms and the output layer stay.

    Memory: anonymous pages stay below twice the largest tensor in float32 plus 500 MB, whatever the size of the model.
    Called again after an interruption, it goes on with the shards that are missing.

    Args:
        source: A safetensors file, a Hugging Face folder, or a GGUF file. It is only read.
        output: A folder that does not exist, is empty, or holds the same conversion, finished or not.
        family: Name or family of grids.
        group_size: Weights that share a scale; None takes the family's.
        scale: Format of the group scales; None takes the family's.
        search: "none", "4o6", "sweep" or "window".
        filter: Regular expression; of the linear weights only those in whose name it is found are quantised.
        keep: Dtype of the floating tensors that are not quantised; "same" leaves them as they are.
        shard_bytes: Bytes after which a shard is closed.
        force: Replace another conversion in ``output``.
        progress: Called before every tensor and at the end.

    Raises:
        InputError: The source cannot be used, the output holds something else, or the disk is full.
        MissingExtraError: A package that the source needs is not installed.
    """
    began = time.monotonic()
    with PeakMemory() as memory:
        settings = _settings(family, group_size, scale, search, filter, keep, shard_bytes)
        checkpoint = open_checkpoint(source)
        job = _plan(checkpoint, settings, _folder(checkpoint, usable_path(output)))
        with locked(job.output):
            _claim(job, force)
            reused = _write_shards(job, progress, memory)
            summary = summarize(PackedFile(job.shard(number)) for number in range(len(job.batches)))
            notes = _finish(job, summary)
    return Conversion(
        output=job.output,
        summary=summary,
        shards=len(job.batches),
        reused=reused,
        seconds=time.monotonic() - began,
        memory_start=memory.start,
        memory_peak=memory.peak,
        largest_bytes=4 * max(_numel(entry.shape) for entry in checkpoint.entries.values()),
        notes=notes,
    )


def _settings(
    family: str | GridFamily, group_size: int | None, scale: str | None, search: str, pattern: str | None, keep: Keep,
    shard_bytes: int,
) -> _Settings:  # fmt: skip
    options = core.plan(find_family(family), group_size, scale, search)
    if keep not in ("same", *_KEPT):
        raise InputError(f"keep must be 'same', 'float32' or 'bfloat16', got {keep!r}")
    if isinstance(shard_bytes, bool) or not isinstance(shard_bytes, int) or shard_bytes < 1:
        raise InputError(f"shard_bytes must be a positive number of bytes, got {shard_bytes!r}")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"filter {pattern!r} is no regular expression: {error}") from None
    return _Settings(options.family, options.group_size, options.form.name, search, pattern, keep, shard_bytes)


def _folder(checkpoint: Checkpoint, output: Path) -> Path:
    """Return ``output`` once it is sure that nothing of the source lies in or below it, nor it below the source."""
    target, origin = output.resolve(), checkpoint.path.resolve()
    if target == origin or origin in target.parents or target in origin.parents:
        raise InputError(f"output {output} would mix with the checkpoint {checkpoint.path}; choose a folder beside it")
    if output.exists() and not output.is_dir():
        raise InputError(f"output {output} is a file; name a folder")
    return output


def _plan(checkpoint: Checkpoint, settings: _Settings, output: Path) -> _Job:
    """Assign every tensor to a shard, from shapes alone."""
    chosen = linear_weights(checkpoint)
    if settings.filter is not None:
        chosen = {name for name in chosen if re.search(settings.filter, name)}
    if not chosen:
        raise InputError(f"{checkpoint.path} has no linear weight that the filter {settings.filter!r} takes")
    form = scales.resolve(settings.family, settings.scale)
    batches: list[list[_Item]] = [[]]
    filled = 0
    for name, entry in checkpoint.entries.items():
        numel = _numel(entry.shape)
        item = _Item(name, name in chosen, numel)
        packed = 0.5 + (form.width + form.side) / settings.group_size / 8
        size = int(numel * (packed if item.quantize else _kept_dtype(entry.dtype, settings).itemsize))
        if batches[-1] and filled + size > settings.shard_bytes:
            batches.append([])
            filled = 0
        batches[-1].append(item)
        filled += size
    described = {
        "format": FORMAT,
        "source": checkpoint.identity,
        "settings": {**settings._asdict(), "family": asdict(settings.family)},
        "batches": [[(item.name, item.quantize) for item in batch] for batch in batches],
    }
    plan = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    return _Job(checkpoint, settings, batches, output, plan)


def _claim(job: _Job, force: bool) -> None:
    """Make the output folder ours: new, empty, or begun by the same conversion."""
    try:
        there = sorted(path.name for path in job.output.iterdir() if path.name != LOCK)
        begun = [name for name in there if _BEGUN.fullmatch(name)]  # what a killed run was writing
        there = [name for name in there if name not in begun]
        for name in begun if MANIFEST in there or not there else ():
            (job.output / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"output {job.output} cannot be written: {error.strerror}") from None
    if MANIFEST in there:
        old = json_table(job.output / MANIFEST)
        if old.get("plan") == job.plan:
            return
        if not force:
            raise InputError(
                f"output {job.output} holds a conversion of another checkpoint or with other settings; name another "
                "folder, or replace it with force (--force)"
            )
        _remove(job.output, [name for name in there if _is_of(name, old)])
    elif there:
        raise InputError(
            f"output {job.output} holds other files ({printable(there[0])}); name a new or an empty folder"
        )
    _write_manifest(job, [])


def _is_of(name: str, manifest: dict[str, Any]) -> bool:
    """Return whether a conversion wrote the file of that name, as its manifest (which is not trusted) tells."""
    files = manifest.get("files")
    return (
        name in (MANIFEST, INDEX, "config.json")
        or _SHARD.fullmatch(name) is not None
        or (isinstance(files, list) and name in files)
    )


def _remove(folder: Path, names: list[str]) -> None:
    for name in sorted(names, key=lambda name: name == MANIFEST):  # last: killed before, the folder is still known
        try:
            (folder / name).unlink()
        except OSError as error:
            raise InputError(f"{folder / name} cannot be removed: {error.strerror}") from None


def _write_manifest(job: _Job, files: list[str]) -> None:
    """Note whose folder it is, and the names of the tokenizer's files: a conversion that replaces it removes them."""
    about = {
        "plan": job.plan,
        "source": job.checkpoint.path.name,
        "identity": job.checkpoint.identity,
        "settings": {**job.settings._asdict(), "family": asdict(job.settings.family)},
        "files": files,
    }
    write_whole(job.output / MANIFEST, [(json.dumps(about, indent=1) + "\n").encode()])


def _write_shards(job: _Job, progress: OnProgress | None, memory: PeakMemory) -> int:
    """Write the shards that are not there yet; return how many were."""
    done, total, reused = 0, sum(item.numel for batch in job.batches for item in batch), 0
    for number, batch in enumerate(job.batches):
        if _is_finished(job, number):
            reused += 1
        else:
            _write_shard(job, number, progress or (lambda *_: None), done, total)
            memory.sample()
            give_back()
        done += sum(item.numel for item in batch)
    if progress is not None:
        progress(total, total, "")
    return reused


def _write_shard(job: _Job, number: int, progress: OnProgress, done: int, total: int) -> None:
    quantized: dict[str, QuantizedTensor] = {}
    plain: dict[str, Tensor] = {}
    reports: dict[str, dict[str, Any]] = {}
    for item in job.batches[number]:
        progress(done, total, item.name)
        if item.quantize:
            quantized[item.name], reports[item.name] = _quantized(job, item.name)
        else:
            plain[item.name] = _kept(job, item.name)
        done += item.numel
    write_packed(job.shard(number), quantized, plain, reports, plan=job.mark(number))


def _is_finished(job: _Job, number: int) -> bool:
    """Return whether an earlier run of the same plan wrote this shard, and its bytes are still those."""
    if not job.shard(number).exists():
        return False
    try:
        shard = PackedFile(job.shard(number))
    except InputError:
        return False
    return shard.file.metadata.get("plan") == job.mark(number) and shard.file.is_whole()


def _quantized(job: _Job, name: str) -> tuple[QuantizedTensor, dict[str, Any]]:
    """Return the weight (out, in) packed along its inputs, and what its file notes of it."""
    settings = job.settings
    weight = job.checkpoint.read(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        packed = quantize(weight, settings.family, settings.group_size, settings.scale, settings.search)
    error, power = squared_error(packed, weight)
    report = {
        "error": float(f"{error:.9e}"),  # the last digits depend on the number of threads, a file's bytes must not
        "power": float(f"{power:.9e}"),
        "raised": any(issubclass(warning.category, RuntimeWarning) for warning in caught),
    }
    return packed, report


def squared_error(packed: QuantizedTensor, weight: Tensor) -> tuple[float, float]:
    """Return ||w - q||^2 and ||w||^2 in float64, block by block: no second copy of the weight is made.

    Args:
        packed: A quantised matrix, groups along its columns.
        weight: The matrix, (rows, columns).
    """
    values, selectors = scales.unpack_scales(packed.layout, packed.scales, packed.side)
    groups, columns = values.shape[1], weight.shape[1]
    step = max(1, _BLOCK // (groups * packed.group_size))
    error = power = 0.0
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        codes = core.unpack_codes(packed.codes[rows], groups * packed.group_size).reshape(-1, packed.group_size)
        block = core.decode(
            packed.family, codes, values[rows].flatten() * packed.tensor_scale, selectors[rows].flatten()
        )
        true = weight[rows].double()
        error += float((block.reshape(len(true), -1)[:, :columns].double() - true).square().sum())
        power += float(true.square().sum())
    return error, power


def _kept(job: _Job, name: str) -> Tensor:
    tensor = job.checkpoint.read(name)
    return tensor.to(_kept_dtype(tensor.dtype, job.settings))


def _kept_dtype(dtype: torch.dtype, settings: _Settings) -> torch.dtype:
    return _KEPT.get(settings.keep, dtype) if dtype.is_floating_point else dtype


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _finish(job: _Job, summary: Summary) -> tuple[str, ...]:
    """Write the files beside the shards; return notes for the user."""
    about = {
        "total_size": summary.data_bytes,
        "quantized_weights": summary.weights,
        "bits_per_weight": summary.bits_per_weight,
        "stored_bits_per_weight": summary.stored_bits_per_weight,
    }
    index = {"metadata": about, "weight_map": dict(sorted(summary.places.items()))}
    write_whole(job.output / INDEX, [(json.dumps(index, indent=2) + "\n").encode()])
    if job.checkpoint.config is not None:
        settings = job.settings
        quantization = {
            "quant_method": "po2",
            "format": FORMAT,
            "family": asdict(settings.family),
            "group_size": settings.group_size,
            "scale": settings.scale,
            "modules": sorted(
                item.name.removesuffix(".weight") for batch in job.batches for item in batch if item.quantize
            ),
        }
        dtype = settings.keep if settings.keep != "same" else None
        write_config(job.output, job.checkpoint.config, quantization, dtype)
    with tempfile.TemporaryDirectory() as scratch:
        files, note = tokenizer_files(job.checkpoint, Path(scratch))
        _write_manifest(job, [file.name for file in files])
        for file in files:
            write_whole(job.output / file.name, [file.read_bytes()])
    return () if note is None else (note,)
