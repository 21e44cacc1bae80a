"""The vote of a smoothing defence, and the random disruption of a prompt.

One copy of a prompt is disrupted by a kernel, a callable ``f(text, rng) -> text``; ``n`` copies vote by
:func:`majority`. Character kernels work on Unicode code points: a combining mark or one part of a joined emoji counts
as a character of its own and may be replaced alone. Word kernels work on runs between white space.

Sources: the vote rule, swap, patch and insert follow SmoothLLM's code; masking words follows SelfDenoise; the Bernoulli
mode, the alphabets and deleting words are reconstructions.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.arguments import check_count, check_fraction, check_gamma, check_one_of, share_of
from steelyard.guard.dr_smoothing.kernels import (
    DeleteWordsKernel,
    Disruption,
    InsertKernel,
    MaskWordsKernel,
    MixtureKernel,
    Mode,
    PatchKernel,
    SwapKernel,
    Unit,
)

ALPHABETS = {
    "printable": string.printable,  # SmoothLLM's 100 characters, six kinds of white space among them
    "safe": string.ascii_letters + string.digits + string.punctuation,
    "letters": string.ascii_lowercase,
}
_MASKED_SHARE = 0.3  # default rate of the word kernels, a reconstruction


def vote_threshold(n: int, gamma: float = 0.5) -> int:
    """Return ``t = floor(gamma * n)``: a prompt is jailbroken when more than ``t`` of ``n`` copies are.

    Args:
        n: Number of copies, at least 1.
        gamma: Share of copies in [0, 1).

    Returns:
        An integer in [0, n - 1].

    Raises:
        InputError: ``n`` or ``gamma`` is out of range.
    """
    check_count("n", n, least=1)
    check_gamma(gamma)
    return min(n - 1, share_of(n, gamma))


def majority(votes: Sequence[bool], gamma: float = 0.5) -> bool:
    """Return whether strictly more than ``gamma`` of the votes are 1 (jailbroken); a tie at 1/2 is not.

    Args:
        votes: One truth value per copy, at least one.
        gamma: Share of copies in [0, 1).

    Raises:
        InputError: No votes, a vote other than 0 and 1, or ``gamma`` out of range.
    """
    bits = as_bits("votes", votes)
    return sum(bits) > vote_threshold(len(bits), gamma)


def as_bits(name: str, votes: Sequence[bool]) -> list[int]:
    """Return votes as integers 0 and 1; raise InputError if there is none, or something else among them."""
    try:
        bits = [int(vote) for vote in votes if vote in (0, 1)]
        others = len(votes) - len(bits)
    except (TypeError, ValueError):
        raise InputError(f"{name} is no list of votes, 0 (safe) or 1 (jailbroken) for each copy") from None
    if others:
        raise InputError(f"{name} holds something else than 0 (safe) and 1 (jailbroken)")
    if not bits:
        raise InputError(f"{name} is empty: a vote needs at least one copy")
    return bits


def disrupt_swap(
    q: float = 0.10,
    alphabet: str | Sequence[str] = "safe",
    *,
    mode: Mode = "fixed",
    unit: Unit = "char",
    min_chars: int = 0,
) -> SwapKernel:
    """Return a kernel that replaces characters (or words) in place.

    Args:
        q: Share in [0, 1]: of the characters in mode ``"fixed"``, probability of each in mode ``"bernoulli"``.
        alphabet: ``"safe"`` (letters, digits, punctuation), ``"printable"`` (Python's ``string.printable``: SmoothLLM),
            ``"letters"`` (a to z, letters only are replaced; their number is ``max(1, round(q * len))``, at most all),
            or a string of distinct characters. With ``unit="token"`` a sequence of distinct words.
        mode: ``"fixed"``: exactly ``floor(q * len)`` distinct places, each drawn anew, perhaps the same character
            (SmoothLLM). ``"bernoulli"``: each place independently, by one of the *other* symbols; only this one is
            covered by :func:`swap_certificate`, for changes within the alphabet. A symbol outside of it is replaced at
            the same rate, by any symbol.
        unit: ``"char"``, or ``"token"`` for words between white space (mode ``"bernoulli"`` only).
        min_chars: In mode ``"fixed"``, disrupt at least so many characters of a short text, if ``q > 0``.

    Raises:
        InputError: An argument is out of range or does not fit the others.
    """
    check_fraction("q", q)
    check_one_of("mode", mode, ("fixed", "bernoulli"))
    check_one_of("unit", unit, ("char", "token"))
    check_count("min_chars", min_chars, least=0)
    if unit == "token" and mode != "bernoulli":
        raise InputError('unit="token" needs mode="bernoulli": only characters are swapped in a fixed number')
    if mode == "bernoulli" and min_chars:
        raise InputError('min_chars has no meaning in mode="bernoulli", where the number of changes is random')
    name, symbols = _words(alphabet) if unit == "token" else _alphabet(alphabet)
    if mode == "bernoulli" and len(symbols) < 2:
        raise InputError('alphabet has one symbol; mode="bernoulli" replaces a symbol by another and needs two')
    return SwapKernel(float(q), name, int(min_chars), symbols, mode, unit)


def disrupt_patch(q: float = 0.10, alphabet: str = "safe", *, min_chars: int = 0) -> PatchKernel:
    """Return a kernel that redraws one contiguous window of ``floor(q * len)`` characters (SmoothLLM's patch).

    Args:
        q: Share of the characters in [0, 1].
        alphabet: As in :func:`disrupt_swap`; ``"letters"`` draws a to z, at any place.
        min_chars: Disrupt at least so many characters of a short text, if ``q > 0``.

    Raises:
        InputError: An argument is out of range.
    """
    return PatchKernel(*_character_settings(q, alphabet, min_chars))


def disrupt_insert(q: float = 0.10, alphabet: str = "safe", *, quirk: bool = False, min_chars: int = 0) -> InsertKernel:
    """Return a kernel that inserts ``floor(q * len)`` random characters, each before another character of the text.

    Args:
        q: Share of the characters in [0, 1].
        alphabet: As in :func:`disrupt_patch`.
        quirk: As SmoothLLM's code does it: in the order of drawing, so that an earlier insertion moves the later ones.
        min_chars: Insert at least so many characters (at most ``len``) into a short text, if ``q > 0``.

    Raises:
        InputError: An argument is out of range.
    """
    return InsertKernel(*_character_settings(q, alphabet, min_chars), bool(quirk))


def disrupt_mask_words(
    rate: float | None = None, keep: int | float | None = None, mask: str = "[MASK]"
) -> MaskWordsKernel:
    """Return a kernel that puts a mask in the place of words; white space stays.

    Args:
        rate: Probability in [0, 1] that a word is masked, independently; 0.3 when ``keep`` is not given either.
        keep: Instead of ``rate``: how many words are kept, uniformly, as an integer, or their share in [0, 1] as a
            float (rounded down). This is the kernel that :func:`ablation_certificate` covers.
        mask: What replaces a word.

    Raises:
        InputError: Both ``rate`` and ``keep``, or one out of range, or an empty ``mask``.
    """
    if rate is not None and keep is not None:
        raise InputError("rate and keep exclude each other: mask at a rate, or keep a fixed number of words")
    if not isinstance(mask, str) or not mask.strip():
        raise InputError("mask is empty or no string: to drop words use disrupt_delete_words")
    if keep is None:
        rate = _MASKED_SHARE if rate is None else rate
        check_fraction("rate", rate)
        return MaskWordsKernel(float(rate), None, mask)
    if isinstance(keep, float):
        check_fraction("keep", keep)
        return MaskWordsKernel(None, keep, mask)
    check_count("keep", keep, least=0)
    return MaskWordsKernel(None, int(keep), mask)


def disrupt_delete_words(q: float = _MASKED_SHARE) -> DeleteWordsKernel:
    """Return a kernel that drops each word with probability ``q``; if none were left, the text stays as it is.

    Args:
        q: Probability in [0, 1].

    Raises:
        InputError: ``q`` is out of range.
    """
    check_fraction("q", q)
    return DeleteWordsKernel(float(q))


def disrupt_random(q: float = 0.10, rate: float = _MASKED_SHARE, alphabet: str = "safe") -> MixtureKernel:
    """Return the paper's disruption as its referees tell it: per copy one operation, on characters or words.

    One of swap, insert, patch (share ``q`` of the characters), masking and deleting words (rate ``rate``) is drawn
    uniformly. Reconstruction: neither the operations nor their weights are known.

    Args:
        q: Share of the characters in [0, 1].
        rate: Probability that a word is masked or deleted, in [0, 1].
        alphabet: As in :func:`disrupt_patch`.

    Raises:
        InputError: An argument is out of range.
    """
    characters = disrupt_swap(q, alphabet), disrupt_insert(q, alphabet), disrupt_patch(q, alphabet)
    return MixtureKernel((*characters, disrupt_mask_words(rate), disrupt_delete_words(rate)), "random")


def mixture(kernels: Sequence[Disruption]) -> MixtureKernel:
    """Return a kernel that draws one of ``kernels`` uniformly for every copy.

    Args:
        kernels: At least one callable ``f(text, rng) -> text``.

    Raises:
        InputError: None is given, or one is not callable.
    """
    if not isinstance(kernels, list | tuple) or not kernels:
        raise InputError("kernels is no list of at least one disruption")
    for i, kernel in enumerate(kernels):
        if not callable(kernel):
            raise InputError(f"kernels[{i}] is not callable: give f(text, rng) -> text")
    return MixtureKernel(tuple(kernels))


def as_kernel(disrupt: Disruption | Sequence[Disruption] | str) -> Disruption:
    """Return one disruption from a kernel, a callable, a list of them (a mixture) or the word ``"random"``.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(disrupt, str):
        check_one_of("disrupt", disrupt, ("random",))
        return disrupt_random()
    if callable(disrupt):
        return disrupt
    return mixture(disrupt)


def _character_settings(q: float, alphabet: str, min_chars: int) -> tuple[float, str, int, tuple[str, ...]]:
    check_fraction("q", q)
    check_count("min_chars", min_chars, least=0)
    name, symbols = _alphabet(alphabet)
    return float(q), name, int(min_chars), symbols


def _alphabet(alphabet: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not isinstance(alphabet, str) or not alphabet:
        raise InputError(f"alphabet is one of {', '.join(ALPHABETS)} or a string of characters")
    symbols = tuple(ALPHABETS.get(alphabet, alphabet))
    if len(set(symbols)) != len(symbols):
        raise InputError(f"alphabet is one of {', '.join(ALPHABETS)} or a string in which no character comes twice")
    return alphabet, symbols


def _words(words: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if isinstance(words, str):
        raise InputError('alphabet is a list of words with unit="token", not a string')
    symbols = tuple(words)
    if len(set(symbols)) != len(symbols):
        raise InputError("alphabet holds a word twice")
    if not all(isinstance(word, str) and word and word.split() == [word] for word in symbols):
        raise InputError("alphabet holds something else than words without white space")
    return f"{len(symbols)} words", symbols
