"""The disruptions as frozen callable objects; ``core`` makes them and checks their settings."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing.arguments import share_of

Mode: TypeAlias = Literal["fixed", "bernoulli"]
Unit: TypeAlias = Literal["char", "token"]
Disruption: TypeAlias = Callable[[str, np.random.Generator], str]
_SPACES = re.compile(r"(\s+)")  # splitting at it is linear in the text; matching words with their spaces is not


class BaseKernel(ABC):
    """Checks of the text, and the settings as a mapping; the subclasses are frozen dataclasses."""

    name: ClassVar[str]

    @property
    def config(self) -> dict[str, Any]:
        """Settings, as JSON takes them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.repr}  # type: ignore[arg-type]

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Return a disrupted copy of ``text``.

        Args:
            text: A prompt of at least one character.
            rng: Source of all draws.

        Raises:
            InputError: ``text`` is empty or no string, or ``rng`` is no numpy Generator.
        """
        if not isinstance(text, str) or not text:
            raise InputError("text is empty or no string: give the prompt's text, at least one character")
        if not isinstance(rng, np.random.Generator):
            raise InputError("rng is no numpy.random.Generator: make one with numpy.random.default_rng(seed)")
        return self._apply(text, rng)

    @abstractmethod
    def _apply(self, text: str, rng: np.random.Generator) -> str:
        """Return a disrupted copy of a text that is not empty."""


@dataclass(frozen=True)
class _CharacterKernel(BaseKernel):
    """``q`` of the characters, drawn from ``symbols``."""

    q: float
    alphabet: str
    min_chars: int
    symbols: tuple[str, ...] = field(repr=False)

    @property
    def vocab(self) -> int:
        """How many symbols a replacement is drawn from."""
        return len(self.symbols)

    def _count(self, length: int) -> int:
        """Return how many of ``length`` characters are disrupted; warn when it is none."""
        count = max(share_of(length, self.q), min(self.min_chars, length)) if self.q else 0
        if not count and self.q:
            warn_idle(f"q={self.q:g} of {length} character(s) is less than one character", "min_chars=1")
        return count

    def _draw(self, count: int, rng: np.random.Generator) -> list[str]:
        return [self.symbols[i] for i in rng.integers(len(self.symbols), size=count).tolist()]


@dataclass(frozen=True)
class SwapKernel(_CharacterKernel):
    """What :func:`disrupt_swap` returns."""

    mode: Mode = "fixed"
    unit: Unit = "char"
    name: ClassVar[str] = "swap"

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        if self.unit == "token":
            return splice_words(text, lambda words: self._bernoulli(words, range(len(words)), rng))
        letters_only = self.alphabet == "letters"
        items = list(text)
        candidates = [i for i, c in enumerate(items) if c.isalpha()] if letters_only else range(len(items))
        if self.mode == "bernoulli":
            return "".join(self._bernoulli(items, candidates, rng))
        count = self._count_letters(len(items), len(candidates)) if letters_only else self._count(len(items))
        chosen = rng.choice(len(candidates), size=count, replace=False, shuffle=False) if count else np.empty(0, int)
        for i, symbol in zip(chosen.tolist(), self._draw(count, rng), strict=True):
            items[candidates[i]] = symbol
        return "".join(items)

    def _count_letters(self, length: int, candidates: int) -> int:
        if self.q and not candidates:
            warn_idle("the text has no letter", 'alphabet="safe"')
        return min(candidates, max(1, self.min_chars, round(length * self.q))) if self.q else 0

    def _bernoulli(self, items: list[str], candidates: Sequence[int], rng: np.random.Generator) -> list[str]:
        """Replace each candidate with probability q by one of the *other* symbols, uniformly."""
        hit = np.flatnonzero(rng.random(len(candidates)) < self.q).tolist()
        old = [self._positions.get(items[candidates[i]], -1) for i in hit]
        others = np.array([len(self.symbols) - (place >= 0) for place in old], dtype=np.int64)
        items = list(items)
        for i, place, draw in zip(hit, old, rng.integers(others).tolist(), strict=True):
            items[candidates[i]] = self.symbols[draw + (0 <= place <= draw)]
        return items


@dataclass(frozen=True)
class PatchKernel(_CharacterKernel):
    """What :func:`disrupt_patch` returns."""

    name: ClassVar[str] = "patch"

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        count = self._count(len(text))
        start = int(rng.integers(len(text) - count + 1))
        return text[:start] + "".join(self._draw(count, rng)) + text[start + count :]


@dataclass(frozen=True)
class InsertKernel(_CharacterKernel):
    """What :func:`disrupt_insert` returns."""

    quirk: bool = False
    name: ClassVar[str] = "insert"

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        count = self._count(len(text))
        places = rng.choice(len(text), size=count, replace=False).tolist()
        items = list(text)
        for place, symbol in zip(places, self._draw(count, rng), strict=True):
            if self.quirk:
                items.insert(place, symbol)  # moves the places still to come, as in SmoothLLM's code
            else:
                items[place] = symbol + items[place]
        return "".join(items)


@dataclass(frozen=True)
class MaskWordsKernel(BaseKernel):
    """What :func:`disrupt_mask_words` returns."""

    rate: float | None
    keep: int | float | None
    mask: str
    name: ClassVar[str] = "mask_words"

    def kept(self, m: int) -> int:
        """Return how many of ``m`` words are kept in fixed-share mode.

        Raises:
            InputError: The kernel masks independently (``rate``), so that the number is random.
        """
        if self.keep is None:
            raise InputError("keep is not set: this kernel masks every word independently, at its rate")
        return share_of(m, self.keep) if isinstance(self.keep, float) else min(self.keep, m)

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        return splice_words(text, lambda words: self._masked(words, rng))

    def _masked(self, words: list[str], rng: np.random.Generator) -> list[str]:
        if self.rate is not None:
            stay = (rng.random(len(words)) >= self.rate).tolist()
        else:
            kept = set(rng.choice(len(words), size=self.kept(len(words)), replace=False, shuffle=False).tolist())
            stay = [i in kept for i in range(len(words))]
        return [word if stays else self.mask for word, stays in zip(words, stay, strict=True)]


@dataclass(frozen=True)
class DeleteWordsKernel(BaseKernel):
    """What :func:`disrupt_delete_words` returns."""

    q: float
    name: ClassVar[str] = "delete_words"

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        parts = ["", *_SPACES.split(text)]  # white space, word, white space, word, ...
        pieces = [parts[i - 1] + parts[i] for i in range(1, len(parts), 2) if parts[i]]
        if not pieces:
            warn_idle("the text has no word", "a character kernel")
        stay = rng.random(len(pieces)) >= self.q
        if stay.all() or not stay.any():
            return text
        left = "".join(piece for piece, stays in zip(pieces, stay.tolist(), strict=True) if stays)
        return left if stay[0] else left.lstrip()


@dataclass(frozen=True)
class MixtureKernel(BaseKernel):
    """What :func:`mixture` and :func:`disrupt_random` return."""

    kernels: tuple[Disruption, ...] = field(repr=False)
    label: str = field(default="mixture", repr=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        """``"mixture"`` or ``"random"``."""
        return self.label

    @property
    def config(self) -> dict[str, Any]:
        """The kernels with their settings."""
        return {"kernels": [{"name": kernel_name(k), **getattr(k, "config", {})} for k in self.kernels]}

    def _apply(self, text: str, rng: np.random.Generator) -> str:
        return self.kernels[int(rng.integers(len(self.kernels)))](text, rng)


def unchanged(text: str, rng: np.random.Generator) -> str:
    """Return the text itself: the disruption of a defence that only rectifies, or does nothing."""
    return text


def kernel_name(disrupt: Disruption) -> str:
    """Return a kernel's name, or that of a plain callable."""
    return str(getattr(disrupt, "name", None) or getattr(disrupt, "__name__", type(disrupt).__name__))


def splice_words(text: str, change: Callable[[list[str]], list[str]]) -> str:
    """Return ``text`` with its words replaced by ``change(words)``, and its white space as it was."""
    parts = _SPACES.split(text)
    places = [i for i in range(0, len(parts), 2) if parts[i]]
    if not places:
        warn_idle("the text has no word", "a character kernel")
        return text
    for i, word in zip(places, change([parts[i] for i in places]), strict=True):
        parts[i] = word
    return "".join(parts)


def warn_idle(why: str, remedy: str) -> None:
    """Warn that a kernel leaves the prompt as it is."""
    warnings.warn(f"the prompt is not disrupted: {why}; use {remedy}", NoEffectWarning, stacklevel=2)
