"""A transformers Llama put together from a configuration and given weights, without a random initialisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.hugging_face import import_transformers

if TYPE_CHECKING:
    from torch import Tensor


def build_llama(config: Mapping[str, Any], weights: Mapping[str, Tensor], source: str) -> Any:
    """Return a ``LlamaForCausalLM`` in evaluation mode that holds ``weights`` themselves, not copies of them.

    Args:
        config: Fields of a Llama's Hugging Face ``config.json``.
        weights: Hugging Face name -> tensor; the output layer is left out when it is tied to the embeddings.
        source: Where the weights come from, for error messages.

    Raises:
        InputError: A weight is missing, surplus or of another shape than the configuration says.
        MissingExtraError: transformers is not installed.
    """
    torch = require("torch", "models")
    transformers = import_transformers("transformers.models.llama.modeling_llama")
    modeling, configuration = transformers.models.llama.modeling_llama, transformers.LlamaConfig(**config)
    with torch.device("meta"):  # no memory, and no draw from the global random stream
        model = modeling.LlamaForCausalLM(configuration)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if configuration.tie_word_embeddings:
        expected.pop("lm_head.weight", None)
    _check(expected, {name: tuple(tensor.shape) for name, tensor in weights.items()}, source)
    model.load_state_dict(dict(weights), strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = modeling.LlamaRotaryEmbedding(configuration)
    return model.requires_grad_(False).eval()


def _check(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], source: str) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{source}: the weight '{name[:80]}' has the shape {found.get(name, 'of nothing (it is missing)')} "
                f"where the model needs {expected.get(name, 'no such weight')}"
            )
