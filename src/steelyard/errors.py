"""Every error that steelyard raises on purpose: one sentence that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SteelyardError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the command line returns for it."""

    exit_code = 1


class InputError(SteelyardError, ValueError):
    """An argument, a file or a value in it cannot be used; the message names it."""

    exit_code = 2


class NoEffectWarning(UserWarning):
    """A method does nothing here, which its user may not have meant."""


class MissingExtraError(SteelyardError, ImportError):
    """An optional dependency is not installed; the message holds the exact install command."""

    exit_code = 3


class UnsupportedError(SteelyardError, NotImplementedError):
    """A back end cannot do what was asked of it; the message names both."""

    exit_code = 2


class EndpointError(SteelyardError):
    """A model endpoint failed or answered something unusable; the message names the URL and status, never a key."""


class DataMissingError(SteelyardError, FileNotFoundError):
    """A data set is neither cached, nor mirrored, nor reachable."""

    exit_code = 3


class ChecksumError(SteelyardError):
    """A downloaded or mirrored file has other bytes than its pinned checksum; it was not used."""

    exit_code = 3


class StoreError(SteelyardError):
    """The store cannot be opened, read or written."""

    exit_code = 2


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `` Did you mean 'x'?`` for the known word closest to ``word``, or an empty string.

    ``cutoff`` is how alike they must be, from 0 to 1.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" Did you mean '{close[0]}'?" if close else ""
