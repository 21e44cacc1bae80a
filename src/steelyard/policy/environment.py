"""What a text environment offers: the calls of gymnasium, with commands and observations that are text."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TextEnv(Protocol):
    """An environment that is told commands and answers in words.

    ``info`` holds ``admissible`` (list of the commands that would do something), ``task`` (the sentence that says what
    to do) and ``won`` (bool); wrappers add ``anchor`` and ``process``.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation and ``info``."""
        ...

    def step(self, command: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the observation, the reward, whether it ended, whether time ran out, and ``info``."""
        ...

    def state_key(self, full: bool = False) -> Hashable:
        """Return what identifies the present state; ``full`` takes every fact that may change."""
        ...
