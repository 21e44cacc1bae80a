"""A tiny GGUF file of a decoder with two layers, written by the package gguf."""

import gguf
import numpy as np

HIDDEN, INNER, VOCAB = 32, 64, 40


def shapes(heads, kv_heads, width, layers):
    """Stored name -> shape."""
    found = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(layers):
        found |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (heads * width, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv_heads * width, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv_heads * width, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, heads * width),
            f"blk.{layer}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER),
        }
    return found


def write_tiny(path, architecture, kind, *, heads=4, kv_heads=2, head=False, q_bias=False, theta=5000.0, replace=None):
    """Write the file with random weights of the quantisation ``kind`` (norms stay float32) and return ``path``."""
    rng = np.random.default_rng(3)
    layers = 2
    width = 128 if architecture == "qwen3" else HIDDEN // heads  # 128: the one that transformers takes there from GGUF
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    writer.add_vocab_size(VOCAB)
    if architecture == "llama":
        writer.add_rope_dimension_count(width)
    if architecture == "qwen3":
        writer.add_key_length(width)
        writer.add_value_length(width)
    writer.add_tokenizer_model("gpt2")
    digits = [str(digit) for digit in range(10)]
    tokens = ["<s>", "</s>", "t", *digits, *(f"t{digit}" for digit in digits)]
    writer.add_token_list(tokens + [f"<{token}>" for token in range(len(tokens), VOCAB)])
    writer.add_token_types([3, 3] + [1] * (VOCAB - 2))
    writer.add_token_merges([f"t {digit}" for digit in digits])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(1)
    wanted = shapes(heads, kv_heads, width, layers)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in wanted.items()}
    for layer in range(layers):
        if architecture == "qwen2":
            for part, rows in (("q", HIDDEN), ("k", kv_heads * width), ("v", kv_heads * width)):
                tensors[f"blk.{layer}.attn_{part}.bias"] = rng.standard_normal(rows).astype(np.float32)
        if architecture == "qwen3":
            for part in "qk":
                tensors[f"blk.{layer}.attn_{part}_norm.weight"] = rng.standard_normal(width).astype(np.float32)
    if head:
        tensors["output.weight"] = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    if q_bias:
        tensors["blk.0.attn_q.bias"] = np.arange(HIDDEN, dtype=np.float32)
    for name, values in {**tensors, **(replace or {})}.items():
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(name, values)
        else:
            packed = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
