"""Perplexity and divergence of a converted language model on a text of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.hugging_face import load_causal_lm, token_ids
from steelyard.models.paths import usable_path
from steelyard.quant.po2.checkpoints import json_table
from steelyard.quant.po2.evaluate import compare, perplexity, token_windows
from steelyard.quant.po2.packed_files import packed_files

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
    folder, text = usable_path(folder), usable_path(text)
    if tokens < window:
        raise InputError(f"tokens must be at least one window of {window}, got {tokens}")
    try:
        letters = text.read_text(encoding="utf-8", errors="strict")
    except OSError as error:
        raise InputError(f"the text {text} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the text {text} is not UTF-8") from None
    method = json_table(folder / "config.json").get("quantization_config")
    if not isinstance(method, dict) or method.get("quant_method") != "po2":
        raise InputError(f"{folder} is no converted folder: its config.json has no quantization_config of po2")
    if (folder / "model.safetensors").exists():  # transformers would take it, unchecked, for what the index names
        raise InputError(f"{folder} holds a model.safetensors that the conversion did not write; remove it")
    for file in packed_files(folder):
        file.check()
    require("steelyard.quant.po2.huggingface", "quant")  # registers the format
    ids = torch.tensor(token_ids(folder, letters[: _LETTERS_A_TOKEN * tokens]), dtype=torch.int64)
    windows = token_windows(ids, window, tokens // window)
    model = load_causal_lm(folder)
    limit = getattr(model.config, "max_position_embeddings", window)
    if window > limit:
        raise InputError(f"window {window} is longer than the model's context of {limit} tokens")
    counted = windows.shape[0] * (window - 1)
    if reference is None:
        return Evaluation(counted, window, perplexity(model, windows))
    found = compare(load_causal_lm(reference), {"quantised": model}, windows)["quantised"]
    return Evaluation(counted, window, found.perplexity, found.reference_perplexity, found.kl, found.top1)
