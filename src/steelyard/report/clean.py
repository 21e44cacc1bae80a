"""Text that others wrote (models, users, errors) as text that can be shown: nothing invisible, nothing endless."""

from __future__ import annotations

import unicodedata
from typing import Any

from steelyard.bench.results import Results

LONGEST = 4000  # characters of one string; a traceback keeps its end, where the error is
_BREAKS = "\n\t"


def clean(text: str, longest: int = LONGEST) -> str:
    """Return ``text`` without control, direction-changing and unpaired characters, cut to ``longest``."""
    if len(text) > longest:
        text = f"{text[: longest // 4]} […] {text[-(longest * 3 // 4) :]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter for letter in text if letter in _BREAKS or unicodedata.category(letter) not in _HIDDEN)


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def tidy(results: Results) -> Results:
    """Return ``results`` with every string in it, keys included, cleaned."""
    return Results.model_validate(clean_all(results.model_dump(mode="python")))


def clean_all(value: Any) -> Any:
    """Return ``value`` with every string in it, keys included, cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean_all(key): clean_all(item) for key, item in value.items()}
    if isinstance(value, tuple) and value and isinstance(value[0], float | int):
        return value  # a curve: numbers only, and many
    if isinstance(value, list | tuple):
        return type(value)(clean_all(item) for item in value)
    return value
