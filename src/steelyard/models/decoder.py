"""A causal language model of transformers behind the few calls made here, whatever a release names its arguments."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from steelyard.errors import InputError
from steelyard.extras import require

if TYPE_CHECKING:
    from torch import Tensor


class Decoder:
    """Forward passes over padded rows of tokens, with a cache of keys and values and a look at inner states.

    States are numbered as transformers does: 0 is what enters the first block, ``i`` what block ``i`` puts out, and
    the last, ``num_layers``, is taken after the final norm. Only those asked for are held.

    Attributes:
        num_layers: Number of blocks.
        context: Longest sequence of tokens that the model was built for.
        vocabulary: Number of logits per token.
        window: Tokens that the attention of some layer looks back over, or None for all of them.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._body = model.base_model
        config = model.config.get_text_config()
        self.num_layers = int(config.num_hidden_layers)
        self.context = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.vocabulary = int(config.vocab_size)
        sliding = getattr(config, "use_sliding_window", True)  # Qwen names a window that it does not use
        self.window: int | None = getattr(config, "sliding_window", None) if sliding else None
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"  # the latter before transformers 5.24
        self._keeps_logits = "logits_to_keep" in names

    @property
    def device(self) -> Any:
        """Where the model lies now."""
        return self.model.device

    def run(self, ids: Tensor, mask: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Feed ``ids`` behind what ``cache`` holds, without the output layer.

        Args:
            ids: (rows, new) tokens.
            mask: (rows, cached + new), 0 where there is no token; positions count the ones.
            cache: Keys and values of the tokens before; it is changed.

        Returns:
            The last states, (rows, new, width), and the cache that now holds the new tokens as well.
        """
        out = self._body(**self._arguments(ids, mask, cache))
        return out.last_hidden_state, out[self._cache_name]

    def logits(self, ids: Tensor, mask: Tensor, cache: Any = None, keep: Any = 1) -> tuple[Tensor, Any]:
        """Feed ``ids`` as :meth:`run` does; return float32 logits (rows, kept, vocabulary) and the cache.

        Args:
            ids: (rows, new) tokens.
            mask: (rows, cached + new).
            cache: Keys and values of the tokens before; it is changed.
            keep: How many of the last tokens get logits, or a tensor of column numbers.
        """
        arguments = self._arguments(ids, mask, cache)
        if self._keeps_logits:
            out = self.model(**arguments, logits_to_keep=keep)
            logits = out.logits
        else:
            out = self.model(**arguments)
            logits = out.logits[:, -keep:] if isinstance(keep, int) else out.logits[:, keep]
        return logits.float(), out[self._cache_name]

    def _arguments(self, ids: Tensor, mask: Tensor, cache: Any) -> dict[str, Any]:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return {
            "input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": True,
            self._cache_name: cache,
        }  # fmt: skip

    @contextlib.contextmanager
    def recording(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect the states of ``layers`` in every forward pass inside the block: layer -> (rows, new, width)."""
        seen: dict[int, Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for layer in set(layers):
                if layer == self.num_layers:
                    handle = self._body.register_forward_hook(_keep_output(seen, layer))
                else:
                    handle = self._blocks()[layer].register_forward_pre_hook(_keep_input(seen, layer), with_kwargs=True)
                hooks.callback(handle.remove)
            yield seen

    def _blocks(self) -> Any:
        torch = require("torch", "models")
        for module in self._body.modules():
            if isinstance(module, torch.nn.ModuleList) and len(module) == self.num_layers:
                return module
        raise InputError(f"{type(self.model).__name__} keeps its layers where they are not found; its states are out")


def _keep_input(seen: dict[int, Tensor], layer: int) -> Any:
    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[layer] = args[0] if args else kwargs["hidden_states"]

    return hook


def _keep_output(seen: dict[int, Tensor], layer: int) -> Any:
    def hook(_: Any, args: tuple[Any, ...], output: Any) -> None:
        seen[layer] = output.last_hidden_state

    return hook
