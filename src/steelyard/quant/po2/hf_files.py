"""What lies beside the weights of a Hugging Face folder: configuration, tokenizer; and which weights are linear."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from steelyard.extras import require
from steelyard.models.hugging_face import names_other_model, offline, one_line
from steelyard.models.safefile import write_whole
from steelyard.quant.po2.checkpoints import Checkpoint, Entry
from steelyard.quant.po2.torch_nn import default_filter

_BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja",
    "chat_template.json", "generation_config.json",
)  # fmt: skip
_MOST_MODULES = 4096
_COUNTS = ("layer", "expert", "depth", "num_block", "n_block", "stage")
_NOT_LINEAR = ("embed", "norm", "lm_head", "wte", "wpe", "ln_", "shared.weight", "position", "output.weight")


def linear_weights(checkpoint: Checkpoint) -> set[str]:
    """Return the names of the weights of linear layers, embeddings, norms and the output layer left out.

    Where the configuration names a model of transformers, its empty skeleton tells, and the layers are the
    ``nn.Linear`` ones that :func:`steelyard.quant.po2.torch_nn.quantize_model` takes; else names and shapes do:
    weights with two dimensions whose name has no part of an embedding, a norm or an output layer.
    """
    weights = {name for name, entry in checkpoint.entries.items() if _can_be_linear(name, entry)}
    linear = _skeleton_weights(checkpoint)
    if linear is None:
        return {name for name in weights if not any(word in name.lower() for word in _NOT_LINEAR)}
    return weights & linear


def _can_be_linear(name: str, entry: Entry) -> bool:
    shaped = len(entry.shape) == 2 and 0 not in entry.shape
    return shaped and entry.dtype.is_floating_point and name.endswith(".weight")


def _skeleton_weights(checkpoint: Checkpoint) -> set[str] | None:
    """Return the linear weights of the model that the configuration names, with and without its prefix."""
    config = checkpoint.config or {}
    classes = config.get("architectures")
    if not (isinstance(classes, list) and classes and isinstance(classes[0], str)):
        return None
    if _is_endless(config) or names_other_model(config):
        return None
    if importlib.util.find_spec("transformers") is None:
        return None
    transformers = require("transformers", "quant")
    kind: Any = getattr(transformers, classes[0], None)
    if not _is_subclass(kind, transformers.PreTrainedModel):
        return None
    try:
        with offline(), torch.device("meta"):  # no memory, and no draw from the global random stream
            model = kind(kind.config_class.from_dict(config))
    except Exception:  # transformers raises whatever it meets in a configuration that it refuses: names tell
        return None
    keep = default_filter(model)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    names = {f"{name}.weight" for name, module in linear.items() if keep(module, name)}
    prefix = f"{model.base_model_prefix}."
    return names | {name.removeprefix(prefix) for name in names}


def _is_endless(config: Mapping[str, Any]) -> bool:
    """Return whether a hostile configuration asks for so many modules that making them would not end."""
    tables: list[Mapping[str, Any]] = [config]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, Mapping):  # the parts of a model of several have tables of their own
                tables.append(value)
            elif any(word in key for word in _COUNTS):
                counts = value if isinstance(value, list) else [value]
                if any(isinstance(count, int) and count > _MOST_MODULES for count in counts):
                    return True
    return False


def _is_subclass(kind: Any, base: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, base)


def write_config(output: Path, config: Mapping[str, Any], quantization: Mapping[str, Any], dtype: str | None) -> None:
    """Write ``config.json`` with its ``quantization_config``; ``dtype`` is that of the tensors that stay floats."""
    fields = {**config, "quantization_config": dict(quantization)}
    if dtype is not None:
        fields.pop("torch_dtype", None)
        fields["dtype"] = dtype
    write_whole(output / "config.json", [(json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()])


def tokenizer_files(checkpoint: Checkpoint, scratch: Path) -> tuple[list[Path], str | None]:
    """Return the tokenizer's files beside the weights, or made in ``scratch`` from a GGUF file; and why there are none.

    Args:
        checkpoint: A checkpoint whose folder's links have been checked.
        scratch: An empty folder.
    """
    if checkpoint.folder is not None:
        return [checkpoint.folder / name for name in _BESIDE if (checkpoint.folder / name).is_file()], None
    if checkpoint.path.suffix != ".gguf":
        return [], "no tokenizer and no config.json: a bare safetensors file has none beside it"
    if importlib.util.find_spec("transformers") is None:
        return [], "no tokenizer: making it from a GGUF file needs transformers (pip install 'steelyard[quant]')"
    transformers = require("transformers", "quant")
    try:
        where, file = str(checkpoint.path.resolve().parent), checkpoint.path.name
        with offline():
            made = transformers.AutoTokenizer.from_pretrained(
                where, gguf_file=file, local_files_only=True, trust_remote_code=False
            )
        made.save_pretrained(scratch)
    except Exception as error:  # its readers raise whatever they meet, also a bare Exception; weights go without
        return [], f"no tokenizer: transformers cannot make it from {file} ({one_line(error)})"
    return sorted(scratch.iterdir()), None
