"""A real, attackable guard: the MiniLM embedding of a prompt, a logistic regression on it, gradients down to tokens.

White box on purpose: defences of a guard are weighed against attackers who see everything (reconstruction).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models import minilm

if TYPE_CHECKING:
    from torch import Tensor

MAX_TOKENS = 96  # of a text, its two special tokens included
_BATCH = 32
_STRENGTH = 30.0  # C of the logistic regression
PASSED, REFUSED = "Let through.", "Refused by the guard."


@functools.cache
def encoder() -> tuple[Any, Any]:
    """Return the MiniLM encoder and its tokenizer, loaded once a process.

    Raises:
        MissingExtraError: Its package is not installed; the message holds the command.
    """
    return minilm.load(), minilm.tokenizer()


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return unit-length embeddings, float32 of shape (texts, width); batches hold texts of similar length."""
    model, tokenizer = encoder()
    torch = require("torch", "guard")
    coded = tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)["input_ids"] if len(texts) else []
    order = sorted(range(len(coded)), key=lambda index: len(coded[index]))
    found = np.empty((len(coded), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        longest = len(coded[rows[-1]])
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(rows):
            ids[row, : len(coded[index])] = torch.tensor(coded[index])
            mask[row, : len(coded[index])] = 1
        found[rows] = minilm.embed(model, ids, mask).numpy()
    return found


class EmbeddingGuard:
    """Flags a text when the logit of its embedding is above 0 (probability above one half).

    Args:
        weights: float64 (width,), the coefficients of the embedding.
        bias: The intercept.

    Raises:
        InputError: The weights are not one finite number per dimension of the encoder.
    """

    def __init__(self, weights: NDArray[np.floating[Any]], bias: float) -> None:
        self.weights = np.array(weights, dtype=np.float64)
        self.bias = float(bias)
        width = encoder()[0].config.hidden_size
        if self.weights.shape != (width,) or not np.isfinite(self.weights).all() or not np.isfinite(self.bias):
            raise InputError(f"weights must be {width} finite numbers with a finite bias, one for each dimension")

    def logits(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the logit of every text, float64 of shape (texts,); above 0 is flagged."""
        return embed(texts) @ self.weights + self.bias

    def flags(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Say of every text whether the guard flags it, shape (texts,)."""
        return self.logits(texts) > 0

    def respond(self, prompts: Sequence[Any]) -> list[str]:
        """Return, for every prompt, what a model behind this guard does with it: ``PASSED`` or ``REFUSED``.

        A chat is judged by its last turn. This is the ``generate`` of a defence round the guard.
        """
        texts = [prompt if isinstance(prompt, str) else str(prompt[-1]["content"]) for prompt in prompts]
        return [REFUSED if flagged else PASSED for flagged in self.flags(texts)]

    def logit_gradient(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Return how the logit changes, to first order, with the token at each of ``positions``.

        Args:
            ids: Token ids of one text with its two special tokens, at most ``MAX_TOKENS``.
            positions: Indices into ``ids``.

        Returns:
            float32 (positions, vocabulary): the gradient with respect to the one-hot tokens.

        Raises:
            InputError: More tokens than the guard reads.
        """
        if len(ids) > MAX_TOKENS:
            raise InputError(f"ids has {len(ids)} tokens, the guard reads {MAX_TOKENS}")
        torch = require("torch", "guard")
        model = encoder()[0]
        table = model.get_input_embeddings().weight
        rows = table[torch.tensor(list(ids))].detach().requires_grad_(True)
        hidden = model(inputs_embeds=rows[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64))
        unit = torch.nn.functional.normalize(hidden.last_hidden_state[0].mean(0), dim=-1)
        logit = unit @ torch.from_numpy(self.weights).to(unit.dtype)
        (gradient,) = torch.autograd.grad(logit, rows)
        result: Tensor = gradient[list(positions)] @ table.T
        return result


def train_guard(texts: Sequence[str], labels: Sequence[bool]) -> EmbeddingGuard:
    """Train the guard: logistic regression with C = 30 and balanced classes on the embeddings.

    Args:
        texts: Prompts.
        labels: Whether each is of the forbidden kind.

    Raises:
        InputError: Lengths differ, or one of the two kinds is missing.
    """
    if len(texts) != len(labels):
        raise InputError(f"labels must be as many as texts, got {len(labels)} and {len(texts)}")
    wanted = np.asarray(labels, dtype=bool)
    if wanted.all() or not wanted.any():
        raise InputError("labels must hold both kinds, forbidden and allowed")
    linear_model = require("sklearn.linear_model", "guard")
    fitted = linear_model.LogisticRegression(C=_STRENGTH, class_weight="balanced", max_iter=2000)
    fitted.fit(embed(texts).astype(np.float64), wanted)
    return EmbeddingGuard(fitted.coef_[0], float(fitted.intercept_[0]))
