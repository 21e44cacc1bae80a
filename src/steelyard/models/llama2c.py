"""Models and tokenizers of llama2.c (the legacy layout, version 0), among them the registered stories260K.

A model file is a header of seven int32 (dim, hidden, layers, heads, kv heads, vocabulary, context) and float32 tensors
in a fixed order; a negative vocabulary size means that the output layer is stored too. Rotary pairs lie side by side
there and half a head apart in transformers, so rows of q and k are put in the other order. Source: llama2.c, ``run.c``.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from steelyard.data import locate
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.llama import build_llama

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BOS, EOS = 1, 2
_BYTE_TOKENS = 3  # token 3 + b is the byte b
_HEADER = struct.Struct("<7i")
_ENTRY = struct.Struct("<fi")
_MAX_PIECE = 1 << 10  # bytes of one piece of a vocabulary

Floats = npt.NDArray[np.float32]


class Header(NamedTuple):
    """The seven numbers at the head of a model file, the sign of ``vocab`` as ``tied``."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool

    @property
    def kv_dim(self) -> int:
        """Rows of the k and v projections."""
        return self.dim * self.kv_heads // self.heads


def read_model(path: str | Path) -> tuple[Header, dict[str, Floats]]:
    """Read a model file of llama2.c.

    Returns:
        The header, and Hugging Face name -> float32 array with the rows of q and k in transformers' order.

    Raises:
        InputError: The file is not there, has impossible sizes, is shorter or longer than its header says, or holds
            values that are not finite.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    header = _header(content, path)
    order = _order(header)
    floats = sum(int(np.prod(shape)) for _, shape in order)
    if len(content) != _HEADER.size + 4 * floats:
        raise InputError(
            f"{path} has {len(content)} bytes where its header promises {_HEADER.size + 4 * floats}; copy it again"
        )
    values = np.frombuffer(content, "<f4", offset=_HEADER.size)
    if not np.isfinite(values).all():
        raise InputError(f"{path} holds a value that is not finite, at float {int(np.argmin(np.isfinite(values)))}")
    arrays, start = {}, 0
    for name, shape in order:
        arrays[name] = values[start : (start := start + int(np.prod(shape)))].reshape(shape)
    return header, _named(header, arrays)


def _header(content: bytes, path: Path) -> Header:
    if len(content) < _HEADER.size:
        raise InputError(f"{path} is no llama2.c model: it is shorter than the header of {_HEADER.size} bytes")
    dim, hidden, layers, heads, kv_heads, vocab, context = _HEADER.unpack_from(content)
    header = Header(dim, hidden, layers, heads, kv_heads, abs(vocab), context, vocab > 0)
    if min(header[:7]) < 1:
        raise InputError(f"{path} is no llama2.c model: its header {tuple(header[:7])} holds a size below 1")
    if header.dim % header.heads or header.heads % header.kv_heads or header.dim // header.heads % 2:
        raise InputError(
            f"{path}: {header.heads} heads and {header.kv_heads} kv heads do not divide the width {header.dim} evenly"
        )
    return header


def _order(header: Header) -> list[tuple[str, tuple[int, ...]]]:
    """Return the tensors in the order of the file; ``rope`` are tables that transformers computes itself."""
    layers, dim, hidden, kv_dim = header.layers, header.dim, header.hidden, header.kv_dim
    order: list[tuple[str, tuple[int, ...]]] = [
        ("embed", (header.vocab, dim)),
        ("input_layernorm", (layers, dim)),
        ("self_attn.q_proj", (layers, dim, dim)),
        ("self_attn.k_proj", (layers, kv_dim, dim)),
        ("self_attn.v_proj", (layers, kv_dim, dim)),
        ("self_attn.o_proj", (layers, dim, dim)),
        ("post_attention_layernorm", (layers, dim)),
        ("mlp.gate_proj", (layers, hidden, dim)),
        ("mlp.down_proj", (layers, dim, hidden)),
        ("mlp.up_proj", (layers, hidden, dim)),
        ("norm", (dim,)),
        ("rope", (2, header.context, dim // header.heads // 2)),
    ]
    return order if header.tied else [*order, ("head", (header.vocab, dim))]


def _named(header: Header, arrays: dict[str, Floats]) -> dict[str, Floats]:
    named = {"model.embed_tokens.weight": arrays["embed"], "model.norm.weight": arrays["norm"]}
    if not header.tied:
        named["lm_head.weight"] = arrays["head"]
    for part, stacked in arrays.items():
        if part in ("embed", "norm", "rope", "head"):
            continue
        for layer, weight in enumerate(stacked):
            named[f"model.layers.{layer}.{part}.weight"] = _halves(weight, header) if _rotated(part) else weight
    return named


def _rotated(part: str) -> bool:
    return part in ("self_attn.q_proj", "self_attn.k_proj")


def _halves(weight: Floats, header: Header) -> Floats:
    """Put rows 0, 2, 4, … of every head before rows 1, 3, 5, …."""
    rows, columns = weight.shape
    heads = rows * header.heads // header.dim
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def load_model(path: str | Path) -> Any:
    """Return the model file at ``path`` as a float32 ``LlamaForCausalLM``; see :func:`read_model`."""
    header, arrays = read_model(path)
    torch = require("torch", "models")
    config = {
        "vocab_size": header.vocab,
        "hidden_size": header.dim,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "max_position_embeddings": header.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": header.tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    weights = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return build_llama(config, weights, str(path))


def stories260k() -> Any:
    """Return the registered model stories260K: 260 thousand float32 parameters, never quantised.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
    """
    return load_model(locate("stories260k").paths[0])


def sample(model: Any, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Return text that ``model`` writes at temperature 1, every sequence begun with token 1.

    Args:
        model: A causal language model.
        count: Sequences.
        length: Tokens of each, the first included.
        generator: Where the draws come from.

    Returns:
        int64, shape (count, length).
    """
    torch = require("torch", "models")
    tokens: Tensor = torch.full((count, 1), BOS, dtype=torch.int64)
    # transformers 5.24 renamed the argument
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache, latest = {name: require("transformers", "models").DynamicCache()}, tokens
    with torch.no_grad():
        while tokens.shape[1] < length:
            logits = model(latest, use_cache=True, **cache).logits[:, -1]
            latest = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
            tokens = torch.cat((tokens, latest), 1)
    return tokens


class Tokenizer:
    """The byte-pair tokenizer of llama2.c: pieces with scores, the best-scored neighbours merged first.

    Attributes:
        pieces: The vocabulary, as bytes.
    """

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        self.pieces = tuple(pieces)
        self._scores = tuple(scores)
        self._index = {piece: token for token, piece in reversed(tuple(enumerate(self.pieces)))}

    @classmethod
    def read(cls, path: str | Path, vocab: int) -> Tokenizer:
        """Read a tokenizer file with ``vocab`` pieces.

        Raises:
            InputError: The file is not there, cut short, or has more or fewer pieces.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        pieces: list[bytes] = []
        scores: list[float] = []
        at = 4
        while at + _ENTRY.size <= len(content) and len(pieces) < vocab:
            score, size = _ENTRY.unpack_from(content, at)
            at += _ENTRY.size
            if not 0 <= size <= min(_MAX_PIECE, len(content) - at):
                raise InputError(f"{path}: piece {len(pieces)} has an impossible length of {size} bytes")
            pieces.append(content[at : at + size])
            scores.append(score)
            at += size
        if len(pieces) != vocab or at != len(content) or vocab < _BYTE_TOKENS + 256:
            raise InputError(f"{path} is no llama2.c tokenizer of {vocab} pieces: it holds {len(pieces)}")
        return cls(pieces, scores)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text`` after the start token; unknown characters become bytes."""
        tokens: list[int] = []
        for character in f" {text}" if text else "":
            piece = character.encode()
            known = self._index.get(piece)
            tokens += [known] if known is not None else [byte + _BYTE_TOKENS for byte in piece]
        while (best := self._best_merge(tokens)) is not None:
            at, merged = best
            tokens[at : at + 2] = [merged]
        return [BOS, *tokens]

    def _best_merge(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        best, found = -np.inf, None
        for at in range(len(tokens) - 1):
            merged = self._index.get(self.pieces[tokens[at]] + self.pieces[tokens[at + 1]])
            if merged is not None and self._scores[merged] > best:
                best, found = self._scores[merged], (at, merged)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``: start and end tokens left out, the blank after the start stripped."""
        content = b""
        for before, token in zip([BOS, *tokens], tokens, strict=False):
            if not 0 <= token < len(self.pieces):
                raise InputError(f"tokens must be below {len(self.pieces)}, got {token}")
            if token in (BOS, EOS):
                continue
            piece = self.pieces[token]
            if _BYTE_TOKENS <= token < _BYTE_TOKENS + 256:
                piece = bytes([token - _BYTE_TOKENS])
            content += piece[1:] if before == BOS and piece.startswith(b" ") else piece
        return content.decode("utf-8", "replace")


def stories_tokenizer() -> Tokenizer:
    """Return the tokenizer of the registered model stories260K (512 pieces)."""
    return Tokenizer.read(locate("stories260k").paths[1], 512)
