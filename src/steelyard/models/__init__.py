"""Models that the rooms, the benches and the commands stand on: language models, encoders, files of weights.

This floor lies below the rooms, beside :mod:`steelyard.data`.
"""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "cost": ("Cost", "estimate_cost"),
        "default": ("load_default_embedder", "load_default_lm"),
        "tiny": ("tiny_random_lm",),
        "transformers_lm": ("Generation", "TransformersLM"),
        "embedders": ("EndpointEmbedder", "HashingEmbedder", "TokenStates", "TransformersEmbedder"),
        "endpoint": ("OpenAICompatibleLM",),
        "vision.tiny_vlm": ("TinyVLM",),
        "vision.world": ("tiny_videos",),
        "vision.transformers_vlm": ("TransformersVLM",),
        "vision.endpoint_vlm": ("EndpointVLM",),
        "vision.callable_vlm": ("CallableVLM",),
        "vision.protocols": ("LMDims", "VisionLanguageModel"),
        "protocols": ("CallableLM", "CausalLM", "Embedder", "as_lm"),
    },
    extra="models",
)
