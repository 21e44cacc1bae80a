"""How far a quantised language model is from its reference: KL divergence, perplexity, agreement of the first choice.

KL runs from the reference to the quantised model and is averaged over positions (direction: reconstruction).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import InputError

LanguageModel = Callable[[Tensor], Any]
"""Token ids int64 (1, length) -> logits (1, length, vocabulary), bare or as ``.logits`` of an output."""

_POSITIONS = 128  # whose log-probabilities are held at a time


@dataclass(frozen=True)
class Divergence:
    """What a model's next-token distributions lose against the reference's, averaged over ``tokens`` positions.

    Attributes:
        kl: KL(reference || model), nats a token.
        top1: Share of positions where both give the same token the highest probability.
        nll: Negative log-likelihood of the text under the model, nats a token.
        reference_nll: The same under the reference.
        tokens: Positions.
    """

    kl: float
    top1: float
    nll: float
    reference_nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """The exponential of the negative log-likelihood; infinite where that overflows."""
        return _exp(self.nll)

    @property
    def reference_perplexity(self) -> float:
        """The reference's perplexity."""
        return _exp(self.reference_nll)


def token_windows(ids: Tensor, length: int, count: int | None = None) -> Tensor:
    """Cut token ids into disjoint windows; what is left over at the end is dropped.

    Args:
        ids: int64 (tokens,).
        length: Tokens a window, at least 2.
        count: Windows wanted; all that there are when None.

    Returns:
        int64 (windows, length).

    Raises:
        InputError: Too few tokens, or a length below 2.
    """
    if ids.ndim != 1 or ids.dtype != torch.int64:
        raise InputError(f"ids must be int64 of one dimension, got {ids.dtype} of shape {tuple(ids.shape)}")
    if length < 2:
        raise InputError(f"length must be at least 2 tokens, got {length}")
    there = len(ids) // length
    if there < (wanted := 1 if count is None else count) or wanted < 1:
        raise InputError(f"the text has {len(ids)} tokens, too few for {wanted} windows of {length}; give more text")
    return ids[: (count or there) * length].view(-1, length)


def compare(reference: LanguageModel, models: Mapping[str, LanguageModel], windows: Tensor) -> dict[str, Divergence]:
    """Compare models with a reference on windows of text, each position predicting the next.

    One window is in memory twice, never more: as the reference's log-probabilities and as one model's logits.

    Args:
        reference: The unquantised model.
        models: Name -> quantised model.
        windows: int64 (windows, length), length at least 2.

    Raises:
        InputError: Windows of another shape, vocabularies that differ, or logits that are not finite.
    """
    _check(windows)
    sums = {name: torch.zeros(4, dtype=torch.float64) for name in models}
    with torch.no_grad():
        for number, window in enumerate(windows):
            truth = _logits(reference, window, f"the reference, window {number}").float().log_softmax(-1)
            for name, model in models.items():
                ours = _logits(model, window, f"'{name}', window {number}")
                if ours.shape != truth.shape:
                    raise InputError(f"'{name}' has logits {tuple(ours.shape)}, the reference {tuple(truth.shape)}")
                sums[name] += _sums(truth, ours, window[1:])
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    means = {name: (total / tokens).tolist() for name, total in sums.items()}
    return {name: Divergence(max(kl, 0.0), top1, nll, ref, tokens) for name, (kl, top1, nll, ref) in means.items()}


def perplexity(model: LanguageModel, windows: Tensor) -> float:
    """Return exp of the mean negative log-likelihood of every token but the first of each window.

    Args:
        model: A causal language model.
        windows: int64 (windows, length), length at least 2.

    Raises:
        InputError: Windows of another shape, or logits that are not finite.
    """
    _check(windows)
    total = 0.0
    with torch.no_grad():
        for number, window in enumerate(windows):
            logits = _logits(model, window, f"window {number}")
            for part in _chunks(len(logits)):
                total += float(torch.nn.functional.cross_entropy(logits[part], window[1:][part], reduction="sum"))
    return _exp(total / (windows.shape[0] * (windows.shape[1] - 1)))


def kl_of_rows(truth: Tensor, ours: Tensor) -> Tensor:
    """Return KL(truth || ours) in nats over the last dimension of two tensors of log-probabilities, in their dtype."""
    return (truth.exp() * (truth - ours)).sum(-1)


def _check(windows: Tensor) -> None:
    if windows.ndim != 2 or windows.shape[0] < 1 or windows.shape[1] < 2:
        raise InputError(f"windows must be (windows, length) with length >= 2, got {tuple(windows.shape)}")


def _logits(model: LanguageModel, window: Tensor, where: str) -> Tensor:
    """Return the logits of every position but the last, (length - 1, vocabulary)."""
    out: Any = model(window[None])
    logits: Tensor = (out if isinstance(out, Tensor) else out.logits)[0, :-1]
    if not torch.isfinite(logits).all():
        raise InputError(f"{where}: the model gives logits that are not finite")
    return logits


def _sums(truth: Tensor, ours: Tensor, following: Tensor) -> Tensor:
    """Return the sums over positions of KL, agreement and both negative log-likelihoods, float64 (4,).

    Args:
        truth: The reference's log-probabilities, (positions, vocabulary).
        ours: A model's logits, of the same shape.
        following: The token that follows each position.
    """
    total = torch.zeros(4, dtype=torch.float64)
    for part in _chunks(len(truth)):
        p, q = truth[part], ours[part].float().log_softmax(-1)
        targets = following[part, None]
        total += torch.stack([
            kl_of_rows(p, q).double().sum(),
            (p.argmax(-1) == q.argmax(-1)).sum().double(),
            -q.gather(1, targets).sum().double(),
            -p.gather(1, targets).sum().double(),
        ])  # fmt: skip
    return total


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + _POSITIONS) for start in range(0, length, _POSITIONS))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
