"""Certificates: what holds for every attack within a distance, and what samples of one prompt prove.

The rectifier, the model and the judge come after the disruption. A certificate that holds for a disruption and *every*
function after it therefore holds unchanged for the whole chain; only the disruption has to be the one it was made for.

Sources: word ablation follows randomised ablation (Levine and Feizi) and RanMASK; the swap certificate is the
Neyman-Pearson bound for independent replacement; both stand in as reconstructions for the paper's unknown theorems.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing.arguments import (
    check_count,
    check_fraction,
    check_open_fraction,
    fractions,
    upper_limit,
)
from steelyard.guard.dr_smoothing.core import as_bits, vote_threshold
from steelyard.guard.dr_smoothing.kernels import Disruption, MaskWordsKernel, SwapKernel, kernel_name
from steelyard.guard.dr_smoothing.theory import Floats, defense_success_probability, voting_harms


def ablation_certificate(m: int, keep: int, d: ArrayLike, *, kernel: Disruption | None = None) -> float | Floats:
    """Return by how much the per-copy probability can change when ``d`` of ``m`` words are exchanged.

    ``1 - C(m - d, keep) / C(m, keep)``, the probability that a changed word is among those kept; exact, in that some
    function after the disruption attains it. It covers exchanged words at equal length. An appended suffix is covered
    only if the clean prompt is counted as the same ``m`` words, ``d`` of them placeholders.

    Args:
        m: Words of the prompt, at least 1.
        keep: Words that are kept, uniformly, in [0, m]; the others are masked where they stand.
        d: Exchanged words, integers in [0, m]; any shape.
        kernel: The disruption in use, to be checked: ``disrupt_mask_words(keep=...)`` that keeps ``keep`` of ``m``.

    Returns:
        Changes in [0, 1] of the shape of ``d``.

    Raises:
        InputError: An argument is out of range, or ``kernel`` is not the one that the certificate is for.
    """
    check_count("m", m, least=1)
    check_count("keep", keep, least=0)
    if keep > m:
        raise InputError(f"keep={keep} is more than the m={m} words of the prompt")
    changed = _whole("d", d, m)
    if kernel is not None:
        _check_ablation(kernel, m, keep)
    # C(m-d, keep) / C(m, keep) = prod_{j<d} (1 - keep / (m - j)): one factor for each changed word
    room = m - np.arange(m)
    with np.errstate(divide="ignore"):
        logs = np.log1p(-np.minimum(1.0, keep / room))
    change = -np.expm1(np.concatenate([[0.0], np.cumsum(logs)]))[changed]
    return change if np.ndim(change) else float(change)


def swap_certificate(
    p_safe: ArrayLike,
    d: int,
    beta: float | None = None,
    vocab: int | None = None,
    *,
    kernel: Disruption | None = None,
) -> float | Floats:
    """Return the least probability of a safe copy after any ``d`` tokens were exchanged; exact.

    For the disruption that keeps each token with probability ``1 - beta`` and otherwise replaces it by one of the
    ``vocab - 1`` others, uniformly: ``disrupt_swap(beta, ..., mode="bernoulli")``. The bound is the Neyman-Pearson one,
    attained by some function after the disruption. It covers exchanges at equal length, within the vocabulary.

    Args:
        p_safe: Probability in [0, 1] that a copy of the prompt is safe, or a lower limit of it; any shape.
        d: Exchanged tokens, at least 0.
        beta: Probability in [0, 1] that a token is replaced.
        vocab: Tokens of the vocabulary, at least 2.
        kernel: The disruption in use, instead of ``beta`` and ``vocab`` or to be checked against them.

    Returns:
        Probabilities of the shape of ``p_safe``, none above it.

    Raises:
        InputError: An argument is out of range or missing, or ``kernel`` is not the one that the certificate is for, as
            a swap of a fixed number of characters.
    """
    if kernel is not None:
        beta, vocab = _check_swap(kernel, beta, vocab)
    if beta is None or vocab is None:
        raise InputError("beta and vocab are missing: give both, or the kernel")
    check_fraction("beta", beta)
    check_count("vocab", vocab, least=2)
    check_count("d", d, least=0)
    safe = fractions("p_safe", p_safe)
    mine, theirs = _lead_masses(d, beta, vocab)
    reached = mine > 0
    mine, free, theirs = mine[reached], float(theirs[~reached].sum()), theirs[reached]
    # From the outcomes most typical of the prompt down to p_safe, or from the other end up to 1 - p_safe: whichever
    # sum is the smaller is the more exact one, and near p_safe = 1 the bound is steep.
    least = np.interp(safe, _from_zero(mine), _from_zero(theirs))
    most = free + np.interp(1 - safe, _from_zero(mine[::-1]), _from_zero(theirs[::-1]))
    bound = np.clip(np.where(safe <= 0.5, least, 1 - most), 0.0, safe)
    return bound if np.ndim(bound) else float(bound)


@dataclass(frozen=True)
class SampleCertificate:
    """What independent copies of one prompt prove about the vote on it.

    Attributes:
        success: Certified probability that the vote of ``n`` copies does not come out as jailbroken.
        confidence: Probability, over the samples, that the certificate holds; at least this.
        p_hat: Share of jailbroken samples.
        p_upper: One-sided Clopper-Pearson limit of the per-copy probability.
        jailbroken: Number of jailbroken samples.
        n_samples: Number of samples.
        n: Copies of the vote that is certified.
        gamma: Its threshold.
        warning: Why voting does not help here, or None.
    """

    success: float
    confidence: float
    p_hat: float
    p_upper: float
    jailbroken: int
    n_samples: int
    n: int
    gamma: float
    warning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as JSON takes them."""
        return dataclasses.asdict(self)


def certify_from_samples(
    votes_or_count: Sequence[bool] | int,
    n: int,
    n_samples: int | None = None,
    confidence: float = 0.99,
    gamma: float = 0.5,
    *,
    tuned_on_these: bool = False,
    allow_tuned: bool = False,
) -> SampleCertificate:
    """Return a certificate for the vote of ``n`` copies of a prompt from samples of single copies of it.

    The Clopper-Pearson upper limit ``BetaInv(confidence; c + 1, n_samples - c)``, 1 if all are jailbroken, is put into
    :func:`defense_success_probability`. One-sided and conservative. It speaks about the prompt that was sampled, and
    needs copies with independent randomness that chose no setting: neither ``q`` nor anything else.

    Args:
        votes_or_count: One truth value per sampled copy (1: jailbroken), or their number of ones.
        n: Copies of the vote that is certified, at least 1.
        n_samples: Number of samples, if a count was given.
        confidence: Confidence of the certificate, strictly between 0 and 1.
        gamma: Vote threshold in [0, 1).
        tuned_on_these: Say True if these copies were used to choose ``q`` or another setting: that is refused.
        allow_tuned: Certify all the same, with a warning; the confidence then is not what it says.

    Raises:
        InputError: An argument is out of range, or the copies chose a setting and ``allow_tuned`` is not set.
    """
    check_open_fraction("confidence", confidence)
    vote_threshold(n, gamma)
    jailbroken, total = _counted(votes_or_count, n_samples)
    if tuned_on_these:
        if not allow_tuned:
            raise InputError("tuned_on_these copies cannot certify: sample fresh ones, or set allow_tuned=True")
        warnings.warn("the copies chose a setting: the certificate's confidence does not hold", stacklevel=2)
    made = certificate_of(jailbroken, total, n, confidence, gamma)
    if made.warning:
        warnings.warn(made.warning, NoEffectWarning, stacklevel=2)
    return made


def certificate_of(jailbroken: int, total: int, n: int, confidence: float, gamma: float) -> SampleCertificate:
    """Return the certificate of checked counts; its ``warning`` is said by nobody else."""
    upper = upper_limit(jailbroken, total, confidence)
    harm = voting_harms(jailbroken / total, gamma)
    success = float(defense_success_probability(upper, n, gamma))
    return SampleCertificate(
        success, float(confidence), jailbroken / total, upper, jailbroken, total, int(n), float(gamma), harm
    )


def _counted(votes_or_count: Sequence[bool] | int, n_samples: int | None) -> tuple[int, int]:
    if isinstance(votes_or_count, int | np.integer) and not isinstance(votes_or_count, bool):
        if n_samples is None:
            raise InputError("n_samples is missing: a count of jailbroken copies needs the number of samples")
        check_count("n_samples", n_samples, least=1)
        check_count("votes_or_count", votes_or_count, least=0)
        if votes_or_count > n_samples:
            raise InputError(f"votes_or_count={votes_or_count} jailbroken copies are more than n_samples={n_samples}")
        return int(votes_or_count), int(n_samples)
    if isinstance(votes_or_count, bytes | bool | float):
        raise InputError("votes_or_count is neither a list of votes nor a count of jailbroken copies")
    bits = as_bits("votes_or_count", votes_or_count)
    if n_samples is not None and n_samples != len(bits):
        raise InputError(f"n_samples={n_samples} contradicts the {len(bits)} votes that were given")
    return sum(bits), len(bits)


def _lead_masses(d: int, beta: float, vocab: int) -> tuple[Floats, Floats]:
    """Return the probabilities, under the prompt and under the other, of each likelihood ratio, ascending.

    At each of the ``d`` places an outcome equals the prompt's token (+1), the other prompt's (-1) or neither (0); the
    ratio depends on the sum of these alone. Its distribution under the other prompt is the mirror image.
    """
    keep, other = 1 - beta, beta / (vocab - 1)
    step = np.array([other, beta * (vocab - 2) / (vocab - 1), keep])  # -1, 0, +1; all terms positive, none cancels
    mine = np.ones(1)
    for _ in range(d):
        mine = np.convolve(mine, step)
    theirs = mine[::-1]
    return (mine[::-1], theirs[::-1]) if keep > other else (mine, theirs)


def _from_zero(masses: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(masses)])


def _whole(name: str, values: ArrayLike, most: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or (array.size and not (array.min() >= 0 and array.max() <= most)):
        raise InputError(f"{name} holds integers from 0 to {most}, not {values!r}")
    return array.astype(np.int64)


def _check_ablation(kernel: Disruption, m: int, keep: int) -> None:
    if not isinstance(kernel, MaskWordsKernel) or kernel.keep is None:
        raise InputError(
            f"kernel {kernel_name(kernel)} is not covered: the ablation certificate is for disrupt_mask_words(keep=...)"
        )
    if kernel.kept(m) != keep:
        raise InputError(f"kernel keeps {kernel.kept(m)} of m={m} words, not keep={keep}")


def _check_swap(kernel: Disruption, beta: float | None, vocab: int | None) -> tuple[float, int]:
    if not isinstance(kernel, SwapKernel) or kernel.mode != "bernoulli":
        raise InputError(
            f"kernel {kernel_name(kernel)} is not covered: the swap certificate is for independent replacement, "
            'disrupt_swap(..., mode="bernoulli"), not for a fixed number of redrawn characters'
        )
    if beta not in (None, kernel.q) or vocab not in (None, kernel.vocab):
        raise InputError(f"kernel replaces at beta={kernel.q:g} among vocab={kernel.vocab}, not as beta and vocab say")
    return kernel.q, kernel.vocab
