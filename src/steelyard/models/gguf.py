"""GGUF files, tensor by tensor: Hugging Face names, float32 values, and the model's configuration.

Layout of a file: "the GGUF specification" of ggml (version 2 and 3, little endian). The header is read here rather than
by ``gguf.GGUFReader``, which makes Python objects of every vocabulary entry: 160 MB for 49 thousand tokens, more than
the tensors of a small model. Values are decoded by :func:`gguf.dequantize`, names mapped by
:func:`gguf.get_tensor_name_map`.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.safefile import fingerprint

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_BLOCK_ELEMENTS = 1 << 20  # decoded at a time: what decoding needs beside its result stays below some tens of MB

_LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_NEEDED = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_ROPE = "rope_freqs.weight"
_LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
}  # fmt: skip
_TOKENS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}


class UnknownArchitectureError(InputError):
    """A GGUF file is sound, but holds a model of another kind than those read here."""


class GGUFTensor(NamedTuple):
    """One tensor of a file: its Hugging Face name, the name and type in the file, its shape, where its bytes lie."""

    name: str
    stored: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


class GGUFFile:
    """A memory-mapped GGUF file of a decoder model; tensors are decoded one at a time.

    Attributes:
        path: The file.
        metadata: Its keys; an array is the number of its entries (the vocabulary is not read).
        tensors: Hugging Face name -> tensor, in the order of the file.
        header_size: Bytes before the first tensor.

    Raises:
        InputError: The file is not GGUF, is cut short, or holds a model that cannot be named (see ``supported``).
        MissingExtraError: The package gguf is not installed.
    """

    supported = tuple(_CLASSES)

    def __init__(self, path: str | Path) -> None:
        self._gguf = require("gguf", "models")
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                # a private mapping: writable for torch.from_numpy, yet nothing can reach the file
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputError(f"{self.path} is empty, not a GGUF file") from None
        header = _Header(self._map, self.path)
        self.metadata, infos, self.header_size = header.read()
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in _CLASSES:
            raise UnknownArchitectureError(
                f"{self.path} holds a model of architecture {self.architecture[:80]!r}; supported from GGUF: "
                f"{', '.join(_CLASSES)}. Give the Hugging Face folder of other models"
            )
        self._field = {
            key.removeprefix(f"{self.architecture}."): value
            for key, value in self.metadata.items()
            if key.startswith(f"{self.architecture}.")
        }
        self._rope = [info for info in infos if info.name == _ROPE]
        self.tensors = dict(self._named([info for info in infos if info.name != _ROPE]))

    def config(self) -> dict[str, Any]:
        """Return the fields of the Hugging Face ``config.json`` of the model."""
        config: dict[str, Any] = {"model_type": self.architecture, "architectures": [_CLASSES[self.architecture]]}
        for key, name in _NEEDED.items():
            config[name] = self._number(key) if key.endswith("epsilon") else self._count(key)
        config["num_key_value_heads"] = self._count("attention.head_count_kv", config["num_attention_heads"])
        config["rope_theta"] = self._number("rope.freq_base", 10000.0)
        width = config["hidden_size"] // config["num_attention_heads"]
        if self.architecture == "llama":
            config["head_dim"] = self._count("rope.dimension_count", width)
        elif self.architecture == "qwen3":
            config["head_dim"] = self._count("attention.key_length", 128)
        if self._rope:
            config["rope_scaling"] = self._rope_scaling(config)
        config["vocab_size"] = self.tensors["model.embed_tokens.weight"].shape[0]
        config["tie_word_embeddings"] = "lm_head.weight" not in self.tensors
        for key, name in _TOKENS.items():
            if isinstance(token := self.metadata.get(f"tokenizer.ggml.{key}"), int):
                config[name] = token
        return config

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Return the tensor of that Hugging Face name as float32; memory beside the result stays small.

        Rows of the q and k projections, which GGUF keeps permuted for the llama architecture, are put back.

        Raises:
            InputError: There is no such tensor.
        """
        if name not in self.tensors:
            raise InputError(f"{self.path} holds no tensor '{name}'")
        tensor = self.tensors[name]
        order = self._row_order(tensor)
        if tensor.type == "F32" and order is None:  # the file's own pages, no copy
            whole = np.frombuffer(self._map, np.float32, math.prod(tensor.shape), tensor.offset)
            return whole.reshape(tensor.shape)
        columns = tensor.shape[-1]
        rows = math.prod(tensor.shape) // columns if columns else 0
        if rows == 0:
            return np.zeros(tensor.shape, np.float32)
        encoded = np.frombuffer(self._map, np.uint8, tensor.size, tensor.offset).reshape(rows, -1)
        decoded = np.empty((rows, columns), np.float32)
        step = max(1, _BLOCK_ELEMENTS // columns)
        for start in range(0, rows, step):
            part = encoded[start : start + step] if order is None or rows == 1 else encoded[order[start : start + step]]
            decoded[start : start + step] = self._gguf.dequantize(part, self._gguf.GGMLQuantizationType[tensor.type])
        if order is not None and rows == 1:
            decoded = decoded[:, order]
        return decoded.reshape(tensor.shape)

    def fingerprint(self) -> bytes:
        """Return a digest of the header and of both ends of every tensor: the file's identity without reading it."""
        spans = ((tensor.offset, tensor.offset + tensor.size) for tensor in self.tensors.values())
        return fingerprint(self._map, self.header_size, spans)

    def _row_order(self, tensor: GGUFTensor) -> npt.NDArray[np.intp] | None:
        """Return which stored row (of a bias: entry) is which row of the model; None where the order is the same."""
        is_q = ".attn_q." in tensor.stored
        if self.architecture != "llama" or not (is_q or ".attn_k." in tensor.stored):
            return None
        every = self._count("attention.head_count")
        heads = every if is_q else self._count("attention.head_count_kv", every)
        rows = tensor.shape[0]
        if rows % (2 * heads):
            raise InputError(f"{self.path}: '{tensor.stored}' has {rows} rows, which {heads} heads do not divide")
        return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._number(key, default)
        if not isinstance(value, int):
            raise InputError(
                f"{self.path}: the key {self.architecture}.{key} must be a whole number, got {repr(value)[:80]}"
            )
        return value

    def _number(self, key: str, default: float | None = None) -> Any:
        value = self._field.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise InputError(
                f"{self.path}: the key {self.architecture}.{key} must be a positive number, got {repr(value)[:80]}"
            )
        return value

    def _named(self, infos: list[_Info]) -> Iterator[tuple[str, GGUFTensor]]:
        """Yield Hugging Face name and tensor, once every tensor is checked against the file."""
        if self._field.get("rope.scaling.type", "none") != "none":
            raise InputError(self._unknown_rope())
        names = self._hugging_face_names(len(infos))
        seen: set[str] = set()
        for info in infos:
            if info.name not in names:
                raise InputError(f"{self.path}: a {self.architecture} model has no tensor like {info.name[:80]!r}")
            if info.name in seen:
                raise InputError(f"{self.path} holds the tensor {info.name[:80]!r} twice")
            seen.add(info.name)
            yield names[info.name], self._located(info, names[info.name])
        if "token_embd.weight" not in seen:
            raise InputError(f"{self.path} holds no token embeddings (token_embd.weight)")

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the rotary scaling of Llama 3.1 and later, of which GGUF keeps the divisor of every frequency only.

        The published parameters are put into the published formula; the file's divisors must come out.
        """
        located = self._located(self._rope[0], _ROPE)
        if located.type != "F32" or located.shape != (config["head_dim"] // 2,):
            raise InputError(self._unknown_rope())
        divisors = np.frombuffer(self._map, np.float32, located.shape[0], located.offset)
        scaling = {**_LLAMA3, "factor": float(divisors.max())}
        if not np.allclose(divisors, _llama3_divisors(config["head_dim"], config["rope_theta"], scaling), rtol=1e-4):
            raise InputError(self._unknown_rope())
        return scaling

    def _unknown_rope(self) -> str:
        return (
            f"{self.path} holds a model with scaled rotary positions that its keys do not describe in full; "
            "give its Hugging Face folder instead"
        )

    def _hugging_face_names(self, tensors: int) -> dict[str, str]:
        layers = self._count("block_count")
        if layers > tensors:
            raise InputError(f"{self.path} holds {tensors} tensors, too few for its {layers} layers (block_count)")
        architectures = {name: key for key, name in self._gguf.MODEL_ARCH_NAMES.items()}
        table = self._gguf.get_tensor_name_map(architectures[self.architecture], layers)
        bases = ["model.embed_tokens", "model.norm", "lm_head"]
        bases += [f"model.layers.{layer}.{part}" for layer in range(layers) for part in _LAYER]
        found = {base: table.get_name(base) for base in bases}
        return {f"{stored}.{end}": f"{base}.{end}" for base, stored in found.items() for end in ("weight", "bias")}

    def _located(self, info: _Info, name: str) -> GGUFTensor:
        where = f"{self.path}: the tensor '{info.name}'"
        try:
            kind = self._gguf.GGMLQuantizationType(info.type)
        except ValueError:
            raise InputError(f"{where} has the unknown type {info.type}") from None
        if kind.name not in ("F32", "F16") and not hasattr(self._gguf.quants, kind.name):
            raise InputError(f"{where} has the type {kind.name}, which cannot be decoded to float32")
        block, block_bytes = self._gguf.GGML_QUANT_SIZES[kind]
        if not info.shape or info.shape[-1] % block:
            raise InputError(f"{where} has the shape {info.shape}; {kind.name} needs rows of a multiple of {block}")
        size = math.prod(info.shape) // block * block_bytes
        if info.offset + size > len(self._map):
            raise InputError(f"{where} ends beyond the file, which has been cut short")
        return GGUFTensor(name, info.name, kind.name, info.shape, info.offset, size)


def _llama3_divisors(width: int, theta: float, scaling: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Return what Llama 3.1 divides the rotary frequencies by, (width / 2,); 1 for short wavelengths."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, width, 2) / width)
    context, low, high = (
        scaling[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return divisors


class _Info(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


class _Header:
    """Reads keys and tensor infos from ``data``; every step is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0

    def read(self) -> tuple[dict[str, Any], list[_Info], int]:
        if self._data[:4] != b"GGUF":
            raise InputError(f"{self._path} is not a GGUF file: it does not begin with the letters GGUF")
        self._at = 4
        version = self._take("I")
        if version not in (2, 3):
            raise InputError(f"{self._path} has GGUF version {version}; versions 2 and 3 (little endian) can be read")
        tensors, keys = self._take("Q"), self._take("Q")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            metadata[key] = self._value(self._take("I"))
        infos = [self._info() for _ in range(tensors)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1 or align & (align - 1):
            raise InputError(f"{self._path}: general.alignment must be a power of two, got {repr(align)[:80]}")
        start = -(-self._at // align) * align
        return metadata, [info._replace(offset=info.offset + start) for info in infos], start

    def _take(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        if self._at + size > len(self._data):
            raise InputError(f"{self._path} ends inside its header: the file has been cut short or is damaged")
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += size
        return value

    def _skip(self, count: int) -> int:
        """Step over ``count`` bytes; return where they began."""
        start = self._at
        if count > len(self._data) - start:
            raise InputError(f"{self._path} ends inside its header: the file has been cut short or is damaged")
        self._at += count
        return start

    def _string(self) -> str:
        start = self._skip(self._take("Q"))
        return self._data[start : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise InputError(f"{self._path}: a key has the unknown type {kind}")
        inner, count = self._take("I"), self._take("Q")
        if inner in _SCALARS:
            self._skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        elif inner == _STRING:
            for _ in range(count):
                self._skip(self._take("Q"))
        else:
            raise InputError(f"{self._path}: a key is an array of the unsupported type {inner}")
        return f"{count} entries"

    def _info(self) -> _Info:
        name = self._string()
        dims = self._take("I")
        if dims > _MAX_DIMS:
            raise InputError(f"{self._path}: the tensor {name[:80]!r} has {dims} dimensions; at most 4 are possible")
        shape = tuple(reversed([self._take("Q") for _ in range(dims)]))  # GGUF writes the fastest one first
        return _Info(name, shape, self._take("I"), self._take("Q"))
