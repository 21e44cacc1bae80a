"""Perplexity and divergence of a converted language model on a text of the user's."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.quant.po2.checkpoints import json_table
from steelyard.quant.po2.evaluate import compare, perplexity, token_windows

_LETTERS_A_TOKEN = 32  # of the text that is looked at; no tokenizer takes more for prose


@dataclass(frozen=True)
class Evaluation:
    """What a converted model makes of a text.

    Attributes:
        tokens: Positions that were predicted.
        window: Tokens of a window; the first of each is given, not predicted.
        perplexity: Of the quantised model.
        reference_perplexity: Of the reference; None without one, as the next two.
        kl: KL(reference || quantised), nats a token.
        top1: Share of positions where both models prefer the same token.
    """

    tokens: int
    window: int
    perplexity: float
    reference_perplexity: float | None = None
    kl: float | None = None
    top1: float | None = None


def evaluate_text(
    folder: str | Path, text: str | Path, reference: str | Path | None = None, tokens: int = 2048, window: int = 512
) -> Evaluation:
    """Evaluate a converted folder on the first tokens of a text file.

    Args:
        folder: What :func:`steelyard.quant.po2.convert.convert` wrote, of a causal language model.
        text: A UTF-8 text file.
        reference: The model that it was made from: a Hugging Face folder or a GGUF file; loaded whole, in float32.
        tokens: Tokens of the text that are used, whole windows only.
        window: Tokens of a window.

    Raises:
        InputError: A file cannot be read, the text is too short, or the model has no language head.
        MissingExtraError: transformers is not installed.
    """
    folder, text = Path(folder), Path(text)
    if tokens < window:
        raise InputError(f"tokens must be at least one window of {window}, got {tokens}")
    try:
        letters = text.read_text(encoding="utf-8", errors="strict")
    except OSError as error:
        raise InputError(f"the text {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the text {text} is not UTF-8") from None
    if json_table(folder / "config.json").get("quantization_config", {}).get("quant_method") != "po2":
        raise InputError(f"{folder} is no converted folder: its config.json has no quantization_config of po2")
    require("steelyard.quant.po2.huggingface", "quant")  # registers the format
    ids = _tokenize(folder, letters[: _LETTERS_A_TOKEN * tokens])
    windows = token_windows(ids, window, tokens // window)
    model = _load(folder)
    limit = getattr(model.config, "max_position_embeddings", window)
    if window > limit:
        raise InputError(f"window {window} is longer than the model's context of {limit} tokens")
    counted = windows.shape[0] * (window - 1)
    if reference is None:
        return Evaluation(counted, window, perplexity(model, windows))
    found = compare(_load(Path(reference)), {"quantised": model}, windows)["quantised"]
    return Evaluation(counted, window, found.perplexity, found.reference_perplexity, found.kl, found.top1)


def _tokenize(folder: Path, letters: str) -> Tensor:
    transformers = require("transformers", "quant")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        ids = tokenizer(letters, verbose=False)["input_ids"]
    except Exception as error:  # a tokenizer's reader raises whatever it meets, also a bare Exception
        raise InputError(f"the tokenizer of {folder} cannot be used: {_one_line(error)}") from None
    return torch.tensor(ids, dtype=torch.int64)


def _load(path: Path) -> Any:
    """Return a causal language model in float32, for evaluation; no code that lies beside it is run."""
    transformers = require("transformers", "quant")
    options: dict[str, Any] = {
        "dtype": torch.float32, "local_files_only": True, "trust_remote_code": False
    }  # fmt: skip
    if path.is_dir():
        place, options["use_safetensors"] = path, True
    elif path.suffix == ".gguf" and path.is_file():
        require("accelerate", "quant")
        place, options["gguf_file"] = path.parent, path.name
    else:
        raise InputError(f"{path} is neither a Hugging Face folder nor a GGUF file")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # bars of the loader; its warnings go another way
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                str(place), output_loading_info=True, **options
            )
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} cannot be loaded as a causal language model: {_one_line(error)}") from None
    absent = sorted(found["missing_keys"]) + sorted(str(key) for key in found["mismatched_keys"])
    if absent:  # transformers would go on with random numbers there
        raise InputError(f"{path} cannot be loaded as a causal language model: it lacks {absent[0][:100]}")
    return model.requires_grad_(False).eval()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
