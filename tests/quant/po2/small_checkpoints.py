"""Small checkpoints as Hugging Face writes them."""

import json

import torch

from steelyard.models.safefile import write_safe
from steelyard.quant.po2.checkpoints import INDEX
from steelyard.rng import torch_generator

HIDDEN, INNER, VOCAB, LAYERS = 32, 44, 24, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "dtype": "float32",
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip


def llama_tensors(seed=0, dtype=torch.float32):
    """Name -> tensor of a Llama with two layers; 44 is no multiple of 16."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        shapes |= {f"{start}{norm}.weight": (HIDDEN,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {
            f"{start}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{start}self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{start}self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{start}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{start}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{start}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{start}mlp.down_proj.weight": (HIDDEN, INNER),
        }
    shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    generator = torch_generator("tests", "llama", seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write_llama(folder, seed=0, dtype=torch.float32, shards=1, config=CONFIG):
    """Write the model as a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = llama_tensors(seed, dtype)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safe(folder / "model.safetensors", tensors, {"format": "pt"})
        return folder
    names, places = list(tensors), {}
    for number in range(shards):
        part = {name: tensors[name] for name in names[number::shards]}
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_safe(folder / file, part, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write_tokenizer(folder):
    """Write a tokenizer of whole words, ``w2`` to ``w23``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, VOCAB)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder
