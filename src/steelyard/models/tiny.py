"""A language model of two random layers over bytes: every path of the code without a download or a package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.extras import require
from steelyard.models.llama import build_llama
from steelyard.rng import torch_generator

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.models.transformers_lm import TransformersLM

BOS, HEADER, EOS = "<s>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WIDTH, _INNER, _HEADS, _CONTEXT = 32, 64, 4, 1024
_SPREAD = 0.35  # of weights: wide enough that the likeliest token leads by far more than rounding


def tiny_random_lm(seed: int = 0, layers: int = 2, chat: bool = True, **options: Any) -> TransformersLM:
    """Return a random Llama over bytes, of some ten thousand parameters; what it says means nothing.

    Args:
        seed: Of the weights.
        layers: Number of blocks.
        chat: With a chat template (BOS first, then turns between ``<|im_start|>`` and ``<|im_end|>``) or without.
        **options: ``batch_size``, ``share_prefix`` and the like of :class:`steelyard.models.TransformersLM`.
    """
    from steelyard.models.transformers_lm import TransformersLM

    tokenizer = byte_tokenizer(chat)
    config = {
        "vocab_size": len(tokenizer), "hidden_size": _WIDTH, "intermediate_size": _INNER, "num_hidden_layers": layers,
        "num_attention_heads": _HEADS, "num_key_value_heads": 2, "max_position_embeddings": _CONTEXT,
        "tie_word_embeddings": False, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    return TransformersLM(build_llama(config, _weights(config, seed), "the tiny model"), tokenizer, **options)


def byte_tokenizer(chat: bool = True) -> Any:
    """Return a tokenizer whose tokens are the 256 bytes and three marks; it puts BOS before plain text."""
    tokenizers, transformers = require("tokenizers", "models"), require("transformers", "models")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    whole = tokenizers.Tokenizer(tokenizers.models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    whole.add_special_tokens([BOS, HEADER, EOS])
    whole.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, whole.token_to_id(BOS))]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token=BOS, eos_token=EOS, pad_token=EOS, additional_special_tokens=[HEADER]
    )
    tokenizer.chat_template = TEMPLATE if chat else None
    return tokenizer


def _weights(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    torch = require("torch", "models")
    stream = torch_generator("tiny_random_lm", "weights", seed)
    width, inner, half = config["hidden_size"], config["intermediate_size"], config["hidden_size"] // 2
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width), "lm_head.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }  # fmt: skip
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (width, width), "self_attn.k_proj": (half, width),
                "self_attn.v_proj": (half, width), "self_attn.o_proj": (width, width), "mlp.gate_proj": (inner, width),
                "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner), "input_layernorm": (width,),
                "post_attention_layernorm": (width,),
            }.items()
        }  # fmt: skip
    return {
        name: _SPREAD * torch.randn(shape, generator=stream) if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }
