"""The language model that a guard command runs in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steelyard.extras import require


def local_model(model: str | None) -> Any:
    """Return the language model in a Hugging Face folder or a GGUF file; without a name the small default one."""
    models = require("steelyard.models", "models")
    if model is None:
        return models.load_default_lm()
    path = Path(model)
    if path.suffix == ".gguf":
        return models.TransformersLM.from_pretrained(path.parent, gguf_file=path.name)
    return models.TransformersLM.from_pretrained(path)
