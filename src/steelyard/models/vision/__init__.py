"""Vision-language models: what one is to the library, a small one trained here, the videos it knows, and adapters."""
